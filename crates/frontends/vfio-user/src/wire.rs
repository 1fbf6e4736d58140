//! Message layouts: the header, the commands that a client sends, and our replies.
//!
//! Layouts are those of the vfio-user specification 0.9, in the byte order of the host, as the
//! specification asks. Parsing copies fields out one by one with bounds checks; nothing is cast.

use rustix::io::Errno;

/// Bytes of a message header.
pub const HEADER_BYTES: usize = 16;
/// The most data that one region access may carry; told to the client as `max_data_xfer_size`.
pub const MAX_DATA_BYTES: u32 = 64 * 1024;
/// The most file descriptors that one message may carry; told to the client as `max_msg_fds`. QEMU
/// refuses a server that says more than 16.
pub const MAX_MSG_FDS: usize = 16;
/// The longest message that a client may send: a region write with all the data that it may carry.
pub const MAX_MESSAGE_BYTES: usize = HEADER_BYTES + ACCESS_BYTES + MAX_DATA_BYTES as usize;
/// The longest first message: a VERSION with a generous list of capabilities.
pub const MAX_VERSION_BYTES: usize = 4096;

/// Bytes of `offset, region, count`, which region accesses and their replies begin with.
const ACCESS_BYTES: usize = 16;
/// Bytes of `struct vfio_region_info` of `<linux/vfio.h>`.
const REGION_INFO_BYTES: u32 = 32;
/// Bytes of the fixed part of DMA_MAP, DMA_UNMAP, DEVICE_GET_INFO, GET_IRQ_INFO and SET_IRQS.
const DMA_MAP_BYTES: u32 = 32;
const DMA_UNMAP_BYTES: u32 = 24;
const DEVICE_INFO_BYTES: u32 = 16;
const IRQ_INFO_BYTES: u32 = 16;
const SET_IRQS_BYTES: u32 = 20;

const FLAG_TYPE_MASK: u32 = 0xf;
const FLAG_TYPE_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

/// Command numbers that the server answers; all others get `ENOTSUP`.
pub mod command {
    #![allow(missing_docs)]
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DEVICE_RESET: u16 = 13;
}

/// The header of a command message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The client's own number for it; not necessarily unique.
    pub message_id: u16,
    /// What it asks for.
    pub command: u16,
    /// The whole message with this header, bytes.
    pub size_bytes: u32,
    /// The client wants no reply.
    pub no_reply: bool,
    /// The type bits say that it is a command.
    pub is_command: bool,
}

impl Header {
    /// Takes a header apart. Nothing is judged here.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [i0, i1, c0, c1, s0, s1, s2, s3, f0, f1, f2, f3, ..] = *bytes;
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        Self {
            message_id: u16::from_ne_bytes([i0, i1]),
            command: u16::from_ne_bytes([c0, c1]),
            size_bytes: u32::from_ne_bytes([s0, s1, s2, s3]),
            no_reply: flags & FLAG_NO_REPLY != 0,
            is_command: flags & FLAG_TYPE_MASK == 0,
        }
    }
}

/// A reply with `payload`, or, with an error, of a header alone.
pub fn reply(message_id: u16, command: u16, result: Result<&[u8], Errno>) -> Vec<u8> {
    let (flags, error, payload) = match result {
        Ok(payload) => (FLAG_TYPE_REPLY, 0, payload),
        Err(errno) => (FLAG_TYPE_REPLY | FLAG_ERROR, errno.raw_os_error().unsigned_abs(), &[][..]),
    };
    let mut out = Vec::with_capacity(HEADER_BYTES + payload.len());
    out.extend_from_slice(&message_id.to_ne_bytes());
    out.extend_from_slice(&command.to_ne_bytes());
    // Payloads are ours and bounded by MAX_MESSAGE_BYTES.
    out.extend_from_slice(&((HEADER_BYTES + payload.len()) as u32).to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&error.to_ne_bytes());
    out.extend_from_slice(payload);
    out
}

/// Takes fields off the front of a payload; a missing one is `EINVAL`.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, Errno> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_ne_bytes)
    }

    /// An `argsz` field, which must be at least `min`.
    fn argsz(&mut self, min: u32) -> Result<u32, Errno> {
        self.u32().and_then(|argsz| if argsz < min { Err(Errno::INVAL) } else { Ok(argsz) })
    }
}

/// A command's payload, its fields as the client wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// VERSION: `json` is what follows the numbers, with its terminating NUL.
    Version {
        /// Proposed major version.
        major: u16,
        /// Proposed minor version.
        minor: u16,
        /// Capabilities; may be empty.
        json: Vec<u8>,
    },
    /// DMA_MAP.
    DmaMap(DmaMap),
    /// DMA_UNMAP.
    DmaUnmap(DmaUnmap),
    /// DEVICE_GET_INFO.
    GetInfo,
    /// DEVICE_GET_REGION_INFO.
    GetRegionInfo {
        /// The longest reply payload that the client takes, bytes.
        argsz: u32,
        /// Which region.
        index: u32,
    },
    /// DEVICE_GET_IRQ_INFO.
    GetIrqInfo {
        /// Which interrupt type.
        index: u32,
    },
    /// DEVICE_SET_IRQS; eventfds travel beside it.
    SetIrqs(SetIrqsPayload),
    /// REGION_READ.
    RegionRead(Access),
    /// REGION_WRITE.
    RegionWrite(Access, Vec<u8>),
    /// DEVICE_RESET.
    Reset,
}

/// Fields of DMA_MAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaMap {
    /// See [`DmaMap::READABLE`] and its neighbours.
    pub flags: u32,
    /// Offset in the file.
    pub offset_bytes: u64,
    /// Where the device sees it.
    pub iova: u64,
    /// Its length.
    pub len_bytes: u64,
}

impl DmaMap {
    /// The device may read the range.
    pub const READABLE: u32 = 1;
    /// The device may write the range.
    pub const WRITABLE: u32 = 1 << 1;
    /// The range is to be accessed by mmap (a later addition: implied where a descriptor comes along).
    pub const MMAP: u32 = 1 << 2;
}

/// Fields of DMA_UNMAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaUnmap {
    /// As sent; goes back in the reply.
    pub argsz: u32,
    /// See [`DmaUnmap::DIRTY_BITMAP`] and [`DmaUnmap::ALL`].
    pub flags: u32,
    /// Start of the range.
    pub iova: u64,
    /// Its length.
    pub len_bytes: u64,
}

impl DmaUnmap {
    /// The client wants a bitmap of dirty pages.
    pub const DIRTY_BITMAP: u32 = 1;
    /// Every range is meant; address and size are 0.
    pub const ALL: u32 = 1 << 1;

    /// The reply's payload: the request's own.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = words(&[self.argsz, self.flags]);
        out.extend_from_slice(&self.iova.to_ne_bytes());
        out.extend_from_slice(&self.len_bytes.to_ne_bytes());
        out
    }
}

/// Fields of DEVICE_SET_IRQS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetIrqsPayload {
    /// One DATA and one ACTION flag.
    pub flags: u32,
    /// Interrupt type.
    pub index: u32,
    /// First interrupt of the type.
    pub start: u32,
    /// How many.
    pub count: u32,
    /// One byte an interrupt, with DATA_BOOL.
    pub bools: Vec<u8>,
}

/// Which bytes of which region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Offset in the region.
    pub offset_bytes: u64,
    /// The region.
    pub region: u32,
    /// How many bytes.
    pub len_bytes: u32,
}

impl Access {
    /// A reply's payload: the access and, for reads, what was read.
    pub fn encode(&self, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(ACCESS_BYTES + data.len());
        out.extend_from_slice(&self.offset_bytes.to_ne_bytes());
        out.extend_from_slice(&self.region.to_ne_bytes());
        out.extend_from_slice(&self.len_bytes.to_ne_bytes());
        out.extend_from_slice(data);
        out
    }
}

impl Payload {
    /// Parses the payload of `command`.
    ///
    /// # Errors
    /// `ENOTSUP` for commands that the server does not know, `EINVAL` for payloads that are too short
    /// or whose `argsz` is.
    pub fn parse(command: u16, bytes: &[u8]) -> Result<Self, Errno> {
        let mut fields = Fields(bytes);
        Ok(match command {
            command::VERSION => Self::Version { major: fields.u16()?, minor: fields.u16()?, json: fields.0.to_vec() },
            command::DMA_MAP => {
                fields.argsz(DMA_MAP_BYTES)?;
                let (flags, offset_bytes) = (fields.u32()?, fields.u64()?);
                Self::DmaMap(DmaMap { flags, offset_bytes, iova: fields.u64()?, len_bytes: fields.u64()? })
            }
            command::DMA_UNMAP => {
                let (argsz, flags) = (fields.argsz(DMA_UNMAP_BYTES)?, fields.u32()?);
                Self::DmaUnmap(DmaUnmap { argsz, flags, iova: fields.u64()?, len_bytes: fields.u64()? })
            }
            command::DEVICE_GET_INFO => {
                fields.argsz(DEVICE_INFO_BYTES)?;
                Self::GetInfo
            }
            command::DEVICE_GET_REGION_INFO => {
                let (argsz, _flags) = (fields.argsz(REGION_INFO_BYTES)?, fields.u32()?);
                Self::GetRegionInfo { argsz, index: fields.u32()? }
            }
            command::DEVICE_GET_IRQ_INFO => {
                let (_argsz, _flags) = (fields.argsz(IRQ_INFO_BYTES)?, fields.u32()?);
                Self::GetIrqInfo { index: fields.u32()? }
            }
            command::DEVICE_SET_IRQS => {
                let (_argsz, flags, index) = (fields.argsz(SET_IRQS_BYTES)?, fields.u32()?, fields.u32()?);
                let (start, count) = (fields.u32()?, fields.u32()?);
                Self::SetIrqs(SetIrqsPayload { flags, index, start, count, bools: fields.0.to_vec() })
            }
            command::REGION_READ => Self::RegionRead(Self::access(&mut fields)?),
            command::REGION_WRITE => {
                let access = Self::access(&mut fields)?;
                if fields.0.len() as u64 != u64::from(access.len_bytes) {
                    return Err(Errno::INVAL);
                }
                Self::RegionWrite(access, fields.0.to_vec())
            }
            command::DEVICE_RESET => Self::Reset,
            _ => return Err(Errno::NOTSUP),
        })
    }

    fn access(fields: &mut Fields<'_>) -> Result<Access, Errno> {
        Ok(Access { offset_bytes: fields.u64()?, region: fields.u32()?, len_bytes: fields.u32()? })
    }
}

/// Payload of a DEVICE_GET_INFO reply.
pub fn device_info(resettable: bool, regions: u32, irqs: u32) -> Vec<u8> {
    const RESET: u32 = 1;
    const PCI: u32 = 1 << 1;
    words(&[DEVICE_INFO_BYTES, PCI | if resettable { RESET } else { 0 }, regions, irqs])
}

/// Payload of a DEVICE_GET_IRQ_INFO reply.
pub fn irq_info(flags: u32, index: u32, count: u32) -> Vec<u8> {
    words(&[IRQ_INFO_BYTES, flags, index, count])
}

/// What a DEVICE_GET_REGION_INFO reply tells.
#[derive(Debug, Clone, Copy)]
pub struct RegionInfo<'a> {
    /// `VFIO_REGION_INFO_FLAG_READ` (1), `_WRITE` (2).
    pub access_flags: u32,
    /// The region.
    pub index: u32,
    /// Its length.
    pub size_bytes: u64,
    /// Where the region's byte 0 would be in the file behind it.
    pub file_offset_bytes: u64,
    /// Offsets and lengths of what can be mapped; empty if nothing can.
    pub areas: &'a [(u64, u64)],
}

impl RegionInfo<'_> {
    /// The payload, and whether the file descriptor goes along. A client whose `argsz` is too small
    /// gets the fixed part, which names the size that it should ask with.
    pub fn encode(&self, argsz: u32) -> (Vec<u8>, bool) {
        const FLAG_MMAP: u32 = 1 << 2;
        const FLAG_CAPS: u32 = 1 << 3;
        const CAP_SPARSE_MMAP: u16 = 1;
        const CAP_HEADER_BYTES: u32 = 16;
        let areas = self.areas.len() as u32;
        let caps_bytes = if areas == 0 { 0 } else { CAP_HEADER_BYTES + 16 * areas };
        let full_bytes = REGION_INFO_BYTES + caps_bytes;
        let with_caps = areas > 0 && argsz >= full_bytes;
        let mut flags = self.access_flags;
        if areas > 0 {
            flags |= FLAG_MMAP;
        }
        if with_caps {
            flags |= FLAG_CAPS;
        }
        let cap_offset = if with_caps { REGION_INFO_BYTES } else { 0 };
        let mut out = words(&[full_bytes, flags, self.index, cap_offset]);
        out.extend_from_slice(&self.size_bytes.to_ne_bytes());
        out.extend_from_slice(&self.file_offset_bytes.to_ne_bytes());
        if with_caps {
            out.extend_from_slice(&CAP_SPARSE_MMAP.to_ne_bytes());
            out.extend_from_slice(&1u16.to_ne_bytes());
            // No next capability, the number of areas, and a reserved word.
            out.extend_from_slice(&words(&[0, areas, 0]));
            for (offset_bytes, len_bytes) in self.areas {
                out.extend_from_slice(&offset_bytes.to_ne_bytes());
                out.extend_from_slice(&len_bytes.to_ne_bytes());
            }
        }
        (out, with_caps)
    }
}

/// Payload of a VERSION reply.
pub fn version(major: u16, minor: u16, json: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + json.len());
    out.extend_from_slice(&major.to_ne_bytes());
    out.extend_from_slice(&minor.to_ne_bytes());
    out.extend_from_slice(json.as_bytes());
    out.push(0);
    out
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
