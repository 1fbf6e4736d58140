//! One of the policies, chosen at run time without a virtual call per command.

use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId, WrrWeights};

use crate::by_flow::ByFlow;
use crate::compared::{Gimbal, IoCost, Reflex};
use crate::limits::Limiter;
use crate::{
    Arbitrated, Bound, Caps, D2fq, Demand, Evenkeel, FairNvme, K2, Lpns, Mqfq, Next, Passthrough, Policy, PolicyFigure,
    TenantFigure, TenantReport, TenantSlot, Terms, ThrottleState, VqSlot,
};

#[derive(Debug)]
enum Chosen {
    Passthrough(Passthrough),
    Lpns(Box<Lpns>),
    Fair(Box<FairNvme>),
    K2(Box<K2>),
    Mqfq(Box<Mqfq>),
    D2fq(Box<D2fq>),
    Caps(Box<Caps>),
    Arbitrated(Box<Arbitrated>),
    Evenkeel(Box<Evenkeel>),
    IoCost(Box<IoCost>),
    Gimbal(Box<Gimbal>),
    Reflex(Box<Reflex>),
}

/// Any policy of this crate, and each tenant's limits whichever it is.
#[derive(Debug)]
pub struct AnyPolicy {
    chosen: Chosen,
    limiter: Box<Limiter>,
}

impl From<Chosen> for AnyPolicy {
    fn from(chosen: Chosen) -> Self {
        Self { chosen, limiter: Box::new(Limiter::new()) }
    }
}

impl From<Passthrough> for AnyPolicy {
    fn from(policy: Passthrough) -> Self {
        Chosen::Passthrough(policy).into()
    }
}

/// `From` for the boxed variants: an enum as large as its largest one would be moved about at start for nothing.
macro_rules! boxed {
    ($($policy:ident => $variant:ident),*) => {
        $(impl From<$policy> for AnyPolicy {
            fn from(policy: $policy) -> Self {
                Chosen::$variant(Box::new(policy)).into()
            }
        })*
    };
}

boxed!(Lpns => Lpns, FairNvme => Fair, K2 => K2, Mqfq => Mqfq, D2fq => D2fq, Caps => Caps);
boxed!(Arbitrated => Arbitrated, Evenkeel => Evenkeel);
boxed!(IoCost => IoCost, Gimbal => Gimbal, Reflex => Reflex);

/// Calls the same method on whichever policy it is.
macro_rules! each {
    ($chosen:expr, $policy:ident => $call:expr) => {
        match $chosen {
            Chosen::Passthrough($policy) => $call,
            Chosen::Lpns($policy) => $call,
            Chosen::Fair($policy) => $call,
            Chosen::K2($policy) => $call,
            Chosen::Mqfq($policy) => $call,
            Chosen::D2fq($policy) => $call,
            Chosen::Caps($policy) => $call,
            Chosen::Arbitrated($policy) => $call,
            Chosen::Evenkeel($policy) => $call,
            Chosen::IoCost($policy) => $call,
            Chosen::Gimbal($policy) => $call,
            Chosen::Reflex($policy) => $call,
        }
    };
}

impl AnyPolicy {
    /// The name that a configuration uses.
    pub fn name(&self) -> &'static str {
        match &self.chosen {
            Chosen::Passthrough(_) => "passthrough",
            Chosen::Lpns(_) => "lpns",
            Chosen::Fair(_) => "fair",
            Chosen::K2(_) => "k2",
            Chosen::Mqfq(_) => "mqfq",
            Chosen::D2fq(_) => "d2fq",
            Chosen::Caps(_) => "caps",
            Chosen::Arbitrated(policy) => policy.name(),
            Chosen::Evenkeel(_) => "evenkeel",
            Chosen::IoCost(_) => "iocost",
            Chosen::Gimbal(_) => "gimbal",
            Chosen::Reflex(_) => "reflex",
        }
    }

    /// Whether a VQ sends through a backup until the HWQ meant for it is empty.
    pub fn is_switching(&self, slot: VqSlot) -> bool {
        match &self.chosen {
            Chosen::Lpns(policy) => policy.is_switching(slot),
            _ => false,
        }
    }

    /// How often a VQ moved to an exclusive HWQ since the start.
    pub fn switches(&self) -> u64 {
        match &self.chosen {
            Chosen::Lpns(policy) => policy.switches(),
            _ => 0,
        }
    }

    /// What the throttle allows now, if there is one.
    pub fn throttle_state(&self) -> Option<ThrottleState> {
        match &self.chosen {
            Chosen::Lpns(policy) => Some(policy.throttle_state()),
            _ => None,
        }
    }
}

impl AnyPolicy {
    /// Releases tenants that have waited long enough.
    #[inline]
    fn release(&mut self, now: Nanos) {
        let Self { chosen, limiter } = self;
        limiter.release(now, |slot, backlog| each!(chosen, policy => policy.arrived(slot, backlog, now)));
    }

    /// A command left the VQ, or it has none any more.
    #[inline]
    fn had_turn(&mut self, slot: VqSlot, now: Nanos) {
        let Self { chosen, limiter } = self;
        if let Some(tenant) = limiter.had_turn(slot) {
            limiter.release_tenant(tenant, |slot, backlog| each!(chosen, policy => policy.arrived(slot, backlog, now)));
        }
    }

    fn set_limits(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        self.release(now);
        let Self { chosen, limiter } = self;
        limiter.set_limits(tenant, terms.limits, terms.pollers);
        // If it must wait under these too, that is found when the policy names it.
        limiter.release_tenant(tenant, |slot, backlog| each!(chosen, policy => policy.arrived(slot, backlog, now)));
    }

    fn arrived_within_limits(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
        if self.limiter.arrived(slot, backlog) {
            return;
        }
        if backlog == 0 {
            self.had_turn(slot, now);
        }
        each!(&mut self.chosen, policy => policy.arrived(slot, backlog, now));
    }

    fn sent_within_limits(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, now: Nanos) {
        each!(&mut self.chosen, policy => policy.sent(slot, hwq, op, len_bytes, now));
        self.limiter.charge(slot, Some(op), len_bytes);
        self.had_turn(slot, now);
    }

    fn next_within_limits(&mut self, now: Nanos) -> Next {
        self.release(now);
        loop {
            let next = each!(&mut self.chosen, policy => policy.next(now));
            let Next::Send { vq, .. } = next else { return self.limiter.or_release(next) };
            let slices = self.limiter.slices_to_wait(vq);
            if slices == 0 {
                return next;
            }
            let backlog = each!(&self.chosen, policy => policy.backlog_of(vq));
            each!(&mut self.chosen, policy => policy.refused(vq, false, now));
            self.limiter.withhold(vq, backlog, slices);
        }
    }
}

impl Policy for AnyPolicy {
    fn attach(&mut self, slot: VqSlot, vq: VqId, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        each!(&mut self.chosen, policy => policy.attach(slot, vq, tenant, terms, now));
        self.limiter.attach(slot, tenant);
        self.set_limits(tenant, terms, now);
    }

    fn change_terms(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        each!(&mut self.chosen, policy => policy.change_terms(tenant, terms, now));
        self.set_limits(tenant, terms, now);
    }

    fn forget(&mut self, tenant: TenantSlot) {
        each!(&mut self.chosen, policy => policy.forget(tenant));
        self.limiter.forget(tenant);
    }

    fn asked_priority(&mut self, slot: VqSlot, priority: QueuePriority) {
        each!(&mut self.chosen, policy => policy.asked_priority(slot, priority));
    }

    fn detach(&mut self, slot: VqSlot, now: Nanos) {
        each!(&mut self.chosen, policy => policy.detach(slot, now));
        self.had_turn(slot, now);
        self.limiter.detach(slot);
    }

    #[inline]
    fn arrived(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
        if self.limiter.is_idle() {
            return each!(&mut self.chosen, policy => policy.arrived(slot, backlog, now));
        }
        self.arrived_within_limits(slot, backlog, now);
    }

    #[inline]
    fn next(&mut self, now: Nanos) -> Next {
        if self.limiter.is_idle() {
            return each!(&mut self.chosen, policy => policy.next(now));
        }
        self.next_within_limits(now)
    }

    #[inline]
    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, now: Nanos) {
        if self.limiter.is_idle() {
            return each!(&mut self.chosen, policy => policy.sent(slot, hwq, op, len_bytes, now));
        }
        self.sent_within_limits(slot, hwq, op, len_bytes, now);
    }

    #[inline]
    fn refused(&mut self, slot: VqSlot, consumed: bool, now: Nanos) {
        each!(&mut self.chosen, policy => policy.refused(slot, consumed, now));
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
        each!(&mut self.chosen, policy => policy.completed(slot, hwq, tenant, op, len_bytes, latency, now));
    }

    fn awoken(&mut self, tenant: TenantId, now: Nanos) {
        each!(&mut self.chosen, policy => policy.awoken(tenant, now));
    }

    fn demand(&mut self) -> Option<Demand> {
        each!(&mut self.chosen, policy => policy.demand())
    }

    fn demands(&mut self, all: &[Demand], own: usize, now: Nanos) {
        each!(&mut self.chosen, policy => policy.demands(all, own, now));
    }

    fn asks_here(&mut self, tenant: TenantSlot, part: f64, now: Nanos) {
        each!(&mut self.chosen, policy => policy.asks_here(tenant, part, now));
        self.release(now);
        let Self { chosen, limiter } = self;
        if limiter.set_part(tenant, part) {
            limiter.release_tenant(tenant, |slot, backlog| each!(chosen, policy => policy.arrived(slot, backlog, now)));
        }
    }

    fn interval(&mut self, reports: &[TenantReport], now: Nanos) {
        each!(&mut self.chosen, policy => policy.interval(reports, now));
    }

    fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        each!(&self.chosen, policy => policy.hwq_of(slot))
    }

    fn bound(&self, tenant: TenantId) -> Option<Bound> {
        each!(&self.chosen, policy => policy.bound(tenant))
    }

    fn idle_bound(&self, guaranteed: bool) -> Option<Bound> {
        each!(&self.chosen, policy => policy.idle_bound(guaranteed))
    }

    fn wrr_weights(&self) -> Option<WrrWeights> {
        each!(&self.chosen, policy => policy.wrr_weights())
    }

    fn figures(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        each!(&self.chosen, policy => policy.figures(tell));
    }

    fn tenant_figures(&self, tenant: TenantSlot, tell: &mut dyn FnMut(TenantFigure, f64)) {
        each!(&self.chosen, policy => policy.tenant_figures(tenant, tell));
        if let Some(held) = self.limiter.holds(tenant) {
            tell(TenantFigure::Held, f64::from(u8::from(held)));
        }
    }
}
