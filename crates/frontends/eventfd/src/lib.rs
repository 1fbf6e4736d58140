//! Eventfds that a client sent: checks that they are eventfds, and signals them without blocking.
//!
//! A write to an eventfd with a full counter blocks until someone reads it, unless the descriptor is non-blocking. The
//! daemon sets that flag. But the client shares the open file description: it can clear the flag and fill the counter
//! between any two system calls. So a check beforehand is useless. Instead a thread marks that it is in a write, and a
//! [watchdog](start_watchdog) interrupts a write that takes more than a millisecond. That eventfd is not written to
//! again.

#![allow(clippy::disallowed_methods, reason = "the watchdog is a thread that looks from time to time")]

mod watchdog;

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

pub use watchdog::{start_watchdog, watch};

/// An eventfd that a client gave.
#[derive(Debug)]
pub struct EventFd {
    fd: OwnedFd,
    /// A write was held up.
    is_stuck: Cell<bool>,
}

impl EventFd {
    /// Wraps an eventfd that was [admitted](admit).
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd, is_stuck: Cell::new(false) }
    }

    /// Signals. `false`: the client held the write up, now or before, and nothing was signalled. A full counter is a
    /// signal that is pending already.
    #[inline]
    pub fn raise(&self) -> bool {
        if self.is_stuck.get() {
            return false;
        }
        // Only a write that waits can be interrupted; the handler does not have it restarted.
        let stuck = watchdog::during(|| rustix::io::write(&self.fd, &1_u64.to_ne_bytes())) == Err(Errno::INTR);
        self.is_stuck.set(stuck);
        !stuck
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Checks that a client sent an eventfd, and makes it non-blocking.
///
/// Other files could block the daemon: a write to a pipe or a file, a read of an empty one, or a poll of a file on a
/// FUSE mount. The check itself asks no file system.
///
/// # Errors
/// `EINVAL`: something else than an eventfd.
pub fn admit(fd: impl AsFd) -> Result<(), Errno> {
    let fd = fd.as_fd();
    let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|_| Errno::INVAL)?;
    if target.as_os_str() != "anon_inode:[eventfd]" {
        return Err(Errno::INVAL);
    }
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, epoll, eventfd};

    use super::*;

    #[test]
    fn only_eventfds_are_admitted() {
        let (pipe, _) = rustix::pipe::pipe().unwrap();
        let zero = std::fs::File::open("/dev/zero").unwrap();
        for fd in [pipe, zero.into(), epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()] {
            assert_eq!(admit(&fd), Err(Errno::INVAL));
        }
        let blocking = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        admit(&blocking).unwrap();
        assert!(fcntl_getfl(&blocking).unwrap().contains(OFlags::NONBLOCK));
    }
}
