//! The device's addresses: which are free, and what is mapped there.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use guest_memory::Mapping;
use rustix::process::{Resource, getrlimit};

use super::info::Iommu;
use super::{PciAddress, VfioError, ioctl};
use crate::device::DmaSpace;
use crate::error::Error;

/// The device's addresses start above 4 GiB where its IOMMU has some there, so that a truncated one is not valid.
pub(super) const FIRST_IOVA: u64 = 1 << 32;
const PAGE_BYTES: u64 = 4096;
/// Addresses of both sides agree below this, so that the IOMMU can use pages of that size.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A container with its IOMMU, and the group in it, which is ours as long as this is held.
pub(super) struct Space {
    address: PciAddress,
    container: OwnedFd,
    _group: OwnedFd,
    free: Mutex<Free>,
}

impl Space {
    pub fn new(address: PciAddress, container: OwnedFd, group: OwnedFd, iommu: &Iommu) -> Self {
        Self { address, container, _group: group, free: Mutex::new(Free::new(&iommu.ranges)) }
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        // A list of ranges is whole between any two of its calls.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an error of a mapping means.
    fn cant_map(&self, error: &io::Error, len_bytes: u64) -> VfioError {
        match error.raw_os_error() {
            Some(libc::ENOMEM) => {
                VfioError::MemoryLock { limit_bytes: getrlimit(Resource::Memlock).current, len_bytes }
            }
            Some(libc::ENOSPC) => VfioError::EntryLimit,
            _ => VfioError::Kernel { what: "a DMA mapping", address: self.address, reason: error.to_string() },
        }
    }
}

impl DmaSpace for Space {
    fn map(&self, mapping: &Mapping) -> Result<u64, Error> {
        let addresses = mapping.addresses();
        let len_bytes = whole_pages(mapping.len_bytes())?;
        let iova = self.free().take(len_bytes, addresses.start as u64).ok_or(VfioError::NoAddresses { len_bytes })?;
        if let Err(error) = ioctl::map(self.container.as_fd(), mapping, iova, len_bytes) {
            self.free().give_back(iova, len_bytes);
            return Err(self.cant_map(&error, len_bytes).into());
        }
        Ok(iova)
    }

    fn unmap(&self, iova: u64, len_bytes: u64) -> Result<(), Error> {
        let len_bytes = whole_pages(len_bytes)?;
        let failed = |reason: String| VfioError::Kernel { what: "a DMA unmapping", address: self.address, reason };
        let gone = ioctl::unmap(self.container.as_fd(), iova, len_bytes).map_err(|error| failed(error.to_string()))?;
        if gone != len_bytes {
            return Err(failed(format!("{gone} of {len_bytes} bytes were mapped there")).into());
        }
        self.free().give_back(iova, len_bytes);
        Ok(())
    }
}

/// The last page's rest is the same peer's.
fn whole_pages(len_bytes: u64) -> Result<u64, Error> {
    let whole = len_bytes.checked_next_multiple_of(PAGE_BYTES).filter(|&len_bytes| len_bytes > 0);
    whole.ok_or(Error::Invalid("no memory of that length can be mapped"))
}

/// Addresses that nothing is mapped at: starts and lengths, lowest first, no two adjacent.
#[derive(Debug, PartialEq, Eq)]
struct Free(Vec<(u64, u64)>);

impl Free {
    fn new(ranges: &[RangeInclusive<u64>]) -> Self {
        let above = |first: u64| {
            let usable = ranges.iter().filter_map(|range| {
                let start = (*range.start()).max(first).checked_next_multiple_of(PAGE_BYTES)?;
                // The last page of all is left out: its end is no number.
                let end = range.end().saturating_add(1) / PAGE_BYTES * PAGE_BYTES;
                (start < end).then(|| (start, end - start))
            });
            usable.collect::<Vec<_>>()
        };
        let high = above(FIRST_IOVA);
        // Address 0 is what a queue that was never set up has.
        Self(if high.is_empty() { above(PAGE_BYTES) } else { high })
    }

    /// The lowest `len_bytes` whose addresses agree with `like` below a huge page, or within a page if there are none.
    fn take(&mut self, len_bytes: u64, like: u64) -> Option<u64> {
        let aligned = self.find(len_bytes, HUGE_PAGE_BYTES, like % HUGE_PAGE_BYTES);
        let (index, at) = aligned.or_else(|| self.find(len_bytes, PAGE_BYTES, 0))?;
        let (start, len) = self.0.remove(index);
        let (end, taken_end) = (start + len, at + len_bytes);
        if taken_end < end {
            self.0.insert(index, (taken_end, end - taken_end));
        }
        if start < at {
            self.0.insert(index, (start, at - start));
        }
        Some(at)
    }

    fn find(&self, len_bytes: u64, align: u64, head: u64) -> Option<(usize, u64)> {
        self.0.iter().enumerate().find_map(|(index, &(start, len))| {
            let over = (start % align + align - head) % align;
            let at = if over == 0 { start } else { start.checked_add(align - over)? };
            (at.checked_add(len_bytes)? <= start + len).then_some((index, at))
        })
    }

    fn give_back(&mut self, start: u64, len_bytes: u64) {
        let index = self.0.partition_point(|&(other, _)| other < start);
        self.0.insert(index, (start, len_bytes));
        self.0.dedup_by(|next, before| {
            let adjacent = before.0 + before.1 == next.0;
            if adjacent {
                before.1 += next.1;
            }
            adjacent
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lie_above_4_gib_where_there_are_any() {
        assert_eq!(
            Free::new(&[0..=0xfedf_ffff, 0xfef0_0000..=(1 << 39) - 1]).0,
            [(FIRST_IOVA, (1 << 39) - FIRST_IOVA)]
        );
        assert_eq!(Free::new(&[0..=0xfedf_ffff]).0, [(4096, 0xfee0_0000 - 4096)]);
        assert_eq!(Free::new(&[0..=u64::MAX]).0, [(FIRST_IOVA, u64::MAX - 4095 - FIRST_IOVA)]);
        assert_eq!(Free::new(&[]).0, []);
    }

    #[test]
    fn both_sides_agree_below_a_huge_page() {
        let mut free = Free::new(&[FIRST_IOVA..=FIRST_IOVA + (8 << 20) - 1]);
        assert_eq!(free.take(4096, 0x7f00_0000_3000), Some(FIRST_IOVA + 0x3000));
        assert_eq!(free.take(2 << 20, 0x7f00_0020_0000), Some(FIRST_IOVA + (2 << 20)));
        assert_eq!(free.take(4096, 0x7f00_0000_1000), Some(FIRST_IOVA + 0x1000));
        assert_eq!(free.take(4 << 20, 0x7f00_0000_1000), Some(FIRST_IOVA + (4 << 20)), "not aligned, but it fits");
        assert_eq!(free.take(4 << 20, 0), None, "no room");
    }

    #[test]
    fn what_was_given_back_is_whole_again() {
        let mut free = Free::new(&[FIRST_IOVA..=FIRST_IOVA + (64 << 20) - 1]);
        let whole = free.0.clone();
        let mut random = fastrand::Rng::with_seed(13);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for _ in 0..2000 {
            if random.bool() || taken.is_empty() {
                let len = u64::from(random.u32(1..600)) * 4096;
                if let Some(at) = free.take(len, u64::from(random.u32(..)) * 4096) {
                    let apart = |&(other, other_len): &(u64, u64)| at + len <= other || other + other_len <= at;
                    assert!(taken.iter().all(apart), "{at:#x} is taken");
                    assert!(at.is_multiple_of(4096) && at >= FIRST_IOVA && at + len <= FIRST_IOVA + (64 << 20));
                    taken.push((at, len));
                }
            } else {
                let (at, len) = taken.swap_remove(random.usize(..taken.len()));
                free.give_back(at, len);
            }
        }
        taken.into_iter().for_each(|(at, len)| free.give_back(at, len));
        assert_eq!(free.0, whole);
    }
}
