//! Files, opened so that nothing hangs, and watched for changes.

use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::OFlags;

use crate::{Fault, ImageError, PATH};

/// Byte of a file that QEMU locks while a guest may write to it: 100 and the number of the permission
/// (`block/file-posix.c`, RAW_LOCK_PERM_BASE; `BLK_PERM_WRITE`).
const WRITE_PERMISSION_BYTE: libc::off_t = 100 + 1;

/// A file that an image consists of.
pub(crate) struct Opened {
    pub path: PathBuf,
    pub file: File,
    metadata: Metadata,
}

impl Opened {
    /// Opens a regular file to which no QEMU writes.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let opened = || -> Result<Self, Fault> {
            // Without O_NONBLOCK a pipe would wait for its writer.
            let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                let what = format!("it is {}, and no regular file", kind(metadata.file_type()));
                return Err(Fault::new(what, "copy it to a file first: `qemu-img convert -O qcow2 IMAGE NEW`"));
            }
            refuse_writers(&file)?;
            Ok(Self { path: path.to_owned(), file, metadata })
        };
        opened().map_err(|fault| fault.of(path))
    }

    /// Refuses a file that has changed since it was opened: what was read is no image of any moment.
    pub fn refuse_change(&self) -> Result<(), ImageError> {
        let stamp = |metadata: &Metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
        let now = self.file.metadata().map_err(|error| Fault::from(error).of(&self.path))?;
        if stamp(&now) != stamp(&self.metadata) {
            let remedy = "wait until nothing writes to it, and run the command again";
            return Err(Fault::new("it has changed while it was read", remedy).of(&self.path));
        }
        Ok(())
    }
}

fn kind(file_type: FileType) -> &'static str {
    match file_type {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_block_device() => "a block device",
        kind if kind.is_char_device() => "a character device",
        _ => "something else",
    }
}

/// Refuses a file to which a QEMU writes: it would change while it is read.
fn refuse_writers(file: &File) -> Result<(), Fault> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as _,
        l_whence: libc::SEEK_SET as _,
        l_start: WRITE_PERMISSION_BYTE,
        l_len: 1,
        l_pid: 0,
    };
    // Where a file system has no locks, there are none.
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock));
    if asked.is_ok() && i32::from(lock.l_type) != libc::F_UNLCK {
        return Err(Fault::new("another process has it open for writing", "shut down the VM that uses it"));
    }
    Ok(())
}

/// Reads from `offset_bytes` to the end of `data` or of the file. Returns how much it was; the rest is left as it is.
pub(crate) fn read_at(file: &File, data: &mut [u8], offset_bytes: u64) -> io::Result<usize> {
    let mut len = 0;
    while len < data.len() {
        match file.read_at(&mut data[len..], offset_bytes + len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// The error of a file that is to be there, named by the operator.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, ImageError> {
    path.canonicalize().map_err(|error| Fault::new(error.to_string(), PATH).of(path))
}
