//! The VQs that wait for a full HWQ.

use crate::ready::{Links, List};

/// VQs that wait for room at one HWQ. Those in `first` go before those in `others`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parked {
    pub(super) first: List,
    pub(super) others: List,
    /// Commands sent to the HWQ since the last offer of room to `others`, and offers since one was taken.
    pub(super) passed: u32,
    pub(super) offers: u32,
    /// The turn of the last VQ that took an offer: start-time fair queueing among the VQs that wait here.
    ///
    /// Virtual time must be this HWQ's own. At HWQs with room it advances faster, and by that time all VQs here would
    /// be late, whatever their weights.
    pub(super) turn: u64,
}

/// The number of VQs compared for an offer. The limit keeps the cost constant.
const COMPARED: usize = 16;

impl Parked {
    /// The VQ of `others` that would be offered room now: the one with the earliest turn of the first [`COMPARED`].
    pub(super) fn offer(&mut self, times: u32, links: &Links, turn_of: impl Fn(u16) -> u64) -> Option<u16> {
        if self.passed < times {
            return None;
        }
        let slot = self.others.iter(links).take(COMPARED).min_by_key(|slot| turn_of(*slot))?;
        (self.passed, self.offers) = (0, self.offers + 1);
        Some(slot)
    }

    /// Removes and returns the VQ that goes next.
    pub(super) fn pop(&mut self, links: &mut Links) -> Option<u16> {
        self.first.pop_front(links).or_else(|| self.others.pop_front(links))
    }

    pub(super) fn list(&mut self, first: bool) -> &mut List {
        if first { &mut self.first } else { &mut self.others }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_empty() && self.others.is_empty()
    }
}
