//! Identifiers in the order of their tags (virtual or real time), in O(1).
//!
//! A calendar of buckets in levels: 64 buckets each, eight times as wide from level to level. A tag goes to the
//! finest level that reaches it, so its bucket is at most an eighth as wide as its distance from the clock. [`first`]
//! takes buckets as they are; [`lowest`] spreads a coarse one over finer ones when its time comes, as a timing wheel
//! does, which makes the order exact and costs each tag one step per level.
//!
//! [`first`]: Calendar::first
//! [`lowest`]: Calendar::lowest

use crate::ready::{Links, List, NONE};

/// Levels; widths grow by [`STEP_BITS`].
const LEVELS: usize = 9;
const STEP_BITS: u32 = 3;
const BUCKETS: u32 = 64;

/// Tags reach this far beyond the clock: about 2^30, over twice the highest charge of [`Fair`](crate::fair::Fair).
pub(crate) const FARTHEST: u64 = (BUCKETS as u64 - 2) << (STEP_BITS * (LEVELS as u32 - 1));

#[derive(Debug)]
struct Level {
    /// Bit `i`: bucket `i` is not empty.
    filled: u64,
    buckets: [List; BUCKETS as usize],
}

/// The calendar. Its user keeps the tags, and a clock that never goes back and that no tag in it is before.
#[derive(Debug)]
pub(crate) struct Calendar {
    levels: [Level; LEVELS],
    /// Bit `i`: level `i` is not empty.
    filled: u32,
    /// By identifier: level × 64 + bucket, or [`NONE`].
    places: Vec<u16>,
    links: Links,
}

impl Calendar {
    pub(crate) fn new() -> Self {
        let level = || Level { filled: 0, buckets: [List::default(); BUCKETS as usize] };
        Self { levels: std::array::from_fn(|_| level()), filled: 0, places: Vec::new(), links: Links::default() }
    }

    /// Makes room for identifiers below `ids`.
    pub(crate) fn grow(&mut self, ids: usize) {
        if self.places.len() < ids {
            self.places.resize(ids, NONE);
            self.links.grow(ids);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    pub(crate) fn contains(&self, id: u16) -> bool {
        self.places[usize::from(id)] != NONE
    }

    /// Puts it in. The tag is from `clock` to `clock` + [`FARTHEST`].
    pub(crate) fn insert(&mut self, id: u16, tag: u64, clock: u64) {
        let far = (tag - clock) / u64::from(BUCKETS);
        let mut level = if far == 0 { 0 } else { far.ilog2() / STEP_BITS + 1 };
        let index = |level: u32, time: u64| time >> (STEP_BITS * level);
        // The clock may stand anywhere in its own bucket, which makes the distance one longer.
        if index(level, tag) - index(level, clock) >= u64::from(BUCKETS) {
            level += 1;
        }
        let bucket = index(level, tag) % u64::from(BUCKETS);
        self.places[usize::from(id)] = (level * BUCKETS) as u16 + bucket as u16;
        let level = level as usize;
        self.levels[level].buckets[bucket as usize].push_back(&mut self.links, id);
        self.levels[level].filled |= 1 << bucket;
        self.filled |= 1 << level;
    }

    /// Takes it out. `false`: it was not in.
    pub(crate) fn remove(&mut self, id: u16) -> bool {
        let place = std::mem::replace(&mut self.places[usize::from(id)], NONE);
        if place == NONE {
            return false;
        }
        let (level, bucket) = (usize::from(place) / BUCKETS as usize, usize::from(place) % BUCKETS as usize);
        self.levels[level].buckets[bucket].remove(&mut self.links, id);
        if self.levels[level].buckets[bucket].is_empty() {
            self.emptied(level, bucket);
        }
        true
    }

    fn emptied(&mut self, level: usize, bucket: usize) {
        self.levels[level].filled &= !(1 << bucket);
        if self.levels[level].filled == 0 {
            self.filled &= !(1 << level);
        }
    }

    /// The bucket that starts first: its start, level and index.
    fn first_bucket(&self, clock: u64) -> Option<(u64, usize, usize)> {
        let mut rest = self.filled;
        let mut best: Option<(u64, usize, usize)> = None;
        while rest != 0 {
            let level = rest.trailing_zeros();
            rest &= rest - 1;
            let shift = STEP_BITS * level;
            let now = clock >> shift;
            let turned = self.levels[level as usize].filled.rotate_right((now % u64::from(BUCKETS)) as u32);
            let index = now + u64::from(turned.trailing_zeros());
            let start = index << shift;
            if best.is_none_or(|(earliest, ..)| start < earliest) {
                best = Some((start, level as usize, (index % u64::from(BUCKETS)) as usize));
            }
        }
        best
    }

    /// One of those with the lowest tags, and where their bucket starts: no tag is lower.
    #[inline]
    pub(crate) fn first(&self, clock: u64) -> Option<(u64, u16)> {
        let (start, level, bucket) = self.first_bucket(clock)?;
        Some((start, self.levels[level].buckets[bucket].front()?))
    }

    /// The one with the lowest tag, if that is at most `limit`. The clock moves up to it, and never beyond `limit`.
    pub(crate) fn lowest(&mut self, clock: &mut u64, limit: u64, tag_of: impl Fn(u16) -> u64) -> Option<u16> {
        loop {
            let (start, level, bucket) = self.first_bucket(*clock)?;
            if start > limit {
                return None;
            }
            *clock = start.max(*clock);
            if level == 0 {
                return self.levels[0].buckets[bucket].front();
            }
            let mut spread = std::mem::take(&mut self.levels[level].buckets[bucket]);
            self.emptied(level, bucket);
            while let Some(id) = spread.pop_front(&mut self.links) {
                self.insert(id, tag_of(id), *clock);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_is_exact_and_stops_at_the_limit() {
        let tags = [70_000_u64, 3, 64, 70_001, 1 << 29, 4_096, 69_999, 64];
        let mut calendar = Calendar::new();
        calendar.grow(tags.len());
        let mut clock = 0;
        for (id, tag) in tags.iter().enumerate() {
            calendar.insert(id as u16, *tag, clock);
        }
        let mut order = Vec::new();
        let tag_of = |id: u16| tags[usize::from(id)];
        while let Some(id) = calendar.lowest(&mut clock, 70_000, tag_of) {
            assert_eq!(clock, tag_of(id));
            assert!(calendar.remove(id) && !calendar.remove(id));
            order.push(tag_of(id));
        }
        assert_eq!(order, [3, 64, 64, 4_096, 69_999, 70_000]);
        assert!(clock <= 70_000);
        assert_eq!(calendar.lowest(&mut clock, u64::MAX, tag_of), Some(3));
        assert!(calendar.remove(3));
        assert!(calendar.first(clock).is_some_and(|(start, id)| start <= 1 << 29 && id == 4));
    }
}
