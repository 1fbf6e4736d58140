//! NVMe queues and virtqueues in memory that a driver shares with its device, as the driver sees them. Written from
//! the specifications a second time.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use bytemuck::{Zeroable, bytes_of, bytes_of_mut};
use guest_memory::Mapping;
use nvme_spec::opcode::admin;
use nvme_spec::{Cqe, Sqe};

/// Memory that a driver shares with its device, by addresses of its own.
pub trait Memory {
    /// Reads all of `out`.
    fn read(&self, address: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `data`.
    fn write(&self, address: u64, data: &[u8]) -> io::Result<()>;

    /// A number of 16 bits.
    fn u16(&self, address: u64) -> io::Result<u16> {
        let mut number = [0; 2];
        self.read(address, &mut number)?;
        Ok(u16::from_le_bytes(number))
    }
}

impl Memory for File {
    fn read(&self, address: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(out, address)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.write_all_at(data, address)
    }
}

impl Memory for Mapping {
    fn read(&self, address: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_at(address, out).ok_or(ErrorKind::InvalidInput.into())
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.write_at(address, data).ok_or(ErrorKind::InvalidInput.into())
    }
}

/// A submission queue.
#[derive(Debug, Clone, Copy)]
pub struct Sq {
    /// Its address in the memory.
    pub at: u64,
    /// Its size.
    pub entries: u16,
    /// The completion queue that its commands end in.
    pub cqid: u16,
    /// The next entry.
    pub tail: u16,
}

impl Sq {
    /// An empty one.
    pub fn new(at: u64, entries: u16, cqid: u16) -> Self {
        Self { at, entries, cqid, tail: 0 }
    }

    /// Writes a command at the tail and moves that, without ringing.
    pub fn push(&mut self, memory: &impl Memory, sqe: &Sqe) -> io::Result<()> {
        let at = self.at + u64::from(self.tail) * size_of::<Sqe>() as u64;
        self.tail = (self.tail + 1) % self.entries;
        memory.write(at, bytes_of(sqe))
    }
}

/// A completion queue.
#[derive(Debug, Clone, Copy)]
pub struct Cq {
    /// Its address in the memory.
    pub at: u64,
    /// Its size.
    pub entries: u16,
    /// The next entry to look at.
    pub head: u16,
    /// Of entries that are new.
    pub phase: bool,
}

impl Cq {
    /// An empty one in memory of zeros.
    pub fn new(at: u64, entries: u16) -> Self {
        Self { at, entries, head: 0, phase: true }
    }

    /// The completion at the head, if there is one.
    pub fn peek(&self, memory: &impl Memory) -> io::Result<Option<Cqe>> {
        let mut cqe = Cqe::zeroed();
        memory.read(self.at + u64::from(self.head) * size_of::<Cqe>() as u64, bytes_of_mut(&mut cqe))?;
        Ok((cqe.phase() == self.phase).then_some(cqe))
    }

    /// Takes the completion at the head, without ringing.
    pub fn take(&mut self, memory: &impl Memory) -> io::Result<Option<Cqe>> {
        let cqe = self.peek(memory)?;
        if cqe.is_some() {
            self.head = (self.head + 1) % self.entries;
            self.phase ^= self.head == 0;
        }
        Ok(cqe)
    }
}

/// Create I/O Completion Queue; `flags`: the command's dword 11.
pub fn create_cq(qid: u16, entries: u16, iova: u64, flags: u32) -> Sqe {
    Sqe { opc: admin::CREATE_CQ, dptr: [iova, 0], cdw10: shape(qid, entries), cdw11: flags, ..Sqe::zeroed() }
}

/// Create I/O Submission Queue, in one piece.
pub fn create_sq(qid: u16, entries: u16, iova: u64, cqid: u16) -> Sqe {
    let cdw11 = 1 | u32::from(cqid) << 16;
    Sqe { opc: admin::CREATE_SQ, dptr: [iova, 0], cdw10: shape(qid, entries), cdw11, ..Sqe::zeroed() }
}

fn shape(qid: u16, entries: u16) -> u32 {
    u32::from(qid) | u32::from(entries - 1) << 16
}

/// Another descriptor follows.
pub const NEXT: u16 = 1;
/// The device writes.
pub const WRITE: u16 = 2;
/// A table of descriptors.
pub const INDIRECT: u16 = 4;

/// A descriptor of a virtqueue.
#[derive(Debug, Clone, Copy)]
pub struct Desc {
    /// The buffer, in the device's addresses.
    pub address: u64,
    /// Its length.
    pub len_bytes: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// Which one follows.
    pub next: u16,
}

impl Desc {
    /// As it lies in memory.
    pub fn bytes(self) -> [u8; 16] {
        let Self { address, len_bytes, flags, next } = self;
        let rest = u64::from(len_bytes) | u64::from(flags) << 32 | u64::from(next) << 48;
        (u128::from(address) | u128::from(rest) << 64).to_le_bytes()
    }
}

/// A split virtqueue. Addresses are those of the memory.
#[derive(Debug, Clone, Copy)]
pub struct Virtqueue {
    /// Descriptors.
    pub size: u16,
    /// The table of descriptors.
    pub desc: u64,
    /// The available ring.
    pub avail: u64,
    /// The used ring.
    pub used: u64,
    /// Heads offered so far.
    pub avail_idx: u16,
    /// Heads taken back so far.
    pub used_idx: u16,
}

impl Virtqueue {
    /// The place of a descriptor.
    pub fn desc_at(&self, index: u16) -> u64 {
        self.desc + 16 * u64::from(index)
    }

    /// Puts a head into the available ring and moves its index.
    pub fn offer(&mut self, memory: &impl Memory, head: u16) -> io::Result<()> {
        memory.write(self.avail + 4 + 2 * u64::from(self.avail_idx % self.size), &head.to_le_bytes())?;
        self.avail_idx = self.avail_idx.wrapping_add(1);
        memory.write(self.avail + 2, &self.avail_idx.to_le_bytes())
    }

    /// The device's index of the used ring.
    pub fn device_idx(&self, memory: &impl Memory) -> io::Result<u16> {
        memory.u16(self.used + 2)
    }

    /// A head that came back `ahead` places behind the next one, and how many bytes the device says that it wrote.
    pub fn used_at(&self, memory: &impl Memory, ahead: u16) -> io::Result<(u16, u32)> {
        let mut element = [0; 8];
        let place = self.used_idx.wrapping_add(ahead) % self.size;
        memory.read(self.used + 4 + 8 * u64::from(place), &mut element)?;
        let element = u64::from_le_bytes(element);
        Ok((element as u16, (element >> 32) as u32))
    }

    /// Takes the next head that came back.
    pub fn take_used(&mut self, memory: &impl Memory) -> io::Result<Option<(u16, u32)>> {
        if self.device_idx(memory)? == self.used_idx {
            return Ok(None);
        }
        let element = self.used_at(memory, 0)?;
        self.used_idx = self.used_idx.wrapping_add(1);
        Ok(Some(element))
    }
}
