//! File descriptors that came from a client: whether they are what they should be.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstatfs};
use rustix::io::Errno;

/// File systems whose pages are memory (magic numbers of statfs(2)). Others are refused: reading a
/// page of a FUSE or network file may wait for its server, that is, for whoever the client likes.
const TMPFS_MAGIC: u32 = 0x0102_1994;
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

/// Checks that the pages of a file are memory: a memfd, or a file on tmpfs or hugetlbfs.
///
/// # Errors
/// `ENOTSUP`: it is another file; else what the kernel said.
pub fn check_memory(file: impl AsFd) -> Result<(), Errno> {
    match fstatfs(file)?.f_type as u32 {
        TMPFS_MAGIC | HUGETLBFS_MAGIC => Ok(()),
        _ => Err(Errno::NOTSUP),
    }
}

/// Checks that a client gave an eventfd, and makes it non-blocking: a write to a pipe, a file or a full
/// counter would stop the thread that signals, and a read of an empty one the thread that looks.
///
/// # Errors
/// `EINVAL`: something else than an eventfd.
pub fn admit_eventfd(fd: impl AsFd) -> Result<(), Errno> {
    let fd = fd.as_fd();
    let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|_| Errno::INVAL)?;
    if target.as_os_str() != "anon_inode:[eventfd]" {
        return Err(Errno::INVAL);
    }
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)
}
