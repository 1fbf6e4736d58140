//! Message layouts: the header, the requests of a front end, and our replies.
//!
//! Layouts are those of QEMU's `docs/interop/vhost-user.rst`, in the byte order of the host, as it asks.
//! Parsing copies fields out one by one with bounds checks; nothing is cast.

use std::fmt;
use std::os::fd::OwnedFd;

/// Bytes of a message header: request, flags, size of the payload.
pub const HEADER_BYTES: usize = 12;
/// The longest payload that a client may send: all of a configuration space and what precedes it fit.
pub const MAX_PAYLOAD_BYTES: usize = 4096;
/// The configuration space of a virtio device ends before this offset.
pub const MAX_CONFIG_BYTES: u32 = 4096 - 256;

/// The virtio feature bit that says that protocol features can be negotiated.
pub const VHOST_USER_F_PROTOCOL_FEATURES: u64 = 1 << 30;

/// Protocol feature bits, the ones that the server has.
pub mod protocol_feature {
    #![allow(missing_docs)]
    pub const MQ: u64 = 1 << 0;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

const FLAG_VERSION_MASK: u32 = 0b11;
const FLAG_VERSION: u32 = 1;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;

/// The request to the client that says that configuration space changed (BACKEND_CONFIG_CHANGE_MSG).
const BACKEND_CONFIG_CHANGE: u32 = 2;
/// SET_VRING_KICK and its like: no descriptor comes along.
const NO_FD: u64 = 1 << 8;

/// The header of a client's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Number of the request.
    pub request: u32,
    /// The client wants to know how it went, even if the request has no reply of its own.
    pub need_reply: bool,
    /// Bytes that follow.
    pub payload_bytes: u32,
    /// Version and the other flags are as they must be.
    pub is_valid: bool,
}

impl Header {
    /// Takes a header apart. Nothing is judged here.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [r0, r1, r2, r3, f0, f1, f2, f3, s0, s1, s2, s3] = *bytes;
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        let known = FLAG_VERSION_MASK | FLAG_NEED_REPLY;
        Self {
            request: u32::from_ne_bytes([r0, r1, r2, r3]),
            need_reply: flags & FLAG_NEED_REPLY != 0,
            payload_bytes: u32::from_ne_bytes([s0, s1, s2, s3]),
            is_valid: flags & !known == 0 && flags & FLAG_VERSION_MASK == FLAG_VERSION,
        }
    }
}

/// A request's number as the specification writes it, for log lines.
pub fn name(request: u32) -> String {
    let name = match request {
        1 => "GET_FEATURES",
        2 => "SET_FEATURES",
        3 => "SET_OWNER",
        4 => "RESET_OWNER",
        5 => "SET_MEM_TABLE",
        6 => "SET_LOG_BASE",
        8 => "SET_VRING_NUM",
        9 => "SET_VRING_ADDR",
        10 => "SET_VRING_BASE",
        11 => "GET_VRING_BASE",
        12 => "SET_VRING_KICK",
        13 => "SET_VRING_CALL",
        14 => "SET_VRING_ERR",
        15 => "GET_PROTOCOL_FEATURES",
        16 => "SET_PROTOCOL_FEATURES",
        17 => "GET_QUEUE_NUM",
        18 => "SET_VRING_ENABLE",
        21 => "SET_BACKEND_REQ_FD",
        24 => "GET_CONFIG",
        25 => "SET_CONFIG",
        31 => "GET_INFLIGHT_FD",
        32 => "SET_INFLIGHT_FD",
        34 => "RESET_DEVICE",
        36 => "GET_MAX_MEM_SLOTS",
        37 => "ADD_MEM_REG",
        38 => "REM_MEM_REG",
        other => return format!("request {other}"),
    };
    name.into()
}

/// Whether a request has a reply of its own, which an acknowledgement would be taken for.
pub fn has_reply(request: u32) -> bool {
    matches!(request, 1 | 11 | 15 | 17 | 24 | 31 | 36)
}

/// A client's request, its fields as the client wrote them; only the number of descriptors was checked.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetBackendReqFd(OwnedFd),
    GetConfig(ConfigRange),
    SetConfig(ConfigRange, Vec<u8>),
    GetInflightFd(InflightPayload),
    SetInflightFd(InflightPayload, OwnedFd),
    ResetDevice,
    GetMaxMemSlots,
    Memory(MemoryRequest),
    GetVringBase { ring: u32 },
    SetVringKick { ring: u32, fd: Option<OwnedFd> },
    SetVring { ring: u32, setting: RingSetting },
}

/// A change of memory.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum MemoryRequest {
    SetMemTable(Vec<(RegionPayload, OwnedFd)>),
    AddMemReg(RegionPayload, OwnedFd),
    RemMemReg(RegionPayload),
}

/// What is set of a ring; the kick descriptor is not among it, because it starts the ring.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum RingSetting {
    Num(u32),
    Addr(RingAddresses),
    Base(u32),
    Call(Option<OwnedFd>),
    Err(Option<OwnedFd>),
    Enable(u32),
}

/// A memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RegionPayload {
    pub guest_addr: u64,
    pub len_bytes: u64,
    pub user_addr: u64,
    pub offset_bytes: u64,
}

impl RegionPayload {
    /// Whether both are at the same addresses, which is how a region is named.
    pub fn is_same_place(&self, other: &Self) -> bool {
        (self.guest_addr, self.user_addr, self.len_bytes) == (other.guest_addr, other.user_addr, other.len_bytes)
    }
}

impl fmt::Display for RegionPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guest_addr, len_bytes, user_addr, offset_bytes } = self;
        write!(f, "{guest_addr:#x}+{len_bytes:#x} (in the client {user_addr:#x}, in its file {offset_bytes:#x})")
    }
}

/// Where the parts of a ring are, in the client's address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RingAddresses {
    pub flags: u32,
    pub desc_table: u64,
    pub used_ring: u64,
    pub avail_ring: u64,
}

/// A part of the configuration space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ConfigRange {
    pub offset_bytes: u32,
    pub len_bytes: u32,
    pub flags: u32,
}

/// Where the log of requests in flight is, and of how many queues of which size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct InflightPayload {
    pub len_bytes: u64,
    pub offset_bytes: u64,
    pub queues: u16,
    pub queue_size: u16,
}

/// Why a message is not one of the protocol's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Malformed {
    #[error("the server does not know it")]
    Unknown,
    #[error("its payload has the wrong length")]
    Length,
    #[error("it came with the wrong number of file descriptors")]
    Descriptors,
    #[error("it has flags that are not known")]
    Flags,
}

impl Request {
    /// Takes a payload apart; descriptors that the request does not want are closed.
    ///
    /// # Errors
    /// The message is not one of the protocol's.
    pub fn parse(request: u32, payload: &[u8], fds: Vec<OwnedFd>) -> Result<Self, Malformed> {
        let mut fields = Fields { payload, fds };
        let parsed = fields.request(request)?;
        if !fields.payload.is_empty() {
            return Err(Malformed::Length);
        }
        if !fields.fds.is_empty() {
            return Err(Malformed::Descriptors);
        }
        Ok(parsed)
    }
}

fn set_vring<T>((ring, value): (u32, T), setting: impl FnOnce(T) -> RingSetting) -> Request {
    Request::SetVring { ring, setting: setting(value) }
}

/// Takes fields off the front of a payload, and descriptors off the front of those that came.
struct Fields<'a> {
    payload: &'a [u8],
    fds: Vec<OwnedFd>,
}

impl Fields<'_> {
    fn request(&mut self, request: u32) -> Result<Request, Malformed> {
        Ok(match request {
            1 => Request::GetFeatures,
            2 => Request::SetFeatures(self.u64()?),
            3 => Request::SetOwner,
            4 => Request::ResetOwner,
            5 => Request::Memory(self.mem_table()?),
            8 => set_vring(self.state()?, RingSetting::Num),
            9 => set_vring(self.ring_addresses()?, RingSetting::Addr),
            10 => set_vring(self.state()?, RingSetting::Base),
            11 => Request::GetVringBase { ring: self.state()?.0 },
            12 => self.ring_fd().map(|(ring, fd)| Request::SetVringKick { ring, fd })?,
            13 => set_vring(self.ring_fd()?, RingSetting::Call),
            14 => set_vring(self.ring_fd()?, RingSetting::Err),
            15 => Request::GetProtocolFeatures,
            16 => Request::SetProtocolFeatures(self.u64()?),
            17 => Request::GetQueueNum,
            18 => set_vring(self.state()?, RingSetting::Enable),
            21 => Request::SetBackendReqFd(self.fd()?),
            24 => self.config().map(|(range, _)| Request::GetConfig(range))?,
            25 => self.config().map(|(range, data)| Request::SetConfig(range, data))?,
            31 => Request::GetInflightFd(self.inflight()?),
            32 => Request::SetInflightFd(self.inflight()?, self.fd()?),
            34 => Request::ResetDevice,
            36 => Request::GetMaxMemSlots,
            37 => Request::Memory(MemoryRequest::AddMemReg(self.single_region()?, self.fd()?)),
            38 => {
                // Some clients send the region's descriptor along; the specification says to close it.
                self.fds.truncate(self.fds.len().saturating_sub(1));
                Request::Memory(MemoryRequest::RemMemReg(self.single_region()?))
            }
            _ => return Err(Malformed::Unknown),
        })
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.payload.split_first_chunk().ok_or(Malformed::Length)?;
        self.payload = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_ne_bytes)
    }

    fn state(&mut self) -> Result<(u32, u32), Malformed> {
        Ok((self.u32()?, self.u32()?))
    }

    fn fd(&mut self) -> Result<OwnedFd, Malformed> {
        if self.fds.is_empty() { Err(Malformed::Descriptors) } else { Ok(self.fds.remove(0)) }
    }

    fn ring_fd(&mut self) -> Result<(u32, Option<OwnedFd>), Malformed> {
        let value = self.u64()?;
        if value & !(NO_FD | 0xff) != 0 {
            return Err(Malformed::Flags);
        }
        let fd = if value & NO_FD == 0 { Some(self.fd()?) } else { None };
        Ok(((value & 0xff) as u32, fd))
    }

    fn region(&mut self) -> Result<RegionPayload, Malformed> {
        Ok(RegionPayload {
            guest_addr: self.u64()?,
            len_bytes: self.u64()?,
            user_addr: self.u64()?,
            offset_bytes: self.u64()?,
        })
    }

    fn single_region(&mut self) -> Result<RegionPayload, Malformed> {
        let _padding = self.u64()?;
        self.region()
    }

    fn mem_table(&mut self) -> Result<MemoryRequest, Malformed> {
        let (count, _padding) = self.state()?;
        if count as usize != self.fds.len() {
            return Err(Malformed::Descriptors);
        }
        let regions: Result<_, Malformed> = (0..count).map(|_| Ok((self.region()?, self.fd()?))).collect();
        regions.map(MemoryRequest::SetMemTable)
    }

    fn ring_addresses(&mut self) -> Result<(u32, RingAddresses), Malformed> {
        let (ring, flags) = self.state()?;
        let (desc_table, used_ring, avail_ring) = (self.u64()?, self.u64()?, self.u64()?);
        let _log = self.u64()?;
        Ok((ring, RingAddresses { flags, desc_table, used_ring, avail_ring }))
    }

    fn config(&mut self) -> Result<(ConfigRange, Vec<u8>), Malformed> {
        let range = ConfigRange { offset_bytes: self.u32()?, len_bytes: self.u32()?, flags: self.u32()? };
        let data = std::mem::take(&mut self.payload).to_vec();
        let end = range.offset_bytes.checked_add(range.len_bytes);
        if data.len() as u64 != u64::from(range.len_bytes) || end.is_none_or(|end| end > MAX_CONFIG_BYTES) {
            return Err(Malformed::Length);
        }
        Ok((range, data))
    }

    fn inflight(&mut self) -> Result<InflightPayload, Malformed> {
        let payload = InflightPayload {
            len_bytes: self.u64()?,
            offset_bytes: self.u64()?,
            queues: self.u16()?,
            queue_size: self.u16()?,
        };
        // The C structure's padding; clients that pack it leave it out.
        if self.payload.len() == 4 {
            self.payload = &[];
        }
        Ok(payload)
    }
}

/// A reply to `request` with this payload.
pub fn reply(request: u32, payload: &[u8]) -> Vec<u8> {
    message(request, FLAG_VERSION | FLAG_REPLY, payload)
}

/// The message to the client that says that configuration space changed.
pub fn config_change() -> Vec<u8> {
    message(BACKEND_CONFIG_CHANGE, FLAG_VERSION, &[])
}

fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    // Payloads are ours and bounded by MAX_PAYLOAD_BYTES.
    let words = [request, flags, payload.len() as u32];
    let mut out: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    out.extend_from_slice(payload);
    out
}

impl InflightPayload {
    /// As it goes out, with the C structure's padding.
    pub fn encode(&self) -> Vec<u8> {
        let longs = [self.len_bytes, self.offset_bytes].into_iter().flat_map(u64::to_ne_bytes);
        let shorts = [self.queues, self.queue_size, 0, 0].into_iter().flat_map(u16::to_ne_bytes);
        longs.chain(shorts).collect()
    }
}

impl ConfigRange {
    /// As it goes out, with the bytes read.
    pub fn encode(&self, data: &[u8]) -> Vec<u8> {
        let words = [self.offset_bytes, data.len() as u32, self.flags];
        words.iter().flat_map(|word| word.to_ne_bytes()).chain(data.iter().copied()).collect()
    }
}
