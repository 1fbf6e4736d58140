//! Views into a mapping that are visited often: queues and doorbells.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::Mapping;
use crate::access::{self, Lost};

/// A 32-bit cell in shared memory: a doorbell, a shadow doorbell or an event index.
#[derive(Debug, Clone)]
pub struct MappedU32 {
    cell: NonNull<u32>,
    keep: Arc<Mapping>,
}

// SAFETY: the cell is only touched by single loads and stores and lives as long as the mapping that is kept.
unsafe impl Send for MappedU32 {}
// SAFETY: as above.
unsafe impl Sync for MappedU32 {}

impl MappedU32 {
    /// The cell at `offset` of `mapping`. `None`: outside, or not aligned to 4 bytes.
    pub fn new(mapping: &Arc<Mapping>, offset: u64) -> Option<Self> {
        let cell = mapping.at(offset, 4)?.cast::<u32>();
        cell.is_aligned().then(|| Self { cell, keep: Arc::clone(mapping) })
    }

    /// Loads with acquire ordering: what the peer wrote before ringing is visible after. 0 if it is lost.
    #[inline]
    pub fn load(&self) -> u32 {
        // SAFETY: aligned, inside the kept mapping.
        u32::from_le(unsafe { access::load_u32(self.cell.as_ptr()) }.unwrap_or_else(|_| {
            self.keep.lose();
            0
        }))
    }

    /// Stores with release ordering. Only for writable mappings.
    #[inline]
    pub fn store(&self, value: u32) {
        // SAFETY: aligned, inside the kept mapping, writable.
        if self.keep.is_writable() && unsafe { access::store_u32(self.cell.as_ptr(), value.to_le()) }.is_err() {
            self.keep.lose();
        }
    }
}

/// A pinned piece of one mapping, for queues that are visited often.
#[derive(Debug, Clone)]
pub struct MappedRange {
    start: NonNull<u8>,
    len_bytes: u64,
    keep: Arc<Mapping>,
}

// SAFETY: points into the kept mapping; access is by copy or atomic.
unsafe impl Send for MappedRange {}
// SAFETY: as above.
unsafe impl Sync for MappedRange {}

impl MappedRange {
    /// `len_bytes` of `mapping` from `offset`. `None`: not all inside.
    pub fn new(mapping: &Arc<Mapping>, offset: u64, len_bytes: u64) -> Option<Self> {
        let start = mapping.at(offset, len_bytes)?;
        Some(Self { start, len_bytes, keep: Arc::clone(mapping) })
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The 32-bit cell at `offset`. `None`: outside, or not aligned.
    pub fn cell(&self, offset: u64) -> Option<MappedU32> {
        let base = self.start.as_ptr() as u64 - self.keep.addresses().start as u64;
        (offset.checked_add(4)? <= self.len_bytes).then(|| MappedU32::new(&self.keep, base + offset))?
    }

    /// The address of `T` at `offset`. `None`: not all inside, or not aligned.
    #[inline]
    fn aligned<T>(&self, offset: u64) -> Option<NonNull<T>> {
        if offset.checked_add(size_of::<T>() as u64)? > self.len_bytes {
            return None;
        }
        // SAFETY: inside the range by the check above.
        let at = unsafe { self.start.add(offset as usize) }.cast::<T>();
        at.is_aligned().then_some(at)
    }

    /// As [`MappedRange::aligned`], for a store: `None` also for a read-only mapping.
    #[inline]
    fn aligned_mut<T>(&self, offset: u64) -> Option<NonNull<T>> {
        if self.keep.is_writable() { self.aligned(offset) } else { None }
    }

    /// What an access brought. A ring that can't be reached is of no use, whatever happened to its page.
    #[inline]
    fn kept<T>(&self, outcome: Result<T, Lost>) -> Option<T> {
        outcome.map_err(|_| self.keep.lose()).ok()
    }

    /// Reads a 64-byte submission queue entry at `offset` into `out`, once. `None`: outside, or lost.
    #[inline]
    pub fn read_64(&self, offset: u64, out: &mut [u8; 64]) -> Option<()> {
        let at = self.aligned::<[u8; 64]>(offset)?;
        // SAFETY: inside the kept mapping; bytes need no alignment.
        self.kept(unsafe { access::load_64(at.as_ptr().cast(), out) })
    }

    /// Writes 64 bytes at `offset`, to be published by a store after it. `None`: outside, read-only, or lost.
    #[inline]
    pub fn write_64(&self, offset: u64, value: &[u8; 64]) -> Option<()> {
        let at = self.aligned_mut::<[u8; 64]>(offset)?;
        // SAFETY: inside the kept, writable mapping; bytes need no alignment.
        self.kept(unsafe { access::store_64(at.as_ptr().cast(), value) })
    }

    /// Asks the cache for what lies at `offset`, which is read soon. Waits for nothing, and never fails.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        if let Some(at) = self.aligned::<u8>(offset) {
            access::prefetch(at.as_ptr());
        }
    }

    /// As [`MappedRange::prefetch`], for what is written soon.
    #[inline]
    pub fn prefetch_to_write(&self, offset: u64) {
        if let Some(at) = self.aligned_mut::<u8>(offset) {
            access::prefetch_to_write(at.as_ptr());
        }
    }

    /// Reads a 16-byte completion queue entry at `offset`, its second half (with the phase bit) first and
    /// with acquire ordering: `(low, high)`. `None`: outside, not aligned to 16 bytes, or lost.
    #[inline]
    pub fn consume_16(&self, offset: u64) -> Option<(u64, u64)> {
        let at = self.aligned::<Aligned16>(offset)?.as_ptr().cast::<u64>();
        // SAFETY: 16 aligned bytes inside the kept mapping.
        let (low, high) = unsafe {
            let high = self.kept(access::load_u64(at.add(1)))?;
            (self.kept(access::load_u64(at))?, high)
        };
        Some((u64::from_le(low), u64::from_le(high)))
    }

    /// Publishes a 16-byte completion queue entry at `offset`, its second half (with the phase bit)
    /// last and with release ordering. `None`: outside, not aligned to 16 bytes, read-only, or lost.
    #[inline]
    pub fn publish_16(&self, offset: u64, low: u64, high: u64) -> Option<()> {
        let at = self.aligned_mut::<Aligned16>(offset)?.as_ptr().cast::<u64>();
        // SAFETY: 16 aligned bytes inside the kept, writable mapping.
        unsafe {
            self.kept(access::store_u64(at, low.to_le()))?;
            self.kept(access::store_u64(at.add(1), high.to_le()))
        }
    }

    /// Loads a byte, with acquire ordering. `None`: outside, or lost.
    #[inline]
    pub fn load_u8(&self, offset: u64) -> Option<u8> {
        let at = self.aligned::<u8>(offset)?;
        // SAFETY: inside the kept mapping.
        self.kept(unsafe { access::load_u8(at.as_ptr()) })
    }

    /// Loads a little-endian value, with acquire ordering. `None`: outside, not aligned to 2 bytes, or lost.
    #[inline]
    pub fn load_u16(&self, offset: u64) -> Option<u16> {
        let at = self.aligned::<u16>(offset)?;
        // SAFETY: aligned, inside the kept mapping.
        self.kept(unsafe { access::load_u16(at.as_ptr()) }).map(u16::from_le)
    }

    /// Loads a little-endian value, with acquire ordering. `None`: outside, not aligned to 8 bytes, or lost.
    #[inline]
    pub fn load_u64(&self, offset: u64) -> Option<u64> {
        let at = self.aligned::<u64>(offset)?;
        // SAFETY: aligned, inside the kept mapping.
        self.kept(unsafe { access::load_u64(at.as_ptr()) }).map(u64::from_le)
    }

    /// Stores a byte, with release ordering. `None`: outside, read-only, or lost.
    #[inline]
    pub fn store_u8(&self, offset: u64, value: u8) -> Option<()> {
        let at = self.aligned_mut::<u8>(offset)?;
        // SAFETY: inside the kept, writable mapping.
        self.kept(unsafe { access::store_u8(at.as_ptr(), value) })
    }

    /// Stores a little-endian value, with release ordering. `None`: outside, not aligned to 2 bytes, read-only, or
    /// lost.
    #[inline]
    pub fn store_u16(&self, offset: u64, value: u16) -> Option<()> {
        let at = self.aligned_mut::<u16>(offset)?;
        // SAFETY: aligned, inside the kept, writable mapping.
        self.kept(unsafe { access::store_u16(at.as_ptr(), value.to_le()) })
    }

    /// Stores a little-endian value, with release ordering. `None`: outside, not aligned to 8 bytes, read-only, or
    /// lost.
    #[inline]
    pub fn store_u64(&self, offset: u64, value: u64) -> Option<()> {
        let at = self.aligned_mut::<u64>(offset)?;
        // SAFETY: aligned, inside the kept, writable mapping.
        self.kept(unsafe { access::store_u64(at.as_ptr(), value.to_le()) })
    }

    /// Reads a 16-byte descriptor at `offset`, once; any mix of bytes if the peer writes meanwhile. `None`: outside, or
    /// lost.
    #[inline]
    pub fn read_16(&self, offset: u64) -> Option<[u8; 16]> {
        let at = self.aligned::<[u8; 16]>(offset)?;
        // SAFETY: inside the kept mapping; bytes need no alignment.
        self.kept(unsafe { access::load_16(at.as_ptr().cast()) })
    }

    /// Writes 8 bytes at `offset`, to be published by a store after it. `None`: outside, read-only, or lost.
    #[inline]
    pub fn write_8(&self, offset: u64, value: [u8; 8]) -> Option<()> {
        let at = self.aligned_mut::<[u8; 8]>(offset)?;
        // SAFETY: inside the kept, writable mapping; x86-64 stores need no alignment.
        self.kept(unsafe { access::store_u64(at.as_ptr().cast(), u64::from_ne_bytes(value)) })
    }
}

/// Where a completion queue entry may lie.
#[repr(align(16))]
struct Aligned16(#[expect(dead_code, reason = "only its layout counts")] [u8; 16]);
