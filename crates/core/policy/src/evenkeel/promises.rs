//! How much work others may have with the drive, so that promises are kept and no more is taken than that.

use io_model::{Nanos, TenantId};

use super::EvenkeelConfig;
use super::tail::Tail;
use crate::by_target::TARGET_STEPS;
use crate::{Percentile, TenantReport};

/// What is aimed at, in targets: what is learned is off by some hundredths.
pub const AIM: f64 = 0.88;
/// An expectation counts as so many commands.
const EXPECTATION: f64 = 5.0;
/// At least so many commands that may be late are remembered, with all others; where all is well up to a second's.
const LEAST_LATE: f64 = 10.0;
/// What is remembered from one interval to the next, where a tenant's percentile is off the mark, and where it is not.
const FORGETS: f64 = 0.7;
const REMEMBERS: f64 = 1.05;
/// Intervals in which nothing is tried after commands were late: the first time, and at most.
const FIRST_REST: u32 = 4;
const LONGEST_REST: u32 = 512;
/// In targets: where a tenant's percentile should be.
const ON_THE_MARK: std::ops::RangeInclusive<f64> = 0.85..=1.0;
const INTERVALS_PER_SECOND: u32 = 100;
/// How much more others may have from one interval to the next.
const MOST_GROWTH: f64 = 1.25;
/// What is taken from others at once where many commands of an interval are late, and how fast it is given back.
const BRAKE: f64 = 0.7;
/// Many: so many times those that may be.
pub const MANY: f64 = 10.0;
const RELEASE: f64 = 1.05;
/// What others may have while nobody is active, in multiples of what keeps the drive busy with short commands.
pub const LENT: f64 = 4.0;
/// Steps of the target from here on are late.
const FIRST_LATE: usize = 8;

/// A tenant that was promised a latency.
#[derive(Debug)]
struct Promise {
    tenant: TenantId,
    target: Nanos,
    percentile: Percentile,
    /// Totals as last reported.
    seen: [u32; TARGET_STEPS],
    tail: Tail,
    /// Commands in an interval, in the mean of about a second.
    rate: f64,
    /// How many commands count.
    memory: f64,
    rest: Rest,
    /// Intervals without a command.
    quiet: u32,
    brake: f64,
}

/// Intervals in which nothing is tried: twice as many each time that commands were late.
#[derive(Debug)]
struct Rest {
    left: u32,
    length: u32,
}

impl Rest {
    fn begin(&mut self) {
        self.left = self.length;
        self.length = (self.length * 2).min(LONGEST_REST);
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Promises {
    /// By identifier.
    of: Vec<Promise>,
    /// Reference commands that others may have with the drive while somebody is active who was promised something.
    level: f64,
    is_active: bool,
}

impl Promises {
    pub(super) fn new() -> Self {
        Self { of: Vec::new(), level: f64::INFINITY, is_active: false }
    }

    /// Reference commands that others may have with the drive.
    pub(super) fn cap(&self, config: &EvenkeelConfig) -> f64 {
        if self.is_active { self.level } else { f64::from(config.max_in_flight) * LENT }
    }

    /// This tenant asks again: others have no more than its target lets them from now on.
    pub(super) fn awoken(&mut self, config: &EvenkeelConfig, tenant: TenantId) {
        let Ok(at) = self.of.binary_search_by_key(&tenant, |promise| promise.tenant) else { return };
        self.of[at].quiet = 0;
        let level = if self.is_active { self.level } else { f64::INFINITY };
        self.level = self.of[at].allows(config).min(level).max(f64::from(config.floor_in_flight));
        self.is_active = true;
    }

    /// An interval ended, in which others had `units` reference commands with the drive at most.
    pub(super) fn learn(&mut self, config: &EvenkeelConfig, reports: &[TenantReport], units: f64) {
        self.keep_up(config, reports);
        let told = reports.iter().filter(|report| report.class.promise().is_some());
        let is_told_by = units >= self.level / 2.0;
        for (promise, report) in self.of.iter_mut().zip(told) {
            promise.hear(config, report, is_told_by.then_some((units, self.level)));
        }
        let active = self.of.iter().filter(|promise| promise.quiet < INTERVALS_PER_SECOND);
        let allowed = active.map(|promise| promise.allows(config)).reduce(f64::min);
        self.is_active = allowed.is_some();
        if let Some(allowed) = allowed {
            let most = if self.level.is_finite() { self.level * MOST_GROWTH } else { allowed };
            self.level = allowed.min(most).max(f64::from(config.floor_in_flight));
        }
    }

    /// Has one for each that is reported, in the same order. Who has another target begins anew.
    fn keep_up(&mut self, config: &EvenkeelConfig, reports: &[TenantReport]) {
        let mut at = 0;
        for report in reports {
            let Some(asked) = report.class.promise() else { continue };
            while self.of.get(at).is_some_and(|promise| promise.tenant < report.tenant) {
                self.of.remove(at);
            }
            match self.of.get_mut(at) {
                Some(promise) if promise.tenant == report.tenant => {
                    if (promise.target, promise.percentile) != asked {
                        *promise = Promise::new(config, report, asked);
                    }
                }
                _ => self.of.insert(at, Promise::new(config, report, asked)),
            }
            at += 1;
        }
        self.of.truncate(at);
    }
}

impl Promise {
    fn new(config: &EvenkeelConfig, report: &TenantReport, (target, percentile): (Nanos, Percentile)) -> Self {
        Self {
            tenant: report.tenant,
            target,
            percentile,
            seen: report.by_target,
            tail: Tail::expecting(1e9 / config.rate_iops, EXPECTATION),
            rate: 0.0,
            memory: LEAST_LATE / percentile.late(),
            rest: Rest { left: 0, length: FIRST_REST },
            // It may have come to work.
            quiet: 0,
            brake: 1.0,
        }
    }

    /// What a command takes with nobody else there, in ns.
    fn alone_ns(&self, config: &EvenkeelConfig) -> f64 {
        (config.alone.0 as f64).min(self.target.0 as f64 * AIM / 2.0)
    }

    /// `others`: what others had with the drive meanwhile, and what they might have had; `None`: too little to learn
    /// from.
    fn hear(&mut self, config: &EvenkeelConfig, report: &TenantReport, others: Option<(f64, f64)>) {
        let mut counts = report.by_target;
        counts.iter_mut().zip(&self.seen).for_each(|(count, seen)| *count = count.wrapping_sub(*seen));
        self.seen = report.by_target;
        let new = counts.iter().sum::<u32>();
        self.quiet = if new == 0 { self.quiet.saturating_add(1) } else { 0 };
        if new == 0 {
            return;
        }
        self.rate += (f64::from(new) - self.rate) / f64::from(INTERVALS_PER_SECOND);
        if let Some((units, level)) = others {
            let (target_ns, alone_ns) = (self.target.0 as f64, self.alone_ns(config));
            let reaches = (self.tail.beyond(self.percentile.late()) * units + alone_ns) / target_ns;
            let least = LEAST_LATE / self.percentile.late();
            let most = (self.rate * f64::from(INTERVALS_PER_SECOND)).max(least);
            let changes = if ON_THE_MARK.contains(&reaches) { REMEMBERS } else { FORGETS };
            self.memory = (self.memory * changes).clamp(least, most);
            match reaches > *ON_THE_MARK.end() {
                true if self.rest.left == 0 => self.rest.begin(),
                true => {}
                false => self.rest.left = self.rest.left.saturating_sub(1),
            }
            // The next command may have been too large for what was left, or the wait has little to do with others:
            // what they might have had does no harm either, as far as is known. Until it did.
            let units = if reaches < AIM && self.rest.left == 0 { units.max(level) } else { units };
            self.tail.learn(&counts, (target_ns, alone_ns), units, self.memory);
        }
        let late = counts[FIRST_LATE..].iter().sum::<u32>();
        let may_be = self.percentile.late();
        let many = (may_be * MANY).min((1.0 + may_be) / 2.0);
        let is_broken = late >= 3 && f64::from(late) > f64::from(new) * many;
        self.brake = if is_broken { (self.brake * BRAKE).max(0.05) } else { (self.brake * RELEASE).min(1.0) };
    }

    /// Reference commands that others may have with the drive for its sake.
    fn allows(&self, config: &EvenkeelConfig) -> f64 {
        let rest_ns = self.target.0 as f64 * AIM - self.alone_ns(config);
        rest_ns / self.tail.beyond(self.percentile.late()) * self.brake
    }
}
