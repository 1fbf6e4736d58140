//! One of the policies, chosen at run time without a virtual call per command.

use io_model::{HwqId, Nanos, Op, TenantId, VqId};

use crate::{Bound, Class, Lpns, Next, Passthrough, Policy, TenantReport, ThrottleState, VqSlot};

/// Any policy of this crate.
#[derive(Debug)]
pub enum AnyPolicy {
    /// Round robin, no throttle.
    Passthrough(Passthrough),
    /// Predictable latency.
    Lpns(Box<Lpns>),
}

impl From<Passthrough> for AnyPolicy {
    fn from(policy: Passthrough) -> Self {
        Self::Passthrough(policy)
    }
}

impl From<Lpns> for AnyPolicy {
    fn from(policy: Lpns) -> Self {
        Self::Lpns(Box::new(policy))
    }
}

/// Calls the same method on whichever policy it is.
macro_rules! each {
    ($self:ident, $policy:ident => $call:expr) => {
        match $self {
            Self::Passthrough($policy) => $call,
            Self::Lpns($policy) => $call,
        }
    };
}

impl AnyPolicy {
    /// The name that a configuration uses.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Passthrough(_) => "passthrough",
            Self::Lpns(_) => "lpns",
        }
    }

    /// The HWQ that a VQ's next command goes to.
    pub fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        each!(self, policy => policy.hwq_of(slot))
    }

    /// Whether a VQ sends through a backup until the HWQ meant for it is empty.
    pub fn is_switching(&self, slot: VqSlot) -> bool {
        match self {
            Self::Passthrough(_) => false,
            Self::Lpns(policy) => policy.is_switching(slot),
        }
    }

    /// How often a VQ moved to an exclusive HWQ since the start.
    pub fn switches(&self) -> u64 {
        match self {
            Self::Passthrough(_) => 0,
            Self::Lpns(policy) => policy.switches(),
        }
    }

    /// What the throttle allows now, if there is one.
    pub fn throttle_state(&self) -> Option<ThrottleState> {
        match self {
            Self::Passthrough(_) => None,
            Self::Lpns(policy) => Some(policy.throttle_state()),
        }
    }
}

impl Policy for AnyPolicy {
    fn attach(&mut self, slot: VqSlot, vq: VqId, class: Class, now: Nanos) {
        each!(self, policy => policy.attach(slot, vq, class, now));
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
        tenant: TenantId,
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

    fn bound(&self, tenant: TenantId) -> Option<Bound> {
        each!(self, policy => policy.bound(tenant))
    }
}
