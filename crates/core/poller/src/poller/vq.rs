//! A queue as its poller knows it: what waits there, and since when.

use std::collections::VecDeque;

use io_model::Nanos;
use policy::TenantSlot;

/// A VQ that the policy knows.
pub(super) struct Vq {
    pub(super) tenant: TenantSlot,
    pub(super) index: u16,
    /// The index as a bit. Shifting by it takes a dozen instructions, twice per command.
    pub(super) bit: u128,
    /// The backlog that the policy knows.
    pub(super) backlog: u32,
    /// When waiting commands were first seen, and how many each time.
    arrivals: VecDeque<(Nanos, u32)>,
    /// Sum of the counts in `arrivals`.
    stamped: u32,
    /// When it appeared, and how long what waited in it then had waited.
    appeared: (Nanos, Nanos),
    /// When something last came or was completed.
    pub(super) stirred_at: Nanos,
}

impl Vq {
    pub(super) fn new(tenant: TenantSlot, index: u16, appeared: (Nanos, Nanos)) -> Self {
        let (bit, arrivals) = (1 << index, VecDeque::new());
        Self { tenant, index, bit, backlog: 0, arrivals, stamped: 0, appeared, stirred_at: appeared.0 }
    }

    pub(super) fn saw(&mut self, backlog: u32, now: Nanos) {
        self.backlog = backlog;
        if backlog > self.stamped {
            let (at, waited) = self.appeared;
            let since = if now == at { before(now, waited) } else { now };
            self.arrivals.push_back((since, backlog - self.stamped));
            self.stamped = backlog;
        }
    }

    /// One command left the VQ: when it was first seen.
    pub(super) fn took(&mut self, now: Nanos) -> Nanos {
        self.backlog = self.backlog.saturating_sub(1);
        let Some((at, count)) = self.arrivals.front_mut() else { return now };
        let at = *at;
        *count -= 1;
        self.stamped -= 1;
        if *count == 0 {
            self.arrivals.pop_front();
        }
        at
    }
}

/// So long before a time, which may be before the clock's zero: only [`since`](super::since) can tell.
fn before(time: Nanos, span: Nanos) -> Nanos {
    Nanos(time.0.wrapping_sub(span.0))
}
