//! Room at HWQs that guaranteed tenants keep full: which of the others has it.
//!
//! Virtual time can't tell. It goes on wherever there is room, and who waits at such an HWQ falls behind it, whatever
//! its weight. So turns there are counted apart.

use super::owed::LEAST_PART;

/// Commands to an HWQ from one offer to the next.
pub(super) const OFFERED_AFTER: u32 = LEAST_PART / 4;
/// Offers of room at an HWQ, up to the one that is due in any case: twice the part of all work that they are owed, for
/// who waits at such HWQs alone has its part of all from them.
const OFFERS: u32 = 2;
/// What a turn counts for a weight of 1.
const TURN: f64 = 1_048_576.0;
/// Of a weight that is in part at other pollers.
const LEAST_WEIGHT: f64 = 0.001;

/// A tenant whose VQ has room, and goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub(super) tenant: u16,
    /// Beside what is owed, which may all be had at other HWQs.
    pub(super) is_beside: bool,
}

#[derive(Debug, Default)]
pub(super) struct Offers {
    due: Option<Due>,
    tenants: Vec<Tenant>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Tenant {
    /// By weight.
    turns: u64,
    /// It has a backlog, and is not guaranteed.
    may_wait: bool,
}

impl Offers {
    pub(super) fn grow(&mut self, tenants: usize) {
        self.tenants.resize(tenants.max(self.tenants.len()), Tenant::default());
    }

    /// Who has the lowest is next.
    pub(super) fn turns_of(&self, tenant: u16) -> u64 {
        self.tenants[usize::from(tenant)].turns
    }

    pub(super) fn moved(&mut self, tenant: u16, may_wait: bool) {
        self.tenants[usize::from(tenant)].may_wait = may_wait;
    }

    /// Room is offered, as the so-manieth at this HWQ since one was due. Whether it is, and goes at once.
    pub(super) fn offer(&mut self, tenant: u16, weight: f64, offers: u32, is_behind: bool) -> bool {
        let is_beside = offers >= OFFERS;
        let is_due = is_beside || is_behind;
        if is_due {
            self.due = Some(Due { tenant, is_beside });
            self.tenants[usize::from(tenant)].turns += (TURN / weight.max(LEAST_WEIGHT)) as u64;
        }
        is_due
    }

    /// Who goes now, if `has_room` of what all may have.
    #[inline]
    pub(super) fn take_due(&mut self, has_room: impl FnOnce() -> bool) -> Option<Due> {
        self.due.take_if(|_| has_room())
    }

    /// An interval ended. Turns that nobody asked for are not saved.
    pub(super) fn end_interval(&mut self) {
        let waiting = self.tenants.iter().filter(|tenant| tenant.may_wait);
        let Some(least) = waiting.map(|tenant| tenant.turns).min() else { return };
        for tenant in self.tenants.iter_mut().filter(|tenant| !tenant.may_wait) {
            tenant.turns = tenant.turns.max(least);
        }
    }
}
