//! The VQs that wait for room at a full HWQ.

use crate::lpns::GUARANTEED_RUN;
use crate::ready::List;

/// VQs that wait for room at one HWQ.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parked {
    pub(super) guaranteed: List,
    pub(super) best_effort: List,
    /// Guaranteed commands that went here since the last best-effort one.
    pub(super) run: u32,
    /// It is in the list of HWQs that owe a turn.
    pub(super) owes: bool,
}

impl Parked {
    /// Those of one class.
    #[inline]
    pub(super) fn list(&mut self, guaranteed: bool) -> &mut List {
        if guaranteed { &mut self.guaranteed } else { &mut self.best_effort }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.guaranteed.is_empty() && self.best_effort.is_empty()
    }

    /// A best-effort VQ was passed over often enough.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.run >= GUARANTEED_RUN && !self.best_effort.is_empty()
    }
}
