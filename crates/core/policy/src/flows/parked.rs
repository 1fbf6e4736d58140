//! Who waits for a full HWQ.

use crate::ready::{Links, List};

/// VQs that wait for room at one HWQ.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parked {
    pub(super) first: List,
    pub(super) others: List,
    /// Commands that went there since one of the others was offered room, and offers since one was due.
    pub(super) passed: u32,
    pub(super) offers: u32,
    /// Which turn the last of these was: start-time fair queueing, of those alone that wait here. Elsewhere time goes
    /// on faster, where there is room, and all would be behind it whatever their weights.
    pub(super) turn: u64,
}

/// Who comes into question for an offer: the first so many, that an offer costs no more the more wait.
const COMPARED: usize = 16;

impl Parked {
    /// Who would be offered room now, if one of the others would: of the first ones the one whose turn is earliest.
    pub(super) fn offer(&mut self, times: u32, links: &Links, turn_of: impl Fn(u16) -> u64) -> Option<u16> {
        if self.passed < times {
            return None;
        }
        let slot = self.others.iter(links).take(COMPARED).min_by_key(|slot| turn_of(*slot))?;
        (self.passed, self.offers) = (0, self.offers + 1);
        Some(slot)
    }

    /// Whose turn it is.
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
