//! A poller's own table of the memory that the drive reaches.

use std::ops::Range;

/// One mapping.
#[derive(Debug, Clone, Copy)]
struct Region {
    start: usize,
    end: usize,
    iova: u64,
    /// How often it was told: a tenant's memory may be told by several names.
    told: u32,
}

/// Addresses of this process, and what the drive knows them by. Looked at for each command: by its poller alone.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// In the order of their addresses; none overlap.
    regions: Vec<Region>,
    /// Where the last address was found: guests keep to few mappings.
    last: usize,
}

impl Reach {
    /// The drive's address of `address`, and for how many bytes from there it goes on.
    #[inline]
    pub fn find(&mut self, address: usize) -> Option<(u64, u64)> {
        let holds = |region: &Region| (region.start..region.end).contains(&address);
        if !self.regions.get(self.last).is_some_and(holds) {
            let next = self.regions.partition_point(|region| region.start <= address);
            self.last = next.checked_sub(1).filter(|&at| holds(&self.regions[at]))?;
        }
        let Region { start, end, iova, .. } = self.regions[self.last];
        Some((iova + (address - start) as u64, (end - address) as u64))
    }

    /// Memory can be reached from now on.
    pub fn add(&mut self, addresses: Range<usize>, iova: u64) {
        let Range { start, end } = addresses;
        let at = self.regions.partition_point(|region| region.start < start);
        match self.regions.get_mut(at).filter(|region| (region.start, region.end) == (start, end)) {
            Some(region) => region.told += 1,
            None => self.regions.insert(at, Region { start, end, iova, told: 1 }),
        }
    }

    /// Takes back what was told once. Whether that was the last time, or it was never told.
    pub fn remove(&mut self, addresses: &Range<usize>) {
        let at = self.regions.iter().position(|it| (it.start, it.end) == (addresses.start, addresses.end));
        let Some(at) = at else { return };
        self.regions[at].told -= 1;
        if self.regions[at].told == 0 {
            self.regions.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_their_mapping_and_nowhere_else() {
        let mut reach = Reach::default();
        assert_eq!(reach.find(0x1000), None);
        reach.add(0x3000..0x5000, 0x10_0000);
        reach.add(0x1000..0x2000, 0x20_0000);
        reach.add(0x5000..0x6000, 0x30_0000);
        for (address, found) in [
            (0xfff, None),
            (0x1000, Some((0x20_0000, 0x1000))),
            (0x1fff, Some((0x20_0fff, 1))),
            (0x2000, None),
            (0x3010, Some((0x10_0010, 0x1ff0))),
            (0x4fff, Some((0x10_1fff, 1))),
            (0x5000, Some((0x30_0000, 0x1000))),
            (0x6000, None),
        ] {
            assert_eq!(reach.find(address), found, "{address:#x}");
        }
    }

    #[test]
    fn memory_is_reached_until_it_was_taken_back_as_often_as_it_was_told() {
        let mut reach = Reach::default();
        reach.add(0x1000..0x2000, 7 << 12);
        reach.add(0x1000..0x2000, 7 << 12);
        assert_eq!(reach.find(0x1800), Some((0x7800, 0x800)));
        reach.remove(&(0x1000..0x2000));
        assert!(reach.find(0x1800).is_some());
        reach.remove(&(0x1000..0x2000));
        assert!(reach.find(0x1800).is_none());
    }
}
