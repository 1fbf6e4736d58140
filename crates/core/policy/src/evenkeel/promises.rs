//! The cap on best-effort work in flight: as high as every guaranteed tenant's latency promise allows.
//!
//! Here "others" are the best-effort tenants. A "reference command" costs as much as one 4 KiB random write.

use io_model::{Nanos, TenantId};

use super::EvenkeelConfig;
use super::stalls::Stalls;
use super::tail::{Allowed, Asked, Tail};
use super::work::{ByKind, KINDS, Peak, least_bytes};
use crate::by_target::{TARGET_STEPS, span_of};
use crate::{Percentile, TenantReport};

/// The latency aimed at first, as a fraction of the target less the guest's time. Learned values are off by a few
/// percent.
const AIM: f64 = 0.9;
/// Time that a guest adds to the latency that a poller sees: an interrupt and the guest's driver.
const GUEST: GuestTime = GuestTime { most_ns: 5_000.0, part: 0.1 };

/// That time in detail: the least for each command, and the mean of the exponentially distributed rest. Fitted to the
/// simulator's guests.
const GUEST_AT_LEAST: GuestTime = GuestTime { most_ns: 4_000.0, part: 0.08 };
const GUEST_MORE: GuestTime = GuestTime { most_ns: 4_000.0, part: 0.05 };

/// How much time is set aside for the guest: `most_ns`, but at most the fraction `part` of the target.
///
/// Beside a target of 25 µs, the full time would halve what others may have in flight.
struct GuestTime {
    most_ns: f64,
    part: f64,
}

impl GuestTime {
    fn ns(&self, target: Nanos) -> f64 {
        self.most_ns.min(target.0 as f64 * self.part)
    }
}

/// The latency aimed at first for a target, as a poller sees it, in ns.
pub fn aim_ns(target: Nanos) -> f64 {
    leaves_ns(target) * AIM
}

/// The lowest and the highest latency that may be aimed at for a target, in ns.
pub fn aims_ns(target: Nanos) -> (f64, f64) {
    (leaves_ns(target) * FARTHEST, leaves_ns(target) * CLOSEST)
}

/// The latency, as a poller sees it, from which on a fraction `part` (0 < `part` ≤ 1) of the commands is late for the
/// guest, in ns.
pub fn late_from_ns(target: Nanos, part: f64) -> f64 {
    target.0 as f64 - GUEST_AT_LEAST.ns(target) + GUEST_MORE.ns(target) * part.ln()
}

/// The target less the guest's time, in ns.
fn leaves_ns(target: Nanos) -> f64 {
    target.0.max(1) as f64 - GUEST.ns(target)
}

/// The factor that changes the aim. `part`: the late commands, as a fraction of those that may be late.
pub fn aim_changes(part: f64) -> f64 {
    match part {
        part if part < FEW_LATE => CLOSER,
        part if part > TOO_MANY_LATE => BACK,
        _ => 1.0,
    }
}

/// The cost in reference commands from which on one command may break the promise, whatever the cap.
pub fn long_units(config: &EvenkeelConfig, target: Nanos) -> f64 {
    target.0 as f64 / 1e9 * config.rate_iops * LONG
}

/// The factor that changes the pace: the fraction of time in which an oversized command may be in flight.
///
/// `part`: the late commands, as a fraction of those that may be late. An oversized command exceeds the whole cap
/// alone.
pub fn pace_changes(part: f64) -> f64 {
    let missing = (PACED_FOR / part).clamp(MOST_SLOWER, MOST_FASTER);
    if LITTLE_MISSING.contains(&part) { missing.powf(DAMPED) } else { missing }
}

/// The aim rises by `CLOSER` while fewer than `FEW_LATE` of the commands that may be late are late, and falls by `BACK`
/// while more than `TOO_MANY_LATE` are. It stays from `FARTHEST` to `CLOSEST` of the target less the guest's time.
const FEW_LATE: f64 = 0.6;
const TOO_MANY_LATE: f64 = 0.9;
const CLOSER: f64 = 1.01;
const BACK: f64 = 0.98;
const CLOSEST: f64 = 0.98;
const FARTHEST: f64 = 0.8;
/// The least number of intervals after which the aim is judged.
const JUDGED: u32 = 10;

/// A command that keeps the drive busy for this fraction of a target may break the promise, whatever the cap.
const LONG: f64 = 0.25;
/// Others that have this many times their cap in flight hold an oversized command: a lower cap does not help.
pub const LARGE: f64 = 4.0;
/// The pace is set so that this fraction of the commands that may be late is late.
pub const PACED_FOR: f64 = 0.75;
/// In this range of `part` the change of pace is damped, because it is measured from few commands. `MOST_SLOWER` and
/// `MOST_FASTER` limit it.
const LITTLE_MISSING: std::ops::RangeInclusive<f64> = 0.3..=2.0;
const DAMPED: f64 = 0.3;
const MOST_SLOWER: f64 = 0.4;
const MOST_FASTER: f64 = 2.0;
/// The lowest pace.
pub const SLOWEST: f64 = 0.01;

/// How many commands the initial expectation counts as.
const EXPECTATION: f64 = 5.0;
/// The memory covers at least this many commands that may be late, and all others of that time. If all is well it
/// covers up to a second.
const LEAST_LATE: f64 = 10.0;
/// How the memory changes per interval while a tenant's percentile is off the mark, and while it is on the mark.
const FORGETS: f64 = 0.7;
const REMEMBERS: f64 = 1.05;
/// An interval teaches nothing if others had less than this fraction of their cap in flight.
const TELLING_LOAD: f64 = 0.25;
/// What was seen beside more than `FAR` times the cap fades: this fraction is left after each interval.
///
/// The first cap on an unknown drive is far from the right one. A tenant with rare commands would remember it for
/// seconds.
const FAR: f64 = 4.0;
const FADES: f64 = 0.9;
/// A kind of command that causes less than this fraction of the wait teaches nothing.
const TELLING: f64 = 0.1;
/// Intervals without attempts at a higher cap after commands were late: the first time, and at most.
const FIRST_REST: u32 = 4;
const LONGEST_REST: u32 = 512;
/// Where a tenant's percentile should be, as a fraction of its target.
const ON_THE_MARK: std::ops::RangeInclusive<f64> = 0.85..=1.0;
const INTERVALS_PER_SECOND: u32 = 100;
/// The most that the cap grows from one interval to the next.
const MOST_GROWTH: f64 = 1.25;
/// The factor that cuts the cap at once if many commands of an interval are late, and the one that restores it.
const BRAKE: f64 = 0.7;
/// "Many" late commands: this many times the number that may be late.
pub const MANY: f64 = 10.0;
const RELEASE: f64 = 1.05;
/// The first step of the latency histogram that is beyond the target.
const FIRST_LATE: usize = 8;

/// One tenant's latency promise and what was learned for it.
#[derive(Debug)]
struct Promise {
    tenant: TenantId,
    target: Nanos,
    percentile: Percentile,
    asked: Asked,
    /// Per step of the latency histogram: the fraction of its commands that are late for the guest.
    late: [f64; TARGET_STEPS],
    judged: Judged,
    /// The fraction of time in which an oversized command may be in flight.
    pace: f64,
    /// The totals of the last report.
    seen: [u32; TARGET_STEPS],
    stalls: Stalls,
    learned: ByKind<Learned>,
    /// Commands per interval, averaged over about a second.
    rate: f64,
    /// Intervals since its last command.
    quiet: u32,
    brake: f64,
}

/// The counts since the aim was last judged.
#[derive(Debug)]
struct Judged {
    intervals: u32,
    commands: f64,
    late: f64,
    /// An oversized command was in flight in all these intervals.
    is_large: bool,
}

impl Judged {
    const NOTHING: Self = Self { intervals: 0, commands: 0.0, late: 0.0, is_large: true };
}

/// How long a tenant's commands waited for one kind of others' commands.
#[derive(Debug)]
struct Learned {
    tail: Tail,
    allowed: Allowed,
    /// The number of commands that the memory covers.
    memory: f64,
    rest: Rest,
}

/// The pause before a higher cap is tried. It doubles each time commands are late.
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

/// All promises.
#[derive(Debug)]
pub(super) struct Promises {
    /// Sorted by tenant.
    of: Vec<Promise>,
    /// The cap per kind, in reference commands, while a tenant with a promise is active.
    levels: ByKind<f64>,
    is_active: bool,
}

impl Promises {
    pub(super) fn new() -> Self {
        Self { of: Vec::new(), levels: [f64::INFINITY; KINDS], is_active: false }
    }

    /// The cap on others' work in flight per kind, in reference commands.
    pub(super) fn caps(&self, config: &EvenkeelConfig, is_shared: bool) -> ByKind<f64> {
        // This is also the cap without an active promise: more work in flight would make weights useless.
        let lent = |kind| config.lent_of(least_bytes(kind), is_shared);
        std::array::from_fn(|kind| if self.is_active { self.levels[kind].min(lent(kind)) } else { lent(kind) })
    }

    /// Whether a tenant with a promise is active.
    pub(super) fn is_active(&self) -> bool {
        self.is_active
    }

    /// The promises of tenants that sent a command within the last second.
    fn active(&self) -> impl Iterator<Item = &Promise> {
        self.of.iter().filter(|promise| promise.quiet < INTERVALS_PER_SECOND)
    }

    /// The fraction of time in which an oversized command may be in flight.
    pub(super) fn pace(&self) -> f64 {
        self.active().map(|promise| promise.pace).fold(1.0, f64::min)
    }

    /// The cost in reference commands from which on one command may break an active promise, whatever the cap.
    pub(super) fn long_units(&self, config: &EvenkeelConfig) -> f64 {
        self.active().map(|promise| promise.long_units(config)).fold(f64::INFINITY, f64::min)
    }

    /// A tenant is active again: its promise limits the cap from now on.
    pub(super) fn awoken(&mut self, config: &EvenkeelConfig, tenant: TenantId) {
        let Ok(at) = self.of.binary_search_by_key(&tenant, |promise| promise.tenant) else { return };
        self.of[at].quiet = 0;
        let levels = if self.is_active { self.levels } else { [f64::INFINITY; KINDS] };
        let allowed = self.of[at].allows();
        self.levels = std::array::from_fn(|kind| allowed[kind].min(levels[kind]).max(config.floor_in_flight.into()));
        self.is_active = true;
    }

    /// An interval ended. `others`: the most that others had in flight in it.
    pub(super) fn learn(&mut self, config: &EvenkeelConfig, reports: &[TenantReport], others: &Peak) {
        self.keep_up(config, reports);
        let told = reports.iter().filter(|report| report.class.promise().is_some());
        let is_told_by = others.part >= TELLING_LOAD || others.large.is_some();
        for (promise, report) in self.of.iter_mut().zip(told) {
            promise.hear(config, report, is_told_by.then_some(others));
        }
        let allowed = self.active().map(|promise| promise.allows());
        let allowed = allowed.reduce(|least, other| std::array::from_fn(|kind| least[kind].min(other[kind])));
        self.is_active = allowed.is_some();
        for (level, allowed) in self.levels.iter_mut().zip(allowed.into_iter().flatten()) {
            let most = if level.is_finite() { *level * MOST_GROWTH } else { allowed };
            *level = allowed.min(most).max(f64::from(config.floor_in_flight));
        }
    }

    /// Keeps one promise per reported tenant, in the order of the reports. A changed promise starts anew.
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
        let target_ns = target.0.max(1) as f64;
        let aim = aim_ns(target) / target_ns;
        let alone = (config.alone.0 as f64 / target_ns).min(aim / 2.0);
        let asked = Asked { late: percentile.late(), aim, alone };
        let expected = (aim - alone) * target_ns * config.rate_iops / 1e9;
        let tail = Tail::expecting(&asked, expected, EXPECTATION);
        let learned = || Learned {
            allowed: tail.allows(&asked, expected),
            tail: tail.clone(),
            memory: LEAST_LATE / asked.late,
            rest: Rest { left: 0, length: FIRST_REST },
        };
        Self {
            tenant: report.tenant,
            target,
            percentile,
            asked,
            late: late_parts(target),
            judged: Judged::NOTHING,
            pace: 1.0,
            seen: report.by_target,
            stalls: Stalls::new(report.stalled),
            learned: std::array::from_fn(|_| learned()),
            rate: 0.0,
            // A new tenant counts as active: it may have commands already.
            quiet: 0,
            brake: 1.0,
        }
    }

    /// `others`: what others had in flight. `None`: too little to learn from.
    fn hear(&mut self, config: &EvenkeelConfig, report: &TenantReport, others: Option<&Peak>) {
        let mut counts = report.by_target;
        counts.iter_mut().zip(&self.seen).for_each(|(count, seen)| *count = count.wrapping_sub(*seen));
        self.seen = report.by_target;
        // A total fell because one of the tenant's pollers let it go, together with its counts.
        if counts.iter().any(|count| *count > u32::MAX / 2) {
            return;
        }
        let new = counts.iter().sum::<u32>();
        self.quiet = if new == 0 { self.quiet.saturating_add(1) } else { 0 };
        if new == 0 {
            return;
        }
        self.rate += (f64::from(new) - self.rate) / f64::from(INTERVALS_PER_SECOND);
        let (may_be, memory) = (self.asked.late, self.rate * f64::from(INTERVALS_PER_SECOND));
        let most = (memory * may_be).max(LEAST_LATE);
        forget_slowest(&mut counts, self.stalls.excused(report.stalled, f64::from(new) * may_be, most));
        let late = counts[FIRST_LATE..].iter().sum::<u32>();
        if let Some(others) = others {
            let late = counts.iter().zip(&self.late).map(|(count, late)| f64::from(*count) * late).sum();
            let is_long = others.units.iter().sum::<f64>() >= self.long_units(config);
            let is_large = others.large.is_some() || is_long && self.load(others).1 > LARGE;
            self.judge(new, late, is_large);
            // The last command always exceeds the cap a little. Its effect counts as that of the cap.
            let mut others = *others;
            others.lower_to(1.0);
            self.learn(counts, &others);
        }
        let many = (may_be * MANY).min((1.0 + may_be) / 2.0);
        let is_broken = late >= 3 && f64::from(late) > f64::from(new) * many;
        self.brake = if is_broken { (self.brake * BRAKE).max(0.05) } else { (self.brake * RELEASE).min(1.0) };
    }

    /// See [`Promises::long_units`].
    fn long_units(&self, config: &EvenkeelConfig) -> f64 {
        long_units(config, self.target)
    }

    /// Counts `new` commands, `late` of them late, of an interval in which others had enough in flight to learn from.
    ///
    /// `is_large`: an oversized command was in flight.
    fn judge(&mut self, new: u32, late: f64, is_large: bool) {
        let Judged { intervals, commands, late: seen, is_large: was_large } = &mut self.judged;
        (*intervals, *commands, *seen) = (*intervals + 1, *commands + f64::from(new), *seen + late);
        *was_large &= is_large;
        let may_be = *commands * self.asked.late;
        if *intervals < JUDGED || may_be.max(*seen) < LEAST_LATE {
            return;
        }
        let part = *seen / may_be;
        if *was_large {
            self.pace = (self.pace * pace_changes(part)).clamp(SLOWEST, 1.0);
        }
        let target_ns = self.target.0.max(1) as f64;
        let (least, most) = aims_ns(self.target);
        self.asked.aim = (self.asked.aim * aim_changes(part)).clamp(least / target_ns, most / target_ns);
        self.judged = Judged::NOTHING;
    }

    /// What others had in flight, as a fraction of the cap: per kind, and in all.
    fn load(&self, others: &Peak) -> (ByKind<f64>, f64) {
        let loads: ByKind<f64> = std::array::from_fn(|kind| others.units[kind] / self.learned[kind].allowed.units);
        (loads, loads.iter().sum())
    }

    /// Splits the wait among the kinds of command by how much each was expected to cause.
    fn learn(&mut self, mut counts: [u32; TARGET_STEPS], others: &Peak) {
        let asked = self.asked;
        if let Some(part) = others.large {
            let met = f64::from(counts.iter().sum::<u32>()) * part;
            forget_slowest(&mut counts, met.round() as u32);
        }
        let (loads, load) = self.load(others);
        let least = LEAST_LATE / asked.late;
        let most = (self.rate * f64::from(INTERVALS_PER_SECOND)).max(least);
        for (kind, learned) in self.learned.iter_mut().enumerate().filter(|(kind, _)| loads[*kind] > 0.0) {
            let part = loads[kind] / load;
            let Allowed { units, anyhow } = learned.allowed;
            let reaches = anyhow + (asked.aim - anyhow) * load;
            if part >= TELLING {
                learned.heed(reaches, (least, most));
            }
            // Others may be below their cap because their next command was too large, or the wait may have other
            // causes. Until commands are late, assume that the whole cap would have done no harm.
            let is_tried = reaches < asked.aim && learned.rest.left == 0;
            let beside = units * load * if is_tried { others.part.recip().max(1.0) } else { 1.0 };
            learned.tail.fade_beyond(units.max(beside) * FAR, FADES);
            learned.tail.learn(&counts, beside, (part, learned.memory));
            learned.allowed = learned.tail.allows(&asked, units);
        }
    }

    /// The cap that this promise allows, per kind, in reference commands.
    fn allows(&self) -> ByKind<f64> {
        std::array::from_fn(|kind| self.learned[kind].allowed.units * self.brake)
    }
}

/// Per step of the latency histogram: the fraction of its commands that is late once the guest has added its time.
fn late_parts(target: Nanos) -> [f64; TARGET_STEPS] {
    const PARTS: usize = 8;
    let late = |takes: f64| {
        let beyond_ns = takes * target.0 as f64 - late_from_ns(target, 1.0);
        (beyond_ns / GUEST_MORE.ns(target).max(1.0)).exp().min(1.0)
    };
    std::array::from_fn(|step| {
        let (from, to) = span_of(step);
        let takes = |part: usize| from + (to - from) * (part as f64 + 0.5) / PARTS as f64;
        (0..PARTS).map(|part| late(takes(part))).sum::<f64>() / PARTS as f64
    })
}

/// Drops the slowest commands: an oversized command or a stalled poller made them slow, not the cap.
fn forget_slowest(counts: &mut [u32; TARGET_STEPS], mut left: u32) {
    for count in counts.iter_mut().rev() {
        let less = left.min(*count);
        *count -= less;
        left -= less;
    }
}

impl Learned {
    /// `reaches`: where the tenant's percentile should be by what was learned, as a fraction of its target.
    fn heed(&mut self, reaches: f64, (least, most): (f64, f64)) {
        let changes = if ON_THE_MARK.contains(&reaches) { REMEMBERS } else { FORGETS };
        self.memory = (self.memory * changes).clamp(least, most);
        match reaches > *ON_THE_MARK.end() {
            true if self.rest.left == 0 => self.rest.begin(),
            true => {}
            false => self.rest.left = self.rest.left.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;

    const TARGET: Nanos = Nanos::from_micros(105);

    /// The aim as a fraction of the target less the guest's time, after some intervals at the full cap. In each, 2,000
    /// commands end in time and `late` commands end late.
    fn aim(intervals: std::ops::Range<u32>, late: u32, promises: &mut Promises) -> f64 {
        let config = EvenkeelConfig::p5800x();
        for interval in intervals {
            let mut report = TenantReport {
                mean_latency: Nanos::from_micros(20),
                ..TenantReport::new(TenantId(1), Class::guaranteed(Some(TARGET)))
            };
            (report.by_target[2], report.by_target[FIRST_LATE]) = (interval * 2_000, interval * late);
            let units = [10.0, 0.0, 0.0, 0.0, 0.0, 0.0];
            promises.learn(&config, &[report], &Peak { units, part: 1.0, ..Peak::NONE });
        }
        promises.of[0].asked.aim * TARGET.0 as f64 / leaves_ns(TARGET)
    }

    #[test]
    fn the_aim_comes_closer_while_few_are_late_and_goes_back_when_many_are() {
        let mut promises = Promises::new();
        assert!((aim(0..1, 0, &mut promises) - AIM).abs() < 1e-9);
        // A tenth of the commands that may be late, then all of them. The second run starts counting at 0.
        assert!((aim(1..500, 2, &mut promises) - CLOSEST).abs() < 1e-9);
        promises.of[0].seen = [0; TARGET_STEPS];
        assert!((aim(0..900, 20, &mut promises) - FARTHEST).abs() < 1e-9);
        // Three quarters of the commands that may be late: the aim stays.
        assert!((aim(0..500, 14, &mut Promises::new()) - AIM).abs() < 1e-9);
    }

    #[test]
    fn the_guest_makes_some_commands_late_that_were_not() {
        let late = late_parts(Nanos::from_micros(100));
        assert!(late[..4].iter().all(|part| *part < 0.02) && late[FIRST_LATE..].iter().all(|part| *part == 1.0));
        assert!(late.is_sorted() && (0.5..1.0).contains(&late[FIRST_LATE - 1]), "{late:?}");
    }

    #[test]
    fn a_poller_that_stands_still_costs_others_nothing() {
        let config = EvenkeelConfig::p5800x();
        // One command in ten is late, because of the drive or because of the poller.
        let cap = |stalled: u64| {
            let mut promises = Promises::new();
            for interval in 0..200_u32 {
                let mut report = TenantReport {
                    stalled: u64::from(interval) * stalled,
                    ..TenantReport::new(TenantId(1), Class::guaranteed(Some(TARGET)))
                };
                (report.by_target[2], report.by_target[FIRST_LATE + 3]) = (interval * 900, interval * 100);
                let units = promises.caps(&config, false).map(|cap| cap / KINDS as f64);
                promises.learn(&config, &[report], &Peak { units, part: 1.0, ..Peak::NONE });
            }
            promises.caps(&config, false)[0]
        };
        let (drives, pollers) = (cap(0), cap(100));
        assert!(drives < 4.0 && pollers > 8.0, "{drives} {pollers}");
    }

    #[test]
    fn the_slowest_commands_are_forgotten_and_no_others() {
        let mut counts = [0; TARGET_STEPS];
        (counts[1], counts[5], counts[15]) = (90, 6, 4);
        forget_slowest(&mut counts, 7);
        assert_eq!((counts[1], counts[5], counts[15]), (90, 3, 0));
        forget_slowest(&mut counts, 1_000);
        assert_eq!(counts, [0; TARGET_STEPS]);
    }

    /// The pace after some intervals. In each, `late` of 2,000 commands are late beside a command of eight times the
    /// cap.
    fn pace(intervals: std::ops::Range<u32>, late: u32, promises: &mut Promises) -> f64 {
        let config = EvenkeelConfig::p5800x();
        for interval in intervals {
            let mut report = TenantReport::new(TenantId(1), Class::guaranteed(Some(TARGET)));
            (report.by_target[0], report.by_target[TARGET_STEPS - 1]) = (interval * 2_000, interval * late);
            let units = std::array::from_fn(|kind| if kind == KINDS - 1 { 500.0 } else { 0.0 });
            let large = (promises.pace() < 1.0).then_some(0.1);
            promises.learn(&config, &[report], &Peak { units, part: 8.0, large, ..Peak::NONE });
        }
        promises.pace()
    }

    #[test]
    fn commands_that_are_more_than_others_may_have_are_there_less_often_until_few_are_late() {
        assert_eq!(pace(0..JUDGED + 1, 14, &mut Promises::new()), 1.0, "no more than may be");
        let mut promises = Promises::new();
        assert_eq!(pace(0..JUDGED + 1, 60, &mut promises), MOST_SLOWER);
        assert_eq!(pace(0..1_000, 200, &mut promises), SLOWEST);
        promises.of[0].seen = [0; TARGET_STEPS];
        assert_eq!(pace(0..1_000, 0, &mut promises), 1.0);
    }
}
