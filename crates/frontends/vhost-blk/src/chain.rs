//! A walk over one request's descriptors (2.7.5): each is read once, into memory of our own.

use guest_memory::{Access, Fault, GuestMemory, IoBuf, MappedRange};
use io_model::PLAIN_DESCRIPTORS;

use crate::config::MAX_RING_SIZE;
use crate::fault::FaultKind;
use crate::spec::request::{HEADER_BYTES, IOPRIO};
use crate::spec::ring::{DESC_BYTES, INDIRECT, NEXT, WRITE};

/// Descriptors of an indirect table read at a time, onto the stack: most requests have three.
const CHUNK: u64 = 8;

/// A run of guest memory.
#[derive(Debug, Clone, Copy)]
struct Piece {
    address: u64,
    len_bytes: u32,
}

#[derive(Debug, Clone, Copy)]
struct Descriptor {
    address: u64,
    len_bytes: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    #[inline]
    fn new(raw: [u8; 16]) -> Self {
        let raw = u128::from_le_bytes(raw);
        Self {
            address: raw as u64,
            len_bytes: (raw >> 64) as u32,
            flags: (raw >> 96) as u16,
            next: (raw >> 112) as u16,
        }
    }
}

/// The `ioprio` of the request at `head` (5.2.6), in the header that its first descriptor names. 0 if there is none:
/// the fetch of the request reports what is wrong with it.
#[inline]
pub(crate) fn priority(table: &MappedRange, head: u16, indirect: bool, memory: &mut GuestMemory) -> u32 {
    let first = table.read_16(DESC_BYTES * u64::from(head)).map(Descriptor::new);
    let first = first.and_then(|first| match first.flags & INDIRECT != 0 {
        false => Some(first),
        true => {
            let mut raw = [0; DESC_BYTES as usize];
            let has_one = indirect && u64::from(first.len_bytes) >= DESC_BYTES;
            memory.read(first.address, &mut raw).ok().filter(|()| has_one)?;
            Some(Descriptor::new(raw))
        }
    });
    let header = first.filter(|first| u64::from(first.len_bytes) >= IOPRIO + 4 && first.flags & WRITE == 0);
    let mut ioprio = [0; 4];
    match header.and_then(|header| header.address.checked_add(IOPRIO)) {
        Some(address) if memory.read(address, &mut ioprio).is_ok() => u32::from_le_bytes(ioprio),
        _ => 0,
    }
}

/// One request's memory, as its descriptors name it; nothing of it is checked yet. Kept for reuse, so that a walk
/// does not allocate.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    readable: Vec<Piece>,
    writable: Vec<Piece>,
    /// Bytes that the device may read.
    pub read_bytes: u64,
    /// Bytes that the device may write, the status byte among them.
    pub write_bytes: u64,
    /// Guest address of the last byte that the device may write.
    pub status: Option<u64>,
    /// Descriptors that were read.
    walked: u32,
    /// Something to read came after something to write (2.7.4.2 forbids it).
    pub disordered: bool,
}

impl Chain {
    /// Walks the chain at `head`: at most `size` descriptors of the ring's table, and those of one indirect table.
    #[inline]
    pub fn walk(
        &mut self,
        table: &MappedRange,
        size: u16,
        head: u16,
        indirect: bool,
        memory: &mut GuestMemory,
    ) -> Result<(), FaultKind> {
        self.clear();
        let mut at = head;
        for _ in 0..size {
            // Inside of the table, which is as long as the ring.
            let raw = table.read_16(DESC_BYTES * u64::from(at)).ok_or(FaultKind::Next { head, next: at, size })?;
            let descriptor = Descriptor::new(raw);
            if descriptor.flags & INDIRECT != 0 {
                // 2.7.5.3.1: not together with NEXT.
                if !indirect || descriptor.flags & NEXT != 0 {
                    return Err(FaultKind::Indirect { head });
                }
                return self.walk_table(head, descriptor, memory);
            }
            self.add(descriptor);
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            at = descriptor.next;
            if at >= size {
                return Err(FaultKind::Next { head, next: at, size });
            }
        }
        Err(FaultKind::Loop { head, size })
    }

    fn walk_table(&mut self, head: u16, table: Descriptor, memory: &mut GuestMemory) -> Result<(), FaultKind> {
        let count = u64::from(table.len_bytes) / DESC_BYTES;
        let whole = u64::from(table.len_bytes).is_multiple_of(DESC_BYTES);
        if !whole || count == 0 || count > u64::from(MAX_RING_SIZE) {
            return Err(FaultKind::TableLength { head, len_bytes: table.len_bytes });
        }
        let size = count as u16;
        let mut chunk = [[0; DESC_BYTES as usize]; CHUNK as usize];
        // The part of the table that the chunk holds.
        let (mut first, mut end) = (0, 0);
        let mut at = 0;
        for _ in 0..size {
            if !(first..end).contains(&at) {
                (first, end) = (at, count.min(at + CHUNK));
                let address = table.address.checked_add(DESC_BYTES * first);
                let bytes = chunk.as_flattened_mut().get_mut(..(DESC_BYTES * (end - first)) as usize);
                let read = address.zip(bytes).and_then(|(address, bytes)| memory.read(address, bytes).ok());
                read.ok_or(FaultKind::TableMemory { head, address: table.address })?;
            }
            let descriptor = Descriptor::new(chunk[(at - first) as usize]);
            if descriptor.flags & INDIRECT != 0 {
                return Err(FaultKind::Indirect { head });
            }
            self.add(descriptor);
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            at = u64::from(descriptor.next);
            if at >= count {
                return Err(FaultKind::Next { head, next: descriptor.next, size });
            }
        }
        Err(FaultKind::Loop { head, size })
    }

    fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
        self.read_bytes = 0;
        self.write_bytes = 0;
        self.status = None;
        self.disordered = false;
        self.walked = 0;
    }

    /// What the walk cost beyond the usual; see [`io_model::Source::take_work`].
    #[inline]
    pub fn take_work(&mut self) -> u32 {
        std::mem::take(&mut self.walked).saturating_sub(PLAIN_DESCRIPTORS)
    }

    #[inline]
    fn add(&mut self, Descriptor { address, len_bytes, flags, .. }: Descriptor) {
        self.walked += 1;
        if len_bytes == 0 {
            return;
        }
        let piece = Piece { address, len_bytes };
        // At most 2,048 lengths of 32 bits: the sums can't overflow.
        if flags & WRITE == 0 {
            self.disordered |= !self.writable.is_empty();
            self.read_bytes += u64::from(len_bytes);
            self.readable.push(piece);
        } else {
            self.write_bytes += u64::from(len_bytes);
            self.writable.push(piece);
            // Where the piece wraps around, its last byte is no guest memory; the look-up will say so.
            self.status = Some(address.saturating_add(u64::from(len_bytes) - 1));
        }
    }

    /// Whether the data is one piece at most, beside header and status.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.readable.len() + self.writable.len() <= 3
    }

    /// The first 16 bytes that the device may read. `None`: there are fewer, or they are not guest memory.
    #[inline]
    pub fn header(&self, memory: &mut GuestMemory) -> Option<[u8; HEADER_BYTES as usize]> {
        let first = self.readable.first()?;
        // As nearly every driver has it.
        if u64::from(first.len_bytes) >= HEADER_BYTES {
            return memory.read_16(first.address).ok();
        }
        let mut header = [0; HEADER_BYTES as usize];
        self.read(memory, 0, &mut header).then_some(header)
    }

    /// Copies what the device may read from `offset` on. `false`: there is less, or it is not guest memory.
    pub fn read(&self, memory: &mut GuestMemory, offset: u64, out: &mut [u8]) -> bool {
        let mut skip = offset;
        let mut rest = out;
        for piece in &self.readable {
            let len_bytes = u64::from(piece.len_bytes);
            if skip >= len_bytes {
                skip -= len_bytes;
                continue;
            }
            let n = (len_bytes - skip).min(rest.len() as u64) as usize;
            let (now, later) = rest.split_at_mut(n);
            let address = piece.address.checked_add(skip);
            if address.is_none_or(|address| memory.read(address, now).is_err()) {
                return false;
            }
            skip = 0;
            rest = later;
            if rest.is_empty() {
                return true;
            }
        }
        rest.is_empty()
    }

    /// Adds what the device may read from `offset` on to `buf`.
    #[inline]
    pub fn data_out(&self, memory: &mut GuestMemory, offset: u64, buf: &mut IoBuf) -> Result<(), Fault> {
        let mut skip = offset;
        for piece in &self.readable {
            let skipped = skip.min(u64::from(piece.len_bytes));
            skip -= skipped;
            let address = piece.address.checked_add(skipped).ok_or(Fault { iova: piece.address })?;
            memory.translate(address, u64::from(piece.len_bytes) - skipped, Access::Read, buf)?;
        }
        Ok(())
    }

    /// Adds the first `len_bytes` that the device may write to `buf`.
    #[inline]
    pub fn data_in(&self, memory: &mut GuestMemory, len_bytes: u64, buf: &mut IoBuf) -> Result<(), Fault> {
        let mut rest = len_bytes;
        for piece in &self.writable {
            let n = rest.min(u64::from(piece.len_bytes));
            memory.translate(piece.address, n, Access::Write, buf)?;
            rest -= n;
        }
        Ok(())
    }
}
