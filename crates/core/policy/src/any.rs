//! One of the policies, chosen at run time without a virtual call per command.

use std::sync::Arc;

use crate::limited::Limited;
use crate::{Arbitrated, Evenkeel, FairNvme, Lpns, Passthrough};

/// Any policy of this crate, and each tenant's limits whichever it is.
pub type AnyPolicy = Limited<OneOf>;

/// Any policy of this crate. The larger ones are boxed: an enum as large as its largest one would be moved about at
/// start for nothing.
#[derive(Debug)]
pub enum OneOf {
    /// See [`Passthrough`].
    Passthrough(Passthrough),
    /// See [`Lpns`].
    Lpns(Box<Lpns>),
    /// See [`FairNvme`].
    Fair(Box<FairNvme>),
    /// See [`Arbitrated`].
    Arbitrated(Box<Arbitrated>),
    /// See [`Evenkeel`].
    Evenkeel(Box<Evenkeel>),
}

impl From<Passthrough> for OneOf {
    fn from(policy: Passthrough) -> Self {
        Self::Passthrough(policy)
    }
}

macro_rules! boxed {
    ($($policy:ident => $variant:ident),*) => {
        $(impl From<$policy> for OneOf {
            fn from(policy: $policy) -> Self {
                Self::$variant(Box::new(policy))
            }
        })*
    };
}

boxed!(Lpns => Lpns, FairNvme => Fair, Arbitrated => Arbitrated, Evenkeel => Evenkeel);

impl<P: Into<OneOf>> From<P> for AnyPolicy {
    fn from(policy: P) -> Self {
        Self::new(policy.into(), Arc::default())
    }
}

/// Implements [`Policy`](crate::Policy) for an enum of policies: a match calls the variant's policy, without a virtual
/// call. For crates that depend on `io_model`.
#[macro_export]
macro_rules! one_of_policies {
    ($one_of:ident: $($one:ident),*) => {
        const _: () = {
            use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId, WrrWeights};
            use $crate::{
                Bound, Demand, Next, Policy, PolicyFigure, TenantFigure, TenantReport, TenantSlot, Terms, VqSlot,
            };

            impl Policy for $one_of {
                fn attach(&mut self, slot: VqSlot, vq: VqId, tenant: TenantSlot, terms: &Terms, now: Nanos) {
                    match self { $(Self::$one(policy) => policy.attach(slot, vq, tenant, terms, now)),* }
                }

                fn change_terms(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos) {
                    match self { $(Self::$one(policy) => policy.change_terms(tenant, terms, now)),* }
                }

                fn forget(&mut self, tenant: TenantSlot) {
                    match self { $(Self::$one(policy) => policy.forget(tenant)),* }
                }

                fn asked_priority(&mut self, slot: VqSlot, priority: QueuePriority) {
                    match self { $(Self::$one(policy) => policy.asked_priority(slot, priority)),* }
                }

                fn detach(&mut self, slot: VqSlot, now: Nanos) {
                    match self { $(Self::$one(policy) => policy.detach(slot, now)),* }
                }

                #[inline]
                fn arrived(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
                    match self { $(Self::$one(policy) => policy.arrived(slot, backlog, now)),* }
                }

                #[inline]
                fn next(&mut self, now: Nanos) -> Next {
                    match self { $(Self::$one(policy) => policy.next(now)),* }
                }

                #[inline]
                fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, now: Nanos) {
                    match self { $(Self::$one(policy) => policy.sent(slot, hwq, op, len_bytes, now)),* }
                }

                #[inline]
                fn refused(&mut self, slot: VqSlot, consumed: bool, now: Nanos) {
                    match self { $(Self::$one(policy) => policy.refused(slot, consumed, now)),* }
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
                    match self {
                        $(Self::$one(policy) => policy.completed(slot, hwq, tenant, op, len_bytes, latency, now)),*
                    }
                }

                fn awoken(&mut self, tenant: TenantId, now: Nanos) {
                    match self { $(Self::$one(policy) => policy.awoken(tenant, now)),* }
                }

                fn demand(&mut self) -> Option<Demand> {
                    match self { $(Self::$one(policy) => policy.demand()),* }
                }

                fn demands(&mut self, all: &[Demand], own: usize, now: Nanos) {
                    match self { $(Self::$one(policy) => policy.demands(all, own, now)),* }
                }

                fn asks_here(&mut self, tenant: TenantSlot, part: f64, now: Nanos) {
                    match self { $(Self::$one(policy) => policy.asks_here(tenant, part, now)),* }
                }

                fn interval(&mut self, reports: &[TenantReport], now: Nanos) {
                    match self { $(Self::$one(policy) => policy.interval(reports, now)),* }
                }

                fn backlog_of(&self, slot: VqSlot) -> u32 {
                    match self { $(Self::$one(policy) => policy.backlog_of(slot)),* }
                }

                fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
                    match self { $(Self::$one(policy) => policy.hwq_of(slot)),* }
                }

                fn bound(&self, tenant: TenantId) -> Option<Bound> {
                    match self { $(Self::$one(policy) => policy.bound(tenant)),* }
                }

                fn idle_bound(&self, guaranteed: bool) -> Option<Bound> {
                    match self { $(Self::$one(policy) => policy.idle_bound(guaranteed)),* }
                }

                fn wrr_weights(&self) -> Option<WrrWeights> {
                    match self { $(Self::$one(policy) => policy.wrr_weights()),* }
                }

                fn figures(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
                    match self { $(Self::$one(policy) => policy.figures(tell)),* }
                }

                fn tenant_figures(&self, tenant: TenantSlot, tell: &mut dyn FnMut(TenantFigure, f64)) {
                    match self { $(Self::$one(policy) => policy.tenant_figures(tenant, tell)),* }
                }
            }
        };
    };
}

one_of_policies!(OneOf: Passthrough, Lpns, Fair, Arbitrated, Evenkeel);
