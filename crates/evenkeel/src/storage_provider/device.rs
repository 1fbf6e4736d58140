//! A disk's block device, as the host has it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::note;
use super::varlink::Failure;

/// The device of a disk.
#[derive(Debug, PartialEq, Eq)]
pub struct BlockDevice {
    link: PathBuf,
    /// `/dev/ublkbN`.
    node: PathBuf,
}

impl BlockDevice {
    /// Looks where the link of a disk leads. Only a device of the driver ublk is one of ours: the link is made by the
    /// daemon, which must not be able to name another drive of the host.
    ///
    /// # Errors
    /// There is no link, or it leads elsewhere.
    pub fn find(name: &str) -> io::Result<Self> {
        let link = Path::new(config::DEVICE_DIR).join(name);
        let node = fs::canonicalize(&link)?;
        let number = node.to_str().and_then(|path| path.strip_prefix("/dev/ublkb"));
        match number.map(str::parse::<u32>) {
            Some(Ok(_)) => Ok(Self { link, node }),
            _ => Err(io::Error::new(io::ErrorKind::NotFound, format!("{} leads to {node:?}", link.display()))),
        }
    }

    /// Whether the kernel refuses writes. None if it doesn't say.
    pub fn is_read_only(&self) -> Option<bool> {
        let flag = Path::new("/sys/class/block").join(self.node.file_name()?).join("ro");
        Some(fs::read_to_string(flag).ok()?.trim() != "0")
    }

    /// Opens the device. Returns whether it is open for reading alone.
    ///
    /// # Errors
    /// It is read-only where writing is asked for, or can't be opened, or has become another disk's.
    pub fn open(&self, read_only: Option<bool>) -> Result<(OwnedFd, bool), Failure> {
        let is_read_only = self.is_read_only().unwrap_or(false);
        if is_read_only && read_only == Some(false) {
            return Err(Failure::Storage("ReadOnlyVolume"));
        }
        let read_only = read_only.unwrap_or(is_read_only);
        let file = self.open_node(read_only).map_err(|error| {
            note(&format!("{}: {error}", self.node.display()));
            match error.kind() {
                io::ErrorKind::PermissionDenied => Failure::PermissionDenied,
                _ => Failure::System(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        })?;
        Ok((file.into(), read_only))
    }

    fn open_node(&self, read_only: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(&self.node)?;
        // An open device keeps its number. One that came in between would have the link of another disk.
        let is_same = file.metadata()?.file_type().is_block_device() && fs::canonicalize(&self.link)? == self.node;
        if is_same { Ok(file) } else { Err(Errno::AGAIN.into()) }
    }
}
