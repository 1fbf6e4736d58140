//! Shared mappings and views into them.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap};

use crate::access::{self, Lost};
use crate::budget::{Budget, OverBudget, Share};

/// `f_type` of hugetlbfs (statfs(2)), whose files can only be mapped in whole huge pages.
const HUGETLBFS_MAGIC: u32 = 0x9584_58f6;
/// What a cache keeps or not as a whole.
pub const CACHE_LINE_BYTES: usize = 64;

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
    /// Its pages are not memory: reading one may block, for example on a FUSE server.
    #[error("guest memory must be a memfd or a file on tmpfs or hugetlbfs")]
    NotMemory,
    /// See [`Budget`].
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// The kernel refused.
    #[error("the kernel refused the mapping: {0}")]
    Os(#[from] rustix::io::Errno),
}

impl MapError {
    /// Whether nothing of the file can be mapped, although it was named as it should be. What lies there is a hole in
    /// the guest's memory then: the guest may never use it for its commands.
    pub fn is_of_file(&self) -> bool {
        use rustix::io::Errno;
        // An empty memfd stands for a file that a client's messages may not bring.
        let is_empty = matches!(self, Self::PastEnd { file_bytes: 0, .. });
        is_empty || matches!(self, Self::NotMemory | Self::Os(Errno::ACCESS | Errno::PERM | Errno::NODEV))
    }

    /// What to say of such a hole: where it is in the guest, which file is behind it, and what to do.
    pub fn hole(&self, fd: BorrowedFd<'_>, guest_addr: u64, len_bytes: u64) -> String {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let mut file = name.map_or_else(|_| "a file".to_owned(), |name| name.display().to_string());
        let mut why = self.to_string();
        if matches!(self, Self::PastEnd { .. }) {
            file = file.trim_start_matches("/memfd:").trim_end_matches(" (deleted)").to_owned();
            why = Self::NotMemory.to_string();
        }
        format!(
            "guest memory of {len_bytes:#x} bytes at {guest_addr:#x} is in {file}, which can't be mapped ({why}): \
             commands that use it fail"
        )
    }
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
    /// A peer can reach it, and take it away.
    is_shared: bool,
    /// An access found that the peer did take it away.
    is_lost: AtomicBool,
    /// What it takes of its tenant's budget.
    shares: Vec<Share>,
    /// The mapping that owns the memory, if this one is an alias: see [`Mapping::alias`].
    owner: Option<Arc<Mapping>>,
    /// Those whose memory this one has too: see [`Mapping::joined`].
    pieces: Vec<Arc<Mapping>>,
}

/// Mappings that were lost so far, in the whole process: look at many mappings only when this changes.
static LOSSES: AtomicUsize = AtomicUsize::new(0);

/// How often any mapping was found to be lost; one load.
#[inline]
pub(crate) fn losses() -> usize {
    LOSSES.load(Ordering::Relaxed)
}

// SAFETY: the mapping is plain memory that stays valid until drop; all access goes through raw
// pointers and atomics, never through references to non-atomic data.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent access is what shared memory is for.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len_bytes` of `fd` from `offset_bytes`, shared with all others that map it.
    ///
    /// # Errors
    /// See [`MapError`]. No file system is asked for anything unless its files are memory, so that this waits for
    /// nobody.
    pub fn shared(
        fd: BorrowedFd<'_>,
        offset_bytes: u64,
        len_bytes: u64,
        writable: bool,
    ) -> Result<Arc<Self>, MapError> {
        Self::map(fd, offset_bytes, len_bytes, writable, None)
    }

    /// As [`Mapping::shared`], for a client that may have so much and no more. What it takes of the budget comes back
    /// when the mapping is gone.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn within(
        budget: &Arc<Budget>,
        fd: BorrowedFd<'_>,
        offset_bytes: u64,
        len_bytes: u64,
        writable: bool,
    ) -> Result<Arc<Self>, MapError> {
        Self::map(fd, offset_bytes, len_bytes, writable, Some(budget))
    }

    fn map(
        fd: BorrowedFd<'_>,
        offset_bytes: u64,
        len_bytes: u64,
        writable: bool,
        budget: Option<&Arc<Budget>>,
    ) -> Result<Arc<Self>, MapError> {
        let bad = MapError::BadRange { offset_bytes, len_bytes };
        let Some(end_bytes) = offset_bytes.checked_add(len_bytes) else { return Err(bad) };
        let Ok(len) = usize::try_from(len_bytes) else { return Err(bad) };
        if len == 0 || len > isize::MAX as usize || !offset_bytes.is_multiple_of(4096) {
            return Err(bad);
        }
        check_memory(fd)?;
        let file_bytes = u64::try_from(fstat(fd)?.st_size).unwrap_or(0);
        if file_bytes < end_bytes {
            return Err(MapError::PastEnd { file_bytes, end_bytes });
        }
        let page_bytes = page_bytes(fd)?;
        let area_offset = offset_bytes - offset_bytes % page_bytes;
        let head = (offset_bytes - area_offset) as usize;
        let area_bytes = (end_bytes - area_offset).checked_next_multiple_of(page_bytes);
        let Some(area_bytes) = area_bytes.filter(|&bytes| bytes <= isize::MAX as u64) else { return Err(bad) };
        let share = budget.map(|budget| Budget::take(budget, area_bytes)).transpose()?;
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let area = unsafe { mmap(std::ptr::null_mut(), area_bytes as usize, prot, flags, fd, area_offset)? };
        let mut mapping = Self::own(area.cast(), area_bytes as usize, writable)?;
        (mapping.is_shared, mapping.shares) = (true, share.into_iter().collect());
        // SAFETY: the head is shorter than the area.
        mapping.base = unsafe { mapping.area.add(head) };
        mapping.len_bytes = len;
        Ok(Arc::new(mapping))
    }

    /// Maps registers of a device, which its driver in the kernel offers: every load and store of them is one access
    /// of the bus. Where the device is gone or asleep they may be lost, as a peer's memory may be.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn registers(fd: BorrowedFd<'_>, offset_bytes: u64, len_bytes: u64) -> Result<Arc<Self>, MapError> {
        let bad = MapError::BadRange { offset_bytes, len_bytes };
        let whole = len_bytes > 0 && offset_bytes.is_multiple_of(4096) && len_bytes.is_multiple_of(4096);
        let len = usize::try_from(len_bytes).ok().filter(|len| whole && *len <= isize::MAX as usize);
        let Some(len) = len else { return Err(bad) };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, offset_bytes)? };
        let mut mapping = Self::own(base.cast(), len, true)?;
        mapping.is_shared = true;
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

    /// This memory with a reference count of its own: threads that pin it per command would otherwise all write to the
    /// cache line of one counter.
    pub fn alias(owner: &Arc<Self>) -> Arc<Self> {
        let Self { base, len_bytes, writable, area, area_bytes, is_shared, .. } = **owner;
        let (is_lost, owner) = (AtomicBool::new(false), Some(Arc::clone(owner)));
        let (shares, pieces) = (Vec::new(), Vec::new());
        Arc::new(Self { base, len_bytes, writable, area, area_bytes, is_shared, is_lost, shares, owner, pieces })
    }

    /// Pieces of shared mappings, one after the other, mapped once more: offset and length of each in bytes. All start
    /// and end at page boundaries, but for the last one's end. Each takes one mapping of its tenant's budget.
    ///
    /// # Errors
    /// They don't, one lies beyond its mapping, the kernel maps huge pages only, or the budget is used up.
    pub(crate) fn joined(pieces: Vec<(Arc<Self>, u64, u64)>) -> Result<Arc<Self>, MapError> {
        let total_bytes: u64 = pieces.iter().map(|(_, _, len_bytes)| len_bytes.next_multiple_of(4096)).sum();
        let bad = MapError::BadRange { offset_bytes: 0, len_bytes: total_bytes };
        let Some(len) = usize::try_from(total_bytes).ok().filter(|len| (1..=1 << 30).contains(len)) else {
            return Err(bad);
        };
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
        let area = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let mut joined = Self::own(area.cast(), len, pieces.iter().all(|(piece, ..)| piece.writable))?;
        joined.is_shared = true;
        let mut at = 0;
        for (index, (piece, offset, len_bytes)) in pieces.iter().enumerate() {
            let Some(from) = piece.at(*offset, *len_bytes).filter(|_| piece.is_shared) else { return Err(bad) };
            let piece_bytes = len_bytes.next_multiple_of(4096);
            let is_whole = piece_bytes == *len_bytes || index + 1 == pieces.len();
            if !is_whole || !from.addr().get().is_multiple_of(4096) {
                return Err(bad);
            }
            let owner = piece.owner.as_ref().unwrap_or(piece);
            let share = owner.shares.first().map(|share| Budget::take(share.budget(), piece_bytes)).transpose()?;
            joined.shares.extend(share);
            // SAFETY: an old length of 0 maps the pages of a shared mapping once more and leaves it as it is. They
            // replace a part of the area that was mapped for it and that nothing else uses.
            unsafe {
                let to = joined.area.as_ptr().add(at).cast();
                mremap_fixed(from.as_ptr().cast(), 0, piece_bytes as usize, MremapFlags::MAYMOVE, to)?;
            }
            at += piece_bytes as usize;
        }
        joined.pieces = pieces.into_iter().map(|(piece, ..)| piece).collect();
        Ok(Arc::new(joined))
    }

    fn own(base: *mut u8, len_bytes: usize, writable: bool) -> Result<Self, rustix::io::Errno> {
        let base = NonNull::new(base).ok_or(rustix::io::Errno::NOMEM)?;
        // It holds tenants' data: keep it out of the core dump of a crashed daemon.
        // SAFETY: a whole mapping of ours, whose content the advice leaves as it is.
        unsafe { madvise(base.as_ptr().cast(), len_bytes, Advice::LinuxDontDump)? };
        Ok(Self {
            base,
            len_bytes,
            writable,
            area: base,
            area_bytes: len_bytes,
            is_shared: false,
            is_lost: AtomicBool::new(false),
            shares: Vec::new(),
            owner: None,
            pieces: Vec::new(),
        })
    }

    /// Whether an access found that the peer took memory away. Needs [`install`](crate::install).
    pub fn is_lost(&self) -> bool {
        self.owner.as_deref().unwrap_or(self).is_lost.load(Ordering::Acquire)
    }

    /// An access to something that must be there, say a ring, failed.
    #[cold]
    pub(crate) fn lose(&self) {
        // Their ranges tell the tenant's address space.
        self.pieces.iter().for_each(|piece| piece.lose());
        if !self.owner.as_deref().unwrap_or(self).is_lost.swap(true, Ordering::AcqRel) {
            LOSSES.fetch_add(1, Ordering::Release);
        }
    }

    /// Data could not be read or written: the command fails, and if the peer is to blame for it, so does the peer.
    #[cold]
    pub(crate) fn fault(&self, lost: Lost) {
        match lost {
            Lost::Page => self.lose(),
            Lost::BadPage => {}
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
        !self.is_shared
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

    /// Copies `out.len()` bytes out from `offset`. `None`: not all inside, or lost.
    #[inline]
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Option<()> {
        let src = self.at(offset, out.len() as u64)?;
        // SAFETY: the source is inside the mapping, `out` is ours and disjoint from it. A peer may
        // write meanwhile: the bytes are then any mix, and the caller checks them.
        let copied = unsafe { access::copy(src.as_ptr(), out.as_mut_ptr(), out.len()) };
        copied.map_err(|lost| self.fault(lost)).ok()
    }

    /// The 16 bytes at `offset`, by one access. `None`: not all inside, or lost.
    #[inline]
    pub(crate) fn read_16(&self, offset: u64) -> Option<[u8; 16]> {
        let src = self.at(offset, 16)?;
        // SAFETY: as in `read_at`.
        let copied = unsafe { access::load_16(src.as_ptr()) };
        copied.map_err(|lost| self.fault(lost)).ok()
    }

    /// Puts one byte at `offset`. `None`: not inside, not writable, or lost.
    #[inline]
    pub(crate) fn write_u8(&self, offset: u64, value: u8) -> Option<()> {
        if !self.writable {
            return None;
        }
        let dst = self.at(offset, 1)?;
        // SAFETY: as in `write_at`.
        let copied = unsafe { access::store_u8(dst.as_ptr(), value) };
        copied.map_err(|lost| self.fault(lost)).ok()
    }

    /// Prefetches `lines` cache lines from `offset` on. Does nothing if they are not all inside.
    #[inline]
    pub fn prefetch(&self, offset: u64, lines: u16) {
        if let Some(at) = self.at(offset, u64::from(lines) * CACHE_LINE_BYTES as u64) {
            (0..usize::from(lines))
                .for_each(|line| access::prefetch(at.as_ptr().wrapping_add(line * CACHE_LINE_BYTES)));
        }
    }

    /// Copies `data` in at `offset`. `None`: not all inside, not writable, or lost.
    #[inline]
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Option<()> {
        if !self.writable {
            return None;
        }
        let dst = self.at(offset, data.len() as u64)?;
        // SAFETY: the destination is inside a writable mapping and disjoint from `data`.
        let copied = unsafe { access::copy(data.as_ptr(), dst.as_ptr(), data.len()) };
        copied.map_err(|lost| self.fault(lost)).ok()
    }

    /// Gives whole pages back to the system; they read as zeros afterwards. Partial pages at both ends are zeroed by
    /// hand. Only for memory of [`Mapping::anonymous`].
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
        // SAFETY: the mapping is ours and this was its last user. Failure would only leak it.
        let _ = unsafe { munmap(self.area.as_ptr().cast(), self.area_bytes) };
    }
}

/// Checks that the pages of a file are memory, by what no file system is asked for: only files of tmpfs (memfds among
/// them) and hugetlbfs have seals (fcntl(2)), whichever they are. Devices have none, wherever their nodes lie.
///
/// # Errors
/// [`MapError::NotMemory`]: it is another file. [`MapError::Os`]: the kernel said something else.
pub fn check_memory(fd: BorrowedFd<'_>) -> Result<(), MapError> {
    match fcntl_get_seals(fd) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INVAL) => Err(MapError::NotMemory),
        Err(errno) => Err(errno.into()),
    }
}

/// What a mapping of a file that is memory must be a multiple of.
fn page_bytes(fd: BorrowedFd<'_>) -> Result<u64, rustix::io::Errno> {
    let stat = fstatfs(fd)?;
    let huge_bytes = u64::try_from(stat.f_bsize).unwrap_or(0);
    let huge = stat.f_type as u32 == HUGETLBFS_MAGIC && huge_bytes.is_power_of_two();
    Ok(if huge { huge_bytes.max(4096) } else { 4096 })
}

/// Keeps the pages of `bytes`, such as a key, out of the swap, as far as RLIMIT_MEMLOCK allows it. They stay locked:
/// other keys may lie on them.
pub fn keep_in_memory(bytes: &[u8]) {
    // SAFETY: the range is a live borrow, and mlock changes none of its bytes.
    let _ = unsafe { rustix::mm::mlock(bytes.as_ptr().cast_mut().cast(), bytes.len()) };
}
