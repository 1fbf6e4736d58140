//! The client's side: messages right and wrong.

use arbitrary::Arbitrary;
use test_clients::vhost::*;

use super::device::{FEATURES, QUEUES};
use crate::descriptors::Fd;

/// Where the client has its memory; the guest has it elsewhere.
const USER: u64 = 0x7f00_0000_0000;
/// Bytes from one region to the next, and of the file behind each.
const STRIDE: u64 = 1 << 20;

/// A request whose fields are mostly what a sane client would send.
#[derive(Debug, Arbitrary)]
pub enum Message {
    Get(u8),
    SetFeatures(Features),
    SetProtocolFeatures(Features),
    SetOwner,
    ResetOwner,
    ResetDevice,
    SetMemTable(Vec<Region>),
    AddMemReg(Region),
    RemMemReg(Region),
    SetVringNum { ring: Index, size: Size },
    SetVringAddr { ring: Index, desc: Address, used: Address, avail: Address, flags: Option<u32> },
    SetVringBase { ring: Index, base: u16, high: Option<u16> },
    GetVringBase { ring: Index },
    SetVringFd { which: u8, ring: u8, with_fd: bool },
    SetVringEnable { ring: Index, value: u8 },
    SetBackendReqFd,
    GetConfig { offset: u16, len: u8, lie: Option<u32> },
    SetConfig { offset: u16, data: Vec<u8> },
    GetInflightFd { queues: u8, size: Size },
    SetInflightFd { len: u32, offset: u8, queues: u8, size: Size },
    Other { request: u8, payload: Vec<u8> },
}

#[derive(Debug, Arbitrary)]
pub enum Features {
    All,
    WithoutProtocol,
    Any(u64),
}

#[derive(Debug, Arbitrary)]
pub enum Index {
    Low(u8),
    Any(u32),
}

#[derive(Debug, Arbitrary)]
pub enum Size {
    Power(u8),
    Any(u16),
}

#[derive(Debug, Arbitrary)]
pub enum Address {
    /// A multiple of 16 in a region.
    Inside {
        region: u8,
        offset: u16,
    },
    Any(u64),
}

#[derive(Debug, Arbitrary)]
pub enum Region {
    /// One of a few that don't overlap.
    Slot(u8),
    /// Pages that may overlap others.
    Pages {
        guest: u8,
        pages: u8,
        user: u8,
        offset: u8,
    },
    Any {
        guest: u64,
        len: u64,
        user: u64,
        offset: u64,
    },
}

impl Features {
    fn value(&self, all: u64, without: u64) -> u64 {
        match *self {
            Self::All => all,
            Self::WithoutProtocol => without,
            Self::Any(bits) => bits,
        }
    }
}

impl Index {
    fn value(&self) -> u32 {
        match *self {
            Self::Low(value) => u32::from(value) % (u32::from(QUEUES) + 1),
            Self::Any(value) => value,
        }
    }
}

impl Size {
    fn value(&self) -> u16 {
        match *self {
            Self::Power(power) => 1 << (power % 9),
            Self::Any(value) => value,
        }
    }
}

impl Address {
    fn value(&self) -> u64 {
        match *self {
            Self::Inside { region, offset } => USER + u64::from(region % 4) * STRIDE + 16 * u64::from(offset),
            Self::Any(value) => value,
        }
    }
}

impl Region {
    fn encode(&self) -> Vec<u8> {
        let page = |pages: u8| u64::from(pages) << 12;
        longs(&match *self {
            Self::Slot(slot) => {
                let at = u64::from(slot % 8) * STRIDE;
                [at, STRIDE, USER + at, 0]
            }
            Self::Pages { guest, pages, user, offset } => [page(guest), page(pages), USER + page(user), page(offset)],
            Self::Any { guest, len, user, offset } => [guest, len, user, offset],
        })
    }
}

/// The first messages of a sane client.
pub fn negotiation() -> Vec<Message> {
    vec![
        Message::SetProtocolFeatures(Features::All),
        Message::SetFeatures(Features::All),
        Message::SetMemTable(vec![Region::Slot(0), Region::Slot(1)]),
    ]
}

/// The messages with which a sane client starts a ring.
pub fn start(ring: u8, size: u8, region: u8) -> Vec<Message> {
    let index = || Index::Low(ring);
    let at = |offset| Address::Inside { region: region % 2, offset };
    vec![
        Message::SetVringNum { ring: index(), size: Size::Power(size) },
        Message::SetVringBase { ring: index(), base: 0, high: None },
        Message::SetVringAddr { ring: index(), desc: at(0), used: at(0x200), avail: at(0x100), flags: None },
        Message::SetVringFd { which: 1, ring, with_fd: true },
        Message::SetVringFd { which: 0, ring, with_fd: true },
        Message::SetVringEnable { ring: index(), value: 1 },
    ]
}

impl Message {
    /// Its bytes.
    pub fn encode(&self, need_reply: bool) -> Vec<u8> {
        let (request, payload) = self.payload();
        message(request, if need_reply { VERSION | NEED_REPLY } else { VERSION }, &payload)
    }

    /// The descriptors that belong to it.
    pub fn fds(&self) -> &[Fd] {
        match self {
            Self::SetMemTable(regions) => &[const { Fd::Memfd }; 8][..regions.len().min(8)],
            Self::AddMemReg(_) | Self::SetInflightFd { .. } => &[Fd::Memfd],
            Self::SetVringFd { with_fd: true, .. } => &[Fd::Eventfd],
            Self::SetBackendReqFd => &[Fd::Socket],
            _ => &[],
        }
    }

    fn payload(&self) -> (u32, Vec<u8>) {
        match self {
            Self::Get(which) => (
                [GET_FEATURES, GET_PROTOCOL_FEATURES, GET_QUEUE_NUM, GET_MAX_MEM_SLOTS][usize::from(which % 4)],
                Vec::new(),
            ),
            Self::SetFeatures(features) => {
                (SET_FEATURES, longs(&[features.value(FEATURES | F_PROTOCOL_FEATURES, FEATURES)]))
            }
            Self::SetProtocolFeatures(features) => {
                (SET_PROTOCOL_FEATURES, longs(&[features.value(PROTOCOL_FEATURES, 1 << 3)]))
            }
            Self::SetOwner => (SET_OWNER, Vec::new()),
            Self::ResetOwner => (RESET_OWNER, Vec::new()),
            Self::ResetDevice => (RESET_DEVICE, Vec::new()),
            Self::SetMemTable(regions) => {
                let regions: Vec<Vec<u8>> = regions.iter().take(8).map(Region::encode).collect();
                (SET_MEM_TABLE, [words(&[regions.len() as u32, 0]), regions.concat()].concat())
            }
            Self::AddMemReg(region) => (ADD_MEM_REG, [longs(&[0]), region.encode()].concat()),
            Self::RemMemReg(region) => (REM_MEM_REG, [longs(&[0]), region.encode()].concat()),
            Self::SetVringNum { ring, size } => (SET_VRING_NUM, words(&[ring.value(), size.value().into()])),
            Self::SetVringAddr { ring, desc, used, avail, flags } => {
                let head = words(&[ring.value(), flags.unwrap_or(0)]);
                (SET_VRING_ADDR, [head, longs(&[desc.value(), used.value(), avail.value(), 0])].concat())
            }
            Self::SetVringBase { ring, base, high } => {
                (SET_VRING_BASE, words(&[ring.value(), u32::from(*base) | u32::from(high.unwrap_or(0)) << 16]))
            }
            Self::GetVringBase { ring } => (GET_VRING_BASE, words(&[ring.value(), 0])),
            Self::SetVringFd { which, ring, with_fd } => {
                let no_fd = if *with_fd { 0 } else { 1 << 8 };
                (SET_VRING_KICK + u32::from(which % 3), longs(&[u64::from(ring % 5) | no_fd]))
            }
            Self::SetVringEnable { ring, value } => (SET_VRING_ENABLE, words(&[ring.value(), (value % 3).into()])),
            Self::SetBackendReqFd => (SET_BACKEND_REQ_FD, Vec::new()),
            Self::GetConfig { offset, len, lie } => {
                let head = words(&[(*offset).into(), lie.unwrap_or((*len).into()), 0]);
                (GET_CONFIG, [head, vec![0; usize::from(*len)]].concat())
            }
            Self::SetConfig { offset, data } => {
                (SET_CONFIG, [words(&[(*offset).into(), data.len() as u32, 0]), data.clone()].concat())
            }
            Self::GetInflightFd { queues, size } => {
                (GET_INFLIGHT_FD, inflight(0, 0, u16::from(queues % 6), size.value()))
            }
            Self::SetInflightFd { len, offset, queues, size } => (
                SET_INFLIGHT_FD,
                inflight((*len).into(), u64::from(*offset) << 10, u16::from(queues % 6), size.value()),
            ),
            Self::Other { request, payload } => ((*request).into(), payload.clone()),
        }
    }
}
