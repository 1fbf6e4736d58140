//! Waiting VQs: [`Flows`] by tenant, with what FairNVMe needs to know of each tenant's queues.

use io_model::{HwqId, TenantId};

use crate::fair::Fair;
use crate::flows::{Flows, Standing, Turns};
use crate::roster::Roster;
use crate::window::{Claim, Window};
use crate::{Class, Demand, Next, TenantSlot, Terms, VqSlot};

/// Tenants that could send, in the order that the corrected variant wants.
#[derive(Debug)]
pub(super) struct Waiting(Fair);

impl Turns for Waiting {
    fn attach(&mut self, tenant: u16, terms: &Terms) {
        self.0.grow(usize::from(tenant) + 1);
        self.0.set_weight(tenant, weight_of(terms.class));
    }

    fn forget(&mut self, tenant: u16) {
        self.0.forget(tenant);
    }

    fn moved(&mut self, tenant: u16, from: Standing, to: Standing) {
        if from == Standing::Ready {
            self.0.remove(tenant);
        }
        if to == Standing::Ready {
            self.0.insert(tenant);
        }
    }
}

/// The weight that a class gives; a guaranteed tenant has none of its own.
pub(super) fn weight_of(class: Class) -> u32 {
    class.weight_or(1)
}

#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    vqs: u16,
    /// Commands in its VQs.
    backlog: u64,
}

#[derive(Debug)]
pub(super) struct Queues {
    flows: Flows<Waiting>,
    tenants: Vec<Tenant>,
    roster: Roster,
    /// Commands in each VQ, by slot.
    backlogs: Vec<u32>,
}

impl Queues {
    pub(super) fn new(hwqs: u16, hwq_depth: u32, window: u64) -> Self {
        let flows = Flows::new(Waiting(Fair::default()), hwqs, hwq_depth).within(window);
        Self { flows, tenants: Vec::new(), roster: Roster::default(), backlogs: Vec::new() }
    }

    /// The slot is not attached, and neither slot is 65535.
    pub(super) fn attach(&mut self, slot: VqSlot, id: TenantId, tenant: u16, terms: &Terms) {
        if self.tenants.len() <= usize::from(tenant) {
            self.tenants.resize(usize::from(tenant) + 1, Tenant::default());
        }
        if self.backlogs.len() <= usize::from(slot.0) {
            self.backlogs.resize(usize::from(slot.0) + 1, 0);
        }
        self.tenants[usize::from(tenant)].vqs += 1;
        self.roster.enter(id, tenant);
        self.flows.attach(slot, TenantSlot(tenant), tenant, terms);
    }

    /// Weights count from the next command on.
    pub(super) fn change_terms(&mut self, tenant: u16, terms: &Terms) {
        for slot in (0..self.flows.slots()).map(VqSlot) {
            if self.tenant_of(slot) == Some(tenant) {
                self.flows.retune(slot, terms);
            }
        }
    }

    /// The tenant has no VQ here any more.
    pub(super) fn forget(&mut self, tenant: u16) {
        self.roster.leave(tenant);
        self.flows.turns.forget(tenant);
        self.flows.set_part(tenant, 1.0);
    }

    /// The slot of a tenant that was attached here, and has not left.
    pub(super) fn slot_of(&self, tenant: TenantId) -> u16 {
        self.roster.slot_of(tenant)
    }

    /// The slot is this tenant's.
    pub(super) fn detach(&mut self, slot: VqSlot, tenant: u16) {
        self.count(slot, tenant, 0);
        self.tenants[usize::from(tenant)].vqs -= 1;
        self.flows.detach(slot);
    }

    /// The tenant of an attached slot.
    #[inline]
    pub(super) fn tenant_of(&self, slot: VqSlot) -> Option<u16> {
        self.flows.flow_of(slot)
    }

    pub(super) fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        self.flows.hwq_of(slot)
    }

    /// Whether this tenant has VQs here.
    pub(super) fn serves(&self, tenant: u16) -> bool {
        self.tenants.get(usize::from(tenant)).is_some_and(|tenant| tenant.vqs > 0)
    }

    /// Slots of the tenants that were ever attached here are below this.
    pub(super) fn tenants(&self) -> u16 {
        self.tenants.len() as u16
    }

    /// Commands in the tenant's VQs.
    #[inline]
    pub(super) fn backlog_of(&self, tenant: u16) -> u64 {
        self.tenants.get(usize::from(tenant)).map_or(0, |tenant| tenant.backlog)
    }

    /// Commands in the VQ.
    pub(super) fn backlog_at(&self, slot: VqSlot) -> u32 {
        self.flows.backlog_of(slot)
    }

    /// Commands wait somewhere.
    #[inline]
    pub(super) fn any_backlog(&self) -> bool {
        self.flows.any_backlog()
    }

    /// Commands with the drive.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.flows.in_flight()
    }

    /// The tenant has a command whose HWQ was not found full.
    pub(super) fn is_ready(&self, tenant: u16) -> bool {
        self.flows.is_ready(tenant)
    }

    /// The ready tenant that had least for its weight.
    #[inline]
    pub(super) fn front(&mut self) -> Option<u16> {
        self.flows.turns.0.front()
    }

    /// A command went that was no work.
    pub(super) fn charge(&mut self, tenant: u16, cost: u32) {
        self.flows.turns.0.charge(tenant, cost);
    }

    /// The tenant was served at this cost, which counts as that for its weight.
    #[inline]
    pub(super) fn serve(&mut self, tenant: u16, cost: u32, charged: u32) {
        self.flows.turns.0.charge(tenant, charged);
        self.flows.serve(tenant, cost);
    }

    /// Cost ticks that may be with the drive, at this poller's part of them.
    pub(super) fn window(&mut self) -> &mut Window {
        &mut self.flows.window
    }

    /// What that part is, in the mean.
    pub(super) fn window_size(&self) -> f64 {
        self.flows.window.size()
    }

    /// What tenants asked for and had in this interval, by their claims. `taken`: cost ticks in flight.
    pub(super) fn demand(&mut self, taken: u64, claim: impl Fn(u16) -> f64) -> Option<Demand> {
        self.flows.demand(taken, |_, tenant| Claim::Weight(claim(tenant)))
    }

    /// Of what the tenant asks for, that part is asked for here.
    pub(super) fn set_part(&mut self, tenant: u16, part: f64) {
        self.flows.set_part(tenant, part);
    }

    /// The tenant's next command whose HWQ has room. A tenant without any is ready no more.
    #[inline]
    pub(super) fn pick(&mut self, tenant: u16) -> Option<Next> {
        self.flows.pick(tenant)
    }

    #[inline]
    fn count(&mut self, slot: VqSlot, tenant: u16, backlog: u32) {
        let before = std::mem::replace(&mut self.backlogs[usize::from(slot.0)], backlog);
        let tenant = &mut self.tenants[usize::from(tenant)];
        tenant.backlog = tenant.backlog - u64::from(before) + u64::from(backlog);
    }

    /// The slot is this tenant's, and so it is in the functions below.
    #[inline]
    pub(super) fn arrived(&mut self, slot: VqSlot, tenant: u16, backlog: u32) {
        self.count(slot, tenant, backlog);
        self.flows.arrived(slot, backlog);
    }

    #[inline]
    pub(super) fn sent(&mut self, slot: VqSlot, tenant: u16, hwq: HwqId) {
        self.count(slot, tenant, self.backlogs[usize::from(slot.0)].saturating_sub(1));
        self.flows.sent(slot, hwq);
    }

    pub(super) fn refused(&mut self, slot: VqSlot, tenant: u16, consumed: bool) {
        let left = if consumed { self.backlogs[usize::from(slot.0)].saturating_sub(1) } else { 0 };
        self.count(slot, tenant, left);
        self.flows.refused(slot, consumed);
    }

    /// A command of any tenant completed.
    #[inline]
    pub(super) fn completed(&mut self, hwq: HwqId) {
        self.flows.completed(hwq);
    }
}
