//! The guest's memory: a few DMA ranges with holes between them, and a shadow copy that says what every
//! byte must be.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use guest_memory::{Access, Mapping};

pub const PAGE_BYTES: usize = 4096;
/// The last eight pages are in no range.
const RAM_BYTES: usize = 64 * PAGE_BYTES;

/// A DMA range that may be mapped.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    pub iova: u64,
    pub len_bytes: u64,
    /// Where it lies in the file. `None`: a range without a descriptor.
    file_offset: Option<usize>,
    writable: bool,
}

const fn slot(iova: u64, pages: u64, file_page: usize, writable: bool) -> Slot {
    Slot { iova, len_bytes: pages * PAGE_BYTES as u64, file_offset: Some(file_page * PAGE_BYTES), writable }
}

/// Slot 2 follows on slot 1; 3 can't be reached; 5 is read only; 6 shows memory of slot 1 again.
pub const SLOTS: [Slot; 7] = [
    slot(0, 8, 0, true),
    slot(0x10_0000, 24, 8, true),
    slot(0x11_8000, 8, 32, true),
    Slot { iova: 0x20_0000, len_bytes: 0x8000, file_offset: None, writable: true },
    slot(0xffff_ffff_ff00_0000, 8, 40, true),
    slot(0x30_0000, 8, 48, false),
    slot(0x40_0000, 8, 8, true),
];

/// How far away a slot lies in the file when it is mapped to its other place.
const ELSEWHERE_BYTES: usize = 4 * PAGE_BYTES;

/// Bytes of the file.
pub type Piece = Range<usize>;

#[derive(Debug)]
pub struct Ram {
    fd: OwnedFd,
    /// The guest's own view.
    view: Arc<Mapping>,
    /// What it must hold.
    shadow: Vec<u8>,
    /// Per slot: where it is mapped to now.
    mapped: [Option<usize>; SLOTS.len()],
    /// Per slot: counts its mappings.
    pub incarnations: [u32; SLOTS.len()],
}

impl Ram {
    /// Zeroed memory, nothing mapped.
    pub fn new() -> Self {
        let (view, fd) = Mapping::memfd("ram", RAM_BYTES).expect("a memfd");
        let mapped = [None; SLOTS.len()];
        Self { fd, view, shadow: vec![0; RAM_BYTES], mapped, incarnations: [0; SLOTS.len()] }
    }

    /// A mapping for the device to use as the slot.
    pub fn mapping(&self, slot: usize, elsewhere: bool) -> Option<Arc<Mapping>> {
        let Slot { len_bytes, writable, .. } = SLOTS[slot];
        let offset = place(slot, elsewhere)? as u64;
        Some(Mapping::shared(self.fd.as_fd(), offset, len_bytes, writable).expect("mappable"))
    }

    /// The slot was mapped.
    pub fn set_mapped(&mut self, slot: usize, elsewhere: bool) {
        self.mapped[slot] = Some(place(slot, elsewhere).unwrap_or(0));
        self.incarnations[slot] += 1;
    }

    /// The slot was unmapped.
    pub fn set_unmapped(&mut self, slot: usize) {
        self.mapped[slot] = None;
    }

    pub fn is_mapped(&self, slot: usize) -> bool {
        self.mapped[slot].is_some()
    }

    /// Whether the slot is mapped to its other place.
    pub fn is_elsewhere(&self, slot: usize) -> bool {
        self.mapped[slot].is_some_and(|at| Some(at) != SLOTS[slot].file_offset)
    }

    /// The slot and file offset of an address, and the bytes from there to the slot's end.
    fn find(&self, iova: u64, access: Access) -> Option<(usize, usize, u64)> {
        let holds = |slot: &Slot| iova >= slot.iova && iova - slot.iova < slot.len_bytes;
        let at = SLOTS.iter().position(holds)?;
        let slot = &SLOTS[at];
        let base = self.mapped[at].filter(|_| slot.file_offset.is_some())?;
        let offset = iova - slot.iova;
        (access == Access::Read || slot.writable).then_some((at, base + offset as usize, slot.len_bytes - offset))
    }

    /// Where these bytes lie, in order. `None`: not all of them can be accessed so.
    pub fn pieces(&self, mut iova: u64, mut len_bytes: u64, access: Access) -> Option<Vec<(usize, Piece)>> {
        let mut pieces = Vec::new();
        while len_bytes > 0 {
            let (slot, at, left) = self.find(iova, access)?;
            let n = left.min(len_bytes);
            pieces.push((slot, at..at + n as usize));
            (iova, len_bytes) = (iova.wrapping_add(n), len_bytes - n);
        }
        Some(pieces)
    }

    /// As [`Ram::pieces`], for what must lie in one range.
    pub fn one(&self, iova: u64, len_bytes: u64, access: Access) -> Option<Piece> {
        let (_, at, left) = self.find(iova, access)?;
        (left >= len_bytes).then_some(at..at + len_bytes as usize)
    }

    /// What the device reads at an address.
    pub fn load(&self, iova: u64, len_bytes: u64) -> Option<Vec<u8>> {
        let pieces = self.pieces(iova, len_bytes, Access::Read)?;
        Some(pieces.into_iter().flat_map(|(_, piece)| self.shadow[piece].to_vec()).collect())
    }

    /// What these bytes must be.
    pub fn expected(&self, piece: &Piece) -> &[u8] {
        &self.shadow[piece.clone()]
    }

    /// What these bytes are.
    pub fn actual(&self, piece: &Piece) -> Vec<u8> {
        let mut out = vec![0; piece.len()];
        self.view.read_at(piece.start as u64, &mut out).expect("inside");
        out
    }

    /// The guest writes.
    pub fn poke(&mut self, piece: &Piece, data: &[u8]) {
        self.view.write_at(piece.start as u64, data).expect("inside");
        self.shadow[piece.clone()].copy_from_slice(data);
    }

    /// The guest writes where an address is mapped, or would be. Whatever lies outside is left out.
    pub fn poke_at(&mut self, mut iova: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let holds = |slot: &Slot| iova >= slot.iova && iova - slot.iova < slot.len_bytes;
            let Some(slot) = SLOTS.iter().position(holds) else { return };
            let offset = iova - SLOTS[slot].iova;
            let n = data.len().min((SLOTS[slot].len_bytes - offset) as usize);
            let (now, later) = data.split_at(n);
            if let Some(base) = SLOTS[slot].file_offset {
                let at = self.mapped[slot].unwrap_or(base) + offset as usize;
                self.poke(&(at..at + n), now);
            }
            (iova, data) = (iova.wrapping_add(n as u64), later);
        }
    }

    /// The device must have written these bytes.
    pub fn expect(&mut self, piece: &Piece, data: &[u8]) {
        self.shadow[piece.clone()].copy_from_slice(data);
    }

    /// The device may have written anything here.
    pub fn allow(&mut self, piece: &Piece) {
        self.view.read_at(piece.start as u64, &mut self.shadow[piece.clone()]).expect("inside");
    }

    /// Flips a byte behind the oracle's back.
    pub fn corrupt(&self, at: usize) {
        self.view.write_at(at as u64, &[!self.shadow[at]]).expect("inside");
    }

    /// Panics if a byte is not what it must be.
    pub fn check(&self) {
        let mut chunk = [0; PAGE_BYTES];
        for (page, must) in self.shadow.chunks_exact(PAGE_BYTES).enumerate() {
            self.view.read_at((page * PAGE_BYTES) as u64, &mut chunk).expect("inside");
            if chunk[..] != *must {
                let at = chunk.iter().zip(must).position(|(is, must)| is != must).unwrap_or(0);
                let (is, must) = (chunk[at], must[at]);
                panic!("guest memory: page {page}, byte {at:#x} is {is:#x}, must be {must:#x}: nobody named it");
            }
        }
    }
}

fn place(slot: usize, elsewhere: bool) -> Option<usize> {
    let offset = SLOTS[slot].file_offset?;
    Some(if elsewhere { offset + ELSEWHERE_BYTES } else { offset })
}

/// Whether two pieces share a byte.
pub fn overlaps(a: &Piece, b: &Piece) -> bool {
    a.start < b.end && b.start < a.end
}
