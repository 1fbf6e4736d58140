//! What the kernel says of regions and IOMMUs, taken apart.

use std::ops::RangeInclusive;

use vfio_bindings::bindings::vfio as sys;

use super::space::FIRST_IOVA;

/// What device addresses may be where the kernel does not say: what any IOMMU translates.
const ANY_IOMMU: RangeInclusive<u64> = FIRST_IOVA..=(1 << 39) - 1;

/// A region of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Region {
    /// Where it starts in the device's file.
    pub offset: u64,
    /// 0: the device does not have it.
    pub size_bytes: u64,
    /// The parts that can be mapped: offset and length.
    pub mappable: Vec<(u64, u64)>,
}

/// What an IOMMU offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Iommu {
    /// Addresses that devices may use, lowest first.
    pub ranges: Vec<RangeInclusive<u64>>,
    /// Mappings that can still be made; `None`: the kernel does not say.
    pub entries_left: Option<u32>,
    /// Sizes of pages, a bit for each.
    pub page_sizes: u64,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// A capability's content behind its header of identifier, version and where the next one is.
fn capability(said: &[u8], first: u32, id: u32) -> Option<&[u8]> {
    let mut at = first as usize;
    // Each is further behind: a circle would end here.
    while at > 0 {
        let head = word(said, at)?;
        if head & 0xffff == id {
            return said.get(at + 8..);
        }
        let next = word(said, at + 4)? as usize;
        at = if next > at { next } else { 0 };
    }
    None
}

impl Region {
    /// Of `vfio_region_info` with its capabilities. `None`: it is not all there.
    pub fn parse(said: &[u8]) -> Option<Self> {
        let (flags, first) = (word(said, 4)?, word(said, 12)?);
        let (size_bytes, offset) = (long(said, 16)?, long(said, 24)?);
        let capabilities = if flags & sys::VFIO_REGION_INFO_FLAG_CAPS != 0 { first } else { 0 };
        let mappable = match flags & sys::VFIO_REGION_INFO_FLAG_MMAP != 0 {
            false => Vec::new(),
            true => match capability(said, capabilities, sys::VFIO_REGION_INFO_CAP_SPARSE_MMAP) {
                None => vec![(0, size_bytes)],
                Some(areas) => {
                    let count = word(areas, 0)? as usize;
                    let area = |index: usize| Some((long(areas, 8 + 16 * index)?, long(areas, 16 + 16 * index)?));
                    (0..count).map(area).collect::<Option<_>>()?
                }
            },
        };
        Some(Self { offset, size_bytes, mappable })
    }

    /// The part of it that can be mapped and has `at`, in whole pages: offset and length.
    pub fn mappable_at(&self, at: u64) -> Option<(u64, u64)> {
        self.mappable.iter().find_map(|&(start, len)| {
            let end = start.checked_add(len)?.min(self.size_bytes);
            let (start, end) = (start.checked_next_multiple_of(4096)?, end - end % 4096);
            (start..end).contains(&at).then_some((start, end - start))
        })
    }
}

impl Iommu {
    /// Of `vfio_iommu_type1_info` with its capabilities. `None`: it is not all there.
    pub fn parse(said: &[u8]) -> Option<Self> {
        let (flags, page_sizes, first) = (word(said, 4)?, long(said, 8)?, word(said, 16)?);
        let page_sizes = if flags & sys::VFIO_IOMMU_INFO_PGSIZES != 0 { page_sizes } else { 4096 };
        let first = if flags & sys::VFIO_IOMMU_INFO_CAPS != 0 { first } else { 0 };
        let ranges = match capability(said, first, sys::VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) {
            None => vec![ANY_IOMMU],
            Some(list) => {
                let count = word(list, 0)? as usize;
                let range = |index: usize| Some(long(list, 8 + 16 * index)?..=long(list, 16 + 16 * index)?);
                (0..count).map(range).collect::<Option<_>>()?
            }
        };
        let entries = capability(said, first, sys::VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL);
        let entries_left = entries.map(|entries| word(entries, 0).ok_or(())).transpose().ok()?;
        Some(Self { ranges, entries_left, page_sizes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn longs(longs: &[u64]) -> Vec<u8> {
        longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
    }

    /// `vfio_iommu_type1_info` with 4 KiB pages and what follows.
    fn iommu(flags: u32, first: u32, rest: &[u8]) -> Vec<u8> {
        let head = [words(&[0, flags]), longs(&[4096]), words(&[first, 0])].concat();
        [head, rest.to_vec()].concat()
    }

    #[test]
    fn an_iommu_says_its_ranges_and_how_many_mappings_are_left() {
        // The list takes 16 + 32 bytes, so the second capability lies at 72.
        let ranges = [words(&[1 | 1 << 16, 72, 2, 0]), longs(&[0, 0xfedf_ffff, 0xfef0_0000, u64::MAX])].concat();
        let said = iommu(3, 24, &[ranges, words(&[3 | 1 << 16, 0, 65535])].concat());
        let expected = Iommu {
            ranges: vec![0..=0xfedf_ffff, 0xfef0_0000..=u64::MAX],
            entries_left: Some(65535),
            page_sizes: 4096,
        };
        assert_eq!(Iommu::parse(&said), Some(expected));
    }

    #[test]
    fn an_older_kernel_says_nothing_of_ranges() {
        let found = Iommu::parse(&iommu(1, 0, &[])).expect("parsed");
        assert_eq!((found.ranges, found.entries_left), (vec![ANY_IOMMU], None));
    }

    #[test]
    fn what_is_cut_off_or_runs_in_circles_is_no_answer() {
        assert_eq!(Iommu::parse(&[0; 16]), None);
        let cut_off = words(&[1 | 1 << 16, 0, 7, 0]);
        assert_eq!(Iommu::parse(&iommu(2, 24, &cut_off)), None, "seven ranges, and none is there");
        assert_eq!(Iommu::parse(&iommu(2, 4000, &[])).expect("none").ranges, vec![ANY_IOMMU], "beyond the end");
        let circle = words(&[9, 24]);
        assert_eq!(Iommu::parse(&iommu(2, 24, &circle)).expect("none").ranges, vec![ANY_IOMMU]);
    }

    /// `vfio_region_info` of 16 KiB, at 0x1000000 of the device's file.
    fn region(flags: u32, first: u32, rest: &[u8]) -> Vec<u8> {
        [words(&[0, flags, 0, first]), longs(&[0x4000, 0x100_0000]), rest.to_vec()].concat()
    }

    #[test]
    fn a_region_without_a_list_can_be_mapped_whole_or_not_at_all() {
        let whole = Region::parse(&region(7, 0, &[])).expect("parsed");
        assert_eq!((whole.offset, whole.mappable_at(0x1000)), (0x100_0000, Some((0, 0x4000))));
        assert_eq!(whole.mappable_at(0x4000), None, "behind its end");
        let none = Region::parse(&region(3, 0, &[])).expect("parsed");
        assert_eq!(none.mappable_at(0x1000), None);
    }

    #[test]
    fn a_region_with_an_interrupt_table_can_be_mapped_around_it() {
        // Nothing at 0x2000..0x3000; and one that says more than there is.
        let areas = [words(&[1 | 1 << 16, 0, 2, 0]), longs(&[0, 0x2000, 0x3000, 0x8000])].concat();
        let region = Region::parse(&region(15, 32, &areas)).expect("parsed");
        assert_eq!(region.mappable_at(0x1ffc), Some((0, 0x2000)));
        assert_eq!(region.mappable_at(0x2000), None);
        assert_eq!(region.mappable_at(0x3000), Some((0x3000, 0x1000)));
        let cut_off = words(&[1 | 1 << 16, 0, 2, 0]);
        assert_eq!(Region::parse(&self::region(15, 32, &cut_off)), None);
    }
}
