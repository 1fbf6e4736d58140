//! Start-time fair sharing: who of the waiting has had least for its weight.
//!
//! Every tenant has a start tag in virtual time; serving it costs cost/weight, and the one with the lowest tag
//! goes first. The charge comes after the command was seen, so a tenant overdraws by one command at
//! most.

use crate::cost::{COST_UNIT, MAX_COST};
use crate::lowest::Lowest;
use crate::ready::NONE;

/// Ticks that one unit of cost is worth at weight 1: enough for an exact start at the highest weight, and
/// centuries before virtual time wraps.
const TICKS_PER_COST: u32 = 256;

/// Ticks of a reference command.
pub const TICKS_PER_COMMAND: u64 = (TICKS_PER_COST * COST_UNIT) as u64;

/// What a tenant overdrew counts up to here: more than twice the highest charge.
const MOST_AHEAD: u64 = 1 << 30;

/// A weight may be told in such parts, where a tenant has but a part of its own.
pub(crate) const PARTS_OF_WEIGHT: u32 = 64;

/// A weight, and virtual time by it.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    weight: u32,
    /// What the last division left over, so that rounding never adds up.
    rest: u32,
}

impl Share {
    /// Weight 1.
    pub const ONE: Self = Self { weight: 1, rest: 0 };

    /// A weight, 1 to 10000, or up to `PARTS_OF_WEIGHT` parts of each.
    pub fn new(weight: u32) -> Self {
        Self { weight: weight.clamp(1, 10_000 * PARTS_OF_WEIGHT), rest: 0 }
    }

    /// As it was given.
    pub fn weight(self) -> u32 {
        self.weight
    }

    /// Ticks that a command of this cost takes.
    #[inline]
    pub fn ticks(&mut self, cost: u32) -> u64 {
        // At most 2^20 × 2^8 + 10^6: narrow enough for the fast division.
        let due = cost.min(MAX_COST) * TICKS_PER_COST + self.rest;
        self.rest = due % self.weight;
        u64::from(due / self.weight)
    }
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// When it may start, in virtual ticks.
    tag: u64,
    share: Share,
}

/// The waiting tenants in virtual time.
#[derive(Debug)]
pub struct Fair {
    /// Virtual time: no tag of a waiting one is before it.
    clock: u64,
    waiting: Lowest,
    /// The only one waiting, or [`NONE`]; it is in no tournament.
    alone: u16,
    entries: Vec<Entry>,
}

impl Default for Fair {
    fn default() -> Self {
        Self { clock: 0, waiting: Lowest::default(), alone: NONE, entries: Vec::new() }
    }
}

impl Fair {
    /// Makes room for identifiers below `ids`.
    pub fn grow(&mut self, ids: usize) {
        if self.entries.len() < ids {
            self.entries.resize(ids, Entry { tag: 0, share: Share::ONE });
            self.waiting.grow(ids);
        }
    }

    /// Sets a weight, as [`Share::new`] takes it; from the next charge on.
    pub fn set_weight(&mut self, id: u16, weight: u32) {
        self.entries[usize::from(id)].share = Share::new(weight);
    }

    /// Virtual time: what those who wait had for their weights.
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    pub(crate) fn waits(&self, id: u16) -> bool {
        self.alone == id || self.waiting.contains(id)
    }

    /// Goes on with each service.
    pub(crate) fn tag_of(&self, id: u16) -> u64 {
        self.entries[usize::from(id)].tag
    }

    /// Another one has this identifier from now on: what the former one overdrew is gone. It is not waiting.
    pub fn forget(&mut self, id: u16) {
        if let Some(entry) = self.entries.get_mut(usize::from(id)) {
            *entry = Entry { tag: 0, share: Share::ONE };
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.alone == NONE
    }

    /// Starts to wait. What it overdrew before still counts, what it left unused does not.
    #[inline]
    pub fn insert(&mut self, id: u16) {
        if self.is_empty() {
            self.alone = id;
            return;
        }
        if self.alone != NONE {
            let first = std::mem::replace(&mut self.alone, NONE);
            self.place(first);
        }
        self.place(id);
    }

    /// Among several.
    fn place(&mut self, id: u16) {
        let entry = &mut self.entries[usize::from(id)];
        entry.tag = entry.tag.clamp(self.clock, self.clock + MOST_AHEAD);
        self.waiting.insert(id, entry.tag);
    }

    /// Stops to wait. Nothing happens if it didn't.
    #[inline]
    pub fn remove(&mut self, id: u16) {
        if self.alone == id {
            self.alone = NONE;
        } else {
            self.waiting.remove(id);
        }
    }

    /// The tenant that goes first; it stays in its place. Virtual time advances to it.
    #[inline]
    pub fn front(&mut self) -> Option<u16> {
        if self.alone != NONE {
            self.clock = self.clock.max(self.entries[usize::from(self.alone)].tag);
            return Some(self.alone);
        }
        let (tag, id) = self.waiting.first()?;
        self.clock = self.clock.max(tag);
        Some(id)
    }

    /// It was served at this cost. It keeps waiting if it did.
    #[inline]
    pub fn charge(&mut self, id: u16, cost: u32) {
        let entry = &mut self.entries[usize::from(id)];
        entry.tag = entry.tag.max(self.clock) + entry.share.ticks(cost);
        if self.alone != id && self.waiting.contains(id) {
            self.place(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves `rounds` times with each one's own cost; the work that each got.
    fn work(tenants: &[(u32, u32)], rounds: usize) -> Vec<u64> {
        let mut fair = Fair::default();
        fair.grow(tenants.len());
        for (id, (weight, _)) in tenants.iter().enumerate() {
            fair.set_weight(id as u16, *weight);
            fair.insert(id as u16);
        }
        let mut got = vec![0; tenants.len()];
        for _ in 0..rounds {
            let id = fair.front().unwrap();
            let cost = tenants[usize::from(id)].1;
            got[usize::from(id)] += u64::from(cost);
            fair.charge(id, cost);
        }
        got
    }

    #[test]
    fn equal_weights_take_turns() {
        let mut fair = Fair::default();
        fair.grow(3);
        (0..3).for_each(|id| fair.insert(id));
        let mut turns = Vec::new();
        for _ in 0..9 {
            let id = fair.front().unwrap();
            turns.push(id);
            fair.charge(id, COST_UNIT);
        }
        assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn work_follows_weights_whatever_the_sizes() {
        let tenants = [(1, COST_UNIT), (2, 8 * COST_UNIT), (7, 13), (10, 256 * COST_UNIT), (100, COST_UNIT)];
        let got = work(&tenants, 500_000);
        let per_weight: Vec<f64> =
            got.iter().zip(&tenants).map(|(work, (weight, _))| *work as f64 / f64::from(*weight)).collect();
        let mean = per_weight.iter().sum::<f64>() / per_weight.len() as f64;
        assert!(per_weight.iter().all(|share| (share / mean - 1.0).abs() < 0.02), "{per_weight:?}");
    }

    #[test]
    fn extremes_keep_their_share() {
        let got = work(&[(10_000, 1), (1, MAX_COST), (9_999, COST_UNIT)], 3_000_000);
        assert!(got.iter().all(|work| *work > 0), "{got:?}");
        let ratio = got[0] as f64 / got[2] as f64;
        assert!((ratio - 1.0).abs() < 0.01, "{got:?}");
    }

    #[test]
    fn waiting_idle_earns_nothing_and_debt_is_kept() {
        let mut fair = Fair::default();
        fair.grow(2);
        fair.insert(0);
        for _ in 0..1000 {
            assert_eq!(fair.front(), Some(0));
            fair.charge(0, COST_UNIT);
        }
        fair.insert(1);
        let mut turns = [0; 2];
        for _ in 0..100 {
            let id = fair.front().unwrap();
            turns[usize::from(id)] += 1;
            fair.charge(id, COST_UNIT);
        }
        assert!((49..=51).contains(&turns[1]), "{turns:?}");
        // One huge command, then away and back: the other goes on until it is paid.
        fair.charge(1, 50 * COST_UNIT);
        fair.remove(1);
        fair.insert(1);
        for _ in 0..40 {
            assert_eq!(fair.front(), Some(0));
            fair.charge(0, COST_UNIT);
        }
    }
}
