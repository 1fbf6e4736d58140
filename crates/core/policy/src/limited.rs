//! A policy whose tenants have limits.

use std::sync::Arc;

use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId, WrrWeights};

use crate::groups::Groups;
use crate::limits::Limiter;
use crate::{Bound, Demand, Next, Policy, PolicyFigure, TenantFigure, TenantReport, TenantSlot, Terms, VqSlot};

/// A policy, and each tenant's [limits](crate::Limits) beside it.
#[derive(Debug)]
pub struct Limited<P> {
    policy: P,
    limiter: Box<Limiter>,
}

impl<P> Limited<P> {
    /// No tenant has limits yet. `groups`: those that tenants' [terms](Terms) name.
    pub fn new(policy: P, groups: Arc<Groups>) -> Self {
        Self { policy, limiter: Box::new(Limiter::new(groups)) }
    }

    /// The policy itself.
    pub fn policy(&self) -> &P {
        &self.policy
    }
}

impl<P: Policy> Limited<P> {
    /// Tells the policy of each VQ that was released.
    #[inline(never)] // Seldom, and none of its callers' business.
    fn tell_released(&mut self, now: Nanos) {
        while let Some((slot, backlog)) = self.limiter.next_released() {
            self.policy.arrived(slot, backlog, now);
        }
    }

    /// Releases tenants that have waited long enough.
    #[inline]
    fn release(&mut self, now: Nanos) {
        if self.limiter.advance(now) {
            self.tell_released(now);
        }
    }

    /// A command left the VQ, or it has none any more.
    #[inline]
    fn had_turn(&mut self, slot: VqSlot, now: Nanos) {
        if self.limiter.had_turn(slot) {
            self.tell_released(now);
        }
    }

    fn set_limits(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        self.release(now);
        self.limiter.set_limits(tenant, terms);
        // If it must wait under these too, that is found when the policy names it.
        self.tell_released(now);
    }

    fn arrived_within_limits(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
        if self.limiter.arrived(slot, backlog) {
            return;
        }
        if backlog == 0 {
            self.had_turn(slot, now);
        }
        self.policy.arrived(slot, backlog, now);
    }

    fn sent_within_limits(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, now: Nanos) {
        self.policy.sent(slot, hwq, op, len_bytes, now);
        self.limiter.charge(slot, Some(op), len_bytes);
        self.had_turn(slot, now);
    }

    fn next_within_limits(&mut self, now: Nanos) -> Next {
        self.release(now);
        loop {
            let next = self.policy.next(now);
            let Next::Send { vq, .. } = next else { return self.limiter.or_release(next) };
            let slices = self.limiter.slices_to_wait(vq);
            if slices == 0 {
                return next;
            }
            let backlog = self.policy.backlog_of(vq);
            self.policy.refused(vq, false, now);
            self.limiter.withhold(vq, backlog, slices);
        }
    }
}

impl<P: Policy> Policy for Limited<P> {
    fn attach(&mut self, slot: VqSlot, vq: VqId, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        self.policy.attach(slot, vq, tenant, terms, now);
        self.limiter.attach(slot, tenant);
        self.set_limits(tenant, terms, now);
    }

    fn change_terms(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        self.policy.change_terms(tenant, terms, now);
        self.set_limits(tenant, terms, now);
    }

    fn forget(&mut self, tenant: TenantSlot) {
        self.policy.forget(tenant);
        self.limiter.forget(tenant);
    }

    fn asked_priority(&mut self, slot: VqSlot, priority: QueuePriority) {
        self.policy.asked_priority(slot, priority);
    }

    fn detach(&mut self, slot: VqSlot, now: Nanos) {
        self.policy.detach(slot, now);
        self.had_turn(slot, now);
        self.limiter.detach(slot);
    }

    #[inline]
    fn arrived(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
        if self.limiter.is_idle() {
            return self.policy.arrived(slot, backlog, now);
        }
        self.arrived_within_limits(slot, backlog, now);
    }

    #[inline]
    fn next(&mut self, now: Nanos) -> Next {
        if self.limiter.is_idle() {
            return self.policy.next(now);
        }
        self.next_within_limits(now)
    }

    #[inline]
    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, now: Nanos) {
        if self.limiter.is_idle() {
            return self.policy.sent(slot, hwq, op, len_bytes, now);
        }
        self.sent_within_limits(slot, hwq, op, len_bytes, now);
    }

    #[inline]
    fn refused(&mut self, slot: VqSlot, consumed: bool, now: Nanos) {
        self.policy.refused(slot, consumed, now);
        if !self.limiter.is_idle() {
            if consumed {
                // A command all the same, if not one for the drive.
                self.limiter.charge(slot, None, 0);
            }
            self.had_turn(slot, now);
        }
    }

    #[inline]
    fn completed(
        &mut self,
        slot: VqSlot,
        hwq: HwqId,
        tenant: TenantSlot,
        op: Op,
        len_bytes: u64,
        latency: Nanos,
        now: Nanos,
    ) {
        self.policy.completed(slot, hwq, tenant, op, len_bytes, latency, now);
    }

    fn awoken(&mut self, tenant: TenantId, now: Nanos) {
        self.policy.awoken(tenant, now);
    }

    fn demand(&mut self) -> Option<Demand> {
        self.policy.demand()
    }

    fn demands(&mut self, all: &[Demand], own: usize, now: Nanos) {
        self.policy.demands(all, own, now);
    }

    fn asks_here(&mut self, tenant: TenantSlot, part: f64, now: Nanos) {
        self.policy.asks_here(tenant, part, now);
        self.release(now);
        self.limiter.set_part(tenant, part);
        self.tell_released(now);
    }

    fn interval(&mut self, reports: &[TenantReport], now: Nanos) {
        self.policy.interval(reports, now);
    }

    fn backlog_of(&self, slot: VqSlot) -> u32 {
        self.policy.backlog_of(slot)
    }

    fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        self.policy.hwq_of(slot)
    }

    fn bound(&self, tenant: TenantId) -> Option<Bound> {
        self.policy.bound(tenant)
    }

    fn idle_bound(&self, guaranteed: bool) -> Option<Bound> {
        self.policy.idle_bound(guaranteed)
    }

    fn wrr_weights(&self) -> Option<WrrWeights> {
        self.policy.wrr_weights()
    }

    fn figures(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        self.policy.figures(tell);
    }

    fn tenant_figures(&self, tenant: TenantSlot, tell: &mut dyn FnMut(TenantFigure, f64)) {
        self.policy.tenant_figures(tenant, tell);
        if let Some(held) = self.limiter.holds(tenant) {
            tell(TenantFigure::Held, f64::from(u8::from(held)));
        }
    }
}
