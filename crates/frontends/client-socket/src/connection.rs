//! One client's connection as a state machine without I/O of its own: bytes and descriptors in, calls to the
//! device; bytes and descriptors out.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::keeping::wire::Framing;
use crate::session::Session;

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Closed<E> {
    #[error("the client went away")]
    Gone,
    #[error("more file descriptors with one message than its protocol allows, or than the daemon can open")]
    TooManyFds,
    #[error(
        "a file descriptor that is neither memory (memfd, tmpfs, hugetlbfs) nor an eventfd nor a Unix stream socket"
    )]
    ForeignFd,
    #[error("more sockets than a client of this protocol has use for")]
    TooManySockets,
    #[error(
        "the files that an earlier client brought are still not closed: the process that serves them does not answer"
    )]
    ClosingFds,
    #[error(
        "the descriptor gate does not answer ({0}): see whether the process evenkeeld-gate is stopped, or restart the \
         daemon"
    )]
    Gate(Errno),
    #[error("it does not read its replies")]
    NotReading,
    #[error("it left a message unfinished for too long")]
    Stalled,
    #[error("a message of a length outside its protocol")]
    BadLength,
    #[error("the process that keeps it is gone, or told what can't be")]
    KeeperGone,
    #[error("{0}")]
    Asked(String),
    #[error("the socket failed: {0}")]
    Socket(Errno),
    /// What the protocol says.
    #[error(transparent)]
    Protocol(#[from] E),
}

/// A protocol of messages that begin with a header of fixed length, as one client has spoken it so far.
pub trait Protocol {
    /// What the messages are about. It is called on the thread that serves the client.
    type Device: ?Sized;
    /// What a client can do that ends its connection.
    type Error: std::error::Error + Clone;
    /// What a message begins with.
    type Header: Copy + std::fmt::Debug;
    /// Its length; at least 1.
    const HEADER_BYTES: usize;
    /// File descriptors that one message can bring.
    const MAX_FDS: usize;
    /// While this many bytes of replies wait for the client to read them, no more of its messages are taken.
    const MAX_UNREAD_BYTES: usize;

    /// Where its messages end, for a keeper of its clients. `None`: they can't be kept.
    const FRAMING: Option<Framing> = None;

    /// A client attached. One that [is held](Session::is_held) has spoken before: what is kept of that comes first.
    fn connected(&mut self, device: &mut Self::Device, session: Session);

    /// All was repeated that is kept of what a client said to an earlier process, which [is held](Session::is_held).
    /// For so long there was no process.
    ///
    /// # Errors
    /// It can't be gone on with; the connection is over.
    fn restored(&mut self, _device: &mut Self::Device, _alone: Duration) -> Result<(), Self::Error> {
        Ok(())
    }

    /// This process ends, and its client goes on with the next one.
    fn left(_device: &mut Self::Device) {}

    /// The client is gone.
    fn disconnected(device: &mut Self::Device, reason: &str);

    /// Takes a header apart. `None`: the bytes are too few.
    fn header(bytes: &[u8]) -> Option<Self::Header>;

    /// Judges a header, and returns the bytes of what follows it.
    ///
    /// # Errors
    /// The connection is over.
    fn payload_bytes(&self, header: Self::Header, replies: &mut Replies) -> Result<usize, Self::Error>;

    /// Does what a message asks for. `fds` came with it; those that it does not want are closed. Returns a
    /// line for the log if it was refused, or done otherwise than the client may think.
    ///
    /// # Errors
    /// The connection is over.
    fn message(
        &mut self,
        header: Self::Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut Self::Device,
        replies: &mut Replies,
    ) -> Result<Option<String>, Self::Error>;

    /// What a keeper has to repeat to another process, now that the message of that number was dealt with.
    fn keeping(&mut self, _number: u64) -> Keeping {
        Keeping::default()
    }

    /// Whether the client owes a message, which a protocol may want of it before it may be silent.
    fn owes_message(&self) -> bool {
        false
    }

    /// Whether the client is to be told to read the device's configuration again; asking forgets it.
    fn take_config_change_due(&mut self) -> bool {
        false
    }

    /// Tells it so, if there is a way. The client has been silent for a moment.
    fn send_config_change(&self) {}
}

/// What becomes of what a client said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Keeping {
    /// Its last message must be repeated to the next daemon that serves it.
    pub keep: bool,
    /// These, by their numbers, need not be any more.
    pub forget: Vec<u64>,
}

/// What waits for a client to read it.
#[derive(Debug, Default)]
pub struct Replies {
    queue: VecDeque<Outgoing>,
    /// Bytes of all of them.
    bytes: usize,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent_bytes: usize,
    /// Goes along with the first byte.
    fd: Option<Arc<OwnedFd>>,
}

impl Replies {
    /// Adds one, with a descriptor to send along.
    pub fn push(&mut self, bytes: Vec<u8>, fd: Option<Arc<OwnedFd>>) {
        self.bytes += bytes.len();
        self.queue.push_back(Outgoing { bytes, sent_bytes: 0, fd });
    }
}

/// One client's connection. After an `Err` from [`Connection::feed`], flush what [`Connection::output`] still has (it
/// may explain the error to the client) and [`Connection::close`] it; it takes nothing more.
#[derive(Debug)]
#[must_use = "a connection is to be closed, so that the device learns of it"]
pub struct Connection<P: Protocol> {
    protocol: P,
    /// Why it is over.
    closed: Option<Closed<P::Error>>,
    /// The message that is coming in, as far as it came.
    inbound: Vec<u8>,
    /// Its header once that is there, and how much follows, bytes.
    header: Option<(P::Header, usize)>,
    fds: Vec<OwnedFd>,
    replies: Replies,
}

/// A buffer for messages is kept from one to the next unless it is larger than this.
const KEPT_BYTES: usize = 4096;

impl<P: Protocol> Connection<P> {
    /// A connection on which nothing was said yet; the device learns of it.
    pub fn open(mut protocol: P, session: Session, device: &mut P::Device) -> Self {
        protocol.connected(device, session);
        Self { protocol, closed: None, inbound: Vec::new(), header: None, fds: Vec::new(), replies: Replies::default() }
    }

    /// It is over; the device learns of it.
    pub fn close(self, reason: &str, device: &mut P::Device) {
        // What the client shared is let go with the connection, but not before the device did.
        P::disconnected(device, reason);
    }

    /// Bytes that are missing to the next decision; at least 1. A reader that never takes more from the socket
    /// knows which message its file descriptors belong to.
    pub fn wanted_bytes(&self) -> usize {
        let payload_bytes = self.header.map_or(0, |(_, payload_bytes)| payload_bytes);
        (P::HEADER_BYTES + payload_bytes).saturating_sub(self.inbound.len()).max(1)
    }

    /// Whether part of a message is there.
    pub fn has_part(&self) -> bool {
        !self.inbound.is_empty()
    }

    /// Whether the client owes a message, or the rest of one.
    pub fn is_midway(&self) -> bool {
        self.has_part() || self.protocol.owes_message()
    }

    /// Whether so much waits for the client that it is to be fed no more meanwhile.
    pub fn is_full(&self) -> bool {
        self.replies.bytes >= P::MAX_UNREAD_BYTES
    }

    /// Takes at most [`Connection::wanted_bytes`] of what the client sent, unless it [is full](Self::is_full). `fds`
    /// came with the first of `bytes`. Returns a line for the log if a message was refused.
    ///
    /// # Errors
    /// The connection is over.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut P::Device,
    ) -> Result<Option<String>, Closed<P::Error>> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone());
        }
        self.take(bytes, fds, device).inspect_err(|closed| self.closed = Some(closed.clone()))
    }

    fn take(
        &mut self,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut P::Device,
    ) -> Result<Option<String>, Closed<P::Error>> {
        // Grows with what came, not with what the header promises.
        self.inbound.extend_from_slice(bytes);
        self.fds.extend(fds);
        if self.fds.len() > P::MAX_FDS {
            return Err(Closed::TooManyFds);
        }
        if self.header.is_none()
            && let Some(header) = P::header(&self.inbound)
        {
            self.header = Some((header, self.protocol.payload_bytes(header, &mut self.replies)?));
        }
        let Some((header, payload_bytes)) = self.header else { return Ok(None) };
        let Some(payload) = self.inbound.get(P::HEADER_BYTES..P::HEADER_BYTES + payload_bytes) else { return Ok(None) };
        let fds = std::mem::take(&mut self.fds);
        let outcome = self.protocol.message(header, payload, fds, device, &mut self.replies);
        self.header = None;
        self.inbound.clear();
        self.inbound.shrink_to(KEPT_BYTES);
        Ok(outcome?)
    }

    /// The next bytes for the client and, with the first of a message, the descriptor to send along.
    pub fn output(&self) -> Option<(&[u8], Option<BorrowedFd<'_>>)> {
        let first = self.replies.queue.front()?;
        let fd = first.fd.as_deref().map(AsFd::as_fd);
        Some((first.bytes.get(first.sent_bytes..).unwrap_or_default(), fd))
    }

    /// `bytes` of [`Connection::output`] were sent.
    pub fn sent(&mut self, bytes: usize) {
        let Some(first) = self.replies.queue.front_mut() else { return };
        first.sent_bytes += bytes;
        if bytes > 0 {
            first.fd = None;
        }
        if first.sent_bytes >= first.bytes.len() {
            self.replies.bytes = self.replies.bytes.saturating_sub(first.bytes.len());
            self.replies.queue.pop_front();
        }
    }

    /// All that waits for the client, and the first descriptor that goes along.
    pub(crate) fn take_output(&mut self) -> (Vec<u8>, Option<Arc<OwnedFd>>) {
        let Replies { queue, .. } = std::mem::take(&mut self.replies);
        let (mut bytes, mut fd) = (Vec::new(), None);
        for outgoing in queue {
            bytes.extend_from_slice(outgoing.bytes.get(outgoing.sent_bytes..).unwrap_or_default());
            fd = fd.or(outgoing.fd);
        }
        (bytes, fd)
    }

    /// All that is kept was fed.
    pub(crate) fn restored(&mut self, device: &mut P::Device, alone: Duration) -> Result<(), Closed<P::Error>> {
        let restored = self.protocol.restored(device, alone).map_err(Closed::Protocol);
        restored.inspect_err(|closed| self.closed = Some(closed.clone()))
    }

    /// What a keeper has to repeat, now that the message of that number was dealt with.
    pub(crate) fn keeping(&mut self, number: u64) -> Keeping {
        self.protocol.keeping(number)
    }

    /// Whether the client is to be told to read the device's configuration again; asking forgets it.
    pub fn take_config_change_due(&mut self) -> bool {
        self.protocol.take_config_change_due()
    }

    /// Tells it so, if there is a way. Wait until the client has been silent for a moment.
    pub fn send_config_change(&self) {
        self.protocol.send_config_change();
    }
}
