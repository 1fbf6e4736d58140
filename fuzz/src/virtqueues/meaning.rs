//! What is in a ring and what a request means, written from the specification a second time.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use guest_memory::{GuestMemory, Mapping};
use io_model::{Command, Op, TenantId};
use test_clients::rings::{INDIRECT, NEXT, WRITE};

/// Descriptors in a ring.
pub const SIZE: u16 = 8;

/// Guest memory: two ranges that touch, at guest addresses that are offsets in it plus this.
const RAM: u64 = 0x1_0000;
const RANGE_BYTES: u64 = 0x1_0000;
const RAM_BYTES: u64 = 2 * RANGE_BYTES;

/// The tenant's place on the drive.
pub const BASE_BYTES: u64 = 8192;
pub const PLACE: io_model::Place = io_model::Place { tenant: TenantId(0), disk: 0, base_bytes: BASE_BYTES };
pub const SIZE_BYTES: u64 = 64 << 10;

/// Where a virtqueue's ring lies.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub desc: u64,
    pub avail: u64,
    pub used: u64,
}

impl Place {
    pub fn end(self) -> u64 {
        self.desc + 0x200
    }
}

pub fn ring(queue: u16) -> Place {
    let desc = RAM + 0x2000 * u64::from(queue);
    Place { desc, avail: desc + 0x80, used: desc + 0x100 }
}

/// Guest memory, and what must be in it.
pub struct Ram {
    mapping: Arc<Mapping>,
    fd: OwnedFd,
    model: Vec<u8>,
}

impl Ram {
    pub fn new() -> Self {
        let (mapping, fd) = Mapping::memfd("ram", RAM_BYTES as usize).expect("a memfd");
        Self { mapping, fd, model: vec![0; RAM_BYTES as usize] }
    }

    pub fn memory(&self) -> GuestMemory {
        let mut memory = GuestMemory::default();
        for n in 0..2 {
            let at = n * RANGE_BYTES;
            let mapping = Mapping::shared(self.fd.as_fd(), at, RANGE_BYTES, true).expect("mappable");
            memory.map(RAM + at, RANGE_BYTES, Some(mapping), &mut ()).expect("nothing else there");
        }
        memory
    }

    pub fn has(address: u64, len_bytes: u64) -> bool {
        address >= RAM && address.checked_add(len_bytes).is_some_and(|end| end <= RAM + RAM_BYTES)
    }

    /// The guest writes. Outside of memory nothing happens.
    pub fn write(&mut self, address: u64, data: &[u8]) {
        if Self::has(address, data.len() as u64) {
            self.mapping.write_at(address - RAM, data).expect("inside");
            self.expect(address, data);
        }
    }

    /// The device must have written, or must write before the next check.
    pub fn expect(&mut self, address: u64, data: &[u8]) {
        let at = (address - RAM) as usize;
        self.model[at..at + data.len()].copy_from_slice(data);
    }

    pub fn read(&self, address: u64, len_bytes: u64) -> Option<&[u8]> {
        Self::has(address, len_bytes).then(|| &self.model[(address - RAM) as usize..][..len_bytes as usize])
    }

    pub fn u16(&self, address: u64) -> u16 {
        u16::from_le_bytes(self.read(address, 2).expect("inside").try_into().expect("two bytes"))
    }

    /// Every byte is what it must be.
    pub fn check(&self) {
        let mut content = vec![0; RAM_BYTES as usize];
        self.mapping.read_at(0, &mut content).expect("inside");
        if content != self.model {
            let at = content.iter().zip(&self.model).position(|(is, must)| is != must).unwrap_or(0);
            panic!("guest memory at {:#x} is {:#x}, must be {:#x}", RAM + at as u64, content[at], self.model[at]);
        }
    }
}

/// A request's memory.
#[derive(Debug, Default, Clone)]
pub struct Chain {
    pub readable: Vec<(u64, u32)>,
    pub writable: Vec<(u64, u32)>,
    late_read: bool,
}

/// What must come of a request.
#[derive(Debug, Clone)]
pub struct Meaning {
    /// Commands for the drive; none: answered at once.
    pub commands: Vec<Command>,
    /// Of an answer at once.
    pub status: u8,
    /// Bytes written on success, before the status.
    pub identity: u32,
    pub chain: Chain,
    pub status_at: u64,
}

/// What changes the meaning of writes.
#[derive(Debug, Clone, Copy)]
pub struct Mode {
    pub indirect: bool,
    pub fua: bool,
}

impl Chain {
    /// `None`: it can't be followed to its end.
    fn walk(ram: &Ram, queue: u16, head: u16, indirect: bool) -> Option<Self> {
        let mut chain = Self::default();
        let (mut table, mut len, mut at, mut inside) = (ring(queue).desc, u64::from(SIZE), u64::from(head), false);
        let mut steps = 0;
        loop {
            steps += 1;
            if at >= len || steps > len {
                return None;
            }
            let raw = ram.read(table.checked_add(16 * at)?, 16)?;
            let address = u64::from_le_bytes(raw[..8].try_into().ok()?);
            let bytes = u32::from_le_bytes(raw[8..12].try_into().ok()?);
            let flags = u16::from_le_bytes([raw[12], raw[13]]);
            let next = u16::from_le_bytes([raw[14], raw[15]]);
            if flags & INDIRECT != 0 {
                let whole = bytes > 0 && bytes % 16 == 0 && bytes / 16 <= 1024;
                if inside || !indirect || flags & NEXT != 0 || !whole {
                    return None;
                }
                (table, len, at, inside, steps) = (address, u64::from(bytes / 16), 0, true, 0);
                continue;
            }
            if bytes > 0 {
                let list = if flags & WRITE != 0 { &mut chain.writable } else { &mut chain.readable };
                list.push((address, bytes));
                chain.late_read |= flags & WRITE == 0 && !chain.writable.is_empty();
            }
            if flags & NEXT == 0 {
                return Some(chain);
            }
            at = u64::from(next);
        }
    }

    /// What the device may read, as far as it is guest memory.
    pub fn input(&self, ram: &Ram) -> Option<Vec<u8>> {
        let mut all = Vec::new();
        for (address, len_bytes) in &self.readable {
            all.extend(ram.read(*address, (*len_bytes).into())?);
        }
        Some(all)
    }

    fn sum(pieces: &[(u64, u32)]) -> u64 {
        pieces.iter().map(|(_, len_bytes)| u64::from(*len_bytes)).sum()
    }

    pub fn write_bytes(&self) -> u64 {
        Self::sum(&self.writable)
    }

    /// The first bytes of what the device may read.
    fn prefix(&self, ram: &Ram, from: u64, len_bytes: u64) -> Option<Vec<u8>> {
        let (mut skip, mut out) = (from, Vec::new());
        for (address, piece) in &self.readable {
            let here = u64::from(*piece).saturating_sub(skip).min(len_bytes - out.len() as u64);
            if here > 0 {
                out.extend(ram.read(address.checked_add(skip)?, here)?);
            }
            skip = skip.saturating_sub(u64::from(*piece));
        }
        (out.len() as u64 == len_bytes).then_some(out)
    }

    /// Whether the first bytes of what the device may write are guest memory.
    fn can_write(&self, len_bytes: u64) -> bool {
        let mut rest = len_bytes;
        self.writable.iter().all(|(address, piece)| {
            let here = rest.min(u64::from(*piece));
            rest -= here;
            here == 0 || Ram::has(*address, here)
        })
    }

    fn can_read_after(&self, from: u64) -> bool {
        let mut skip = from;
        self.readable.iter().all(|(address, piece)| {
            let here = u64::from(*piece).saturating_sub(skip);
            let start = address.checked_add(skip.min(u64::from(*piece)));
            skip = skip.saturating_sub(u64::from(*piece));
            here == 0 || start.is_some_and(|start| Ram::has(start, here))
        })
    }
}

/// What the request at `head` means. `None`: the device must stop.
pub fn meaning(ram: &Ram, queue: u16, head: u16, mode: Mode) -> Option<Meaning> {
    let chain = Chain::walk(ram, queue, head, mode.indirect)?;
    let (address, len_bytes) = *chain.writable.last()?;
    let status_at = address.checked_add(u64::from(len_bytes) - 1).filter(|at| Ram::has(*at, 1))?;
    let mut meaning = Meaning { commands: Vec::new(), status: 0, identity: 0, chain, status_at };
    match commands(ram, &meaning.chain, mode, &mut meaning.identity) {
        Ok(commands) => meaning.commands = commands,
        Err(status) => meaning.status = status,
    }
    Some(meaning)
}

fn commands(ram: &Ram, chain: &Chain, mode: Mode, identity: &mut u32) -> Result<Vec<Command>, u8> {
    const IOERR: u8 = 1;
    const UNSUPP: u8 = 2;
    let header = chain.prefix(ram, 0, 16).filter(|_| !chain.late_read).ok_or(IOERR)?;
    let kind = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
    let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
    let (out_bytes, in_bytes) = (Chain::sum(&chain.readable) - 16, chain.write_bytes() - 1);
    let place = |sector: u64, len_bytes: u64| {
        let start = sector.checked_mul(512)?;
        let end = start.checked_add(len_bytes)?;
        (len_bytes.is_multiple_of(512) && end <= SIZE_BYTES).then_some((start, len_bytes))
    };
    match kind {
        0 | 1 => {
            let len_bytes = if kind == 0 { in_bytes } else { out_bytes };
            let (offset_bytes, len_bytes) = place(sector, len_bytes).ok_or(IOERR)?;
            let reachable = if kind == 0 { chain.can_write(len_bytes) } else { chain.can_read_after(16) };
            if len_bytes > 0 && !reachable {
                return Err(IOERR);
            }
            let (op, fua) = if kind == 0 { (Op::Read, false) } else { (Op::Write, mode.fua) };
            Ok((len_bytes > 0).then(|| PLACE.command(op, offset_bytes, len_bytes).with_fua(fua)).into_iter().collect())
        }
        4 => Ok(vec![PLACE.flush()]),
        8 if chain.can_write(in_bytes.min(20)) => {
            *identity = in_bytes.min(20) as u32;
            Ok(Vec::new())
        }
        8 => Err(IOERR),
        11 | 13 => {
            let count = out_bytes / 16;
            if out_bytes % 16 != 0 || !(1..=32).contains(&count) {
                return Err(IOERR);
            }
            let ranges = chain.prefix(ram, 16, out_bytes).ok_or(IOERR)?;
            let (op, most, flags, fua) = match kind {
                11 => (Op::Discard, 1 << 21, 0, false),
                _ => (Op::WriteZeroes, 1 << 17, 1, mode.fua),
            };
            let mut commands = Vec::new();
            for range in ranges.chunks_exact(16) {
                let sector = u64::from_le_bytes(range[..8].try_into().expect("eight bytes"));
                let sectors = u32::from_le_bytes(range[8..12].try_into().expect("four bytes"));
                if u32::from_le_bytes(range[12..].try_into().expect("four bytes")) & !flags != 0 {
                    return Err(UNSUPP);
                }
                let place = place(sector, u64::from(sectors) * 512).filter(|_| sectors <= most);
                let (offset_bytes, len_bytes) = place.ok_or(IOERR)?;
                if len_bytes > 0 {
                    commands.push(PLACE.command(op, offset_bytes, len_bytes).with_fua(fua));
                }
            }
            Ok(commands)
        }
        _ => Err(UNSUPP),
    }
}
