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
/// Of each level: as many as make two steps.
const BUCKETS: u64 = 1 << (2 * STEP_BITS);

/// Tags reach this far beyond the clock: about 2^30, over twice the highest charge of [`Fair`](crate::fair::Fair).
pub(crate) const FARTHEST: u64 = (BUCKETS - 2) << (STEP_BITS * (LEVELS as u32 - 1));

/// The calendar. Its user keeps the tags, and a clock that never goes back and that no tag in it is before.
#[derive(Debug)]
pub(crate) struct Calendar {
    /// Level by level.
    buckets: [List; LEVELS * BUCKETS as usize],
    /// Of each level, bit `i`: its bucket `i` is not empty.
    filled: [u64; LEVELS],
    /// Bit `i`: level `i` is not empty.
    filled_levels: u32,
    /// By identifier: in which of all buckets it is, or [`NONE`].
    places: Vec<u16>,
    links: Links,
}

impl Calendar {
    pub(crate) fn new() -> Self {
        let buckets = [List::EMPTY; LEVELS * BUCKETS as usize];
        Self { buckets, filled: [0; LEVELS], filled_levels: 0, places: Vec::new(), links: Links::default() }
    }

    /// Makes room for identifiers below `ids`.
    pub(crate) fn grow(&mut self, ids: usize) {
        if self.places.len() < ids {
            self.places.resize(ids, NONE);
            self.links.grow(ids);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.filled_levels == 0
    }

    pub(crate) fn contains(&self, id: u16) -> bool {
        self.places[usize::from(id)] != NONE
    }

    /// Puts it in. A tag below `clock` counts as that; one beyond `clock` + [`FARTHEST`] is looked at again there.
    pub(crate) fn insert(&mut self, id: u16, tag: u64, clock: u64) {
        let tag = tag.clamp(clock, clock + FARTHEST);
        let level = ((tag - clock) | (BUCKETS - 1)).ilog2() / STEP_BITS - 1;
        let index = |level: u32, time: u64| time >> (STEP_BITS * level);
        // The clock may stand anywhere in its own bucket, which makes the distance one longer.
        let level = level + u32::from(index(level, tag) - index(level, clock) >= BUCKETS);
        let bucket = index(level, tag) % BUCKETS;
        let place = u64::from(level) * BUCKETS + bucket;
        self.places[usize::from(id)] = place as u16;
        self.buckets[place as usize].push_back(&mut self.links, id);
        self.filled[level as usize] |= 1 << bucket;
        self.filled_levels |= 1 << level;
    }

    /// Takes it out. `false`: it was not in.
    pub(crate) fn remove(&mut self, id: u16) -> bool {
        let place = std::mem::replace(&mut self.places[usize::from(id)], NONE);
        if place == NONE {
            return false;
        }
        let bucket = &mut self.buckets[usize::from(place)];
        bucket.remove(&mut self.links, id);
        if bucket.is_empty() {
            self.emptied(place);
        }
        true
    }

    fn emptied(&mut self, place: u16) {
        let (level, bucket) = (u64::from(place) / BUCKETS, u64::from(place) % BUCKETS);
        let filled = &mut self.filled[level as usize];
        *filled &= !(1 << bucket);
        if *filled == 0 {
            self.filled_levels &= !(1 << level);
        }
    }

    /// The bucket that starts first: its start, and where it is among all.
    #[inline]
    fn first_bucket(&self, clock: u64) -> Option<(u64, u16)> {
        let mut rest = self.filled_levels;
        let mut best: Option<(u64, u16)> = None;
        while rest != 0 {
            let level = rest.trailing_zeros();
            rest &= rest - 1;
            let shift = STEP_BITS * level;
            let now = clock >> shift;
            let turned = self.filled[level as usize].rotate_right((now % BUCKETS) as u32);
            let index = now + u64::from(turned.trailing_zeros());
            let start = index << shift;
            if best.is_none_or(|(earliest, _)| start < earliest) {
                best = Some((start, (u64::from(level) * BUCKETS + index % BUCKETS) as u16));
            }
        }
        best
    }

    /// One of those with the lowest tags, and where their bucket starts: no tag is lower.
    #[inline]
    pub(crate) fn first(&self, clock: u64) -> Option<(u64, u16)> {
        let (start, place) = self.first_bucket(clock)?;
        Some((start, self.buckets[usize::from(place)].front()?))
    }

    /// The one with the lowest tag, if that is at most `limit`. The clock moves up to it, and never beyond `limit`.
    pub(crate) fn lowest(&mut self, clock: &mut u64, limit: u64, tag_of: impl Fn(u16) -> u64) -> Option<u16> {
        loop {
            let (start, place) = self.first_bucket(*clock)?;
            if start > limit {
                return None;
            }
            *clock = start.max(*clock);
            let bucket = &mut self.buckets[usize::from(place)];
            if u64::from(place) < BUCKETS {
                return bucket.front();
            }
            let mut spread = std::mem::take(bucket);
            self.emptied(place);
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
