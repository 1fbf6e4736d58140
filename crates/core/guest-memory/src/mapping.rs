//! Shared mappings and views into them.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{FileType, MemfdFlags, SealFlags, fcntl_add_seals, fstat, fstatfs, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::sigbus::Guard;

/// `f_type` of hugetlbfs (statfs(2)), whose files can only be mapped in whole huge pages.
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;

/// Why a file descriptor could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Zero length, or offset and length overflow, or not aligned to 4 KiB.
    #[error("a mapping of {len_bytes} bytes at file offset {offset_bytes} is empty, overflows or is not page aligned")]
    BadRange {
        /// Offset in the file.
        offset_bytes: u64,
        /// Length asked for.
        len_bytes: u64,
    },
    /// The file ends before the mapping would.
    #[error("the file has {file_bytes} bytes, the mapping would end at {end_bytes}")]
    PastEnd {
        /// Size of the file.
        file_bytes: u64,
        /// End of the mapping asked for.
        end_bytes: u64,
    },
    /// The process has too many shared mappings.
    #[error("too many mappings in the whole daemon")]
    TooMany,
    /// The kernel refused.
    #[error("the kernel refused the mapping: {0}")]
    Os(#[from] rustix::io::Errno),
}

/// One shared mapping; unmapped when the last `Arc` to it is dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
    writable: bool,
    /// All that is mapped, `base` and `len_bytes` being a part of it: whole huge pages where the file
    /// is made of them.
    area: NonNull<u8>,
    area_bytes: usize,
    /// For memory that a peer can take away.
    guard: Option<Guard>,
    /// Whose memory this is, if it is another one's: see [`Mapping::alias`].
    owner: Option<Arc<Mapping>>,
}

// SAFETY: the mapping is plain memory that stays valid until drop; all access goes through raw
// pointers and atomics, never through references to non-atomic data.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent access is what shared memory is for.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len_bytes` of `fd` from `offset_bytes`, shared with whoever else maps it.
    pub fn shared(
        fd: BorrowedFd<'_>,
        offset_bytes: u64,
        len_bytes: u64,
        writable: bool,
    ) -> Result<Arc<Self>, MapError> {
        let bad = MapError::BadRange { offset_bytes, len_bytes };
        let Some(end_bytes) = offset_bytes.checked_add(len_bytes) else { return Err(bad) };
        let Ok(len) = usize::try_from(len_bytes) else { return Err(bad) };
        if len == 0 || len > isize::MAX as usize || !offset_bytes.is_multiple_of(4096) {
            return Err(bad);
        }
        let stat = fstat(fd)?;
        let file_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && file_bytes < end_bytes {
            return Err(MapError::PastEnd { file_bytes, end_bytes });
        }
        let page_bytes = page_bytes(fd)?;
        let area_offset = offset_bytes - offset_bytes % page_bytes;
        let head = (offset_bytes - area_offset) as usize;
        let area_bytes = (end_bytes - area_offset).checked_next_multiple_of(page_bytes);
        let Some(area_bytes) = area_bytes.filter(|&bytes| bytes <= isize::MAX as u64) else { return Err(bad) };
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let area = unsafe { mmap(std::ptr::null_mut(), area_bytes as usize, prot, flags, fd, area_offset)? };
        let mut mapping = Self::own(area.cast(), area_bytes as usize, writable)?;
        let guard = Guard::enter(area as usize, area_bytes as usize).ok_or(MapError::TooMany)?;
        mapping.guard = Some(guard);
        // SAFETY: the head is shorter than the area.
        mapping.base = unsafe { mapping.area.add(head) };
        mapping.len_bytes = len;
        Ok(Arc::new(mapping))
    }

    /// Zeroed memory of our own, populated on first touch.
    pub fn anonymous(len_bytes: usize) -> Result<Arc<Self>, MapError> {
        if len_bytes == 0 || len_bytes > isize::MAX as usize {
            return Err(MapError::BadRange { offset_bytes: 0, len_bytes: len_bytes as u64 });
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping aliases nothing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len_bytes, prot, MapFlags::PRIVATE | MapFlags::NORESERVE)? };
        Ok(Arc::new(Self::own(base.cast(), len_bytes, true)?))
    }

    /// Zeroed memory behind a new file descriptor, to be handed to a peer. Nobody can change its size.
    pub fn memfd(name: &str, len_bytes: usize) -> Result<(Arc<Self>, OwnedFd), MapError> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len_bytes as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::shared(fd.as_fd(), 0, len_bytes as u64, true)?, fd))
    }

    /// The same memory under a count of its own: threads that pin it per command would otherwise all write to
    /// one counter's cache line.
    pub fn alias(owner: &Arc<Self>) -> Arc<Self> {
        let Self { base, len_bytes, writable, area, area_bytes, .. } = **owner;
        Arc::new(Self { base, len_bytes, writable, area, area_bytes, guard: None, owner: Some(Arc::clone(owner)) })
    }

    fn own(base: *mut u8, len_bytes: usize, writable: bool) -> Result<Self, MapError> {
        let base = NonNull::new(base).ok_or(MapError::Os(rustix::io::Errno::NOMEM))?;
        // Tenants' data, all of it: nothing for whoever reads a crashed daemon's core dump.
        // SAFETY: a whole mapping of ours, whose content the advice leaves as it is.
        unsafe { madvise(base.as_ptr().cast(), len_bytes, Advice::LinuxDontDump)? };
        Ok(Self { base, len_bytes, writable, area: base, area_bytes: len_bytes, guard: None, owner: None })
    }

    /// Whether the peer took the memory away: it reads as zeros now, and what is written goes nowhere.
    /// Needs [`sigbus::install`](crate::sigbus::install).
    pub fn is_poisoned(&self) -> bool {
        match &self.owner {
            Some(owner) => owner.is_poisoned(),
            None => self.guard.as_ref().is_some_and(Guard::is_poisoned),
        }
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes as u64
    }

    /// Where it lies in this process. No two mappings overlap while they live, except for [aliases](Mapping::alias).
    pub fn addresses(&self) -> Range<usize> {
        let start = self.base.as_ptr() as usize;
        start..start + self.len_bytes
    }

    /// Whether it is memory of our own that no peer can reach, see [`Mapping::anonymous`].
    pub fn is_own(&self) -> bool {
        match &self.owner {
            Some(owner) => owner.is_own(),
            None => self.guard.is_none(),
        }
    }

    /// Whether we may write to it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The address of `len` bytes at `offset`, or `None` if they are not all inside.
    #[inline]
    pub(crate) fn at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.len_bytes as u64 {
            return None;
        }
        // SAFETY: offset is inside the mapping (or one past its end), whose length fits isize.
        Some(unsafe { self.base.add(offset as usize) })
    }

    /// Copies `out.len()` bytes out from `offset`. `None`: not all inside.
    #[inline]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Option<()> {
        let src = self.at(offset, out.len() as u64)?;
        // SAFETY: the source is inside the mapping, `out` is ours and disjoint from it. A peer may
        // write meanwhile: the bytes are then any mix, and the caller checks them.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), out.as_mut_ptr(), out.len()) };
        Some(())
    }

    /// Copies `data` in at `offset`. `None`: not all inside, or not writable.
    #[inline]
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Option<()> {
        if !self.writable {
            return None;
        }
        let dst = self.at(offset, data.len() as u64)?;
        // SAFETY: the destination is inside a writable mapping and disjoint from `data`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), dst.as_ptr(), data.len()) };
        Some(())
    }

    /// Gives whole pages back to the system; they read as zeros afterwards. Partial pages at both
    /// ends are zeroed by hand. Only for memory of [`Mapping::anonymous`].
    pub fn discard(&self, offset: u64, len: u64) -> Option<()> {
        self.at(offset, len)?;
        if !self.writable {
            return None;
        }
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(4096).min(end), (end & !4095).max(offset));
        if first < last {
            self.fill_zero(offset, first - offset);
            self.fill_zero(last, end - last);
            let start = self.at(first, last - first)?;
            // SAFETY: whole pages inside our own mapping; nobody holds references into it.
            let dropped = unsafe { madvise(start.as_ptr().cast(), (last - first) as usize, Advice::LinuxDontNeed) };
            if dropped.is_err() {
                self.fill_zero(first, last - first);
            }
        } else {
            self.fill_zero(offset, len);
        }
        Some(())
    }

    fn fill_zero(&self, offset: u64, len: u64) {
        if let Some(dst) = self.at(offset, len) {
            // SAFETY: inside a writable mapping, checked by `at` and by the caller.
            unsafe { std::ptr::write_bytes(dst.as_ptr(), 0, len as usize) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.owner.is_some() {
            return;
        }
        // Out of the table first: from the unmapping on the addresses may be somebody else's.
        self.guard = None;
        // SAFETY: the mapping is ours and this was its last user. Failure would only leak it.
        let _ = unsafe { munmap(self.area.as_ptr().cast(), self.area_bytes) };
    }
}

/// What a mapping of the file must be a multiple of.
fn page_bytes(fd: BorrowedFd<'_>) -> Result<u64, MapError> {
    let stat = fstatfs(fd)?;
    let huge_bytes = u64::try_from(stat.f_bsize).unwrap_or(0);
    let huge = stat.f_type as u32 == HUGETLBFS_MAGIC && huge_bytes.is_power_of_two();
    Ok(if huge { huge_bytes.max(4096) } else { 4096 })
}

/// A 32-bit cell in shared memory: a doorbell, a shadow doorbell or an event index.
#[derive(Debug, Clone)]
pub struct MappedU32 {
    cell: NonNull<AtomicU32>,
    _keep: Arc<Mapping>,
}

// SAFETY: the cell is only touched atomically and lives as long as the mapping that is kept.
unsafe impl Send for MappedU32 {}
// SAFETY: as above.
unsafe impl Sync for MappedU32 {}

impl MappedU32 {
    /// The cell at `offset` of `mapping`. `None`: outside, or not aligned to 4 bytes.
    pub fn new(mapping: &Arc<Mapping>, offset: u64) -> Option<Self> {
        let cell = mapping.at(offset, 4)?.cast::<AtomicU32>();
        cell.is_aligned().then(|| Self { cell, _keep: Arc::clone(mapping) })
    }

    /// Loads with acquire ordering: what the peer wrote before ringing is visible after.
    #[inline]
    pub fn load(&self) -> u32 {
        // SAFETY: aligned, inside the kept mapping, atomic.
        u32::from_le(unsafe { self.cell.as_ref() }.load(Ordering::Acquire))
    }

    /// Stores with release ordering. Only for writable mappings.
    #[inline]
    pub fn store(&self, value: u32) {
        if self._keep.writable {
            // SAFETY: aligned, inside the kept mapping, atomic, writable.
            unsafe { self.cell.as_ref() }.store(value.to_le(), Ordering::Release);
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
        let base = self.start.as_ptr() as u64 - self.keep.base.as_ptr() as u64;
        (offset.checked_add(4)? <= self.len_bytes).then(|| MappedU32::new(&self.keep, base + offset))?
    }

    /// Reads a 64-byte submission queue entry at `offset`, once. `None`: outside.
    #[inline]
    pub fn read_64(&self, offset: u64) -> Option<[u8; 64]> {
        if offset.checked_add(64)? > self.len_bytes {
            return None;
        }
        let mut out = [0; 64];
        // SAFETY: inside the kept mapping by the check above; `out` is ours.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(offset as usize), out.as_mut_ptr(), 64) };
        Some(out)
    }

    /// Reads a 16-byte completion queue entry at `offset`, its second half (with the phase bit) first and
    /// with acquire ordering: `(low, high)`. `None`: outside, or not aligned to 16 bytes.
    #[inline]
    pub fn consume_16(&self, offset: u64) -> Option<(u64, u64)> {
        let at = self.start.as_ptr().wrapping_add(offset as usize).cast::<AtomicU64>();
        if offset.checked_add(16)? > self.len_bytes || !(at as usize).is_multiple_of(16) {
            return None;
        }
        // SAFETY: 16 aligned bytes inside the kept mapping; atomic loads.
        let (low, high) = unsafe {
            let high = (*at.add(1)).load(Ordering::Acquire);
            ((*at).load(Ordering::Relaxed), high)
        };
        Some((u64::from_le(low), u64::from_le(high)))
    }

    /// Publishes a 16-byte completion queue entry at `offset`, its second half (with the phase bit)
    /// last and with release ordering. `None`: outside, not aligned to 16 bytes, or read-only.
    #[inline]
    pub fn publish_16(&self, offset: u64, low: u64, high: u64) -> Option<()> {
        let at = self.start.as_ptr().wrapping_add(offset as usize).cast::<AtomicU64>();
        if offset.checked_add(16)? > self.len_bytes || !(at as usize).is_multiple_of(16) || !self.keep.writable {
            return None;
        }
        // SAFETY: 16 aligned bytes inside the kept, writable mapping; atomic stores.
        unsafe {
            (*at).store(low.to_le(), Ordering::Relaxed);
            (*at.add(1)).store(high.to_le(), Ordering::Release);
        }
        Some(())
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
        if self.keep.writable { self.aligned(offset) } else { None }
    }

    /// Loads a byte, with acquire ordering. `None`: outside.
    #[inline]
    pub fn load_u8(&self, offset: u64) -> Option<u8> {
        let at = self.aligned::<AtomicU8>(offset)?;
        // SAFETY: inside the kept mapping; atomic.
        Some(unsafe { at.as_ref() }.load(Ordering::Acquire))
    }

    /// Loads a little-endian value, with acquire ordering. `None`: outside, or not aligned to 2 bytes.
    #[inline]
    pub fn load_u16(&self, offset: u64) -> Option<u16> {
        let at = self.aligned::<AtomicU16>(offset)?;
        // SAFETY: aligned, inside the kept mapping; atomic.
        Some(u16::from_le(unsafe { at.as_ref() }.load(Ordering::Acquire)))
    }

    /// Loads a little-endian value, with acquire ordering. `None`: outside, or not aligned to 8 bytes.
    #[inline]
    pub fn load_u64(&self, offset: u64) -> Option<u64> {
        let at = self.aligned::<AtomicU64>(offset)?;
        // SAFETY: aligned, inside the kept mapping; atomic.
        Some(u64::from_le(unsafe { at.as_ref() }.load(Ordering::Acquire)))
    }

    /// Stores a byte, with release ordering. `None`: outside, or read-only.
    #[inline]
    pub fn store_u8(&self, offset: u64, value: u8) -> Option<()> {
        let at = self.aligned_mut::<AtomicU8>(offset)?;
        // SAFETY: inside the kept, writable mapping; atomic.
        unsafe { at.as_ref() }.store(value, Ordering::Release);
        Some(())
    }

    /// Stores a little-endian value, with release ordering. `None`: outside, not aligned to 2 bytes, or read-only.
    #[inline]
    pub fn store_u16(&self, offset: u64, value: u16) -> Option<()> {
        let at = self.aligned_mut::<AtomicU16>(offset)?;
        // SAFETY: aligned, inside the kept, writable mapping; atomic.
        unsafe { at.as_ref() }.store(value.to_le(), Ordering::Release);
        Some(())
    }

    /// Stores a little-endian value, with release ordering. `None`: outside, not aligned to 8 bytes, or read-only.
    #[inline]
    pub fn store_u64(&self, offset: u64, value: u64) -> Option<()> {
        let at = self.aligned_mut::<AtomicU64>(offset)?;
        // SAFETY: aligned, inside the kept, writable mapping; atomic.
        unsafe { at.as_ref() }.store(value.to_le(), Ordering::Release);
        Some(())
    }

    /// Reads a 16-byte descriptor at `offset`, once; any mix of bytes if the peer writes meanwhile. `None`: outside.
    #[inline]
    pub fn read_16(&self, offset: u64) -> Option<[u8; 16]> {
        let at = self.aligned::<[u8; 16]>(offset)?;
        // SAFETY: inside the kept mapping; bytes need no alignment.
        Some(unsafe { at.read() })
    }

    /// Writes 8 bytes at `offset`, to be published by a store after it. `None`: outside, or read-only.
    #[inline]
    pub fn write_8(&self, offset: u64, value: [u8; 8]) -> Option<()> {
        let at = self.aligned_mut::<[u8; 8]>(offset)?;
        // SAFETY: inside the kept, writable mapping; bytes need no alignment.
        unsafe { at.write(value) };
        Some(())
    }
}
