//! A client's messages: version first, framing, replies; what the device's description answers, and what the device
//! does.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use client_socket::keeping::wire::Framing;
use client_socket::{Keeping, Protocol, Replies, Session};
use rustix::io::Errno;

use crate::device::{Device, DeviceSpec};
use crate::dma;
use crate::kept::{KeptMessages, Lasting};
use crate::request::{IrqChange, Reply, Request, SetIrqs};
use crate::version::{self, Negotiated};
use crate::wire::{self, Access, DmaUnmap, HEADER_BYTES, Header, MAX_MSG_FDS, Payload, command};

/// What a client can do that ends its connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ProtocolError {
    #[error("a message of {size_bytes} bytes; {min_bytes} to {max_bytes} are possible")]
    BadLength { size_bytes: u32, min_bytes: usize, max_bytes: usize },
    #[error("a message that is not a command")]
    NotACommand,
    #[error("command {0} before the version was agreed on")]
    NotNegotiated(u16),
    #[error("no version could be agreed on: {0}")]
    BadVersion(Errno),
    #[error("{0}")]
    Refused(String),
}

/// One client's connection.
pub type Connection = client_socket::Connection<ClientState>;

/// What one client agreed on with us: the vfio-user protocol, for its [`Connection`].
#[derive(Debug)]
pub struct ClientState {
    spec: Arc<DeviceSpec>,
    /// `None`: its VERSION has not come.
    negotiated: Option<Negotiated>,
    /// What its last message did that lasts.
    lasting: Option<Lasting>,
    /// What was done of it is worth a line of the log.
    warning: Option<String>,
    kept: KeptMessages,
}

/// How a command ended.
enum Outcome {
    /// The reply's payload, and a file to send along.
    Done(Vec<u8>, Option<Arc<OwnedFd>>),
    /// It was refused.
    Failed(Errno),
    /// It was refused, which is worth a line of the log.
    Logged(Errno, String),
    /// It was refused, and the connection is over.
    Fatal(Errno, String),
}

/// What a request's reply looks like.
enum Shape {
    Bare,
    Unmap(DmaUnmap),
    Read(Access),
    Write(Access),
}

impl Protocol for ClientState {
    type Device = dyn Device;
    type Error = ProtocolError;
    type Header = Header;
    const HEADER_BYTES: usize = HEADER_BYTES;
    const MAX_FDS: usize = MAX_MSG_FDS;
    /// Clients may send ahead, as QEMU does with DMA maps, and read the replies later.
    const MAX_UNREAD_BYTES: usize = 256 * 1024;
    const FRAMING: Option<Framing> = Some(Framing {
        header_bytes: HEADER_BYTES as u32,
        length_at: 4,
        with_header: true,
        max_bytes: wire::MAX_MESSAGE_BYTES as u32,
        max_fds: MAX_MSG_FDS as u32,
    });

    fn connected(&mut self, device: &mut Self::Device, session: Session) {
        device.connected(session);
    }

    fn disconnected(device: &mut Self::Device, reason: &str) {
        device.disconnected(reason);
    }

    fn restored(&mut self, device: &mut Self::Device, alone: Duration) -> Result<(), ProtocolError> {
        device.restored(alone);
        Ok(())
    }

    fn left(device: &mut Self::Device) {
        device.left();
    }

    fn header(bytes: &[u8]) -> Option<Header> {
        bytes.first_chunk().map(Header::parse)
    }

    fn payload_bytes(&self, header: Header, replies: &mut Replies) -> Result<usize, ProtocolError> {
        let max_bytes = if self.negotiated.is_some() { wire::MAX_MESSAGE_BYTES } else { wire::MAX_VERSION_BYTES };
        let size_bytes = header.size_bytes;
        if !(HEADER_BYTES..=max_bytes).contains(&(size_bytes as usize)) {
            return Err(ProtocolError::BadLength { size_bytes, min_bytes: HEADER_BYTES, max_bytes });
        }
        if !header.is_command {
            return Err(ProtocolError::NotACommand);
        }
        if self.negotiated.is_none() && header.command != command::VERSION {
            push(replies, header, Err(Errno::INVAL), None);
            return Err(ProtocolError::NotNegotiated(header.command));
        }
        Ok(size_bytes as usize - HEADER_BYTES)
    }

    fn message(
        &mut self,
        header: Header,
        payload: &[u8],
        fds: Vec<OwnedFd>,
        device: &mut Self::Device,
        replies: &mut Replies,
    ) -> Result<Option<String>, ProtocolError> {
        self.lasting = None;
        self.warning = None;
        let payload = Payload::parse(header.command, payload);
        let outcome = payload.and_then(|payload| self.handle(payload, fds, device)).unwrap_or_else(Outcome::Failed);
        let errno = match outcome {
            Outcome::Done(payload, fd) => {
                push(replies, header, Ok(&payload), fd);
                return Ok(self.warning.take());
            }
            Outcome::Failed(errno) | Outcome::Logged(errno, _) | Outcome::Fatal(errno, _) => errno,
        };
        push(replies, header, Err(errno), None);
        match outcome {
            _ if self.negotiated.is_none() => Err(ProtocolError::BadVersion(errno)),
            Outcome::Fatal(_, why) => Err(ProtocolError::Refused(why)),
            Outcome::Logged(_, why) => Ok(Some(format!("refused: {why}"))),
            _ => Ok(None),
        }
    }

    fn keeping(&mut self, number: u64) -> Keeping {
        self.lasting.take().map_or_else(Keeping::default, |lasting| self.kept.done(number, lasting))
    }

    fn owes_message(&self) -> bool {
        self.negotiated.is_none()
    }
}

impl ClientState {
    /// A client that said nothing yet.
    pub fn new(spec: Arc<DeviceSpec>) -> Self {
        Self { spec, negotiated: None, lasting: None, warning: None, kept: KeptMessages::default() }
    }

    /// Answers what the description of the device answers; asks the device about the rest.
    fn handle(&mut self, payload: Payload, mut fds: Vec<OwnedFd>, device: &mut dyn Device) -> Result<Outcome, Errno> {
        let (negotiated, payload) = match (self.negotiated, payload) {
            (None, Payload::Version { major, minor, json }) => {
                let (negotiated, payload) = version::negotiate(major, minor, &json)?;
                self.negotiated = Some(negotiated);
                self.lasting = Some(Lasting::Version);
                return Ok(Outcome::Done(payload, None));
            }
            (None, _) => return Err(Errno::INVAL),
            (Some(negotiated), payload) => (negotiated, payload),
        };
        let max_data_bytes = negotiated.max_data_bytes;
        let (shape, request) = match payload {
            Payload::Version { .. } => return Err(Errno::INVAL),
            Payload::GetInfo | Payload::GetRegionInfo { .. } | Payload::GetIrqInfo { .. } => {
                return self.describe(&payload, negotiated.client_max_fds > 0);
            }
            Payload::DmaMap(_) if fds.len() > 1 => return Err(Errno::INVAL),
            Payload::DmaMap(map) => match dma::admit(&map, fds.pop(), &self.spec.budget) {
                Ok((request, warning)) => {
                    self.warning = warning;
                    (Shape::Bare, request)
                }
                Err((errno, why)) => return Ok(Outcome::Logged(errno, why)),
            },
            Payload::DmaUnmap(unmap) => (Shape::Unmap(unmap), unmap_request(&unmap)?),
            Payload::SetIrqs(irqs) => {
                let irqs = self.spec.check_irqs(&irqs, fds)?;
                if let Err(errno) = dma::admit_eventfds(&irqs) {
                    return Ok(Outcome::Logged(errno, "an interrupt on something that is not an eventfd".into()));
                }
                (Shape::Bare, Request::SetIrqs(irqs))
            }
            Payload::RegionRead(access) => {
                self.spec.check_access(&access, max_data_bytes, false)?;
                let Access { region, offset_bytes, len_bytes } = access;
                (Shape::Read(access), Request::RegionRead { region, offset_bytes, len_bytes })
            }
            Payload::RegionWrite(access, data) => {
                self.spec.check_access(&access, max_data_bytes, true)?;
                let Access { region, offset_bytes, .. } = access;
                (Shape::Write(access), Request::RegionWrite { region, offset_bytes, data })
            }
            Payload::Reset if !self.spec.resettable => return Err(Errno::NOTSUP),
            Payload::Reset => (Shape::Bare, Request::Reset),
        };
        let lasting = lasting(&request);
        let reply = device.request(request);
        self.lasting = lasting.filter(|_| reply == Reply::Done);
        Ok(outcome(reply, &shape))
    }

    fn describe(&self, payload: &Payload, with_mmap: bool) -> Result<Outcome, Errno> {
        let spec = &self.spec;
        let payload = match *payload {
            Payload::GetRegionInfo { argsz, index } => {
                let (payload, with_fd) = spec.region_info(index, with_mmap)?.encode(argsz);
                let mmap = spec.region(index)?.mmap.as_ref().filter(|_| with_fd);
                return Ok(Outcome::Done(payload, mmap.map(|mmap| Arc::clone(&mmap.fd))));
            }
            Payload::GetIrqInfo { index } => {
                let irq = spec.irq(index)?;
                wire::irq_info(irq.flags(), index, irq.count)
            }
            _ => wire::device_info(spec.resettable, spec.regions.len() as u32, spec.irqs.len() as u32),
        };
        Ok(Outcome::Done(payload, None))
    }
}

/// The lasting effect of a request that is carried out, which the client's next server must know.
fn lasting(request: &Request) -> Option<Lasting> {
    match request {
        Request::DmaMap { iova, len_bytes, .. } => Some(Lasting::Map { iova: *iova, len_bytes: *len_bytes }),
        Request::DmaUnmap { iova, len_bytes } => Some(Lasting::Unmap { iova: *iova, len_bytes: *len_bytes }),
        Request::DmaUnmapAll => Some(Lasting::UnmapAll),
        Request::SetIrqs(SetIrqs { index, vectors, change: change @ (IrqChange::Assign(_) | IrqChange::Deassign) }) => {
            let assigned = matches!(change, IrqChange::Assign(_));
            Some(Lasting::Irqs { index: *index, vectors: vectors.clone(), assigned })
        }
        _ => None,
    }
}

/// What the device's answer means for the client.
fn outcome(reply: Reply, shape: &Shape) -> Outcome {
    let payload = match (reply, shape) {
        (Reply::Failed(errno), _) => return Outcome::Failed(errno),
        (Reply::Fatal(errno, why), _) => return Outcome::Fatal(errno, why),
        (Reply::Data(data), Shape::Read(access)) if data.len() as u64 == u64::from(access.len_bytes) => {
            access.encode(&data)
        }
        (Reply::Done, Shape::Bare) => Vec::new(),
        (Reply::Done, Shape::Unmap(unmap)) => unmap.encode(),
        (Reply::Done, Shape::Write(access)) => access.encode(&[]),
        // A device that answers something else than it was asked.
        (Reply::Done | Reply::Data(_), _) => return Outcome::Failed(Errno::IO),
    };
    Outcome::Done(payload, None)
}

fn push(replies: &mut Replies, header: Header, result: Result<&[u8], Errno>, fd: Option<Arc<OwnedFd>>) {
    if !header.no_reply {
        replies.push(wire::reply(header.message_id, header.command, result), fd);
    }
}

fn unmap_request(unmap: &DmaUnmap) -> Result<Request, Errno> {
    match *unmap {
        DmaUnmap { flags: DmaUnmap::ALL, iova: 0, len_bytes: 0, .. } => Ok(Request::DmaUnmapAll),
        DmaUnmap { flags: 0, iova, len_bytes, .. } if len_bytes > 0 => Ok(Request::DmaUnmap { iova, len_bytes }),
        DmaUnmap { flags: DmaUnmap::DIRTY_BITMAP, .. } => Err(Errno::NOTSUP),
        _ => Err(Errno::INVAL),
    }
}
