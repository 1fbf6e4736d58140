//! vfio-user: messages as a client writes them, right or wrong, and a connection that sends them.

#![allow(missing_docs, reason = "messages have the names and fields of their specification")]

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use crate::socket::{connect, receive, send};
pub use crate::{longs, words};

pub const VERSION: u16 = 1;
pub const DMA_MAP: u16 = 2;
pub const DMA_UNMAP: u16 = 3;
pub const GET_INFO: u16 = 4;
pub const GET_REGION_INFO: u16 = 5;
pub const GET_IRQ_INFO: u16 = 7;
pub const SET_IRQS: u16 = 8;
pub const REGION_READ: u16 = 9;
pub const REGION_WRITE: u16 = 10;
pub const RESET: u16 = 13;

pub const NO_REPLY: u32 = 1 << 4;
/// Of a reply that tells an error.
const ERROR: u32 = 1 << 5;

pub fn header(id: u16, command: u16, size_bytes: u32, flags: u32) -> Vec<u8> {
    let mut out = [id.to_ne_bytes(), command.to_ne_bytes()].concat();
    out.extend(words(&[size_bytes, flags, 0]));
    out
}

pub fn message(id: u16, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = header(id, command, 16 + payload.len() as u32, flags);
    out.extend_from_slice(payload);
    out
}

pub fn version(json: &str) -> Vec<u8> {
    let numbers = [0u16.to_ne_bytes(), 1u16.to_ne_bytes()].concat();
    message(0, VERSION, 0, &[&numbers, json.as_bytes(), &[0]].concat())
}

pub fn dma_map(id: u16, flags: u32, offset: u64, iova: u64, len: u64) -> Vec<u8> {
    message(id, DMA_MAP, 0, &[words(&[32, flags]), longs(&[offset, iova, len])].concat())
}

pub fn dma_unmap(id: u16, flags: u32, iova: u64, len: u64) -> Vec<u8> {
    message(id, DMA_UNMAP, 0, &[words(&[24, flags]), longs(&[iova, len])].concat())
}

pub fn get_region_info(id: u16, argsz: u32, index: u32) -> Vec<u8> {
    message(id, GET_REGION_INFO, 0, &words(&[argsz, 0, index, 0, 0, 0, 0, 0]))
}

pub fn set_irqs(id: u16, flags: u32, index: u32, start: u32, count: u32, bools: &[u8]) -> Vec<u8> {
    let argsz = 20 + bools.len() as u32;
    message(id, SET_IRQS, 0, &[words(&[argsz, flags, index, start, count]), bools.to_vec()].concat())
}

pub fn region_read(id: u16, region: u32, offset: u64, len: u32) -> Vec<u8> {
    message(id, REGION_READ, 0, &[longs(&[offset]), words(&[region, len])].concat())
}

pub fn region_write(id: u16, flags: u32, region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let access = [longs(&[offset]), words(&[region, data.len() as u32]), data.to_vec()].concat();
    message(id, REGION_WRITE, flags, &access)
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    /// The socket.
    pub stream: UnixStream,
}

/// A reply's payload, or the error that it tells.
pub type Reply = Result<Vec<u8>, Errno>;

impl Client {
    /// Connects to a socket, and says nothing yet. Waits at most `limit` for each reply.
    pub fn connect(socket: &Path, limit: Duration) -> io::Result<Self> {
        Ok(Self { stream: connect(socket, limit)? })
    }

    /// A connection with a version agreed on.
    pub fn greet(socket: &Path, limit: Duration) -> io::Result<Self> {
        let this = Self::connect(socket, limit)?;
        this.ask(&version("{}"), &[])?.map_err(io::Error::from)?;
        Ok(this)
    }

    /// Sends bytes that may be a message.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.stream, bytes, fds)
    }

    /// Reads the next reply, with a descriptor that came with it.
    pub fn answer_with_fd(&self) -> io::Result<(Reply, Option<OwnedFd>)> {
        let mut header = [0; 16];
        let fd = receive(&self.stream, &mut header)?;
        let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let mut payload = vec![0; (word(4) as usize).saturating_sub(header.len())];
        let fd = fd.or(receive(&self.stream, &mut payload)?);
        Ok((if word(8) & ERROR == 0 { Ok(payload) } else { Err(Errno::from_raw_os_error(word(12) as i32)) }, fd))
    }

    /// Reads the next reply.
    pub fn answer(&self) -> io::Result<Reply> {
        Ok(self.answer_with_fd()?.0)
    }

    /// Sends a message and reads its reply.
    pub fn ask(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<Reply> {
        self.send(bytes, fds)?;
        self.answer()
    }

    /// As [`Client::ask`], for a test whose connection stays.
    ///
    /// # Panics
    /// There is no reply.
    #[track_caller]
    pub fn expect_reply(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Reply {
        self.ask(bytes, fds).expect("a reply")
    }
}
