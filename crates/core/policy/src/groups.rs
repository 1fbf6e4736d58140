//! Ceilings of groups: what several tenants may do together at most, whichever pollers and drives serve them.
//!
//! A group has the same limits as a tenant, in the same slices of 1 ms. Its quotas are atomics that all pollers share:
//! the first poller that comes to a slice fills them, and each command of a member is charged at once. So the ceiling
//! is exact without a message between pollers. Only tenants in a group pay for that: a few relaxed atomic operations
//! per command, on lines that the pollers of this group alone share.
//!
//! A member that asks for much would take each slice's quota before the others. So each member gets a credit per slice:
//! an equal part of the quota, among the members that asked in the slice before. Without credit, a member may only
//! take what the former slice left. A member that is served by several pollers has a part of its credit at each.
//!
//! In no span `T` a group gets more than limit × (`T` + burst + 1 ms), the quotas of the slices in which the span
//! begins and ends, and one command per poller.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicI64, AtomicU64};

use crate::Limits;
use crate::limits::{KINDS, slice_and_most, slices_in_debt};

/// A group's number, given by the one that makes the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

/// The weight of a member that a single poller serves.
const WHOLE: f64 = 1_024.0;

/// The groups of a host; by default, there can be none. A changed ceiling holds from the next slice on, at every
/// poller.
#[derive(Debug, Default)]
pub struct Groups(Box<[OnceLock<Box<Group>>]>);

/// What all members of a group share.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// What a slice adds, and what is kept at most; 0: no limit.
    rates: [AtomicI64; KINDS],
    most: [AtomicI64; KINDS],
    /// At or below 0: no member may send.
    tokens: [AtomicI64; KINDS],
    /// Left by the former slice: for members without credit.
    spare: [AtomicI64; KINDS],
    /// The slice that the tokens are of.
    slice: AtomicU64,
    /// Members that asked: in this slice, and in the last one in which any did.
    asking: AtomicU64,
    asked: AtomicU64,
}

/// One member at one poller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) group: GroupId,
    /// The member's part at this poller.
    weight: u64,
    credits: [i64; KINDS],
    slice: u64,
}

impl Groups {
    /// Room for groups with the numbers below `count`. None has a ceiling yet.
    pub fn up_to(count: u16) -> Self {
        Self((0..count).map(|_| OnceLock::new()).collect())
    }

    /// Sets a group's ceiling. Empty limits: none. A number for which there is no room has no ceiling.
    pub fn set(&self, id: GroupId, limits: Limits) {
        let Some(place) = self.0.get(usize::from(id.0)) else { return };
        place.get_or_init(Box::default).set(limits);
    }

    pub(crate) fn get(&self, id: GroupId) -> Option<&Group> {
        self.0.get(usize::from(id.0))?.get().map(|group| &**group)
    }
}

impl Group {
    /// A burst has to be earned, and debts are kept, as with a tenant's own limits.
    fn set(&self, limits: Limits) {
        let burst = limits.burst.min(Limits::LONGEST_BURST);
        for (kind, rate) in limits.rates(1.0).into_iter().enumerate() {
            let (per_slice, most) = slice_and_most(rate, burst);
            if self.rates[kind].swap(per_slice, Relaxed) == 0 {
                self.tokens[kind].store(per_slice, Relaxed);
            }
            self.most[kind].store(most, Relaxed);
        }
    }

    /// The first member that comes to a slice fills the quotas.
    fn enter(&self, slice: u64) {
        let before = self.slice.load(Acquire);
        if before >= slice || self.slice.compare_exchange(before, slice, AcqRel, Relaxed).is_err() {
            return;
        }
        let asked = self.asking.swap(0, Relaxed);
        if asked > 0 {
            self.asked.store(asked, Relaxed);
        }
        let elapsed = i64::try_from(slice - before).unwrap_or(i64::MAX);
        for kind in 0..KINDS {
            let (rate, most) = (self.rates[kind].load(Relaxed), self.most[kind].load(Relaxed));
            let left = self.tokens[kind].load(Relaxed);
            let spare = left.clamp(0, most);
            let filled = left.saturating_add(rate.saturating_mul(elapsed)).min(most + spare.min(rate));
            // Others may charge meanwhile.
            self.tokens[kind].fetch_add(filled - left, Relaxed);
            self.spare[kind].store(spare, Relaxed);
        }
    }
}

impl Seat {
    pub(crate) fn new(group: GroupId, part: f64) -> Self {
        Self { group, weight: (part * WHOLE).ceil().max(1.0) as u64, credits: [0; KINDS], slice: 0 }
    }

    /// Takes over the debts of a member whose part at this poller changed.
    pub(crate) fn with_part(self, part: f64) -> Self {
        Self { credits: self.credits, slice: self.slice, ..Self::new(self.group, part) }
    }

    fn refill(&mut self, group: &Group, slice: u64) {
        let elapsed = slice.saturating_sub(self.slice);
        if elapsed == 0 {
            return;
        }
        self.slice = slice;
        group.asking.fetch_add(self.weight, Relaxed);
        let all = group.asked.load(Relaxed).max(self.weight);
        let slices = i64::try_from(elapsed).unwrap_or(i64::MAX);
        for (credit, rate) in self.credits.iter_mut().zip(&group.rates) {
            let share = (i128::from(rate.load(Relaxed)) * i128::from(self.weight) / i128::from(all)) as i64;
            *credit = credit.min(&mut 0).saturating_add(share.saturating_mul(slices)).min(share);
        }
    }

    /// Slices until the member may send; 0: in this one.
    pub(crate) fn slices_to_wait(&mut self, group: &Group, slice: u64) -> u64 {
        group.enter(slice);
        self.refill(group, slice);
        let wait = |kind: usize| {
            let rate = group.rates[kind].load(Relaxed);
            let tokens = group.tokens[kind].load(Relaxed);
            match () {
                () if rate == 0 => 0,
                () if tokens <= 0 => slices_in_debt(tokens, rate),
                () => u64::from(self.credits[kind] <= 0 && group.spare[kind].load(Relaxed) <= 0),
            }
        };
        (0..KINDS).map(wait).max().unwrap_or(0)
    }

    /// `units`: of each kind, what a command counts.
    pub(crate) fn charge(&mut self, group: &Group, units: [i64; KINDS]) {
        for (kind, units) in units.into_iter().enumerate() {
            if units == 0 || group.rates[kind].load(Relaxed) == 0 {
                continue;
            }
            group.tokens[kind].fetch_sub(units, Relaxed);
            if self.credits[kind] > 0 {
                self.credits[kind] = self.credits[kind].saturating_sub(units);
            } else {
                group.spare[kind].fetch_sub(units, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests;
