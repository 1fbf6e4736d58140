//! vhost-user: messages as a client writes them, right or wrong, and a connection that sends them.

#![allow(missing_docs, reason = "messages have the names and fields of their specification")]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::socket::{connect, receive, send};
pub use crate::{longs, words};

pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const RESET_OWNER: u32 = 4;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_LOG_BASE: u32 = 6;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const GET_QUEUE_NUM: u32 = 17;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SET_BACKEND_REQ_FD: u32 = 21;
pub const GET_CONFIG: u32 = 24;
pub const SET_CONFIG: u32 = 25;
pub const GET_INFLIGHT_FD: u32 = 31;
pub const SET_INFLIGHT_FD: u32 = 32;
pub const RESET_DEVICE: u32 = 34;
pub const GET_MAX_MEM_SLOTS: u32 = 36;
pub const ADD_MEM_REG: u32 = 37;
pub const REM_MEM_REG: u32 = 38;

pub const VERSION: u32 = 1;
pub const NEED_REPLY: u32 = 1 << 3;
pub const NO_FD: u64 = 1 << 8;
/// The virtio feature bit for protocol features.
pub const F_PROTOCOL_FEATURES: u64 = 1 << 30;
/// All protocol features that the server has.
pub const PROTOCOL_FEATURES: u64 = 1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12 | 1 << 13 | 1 << 15;
pub const REPLY_ACK: u64 = 1 << 3;

pub fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    [words(&[request, flags, payload.len() as u32]), payload.to_vec()].concat()
}

/// Guest address, length, client's address, file offset.
pub type RegionOf = (u64, u64, u64, u64);

pub fn region((guest, len, user, offset): RegionOf) -> Vec<u8> {
    longs(&[guest, len, user, offset])
}

pub fn mem_table(regions: &[RegionOf]) -> Vec<u8> {
    let head = words(&[regions.len() as u32, 0]);
    [head, regions.iter().flat_map(|&of| region(of)).collect()].concat()
}

pub fn mem_reg(of: RegionOf) -> Vec<u8> {
    [longs(&[0]), region(of)].concat()
}

pub fn addresses(ring: u32, desc: u64, used: u64, avail: u64) -> Vec<u8> {
    [words(&[ring, 0]), longs(&[desc, used, avail, 0])].concat()
}

pub fn inflight(len: u64, offset: u64, queues: u16, queue_size: u16) -> Vec<u8> {
    let shorts = [queues, queue_size, 0, 0];
    [longs(&[len, offset]), shorts.iter().flat_map(|short| short.to_ne_bytes()).collect()].concat()
}

pub fn config(offset: u32, len: u32, flags: u32, data: &[u8]) -> Vec<u8> {
    [words(&[offset, len, flags]), data.to_vec()].concat()
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    /// The socket.
    pub stream: UnixStream,
}

impl Client {
    /// Connects to a socket, and says nothing yet. Waits at most `limit` for each reply.
    pub fn connect(socket: &Path, limit: Duration) -> io::Result<Self> {
        Ok(Self { stream: connect(socket, limit)? })
    }

    /// Sends bytes that may be a message.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.stream, bytes, fds)
    }

    /// Reads the payload of the next reply, with a descriptor that came with it.
    pub fn answer(&self) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut header = [0; 12];
        let fd = receive(&self.stream, &mut header)?;
        let len_bytes = u32::from_ne_bytes([header[8], header[9], header[10], header[11]]);
        let mut payload = vec![0; len_bytes as usize];
        let fd = fd.or(receive(&self.stream, &mut payload)?);
        Ok((payload, fd))
    }

    /// Sends a request that is to be acknowledged, and reads the payload of the answer.
    pub fn ask(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<Vec<u8>> {
        self.send(&message(request, VERSION | NEED_REPLY, payload), fds)?;
        Ok(self.answer()?.0)
    }
}
