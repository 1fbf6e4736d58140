//! Admin commands to a drive that the kernel's driver has, by `NVME_IOCTL_ADMIN_CMD` (linux/nvme_ioctl.h).
//!
//! The kernel lets only `CAP_SYS_ADMIN` send those that change anything.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nvme_spec::Status;

/// `_IO('N', 0x40)`: the identifier of the namespace whose block device this is.
const NVME_IOCTL_ID: libc::c_ulong = 0x4e40;

/// `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xc048_4e41;

/// The kernel's `struct nvme_admin_cmd`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    // SAFETY: `passed` is a valid command, exclusively ours for the call, which returns only when the kernel is done
    // with it; it names `data_len_bytes` bytes of `data`, which are ours to be written for as long.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, &raw mut passed) };
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
