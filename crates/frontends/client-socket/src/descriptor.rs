//! File descriptors that came from a client: whether they are what they should be.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

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
