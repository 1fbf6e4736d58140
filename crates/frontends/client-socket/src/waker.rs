//! Waking a thread that waits for descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that wakes the threads that wait until it is readable. Any thread may wake, none ever blocks.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// Creates a waker that is not signalled.
    ///
    /// # Errors
    /// The kernel has no descriptor or no memory left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes it readable. Call after storing what the woken thread is to find.
    pub fn wake(&self) {
        // Fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable. Look for what was stored after it, not before.
    pub fn drain(&self) {
        // One read takes the whole counter, or finds that there is nothing.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
