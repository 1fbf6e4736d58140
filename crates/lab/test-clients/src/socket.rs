//! A socket on which bytes travel with file descriptors.

use std::fs::File;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// More than either protocol takes; the kernel's limit is 253.
const MAX_FDS: usize = 128;

/// Connects to `socket`. Sending and receiving fail after `limit`.
pub fn connect(socket: &Path, limit: Duration) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    Ok(stream)
}

/// Repeats `attach` until it succeeds or `limit` is over: the previous client may still be leaving.
pub fn patiently<T>(limit: Duration, attach: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match attach() {
            Err(_) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            attached => return attached,
        }
    }
}

/// Sends all `bytes`, the first of them with `fds`.
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

/// Reads until the server closes the connection, at most `limit` for each piece.
pub fn await_end(mut stream: &UnixStream, limit: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(limit))?;
    match io::copy(&mut stream, &mut io::sink()) {
        Err(error) if !is_closed(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether an error says that the daemon closed the connection.
pub fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Whether an error says that an answer did not come in time.
pub fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Memory in a file, which may shrink.
pub fn memory(len_bytes: u64) -> io::Result<File> {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC)?;
    ftruncate(fd.as_fd(), len_bytes)?;
    Ok(fd.into())
}
