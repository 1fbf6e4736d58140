//! A disk's block device, as the host has it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The device of a disk.
#[derive(Debug)]
pub struct BlockDevice {
    link: PathBuf,
    /// `/dev/ublkbN`.
    pub node: PathBuf,
}

impl BlockDevice {
    /// Follows a disk's link. The daemon makes the link and must not be able to name another drive of the host: only a
    /// device of the driver ublk is found.
    pub fn find(name: &str) -> io::Result<Self> {
        let link = Path::new(config::DEVICE_DIR).join(name);
        let node = fs::canonicalize(&link)?;
        let number = node.to_str().and_then(|path| path.strip_prefix("/dev/ublkb"));
        match number.map(str::parse::<u32>) {
            Some(Ok(_)) => Ok(Self { link, node }),
            _ => Err(io::Error::other(format!("{} leads to {}", link.display(), node.display()))),
        }
    }

    /// Whether the kernel refuses writes. None if it doesn't say.
    pub fn is_read_only(&self) -> Option<bool> {
        let flag = Path::new("/sys/class/block").join(self.node.file_name()?).join("ro");
        Some(fs::read_to_string(flag).ok()?.trim() != "0")
    }

    pub fn open(&self, read_only: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(&self.node)?;
        // An open device keeps its number. One that came in between would have the link of another disk.
        let is_same = file.metadata()?.file_type().is_block_device() && fs::canonicalize(&self.link)? == self.node;
        if is_same { Ok(file) } else { Err(Errno::AGAIN.into()) }
    }
}
