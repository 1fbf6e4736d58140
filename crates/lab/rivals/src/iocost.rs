//! IOCost: weighted shares of modelled device time ("IOCost: Block IO Control for Containers in Datacenters", Heo et
//! al., ASPLOS '22; `blk-iocost` in Linux, whose documentation and comments say the same at length).
//!
//! A command costs device time by a model. The device has a clock of such time, which runs at a rate, and each tenant
//! one of its own, moved on by cost over its share with each command; it may send while its clock is not ahead of the
//! device's. Who uses less than its share lends the rest: in each interval its weight in force falls to what it used
//! and some more, and it has all of it again as soon as it would have to wait. The rate falls by some percent of itself
//! while more of the drive's commands are late than may be, the more the longer that goes on, and rises while a tenant
//! waits and none are.
//!
//! What operators set there follows from terms here: the latency is the strictest target, which 99 of 100 commands of
//! *all* tenants, reads and writes apart, are held to, as published; weights are those of best-effort tenants, and 10
//! for a guaranteed one, which is taken from nowhere. An interval is the policy's, 10 ms.
//!
//! Left out: trees of groups, debts of swapping and of journals, commands that waited for a tag as a sign that the
//! drive is full (here they wait in guests' queues).

use io_model::{Nanos, Op};
use policy::parts::{ByFlow, Flows, Links, List, Lowest, Standing, Turns};
use policy::{COST_UNIT, ConfigError, Cost, DriveFigures, Next, PollerShape, TenantReport, Terms};

/// Weight of a guaranteed tenant.
const GUARANTEED_WEIGHT: u32 = 10;
/// The share of commands that may be late.
const LATE: f64 = 0.01;
/// The rate in parts of what the drive does under full load.
const RATES: std::ops::RangeInclusive<f64> = 0.05..=2.0;
/// A tenant that uses less than this part of its share lends. It keeps what it used, times `KEEPS`.
const USES: f64 = 0.75;
const KEEPS: f64 = 1.25;
/// Device time that a tenant may have saved up, in ms at the full rate.
const MARGIN_MS: f64 = 1.0;
/// Ticks of the clocks that one unit of cost is worth.
const TICKS_PER_COST: f64 = 4.0;
/// A tenant whose clock is hardly ahead is asked for no sooner.
const SOONEST: Nanos = Nanos::from_micros(2);

/// Settings of [`IoCost`].
#[derive(Debug, Clone, PartialEq)]
pub struct IoCostConfig {
    /// Reference commands (4 KiB random writes) that the drive completes per second under full load; above 0.
    pub rate_iops: f64,
    /// What commands cost in reference commands.
    pub cost: Cost,
}

impl IoCostConfig {
    /// On a drive.
    pub fn on(drive: &DriveFigures) -> Self {
        Self { rate_iops: drive.lpns.r_iops, cost: drive.lpns.cost }
    }
}

#[derive(Debug, Clone, Copy)]
struct Tenant {
    weight: f64,
    /// What it lends is off; of a tenant that is not active it does not count.
    in_force: f64,
    /// Its clock.
    time: u64,
    /// Cost since the last interval.
    used: u64,
    is_active: bool,
    held: bool,
    standing: Standing,
}

const NEW: Tenant =
    Tenant { weight: 1.0, in_force: 1.0, time: 0, used: 0, is_active: false, held: false, standing: Standing::Idle };

/// Tenants and their clocks.
#[derive(Debug)]
pub struct Clocks {
    /// The device's.
    now: u64,
    margin: u64,
    /// Weights in force of active tenants, added up.
    sum: f64,
    ring: List,
    links: Links,
    /// Those whose clocks are ahead.
    ahead: Lowest,
    /// A tenant was held in this interval.
    waits: bool,
    tenants: Vec<Tenant>,
}

impl Clocks {
    fn set_in_force(&mut self, tenant: u16, in_force: f64) {
        let it = &mut self.tenants[usize::from(tenant)];
        let before = std::mem::replace(&mut it.in_force, in_force);
        if it.is_active {
            self.sum += in_force - before;
        }
    }

    fn set_active(&mut self, tenant: u16, is_active: bool) {
        let it = &mut self.tenants[usize::from(tenant)];
        if std::mem::replace(&mut it.is_active, is_active) == is_active {
            return;
        }
        if is_active {
            it.in_force = it.weight;
            it.time = it.time.max(self.now.saturating_sub(self.margin));
        }
        self.sum += if is_active { it.in_force } else { -it.in_force };
    }

    fn place(&mut self, tenant: u16) {
        let it = &mut self.tenants[usize::from(tenant)];
        if it.time > self.now && it.in_force < it.weight {
            // It would have to wait for what it lent.
            let (ahead, share) = ((it.time - self.now) as f64, it.in_force / it.weight);
            it.time = self.now + (ahead * share) as u64;
            let weight = it.weight;
            self.set_in_force(tenant, weight);
        }
        let it = &mut self.tenants[usize::from(tenant)];
        it.held = it.time > self.now;
        if it.held {
            self.waits = true;
            self.ahead.insert(tenant, it.time);
        } else {
            self.ring.push_back(&mut self.links, tenant);
        }
    }

    fn unplace(&mut self, tenant: u16) {
        if std::mem::take(&mut self.tenants[usize::from(tenant)].held) {
            self.ahead.remove(tenant);
        } else {
            self.ring.remove(&mut self.links, tenant);
        }
    }

    fn charge(&mut self, tenant: u16, cost: u32) {
        let is_ready = self.tenants[usize::from(tenant)].standing == Standing::Ready;
        if is_ready {
            self.unplace(tenant);
        }
        let (sum, least) = (self.sum, self.now.saturating_sub(self.margin));
        let it = &mut self.tenants[usize::from(tenant)];
        it.used += u64::from(cost);
        it.time = it.time.max(least) + (f64::from(cost) * TICKS_PER_COST * sum / it.in_force) as u64;
        if is_ready {
            self.place(tenant);
        }
    }

    /// Lets those go whose time has come.
    fn release(&mut self) {
        while let Some((_, tenant)) = self.ahead.first().filter(|(time, _)| *time <= self.now) {
            self.ahead.remove(tenant);
            self.tenants[usize::from(tenant)].held = false;
            self.ring.push_back(&mut self.links, tenant);
        }
    }

    /// An interval ended in which the device's clock moved on by `passed`.
    fn lend(&mut self, passed: f64) {
        let sum = self.sum;
        for tenant in 0..self.tenants.len() as u16 {
            let it = &mut self.tenants[usize::from(tenant)];
            let used = std::mem::take(&mut it.used) as f64 * TICKS_PER_COST;
            let (weight, share) = (it.weight, passed * it.in_force / sum.max(f64::MIN_POSITIVE));
            if used == 0.0 && it.standing == Standing::Idle {
                self.set_active(tenant, false);
            } else if it.is_active && !it.held && used < share * USES {
                let kept = it.in_force * used / share * KEEPS;
                self.set_in_force(tenant, kept.clamp(weight / 100.0, weight));
            }
        }
    }
}

impl Turns for Clocks {
    fn attach(&mut self, tenant: u16, terms: &Terms) {
        let len = usize::from(tenant) + 1;
        if self.tenants.len() < len {
            self.tenants.resize(len, NEW);
            self.links.grow(len);
            self.ahead.grow(len);
        }
        let weight = f64::from(terms.class.weight_or(GUARANTEED_WEIGHT));
        self.tenants[usize::from(tenant)].weight = weight;
        self.set_in_force(tenant, weight);
    }

    fn forget(&mut self, tenant: u16) {
        if usize::from(tenant) < self.tenants.len() {
            self.set_active(tenant, false);
            self.tenants[usize::from(tenant)] = NEW;
        }
    }

    fn moved(&mut self, tenant: u16, from: Standing, to: Standing) {
        if from == Standing::Ready {
            self.unplace(tenant);
        }
        self.tenants[usize::from(tenant)].standing = to;
        if to != Standing::Idle {
            self.set_active(tenant, true);
        }
        if to == Standing::Ready {
            self.place(tenant);
        }
    }

    fn holds(&self, tenant: u16) -> bool {
        self.tenants[usize::from(tenant)].held
    }
}

/// Commands of one kind in an interval.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    commands: u32,
    late: u32,
}

/// The policy of one poller.
#[derive(Debug)]
pub struct IoCost {
    config: IoCostConfig,
    /// Of the drive's rate.
    rate: f64,
    /// Intervals in which it was too high in a row; below 0: in which it might have been higher.
    busy: i32,
    target: Option<Nanos>,
    reads: Seen,
    writes: Seen,
    clocked_at: Nanos,
    /// What rounding the device's clock left over.
    rest: f64,
    /// The device's clock at the last interval.
    last: u64,
    flows: Flows<Clocks>,
}

impl IoCost {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A rate that is none, or a shape without HWQs or depth.
    pub fn new(config: IoCostConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        ConfigError::check(config.rate_iops >= 1.0, "rate_iops", "must be at least 1 per second")?;
        let margin = config.rate_iops * f64::from(COST_UNIT) * TICKS_PER_COST / 1e3 * MARGIN_MS;
        let clocks = Clocks {
            now: 0,
            margin: margin as u64,
            sum: 0.0,
            ring: List::default(),
            links: Links::default(),
            ahead: Lowest::default(),
            waits: false,
            tenants: Vec::new(),
        };
        Ok(Self {
            config,
            rate: 1.0,
            busy: 0,
            target: None,
            reads: Seen::default(),
            writes: Seen::default(),
            clocked_at: Nanos(0),
            rest: 0.0,
            last: 0,
            flows: Flows::new(clocks, shape.hwqs, shape.hwq_depth),
        })
    }

    fn ticks_per_ns(&self) -> f64 {
        self.config.rate_iops * self.rate * f64::from(COST_UNIT) * TICKS_PER_COST / 1e9
    }

    fn clock(&mut self, now: Nanos) {
        let ticks = now.0.saturating_sub(self.clocked_at.0) as f64 * self.ticks_per_ns() + self.rest;
        self.clocked_at = self.clocked_at.max(now);
        self.rest = ticks.fract();
        let clocks = &mut self.flows.turns;
        clocks.now += ticks as u64;
        clocks.release();
    }

    /// When the first of those that are held may go, or sooner.
    fn released_at(&self, now: Nanos) -> Nanos {
        let clocks = &self.flows.turns;
        let Some((start, _)) = clocks.ahead.first() else { return Nanos::MAX };
        let waits_ns = (start.saturating_sub(clocks.now) as f64 / self.ticks_per_ns()) as u64;
        now + Nanos(waits_ns).max(SOONEST)
    }

    /// Percent by which the rate changes after this number of intervals.
    fn step(intervals: u32) -> f64 {
        match intervals {
            0..4 => 0.0,
            4..9 => 1.0,
            9..16 => 2.0,
            16..32 => 4.0,
            _ => 8.0,
        }
    }
}

impl ByFlow for IoCost {
    type Turns = Clocks;

    fn flows(&self) -> &Flows<Clocks> {
        &self.flows
    }

    fn flows_mut(&mut self) -> &mut Flows<Clocks> {
        &mut self.flows
    }

    #[inline]
    fn pick(&mut self, now: Nanos) -> Next {
        self.clock(now);
        match self.flows.next_by(|clocks| clocks.ring.front()) {
            Next::WaitUntil(_) => Next::WaitUntil(self.released_at(now)),
            next => next,
        }
    }

    #[inline]
    fn sending(&mut self, tenant: u16, op: Op, len_bytes: u64) {
        let cost = self.config.cost.of(op, len_bytes);
        self.flows.turns.charge(tenant, cost);
    }

    fn refusing(&mut self, tenant: u16, consumed: bool) {
        if consumed {
            self.flows.turns.charge(tenant, COST_UNIT);
        }
    }

    #[inline]
    fn took(&mut self, op: Op, _: u64, latency: Nanos) {
        let seen = if op == Op::Read { &mut self.reads } else { &mut self.writes };
        seen.commands += 1;
        seen.late += u32::from(self.target.is_some_and(|target| latency > target));
    }

    fn end_interval(&mut self, reports: &[TenantReport], now: Nanos) {
        self.clock(now);
        self.target = reports.iter().filter_map(|report| report.class.latency_target()).min();
        let is_late = |seen: Seen| f64::from(seen.late) > f64::from(seen.commands) * LATE;
        let late = is_late(std::mem::take(&mut self.reads)) | is_late(std::mem::take(&mut self.writes));
        let waits = std::mem::take(&mut self.flows.turns.waits);
        self.busy = match (late, waits) {
            (true, _) => self.busy.max(0).saturating_add(1),
            (false, true) => self.busy.min(0).saturating_sub(1),
            (false, false) => 0,
        };
        let percent = Self::step(self.busy.unsigned_abs());
        let factor = 1.0 - f64::from(self.busy.signum()) * percent / 100.0;
        self.rate = (self.rate * factor).clamp(*RATES.start(), *RATES.end());
        let clocks = &mut self.flows.turns;
        let passed = clocks.now - self.last;
        self.last = clocks.now;
        clocks.lend(passed as f64);
    }
}

#[cfg(test)]
mod tests {
    use io_model::{TenantId, VqId};

    use policy::{Policy, TenantSlot, VqSlot};

    use super::*;

    fn policy(weights: &[u32]) -> IoCost {
        let shape = PollerShape { hwqs: 4, hwq_depth: 1024, guaranteed_vqs: 0, weighted: false };
        let mut policy = IoCost::new(IoCostConfig { rate_iops: 1e6, cost: Cost::default() }, &shape).unwrap();
        for (at, weight) in (0..).zip(weights) {
            let vq = VqId { tenant: TenantId(at.into()), index: 1 };
            policy.attach(VqSlot(at), vq, TenantSlot(at), &Terms::best_effort(*weight), Nanos(0));
        }
        policy
    }

    /// Commands of each tenant in 100 ms; all take 1 µs.
    fn run(policy: &mut IoCost, from_ms: u64) -> [f64; 2] {
        let (mut now, end) = (Nanos::from_millis(from_ms), Nanos::from_millis(from_ms + 100));
        let mut interval = now + Nanos::from_millis(10);
        let mut sent = [0.0; 2];
        while now < end {
            if now >= interval {
                policy.interval(&[], now);
                interval += Nanos::from_millis(10);
            }
            match policy.next(now) {
                Next::Send { vq, hwq } => {
                    policy.sent(vq, hwq, Op::Write, 4096, now);
                    policy.completed(vq, hwq, TenantSlot(vq.0), Op::Write, 4096, Nanos(0), now);
                    sent[usize::from(vq.0)] += 1.0;
                    now += Nanos(100);
                }
                Next::WaitUntil(at) => now = at.min(interval),
                Next::Idle => panic!("there is a backlog"),
            }
        }
        sent
    }

    #[test]
    fn shares_are_by_weight_and_who_is_alone_has_all() {
        let mut policy = policy(&[1, 3]);
        policy.arrived(VqSlot(0), u32::MAX, Nanos(0));
        policy.arrived(VqSlot(1), u32::MAX, Nanos(0));
        let [light, heavy] = run(&mut policy, 0);
        assert!((heavy / light - 3.0).abs() < 0.1, "{light} and {heavy}");
        policy.arrived(VqSlot(1), 0, Nanos::from_millis(100));
        run(&mut policy, 100);
        let [alone, _] = run(&mut policy, 200);
        assert!(alone > 100_000.0, "{alone} of 100,000 at the rate at first, which rises meanwhile");
    }

    #[test]
    fn what_one_does_not_use_is_lent_and_comes_back_at_once() {
        let mut policy = policy(&[1, 1]);
        policy.arrived(VqSlot(0), u32::MAX, Nanos(0));
        policy.arrived(VqSlot(1), 1, Nanos(0));
        for ms in 0..10 {
            policy.arrived(VqSlot(1), 1, Nanos::from_millis(ms * 100));
            run(&mut policy, ms * 100);
        }
        let [lender, other] = [1, 0].map(|at: usize| policy.flows.turns.tenants[at].in_force);
        assert!(lender < 0.1 && other == 1.0, "{lender} and {other}");
        policy.arrived(VqSlot(1), u32::MAX, Nanos::from_millis(1_000));
        let [first, second] = run(&mut policy, 1_000);
        assert!((second / first - 1.0).abs() < 0.1, "{first} and {second}");
    }
}
