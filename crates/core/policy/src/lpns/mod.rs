//! LPNS: predictable latency by queues of one's own and by throttling the neighbours (ATC '23, §4).
//!
//! | file | what |
//! | --- | --- |
//! | `config` | settings, presets of known drives |
//! | `queues` | who waits where; with `hwq_pool` and `fair` below |
//! | `detector` | counters of all pollers → what happened in the last interval |
//! | `rule` | the formulas, for forecasts too |
//! | `throttle`, `bucket` | how much best-effort work may go: as published, and corrected |
//! | `bound` | the latency that can be promised, and what it rests on |
//!
//! One instance serves one poller. Tenants of other pollers are known from
//! [`interval`](Policy::interval) alone, so a best-effort poller reacts within an interval (10 ms) when a guaranteed
//! tenant elsewhere starts after a period of silence; in a shared poller it reacts at once.
//!
//! A tenant's VQs may be with several pollers: reports tell of all of them together. Those at which a guaranteed one is
//! busy have equal parts of what it may have in flight. What best effort may have is [parted](crate::split) among the
//! pollers where it asks, and where that gives one more than before, it has it an interval later, when the others have
//! less: so together they never have more than the cap, and a command each.
//!
//! With no guaranteed tenant active nothing is throttled, but for a cap at the drive's saturation while several
//! best-effort tenants compete: with everything in flight at once weights would mean nothing.
//!
//! Order: guaranteed tenants first, in turn; best-effort tenants by start-time fair sharing over their weights (equal
//! weights in the published variant, which knows none). A guaranteed tenant can't starve the rest: its commands in
//! flight are limited to three quarters of what its own target allows (but never below the drive's
//! parallelism), and after [`GUARANTEED_RUN`] of them in a row a waiting best-effort command has its turn.

//!
//! On a drive with weighted round robin the homes of guaranteed VQs are of the class high and all other HWQs medium,
//! with weights that leave best effort the share that the throttle does. A home is not lent there: what a queue is
//! worth is fixed when the drive makes it. A guaranteed VQ without such a home sends as medium.

mod bound;
mod bucket;
mod config;
mod detector;
mod queues;
pub mod rule;
mod throttle;

use io_model::{HwqId, Nanos, Op, TenantId, VqId, WrrWeights};

pub use self::config::{HwqSplit, Lending, LpnsConfig};
pub use self::throttle::ThrottleState;

use self::detector::{Detector, Observed};
use self::queues::Queues;
use self::throttle::Throttle;
use crate::cost::COST_UNIT;
use crate::hwq_pool::HwqPool;
use crate::split::{DEMAND_KINDS, Part, Split};
use crate::{Bound, ConfigError, Demand, Next, Policy, PolicyFigure, TenantReport, TenantSlot, Terms, Variant, VqSlot};

/// Guaranteed commands in a row, at this poller or at one full HWQ, after which a best-effort one has its turn, if the
/// throttle lets it go.
const GUARANTEED_RUN: u32 = 16;

/// The LPNS policy of one poller.
#[derive(Debug)]
pub struct Lpns {
    config: LpnsConfig,
    queues: Queues,
    throttle: Throttle,
    detector: Detector,
    /// What the last interval showed.
    observed: Option<Observed>,
    last_period: Option<Nanos>,
    /// What the throttle in force let best effort have in flight as of the last three intervals' ends, the latest one
    /// first.
    caps: [Option<f64>; 3],
    /// The largest cap that pollers of best-effort tenants had told of by the last interval's end: each judges for
    /// itself how the promises fare, and they look at different moments.
    told_cap: f64,
    /// Guaranteed commands since the last best-effort one.
    run: u32,
    /// At the last interval's end a guaranteed VQ here had no HWQ of the drive's class high.
    some_not_high: bool,
    /// Highest cost of a best-effort command: it may overdraw the cap by that.
    largest_cost: u32,
    split: Split,
    /// Of best effort here: the most work with the drive lately, and what a command is, in reference commands.
    work: f64,
    mean: f64,
}

/// What is remembered of the most work from one interval to the next, of which only the ends are seen.
const REMEMBERS: f64 = 0.75;

impl Lpns {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(config: LpnsConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let pool = HwqPool::new(config.hwqs_exclusive, config.hwqs_shared, config.hwq_depth);
        let pool = pool.lending(config.lending).keeping(config.hwqs_high.unwrap_or(0));
        Ok(Self {
            queues: Queues::new(pool, config.variant == Variant::Corrected),
            throttle: Throttle::new(&config),
            detector: Detector::default(),
            observed: None,
            last_period: None,
            caps: [None; 3],
            told_cap: 0.0,
            run: 0,
            some_not_high: true,
            largest_cost: COST_UNIT,
            split: Split::new(),
            work: 0.0,
            mean: 1.0,
            config,
        })
    }

    /// The settings.
    pub fn config(&self) -> &LpnsConfig {
        &self.config
    }

    /// Whether a VQ sends through its backup until the exclusive HWQ meant for it is empty.
    pub fn is_switching(&self, slot: VqSlot) -> bool {
        self.queues.pool.is_switching(slot)
    }

    /// How often a VQ moved to an exclusive HWQ since the start.
    pub fn switches(&self) -> u64 {
        self.queues.pool.switches()
    }

    /// Commands in flight on an HWQ.
    pub fn in_flight(&self, hwq: HwqId) -> u32 {
        self.queues.pool.in_flight(hwq)
    }

    /// What the throttle allows now.
    pub fn throttle_state(&self) -> ThrottleState {
        self.throttle.state(&self.config)
    }

    /// The latency bounds of a tenant under its present load, with what they rest on. A best-effort tenant's rest on
    /// what this poller enforces alone.
    pub fn bound_of(&self, tenant: TenantId) -> Bound {
        let (depth, _) = self.detector.load_of(tenant);
        self.bound_at(depth, self.queues.is_guaranteed(tenant))
    }

    /// The bound of a tenant that keeps `depth` commands in flight.
    fn bound_at(&self, depth: u64, guaranteed: bool) -> Bound {
        let overdraft = f64::from(self.largest_cost) / f64::from(COST_UNIT) - 1.0;
        let windowed = self.throttle.guaranteed_limit() < u64::MAX;
        let mut throttle = self.throttle_state();
        // What went under the last interval's cap may still be with the drive, and other pollers may be a moment
        // behind.
        if let [Some(cap), Some(before), Some(_)] = self.caps {
            let told = if guaranteed { self.told_cap } else { 0.0 };
            throttle.cap = Some(cap.max(before).max(told));
        } else {
            throttle.engaged = false;
        }
        let bound = bound::bound(&self.config, &throttle, windowed, self.observed.as_ref(), depth, overdraft);
        if self.is_overtaken(guaranteed) { Bound { corrected: None, vouched: None, ..bound } } else { bound }
    }

    /// Whether the drive may serve any number of others' later commands before a tenant's: those of a higher class. It
    /// makes what is in flight no measure of a wait.
    fn is_overtaken(&self, guaranteed: bool) -> bool {
        self.config.hwqs_high.is_some() && (self.some_not_high || !guaranteed)
    }

    #[inline]
    fn next_guaranteed(&mut self) -> Option<Next> {
        while let Some(tenant) = self.queues.front_guaranteed() {
            if self.queues.is_at(self.throttle.guaranteed_limit(), tenant) {
                self.queues.hold(tenant);
            } else if let Some((vq, hwq)) = self.queues.next_vq(tenant) {
                return Some(Next::Send { vq, hwq });
            }
        }
        None
    }

    /// Best effort's turn at a full HWQ, if the throttle lets it go.
    #[inline]
    fn next_due(&mut self, now: Nanos) -> Option<Next> {
        let (tenant, vq, hwq) = self.queues.next_due()?;
        let admitted = self.throttle.admits(self.queues.best_effort_in_flight(), now).is_ok();
        (admitted && self.throttle.allows(self.queues.sent_by(tenant))).then_some(Next::Send { vq, hwq })
    }

    /// `Err`: when to ask again, if the throttle knows.
    #[inline]
    fn next_best_effort(&mut self, now: Nanos) -> Result<Next, Option<Nanos>> {
        while let Some(tenant) = self.queues.front_best_effort() {
            self.throttle.admits(self.queues.best_effort_in_flight(), now)?;
            if !self.throttle.allows(self.queues.sent_by(tenant)) {
                self.queues.hold(tenant);
            } else if let Some((vq, hwq)) = self.queues.next_vq(tenant) {
                return Ok(Next::Send { vq, hwq });
            }
        }
        Err(None)
    }
}

impl Policy for Lpns {
    fn attach(&mut self, slot: VqSlot, vq: VqId, tenant: TenantSlot, terms: &Terms, _: Nanos) {
        self.queues.attach(slot.0, vq.tenant, tenant.0, terms.class);
    }

    fn change_terms(&mut self, tenant: TenantSlot, terms: &Terms, now: Nanos) {
        let waits = self.queues.change_class(tenant.0, terms.class);
        if waits && terms.class.is_guaranteed() {
            self.throttle.engage(&self.config, terms.class.latency_target(), now);
        }
    }

    fn forget(&mut self, tenant: TenantSlot) {
        self.queues.forget(tenant.0);
    }

    fn detach(&mut self, slot: VqSlot, _: Nanos) {
        self.queues.detach(slot.0);
    }

    #[inline]
    fn arrived(&mut self, slot: VqSlot, backlog: u32, now: Nanos) {
        if let Some(target) = self.queues.arrived(slot.0, backlog) {
            self.throttle.engage(&self.config, target, now);
        }
    }

    #[inline]
    fn next(&mut self, now: Nanos) -> Next {
        if !self.queues.any_backlog() {
            return Next::Idle;
        }
        if let Some(next) = self.next_due(now) {
            return next;
        }
        let others_turn = self.run >= GUARANTEED_RUN && self.queues.best_effort_waits();
        if !others_turn && let Some(next) = self.next_guaranteed() {
            return next;
        }
        let again = match self.next_best_effort(now) {
            Ok(next) => return next,
            Err(again) => again,
        };
        if others_turn && let Some(next) = self.next_guaranteed() {
            return next;
        }
        Next::WaitUntil(again.unwrap_or_else(|| self.detector.interval_end(&self.config, now)))
    }

    #[inline]
    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, _: Nanos) {
        let cost = self.config.cost.of(op, len_bytes);
        match self.queues.sent(slot.0, hwq, cost) {
            Some(true) => self.run = self.run.saturating_add(1),
            Some(false) => {
                self.run = 0;
                self.throttle.charge(cost);
                self.largest_cost = self.largest_cost.max(cost);
            }
            None => {}
        }
    }

    fn refused(&mut self, slot: VqSlot, consumed: bool, _: Nanos) {
        if !self.queues.is_attached(slot.0) {
            return;
        }
        if consumed {
            // It took a turn and the poller's time, if not the drive's.
            self.queues.took(slot.0, COST_UNIT);
        } else {
            self.queues.set_backlog(slot.0, 0);
        }
    }

    #[inline]
    fn completed(&mut self, _: VqSlot, hwq: HwqId, tenant: TenantSlot, op: Op, len_bytes: u64, _: Nanos, _: Nanos) {
        self.queues.completed(hwq, tenant.0, self.config.cost.of(op, len_bytes));
    }

    fn demand(&mut self) -> Option<Demand> {
        let is_held = self.throttle.was_held();
        let Some(seen) = self.queues.seen(is_held) else {
            self.throttle.set_part(Part::WHOLE, self.mean);
            return None;
        };
        let work = self.queues.best_effort_in_flight() as f64 / f64::from(COST_UNIT);
        self.work = work.max(self.work * REMEMBERS);
        self.mean = self.queues.mean_cost().unwrap_or(self.mean);
        let (claim, pace) = self.split.tell(seen);
        let cap = self.throttle.drive_cap(&self.config)?;
        let (used, grain) = (self.work / cap, self.mean / cap);
        let (level, units) = (f64::INFINITY, [0.0; DEMAND_KINDS]);
        Some(Demand { used, claim, is_held, pace, grain, first: 0.0, level, units })
    }

    fn demands(&mut self, all: &[Demand], own: usize, _: Nanos) {
        self.throttle.set_part(self.split.part(all, own), self.mean);
    }

    fn asks_here(&mut self, tenant: TenantSlot, part: f64, _: Nanos) {
        self.queues.set_part(tenant.0, part);
    }

    fn interval(&mut self, reports: &[TenantReport], now: Nanos) {
        let last_period = *self.last_period.get_or_insert(now);
        // Intervals come a little late or early; half of one decides.
        let period_ends = now - last_period + Nanos(self.config.interval.0 / 2) >= self.config.period;
        let Self { detector, queues, config, throttle, .. } = self;
        let limit = throttle.guaranteed_limit() / u64::from(COST_UNIT) / 10 * 9;
        let mut told_cap = 0.0;
        let own = |report: &TenantReport| {
            told_cap = report.best_effort_cap.unwrap_or(0.0).max(told_cap);
            queues.hear(report)
        };
        let observed = detector.observe(reports, own, config, limit, period_ends, now);
        self.told_cap = told_cap;
        throttle.observe(config, &observed, now);
        queues.release_all();
        if period_ends {
            self.last_period = Some(now);
            queues.schedule();
        }
        self.some_not_high = self.config.hwqs_high.is_some_and(|high| self.queues.any_guaranteed_from(high));
        self.observed = Some(observed);
        let state = self.throttle_state();
        self.caps = [state.cap.filter(|_| state.engaged), self.caps[0], self.caps[1]];
    }

    fn backlog_of(&self, slot: VqSlot) -> u32 {
        self.queues.backlog_of(slot.0)
    }

    fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        self.queues.pool.hwq_of(slot)
    }

    fn bound(&self, tenant: TenantId) -> Option<Bound> {
        Some(self.bound_of(tenant))
    }

    fn idle_bound(&self, guaranteed: bool) -> Option<Bound> {
        Some(self.bound_at(0, guaranteed))
    }

    fn wrr_weights(&self) -> Option<WrrWeights> {
        self.config.weights()
    }

    fn figures(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        let ThrottleState { engaged, omega, cap, rate_iops, .. } = self.throttle_state();
        tell(PolicyFigure::LpnsEngaged, f64::from(u8::from(engaged)));
        tell(PolicyFigure::LpnsOmega, omega);
        tell(PolicyFigure::LpnsSwitches, self.switches() as f64);
        let told = [(PolicyFigure::LpnsCap, cap), (PolicyFigure::LpnsRate, rate_iops)];
        told.into_iter().filter_map(|(figure, value)| Some((figure, value?))).for_each(|(figure, value)| {
            tell(figure, value);
        });
    }
}
