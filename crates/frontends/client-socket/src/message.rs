//! Bytes with file descriptors, and whether a peer is still there.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Descriptors that one message can carry at most, whatever its protocol.
pub const MAX_FDS: usize = 32;

/// A message, whole or in part.
#[derive(Debug)]
pub enum Received {
    /// A number of bytes, with these descriptors.
    Bytes(usize, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The peer closed its side.
    End,
    /// More descriptors came than [`MAX_FDS`], or than we can open; these are some of them.
    TooManyFds(Vec<OwnedFd>),
}

/// Receives into `buffer`; waits for something unless `flags` say otherwise.
///
/// # Errors
/// The system's.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], flags: RecvFlags) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
        Err(errno) => return Err(errno),
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(match got.bytes {
        _ if got.flags.contains(ReturnFlags::CTRUNC) => Received::TooManyFds(fds),
        0 => Received::End,
        bytes => Received::Bytes(bytes, fds),
    })
}

/// What waits in a socket.
pub enum Waiting {
    /// At least this many bytes, without descriptors.
    Plain(usize),
    /// At least this many bytes, with descriptors.
    WithFds(usize),
    /// Nothing now.
    Nothing,
    /// The peer closed its side.
    End,
}

/// Looks at what waits, `buffer.len()` bytes at most, without taking it or waiting. No descriptor is opened for it.
pub fn peek(socket: impl AsFd, buffer: &mut [u8]) -> Result<Waiting, Errno> {
    let mut no_room = RecvAncillaryBuffer::default();
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut no_room, flags) {
        Ok(got) if got.bytes == 0 => Ok(Waiting::End),
        Ok(got) if got.flags.contains(ReturnFlags::CTRUNC) => Ok(Waiting::WithFds(got.bytes)),
        Ok(got) => Ok(Waiting::Plain(got.bytes)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(Waiting::Nothing),
        Err(errno) => Err(errno),
    }
}

/// Receives bytes that came without descriptors, if there are some. Where descriptors came with them
/// ([`Received::TooManyFds`]) they stay in the socket.
pub fn receive_plain(socket: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    match peek(&socket, buffer)? {
        // No more than was looked at: what came since may have descriptors.
        Waiting::Plain(bytes) => receive(socket, &mut buffer[..bytes], RecvFlags::DONTWAIT),
        Waiting::WithFds(_) => Ok(Received::TooManyFds(Vec::new())),
        Waiting::Nothing => Ok(Received::Nothing),
        Waiting::End => Ok(Received::End),
    }
}

/// Sends a whole message with descriptors. Waits until there is room.
pub fn send_whole(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => return Ok(()),
        }
    }
}

/// Sends a whole message with descriptors, on a socket that keeps messages apart, if it can go now.
///
/// # Errors
/// The system's; `EAGAIN`: it can't.
pub fn send_now(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(fds));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).map(drop)
}

/// Sends without waiting; returns how many bytes went, 0 if none can go now.
pub fn send(socket: impl AsFd, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        other => other,
    }
}

/// Whether the other side is closed altogether.
pub fn has_hung_up(socket: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
