//! The drive that is measured.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use backend_memory::{MemoryDrive, ModelDrive, NullDrive};
use backend_uring::{Kind, UringDrive};
use calibrate::{DEPTH, HWQS};
use config::Drives;
use config::in_use::{self, InUse, LockError};
use io_model::Backend;
use io_model::units::Size;
use nvme_driver::PciAddress;
use promises::drive_profile;

use super::Refused;
use super::nvme::{self, Nvme};

/// Reads and writes go to places that hold at least this much.
const LEAST_BYTES: u64 = 16 << 20;

/// Times are those of 4 KiB.
const BLOCK_BYTES: u64 = 4096;

enum Drive {
    Uring(UringDrive),
    Nvme(Nvme),
    Model(ModelDrive),
    Memory(MemoryDrive),
    Null(NullDrive),
}

/// A drive, opened, and nobody else's meanwhile.
pub struct Target {
    /// What it is, so that a state is never taken for another drive's.
    pub identity: String,
    /// How much of it there is.
    pub size_bytes: u64,
    /// Its smallest command.
    pub block_bytes: u64,
    /// What makes the figures doubtful.
    pub warnings: Vec<String>,
    drive: Drive,
    /// What keeps a daemon from starting on it.
    _lock: Option<File>,
}

/// What is done with a drive's queues, whichever back end they are of.
pub trait Use {
    /// Does it.
    fn on<B: Backend>(self, queues: B) -> Result<()>;
}

impl Target {
    /// A drive of a configuration; `None`: its only one.
    pub fn of_config(path: &Path, drive: Option<&str>) -> Result<Self> {
        let config = Drives::load(path)?.one(drive)?;
        let size_bytes = config.device.size.map(|size| size.0);
        let in_memory = |drive: Drive, identity: String, block_bytes| Self {
            identity,
            size_bytes: size_bytes.unwrap_or_default(),
            block_bytes,
            warnings: Vec::new(),
            drive,
            _lock: None,
        };
        let bytes = size_bytes.unwrap_or_default();
        let target = match &config.device.backend {
            config::Backend::File { path, .. } | config::Backend::Block { path, .. } => {
                Self::of_path(path)?.limited(size_bytes, &config.device.section())?
            }
            config::Backend::Nvme { address, nsid, command_timeout } => {
                let at =
                    address.parse().map_err(|error| Refused::new(format!("drive {address}: {error}"), "change it"))?;
                let how = nvme::Use { nsid: Some(*nsid), command_timeout: Duration::from_nanos(command_timeout.0) };
                Self::of_nvme(at, how)?.limited(size_bytes, &config.device.section())?
            }
            config::Backend::Model { .. } => {
                let profile = drive_profile::load(&config.device.profile, |why| config.no_profile(why))?;
                let identity = format!("the drive model of {}", profile.name);
                in_memory(Drive::Model(ModelDrive::without_content(profile, bytes)), identity, 512)
            }
            config::Backend::Memory => {
                let drive = MemoryDrive::new(bytes).map_err(|error| config.no_memory(error))?;
                in_memory(Drive::Memory(drive), "a drive in memory".into(), 512)
            }
            config::Backend::Directory { .. } => {
                let what = format!("{}: a directory of images is no drive to measure", config.device.section());
                return Err(Refused::new(what, "measure the drive that the directory is on: --path DRIVE").into());
            }
            config::Backend::Null => in_memory(Drive::Null(NullDrive::new(bytes)), "the null drive".into(), 512),
        };
        target.checked()
    }

    /// A drive that was taken from the kernel.
    fn of_nvme(address: PciAddress, how: nvme::Use) -> Result<Self> {
        let nvme = Nvme::open(address, how)?;
        Self {
            identity: nvme.identity.clone(),
            size_bytes: nvme.drive.size_bytes() / BLOCK_BYTES * BLOCK_BYTES,
            block_bytes: nvme.drive.block_bytes().into(),
            warnings: nvme.warnings(),
            drive: Drive::Nvme(nvme),
            // VFIO lends a drive to one process at a time.
            _lock: None,
        }
        .checked()
    }

    /// No more of it than a configuration says.
    fn limited(mut self, size_bytes: Option<u64>, section: &str) -> Result<Self> {
        let (found, wanted) = (self.size_bytes, size_bytes.unwrap_or(self.size_bytes));
        if wanted > found {
            let what = format!("{} has {}, less than size = \"{}\"", self.title(), Size(found), Size(wanted));
            return Err(Refused::new(what, format!("lower size in {section}")).into());
        }
        self.size_bytes = wanted;
        Ok(self)
    }

    /// A file or block device, or the drive whose PCI address that is.
    pub fn of_path(path: &Path) -> Result<Self> {
        if let Some(address) = PciAddress::named_by(path) {
            return Self::of_nvme(address, nvme::Use::default());
        }
        let metadata = path.metadata().map_err(|error| {
            let remedy = "check the path; `lsblk -p` and `evenkeel drive list` have the drives";
            Refused::new(format!("can't look at {}: {error}", path.display()), remedy)
        })?;
        let kind = match metadata.file_type() {
            kind if kind.is_file() => Kind::File,
            kind if kind.is_block_device() => Kind::Block,
            _ => {
                let what = format!("{} is neither a file nor a block device", path.display());
                return Err(Refused::new(what, "`lsblk -p` lists the drives").into());
            }
        };
        let identity = match kind {
            Kind::File => format!("{}, inode {}:{}", path.display(), metadata.dev(), metadata.ino()),
            Kind::Block => path.display().to_string(),
        };
        if let Some(used) = in_use::uses(path).first() {
            return Err(Refused::new(used.what(path), used.remedy()).into());
        }
        let lock = lock(path)?;
        let drive = UringDrive::open(path, kind, None).map_err(|error| match error {
            backend_uring::OpenError::InUse { .. } => anyhow::Error::from(Refused::new(
                format!("{} is in use: the kernel or another process has it for itself", path.display()),
                "choose another drive, or stop what uses it (`lsblk`, `fuser -v`)",
            )),
            error => Refused::new(error.to_string(), "it must be there, not empty, and yours to read and write").into(),
        })?;
        let mut warnings = Vec::new();
        if !drive.is_direct() {
            warnings.push("it can't be read past the page cache (tmpfs?): the figures are memory's".to_owned());
        }
        if kind == Kind::File && metadata.blocks() * 512 < metadata.len() / 10 * 9 {
            warnings.push("it has holes: reads of unwritten ranges do not reach the drive".to_owned());
        }
        Self {
            identity,
            size_bytes: drive.size_bytes() / BLOCK_BYTES * BLOCK_BYTES,
            block_bytes: drive.block_bytes().max(512),
            warnings,
            drive: Drive::Uring(drive),
            _lock: Some(lock),
        }
        .checked()
    }

    fn checked(self) -> Result<Self> {
        if self.size_bytes < LEAST_BYTES {
            let what = format!("{} has {}, too little to measure", self.identity, Size(self.size_bytes));
            return Err(Refused::new(what, format!("{} are needed", Size(LEAST_BYTES))).into());
        }
        if self.block_bytes > BLOCK_BYTES {
            let what = format!("{} has blocks of {} bytes", self.identity, self.block_bytes);
            return Err(Refused::new(what, "up to 4096 bytes can be measured").into());
        }
        Ok(self)
    }

    /// For people, in a few words.
    pub fn title(&self) -> String {
        match &self.drive {
            Drive::Uring(drive) => drive.path().display().to_string(),
            _ => self.identity.clone(),
        }
    }

    /// Whether what is written there stays.
    pub fn is_persistent(&self) -> bool {
        matches!(self.drive, Drive::Uring(_) | Drive::Nvme(_))
    }

    /// The range to write to: the one asked for, or all of a drive where nothing is kept.
    pub fn overwrite(&self, asked: Option<(Size, Size)>) -> Result<Option<(u64, u64)>> {
        let Some((start, len)) = asked else {
            return Ok((!self.is_persistent()).then_some((0, self.size_bytes / BLOCK_BYTES * BLOCK_BYTES)));
        };
        let shown = format!("--overwrite {start}:{len}");
        if !start.0.is_multiple_of(BLOCK_BYTES) || !len.0.is_multiple_of(BLOCK_BYTES) {
            return Err(Refused::new(format!("{shown} is not in whole blocks"), "use multiples of 4KiB").into());
        }
        if len.0 < LEAST_BYTES {
            let remedy = format!("give {} or more", Size(LEAST_BYTES));
            return Err(Refused::new(format!("{shown} is too short to measure"), remedy).into());
        }
        if start.0.checked_add(len.0).is_none_or(|end| end > self.size_bytes) {
            let what = format!("{shown} ends outside of {}, which has {}", self.title(), Size(self.size_bytes));
            return Err(Refused::new(what, "move it or make it shorter").into());
        }
        Ok(Some((start.0, len.0)))
    }

    /// Opens queues and measures on them.
    pub fn with_queues(&self, measure: impl Use) -> Result<()> {
        match &self.drive {
            Drive::Uring(drive) => measure.on(drive.open_queues(HWQS, DEPTH)?),
            Drive::Nvme(drive) => measure.on(drive.open_queues()?),
            Drive::Model(drive) => measure.on(drive.open_queues(HWQS, DEPTH)?),
            Drive::Memory(drive) => measure.on(drive.open_queues(HWQS, DEPTH)),
            Drive::Null(drive) => measure.on(drive.open_queues(HWQS, DEPTH)),
        }
    }
}

/// The lock that daemons take.
fn lock(path: &Path) -> Result<File> {
    in_use::lock(path).map_err(|error| match error {
        LockError::InUse => Refused::new(InUse::Locked.what(path), InUse::Locked.remedy()).into(),
        LockError::Io(error) => {
            let remedy = "you must be allowed to read and write it";
            Refused::new(format!("can't open {}: {error}", path.display()), remedy).into()
        }
    })
}
