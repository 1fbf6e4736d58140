//! One direction of the link between host and drive.

use crate::units::Through;

/// When the link is free again.
#[derive(Debug)]
pub(crate) struct Link {
    mb_s: u64,
    free_at: u64,
}

impl Link {
    pub(crate) fn new(mb_s: u32) -> Self {
        Self { mb_s: u64::from(mb_s.max(1)), free_at: 0 }
    }

    pub(crate) fn transfer_ns(&self, len_bytes: u64) -> u64 {
        len_bytes * 1_000 / self.mb_s
    }

    /// Carries what the units produce, from when the first piece of it could be under way.
    pub(crate) fn stream(&mut self, through: Through, len_bytes: u64) -> u64 {
        let lead_ns = self.transfer_ns(len_bytes.min(4096));
        let start = self.free_at.max(through.first_ns.saturating_sub(lead_ns));
        self.free_at = (start + self.transfer_ns(len_bytes)).max(through.last_ns);
        self.free_at
    }

    /// Carries what is all there at `now_ns`.
    pub(crate) fn carry(&mut self, now_ns: u64, len_bytes: u64) -> u64 {
        self.free_at = self.free_at.max(now_ns) + self.transfer_ns(len_bytes);
        self.free_at
    }
}
