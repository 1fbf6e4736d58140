//! A submission queue with its completion queue.

use bytemuck::{bytes_of, cast_slice};
use guest_memory::MappedRange;
use nvme_spec::data::{DsmRange, PRP_BYTES};
use nvme_spec::entry::{CQE_BYTES, SQE_BYTES};
use nvme_spec::opcode::{dsm, nvm, rw};
use nvme_spec::{Cqe, PAGE_BYTES, Sqe, Status};

use crate::device::DmaMemory;
use crate::doorbell::QueueDoorbell;
use crate::error::Error;

/// The most bytes that one command moves: what a single page of PRP entries can describe.
pub const MAX_TRANSFER_BYTES: u64 = 2 << 20;

/// Entries of 8 bytes in the page that each command has for its list.
pub const LIST_ENTRIES: usize = (PAGE_BYTES / PRP_BYTES) as usize;

/// Where a command's data lies, in the device's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data {
    /// Address of the first byte; a multiple of 4.
    pub iova: u64,
    /// Length, at most [`MAX_TRANSFER_BYTES`].
    pub len_bytes: u64,
}

/// A range of logical blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// Namespace.
    pub nsid: u32,
    /// First block.
    pub lba: u64,
    /// Number of blocks, 1 to 65536.
    pub count: u32,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The identifier that submitting returned.
    pub cid: u16,
    /// Its status field.
    pub status: Status,
    /// Dword 0 of the completion.
    pub result: u32,
}

/// Why a command was not taken. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many commands as the queue holds are in flight.
    #[error("the queue is full")]
    Full,
    /// More data, blocks or ranges than one command can carry, or none.
    #[error("one command can't carry that length")]
    BadLength,
}

/// An I/O queue pair (or the admin queues) of a [`crate::Controller`]. It can move to another thread.
///
/// Submitting and polling neither allocate nor lock; with mapped doorbells they make no system call.
pub struct QueuePair {
    id: u16,
    entries: u16,
    sq: DmaMemory,
    cq: MappedRange,
    /// One page per slot: PRP entries or dataset management ranges.
    lists: DmaMemory,
    tail: u16,
    head: u16,
    phase: bool,
    /// Identifiers that are free; the one used last is on top, its memory still in the cache.
    free: Vec<u16>,
    in_flight: Vec<bool>,
    sq_doorbell: QueueDoorbell,
    cq_doorbell: QueueDoorbell,
    /// All of the above memory, for giving it back.
    memory: DmaMemory,
}

/// Page-aligned places of a queue pair's parts in its memory.
pub(crate) struct Layout {
    cq_offset: u64,
    lists_offset: u64,
    pub(crate) len_bytes: u64,
}

impl Layout {
    /// For a pair with `entries` entries each.
    pub(crate) fn new(entries: u16) -> Self {
        let cq_offset = (u64::from(entries) * SQE_BYTES).next_multiple_of(PAGE_BYTES);
        let lists_offset = cq_offset + (u64::from(entries) * CQE_BYTES).next_multiple_of(PAGE_BYTES);
        Self { cq_offset, lists_offset, len_bytes: lists_offset + slots(entries) * PAGE_BYTES }
    }
}

/// A queue of `entries` entries is full with one less (Base 3.3.1.5).
fn slots(entries: u16) -> u64 {
    u64::from(entries).saturating_sub(1)
}

impl QueuePair {
    /// Over zeroed `memory` that [`Layout`] fits in.
    pub(crate) fn new(
        id: u16,
        entries: u16,
        memory: DmaMemory,
        sq_doorbell: QueueDoorbell,
        cq_doorbell: QueueDoorbell,
    ) -> Result<Self, Error> {
        let layout = Layout::new(entries);
        let too_small = || Error::Invalid("the queue's memory is too small");
        let part = |offset, len| memory.slice(offset, len).ok_or_else(too_small);
        let sq = part(0, u64::from(entries) * SQE_BYTES)?;
        let cq = part(layout.cq_offset, u64::from(entries) * CQE_BYTES)?.range().ok_or_else(too_small)?;
        let lists = part(layout.lists_offset, slots(entries) * PAGE_BYTES)?;
        let slots = entries.saturating_sub(1);
        Ok(Self {
            id,
            entries,
            sq,
            cq,
            lists,
            tail: 0,
            head: 0,
            phase: true,
            free: (0..slots).rev().collect(),
            in_flight: vec![false; slots.into()],
            sq_doorbell,
            cq_doorbell,
            memory,
        })
    }

    /// Lets go of a device that is gone: nothing can be submitted any more. Its memory stays.
    pub fn disconnect(&mut self) {
        self.sq_doorbell.disconnect();
        self.cq_doorbell.disconnect();
    }

    /// Queue identifier; 0 is the admin queues.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Commands that can be in flight at a time: one less than entries. Identifiers are below it.
    pub fn depth(&self) -> u16 {
        self.entries - 1
    }

    /// Commands in flight.
    #[inline]
    pub fn in_flight(&self) -> u16 {
        self.depth() - self.free.len() as u16
    }

    /// The identifier that the next command will get, for preparing its memory. `None`: the queue is full.
    #[inline]
    pub fn next_cid(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Writes `entry` at `index` (0 to 511) of the next command's own page, for PRP entries or SGL descriptors that the
    /// caller makes; returns the device's address of the page. `None`: the queue is full, or the page is.
    #[inline]
    pub fn put_list(&self, index: usize, entry: u64) -> Option<u64> {
        let page = u64::from(self.next_cid()?) * PAGE_BYTES;
        if index >= LIST_ENTRIES {
            return None;
        }
        self.lists.write(page + index as u64 * PRP_BYTES, &entry.to_le_bytes())?;
        Some(self.lists.iova() + page)
    }

    pub(crate) fn sq_iova(&self) -> u64 {
        self.sq.iova()
    }

    pub(crate) fn cq_iova(&self) -> u64 {
        self.memory.iova() + Layout::new(self.entries).cq_offset
    }

    pub(crate) fn into_memory(self) -> DmaMemory {
        self.memory
    }

    /// Reads `blocks` into `data`.
    #[inline]
    pub fn read(&mut self, blocks: Blocks, data: Data) -> Result<u16, SubmitError> {
        self.submit(blocks.command(nvm::READ)?, Some(data))
    }

    /// Writes `data` to `blocks`; with `fua` it is durable when it completes.
    #[inline]
    pub fn write(&mut self, blocks: Blocks, data: Data, fua: bool) -> Result<u16, SubmitError> {
        let mut sqe = blocks.command(nvm::WRITE)?;
        sqe.cdw12 |= if fua { rw::FUA } else { 0 };
        self.submit(sqe, Some(data))
    }

    /// Compares `blocks` with `data`; ends with Compare Failure where they differ.
    pub fn compare(&mut self, blocks: Blocks, data: Data) -> Result<u16, SubmitError> {
        self.submit(blocks.command(nvm::COMPARE)?, Some(data))
    }

    /// Makes `blocks` read as zeros; with `deallocate` the device may also free them.
    pub fn write_zeroes(&mut self, blocks: Blocks, deallocate: bool) -> Result<u16, SubmitError> {
        let mut sqe = blocks.command(nvm::WRITE_ZEROES)?;
        sqe.cdw12 |= if deallocate { rw::DEAC } else { 0 };
        self.submit(sqe, None)
    }

    /// Makes everything that completed before durable.
    pub fn flush(&mut self, nsid: u32) -> Result<u16, SubmitError> {
        self.submit(Sqe { opc: nvm::FLUSH, nsid, ..Sqe::default() }, None)
    }

    /// Tells the device that the content of `ranges` (1 to 256 of them) is not needed any more.
    pub fn deallocate(&mut self, nsid: u32, ranges: &[DsmRange]) -> Result<u16, SubmitError> {
        if ranges.is_empty() || ranges.len() > dsm::MAX_RANGES {
            return Err(SubmitError::BadLength);
        }
        let slot = *self.free.last().ok_or(SubmitError::Full)?;
        let page = u64::from(slot) * PAGE_BYTES;
        self.lists.write(page, cast_slice(ranges)).ok_or(SubmitError::BadLength)?;
        let sqe = Sqe {
            opc: nvm::DATASET_MANAGEMENT,
            nsid,
            cdw10: ranges.len() as u32 - 1,
            cdw11: dsm::AD,
            dptr: [self.lists.iova() + page, 0],
            ..Sqe::default()
        };
        self.submit(sqe, None)
    }

    /// Puts any command into the queue, with PRPs for `data`; returns its identifier. It starts at
    /// [`QueuePair::ring`]. `sqe.dptr` is left as it is without `data`.
    #[inline]
    pub fn submit(&mut self, mut sqe: Sqe, data: Option<Data>) -> Result<u16, SubmitError> {
        let cid = *self.free.last().ok_or(SubmitError::Full)?;
        if let Some(data) = data {
            sqe.dptr = self.prps(cid, data)?;
        }
        sqe.cid = cid;
        let written = self.sq.write(u64::from(self.tail) * SQE_BYTES, bytes_of(&sqe));
        debug_assert!(written.is_some(), "the tail is inside of the queue");
        self.tail = if self.tail + 1 == self.entries { 0 } else { self.tail + 1 };
        self.free.pop();
        self.in_flight[usize::from(cid)] = true;
        Ok(cid)
    }

    /// PRP entries for `data` (Base 4.1.1); a list goes to the slot's own page.
    #[inline]
    fn prps(&self, cid: u16, data: Data) -> Result<[u64; 2], SubmitError> {
        let in_page = data.iova % PAGE_BYTES;
        let second = data.iova - in_page + PAGE_BYTES;
        if data.len_bytes == 0 || data.len_bytes > MAX_TRANSFER_BYTES {
            return Err(SubmitError::BadLength);
        }
        match (in_page + data.len_bytes).div_ceil(PAGE_BYTES) {
            1 => Ok([data.iova, 0]),
            2 => Ok([data.iova, second]),
            pages => {
                let list = u64::from(cid) * PAGE_BYTES;
                for page in 0..pages - 1 {
                    let entry = second + page * PAGE_BYTES;
                    self.lists.write(list + page * PRP_BYTES, &entry.to_le_bytes()).ok_or(SubmitError::BadLength)?;
                }
                Ok([data.iova, self.lists.iova() + list])
            }
        }
    }

    /// Tells the device about everything submitted since the last time. Once per batch.
    #[inline]
    pub fn ring(&mut self) -> Result<(), Error> {
        self.sq_doorbell.ring(self.tail)
    }

    /// Hands every new completion to `done`; returns how many there were. The completion queue's
    /// doorbell is rung once, after the last.
    #[inline]
    pub fn poll(&mut self, done: &mut impl FnMut(Completion)) -> Result<u32, Error> {
        let mut reaped = 0;
        while reaped < u32::from(self.entries) {
            let Some((low, high)) = self.cq.consume_16(u64::from(self.head) * CQE_BYTES) else {
                return Err(Error::Invalid("the completion queue lies outside of its memory"));
            };
            let cqe: Cqe = bytemuck::cast([low, high]);
            if cqe.phase() != self.phase {
                break;
            }
            let known = self.in_flight.get_mut(usize::from(cqe.cid)).is_some_and(std::mem::take);
            if !known || cqe.sqid != self.id {
                return Err(Error::Protocol("it completed a command that was not in flight"));
            }
            self.free.push(cqe.cid);
            self.head += 1;
            if self.head == self.entries {
                self.head = 0;
                self.phase = !self.phase;
            }
            reaped += 1;
            done(Completion { cid: cqe.cid, status: cqe.status(), result: cqe.dw0 });
        }
        if reaped > 0 {
            self.cq_doorbell.ring(self.head)?;
        }
        Ok(reaped)
    }
}

impl Blocks {
    #[inline]
    fn command(self, opc: u8) -> Result<Sqe, SubmitError> {
        if self.count == 0 || self.count > 0x1_0000 {
            return Err(SubmitError::BadLength);
        }
        Ok(Sqe {
            opc,
            nsid: self.nsid,
            cdw10: self.lba as u32,
            cdw11: (self.lba >> 32) as u32,
            cdw12: self.count - 1,
            ..Sqe::default()
        })
    }
}
