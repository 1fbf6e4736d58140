//! Which virtual queue sends its next command, when, and over which hardware queue.
//!
//! A policy is a plain value: no clock, thread, file, lock or random source of its own. The poller calls
//! it with `now`; the simulator calls the same code with virtual time.
//!
//! | module | what |
//! | --- | --- |
//! | here | the contract: [`Policy`], [`Class`], [`Next`], [`TenantReport`] |
//! | `config` | [`PolicyConfig`]: which policy, with which settings; builds one for a poller |
//! | `any` | [`AnyPolicy`]: one of them, chosen at run time |
//! | `passthrough` | [`Passthrough`]: round robin, no throttle |
//! | `lpns` | [`Lpns`]: guaranteed latency by exclusive HWQs and throttled neighbours |
//! | `fairnvme` | [`FairNvme`]: fair slowdowns by tenant states and time budgets |
//! | `k2` | [`K2`]: a cap on all commands with the drive, guaranteed tenants first |
//! | `mqfq` | [`Mqfq`]: weighted shares, nobody further ahead than a gap |
//! | `d2fq` | [`D2fq`]: weighted shares by the drive's weighted round robin |
//! | `caps` | [`Caps`]: commands and bytes per second for each tenant |
//! | `arbitrated` | [`Arbitrated`]: weighted round robin (`wrr`) and deficit round robin (`drr`) among tenants by class |
//! | `netcalc` | curves and bounds of network calculus |
//! | `cost` | what a command costs by opcode and length |
//! | `flows`, `fair`, `calendar`, `hwq_pool`, `ready` | who waits where, weighted sharing, order by time, HWQ bindings, lists: O(1) per command, no allocation after attach |
//!
//! An instance knows the VQs of its own poller. A tenant's VQs may be with several pollers under [`Passthrough`], and under
//! [`Lpns`] if it is a guaranteed one; all other policies compare what tenants wait for, and must see all of their VQs.
//!
//! Slot and tenant identifier 65535 are reserved; VQs under them are ignored. Not implemented: admission of promises before
//! they are made; one policy's state shared by several pollers (each has its own, but for what
//! [`interval`](Policy::interval) reports).

#![forbid(unsafe_code)]

mod any;
mod arbitrated;
mod calendar;
mod caps;
mod config;
mod cost;
mod d2fq;
mod fair;
mod fairnvme;
mod flows;
mod hwq_pool;
mod k2;
mod lpns;
mod mqfq;
pub mod netcalc;
mod passthrough;
mod ready;

pub use any::AnyPolicy;
pub use arbitrated::{Arbitrated, ArbitratedConfig, TenantPriority};
pub use caps::{Caps, CapsConfig, Limits};
pub use config::{ConfigError, PolicyConfig, PollerShape};
pub use cost::{COST_UNIT, Cost, Curve, MAX_COST};
pub use d2fq::{D2fq, D2fqConfig};
pub use fairnvme::{FairConfig, FairNvme, FairState, FairVariant, TenantState};
pub use k2::{K2, K2Config};
pub use lpns::{Bound, Lpns, LpnsConfig, RestsOn, ThrottleState, Variant};
pub use mqfq::{Mqfq, MqfqConfig};
pub use passthrough::Passthrough;

use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId, WrrWeights};

/// What a tenant was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A latency, whatever its neighbours do.
    Guaranteed {
        /// The promise. `None`: as good as the drive can, no number given.
        latency_target: Option<Nanos>,
    },
    /// A share in proportion to its weight.
    BestEffort {
        /// Relative weight, 1 to 10000.
        weight: u32,
    },
}

/// A VQ's place in the policy's tables: dense, chosen by the poller, reused after `detach`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VqSlot(pub u16);

/// What the policy wants the poller to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Fetch one command from this VQ and submit it to this HWQ.
    Send {
        /// From.
        vq: VqSlot,
        /// To.
        hwq: HwqId,
    },
    /// Nothing may be sent now, but something waits: ask again at this time, or after a completion.
    WaitUntil(Nanos),
    /// Nothing waits.
    Idle,
}

/// One tenant's recent past, as published by the pollers that serve it, added up; see [`Policy::interval`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TenantReport {
    /// Who.
    pub tenant: TenantId,
    /// Its class.
    pub class: Class,
    /// Commands fetched since it was attached.
    pub submitted: u64,
    /// Commands completed since it was attached.
    pub completed: u64,
    /// Of these, how many took longer than the tenant's own latency target; 0 without a target.
    pub violations: u64,
    /// Mean latency (fetch to completion) over the last interval; 0 if none completed.
    pub mean_latency: Nanos,
    /// Mean latency over the last whole period (200 ms); 0 if none completed.
    pub period_mean_latency: Nanos,
    /// Highest latency in the last interval.
    pub max_latency: Nanos,
    /// Pollers at which it had commands in the last interval or has some in flight; at least 1.
    pub busy_pollers: u32,
}

/// The contract between a poller and a policy.
///
/// Call order: `attach`, then any of `arrived`, `next`, (`sent` | `refused`), `completed`, `interval`, then
/// `detach`. The poller answers every `Send` with exactly one `sent` or `refused` before it asks again.
/// Every method is O(1) amortised in the number of VQs and tenants, but for `interval`.
pub trait Policy {
    /// A VQ appears. The slot was unused.
    fn attach(&mut self, slot: VqSlot, vq: VqId, class: Class, now: Nanos);

    /// The priority that the VQ's client asked for. Told right after `attach`; what it counts for is the policy's.
    fn asked_priority(&mut self, _slot: VqSlot, _priority: QueuePriority) {}

    /// A VQ goes. Its commands in flight still end in `completed`.
    fn detach(&mut self, slot: VqSlot, now: Nanos);

    /// The VQ now has this backlog (told only when it changed by something else than `sent`).
    fn arrived(&mut self, slot: VqSlot, backlog: u32, now: Nanos);

    /// What to do next.
    fn next(&mut self, now: Nanos) -> Next;

    /// The `Send` happened: one command left the VQ for the device. Charge it.
    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, now: Nanos);

    /// The `Send` found nothing to submit. `consumed`: a command left the VQ without device work;
    /// else the VQ can't be fetched from now: leave it out until its next `arrived`.
    fn refused(&mut self, slot: VqSlot, consumed: bool, now: Nanos);

    /// A command ended. Told for detached slots too (`slot` is then unused or reused: match by `tenant`).
    #[expect(clippy::too_many_arguments, reason = "plain values in registers, once per command")]
    fn completed(
        &mut self,
        slot: VqSlot,
        hwq: HwqId,
        tenant: TenantId,
        op: Op,
        len_bytes: u64,
        latency: Nanos,
        now: Nanos,
    );

    /// Every 10 ms: what all tenants of the drive did, this poller's and the others'.
    fn interval(&mut self, reports: &[TenantReport], now: Nanos);

    /// The latency that this tenant can count on now, with what it rests on, if the policy gives one.
    fn bound(&self, _tenant: TenantId) -> Option<Bound> {
        None
    }

    /// The weights that the drive's arbitration should have now, if the policy relies on them. They change at
    /// [`interval`](Policy::interval) alone; whoever runs the policy sets them at the drive.
    fn wrr_weights(&self) -> Option<WrrWeights> {
        None
    }
}
