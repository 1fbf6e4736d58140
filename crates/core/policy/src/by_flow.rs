//! The contract of [`Policy`] for policies whose VQs wait in [`Flows`]: they say who goes next and what it costs, and
//! nothing of the rest.

use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId, WrrWeights};

use crate::flows::{Flows, Turns};
use crate::{Bound, Demand, Next, Policy, PolicyFigure, TenantFigure, TenantReport, TenantSlot, Terms, VqSlot};

/// A policy over [`Flows`].
pub trait ByFlow {
    /// The order among flows.
    type Turns: Turns;

    /// The flows, with their waiting VQs.
    fn flows(&self) -> &Flows<Self::Turns>;

    /// See [`flows`](Self::flows).
    fn flows_mut(&mut self) -> &mut Flows<Self::Turns>;

    /// The flow of a tenant's VQ whose client asked for this priority: the tenant, if not said otherwise.
    fn flow_for(&self, _slot: VqSlot, tenant: TenantSlot, _asked: QueuePriority) -> u16 {
        tenant.0
    }

    /// A tenant's terms as of now, before [`Turns::attach`] tells its flows.
    fn heed(&mut self, _tenant: TenantSlot, _terms: &Terms, _now: Nanos) {}

    /// See [`Policy::hwq_of`].
    fn next_hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        self.flows().hwq_of(slot)
    }

    /// See [`Policy::next`].
    fn pick(&mut self, now: Nanos) -> Next;

    /// A command of the flow goes to the drive; its VQ still counts it.
    fn sending(&mut self, _flow: u16, _op: Op, _len_bytes: u64) {}

    /// See [`Policy::refused`]; the VQ still counts the command.
    fn refusing(&mut self, _flow: u16, _consumed: bool) {}

    /// The flow's turn is over, and the command that it had went to this HWQ, if to any.
    fn turn_over(&mut self, _flow: u16, _hwq: Option<HwqId>) {}

    /// See [`Policy::completed`]; the HWQ still counts the command.
    fn completing(&mut self, _hwq: HwqId, _tenant: TenantSlot, _op: Op, _len_bytes: u64, _now: Nanos) {}

    /// A command of anybody's ended, and took so long.
    fn took(&mut self, _op: Op, _len_bytes: u64, _latency: Nanos) {}

    /// See [`Policy::forget`].
    fn forget_flows(&mut self, tenant: TenantSlot) {
        self.flows_mut().turns.forget(tenant.0);
        self.flows_mut().set_part(tenant.0, 1.0);
    }

    /// See [`Policy::awoken`].
    fn has_awoken(&mut self, _tenant: TenantId) {}

    /// What is with the drive, as the window counts it.
    fn taken(&self) -> u64 {
        self.flows().in_flight().into()
    }

    /// See [`Policy::demand`].
    fn tell_demand(&mut self) -> Option<Demand> {
        let taken = self.taken();
        self.flows_mut().demand(taken, Turns::claim)
    }

    /// See [`Policy::demands`].
    fn hear_demands(&mut self, all: &[Demand], own: usize, now: Nanos) {
        self.flows_mut().window.hear(all, own, now);
    }

    /// See [`Policy::asks_here`]. A tenant at several pollers does not share them, so the fraction matters only for
    /// what this poller claims.
    fn set_part(&mut self, tenant: TenantSlot, part: f64) {
        self.flows_mut().set_part(tenant.0, part);
    }

    /// See [`Policy::interval`].
    fn end_interval(&mut self, _reports: &[TenantReport], _now: Nanos) {}

    /// See [`Policy::bound`] and [`Policy::idle_bound`]: the same for all that are guaranteed, or not.
    fn bound_of_all(&self, _guaranteed: bool) -> Option<Bound> {
        None
    }

    /// See [`Policy::wrr_weights`].
    fn weights(&self) -> Option<WrrWeights> {
        None
    }

    /// See [`Policy::figures`].
    fn inside(&self, _tell: &mut dyn FnMut(PolicyFigure, f64)) {}

    /// See [`Policy::tenant_figures`].
    fn inside_of(&self, _tenant: TenantSlot, _tell: &mut dyn FnMut(TenantFigure, f64)) {}
}

impl<P: ByFlow> Policy for P {
    fn attach(&mut self, slot: VqSlot, _: VqId, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        self.heed(tenant, terms, now);
        let flow = self.flow_for(slot, tenant, QueuePriority::Medium);
        self.flows_mut().attach(slot, tenant, flow, terms);
    }

    fn change_terms(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        self.heed(tenant, terms, now);
        for slot in (0..self.flows().slots()).map(VqSlot) {
            if self.flows().tenant_of(slot) == Some(tenant) {
                let flow = self.flow_for(slot, tenant, self.flows().asked_by(slot));
                self.flows_mut().move_to(slot, flow);
                self.flows_mut().retune(slot, terms);
            }
        }
    }

    fn forget(&mut self, tenant: TenantSlot) {
        self.forget_flows(tenant);
    }

    fn asked_priority(&mut self, slot: VqSlot, priority: QueuePriority) {
        if let Some(tenant) = self.flows().tenant_of(slot) {
            self.flows_mut().set_asked(slot, priority);
            let flow = self.flow_for(slot, tenant, priority);
            self.flows_mut().move_to(slot, flow);
        }
    }

    fn detach(&mut self, slot: VqSlot, _: Nanos) {
        self.flows_mut().detach(slot);
    }

    #[inline]
    fn arrived(&mut self, slot: VqSlot, backlog: u32, _: Nanos) {
        self.flows_mut().arrived(slot, backlog);
    }

    #[inline]
    fn next(&mut self, now: Nanos) -> Next {
        self.pick(now)
    }

    #[inline]
    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, _: Nanos) {
        let Some(flow) = self.flows().flow_of(slot) else { return };
        self.sending(flow, op, len_bytes);
        self.flows_mut().sent(slot, hwq);
        self.turn_over(flow, Some(hwq));
    }

    fn refused(&mut self, slot: VqSlot, consumed: bool, _: Nanos) {
        let Some(flow) = self.flows().flow_of(slot) else { return };
        self.refusing(flow, consumed);
        self.flows_mut().refused(slot, consumed);
        self.turn_over(flow, None);
    }

    #[inline]
    fn completed(
        &mut self,
        _: VqSlot,
        hwq: HwqId,
        tenant: TenantSlot,
        op: Op,
        len_bytes: u64,
        latency: Nanos,
        now: Nanos,
    ) {
        self.took(op, len_bytes, latency);
        self.completing(hwq, tenant, op, len_bytes, now);
        self.flows_mut().completed(hwq);
    }

    fn awoken(&mut self, tenant: TenantId, _: Nanos) {
        self.has_awoken(tenant);
    }

    fn demand(&mut self) -> Option<Demand> {
        self.tell_demand()
    }

    fn demands(&mut self, all: &[Demand], own: usize, now: Nanos) {
        self.hear_demands(all, own, now);
    }

    fn asks_here(&mut self, tenant: TenantSlot, part: f64, _: Nanos) {
        self.set_part(tenant, part);
    }

    fn interval(&mut self, reports: &[TenantReport], now: Nanos) {
        self.end_interval(reports, now);
    }

    fn backlog_of(&self, slot: VqSlot) -> u32 {
        self.flows().backlog_of(slot)
    }

    fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        self.next_hwq_of(slot)
    }

    fn bound(&self, _: TenantId) -> Option<Bound> {
        self.bound_of_all(true)
    }

    fn idle_bound(&self, guaranteed: bool) -> Option<Bound> {
        self.bound_of_all(guaranteed)
    }

    fn wrr_weights(&self) -> Option<WrrWeights> {
        self.weights()
    }

    fn figures(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        self.inside(tell);
    }

    fn tenant_figures(&self, tenant: TenantSlot, tell: &mut dyn FnMut(TenantFigure, f64)) {
        self.inside_of(tenant, tell);
    }
}
