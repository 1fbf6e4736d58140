//! Eventfds that a client made.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Makes a descriptor non-blocking; the client shares that flag, so it is a help, not a promise.
pub(crate) fn prepare(fd: &OwnedFd) {
    if let Ok(flags) = fcntl_getfl(fd) {
        let _ = fcntl_setfl(fd, flags | OFlags::NONBLOCK);
    }
}

/// Signals without waiting. A client could have set its descriptor to block and filled it to hold the poller up:
/// ask first. A full counter is a signal that is pending already.
pub(crate) fn raise(fd: &OwnedFd) {
    let mut writable = [PollFd::new(fd, PollFlags::OUT)];
    if poll(&mut writable, Some(&Timespec::default())) == Ok(1) {
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }
}
