//! A socket on which bytes travel with descriptors, and both protocols' messages.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

#[path = "../../../frontends/vfio-user/tests/server/common/message.rs"]
pub mod vfio;
#[path = "../../../frontends/vhost-user/tests/server/common/message.rs"]
pub mod vhost;

/// More than either protocol takes.
const MAX_FDS: usize = 16;
/// An answer that takes longer is one that the attacker waits for in vain.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// Connects to `socket`.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    Ok(stream)
}

/// Sends `bytes` with `fds`.
pub fn send(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let first = || sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    // A fuzzer has signals of its own.
    let mut sent = retry_on_intr(first)?;
    while sent < bytes.len() {
        let mut none = SendAncillaryBuffer::default();
        let rest = [IoSlice::new(&bytes[sent..])];
        sent += retry_on_intr(|| sendmsg(stream, &rest, &mut none, SendFlags::NOSIGNAL))?;
    }
    Ok(())
}

/// Fills `bytes`; returns a descriptor that came with them.
pub fn receive(mut stream: &UnixStream, bytes: &mut [u8]) -> io::Result<Option<OwnedFd>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(bytes)];
    let first = retry_on_intr(|| recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC))?.bytes;
    if first == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    stream.read_exact(&mut bytes[first..])?;
    Ok(fd)
}

/// Whether an error says that the daemon closed the connection.
pub fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Whether an error says that an answer did not come in time.
pub fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Memory that may shrink.
pub fn memory(len_bytes: u64) -> io::Result<File> {
    let fd = memfd_create("hostile", MemfdFlags::CLOEXEC)?;
    ftruncate(fd.as_fd(), len_bytes)?;
    Ok(fd.into())
}
