//! One client's connection as a state machine without I/O of its own: bytes and descriptors in, calls to the
//! device; bytes and descriptors out.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use client_socket::MAX_FDS;
use rustix::io::Errno;

use crate::device::{Device, DeviceSpec};
use crate::front_end::{Answer, FrontEnd};
use crate::session::Session;
use crate::wire::{self, HEADER_BYTES, Header, MAX_PAYLOAD_BYTES, Request};

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Closed {
    #[error("the client went away")]
    Gone,
    #[error("{request} with {payload_bytes} bytes; at most {MAX_PAYLOAD_BYTES} are possible")]
    TooLong { request: String, payload_bytes: u32 },
    #[error("a message that is not a request of version 1")]
    NotARequest,
    #[error("more than {MAX_FDS} file descriptors with one message, or more than the daemon can open")]
    TooManyFds,
    #[error("it does not read its replies")]
    NotReading,
    #[error("it left a message unfinished for too long")]
    Stalled,
    #[error("{request} refused: {why}")]
    Request { request: String, why: String },
    #[error("{0}")]
    Asked(String),
    #[error("the socket failed: {0}")]
    Socket(Errno),
}

/// One client's connection. After an `Err` from [`Connection::feed`], [`Connection::close`] it.
#[derive(Debug)]
#[must_use = "a connection is to be closed, so that the device learns of it"]
pub struct Connection {
    front_end: FrontEnd,
    /// The message that is coming in, as far as it came.
    inbound: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// The reply that is going out, and what goes along with its first byte.
    outbound: Vec<u8>,
    outbound_fd: Option<OwnedFd>,
}

impl Connection {
    /// A connection on which nothing was said yet; the device learns of it.
    pub fn open(spec: Arc<DeviceSpec>, session: Session, device: &mut dyn Device) -> Self {
        device.connected(session);
        Self {
            front_end: FrontEnd::new(spec),
            inbound: Vec::new(),
            fds: Vec::new(),
            outbound: Vec::new(),
            outbound_fd: None,
        }
    }

    /// It is over; the device learns of it.
    pub fn close(self, why: &Closed, device: &mut dyn Device) {
        // The memory that the client shared is let go with the connection, but not before the device did.
        device.disconnected(&why.to_string());
    }

    /// Bytes that are missing to the next decision; at least 1. A reader that never takes more from
    /// the socket knows which message its file descriptors belong to.
    pub fn wanted_bytes(&self) -> usize {
        let goal = match self.inbound.first_chunk() {
            Some(header) => HEADER_BYTES + Header::parse(header).payload_bytes as usize,
            None => HEADER_BYTES,
        };
        goal.saturating_sub(self.inbound.len()).max(1)
    }

    /// Whether the client owes us the rest of a message.
    pub fn is_midway(&self) -> bool {
        !self.inbound.is_empty()
    }

    /// Takes at most [`Connection::wanted_bytes`] of what the client sent, once [`Connection::output`] was
    /// sent. `fds` came with the first of `bytes`. Returns a text for the log if a request was refused.
    ///
    /// # Errors
    /// The connection is over.
    pub fn feed(&mut self, bytes: &[u8], fds: Vec<OwnedFd>, device: &mut dyn Device) -> Result<Option<String>, Closed> {
        self.inbound.extend_from_slice(bytes);
        self.fds.extend(fds);
        if self.fds.len() > MAX_FDS {
            return Err(Closed::TooManyFds);
        }
        let Some(header) = self.inbound.first_chunk().map(Header::parse) else { return Ok(None) };
        if !header.is_valid {
            return Err(Closed::NotARequest);
        }
        if header.payload_bytes as usize > MAX_PAYLOAD_BYTES {
            let request = wire::name(header.request);
            return Err(Closed::TooLong { request, payload_bytes: header.payload_bytes });
        }
        let Some(payload) = self.inbound.get(HEADER_BYTES..HEADER_BYTES + header.payload_bytes as usize) else {
            return Ok(None);
        };
        let request = Request::parse(header.request, payload, std::mem::take(&mut self.fds));
        self.inbound.clear();
        let result = match request {
            Ok(request) => self.front_end.handle(request, device),
            Err(malformed) => Err(malformed.to_string()),
        };
        self.answer(&header, result)
    }

    fn answer(&mut self, header: &Header, result: Result<Answer, String>) -> Result<Option<String>, Closed> {
        let acknowledged = header.need_reply && self.front_end.acknowledges();
        match result {
            Ok(Answer::Done) if acknowledged => self.push(header, &0u64.to_ne_bytes(), None),
            Ok(Answer::Done) => {}
            Ok(Answer::Reply(payload)) => self.push(header, &payload, None),
            Ok(Answer::ReplyWithFd(payload, fd)) => self.push(header, &payload, Some(fd)),
            // A client that waits for what it asked would take an acknowledgement for it.
            Err(why) if acknowledged && !wire::has_reply(header.request) => {
                self.push(header, &1u64.to_ne_bytes(), None);
                return Ok(Some(Closed::Request { request: wire::name(header.request), why }.to_string()));
            }
            Err(why) => return Err(Closed::Request { request: wire::name(header.request), why }),
        }
        Ok(None)
    }

    fn push(&mut self, header: &Header, payload: &[u8], fd: Option<OwnedFd>) {
        self.outbound.extend(wire::reply(header.request, payload));
        self.outbound_fd = fd;
    }

    /// The next bytes for the client and, with the first of a message, the descriptor to send along.
    pub fn output(&self) -> Option<(&[u8], Option<BorrowedFd<'_>>)> {
        let fd = self.outbound_fd.as_ref().map(AsFd::as_fd);
        if self.outbound.is_empty() { None } else { Some((&self.outbound, fd)) }
    }

    /// `bytes` of [`Connection::output`] were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.outbound.drain(..bytes.min(self.outbound.len()));
        if bytes > 0 {
            self.outbound_fd = None;
        }
    }

    /// Whether a ring of an earlier session was taken up again since the last call. The device may not be what
    /// it was then: tell the client with [`Connection::send_config_change`] once it is silent.
    pub fn take_config_change_due(&mut self) -> bool {
        self.front_end.take_config_change_due()
    }

    /// Tells the client to read configuration space again, if it gave a channel to tell it.
    pub fn send_config_change(&self) {
        self.front_end.send_config_change();
    }
}
