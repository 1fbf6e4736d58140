//! How much best-effort work may go to the drive: the rule as published, and the corrected one.

use io_model::Nanos;

use super::bucket::TokenBucket;
use super::config::LpnsConfig;
use super::detector::{Observed, Verdict};
use super::rule;
use crate::Variant;
use crate::cost::COST_UNIT;
use crate::split::{Gate, Part, ROUND};

/// A missed promise takes a quarter of the budget away …
const DECREASE: f64 = 0.75;
/// … and a comfortable one gives this part of its ceiling back.
const INCREASE: f64 = 1.0 / 32.0;
/// Up to this part of the budget that was last missed with, it comes back with every judgement …
const KNOWN_GOOD: f64 = 0.9;
/// … and from there only after this many of them, doubled by each further miss. A drive's latency can rise so steeply
/// that one step too many breaks a whole interval's promises, and one interval in a hundred is too much.
const MOST_PATIENCE: u32 = 64;

/// Of the last command that fits into a part of whole ones, what is left out: all but what keeps commands that are all
/// alike from being one too few.
const LAST: f64 = 15.0 / 16.0;

fn ticks(commands: f64) -> u64 {
    (commands * f64::from(COST_UNIT)) as u64
}

/// What the throttle allows now, for operators.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThrottleState {
    /// Whether best-effort tenants are held back for a guaranteed one.
    pub engaged: bool,
    /// Ω in force: the configured one (published), or what the feedback made of it (corrected): reference commands in
    /// flight in multiples of d.
    pub omega: f64,
    /// θ, the published rule's factor between the slowest guaranteed tenant's rate and a best-effort tenant's.
    pub theta: Option<f64>,
    /// Reference commands that all best-effort tenants of the drive may have in flight together.
    pub cap: Option<f64>,
    /// Reference commands per second that they may send together.
    pub rate_iops: Option<f64>,
}

/// The rule as printed.
#[derive(Debug)]
pub(super) struct Published {
    theta: Option<f64>,
    /// Commands that each best-effort tenant may send in this interval.
    allowance: u64,
}

/// The rule that holds.
#[derive(Debug)]
pub(super) struct Corrected {
    /// Guaranteed tenants are active, or were lately.
    engaged: bool,
    /// Else, and several best-effort tenants are: only saturation is prevented, so that weights can work.
    crowded: bool,
    /// Reference commands in flight, of all classes, that the feedback allows now.
    budget: f64,
    /// Where `budget` may grow to: what the tightest target allows, or saturation.
    ceiling: f64,
    /// The budget that was last missed with; infinite before.
    missed_at: f64,
    /// Comfortable judgements to see before a step beyond what is known to be good, and seen so far.
    patience: u32,
    calm: u32,
    /// Of `budget`, what guaranteed tenants use.
    guaranteed_depth: f64,
    /// What of the rest pollers could hear of at the last interval's end: a larger one is used only once it was told,
    /// or bounds that guaranteed tenants' pollers vouch for meanwhile would not count it.
    told_cap: f64,
    /// This poller's part of the rest, in cost ticks.
    gate: Gate,
    /// Drive-wide rate for best effort, reference commands per second.
    rate_iops: f64,
    part: Part,
    /// A best-effort command here, in reference commands.
    mean: f64,
    bucket: TokenBucket,
    /// Best effort was held back since that was last asked.
    was_held: bool,
    /// Cost ticks that one guaranteed tenant may have in flight while others are active.
    guaranteed_limit: u64,
}

#[derive(Debug)]
pub(super) enum Throttle {
    Published(Published),
    Corrected(Corrected),
}

impl Throttle {
    pub(super) fn new(config: &LpnsConfig) -> Self {
        match config.variant {
            Variant::Published => Self::Published(Published { theta: None, allowance: u64::MAX }),
            Variant::Corrected => {
                let ceiling = rule::saturation(config);
                Self::Corrected(Corrected {
                    engaged: false,
                    crowded: false,
                    budget: ceiling,
                    ceiling,
                    missed_at: f64::INFINITY,
                    patience: 1,
                    calm: 0,
                    guaranteed_depth: 0.0,
                    told_cap: f64::INFINITY,
                    gate: Gate::fixed(u64::MAX),
                    rate_iops: config.r_iops,
                    part: Part::WHOLE,
                    mean: 1.0,
                    bucket: TokenBucket::new(0.0, 0, Nanos(0)),
                    was_held: false,
                    guaranteed_limit: u64::MAX,
                })
            }
        }
    }

    /// Whether any best-effort command may go, with `in_flight` ticks of them with the drive.
    ///
    /// # Errors
    /// The time to ask again; `None`: after a completion.
    #[inline]
    pub(super) fn admits(&mut self, in_flight: u64, now: Nanos) -> Result<(), Option<Nanos>> {
        match self {
            Self::Corrected(rule) if rule.engaged || rule.crowded => {
                if !rule.gate.has_room(in_flight) && !rule.gate.finds_room(in_flight, now) {
                    rule.was_held = true;
                    return Err(rule.gate.turn_at());
                }
                if !rule.engaged {
                    return Ok(());
                }
                rule.bucket.admits(now).map_err(|at| {
                    rule.was_held = true;
                    Some(at)
                })
            }
            _ => Ok(()),
        }
    }

    /// Whether a best-effort tenant that sent this many commands in this interval may send another.
    #[inline]
    pub(super) fn allows(&self, sent_in_interval: u64) -> bool {
        match self {
            Self::Published(rule) => sent_in_interval < rule.allowance,
            Self::Corrected(_) => true,
        }
    }

    #[inline]
    pub(super) fn charge(&mut self, cost: u32) {
        if let Self::Corrected(rule) = self
            && rule.engaged
        {
            rule.bucket.charge(cost);
        }
    }

    /// Cost ticks that one guaranteed tenant may have in flight; `u64::MAX`: any number.
    #[inline]
    pub(super) fn guaranteed_limit(&self) -> u64 {
        match self {
            Self::Published(_) => u64::MAX,
            Self::Corrected(rule) => rule.guaranteed_limit,
        }
    }

    /// A guaranteed tenant of this poller starts while no interval has shown it yet.
    #[inline]
    pub(super) fn engage(&mut self, config: &LpnsConfig, target: Option<Nanos>, now: Nanos) {
        if let Self::Corrected(rule) = self
            && !rule.engaged
        {
            rule.engaged = true;
            rule.aim(config, target);
            rule.apply(config, 1, 0.0, now);
        }
    }

    /// What this poller may have until the next interval ends.
    pub(super) fn set_part(&mut self, part: Part, mean: f64) {
        if let Self::Corrected(rule) = self {
            (rule.part, rule.mean) = (part, mean);
        }
    }

    /// Whether best effort was held back since this was last asked.
    pub(super) fn was_held(&mut self) -> bool {
        if let Self::Corrected(rule) = self { std::mem::take(&mut rule.was_held) } else { false }
    }

    /// Reference commands that best-effort tenants may have in flight. `None`: no limit, or a limit per tenant.
    pub(super) fn drive_cap(&self, config: &LpnsConfig) -> Option<f64> {
        match self {
            Self::Corrected(rule) if rule.engaged => Some(rule.drive_cap(config)),
            Self::Corrected(_) => Some(rule::saturation(config)),
            Self::Published(_) => None,
        }
    }

    /// An interval ended.
    pub(super) fn observe(&mut self, config: &LpnsConfig, seen: &Observed, now: Nanos) {
        match self {
            Self::Published(rule) => {
                let theta = rule::theta(config.omega, seen.guaranteed, seen.best_effort);
                rule.theta = seen.slowest.map(|_| theta);
                rule.allowance = seen.slowest.map_or(u64::MAX, |slowest| (theta * slowest as f64) as u64);
            }
            Self::Corrected(rule) => rule.observe(config, seen, now),
        }
    }

    pub(super) fn state(&self, config: &LpnsConfig) -> ThrottleState {
        match self {
            Self::Published(rule) => ThrottleState {
                engaged: rule.theta.is_some(),
                omega: config.omega,
                theta: rule.theta,
                cap: None,
                rate_iops: None,
            },
            Self::Corrected(rule) => ThrottleState {
                engaged: rule.engaged,
                omega: rule.budget / f64::from(config.depth),
                theta: None,
                cap: Some(rule.drive_cap(config)),
                rate_iops: Some(rule.rate_iops),
            },
        }
    }
}

impl Corrected {
    fn aim(&mut self, config: &LpnsConfig, target: Option<Nanos>) {
        let ceiling = rule::ceiling(config, target);
        // What was learnt under one target says nothing about a looser one: start from there again.
        if ceiling > self.ceiling {
            (self.budget, self.missed_at, self.patience) = (ceiling, f64::INFINITY, 1);
        }
        self.budget = self.budget.min(ceiling);
        self.ceiling = ceiling;
    }

    fn observe(&mut self, config: &LpnsConfig, seen: &Observed, now: Nanos) {
        self.engaged = seen.protected > 0;
        self.crowded = seen.best_effort > 1;
        if !self.engaged {
            self.guaranteed_limit = u64::MAX;
            self.told_cap = f64::INFINITY;
            self.open(rule::saturation(config), now);
            return;
        }
        self.guaranteed_depth = seen.guaranteed_depth as f64;
        self.aim(config, seen.target);
        match seen.verdict {
            Verdict::Missed => self.shrink(config),
            Verdict::Comfortable => self.grow(),
            Verdict::Kept | Verdict::Open => {}
        }
        self.apply(config, seen.protected, seen.guaranteed_iops, now);
        self.told_cap = self.drive_cap(config);
        if seen.protected == 1 && seen.best_effort == 0 {
            self.guaranteed_limit = u64::MAX;
        }
    }

    fn shrink(&mut self, config: &LpnsConfig) {
        let least = (self.guaranteed_depth + f64::from(config.floor_in_flight)).min(self.ceiling);
        self.missed_at = self.budget;
        self.budget = (self.budget * DECREASE).max(least);
        self.patience = (self.patience * 2).min(MOST_PATIENCE);
        self.calm = 0;
    }

    fn grow(&mut self) {
        let next = (self.budget + (self.ceiling * INCREASE).max(1.0)).min(self.ceiling);
        if next > self.missed_at * KNOWN_GOOD {
            self.calm += 1;
            if self.calm < self.patience {
                return;
            }
            self.calm = 0;
            if self.budget > self.missed_at {
                // The miss had another cause, which is gone.
                self.patience = (self.patience / 2).max(1);
            }
        }
        self.budget = next;
    }

    /// Best-effort work in flight on the whole drive.
    fn drive_cap(&self, config: &LpnsConfig) -> f64 {
        rule::best_effort_cap(f64::from(config.floor_in_flight), self.budget, self.guaranteed_depth)
    }

    /// Lets this poller have its part of `cap` reference commands with the drive, and at least a command.
    fn open(&mut self, cap: f64, now: Nanos) {
        let grain = self.mean / cap;
        // The bound counts one command more at each poller than its part: where turns end, one may still be there that
        // began in them, so the last one that fits is the one that overdraws.
        let last = if matches!(self.part, Part::Of(_)) { 0.0 } else { grain * LAST };
        self.gate = Gate::new(self.part_of(cap), grain, now, |part| ticks(cap * (part - last)));
    }

    /// This poller's part of `cap`: who starts has a command at once, and of small ones a reference command's worth.
    fn part_of(&self, cap: f64) -> Part {
        match self.part {
            Part::Of(part) => Part::Of(part.max(self.mean.min(1.0) / cap)),
            turns => turns,
        }
    }

    /// Derives cap, rate and limit from the budget.
    fn apply(&mut self, config: &LpnsConfig, protected: u32, guaranteed_iops: f64, now: Nanos) {
        let cap = self.drive_cap(config).min(self.told_cap);
        self.open(cap, now);
        self.rate_iops = rule::best_effort_rate(config.r_iops, config.floor_rate_permille, guaranteed_iops);
        let part = self.part_of(cap).size();
        let ticks_per_ns = self.rate_iops * part * f64::from(COST_UNIT) / 1e9;
        // A tenant that may send only in its turn has a round's worth by then. The cap holds in any case.
        let saved = if matches!(self.part, Part::Of(_)) { 0 } else { (ticks_per_ns * ROUND.0 as f64) as u64 };
        self.bucket.set(ticks_per_ns, ticks(cap * part).max(u64::from(COST_UNIT)) + saved, now);
        self.guaranteed_limit = ticks(rule::guaranteed_limit(config, self.ceiling, protected));
    }
}
