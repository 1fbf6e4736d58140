//! The client's side: messages right and wrong, descriptors, and a second reader of the stream.

use std::collections::VecDeque;

use arbitrary::Arbitrary;
use test_clients::vfio::{longs, message, words};
use vfio_user::wire::{HEADER_BYTES, command};

/// A message whose fields are mostly what a sane client would send.
#[derive(Debug, Arbitrary)]
pub struct Message {
    id: u8,
    no_reply: bool,
    /// What the header says more or less than the truth, bytes.
    size_lie: Option<i8>,
    /// Other flags, for a message that may not be a command.
    flags: Option<u32>,
    body: Body,
}

#[derive(Debug, Arbitrary)]
enum Body {
    Version { major: bool, json: Json },
    DmaMap { argsz: Argsz, flags: u8, offset: Number, iova: Number, len: Number },
    DmaUnmap { argsz: Argsz, flags: u8, iova: Number, len: Number },
    GetInfo { argsz: Argsz },
    GetRegionInfo { argsz: Argsz, index: Small },
    GetIrqInfo { argsz: Argsz, index: Small },
    SetIrqs { argsz: Argsz, data: u8, action: u8, index: Small, start: Small, count: Small, bools: Vec<u8> },
    RegionRead { region: Small, offset: Number, len: Length },
    RegionWrite { region: Small, offset: Number, len: Length, lie: Option<u16> },
    Reset,
    Other { command: u16, payload: Vec<u8> },
}

#[derive(Debug, Arbitrary)]
enum Json {
    Good,
    Empty,
    Unterminated,
    Number(u64),
    Raw(Vec<u8>),
}

#[derive(Debug, Arbitrary)]
enum Argsz {
    Enough,
    Exact,
    Any(u32),
}

#[derive(Debug, Arbitrary)]
enum Small {
    Low(u8),
    Any(u32),
}

#[derive(Debug, Arbitrary)]
enum Number {
    Pages(u8),
    Low(u16),
    High(u8),
    Any(u64),
}

#[derive(Debug, Arbitrary)]
enum Length {
    Word(u8),
    Some(u16),
    Most,
    TooMuch,
    Any(u32),
}

impl Small {
    fn value(&self) -> u32 {
        match *self {
            Self::Low(value) => (value % 12).into(),
            Self::Any(value) => value,
        }
    }
}

impl Number {
    fn value(&self) -> u64 {
        match *self {
            Self::Pages(pages) => u64::from(pages) << 12,
            Self::Low(value) => value.into(),
            Self::High(below) => u64::MAX - u64::from(below),
            Self::Any(value) => value,
        }
    }
}

impl Length {
    fn value(&self) -> u32 {
        match *self {
            Self::Word(value) => u32::from(value % 4) * 4,
            Self::Some(value) => value.into(),
            Self::Most => 65536,
            Self::TooMuch => 65537,
            Self::Any(value) => value,
        }
    }
}

fn argsz(how: &Argsz, exact: u32) -> u32 {
    match *how {
        Argsz::Enough => exact + 64,
        Argsz::Exact => exact,
        Argsz::Any(value) => value,
    }
}

fn version_payload(major: u16, json: &[u8]) -> Vec<u8> {
    [&major.to_ne_bytes(), &1u16.to_ne_bytes(), json].concat()
}

const JSON: &[u8] = b"{\"capabilities\":{\"max_msg_fds\":8,\"max_data_xfer_size\":1048576,\"pgsizes\":4096}}\0";

/// The first message of a sane client.
pub fn version() -> Vec<u8> {
    message(0, command::VERSION, 0, &version_payload(0, JSON))
}

impl Message {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (command, payload) = self.body.encode();
        let flags = self.flags.unwrap_or(if self.no_reply { 1 << 4 } else { 0 });
        let mut out = message(self.id.into(), command, flags, &payload);
        if let Some(lie) = self.size_lie {
            let size = (out.len() as u32).wrapping_add_signed(lie.into());
            out[4..8].copy_from_slice(&size.to_ne_bytes());
        }
        out
    }
}

impl Body {
    fn encode(&self) -> (u16, Vec<u8>) {
        match self {
            Self::Version { major, json } => {
                let json = match json {
                    Json::Good => JSON.to_vec(),
                    Json::Empty => Vec::new(),
                    Json::Unterminated => JSON[..JSON.len() - 1].to_vec(),
                    Json::Number(n) => format!("{{\"capabilities\":{{\"max_msg_fds\":{n}}}}}\0").into_bytes(),
                    Json::Raw(bytes) => bytes.clone(),
                };
                (command::VERSION, version_payload((*major).into(), &json))
            }
            Self::DmaMap { argsz: size, flags, offset, iova, len } => {
                let numbers = longs(&[offset.value(), iova.value(), len.value()]);
                (command::DMA_MAP, [words(&[argsz(size, 32), (*flags).into()]), numbers].concat())
            }
            Self::DmaUnmap { argsz: size, flags, iova, len } => {
                let numbers = longs(&[iova.value(), len.value()]);
                (command::DMA_UNMAP, [words(&[argsz(size, 24), (*flags % 4).into()]), numbers].concat())
            }
            Self::GetInfo { argsz: size } => (command::DEVICE_GET_INFO, words(&[argsz(size, 16), 0, 0, 0])),
            Self::GetRegionInfo { argsz: size, index } => {
                (command::DEVICE_GET_REGION_INFO, words(&[argsz(size, 32), 0, index.value(), 0, 0, 0, 0, 0]))
            }
            Self::GetIrqInfo { argsz: size, index } => {
                (command::DEVICE_GET_IRQ_INFO, words(&[argsz(size, 16), 0, index.value(), 0]))
            }
            Self::SetIrqs { argsz: size, data, action, index, start, count, bools } => {
                let flags = 1 << (data % 3) | 8 << (action % 3);
                let head = words(&[argsz(size, 20), flags, index.value(), start.value(), count.value()]);
                (command::DEVICE_SET_IRQS, [head, bools.clone()].concat())
            }
            Self::RegionRead { region, offset, len } => {
                let head = longs(&[offset.value()]);
                (command::REGION_READ, [head, words(&[region.value(), len.value()])].concat())
            }
            Self::RegionWrite { region, offset, len, lie } => {
                let data = vec![0x5a; len.value().min(65600) as usize];
                let says = lie.map_or(data.len() as u32, u32::from);
                let head = longs(&[offset.value()]);
                (command::REGION_WRITE, [head, words(&[region.value(), says]), data].concat())
            }
            Self::Reset => (command::DEVICE_RESET, Vec::new()),
            Self::Other { command, payload } => (*command, payload.clone()),
        }
    }
}

/// What the client said, and what it was told.
#[derive(Debug, Default)]
pub struct Sent {
    /// The message that is coming in.
    inbound: Vec<u8>,
    /// Identifier and command of messages without an answer.
    open: VecDeque<(u16, u16)>,
    /// The answer that is coming in.
    answer: Vec<u8>,
}

impl Sent {
    /// The connection was fed this.
    pub fn see(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.inbound.push(*byte);
            let half = |at: usize| u16::from_ne_bytes([self.inbound[at], self.inbound[at + 1]]);
            if self.inbound.len() == HEADER_BYTES && self.inbound[8] & 1 << 4 == 0 {
                self.open.push_back((half(0), half(2)));
            }
            if self.inbound.len() >= HEADER_BYTES && self.inbound.len() >= self.says_bytes() {
                self.inbound.clear();
            }
        }
    }

    fn says_bytes(&self) -> usize {
        u32::from_ne_bytes([self.inbound[4], self.inbound[5], self.inbound[6], self.inbound[7]]) as usize
    }

    /// The client read this. A descriptor may come with the answer to GET_REGION_INFO alone.
    pub fn answered(&mut self, bytes: &[u8], with_fd: bool) {
        assert!(!with_fd || self.answer.is_empty(), "a descriptor in the middle of an answer");
        self.answer.extend_from_slice(bytes);
        while let Some(header) = self.answer.first_chunk::<HEADER_BYTES>() {
            let [i0, i1, c0, c1, s0, s1, s2, s3, flags, ..] = *header;
            let size = u32::from_ne_bytes([s0, s1, s2, s3]) as usize;
            let name = (u16::from_ne_bytes([i0, i1]), u16::from_ne_bytes([c0, c1]));
            assert!(size >= HEADER_BYTES, "an answer of {size} bytes");
            if self.answer.len() < size {
                break;
            }
            assert!(flags == 1 || (flags == 0x21 && size == HEADER_BYTES), "answer flags {flags:#x}");
            assert!(!with_fd || name.1 == command::DEVICE_GET_REGION_INFO, "a descriptor with {name:?}");
            assert_eq!(self.open.pop_front(), Some(name), "an answer out of order");
            self.answer.drain(..size);
        }
    }

    /// Everything that was said in full was answered.
    pub fn check_all_answered(&self) {
        // The last message may be cut off; its header may be in already.
        let unfinished = usize::from(self.inbound.len() >= HEADER_BYTES);
        assert!(self.open.len() <= unfinished, "without an answer: {:?}", self.open);
        assert!(self.answer.is_empty(), "half an answer");
    }
}
