//! What the daemon and the process that has the rights say to each other: a message, and a socket for its answer.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytemuck::{Pod, Zeroable};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use crate::spec::Params;

/// Bytes of an answer's text at most.
pub const TEXT_BYTES: usize = 400;

/// What is asked.
pub mod verb {
    /// Find the device of a mark, or make it; the answer has its character device.
    pub const OPEN: u32 = 1;
    /// Have it appear: its queues are served.
    pub const START: u32 = 2;
    /// Delete it, even if it is open.
    pub const DELETE: u32 = 3;
    /// Delete it unless it is open.
    pub const PART: u32 = 4;
    /// Ask whether it is open.
    pub const IS_OPEN: u32 = 5;
}

/// A request. What it has besides is the daemon's end of a socket for the answer, if it wants one.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct Request {
    /// See [`verb`].
    pub verb: u32,
    /// Which device; of no meaning to [`verb::OPEN`].
    pub dev_id: u32,
    /// Identifies the device, in the driver's memory.
    pub mark: u64,
    /// Process that serves it.
    pub pid: i32,
    /// 1: it is another server's that goes on.
    pub is_recovered: u16,
    /// How many are wanted.
    pub queues: u16,
    /// Of each queue.
    pub depth: u16,
    /// Bytes of `name`.
    pub name_len: u16,
    /// 0.
    pub pad: u32,
    /// What it is to be like.
    pub params: Params,
    /// Under `/dev/evenkeel`.
    pub name: [u8; 64],
}

/// An answer; text follows, which says what failed.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub struct Answer {
    /// 0: done.
    pub errno: i32,
    /// Its number.
    pub dev_id: u32,
    /// That it has.
    pub queues: u16,
    /// 1: another server's that is to go on.
    pub is_recovered: u8,
    /// 1: it is open.
    pub is_open: u8,
    /// 0.
    pub pad: u32,
    /// How long it is.
    pub dev_sectors: u64,
}

/// Sends a whole message, on a socket that keeps them apart.
pub fn send(socket: impl AsFd, parts: [&[u8]; 2], fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let parts = parts.map(IoSlice::new);
    loop {
        match sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop),
        }
    }
}

/// Receives a whole message; 0 bytes: the other end is closed.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            got => break got?,
        }
    };
    let rights = |message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    };
    let fd = control.drain().filter_map(rights).flatten().next();
    Ok((got.bytes, fd))
}
