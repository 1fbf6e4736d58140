//! Descriptors that a client sends along with its messages.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use arbitrary::Arbitrary;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};

/// A descriptor to send along.
#[derive(Debug, Arbitrary)]
pub enum Fd {
    /// Something that is never wanted.
    Pipe,
    /// What memory is shared with; 1 MiB.
    Memfd,
    /// What notifications go through.
    Eventfd,
    /// What requests in the other direction go through; its other end is closed.
    Socket,
}

/// Makes descriptors, and knows whether all of them are closed again.
pub struct Descriptors {
    reader: OwnedFd,
    writer: OwnedFd,
    memfd: OwnedFd,
}

impl Descriptors {
    /// None sent yet.
    pub fn new() -> Self {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).expect("a pipe");
        let memfd = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&memfd, 1 << 20).expect("a size");
        Self { reader, writer, memfd }
    }

    /// At most 20 at a time.
    pub fn open(&self, kinds: &[Fd]) -> Vec<OwnedFd> {
        let open = |kind: &Fd| match kind {
            Fd::Pipe => self.writer.as_fd().try_clone_to_owned().expect("a descriptor"),
            Fd::Memfd => self.memfd.as_fd().try_clone_to_owned().expect("a descriptor"),
            Fd::Eventfd => eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"),
            Fd::Socket => UnixStream::pair().expect("sockets").0.into(),
        };
        kinds.iter().take(20).map(open).collect()
    }

    /// Whether no pipe that was sent is open any more.
    pub fn all_closed(self) -> bool {
        drop(self.writer);
        rustix::io::read(&self.reader, &mut [0; 1]) == Ok(0)
    }
}
