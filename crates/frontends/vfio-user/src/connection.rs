//! One client's connection as a state machine without I/O: bytes and descriptors in, requests out;
//! replies in, bytes and descriptors out.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::device::DeviceSpec;
use crate::request::{Reply, Request, Ticket};
use crate::version::{self, Negotiated};
use crate::wire::{self, Access, DmaMap, DmaUnmap, HEADER_BYTES, Header, MAX_MSG_FDS, Payload, command};

/// Requests that may wait for their reply at a time; the rest waits in the socket.
const MAX_PENDING: usize = 64;
/// Reply bytes that may wait for the client to read them before its next message is taken. Together
/// with the replies of [`MAX_PENDING`] requests they bound what a client can make us keep.
const MAX_OUTBOUND_BYTES: usize = 256 * 1024;

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Closed {
    #[error("the client went away")]
    Gone,
    #[error("a message of {size_bytes} bytes; {min_bytes} to {max_bytes} are possible")]
    BadLength { size_bytes: u32, min_bytes: usize, max_bytes: usize },
    #[error("a message that is not a command")]
    NotACommand,
    #[error("command {0} before the version was agreed on")]
    NotNegotiated(u16),
    #[error("no version could be agreed on: {0}")]
    BadVersion(Errno),
    #[error("more than {MAX_MSG_FDS} file descriptors with one message, or more than the daemon can open")]
    TooManyFds,
    #[error("it does not read its replies")]
    NotReading,
    #[error("it left a message unfinished for too long")]
    Stalled,
    #[error("{0}")]
    Refused(String),
    #[error("the socket failed: {0}")]
    Socket(Errno),
}

/// What [`Connection::next_request`] yields.
#[derive(Debug)]
pub enum Asked {
    /// A request that was checked.
    Request(Request),
    /// A DMA map whose file is still to be checked and mapped.
    DmaMap(DmaMap, Option<OwnedFd>),
}

/// What a reply looks like when its time comes.
#[derive(Debug)]
enum Shape {
    Bare,
    Unmap(DmaUnmap),
    Read(Access),
    Write(Access),
}

#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    message_id: u16,
    command: u16,
    no_reply: bool,
    shape: Shape,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent_bytes: usize,
    /// The file behind this region goes along.
    region: Option<u32>,
}

/// One client's connection. After an `Err` from any method, flush what [`Connection::output`] still
/// has (it may explain the error to the client) and drop it; it takes and asks nothing more.
#[derive(Debug)]
pub struct Connection {
    device: Arc<DeviceSpec>,
    /// Why it is over.
    closed: Option<Closed>,
    negotiated: Option<Negotiated>,
    /// The message that is coming in, as far as it came.
    inbound: Vec<u8>,
    fds: Vec<OwnedFd>,
    asked: VecDeque<(Ticket, Asked)>,
    pending: Vec<Pending>,
    next_ticket: u64,
    outbound: VecDeque<Outgoing>,
    outbound_bytes: usize,
}

impl Connection {
    /// A connection on which nothing was said yet.
    pub fn new(device: Arc<DeviceSpec>) -> Self {
        Self {
            device,
            closed: None,
            negotiated: None,
            inbound: Vec::new(),
            fds: Vec::new(),
            asked: VecDeque::new(),
            pending: Vec::new(),
            next_ticket: 0,
            outbound: VecDeque::new(),
            outbound_bytes: 0,
        }
    }

    /// Bytes that are missing to the next decision; at least 1. A reader that never takes more from
    /// the socket knows which message its file descriptors belong to.
    pub fn wanted_bytes(&self) -> usize {
        let goal = match self.inbound.first_chunk() {
            Some(header) => Header::parse(header).size_bytes as usize,
            None => HEADER_BYTES,
        };
        goal.saturating_sub(self.inbound.len()).max(1)
    }

    /// Whether the client owes us the rest of a message, or its VERSION.
    pub fn is_midway(&self) -> bool {
        self.negotiated.is_none() || !self.inbound.is_empty()
    }

    /// Whether enough requests wait for replies, or replies for the client; feed no more meanwhile.
    pub fn is_full(&self) -> bool {
        self.pending.len() >= MAX_PENDING || self.outbound_bytes >= MAX_OUTBOUND_BYTES
    }

    /// Takes what the client sent. `fds` came with the first of `bytes` and belong to its message;
    /// those that no command wants are closed.
    ///
    /// # Errors
    /// The connection is over.
    pub fn feed(&mut self, bytes: &[u8], fds: Vec<OwnedFd>) -> Result<(), Closed> {
        if let Some(closed) = &self.closed {
            return Err(closed.clone());
        }
        self.take(bytes, fds).map_err(|closed| self.close(closed))
    }

    fn take(&mut self, mut bytes: &[u8], fds: Vec<OwnedFd>) -> Result<(), Closed> {
        self.fds.extend(fds);
        if self.fds.len() > MAX_MSG_FDS {
            return Err(Closed::TooManyFds);
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(self.wanted_bytes().min(bytes.len()));
            // Grows with what came, not with what the header promises.
            self.inbound.extend_from_slice(now);
            bytes = later;
            self.advance()?;
        }
        Ok(())
    }

    /// Forgets what the client still wants; only answers go out from here on.
    fn close(&mut self, closed: Closed) -> Closed {
        self.asked.clear();
        self.pending.clear();
        self.closed = Some(closed.clone());
        closed
    }

    /// The next request for the device. Answer each with [`Connection::reply`], in any order.
    pub fn next_request(&mut self) -> Option<(Ticket, Asked)> {
        self.asked.pop_front()
    }

    fn advance(&mut self) -> Result<(), Closed> {
        let Some(header) = self.inbound.first_chunk().map(Header::parse) else { return Ok(()) };
        if self.inbound.len() == HEADER_BYTES {
            self.check_header(&header)?;
        }
        if self.inbound.len() < header.size_bytes as usize {
            return Ok(());
        }
        let message = std::mem::take(&mut self.inbound);
        let fds = std::mem::take(&mut self.fds);
        let payload = Payload::parse(header.command, message.get(HEADER_BYTES..).unwrap_or_default());
        self.handle(&header, payload, fds)?;
        // Small messages are the rule; keep their buffer, give a big one back.
        if message.capacity() <= 4096 {
            self.inbound = message;
            self.inbound.clear();
        }
        Ok(())
    }

    fn check_header(&mut self, header: &Header) -> Result<(), Closed> {
        let max_bytes = if self.negotiated.is_some() { wire::MAX_MESSAGE_BYTES } else { wire::MAX_VERSION_BYTES };
        if !(HEADER_BYTES..=max_bytes).contains(&(header.size_bytes as usize)) {
            return Err(Closed::BadLength { size_bytes: header.size_bytes, min_bytes: HEADER_BYTES, max_bytes });
        }
        if !header.is_command {
            return Err(Closed::NotACommand);
        }
        if self.negotiated.is_none() && header.command != command::VERSION {
            self.push(header, Err(Errno::INVAL), None);
            return Err(Closed::NotNegotiated(header.command));
        }
        Ok(())
    }

    fn handle(&mut self, header: &Header, payload: Result<Payload, Errno>, fds: Vec<OwnedFd>) -> Result<(), Closed> {
        let result = payload.and_then(|payload| self.ask(header, payload, fds));
        match result {
            Ok(None) => Ok(()),
            Ok(Some(Answer { payload, region })) => {
                self.push(header, Ok(&payload), region);
                Ok(())
            }
            Err(errno) => {
                self.push(header, Err(errno), None);
                if self.negotiated.is_none() { Err(Closed::BadVersion(errno)) } else { Ok(()) }
            }
        }
    }

    /// Answers what the description of the device answers; queues the rest for the device.
    fn ask(&mut self, header: &Header, payload: Payload, mut fds: Vec<OwnedFd>) -> Result<Option<Answer>, Errno> {
        let (negotiated, payload) = match (self.negotiated, payload) {
            (None, Payload::Version { major, minor, json }) => {
                let (negotiated, payload) = version::negotiate(major, minor, &json)?;
                self.negotiated = Some(negotiated);
                return Ok(Some(Answer { payload, region: None }));
            }
            (None, _) => return Err(Errno::INVAL),
            (Some(negotiated), payload) => (negotiated, payload),
        };
        let max_data_bytes = negotiated.max_data_bytes;
        let (shape, asked) = match payload {
            Payload::Version { .. } => return Err(Errno::INVAL),
            Payload::GetInfo | Payload::GetRegionInfo { .. } | Payload::GetIrqInfo { .. } => {
                return self.describe(&payload, negotiated.client_max_fds > 0).map(Some);
            }
            Payload::DmaMap(_) if fds.len() > 1 => return Err(Errno::INVAL),
            Payload::DmaMap(map) => (Shape::Bare, Asked::DmaMap(map, fds.pop())),
            Payload::DmaUnmap(unmap) => (Shape::Unmap(unmap), Asked::Request(unmap_request(&unmap)?)),
            Payload::SetIrqs(irqs) => {
                (Shape::Bare, Asked::Request(Request::SetIrqs(self.device.check_irqs(&irqs, fds)?)))
            }
            Payload::RegionRead(access) => {
                self.device.check_access(&access, max_data_bytes, false)?;
                let Access { region, offset_bytes, len_bytes } = access;
                (Shape::Read(access), Asked::Request(Request::RegionRead { region, offset_bytes, len_bytes }))
            }
            Payload::RegionWrite(access, data) => {
                self.device.check_access(&access, max_data_bytes, true)?;
                let Access { region, offset_bytes, .. } = access;
                (Shape::Write(access), Asked::Request(Request::RegionWrite { region, offset_bytes, data }))
            }
            Payload::Reset if !self.device.resettable => return Err(Errno::NOTSUP),
            Payload::Reset => (Shape::Bare, Asked::Request(Request::Reset)),
        };
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let Header { message_id, command, no_reply, .. } = *header;
        self.pending.push(Pending { ticket, message_id, command, no_reply, shape });
        self.asked.push_back((ticket, asked));
        Ok(None)
    }

    fn describe(&self, payload: &Payload, with_mmap: bool) -> Result<Answer, Errno> {
        let device = &self.device;
        let mut region = None;
        let payload = match *payload {
            Payload::GetRegionInfo { argsz, index } => {
                let (payload, with_fd) = device.region_info(index, with_mmap)?.encode(argsz);
                region = with_fd.then_some(index);
                payload
            }
            Payload::GetIrqInfo { index } => {
                let irq = device.irq(index)?;
                wire::irq_info(irq.flags(), index, irq.count)
            }
            _ => wire::device_info(device.resettable, device.regions.len() as u32, device.irqs.len() as u32),
        };
        Ok(Answer { payload, region })
    }

    /// Answers a request. A ticket that is not waiting is ignored.
    ///
    /// # Errors
    /// The connection is over.
    pub fn reply(&mut self, ticket: Ticket, reply: Reply) -> Result<(), Closed> {
        let Some(at) = self.pending.iter().position(|pending| pending.ticket == ticket) else { return Ok(()) };
        let Pending { message_id, command, no_reply, shape, .. } = self.pending.swap_remove(at);
        let header = Header { message_id, command, size_bytes: 0, no_reply, is_command: true };
        let mut refused = Ok(());
        let result = match (reply, shape) {
            (Reply::Failed(errno), _) => Err(errno),
            (Reply::Fatal(errno, reason), _) => {
                refused = Err(self.close(Closed::Refused(reason)));
                Err(errno)
            }
            (Reply::Data(data), Shape::Read(access)) if data.len() as u64 == u64::from(access.len_bytes) => {
                Ok(access.encode(&data))
            }
            (Reply::Done, Shape::Bare) => Ok(Vec::new()),
            (Reply::Done, Shape::Unmap(unmap)) => Ok(unmap.encode()),
            (Reply::Done, Shape::Write(access)) => Ok(access.encode(&[])),
            // A device that answers something else than it was asked.
            (Reply::Done | Reply::Data(_), _) => Err(Errno::IO),
        };
        self.push(&header, result.as_deref().map_err(|errno| *errno), None);
        refused
    }

    fn push(&mut self, header: &Header, result: Result<&[u8], Errno>, region: Option<u32>) {
        if header.no_reply {
            return;
        }
        let bytes = wire::reply(header.message_id, header.command, result);
        self.outbound_bytes += bytes.len();
        self.outbound.push_back(Outgoing { bytes, sent_bytes: 0, region });
    }

    /// The next bytes for the client and, with the first of a message, the descriptor to send along.
    pub fn output(&self) -> Option<(&[u8], Option<BorrowedFd<'_>>)> {
        let first = self.outbound.front()?;
        let fd = first.region.filter(|_| first.sent_bytes == 0).and_then(|region| {
            let mmap = self.device.region(region).ok()?.mmap.as_ref()?;
            Some(mmap.fd.as_fd())
        });
        Some((first.bytes.get(first.sent_bytes..).unwrap_or_default(), fd))
    }

    /// `bytes` of [`Connection::output`] were sent.
    pub fn sent(&mut self, bytes: usize) {
        let Some(first) = self.outbound.front_mut() else { return };
        first.sent_bytes += bytes;
        if first.sent_bytes >= first.bytes.len() {
            self.outbound_bytes = self.outbound_bytes.saturating_sub(first.bytes.len());
            self.outbound.pop_front();
        }
    }
}

struct Answer {
    payload: Vec<u8>,
    /// The file behind this region goes along.
    region: Option<u32>,
}

fn unmap_request(unmap: &DmaUnmap) -> Result<Request, Errno> {
    match *unmap {
        DmaUnmap { flags: DmaUnmap::ALL, iova: 0, len_bytes: 0, .. } => Ok(Request::DmaUnmapAll),
        DmaUnmap { flags: 0, iova, len_bytes, .. } if len_bytes > 0 => Ok(Request::DmaUnmap { iova, len_bytes }),
        DmaUnmap { flags: DmaUnmap::DIRTY_BITMAP, .. } => Err(Errno::NOTSUP),
        _ => Err(Errno::INVAL),
    }
}
