//! A tenant's DMA address space.

use std::sync::Arc;

use crate::mapping::losses;
use crate::{IoBuf, MappedRange, Mapping};

/// At most this many DMA ranges per tenant. QEMU uses about a dozen, a DPDK process one per huge page, a guest behind
/// an IOMMU one per page in flight.
pub const MAX_RANGES: usize = 4096;

/// Direction of an access, as the device sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The device reads guest memory (a write command's data).
    Read,
    /// The device writes guest memory (a read command's data).
    Write,
}

/// An access outside of what the tenant mapped, or against its protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("guest memory at {iova:#x} is not mapped for this access")]
pub struct Fault {
    /// The first address that failed.
    pub iova: u64,
}

/// Why a DMA map or unmap was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// Empty, or wraps around the end of the address space.
    #[error("the range is empty or wraps around")]
    BadRange,
    /// Another range is already there.
    #[error("the range overlaps one that is mapped")]
    Overlap,
    /// It would leave a part of a range.
    #[error("only a part of a range that is mapped would be taken out")]
    Part,
    /// Too many ranges.
    #[error("more than {MAX_RANGES} ranges")]
    TooMany,
    /// See [`Refused`].
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// Pins that a range keeps for the next commands, at most.
const SPARE: usize = 256;

#[derive(Debug)]
struct Range {
    iova: u64,
    len_bytes: u64,
    /// `None`: a hole, known but not reachable.
    mapping: Option<Arc<Mapping>>,
    /// Pins of commands that ended, for the next ones: to count one up or down is a locked instruction, which waits
    /// until all stores before it are done, those to rings among them that the guest's CPU has in its cache.
    spare: Vec<Arc<Mapping>>,
}

impl Range {
    fn new(iova: u64, len_bytes: u64, mapping: Option<Arc<Mapping>>) -> Self {
        Self { iova, len_bytes, mapping, spare: Vec::new() }
    }

    fn end(&self) -> u64 {
        self.iova + self.len_bytes
    }

    /// Its mapping, the offset of `iova` in it, and the bytes from there to its end. The range holds `iova`.
    #[inline]
    fn reach(&self, iova: u64, access: Access) -> Result<(&Arc<Mapping>, u64, u64), Fault> {
        match &self.mapping {
            Some(mapping) if access == Access::Read || mapping.is_writable() => {
                Ok((mapping, iova - self.iova, self.end() - iova))
            }
            _ => Err(Fault { iova }),
        }
    }

    /// Taken out: what still pins its mapping is in use.
    fn retired(self) -> Self {
        Self { spare: Vec::new(), ..self }
    }

    /// Whether no command, queue view or anything else uses the range.
    fn is_quiet(&self) -> bool {
        self.mapping.as_ref().is_none_or(|mapping| Arc::strong_count(mapping) == 1)
    }
}

/// Why a device can't reach a mapping: its IOMMU has no entry left, or too much memory is pinned already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device can't reach the memory: {}", std::io::Error::from_raw_os_error(*.errno))]
pub struct Refused {
    /// The system's error number.
    pub errno: i32,
}

/// Learns which memory a tenant's commands may point into. The back end of the poller that serves the tenant does. `()`
/// is for back ends that need not know.
pub trait MemoryListener {
    /// Commands may point into `mapping` from now on, unless refused.
    ///
    /// # Errors
    /// The device can't reach it; nothing has changed.
    fn map(&mut self, mapping: &Mapping) -> Result<(), Refused>;

    /// No command points into `mapping` any more, and it may vanish as soon as this returns. Once for each
    /// [`MemoryListener::map`].
    fn unmap(&mut self, mapping: &Mapping);
}

impl MemoryListener for () {
    fn map(&mut self, _mapping: &Mapping) -> Result<(), Refused> {
        Ok(())
    }

    fn unmap(&mut self, _mapping: &Mapping) {}
}

/// A tenant's DMA address space: sorted ranges, none overlapping. What is taken out of it stays mapped, and known to
/// the [`MemoryListener`], until nothing uses it any more.
#[derive(Debug, Default)]
pub struct GuestMemory {
    ranges: Vec<Range>,
    /// Index of the range that the last look-up hit; guests mostly stay in one.
    last: usize,
    /// Taken out; commands in flight may still use them.
    retired: Vec<Range>,
    /// The process's losses when we last looked for one of ours.
    losses_seen: usize,
    is_lost: bool,
}

impl GuestMemory {
    /// Adds a range and tells `listener`, which must be the same each time. `mapping: None` records a hole: known,
    /// but an access is a [`Fault`].
    ///
    /// # Errors
    /// Nothing has changed then.
    pub fn map(
        &mut self,
        iova: u64,
        len_bytes: u64,
        mapping: Option<Arc<Mapping>>,
        listener: &mut dyn MemoryListener,
    ) -> Result<(), SpaceError> {
        let end = iova.checked_add(len_bytes).filter(|_| len_bytes > 0).ok_or(SpaceError::BadRange)?;
        if mapping.as_ref().is_some_and(|m| m.len_bytes() < len_bytes) {
            return Err(SpaceError::BadRange);
        }
        if self.ranges.len() >= MAX_RANGES {
            return Err(SpaceError::TooMany);
        }
        let at = self.ranges.partition_point(|range| range.end() <= iova);
        if self.ranges.get(at).is_some_and(|next| next.iova < end) {
            return Err(SpaceError::Overlap);
        }
        mapping.as_ref().map_or(Ok(()), |mapping| listener.map(mapping))?;
        self.ranges.insert(at, Range::new(iova, len_bytes, mapping));
        // It may have been lost before it came here.
        self.look_for_losses();
        Ok(())
    }

    /// Takes out all ranges in `len_bytes` at `iova`, which may be none: as the kernel's VFIO does (type 1, version 2).
    /// [`GuestMemory::take_unmapped`] says when nothing uses one any more; nobody may keep its mapping otherwise.
    ///
    /// # Errors
    /// A range is in there only in part. Nothing has changed then.
    pub fn unmap(&mut self, iova: u64, len_bytes: u64) -> Result<(), SpaceError> {
        let end = iova.saturating_add(len_bytes);
        let first = self.ranges.partition_point(|range| range.end() <= iova);
        let beyond = self.ranges.partition_point(|range| range.iova < end);
        let is_cut = |range: &Range| range.iova < iova || range.end() > end;
        let Some(inside) = self.ranges.get(first..beyond) else { return Ok(()) };
        if inside.iter().any(is_cut) {
            return Err(SpaceError::Part);
        }
        self.retired.extend(self.ranges.drain(first..beyond).map(Range::retired));
        self.look_for_losses();
        Ok(())
    }

    /// As [`GuestMemory::unmap`], for every range. Returns their addresses and lengths in bytes.
    pub fn unmap_all(&mut self) -> Vec<(u64, u64)> {
        let taken = self.ranges.iter().map(|range| (range.iova, range.len_bytes)).collect();
        self.retired.extend(self.ranges.drain(..).map(Range::retired));
        self.is_lost = false;
        taken
    }

    /// Becomes `table`, which `listener` knows nothing of yet. Ranges whose memory is in both stay as they are
    /// for the listener; what is new is told, what is gone is as after [`GuestMemory::unmap`].
    ///
    /// # Errors
    /// Something new can't be reached. Nothing has changed then.
    pub fn replace(&mut self, mut table: Self, listener: &mut dyn MemoryListener) -> Result<(), Refused> {
        // Memory is the same if its addresses are, since all of it is mapped now. Each in the order of addresses.
        let addresses = |range: &Range| range.mapping.as_ref().map(|mapping| mapping.addresses());
        let mut old: Vec<(usize, usize)> = Vec::new();
        for (at, range) in self.ranges.iter().enumerate() {
            old.extend(addresses(range).map(|addresses| (addresses.start, at)));
        }
        old.sort_unstable();
        let mut free = vec![true; self.ranges.len()];
        let mut find = |range: &Range| {
            let start = addresses(range)?.start;
            let found = old.binary_search_by_key(&start, |(start, _)| *start).ok()?;
            let (_, at) = old[found];
            std::mem::take(&mut free[at]).then_some(at)
        };
        let kept: Vec<Option<usize>> = table.ranges.iter().map(&mut find).collect();
        let new = |at: &usize| kept[*at].is_none();
        for at in (0..table.ranges.len()).filter(new) {
            let Some(mapping) = &table.ranges[at].mapping else { continue };
            if let Err(refused) = listener.map(mapping) {
                let told = table.ranges[..at].iter().enumerate().filter(|(at, _)| new(at));
                told.filter_map(|(_, range)| range.mapping.as_ref()).for_each(|mapping| listener.unmap(mapping));
                return Err(refused);
            }
        }
        for (range, old) in table.ranges.iter_mut().zip(kept) {
            // Its pins are counted where it was.
            range.mapping = old.map_or(range.mapping.take(), |old| self.ranges[old].mapping.take());
        }
        let gone = self.ranges.drain(..).filter(|range| range.mapping.is_some());
        self.retired.extend(gone.map(Range::retired));
        (self.ranges, self.last) = (table.ranges, 0);
        self.look_for_losses();
        Ok(())
    }

    /// A range taken out that nothing uses any more: its address and length in bytes, each once. `listener` has let go
    /// of it.
    pub fn take_unmapped(&mut self, listener: &mut dyn MemoryListener) -> Option<(u64, u64)> {
        let at = self.retired.iter().position(Range::is_quiet)?;
        let Range { iova, len_bytes, mapping, .. } = self.retired.swap_remove(at);
        mapping.iter().for_each(|mapping| listener.unmap(mapping));
        Some((iova, len_bytes))
    }

    /// Whether something may still use a range that was taken out of `len_bytes` at `iova`.
    pub fn is_in_use(&self, iova: u64, len_bytes: u64) -> bool {
        let end = iova.saturating_add(len_bytes);
        self.retired.iter().any(|range| range.iova < end && range.end() > iova)
    }

    /// Ranges taken out that something may still use.
    pub fn unmaps_pending(&self) -> usize {
        self.retired.len()
    }

    /// All that the listener knows of: what is mapped, and what was taken out and may still be used. For telling
    /// another one.
    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.ranges.iter().chain(&self.retired).filter_map(|range| range.mapping.as_deref())
    }

    /// The range that holds `iova`.
    #[inline]
    fn range_at(&mut self, iova: u64) -> Result<&mut Range, Fault> {
        let holds = |range: &Range| range.iova <= iova && iova - range.iova < range.len_bytes;
        if !self.ranges.get(self.last).is_some_and(holds) {
            let at = self.ranges.partition_point(|range| range.end() <= iova);
            if !self.ranges.get(at).is_some_and(holds) {
                return Err(Fault { iova });
            }
            self.last = at;
        }
        Ok(&mut self.ranges[self.last])
    }

    /// See [`Range::reach`].
    #[inline]
    fn find(&mut self, iova: u64, access: Access) -> Result<(&Arc<Mapping>, u64, u64), Fault> {
        self.range_at(iova)?.reach(iova, access)
    }

    /// Adds guest memory at `iova` to a command's data.
    #[inline]
    pub fn translate(
        &mut self,
        mut iova: u64,
        mut len_bytes: u64,
        access: Access,
        buf: &mut IoBuf,
    ) -> Result<(), Fault> {
        while len_bytes > 0 {
            let range = self.range_at(iova)?;
            if buf.is_unpinned() {
                buf.pin(range.spare.pop());
            }
            let (mapping, offset, left) = range.reach(iova, access)?;
            let n = len_bytes.min(left);
            if !buf.push(mapping, offset, n) {
                return Err(Fault { iova });
            }
            len_bytes -= n;
            iova = iova.checked_add(n).ok_or(Fault { iova })?;
        }
        Ok(())
    }

    /// As [`IoBuf::clear`], for a command that [`GuestMemory::translate`] found the data of: its pin is kept for the
    /// next one, until the memory is taken out.
    #[inline]
    pub fn release(&mut self, buf: &mut IoBuf) {
        if let Some(pin) = buf.take_pin()
            && let Some(range) = self.ranges.get_mut(self.last)
            && range.spare.len() < SPARE
            && range.mapping.as_ref().is_some_and(|mapping| Arc::ptr_eq(mapping, &pin))
        {
            range.spare.push(pin);
        }
        buf.clear();
    }

    /// Copies guest memory out, once.
    pub fn read(&mut self, mut iova: u64, out: &mut [u8]) -> Result<(), Fault> {
        let mut rest = out;
        while !rest.is_empty() {
            let (mapping, offset, left) = self.find(iova, Access::Read)?;
            let n = left.min(rest.len() as u64) as usize;
            let (head, tail) = rest.split_at_mut(n);
            mapping.read_at(offset, head).ok_or(Fault { iova })?;
            rest = tail;
            iova = iova.checked_add(n as u64).ok_or(Fault { iova })?;
        }
        Ok(())
    }

    /// Copies 16 bytes of guest memory out, once: as [`GuestMemory::read`], which takes any length, but in far fewer
    /// instructions where they lie in one range.
    #[inline]
    pub fn read_16(&mut self, iova: u64) -> Result<[u8; 16], Fault> {
        let (mapping, offset, left) = self.find(iova, Access::Read)?;
        if left >= 16 {
            return mapping.read_16(offset).ok_or(Fault { iova });
        }
        let mut out = [0; 16];
        self.read(iova, &mut out)?;
        Ok(out)
    }

    /// Puts one byte into guest memory.
    #[inline]
    pub fn write_u8(&mut self, iova: u64, value: u8) -> Result<(), Fault> {
        let (mapping, offset, _) = self.find(iova, Access::Write)?;
        mapping.write_u8(offset, value).ok_or(Fault { iova })
    }

    /// Copies `data` into guest memory.
    pub fn write(&mut self, mut iova: u64, data: &[u8]) -> Result<(), Fault> {
        let mut rest = data;
        while !rest.is_empty() {
            let (mapping, offset, left) = self.find(iova, Access::Write)?;
            let n = left.min(rest.len() as u64) as usize;
            let (head, tail) = rest.split_at(n);
            mapping.write_at(offset, head).ok_or(Fault { iova })?;
            rest = tail;
            iova = iova.checked_add(n as u64).ok_or(Fault { iova })?;
        }
        Ok(())
    }

    /// A pinned view of `len_bytes` at `iova`, for queues. Where they lie in several ranges (behind an IOMMU of the
    /// guest's), these are mapped once more, one after the other.
    pub fn view(&mut self, iova: u64, len_bytes: u64, access: Access) -> Result<MappedRange, Fault> {
        let (mapping, offset, left) = self.find(iova, access)?;
        if left >= len_bytes {
            return MappedRange::new(mapping, offset, len_bytes).ok_or(Fault { iova });
        }
        let (mut pieces, mut at, mut rest) = (Vec::new(), iova, len_bytes);
        while rest > 0 {
            let (mapping, offset, left) = self.find(at, access)?;
            let piece_bytes = left.min(rest);
            pieces.push((Arc::clone(mapping), offset, piece_bytes));
            rest -= piece_bytes;
            at = at.checked_add(piece_bytes).ok_or(Fault { iova: at })?;
        }
        let joined = Mapping::joined(pieces).map_err(|_| Fault { iova })?;
        MappedRange::new(&joined, 0, len_bytes).ok_or(Fault { iova })
    }

    /// Whether all of `len_bytes` at `iova` can be reached; empty ranges can.
    #[inline]
    pub fn check(&mut self, mut iova: u64, mut len_bytes: u64, access: Access) -> Result<(), Fault> {
        while len_bytes > 0 {
            let (_, _, left) = self.find(iova, access)?;
            let n = len_bytes.min(left);
            len_bytes -= n;
            iova = iova.checked_add(n).ok_or(Fault { iova })?;
        }
        Ok(())
    }

    /// This address space for another thread, which pins its mappings under reference counts of its own.
    pub fn replica(&self) -> Self {
        let alias = |range: &Range| range.mapping.as_ref().map(Mapping::alias);
        let copy = |range: &Range| Range::new(range.iova, range.len_bytes, alias(range));
        Self { ranges: self.ranges.iter().map(copy).collect(), ..Self::default() }
    }

    /// Whether an access of any thread found that the tenant took away memory that it had mapped. Don't trust such a
    /// tenant: fetch nothing, and let nothing succeed. This costs one load, unless some tenant's memory was lost.
    #[inline]
    pub fn is_lost(&mut self) -> bool {
        if losses() != self.losses_seen {
            self.look_for_losses();
        }
        self.is_lost
    }

    #[cold]
    fn look_for_losses(&mut self) {
        self.losses_seen = losses();
        let lost = |range: &Range| range.mapping.as_ref().is_some_and(|mapping| mapping.is_lost());
        self.is_lost = self.ranges.iter().any(lost);
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}
