//! What a command means, read from the specification a second time and as plainly as possible.

use std::collections::BTreeMap;

use guest_memory::Access;
use nvme_controller::ControllerConfig;
use nvme_spec::data::{DsmRange, SglDescriptor, psdt, sgl_type};
use nvme_spec::opcode::{dsm, nvm, rw};
use nvme_spec::{NSID_ALL, Sqe};

use super::namespaces::Namespace;
use super::ram::{PAGE_BYTES, Piece, Ram};

/// The most SGL descriptors that a controller follows.
const MAX_DESCRIPTORS: u64 = 1024;

/// What the device is to do for a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Read {
        offset: u64,
        into: Vec<(usize, Piece)>,
    },
    Write {
        offset: u64,
        from: Vec<(usize, Piece)>,
        fua: bool,
    },
    WriteZeroes {
        offset: u64,
        len_bytes: u64,
        fua: bool,
    },
    Discard {
        offset: u64,
        len_bytes: u64,
    },
    Flush,
    /// Read and compare with what the guest had when the command was fetched.
    Compare {
        offset: u64,
        with: Vec<u8>,
    },
    Verify {
        offset: u64,
        len_bytes: u64,
    },
    /// A step of Format.
    Erase {
        offset: u64,
        len_bytes: u64,
    },
}

impl Part {
    /// Guest memory that it uses until it is done.
    pub fn pieces(&self) -> &[(usize, Piece)] {
        match self {
            Self::Read { into: pieces, .. } | Self::Write { from: pieces, .. } => pieces,
            _ => &[],
        }
    }
}

/// What must become of an I/O command.
#[derive(Debug)]
pub enum Meaning {
    Rejected,
    /// Success without device work.
    Nothing,
    Device(Part),
    /// One after the other.
    Stream(Vec<Part>),
}

/// What an I/O command is read against.
pub struct Context<'a> {
    pub ram: &'a Ram,
    pub config: &'a ControllerConfig,
    pub namespaces: &'a BTreeMap<u32, Namespace>,
}

impl Context<'_> {
    /// `None`: to be rejected.
    pub fn io(&self, sqe: &Sqe) -> Meaning {
        self.understand(sqe).unwrap_or(Meaning::Rejected)
    }

    fn understand(&self, sqe: &Sqe) -> Option<Meaning> {
        if sqe.fuse() != 0 {
            return None;
        }
        if sqe.nsid == NSID_ALL && sqe.opc == nvm::FLUSH {
            return Some(Meaning::Device(Part::Flush));
        }
        let namespace = self.namespaces.get(&sqe.nsid).filter(|it| it.formatting.is_none() && !it.cut_short)?;
        let range = |slba, blocks| range(namespace, slba, blocks);
        let writable = !namespace.read_only;
        let blocks = u64::from(sqe.nlb()) + 1;
        let fua = sqe.cdw12 & rw::FUA != 0 && self.config.volatile_write_cache;
        let len_bytes = blocks << namespace.lba_shift;
        let short = len_bytes <= self.config.max_transfer_bytes.into();
        let part = match sqe.opc {
            nvm::READ if short => {
                let offset = range(sqe.slba(), blocks)?;
                Part::Read { offset, into: self.data(sqe, len_bytes, Access::Write)? }
            }
            nvm::WRITE if short && writable && sqe.cdw12 & rw::DTYPE == 0 => {
                let offset = range(sqe.slba(), blocks)?;
                Part::Write { offset, from: self.data(sqe, len_bytes, Access::Read)?, fua }
            }
            nvm::COMPARE if short => {
                let offset = range(sqe.slba(), blocks)?;
                let from = self.data(sqe, len_bytes, Access::Read)?;
                let with = from.iter().flat_map(|(_, piece)| self.ram.expected(piece).to_vec()).collect();
                Part::Compare { offset, with }
            }
            nvm::VERIFY if short => Part::Verify { offset: range(sqe.slba(), blocks)?, len_bytes },
            nvm::WRITE_ZEROES if self.config.write_zeroes && writable => {
                Part::WriteZeroes { offset: range(sqe.slba(), blocks)?, len_bytes, fua }
            }
            nvm::FLUSH => Part::Flush,
            nvm::DATASET_MANAGEMENT if self.config.discard => return self.dataset_management(sqe, namespace),
            _ => return None,
        };
        Some(Meaning::Device(part))
    }

    fn dataset_management(&self, sqe: &Sqe, namespace: &Namespace) -> Option<Meaning> {
        let deallocates = sqe.cdw11 & dsm::AD != 0;
        if deallocates && namespace.read_only {
            return None;
        }
        let count = u64::from(sqe.cdw10 & 0xff) + 1;
        let pieces = self.data(sqe, count * 16, Access::Read)?;
        let bytes: Vec<u8> = pieces.iter().flat_map(|(_, piece)| self.ram.expected(piece).to_vec()).collect();
        let mut parts = Vec::new();
        for raw in bytes.chunks_exact(16) {
            let range: DsmRange = bytemuck::pod_read_unaligned(raw);
            let offset = self::range(namespace, range.slba, range.nlb.into())?;
            if range.nlb > 0 {
                parts.push(Part::Discard { offset, len_bytes: u64::from(range.nlb) << namespace.lba_shift });
            }
        }
        let idle = !deallocates || parts.is_empty();
        Some(if idle { Meaning::Nothing } else { Meaning::Stream(parts) })
    }

    fn data(&self, sqe: &Sqe, len_bytes: u64, access: Access) -> Option<Vec<(usize, Piece)>> {
        let list = match sqe.psdt() {
            psdt::PRP => prp(self.ram, sqe.dptr, len_bytes)?,
            psdt::SGL => sgl(self.ram, sqe.dptr, len_bytes)?,
            _ => return None,
        };
        pieces(self.ram, &list, access)
    }
}

/// Where blocks are on the device, if all of them are the namespace's.
fn range(namespace: &Namespace, slba: u64, blocks: u64) -> Option<u64> {
    let end = slba.checked_add(blocks)?;
    let shift = namespace.lba_shift;
    (end <= namespace.size_bytes >> shift).then(|| namespace.base_bytes + (slba << shift))
}

/// The guest memory that an admin command's PRPs name.
pub fn admin_data(ram: &Ram, sqe: &Sqe, len_bytes: u64, access: Access) -> Option<Vec<(usize, Piece)>> {
    pieces(ram, &prp(ram, sqe.dptr, len_bytes)?, access)
}

fn pieces(ram: &Ram, list: &[(u64, u64)], access: Access) -> Option<Vec<(usize, Piece)>> {
    let mut all = Vec::new();
    for (iova, len_bytes) in list {
        all.extend(ram.pieces(*iova, *len_bytes, access)?);
    }
    Some(all)
}

/// Addresses and lengths that PRP entries name.
fn prp(ram: &Ram, [first, second]: [u64; 2], len_bytes: u64) -> Option<Vec<(u64, u64)>> {
    let page_bytes = PAGE_BYTES as u64;
    let entry = |at: u64| Some(u64::from_le_bytes(ram.load(at, 8)?.try_into().ok()?));
    let page = |at: u64| at.is_multiple_of(page_bytes).then_some(at);
    if first % 4 != 0 {
        return None;
    }
    let mut list = vec![(first, len_bytes.min(page_bytes - first % page_bytes))];
    let mut rest = len_bytes - list[0].1;
    if rest > 0 && rest <= page_bytes {
        list.push((page(second)?, rest));
        return Some(list);
    }
    let mut at = second;
    if rest > 0 && at % 8 != 0 {
        return None;
    }
    while rest > 0 {
        if at % page_bytes == page_bytes - 8 && rest > page_bytes {
            at = page(entry(at)?)?;
            continue;
        }
        let n = rest.min(page_bytes);
        list.push((page(entry(at)?)?, n));
        (at, rest) = (at.wrapping_add(8), rest - n);
    }
    Some(list)
}

/// Addresses and lengths that an SGL names.
fn sgl(ram: &Ram, dptr: [u64; 2], len_bytes: u64) -> Option<Vec<(u64, u64)>> {
    let mut list = Vec::new();
    let mut descriptor: SglDescriptor = bytemuck::cast(dptr);
    let mut budget = MAX_DESCRIPTORS;
    loop {
        let (kind, length) = (descriptor.sgl_type(), u64::from(descriptor.length));
        if descriptor.sub_type() != 0 {
            return None;
        }
        if kind == sgl_type::DATA_BLOCK {
            list.push(block(&descriptor)?);
            break;
        }
        if ![sgl_type::SEGMENT, sgl_type::LAST_SEGMENT].contains(&kind) || length == 0 || length % 16 != 0 {
            return None;
        }
        budget = budget.checked_sub(length / 16)?;
        let raw = ram.load(descriptor.address, length)?;
        let mut inside: Vec<SglDescriptor> = raw.chunks_exact(16).map(bytemuck::pod_read_unaligned).collect();
        let next = if kind == sgl_type::SEGMENT { inside.pop() } else { None };
        for data in &inside {
            list.push(block(data)?);
        }
        match next {
            None => break,
            Some(next) if next.sgl_type() == sgl_type::DATA_BLOCK => return None,
            Some(next) => descriptor = next,
        }
    }
    let total: u64 = list.iter().map(|(_, len_bytes)| len_bytes).sum();
    (total == len_bytes).then_some(list)
}

fn block(descriptor: &SglDescriptor) -> Option<(u64, u64)> {
    let good = descriptor.sgl_type() == sgl_type::DATA_BLOCK && descriptor.sub_type() == 0;
    let aligned = descriptor.address.is_multiple_of(4) && descriptor.length.is_multiple_of(4);
    (good && aligned).then_some((descriptor.address, descriptor.length.into()))
}
