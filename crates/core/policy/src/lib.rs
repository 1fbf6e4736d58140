//! Scheduling policies: which virtual queue sends its next command, when, and to which hardware queue.
//!
//! A policy is a plain value without a clock, thread, file, lock or random source of its own. The poller calls it with
//! `now`; the simulator calls the same code with virtual time.
//!
//! | module | what |
//! | --- | --- |
//! | here | the contract: [`Policy`], [`Next`], [`TenantReport`] |
//! | `terms` | [`Terms`]: a tenant's promises and limits; they may change while it runs |
//! | `percentile` | [`Percentile`]: the fraction of commands that must meet a latency target |
//! | `settings` | [`PolicyWith`] and [`Settings`], an operator's; [`Settings::on`] a drive makes it a [`PolicyConfig`] |
//! | `config` | [`PolicyConfig`]: all that a policy needs; builds one for a poller |
//! | `any` | [`AnyPolicy`]: a policy chosen at run time, within each tenant's limits |
//! | `limits`, `limited` | a tenant's limits of commands and bytes per second, whatever the policy; [`Limited`] |
//! | `passthrough` | [`Passthrough`]: round robin, no throttle |
//! | `lpns` | [`Lpns`]: guaranteed latency by exclusive HWQs and throttled neighbours |
//! | `fairnvme` | [`FairNvme`]: fair slowdowns by tenant states and time budgets |
//! | `evenkeel` | [`Evenkeel`]: guaranteed latency at the least price, by what commands are seen to wait |
//! | `arbitrated` | [`Arbitrated`]: weighted round robin (`wrr`) and deficit round robin (`drr`) among tenants by class |
//! | `bound` | [`Bound`]: the latency that a guaranteed tenant can count on, and what that rests on |
//! | `netcalc` | the delay bound of network calculus, and the published one |
//! | `cost` | what a command costs by opcode and length |
//! | `figures` | what policies have inside that operators see |
//! | `split`, `window` | [`Demand`]: what best effort, or all tenants, may have with the drive, parted among pollers |
//! | `flows`, `fair`, `lowest`, `hwq_pool`, `ready` | waiting VQs and flows, weighted sharing, the lowest tag, HWQ bindings, lists: O(1) per command (`lowest`: O(log tenants)), no allocation after attach |
//!
//! Other policies may be built from the same [`parts`].
//!
//! An instance knows the VQs of its own poller. Tenants, and a tenant's VQs, may be with several pollers.
//!
//! A policy's tables are as long as the most VQs and tenants that its poller ever had at a time: they are indexed by
//! [`VqSlot`] and [`TenantSlot`], never by [`TenantId`]. Both slots are below 65535; VQs of others are ignored. Not
//! implemented: admission of promises before they are made; one policy's state shared by several pollers (each has its
//! own, but for what [`interval`](Policy::interval) reports and [`demands`](Policy::demands) tells).

#![forbid(unsafe_code)]

mod any;
mod arbitrated;
mod bound;
mod by_flow;
mod by_target;
mod config;
mod cost;
mod evenkeel;
mod fair;
mod fairnvme;
mod figures;
mod flows;
mod groups;
mod hwq_pool;
mod limited;
mod limits;
mod lowest;
mod lpns;
pub mod netcalc;
mod passthrough;
mod percentile;
mod ready;
mod roster;
mod settings;
mod split;
mod terms;
mod window;

pub use any::{AnyPolicy, OneOf};
pub use arbitrated::{Arbitrated, ArbitratedConfig};
pub use bound::{Bound, PublishedBound, RestsOn};
pub use by_target::{TARGET_STEPS, target_step};
pub use config::{ConfigError, PolicyConfig, PollerShape};
pub use cost::{COST_UNIT, Cost, Curve, MAX_COST};
pub use evenkeel::{Evenkeel, EvenkeelConfig};
pub use evenkeel::{
    HOPELESS as EVENKEEL_HOPELESS, LARGE as EVENKEEL_LARGE, LEAST_LEFT as EVENKEEL_LEAST_LEFT,
    LEAST_PART as EVENKEEL_LEAST_PART, MANY as EVENKEEL_MANY, MOST_OWED as EVENKEEL_MOST_OWED,
    PACED_FOR as EVENKEEL_PACED_FOR, PACED_LEAST_PART as EVENKEEL_PACED_LEAST_PART, SLOWEST as EVENKEEL_SLOWEST,
    aim_changes as evenkeel_aim_changes, aim_ns as evenkeel_aim_ns, aims_ns as evenkeel_aims_ns,
    late_from_ns as evenkeel_late_from_ns, long_units as evenkeel_long_units, pace_changes as evenkeel_pace_changes,
};
pub use fairnvme::{FairConfig, FairNvme, FairState, TenantState};
pub use figures::{FigureKind, PolicyFigure, TenantFigure};
pub use groups::{GroupId, Groups};
pub use limited::Limited;
pub use lpns::{HwqSplit, Lending, Lpns, LpnsConfig, ThrottleState, rule as lpns_rule};
pub use passthrough::Passthrough;
pub use percentile::Percentile;
pub use settings::{DriveFigures, FairSettings, LpnsSettings, PolicyKind, PolicyWith, Settings, Variant};
pub use split::{DEMAND_FIGURES, Demand};
pub use terms::{Class, Floor, Limits, TenantPriority, Terms};

/// What policies are built from: those of this crate, and others to compare them with.
pub mod parts {
    pub use crate::by_flow::ByFlow;
    pub use crate::fair::{Fair, Share, TICKS_PER_COMMAND};
    pub use crate::flows::{Flows, Standing, Turns};
    pub use crate::lowest::Lowest;
    pub use crate::ready::{Links, List, NONE};
    pub use crate::window::Claim;
}

use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId, WrrWeights};

/// A VQ's place in the policy's tables: dense, chosen by the poller, reused after `detach`. Below 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VqSlot(pub u16);

/// A tenant's place in the tables of one poller and of its policy: dense, chosen by the poller, reused after
/// [`forget`](Policy::forget). Below 65535. Its [`TenantId`] is another number, which is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantSlot(pub u16);

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
    /// The tenant.
    pub tenant: TenantId,
    /// Its class.
    pub class: Class,
    /// Commands fetched since it was attached.
    pub submitted: u64,
    /// Commands completed since it was attached.
    pub completed: u64,
    /// Of these, reads and writes, and their bytes.
    pub reads: u64,
    /// See [`reads`](Self::reads).
    pub writes: u64,
    /// See [`reads`](Self::reads).
    pub read_bytes: u64,
    /// See [`reads`](Self::reads).
    pub write_bytes: u64,
    /// Of these, how many took longer than the tenant's own latency target; 0 without a target.
    pub violations: u64,
    /// Of these, how many would have been in time had their poller not stood still: without its CPU, or with a page of
    /// memory that was not there. What others send did not delay them.
    pub stalled: u64,
    /// Commands completed since it was attached, by the [step](target_step) of its target; 0 without a target. They
    /// wrap.
    pub by_target: [u32; TARGET_STEPS],
    /// Mean latency (fetch to completion) over the last interval; 0 if none completed.
    pub mean_latency: Nanos,
    /// Pollers at which it had commands in the last interval or has some in flight; at least 1.
    pub busy_pollers: u32,
    /// Of a best-effort tenant: the [`RestsOn::best_effort_cap`] that its pollers enforce, the largest of them.
    pub best_effort_cap: Option<f64>,
}

impl TenantReport {
    /// Of one that did nothing yet.
    pub fn new(tenant: TenantId, class: Class) -> Self {
        Self {
            tenant,
            class,
            submitted: 0,
            completed: 0,
            reads: 0,
            writes: 0,
            read_bytes: 0,
            write_bytes: 0,
            violations: 0,
            stalled: 0,
            by_target: [0; TARGET_STEPS],
            mean_latency: Nanos(0),
            busy_pollers: 1,
            best_effort_cap: None,
        }
    }
}

/// The contract between a poller and a policy.
///
/// Call order: `attach`, then any of `arrived`, `next`, (`sent` | `refused`), `completed`, `interval`, `change_terms`,
/// then `detach`; `forget` when a tenant leaves. The poller answers every `Send` with exactly one `sent` or `refused`
/// before it calls anything else. Every method is O(1) amortised in the number of VQs and O(log) in that of tenants,
/// but for `interval`, `change_terms` and `forget`.
pub trait Policy {
    /// A VQ appears. The slot was unused. `tenant` is where its tenant stands, the same for all of its VQs, and `terms`
    /// are those in force: the tenant's other VQs here have been told of them.
    fn attach(&mut self, slot: VqSlot, vq: VqId, tenant: TenantSlot, terms: &Terms, now: Nanos);

    /// A tenant has other terms from now on. Its VQs stay attached, with their backlogs and their commands in flight;
    /// nobody is asked or told again.
    ///
    /// - A share by weight or priority counts from the next command on; what was served or is owed stays so.
    /// - A limit holds from now on: what is left of the slice that goes on is at most the new limit's, and a command
    ///   that overdrew the old one is paid back at the new rate.
    /// - A promise is in force at once where the policy serves the tenant's VQs, elsewhere by the next `interval`.
    ///   Commands in flight stay on their HWQs; new ones go where the class has them.
    ///
    /// Does nothing for a tenant that has no VQ here: its next `attach` brings the terms.
    fn change_terms(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos);

    /// A tenant left this poller: it has no VQ and no command in flight here. All that is kept of it goes, what it owes
    /// too, and another tenant may have its slot.
    fn forget(&mut self, tenant: TenantSlot);

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

    /// A command ended. Called for detached slots too: `slot` is then unused or reused, but `tenant` is still there.
    #[expect(clippy::too_many_arguments, reason = "plain values in registers, once per command")]
    fn completed(
        &mut self,
        slot: VqSlot,
        hwq: HwqId,
        tenant: TenantSlot,
        op: Op,
        len_bytes: u64,
        latency: Nanos,
        now: Nanos,
    );

    /// A tenant that was promised a latency begins to ask, here or at another poller, after two intervals or more in
    /// which it did not. Told at once, and then as to everybody.
    fn awoken(&mut self, _tenant: TenantId, _now: Nanos) {}

    /// What best effort had and asked for here since the last time, for the other pollers of the drive. Every 10 ms,
    /// right before [`interval`](Policy::interval). `None`: there is none here, or the policy does not part it.
    fn demand(&mut self) -> Option<Demand> {
        None
    }

    /// What the pollers of the drive told as their [`demand`](Policy::demand), in an order that is the same at all of
    /// them; the one at `own` is this one's, the others' are up to 10 ms old. Right before
    /// [`interval`](Policy::interval), if it told one itself.
    fn demands(&mut self, _all: &[Demand], _own: usize, _now: Nanos) {}

    /// A tenant with VQs at several pollers asks this part (above 0, at most 1) of what it asks for here. The parts at
    /// all of them add up to 1, but for 10 ms after they changed. Told right before [`interval`](Policy::interval).
    fn asks_here(&mut self, _tenant: TenantSlot, _part: f64, _now: Nanos) {}

    /// Every 10 ms: what all tenants of the drive did, this poller's and the others', in the order of their
    /// identifiers. Who isn't in it left the drive: nothing is kept of it.
    fn interval(&mut self, reports: &[TenantReport], now: Nanos);

    /// The commands that a VQ is known to have; 0 if it is not attached.
    fn backlog_of(&self, slot: VqSlot) -> u32;

    /// The HWQ that a VQ's next command goes to, as things stand. `None`: it is not attached, or the policy doesn't
    /// tell.
    fn hwq_of(&self, _slot: VqSlot) -> Option<HwqId> {
        None
    }

    /// The latency that this tenant can count on now, with what it rests on, if the policy gives one.
    fn bound(&self, _tenant: TenantId) -> Option<Bound> {
        None
    }

    /// The bound for any tenant, guaranteed or not, that had no commands in flight in the last interval.
    fn idle_bound(&self, _guaranteed: bool) -> Option<Bound> {
        None
    }

    /// The weights that the drive's arbitration should have now, if the policy relies on them. They change only at
    /// [`interval`](Policy::interval). The policy's user sets them at the drive.
    fn wrr_weights(&self) -> Option<WrrWeights> {
        None
    }

    /// Tells what the policy has inside, for operators; what it has no such thing of is left out. O(1).
    fn figures(&self, _tell: &mut dyn FnMut(PolicyFigure, f64)) {}

    /// Reports the figures of one tenant that has VQs here. O(1).
    fn tenant_figures(&self, _tenant: TenantSlot, _tell: &mut dyn FnMut(TenantFigure, f64)) {}
}
