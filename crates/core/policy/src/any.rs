//! One of the policies, chosen at run time without a virtual call per command.

use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId, WrrWeights};

use crate::{
    Arbitrated, Bound, Caps, D2fq, FairNvme, K2, Lpns, Mqfq, Next, Passthrough, Policy, TenantReport, TenantSlot,
    Terms, ThrottleState, VqSlot,
};

/// Any policy of this crate.
#[derive(Debug)]
pub enum AnyPolicy {
    /// Round robin, no throttle.
    Passthrough(Passthrough),
    /// Predictable latency.
    Lpns(Box<Lpns>),
    /// Fair slowdowns by time budgets.
    Fair(Box<FairNvme>),
    /// A cap on all commands with the drive, guaranteed tenants first.
    K2(Box<K2>),
    /// Fair queueing with a bounded gap.
    Mqfq(Box<Mqfq>),
    /// Fair queueing by the drive's weighted round robin.
    D2fq(Box<D2fq>),
    /// A limit for each tenant.
    Caps(Box<Caps>),
    /// Weighted or deficit round robin among tenants by class.
    Arbitrated(Box<Arbitrated>),
}

impl From<Passthrough> for AnyPolicy {
    fn from(policy: Passthrough) -> Self {
        Self::Passthrough(policy)
    }
}

/// `From` for the boxed variants: an enum as large as its largest one would be moved about at start for nothing.
macro_rules! boxed {
    ($($policy:ident => $variant:ident),*) => {
        $(impl From<$policy> for AnyPolicy {
            fn from(policy: $policy) -> Self {
                Self::$variant(Box::new(policy))
            }
        })*
    };
}

boxed!(Lpns => Lpns, FairNvme => Fair, K2 => K2, Mqfq => Mqfq, D2fq => D2fq, Caps => Caps, Arbitrated => Arbitrated);

/// Calls the same method on whichever policy it is.
macro_rules! each {
    ($self:ident, $policy:ident => $call:expr) => {
        match $self {
            Self::Passthrough($policy) => $call,
            Self::Lpns($policy) => $call,
            Self::Fair($policy) => $call,
            Self::K2($policy) => $call,
            Self::Mqfq($policy) => $call,
            Self::D2fq($policy) => $call,
            Self::Caps($policy) => $call,
            Self::Arbitrated($policy) => $call,
        }
    };
}

impl AnyPolicy {
    /// The name that a configuration uses.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Passthrough(_) => "passthrough",
            Self::Lpns(_) => "lpns",
            Self::Fair(_) => "fair",
            Self::K2(_) => "k2",
            Self::Mqfq(_) => "mqfq",
            Self::D2fq(_) => "d2fq",
            Self::Caps(_) => "caps",
            Self::Arbitrated(policy) => policy.name(),
        }
    }

    /// Whether a VQ sends through a backup until the HWQ meant for it is empty.
    pub fn is_switching(&self, slot: VqSlot) -> bool {
        match self {
            Self::Lpns(policy) => policy.is_switching(slot),
            _ => false,
        }
    }

    /// How often a VQ moved to an exclusive HWQ since the start.
    pub fn switches(&self) -> u64 {
        match self {
            Self::Lpns(policy) => policy.switches(),
            _ => 0,
        }
    }

    /// What the throttle allows now, if there is one.
    pub fn throttle_state(&self) -> Option<ThrottleState> {
        match self {
            Self::Lpns(policy) => Some(policy.throttle_state()),
            _ => None,
        }
    }
}

impl Policy for AnyPolicy {
    fn attach(&mut self, slot: VqSlot, vq: VqId, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        each!(self, policy => policy.attach(slot, vq, tenant, terms, now));
    }

    fn change_terms(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        each!(self, policy => policy.change_terms(tenant, terms, now));
    }

    fn forget(&mut self, tenant: TenantSlot) {
        each!(self, policy => policy.forget(tenant));
    }

    fn asked_priority(&mut self, slot: VqSlot, priority: QueuePriority) {
        each!(self, policy => policy.asked_priority(slot, priority));
    }

    fn detach(&mut self, slot: VqSlot, now: Nanos) {
        each!(self, policy => policy.detach(slot, now));
    }

    #[inline]
    fn arrived(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
        each!(self, policy => policy.arrived(slot, backlog, now));
    }

    #[inline]
    fn next(&mut self, now: Nanos) -> Next {
        each!(self, policy => policy.next(now))
    }

    #[inline]
    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, now: Nanos) {
        each!(self, policy => policy.sent(slot, hwq, op, len_bytes, now));
    }

    #[inline]
    fn refused(&mut self, slot: VqSlot, consumed: bool, now: Nanos) {
        each!(self, policy => policy.refused(slot, consumed, now));
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
        each!(self, policy => policy.completed(slot, hwq, tenant, op, len_bytes, latency, now));
    }

    fn interval(&mut self, reports: &[TenantReport], now: Nanos) {
        each!(self, policy => policy.interval(reports, now));
    }

    fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        each!(self, policy => policy.hwq_of(slot))
    }

    fn bound(&self, tenant: TenantId) -> Option<Bound> {
        each!(self, policy => policy.bound(tenant))
    }

    fn wrr_weights(&self) -> Option<WrrWeights> {
        each!(self, policy => policy.wrr_weights())
    }
}
