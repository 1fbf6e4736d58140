//! Commands to a drive that the kernel's driver has (linux/nvme_ioctl.h): by a system call that waits for each, and as
//! what an io_uring takes for I/O commands.
//!
//! The kernel lets only `CAP_SYS_ADMIN` send admin commands that change anything. I/O commands take the namespace's
//! character device, open for writing, from Linux 6.2 on and where the drive says that it supports them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use nvme_spec::{Status, opcode};

/// `_IO('N', 0x40)`: the identifier of the namespace whose block device this is.
const NVME_IOCTL_ID: libc::c_ulong = 0x4e40;

/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xc048_4e41;

/// `_IOWR('N', 0x43, struct nvme_passthru_cmd)`.
const NVME_IOCTL_IO_CMD: libc::c_ulong = 0xc048_4e43;

/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`: of an entry of an io_uring, an I/O command with one piece of memory.
pub const NVME_URING_CMD_IO: u32 = 0xc048_4e80;

/// `_IOWR('N', 0x81, struct nvme_uring_cmd)`: with a list of pieces.
pub const NVME_URING_CMD_IO_VEC: u32 = 0xc048_4e81;

/// The kernel's `struct nvme_passthru_cmd`, alias `nvme_admin_cmd`. In its `nvme_uring_cmd` the last field is reserved.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
struct PassthroughCommand {
    opcode: u8,
    flags: u8,
    reserved2: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    data: u64,
    metadata_len_bytes: u32,
    data_len_bytes: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

/// The request's number has it.
const _: () = assert!(size_of::<PassthroughCommand>() == 72);

/// An admin command without data, or with data from the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminCommand {
    /// See [`nvme_spec::opcode::admin`].
    pub opcode: u8,
    /// Namespace, or 0.
    pub nsid: u32,
    /// Dword 10.
    pub cdw10: u32,
    /// Dword 11.
    pub cdw11: u32,
    /// How long the kernel waits for it before it resets the controller: up to 2^32 ms.
    pub timeout: Duration,
}

/// An I/O command as an entry of an io_uring carries it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoCommand {
    /// See [`nvme_spec::opcode::nvm`].
    pub opcode: u8,
    /// Namespace.
    pub nsid: u32,
    /// Where its data are in this process's memory, or the list of their pieces.
    pub data: u64,
    /// Bytes, or pieces.
    pub data_len: u32,
    /// Dwords 10 to 12.
    pub cdws: [u32; 3],
}

impl IoCommand {
    fn passed(&self) -> PassthroughCommand {
        let Self { opcode, nsid, data, data_len, cdws: [cdw10, cdw11, cdw12] } = *self;
        PassthroughCommand { opcode, nsid, data, data_len_bytes: data_len, cdw10, cdw11, cdw12, ..Default::default() }
    }

    /// What goes into the entry.
    pub fn to_bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..size_of::<PassthroughCommand>()].copy_from_slice(bytemuck::bytes_of(&self.passed()));
        bytes
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum PassthroughError {
    /// The kernel did not send it, or lost the controller.
    #[error("{0}")]
    Os(#[from] io::Error),
    /// The controller refused.
    #[error("the controller answers {0}")]
    Status(Status),
}

/// The namespace of an NVMe block device.
///
/// # Errors
/// It is none.
pub fn namespace_id(device: &File) -> io::Result<u32> {
    // SAFETY: the request takes no argument, and touches no memory of ours.
    #[allow(unsafe_code)]
    let nsid = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ID) };
    u32::try_from(nsid).ok().filter(|nsid| *nsid > 0).ok_or_else(io::Error::last_os_error)
}

/// Has an NVMe block device's controller execute a command, and waits for that. What it returns is in `data`.
///
/// # Errors
/// See [`PassthroughError`].
pub fn send(device: &File, command: &AdminCommand, data: &mut [u8]) -> Result<(), PassthroughError> {
    let AdminCommand { opcode, nsid, cdw10, cdw11, timeout } = *command;
    let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let mut passed = PassthroughCommand {
        opcode,
        nsid,
        data: if data.is_empty() { 0 } else { data.as_mut_ptr().expose_provenance() as u64 },
        data_len_bytes: u32::try_from(data.len()).map_err(too_long)?,
        cdw10,
        cdw11,
        timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
        ..PassthroughCommand::default()
    };
    request(device, NVME_IOCTL_ADMIN_CMD, &mut passed)
}

/// Sends two I/O commands that change nothing, to see whether this thread may: a read of the first block, and a flush.
///
/// # Errors
/// See [`PassthroughError`].
pub fn try_io(device: &File, nsid: u32, block_bytes: u32) -> Result<(), PassthroughError> {
    let mut block = vec![0_u8; block_bytes as usize];
    let data = block.as_mut_ptr().expose_provenance() as u64;
    let read = IoCommand { opcode: opcode::nvm::READ, nsid, data, data_len: block_bytes, ..IoCommand::default() };
    let flush = IoCommand { opcode: opcode::nvm::FLUSH, nsid, ..IoCommand::default() };
    [read, flush].iter().try_for_each(|command| request(device, NVME_IOCTL_IO_CMD, &mut command.passed()))
}

/// What the command names of memory is its caller's to be read or written until this returns.
fn request(device: &File, number: libc::c_ulong, passed: &mut PassthroughCommand) -> Result<(), PassthroughError> {
    // SAFETY: `passed` is a valid command, exclusively ours for the call, which returns only when the kernel is done
    // with it; its maker named memory that stays its own for that time.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), number, std::ptr::from_mut(passed)) };
    match answer {
        0 => Ok(()),
        // The status field without its phase bit.
        1.. => Err(PassthroughError::Status(Status(answer as u16))),
        _ => Err(io::Error::last_os_error().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_nvme_drive_is_told_so() {
        let file = tempfile::tempfile().expect("a file");
        assert!(namespace_id(&file).is_err());
        let identify = AdminCommand { opcode: 6, nsid: 0, cdw10: 1, cdw11: 0, timeout: Duration::from_secs(1) };
        let mut data = [7; 4096];
        assert!(matches!(send(&file, &identify, &mut data), Err(PassthroughError::Os(_))));
        assert_eq!(data, [7; 4096]);
        assert!(matches!(try_io(&file, 1, 512), Err(PassthroughError::Os(_))));
    }

    #[test]
    fn an_entry_carries_the_kernels_structure() {
        let command = IoCommand { opcode: 2, nsid: 3, data: 0x1234, data_len: 8, cdws: [10, 11, 12] };
        let bytes = command.to_bytes();
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        assert_eq!([bytes[0], bytes[1]], [2, 0]);
        assert_eq!([4, 24, 36, 40, 44, 48, 64].map(number), [3, 0x1234, 8, 10, 11, 12, 0]);
        // The size is in the numbers of the requests.
        for request in [NVME_URING_CMD_IO, NVME_URING_CMD_IO_VEC] {
            assert_eq!((request >> 16 & 0x3fff) as usize, size_of::<PassthroughCommand>());
        }
    }

    #[test]
    fn the_kernels_structure_is_laid_out_as_in_its_header() {
        let offsets = [
            std::mem::offset_of!(PassthroughCommand, nsid),
            std::mem::offset_of!(PassthroughCommand, metadata),
            std::mem::offset_of!(PassthroughCommand, data),
            std::mem::offset_of!(PassthroughCommand, data_len_bytes),
            std::mem::offset_of!(PassthroughCommand, cdw10),
            std::mem::offset_of!(PassthroughCommand, timeout_ms),
            std::mem::offset_of!(PassthroughCommand, result),
        ];
        assert_eq!(offsets, [4, 16, 24, 36, 40, 64, 68]);
    }
}
