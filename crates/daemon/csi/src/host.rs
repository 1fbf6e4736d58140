//! What the node's half of the plugin asks of its host: block devices, file systems and mounts.

use std::io;
use std::path::{Path, PathBuf};

use api::Disk;

/// The host that volumes are mounted on. Another one than [`crate::Linux`] is for tests.
pub trait Host: Send + Sync + 'static {
    /// Whether disks can have block devices here.
    fn has_devices(&self) -> bool;

    /// The block device of a disk, such as `/dev/ublkb0`.
    ///
    /// # Errors
    /// The disk has none.
    fn device(&self, disk: &Disk) -> io::Result<PathBuf>;

    /// Size of a block device, in bytes.
    ///
    /// # Errors
    /// It can't be opened or asked.
    fn device_bytes(&self, device: &Path) -> io::Result<u64>;

    /// What a block device holds.
    ///
    /// # Errors
    /// It can't be read, or holds several things at once.
    fn content(&self, device: &Path) -> io::Result<Content>;

    /// Makes a file system on an empty block device.
    ///
    /// # Errors
    /// There is no program for it, or it failed.
    fn format(&self, device: &Path, file_system: FileSystem) -> io::Result<()>;

    /// Lets a mounted file system fill its block device. It succeeds if it does already.
    ///
    /// # Errors
    /// As [`Host::format`].
    fn grow(&self, device: &Path, mounted_at: &Path, file_system: FileSystem) -> io::Result<()>;

    /// All mounts.
    ///
    /// # Errors
    /// The kernel's list can't be read.
    fn mounts(&self) -> io::Result<Vec<Mount>>;

    /// Mounts a file system.
    ///
    /// # Errors
    /// The kernel refused.
    fn mount(&self, device: &Path, target: &Path, file_system: FileSystem, options: &[String]) -> io::Result<()>;

    /// Shows a directory or block device at another path too.
    ///
    /// # Errors
    /// The kernel refused. Then nothing is mounted at `target`.
    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()>;

    /// Unmounts what was mounted last at a path.
    ///
    /// # Errors
    /// The kernel refused, such as while a program has a file of it open.
    fn unmount(&self, target: &Path) -> io::Result<()>;

    /// How full a mounted file system is.
    ///
    /// # Errors
    /// It can't be asked.
    fn usage(&self, path: &Path) -> io::Result<Usage>;
}

/// A file system that volumes may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// The default.
    Ext4,
    /// Grows only.
    Xfs,
}

impl FileSystem {
    /// Its name, as `mount` knows it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The file system of that name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::Ext4, Self::Xfs].into_iter().find(|it| it.name() == name)
    }
}

/// What a block device holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing that `blkid` knows.
    Nothing,
    /// A file system.
    Of(FileSystem),
    /// Something else, such as a partition table: its name.
    Other(String),
}

/// A mount, as the kernel lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The part of the file system that is seen, such as `/`. Of a block device that is bound: its name in `/dev`.
    pub root: PathBuf,
    /// Where it is seen.
    pub target: PathBuf,
    /// The file system's kind.
    pub kind: String,
    /// What was mounted, such as a block device.
    pub source: PathBuf,
    /// `true`: it can't be written there.
    pub read_only: bool,
}

impl Mount {
    /// Whether a file system on this block device is seen here, or the block device itself.
    pub fn is_of(&self, device: &Path) -> bool {
        let is_node =
            self.kind == "devtmpfs" && device.file_name().is_some_and(|name| self.root == Path::new("/").join(name));
        self.source == device || is_node
    }
}

/// How full a file system is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes that programs without privilege can still write.
    pub available_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Inodes in all.
    pub total_inodes: u64,
    /// Inodes that are free.
    pub free_inodes: u64,
}
