//! Files, opened so that nothing hangs, watched for changes, and locked.

use std::fs::{File, FileType, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::OFlags;

use crate::{Fault, ImageError, PATH};

/// Byte of a file that QEMU locks while a guest may write to it: 100 and the number of the permission
/// (`block/file-posix.c`, RAW_LOCK_PERM_BASE; `BLK_PERM_WRITE`).
const WRITE_PERMISSION_BYTE: libc::off_t = 100 + 1;

/// Bytes that QEMU locks where it shares no permission to write and to resize: 200 and their numbers
/// (RAW_LOCK_SHARED_BASE; `BLK_PERM_WRITE`, `BLK_PERM_RESIZE`).
const NOBODY_ELSE_WRITES: [libc::off_t; 2] = [200 + 1, 200 + 3];

const DAEMONS_PATH: &str = "check the path, and let the daemon's user ([daemon] user) read and write the file: \
                            `chown USER FILE`";

/// How often, and after which pause, a lock that another process has is tried again: five seconds in all.
const IN_USE_TRIES: u32 = if cfg!(test) { 2 } else { 250 };
const IN_USE_PAUSE: Duration = Duration::from_millis(20);

/// A file that an image consists of.
pub(crate) struct Opened {
    pub path: PathBuf,
    pub file: File,
    metadata: Metadata,
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It is read once, from its start to its end.
    Copy,
    /// A disk reads it: nobody may write to it as long as it is open.
    Read,
    /// A disk writes to it: nobody else may have it.
    Write,
}

impl Opened {
    /// Opens a regular file to which no QEMU writes.
    pub fn open(path: &Path, what_for: Use) -> Result<Self, ImageError> {
        let opened = || -> Result<Self, Fault> {
            let is_written = what_for == Use::Write;
            // Without O_NONBLOCK a pipe would wait for its writer.
            let flags = OFlags::NONBLOCK.bits() as i32;
            let file = File::options().read(true).write(is_written).custom_flags(flags).open(path)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                let what = format!("it is {}, and no regular file", kind(metadata.file_type()));
                return Err(Fault::new(what, "copy it to a file first: `qemu-img convert -O qcow2 IMAGE NEW`"));
            }
            match what_for {
                Use::Copy => refuse_writers(&file)?,
                Use::Read => {
                    NOBODY_ELSE_WRITES.iter().try_for_each(|byte| lock(&file, libc::F_RDLCK, *byte, 1))?;
                    refuse_writers(&file)?;
                }
                Use::Write => lock(&file, libc::F_WRLCK, 0, 0)?,
            }
            Ok(Self { path: path.to_owned(), file, metadata })
        };
        let whose = |fault: Fault| match what_for {
            Use::Write if fault.remedy == PATH => Fault { remedy: DAEMONS_PATH, ..fault },
            _ => fault,
        };
        opened().map_err(|fault| whose(fault).of(path))
    }

    /// The file again, for its tables. What moves a disk's data has another description, which may bypass the cache.
    /// Each write is durable when it ends: so tables come after what they refer to.
    pub fn for_tables(&self, what_for: Use) -> io::Result<File> {
        let again = || format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match what_for {
            Use::Copy => self.file.try_clone(),
            Use::Read => File::open(again()),
            Use::Write => {
                let flags = OFlags::DSYNC.bits() as i32;
                File::options().read(true).write(true).custom_flags(flags).open(again())
            }
        }
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

/// Locks `len` bytes from `start` on, 0: to the end, until the description is closed.
///
/// The kernel takes a killed daemon's rings apart, and so lets go of its files, a little after the process is gone. A
/// daemon that is started again at once waits for that.
fn lock(file: &File, kind: libc::c_int, start: libc::off_t, len: libc::off_t) -> Result<(), Fault> {
    let lock = libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: start, l_len: len, l_pid: 0 };
    for _ in 0..IN_USE_TRIES {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
            Err(Errno::EAGAIN | Errno::EACCES) => thread::sleep(IN_USE_PAUSE),
            // Where a file system has no locks, there are none.
            _ => return Ok(()),
        }
    }
    Err(Fault::new("another process has it open", "shut down the VM or the daemon that uses it"))
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

/// Whether another process may write to a file: a daemon or a QEMU.
pub fn is_in_use(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| refuse_writers(&file).is_err())
}

/// The error of a file that is to be there, named by the operator.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf, ImageError> {
    path.canonicalize().map_err(|error| Fault::new(error.to_string(), PATH).of(path))
}
