//! NVMe commands to a drive that the kernel's driver has, through the character device of the namespace.
//!
//! The kernel passes them on as they are: no block layer merges, splits or schedules them. So each is kept to what the
//! drive takes at once, and what it says of a command is its own status, for which nobody tried again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use io_uring::{opcode as entry, squeue, types};
use nvme_driver::passthrough::{
    self, AdminCommand, IoCommand, NVME_URING_CMD_IO, NVME_URING_CMD_IO_VEC, PassthroughError,
};
use nvme_spec::data::DsmRange;
use nvme_spec::identify::cns;
use nvme_spec::namespace::IdentifyNamespace;
use nvme_spec::opcode;

use crate::drive::OpenError;
use crate::flight::Iovec;

/// The ring's second registered file.
const FILE: types::Fixed = types::Fixed(1);

/// A command's length is a number of blocks of 16 bits, 0's based.
const MOST_BLOCKS: u64 = 1 << 16;

/// What the kernel takes of user memory as one segment, at the least.
const PAGE_BYTES: u64 = 4096;

const IDENTIFY_LIMIT: Duration = Duration::from_secs(10);

/// Most bytes of one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Most {
    moved: u64,
    zeroed: u64,
    discarded: u64,
}

impl Most {
    /// What the kernel found out about the drive, from the block device's `queue` in sysfs.
    fn of(queue: &Path, block_bytes: u64) -> Self {
        let number =
            |name: &str| fs::read_to_string(queue.join(name)).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let whole = |bytes: u64| bytes - bytes % block_bytes;
        let by_length = number("max_hw_sectors_kb").map_or(u64::MAX, |kib| kib << 10);
        // Data that begin inside of a page have one segment more.
        let by_segments = number("max_segments").map_or(u64::MAX, |most| most.saturating_sub(1) * PAGE_BYTES);
        let by_command = MOST_BLOCKS * block_bytes;
        let least = block_bytes.max(PAGE_BYTES);
        Self {
            moved: whole(by_length.min(by_segments).min(by_command).max(least)),
            zeroed: whole(number("write_zeroes_max_bytes").unwrap_or(0).min(by_command)),
            discarded: whole(number("discard_max_bytes").unwrap_or(0).min(u64::from(u32::MAX) * block_bytes)),
        }
    }
}

/// A namespace, by its character device.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) file: File,
    path: PathBuf,
    nsid: u32,
    block_bytes: u64,
    most: Most,
}

impl Namespace {
    /// The one that `block_device` is of, too.
    pub fn open(path: &Path, block_device: &File, queue: &Path) -> Result<Self, OpenError> {
        let unfit = |why: String| OpenError::NoNvme { path: path.to_owned(), why };
        let file = File::options().read(true).write(true).open(path).map_err(|error| unfit(error.to_string()))?;
        let no_namespace = |error| unfit(format!("it is no namespace of an NVMe drive ({error})"));
        let nsid = passthrough::namespace_id(&file).map_err(no_namespace)?;
        let blocks_nsid = passthrough::namespace_id(block_device).map_err(no_namespace)?;
        if nsid != blocks_nsid {
            return Err(unfit(format!("it is namespace {nsid}, and the block device is namespace {blocks_nsid}")));
        }
        let mut identity: IdentifyNamespace = bytemuck::Zeroable::zeroed();
        let identify = AdminCommand {
            opcode: opcode::admin::IDENTIFY,
            nsid,
            cdw10: u32::from(cns::NAMESPACE),
            cdw11: 0,
            timeout: IDENTIFY_LIMIT,
        };
        passthrough::send(&file, &identify, bytemuck::bytes_of_mut(&mut identity))
            .map_err(|error| unfit(format!("it does not say what it is ({error})")))?;
        let namespace = nvme_driver::Namespace::of(nsid, &identity).map_err(|error| unfit(error.to_string()))?;
        let block_bytes = u64::from(namespace.block_bytes);
        Ok(Self { file, path: path.to_owned(), nsid, block_bytes, most: Most::of(queue, block_bytes) })
    }

    /// Of blocks of 512 bytes, in a drive that takes 8 KiB at once, for the tests of what needs no drive behind it.
    #[cfg(test)]
    pub fn pretended() -> Self {
        let most = Most { moved: 8 << 10, zeroed: 16 << 10, discarded: 32 << 10 };
        let file = File::open("/dev/null").expect("/dev/null");
        Self { file, path: PathBuf::new(), nsid: 3, block_bytes: 512, most }
    }

    /// Whether this thread may send what moves data. Rights that it has given up may have been those.
    pub fn try_io(&self) -> Result<(), OpenError> {
        passthrough::try_io(&self.file, self.nsid, self.block_bytes as u32).map_err(|error| {
            let why = match error {
                PassthroughError::Os(error) if error.raw_os_error() == Some(libc::EACCES) => {
                    "the kernel takes them from root alone; from others it takes them if it is Linux 6.2 or later and \
                     the drive lists the commands that it supports (`nvme effects-log`)"
                        .to_owned()
                }
                error => error.to_string(),
            };
            OpenError::NoNvme { path: self.path.clone(), why }
        })
    }

    pub fn can_zero(&self) -> bool {
        self.most.zeroed > 0
    }

    pub fn can_discard(&self) -> bool {
        self.most.discarded > 0
    }

    /// How many of the bytes left one command moves.
    pub fn moved_bytes(&self, left_bytes: u64) -> u64 {
        left_bytes.min(self.most.moved)
    }

    /// How many of the bytes left one command zeroes.
    pub fn zeroed_bytes(&self, left_bytes: u64) -> u64 {
        left_bytes.min(self.most.zeroed)
    }

    /// How many of the bytes left one command discards.
    pub fn discarded_bytes(&self, left_bytes: u64) -> u64 {
        left_bytes.min(self.most.discarded)
    }

    /// Moves data from or to one piece of memory, or several.
    pub fn transfer(&self, is_write: bool, fua: bool, offset_bytes: u64, len_bytes: u64, data: Data) -> Passed {
        let opcode = if is_write { opcode::nvm::WRITE } else { opcode::nvm::READ };
        let command = self.on_blocks(opcode, fua, offset_bytes, len_bytes);
        match data {
            Data::One(at) => Passed::plain(IoCommand { data: at as u64, data_len: len_bytes as u32, ..command }),
            Data::List(iovecs) => {
                let data = iovecs.as_ptr().expose_provenance() as u64;
                let command = IoCommand { data, data_len: iovecs.len() as u32, ..command };
                Passed { request: NVME_URING_CMD_IO_VEC, command }
            }
        }
    }

    pub fn zeroing(&self, fua: bool, offset_bytes: u64, len_bytes: u64) -> Passed {
        Passed::plain(self.on_blocks(opcode::nvm::WRITE_ZEROES, fua, offset_bytes, len_bytes))
    }

    pub fn flush(&self) -> Passed {
        Passed::plain(IoCommand { opcode: opcode::nvm::FLUSH, nsid: self.nsid, ..IoCommand::default() })
    }

    /// Deallocates a range, which is put into `range`: the command's data.
    pub fn discard(&self, offset_bytes: u64, len_bytes: u64, range: &mut DsmRange) -> Passed {
        let (nlb, slba) = ((len_bytes / self.block_bytes) as u32, offset_bytes / self.block_bytes);
        *range = DsmRange { cattr: 0, nlb, slba };
        Passed::plain(IoCommand {
            opcode: opcode::nvm::DATASET_MANAGEMENT,
            nsid: self.nsid,
            data: std::ptr::from_mut(range).expose_provenance() as u64,
            data_len: size_of::<DsmRange>() as u32,
            // Ranges, 0's based.
            cdws: [0, opcode::dsm::AD, 0],
        })
    }

    /// A command on 1 to [`MOST_BLOCKS`] whole blocks.
    fn on_blocks(&self, opcode: u8, fua: bool, offset_bytes: u64, len_bytes: u64) -> IoCommand {
        let lba = offset_bytes / self.block_bytes;
        let blocks = (len_bytes / self.block_bytes).saturating_sub(1) as u32;
        let fua = if fua { opcode::rw::FUA } else { 0 };
        IoCommand {
            opcode,
            nsid: self.nsid,
            cdws: [lba as u32, (lba >> 32) as u32, blocks | fua],
            ..IoCommand::default()
        }
    }
}

/// Where a command's data are.
pub(crate) enum Data<'a> {
    /// From this address on.
    One(usize),
    /// In pieces.
    List(&'a [Iovec]),
}

/// A command, and by which request the kernel takes it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    request: u32,
    command: IoCommand,
}

impl Passed {
    fn plain(command: IoCommand) -> Self {
        Self { request: NVME_URING_CMD_IO, command }
    }

    pub fn entry(&self) -> squeue::Entry128 {
        entry::UringCmd80::new(FILE, self.request).cmd(self.command.to_bytes()).build()
    }
}

#[cfg(test)]
mod tests;
