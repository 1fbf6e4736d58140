//! Where the cap of the policy `evenkeel` settles.
//!
//! The policy measures how long each unit of others' work in flight makes a command wait. It then allows the work with
//! which the promised percentage of commands meets its aim. This model does so too, step by step, with the waits that
//! the network forecasts.

use io_model::{Nanos, Op};
use policy::{
    COST_UNIT, EVENKEEL_HOPELESS, EVENKEEL_LARGE, EVENKEEL_LEAST_LEFT, EVENKEEL_MANY, EVENKEEL_PACED_FOR,
    EVENKEEL_PACED_LEAST_PART, EVENKEEL_SLOWEST, EvenkeelConfig, Percentile, evenkeel_aim_changes, evenkeel_aim_ns,
    evenkeel_aims_ns, evenkeel_late_from_ns, evenkeel_long_units, evenkeel_pace_changes,
};
use ssd_model::Profile;

use super::{Pool, Tail};
use crate::Tenant;
use crate::figures::{read_busy_ns, write_busy_ns};

/// How far the cap goes in a step, in the logarithm, towards where what was seen last would put it.
const STEP: f64 = 0.3;
const MOST_STEP: f64 = 1.4;
/// The cap is updated once per this many steps of the network, which needs time to follow.
const EVERY: usize = 3;
/// As good as no limit.
const MOST: f64 = 1e6;

/// The policy tells latencies apart up to here, in targets.
const LONGEST_SEEN: f64 = 15.0;
/// It takes no more than that from others at once.
const LEAST_BRAKE: f64 = 0.05;
/// In one of eight intervals, the number of late commands exceeds its mean by this many standard deviations. Fitted: it
/// would be 1.15 if commands were late independently of each other.
const EIGHTH: f64 = 2.3;

/// The rate (commands per ns) at which each best-effort tenant without a floor may send oversized commands: those that
/// alone take longer than a target.
///
/// A guaranteed command is late if it arrives while more of an oversized command is left than its aim allows. So
/// oversized commands are as rare as keeps few commands late. Tenants that send them take turns by weight.
pub(super) fn paced(config: &EvenkeelConfig, profile: &Profile, tenants: &[Tenant]) -> Vec<(usize, f64)> {
    let promises: Vec<(Nanos, Percentile)> = tenants.iter().filter_map(|tenant| tenant.class.promise()).collect();
    let paced = tenants.iter().enumerate().filter_map(|(at, tenant)| {
        let weight = tenant.class.weight().filter(|_| tenant.floor.is_empty())?;
        let allowed = |(target, percentile): &(Nanos, Percentile)| {
            let longer = Longer::of(tenant, config, profile, evenkeel_aim_ns(*target))?;
            let sends = EVENKEEL_PACED_FOR * percentile.late() / longer.late_ns;
            Some(sends.max(EVENKEEL_PACED_LEAST_PART * config.rate_iops / 1e9 / longer.cost))
        };
        let sends = promises.iter().filter_map(allowed).reduce(f64::min)?;
        Some((at, f64::from(weight), sends))
    });
    let paced: Vec<(usize, f64, f64)> = paced.collect();
    let weights: f64 = paced.iter().map(|(_, weight, _)| weight).sum();
    paced.into_iter().map(|(at, weight, sends)| (at, sends * weight / weights)).collect()
}

/// Commands of a tenant that are longer than a target, in the mean of all its commands.
struct Longer {
    /// For how long others that come are late.
    late_ns: f64,
    /// In reference commands.
    cost: f64,
}

impl Longer {
    fn of(tenant: &Tenant, config: &EvenkeelConfig, profile: &Profile, aim_ns: f64) -> Option<Self> {
        let mut longer = Self { late_ns: 0.0, cost: 0.0 };
        for size in &tenant.sizes {
            let kinds = [
                (Op::Read, tenant.read_share, read_busy_ns(profile, size.len_bytes)),
                (Op::Write, 1.0 - tenant.read_share, write_busy_ns(profile, size.len_bytes)),
            ];
            for (op, part, takes_ns) in kinds.into_iter().filter(|(.., takes_ns)| *takes_ns > aim_ns) {
                let cost = f64::from(config.cost.of(op, size.len_bytes)) / f64::from(COST_UNIT);
                longer.late_ns += part * size.part * (takes_ns - aim_ns);
                longer.cost += part * size.part * cost;
            }
        }
        (longer.late_ns > 0.0).then_some(longer)
    }
}

/// What best effort may have in flight at most. Where several want it each has its weight's part, and of what it sends
/// the policy allows each length its own most.
fn lent(config: &EvenkeelConfig, tenants: &[Tenant]) -> f64 {
    let others = || tenants.iter().filter_map(|tenant| Some((tenant, f64::from(tenant.class.weight()?))));
    let is_shared = others().nth(1).is_some();
    let (mut work, mut of_all) = (0.0, 0.0);
    for (tenant, weight) in others() {
        let (mut costs, mut takes) = (0.0, 0.0);
        for size in &tenant.sizes {
            let cost = |op| f64::from(config.cost.of(op, size.len_bytes));
            let cost = tenant.read_share * cost(Op::Read) + (1.0 - tenant.read_share) * cost(Op::Write);
            costs += size.part * cost;
            takes += size.part * cost / config.lent_of(size.len_bytes, is_shared);
        }
        work += weight;
        of_all += weight * takes / costs;
    }
    if of_all > 0.0 { work / of_all } else { config.lent() }
}

/// What others may have in flight beside promises.
#[derive(Debug, Clone)]
pub(super) struct Cap {
    promises: Vec<Promise>,
    /// The pool of best effort.
    pub(super) pool: Option<usize>,
    /// In reference commands: now, and from the least to the most.
    level: f64,
    floor: f64,
    most: f64,
    /// What best effort's commands cost in the mean.
    mean_cost: f64,
    steps: usize,
    /// By which part it moved in the last step.
    pub(super) moved: f64,
    /// The fraction of time in which an oversized command may be in flight, and the cost from which on a command is
    /// oversized.
    pub(super) pace: f64,
    long: f64,
    /// Reference commands per ns of those that are sent whatever they do to others.
    pub(super) paced_at_least: f64,
    /// What floors leave.
    squeeze: Squeeze,
}

#[derive(Debug, Clone, Copy)]
struct Promise {
    tenant: usize,
    target_ns: f64,
    /// The part of its commands that may be late.
    late: f64,
    /// What the others are to take: now, at least and at most.
    aim_ns: f64,
    least_aim_ns: f64,
    most_aim_ns: f64,
    /// What the policy takes them to need with nobody else there.
    alone_ns: f64,
    /// What is taken from others while many commands are late, as a factor.
    brake: f64,
    /// See [`Cap::pace`].
    pace: f64,
}

impl Cap {
    pub(super) fn new(config: &EvenkeelConfig, tenants: &[Tenant], pools: &[Pool]) -> Self {
        let promise = |(tenant, (target, percentile)): (usize, (Nanos, Percentile))| {
            let target_ns = target.0 as f64;
            let aim_ns = evenkeel_aim_ns(target);
            let (least_aim_ns, most_aim_ns) = evenkeel_aims_ns(target);
            let alone_ns = (config.alone.0 as f64).min(aim_ns / 2.0);
            Promise {
                tenant,
                target_ns,
                late: percentile.late(),
                aim_ns,
                least_aim_ns,
                most_aim_ns,
                alone_ns,
                brake: 1.0,
                pace: 1.0,
            }
        };
        let long = tenants.iter().filter_map(|tenant| Some(evenkeel_long_units(config, tenant.class.promise()?.0)));
        let most = lent(config, tenants);
        let targets = tenants.iter().enumerate();
        let targets = targets.filter_map(|(at, tenant)| Some((at, tenant.class.promise()?)));
        Self {
            promises: targets.map(promise).collect(),
            pool: pools.iter().position(|pool| pool.members.iter().any(|&at| !tenants[at].class.is_guaranteed())),
            level: most,
            most,
            floor: f64::from(config.floor_in_flight),
            mean_cost: 0.0,
            steps: 0,
            moved: 0.0,
            pace: 1.0,
            long: long.fold(f64::INFINITY, f64::min),
            paced_at_least: EVENKEEL_PACED_LEAST_PART * config.rate_iops / 1e9,
            squeeze: Squeeze::default(),
        }
    }

    /// Whether best-effort tenants are throttled for a promise.
    pub(super) fn is_engaged(&self) -> bool {
        !self.promises.is_empty()
    }

    /// A step towards where the tightest promise is just kept. `dearest`: of the commands that best effort sends in
    /// each interval; `seen`: a tenant's latencies as its poller sees them, and its commands in an interval.
    pub(super) fn judge(&mut self, mean_cost: f64, dearest: impl FnOnce() -> f64, seen: impl Fn(usize) -> (Tail, f64)) {
        self.mean_cost = mean_cost;
        self.steps += 1;
        if !self.is_engaged() || !self.steps.is_multiple_of(EVERY) {
            return;
        }
        let dearest = dearest();
        let is_large = self.pace < 1.0 || dearest >= self.long && self.level + dearest > EVENKEEL_LARGE * self.level;
        let (mut allowed, mut pace) = (MOST, 1.0_f64);
        for promise in &mut self.promises {
            let (tail, in_interval) = seen(promise.tenant);
            allowed = allowed.min(promise.allows(self.level, &tail, in_interval));
            if is_large {
                let changes = evenkeel_pace_changes(promise.late_for_guest(&tail) / promise.late);
                promise.pace = (promise.pace * changes.powf(STEP)).clamp(EVENKEEL_SLOWEST, 1.0);
            }
            pace = pace.min(promise.pace);
        }
        let pace_moved = (pace / self.pace - 1.0).abs();
        self.pace = pace;
        let before = self.level;
        let factor = (allowed / before).powf(STEP).clamp(1.0 / MOST_STEP, MOST_STEP);
        self.level = (before * factor).clamp(self.floor, self.most.max(self.floor));
        self.moved = (self.level / before - 1.0).abs().max(pace_moved);
    }

    /// A step towards where the worst kept floor, of which `got` is had, is just kept. `units`: what best effort has in
    /// flight.
    pub(super) fn judge_floors(&mut self, got: Option<f64>, units: f64) {
        if self.steps.is_multiple_of(EVERY) {
            let moved = if self.is_engaged() { self.moved } else { 0.0 };
            self.moved = moved.max(self.squeeze.judge(got, units));
        }
    }

    /// Whether a command of this cost goes alone, with a pause after it.
    pub(super) fn is_paced(&self, cost: f64) -> bool {
        self.pace < 1.0 && cost >= self.long && cost > self.level
    }

    /// Best effort sends while it has less than this in flight: what a command costs is known once it is fetched.
    pub(super) fn sends_below(&self) -> f64 {
        (self.level.min(self.squeeze.level) - self.mean_cost / 2.0).max(1.0 / f64::from(COST_UNIT))
    }
}

/// Where a tenant is short of its floor because its commands wait in the drive, best effort may have less there.
#[derive(Debug, Clone)]
struct Squeeze {
    level: f64,
    /// Steps in which all was taken and a floor was short.
    tried: usize,
}

impl Default for Squeeze {
    fn default() -> Self {
        Self { level: MOST, tried: 0 }
    }
}

impl Squeeze {
    /// By which part it moved. What can't be helped is given up, as the policy does but for a try now and then: where
    /// nothing is in the drive but what floors themselves send.
    fn judge(&mut self, got: Option<f64>, units: f64) -> f64 {
        const TRIES: usize = 20;
        const BY_FLOORS: f64 = 1.3;
        let all_taken = self.level <= EVENKEEL_LEAST_LEFT || units > BY_FLOORS * self.level;
        self.tried += usize::from(all_taken && got.is_some_and(|got| got < EVENKEEL_HOPELESS));
        let before = self.level;
        self.level = match got {
            Some(got) if self.tried < TRIES && (got < 1.0 || before < 2.0 * units) => {
                let factor = got.clamp(1.0 / MOST_STEP, MOST_STEP).powf(STEP);
                (before.min(2.0 * units) * factor).max(EVENKEEL_LEAST_LEFT)
            }
            _ => MOST,
        };
        (self.level / before - 1.0).abs()
    }
}

impl Promise {
    /// What others may have in flight, who might have had `level`.
    fn allows(&mut self, level: f64, tail: &Tail, in_interval: f64) -> f64 {
        let late_ns = tail.percentile_ns(self.late).min(LONGEST_SEEN * self.target_ns);
        let changes = evenkeel_aim_changes(self.late_for_guest(tail) / self.late);
        self.aim_ns = (self.aim_ns * changes).clamp(self.least_aim_ns, self.most_aim_ns);
        let braked = tail.longer(self.target_ns) / late_to_brake(in_interval, EVENKEEL_MANY * self.late);
        self.brake = (self.brake * braked.max(1e-3).powf(-STEP).clamp(0.8, 1.25)).clamp(LEAST_BRAKE, 1.0);
        level * (self.aim_ns - self.alone_ns) / (late_ns - self.alone_ns).max(1.0) * self.brake
    }

    /// The part of its commands that is late once the guest has added its own.
    fn late_for_guest(&self, tail: &Tail) -> f64 {
        const SAMPLES: u32 = 8;
        let part = |at: u32| (f64::from(at) + 0.5) / f64::from(SAMPLES);
        let from_ns = |at: u32| evenkeel_late_from_ns(Nanos(self.target_ns as u64), part(at));
        (0..SAMPLES).map(|at| tail.longer(from_ns(at).max(0.0))).sum::<f64>() / f64::from(SAMPLES)
    }
}

/// The fraction of commands that is late when the policy brakes as often as it lets go, with `in_interval` commands per
/// interval. In one of eight intervals, that fraction and at least three are late.
fn late_to_brake(in_interval: f64, many: f64) -> f64 {
    let many = (many.min(1.0) * in_interval).max(2.5);
    let root = ((EIGHTH * EIGHTH + 4.0 * many).sqrt() - EIGHTH) / 2.0;
    root * root / in_interval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_brakes_for_a_tenth_of_many_commands_and_for_three_of_few() {
        assert!((late_to_brake(1e6, 0.1) - 0.1).abs() < 0.001);
        assert!((0.03..0.1).contains(&late_to_brake(100.0, 0.1)));
        // A tenant with one command in an interval never has three of them late.
        assert!(late_to_brake(0.5, 0.1) > 1.0);
    }
}
