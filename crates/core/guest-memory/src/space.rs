//! A tenant's DMA address space.

use std::sync::Arc;

use crate::{IoBuf, MappedRange, Mapping, sigbus};

/// At most this many DMA ranges per tenant; QEMU uses about a dozen, a DPDK process one per huge page.
pub const MAX_RANGES: usize = 2048;

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
    /// No such range was mapped.
    #[error("no such range is mapped")]
    NotMapped,
    /// Too many ranges.
    #[error("more than {MAX_RANGES} ranges")]
    TooMany,
}

#[derive(Debug)]
struct Range {
    iova: u64,
    len_bytes: u64,
    /// `None`: a hole, known but not reachable.
    mapping: Option<Arc<Mapping>>,
}

impl Range {
    fn end(&self) -> u64 {
        self.iova + self.len_bytes
    }
}

/// A range taken out of the address space; commands in flight may still use it.
#[derive(Debug)]
pub struct Retired {
    /// Start of the range.
    pub iova: u64,
    /// Its length in bytes.
    pub len_bytes: u64,
    mapping: Option<Arc<Mapping>>,
}

impl Retired {
    /// Whether no command, queue view or anything else uses the range any more.
    pub fn is_quiet(&self) -> bool {
        self.mapping.as_ref().is_none_or(|mapping| Arc::strong_count(mapping) == 1)
    }
}

/// A tenant's DMA address space: sorted ranges, none overlapping.
#[derive(Debug, Default)]
pub struct GuestMemory {
    ranges: Vec<Range>,
    /// Index of the range that the last look-up hit; guests mostly stay in one.
    last: usize,
}

impl GuestMemory {
    /// Adds a range. `mapping: None` records a hole: known, but an access is a [`Fault`].
    pub fn map(&mut self, iova: u64, len_bytes: u64, mapping: Option<Arc<Mapping>>) -> Result<(), SpaceError> {
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
        self.ranges.insert(at, Range { iova, len_bytes, mapping });
        Ok(())
    }

    /// Takes out the range that starts at `iova` and has exactly `len_bytes`.
    pub fn unmap(&mut self, iova: u64, len_bytes: u64) -> Result<Retired, SpaceError> {
        let at = self.ranges.binary_search_by_key(&iova, |range| range.iova).map_err(|_| SpaceError::NotMapped)?;
        if self.ranges[at].len_bytes != len_bytes {
            return Err(SpaceError::NotMapped);
        }
        let Range { iova, len_bytes, mapping } = self.ranges.remove(at);
        Ok(Retired { iova, len_bytes, mapping })
    }

    /// Takes out every range.
    pub fn unmap_all(&mut self) -> Vec<Retired> {
        let retire = |Range { iova, len_bytes, mapping }| Retired { iova, len_bytes, mapping };
        self.ranges.drain(..).map(retire).collect()
    }

    /// The range that holds `iova`: its mapping, the offset in it, and the bytes from there to its end.
    #[inline]
    fn find(&mut self, iova: u64, access: Access) -> Result<(&Arc<Mapping>, u64, u64), Fault> {
        let holds = |range: &Range| range.iova <= iova && iova - range.iova < range.len_bytes;
        if !self.ranges.get(self.last).is_some_and(holds) {
            let at = self.ranges.partition_point(|range| range.end() <= iova);
            if !self.ranges.get(at).is_some_and(holds) {
                return Err(Fault { iova });
            }
            self.last = at;
        }
        let range = &self.ranges[self.last];
        match &range.mapping {
            Some(mapping) if access == Access::Read || mapping.is_writable() => {
                Ok((mapping, iova - range.iova, range.end() - iova))
            }
            _ => Err(Fault { iova }),
        }
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
            let (mapping, offset, left) = self.find(iova, access)?;
            let n = len_bytes.min(left);
            if !buf.push(mapping, offset, n) {
                return Err(Fault { iova });
            }
            len_bytes -= n;
            iova = iova.checked_add(n).ok_or(Fault { iova })?;
        }
        Ok(())
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

    /// A pinned view of `len_bytes` at `iova`, for queues. They must lie in one range.
    pub fn view(&mut self, iova: u64, len_bytes: u64, access: Access) -> Result<MappedRange, Fault> {
        let (mapping, offset, left) = self.find(iova, access)?;
        if left < len_bytes {
            return Err(Fault { iova: iova + left });
        }
        MappedRange::new(mapping, offset, len_bytes).ok_or(Fault { iova })
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

    /// The same address space for another thread, which pins its mappings under counts of its own.
    pub fn replica(&self) -> Self {
        let copy = |range: &Range| Range { mapping: range.mapping.as_ref().map(Mapping::alias), ..*range };
        Self { ranges: self.ranges.iter().map(copy).collect(), last: self.last }
    }

    /// Whether the tenant took away memory that it had mapped (see [`sigbus`](crate::sigbus)). Looks at
    /// every range once it happened to anybody; ask now and then, not per command.
    pub fn any_poisoned(&self) -> bool {
        sigbus::any() && self.ranges.iter().filter_map(|range| range.mapping.as_ref()).any(|m| m.is_poisoned())
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
