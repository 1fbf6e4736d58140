//! ReFlex: every command costs tokens, and tokens come at the rate at which the drive keeps the strictest target
//! ("ReFlex: Remote Flash ≈ Local Flash", Klimovic, Litz and Kozyrakis, ASPLOS '17).
//!
//! Latency-critical tenants (the guaranteed ones) go as they come; what they spend is gone. Best-effort tenants share
//! what is left, by weight. The published scheduler reserves for each latency-critical tenant the rate that its
//! agreement names; terms here name no rate, so what is reserved is what is used, and nobody checks that it fits: a
//! guaranteed tenant that asks for everything gets it. Nor does anybody save up more than a twentieth of the strictest
//! target's worth, which is how often the published scheduler runs at least.
//!
//! The rate for a target is read off a measured curve in the paper, tail latency over tokens per second. Here it
//! follows from the drive's full rate and what a command takes alone as in an M/M/1 queue: what a drive with many units
//! does is better than that at first and worse in the end. Where nobody has a target there is no limit.
//!
//! Left out: the network, several threads with a global bucket, reads that get cheaper while nobody writes.

use io_model::{HwqId, Nanos, Op};
use policy::parts::{ByFlow, Fair, Flows, Links, List, Standing, Turns};
use policy::{
    COST_UNIT, ConfigError, Cost, DriveFigures, LpnsConfig, Next, PollerShape, TenantReport, TenantSlot, Terms,
};

use crate::bucket::Bucket;

/// The share of commands that may be late.
const LATE: f64 = 0.01;
/// Of the strictest target, how long tokens are kept.
const KEPT: f64 = 0.05;
/// Of the drive's rate, at least.
const LEAST: f64 = 0.02;

/// Settings of [`Reflex`]: what the drive can do.
#[derive(Debug, Clone, PartialEq)]
pub struct ReflexConfig {
    /// Reference commands (4 KiB random writes) that the drive completes per second under full load; above 0.
    pub rate_iops: f64,
    /// What a command takes that finds the drive idle.
    pub alone: Nanos,
    /// What commands cost in reference commands.
    pub cost: Cost,
}

impl ReflexConfig {
    /// On a drive.
    pub fn on(drive: &DriveFigures) -> Self {
        let LpnsConfig { r_iops, l_h, cost, .. } = drive.lpns;
        Self { rate_iops: r_iops, alone: l_h, cost }
    }

    /// Reference commands per second at which one command of a hundred takes longer than the target.
    fn rate_for(&self, target: Nanos) -> f64 {
        // In services of one command.
        let wait = target.0.saturating_sub(self.alone.0) as f64 * self.rate_iops / 1e9;
        let tail = |load: f64| (load / LATE).ln().max(0.0) / (1.0 - load);
        let (mut low, mut high) = (0.0, 1.0 - 1e-6);
        for _ in 0..40 {
            let load = f64::midpoint(low, high);
            if tail(load) <= wait { low = load } else { high = load }
        }
        self.rate_iops * low.max(LEAST)
    }
}

/// The flows that could send: guaranteed tenants in turns, others by weight.
#[derive(Debug)]
pub struct Order {
    guaranteed: List,
    links: Links,
    others: Fair,
    is_guaranteed: Vec<bool>,
}

impl Order {
    fn is_guaranteed(&self, tenant: u16) -> bool {
        self.is_guaranteed.get(usize::from(tenant)).is_some_and(|it| *it)
    }

    #[inline]
    fn front(&mut self, is_open: bool) -> Option<u16> {
        match self.guaranteed.front() {
            None if is_open => self.others.front(),
            first => first,
        }
    }
}

impl Turns for Order {
    const SOME_GO_FIRST: bool = true;

    fn attach(&mut self, tenant: u16, terms: &Terms) {
        let len = usize::from(tenant) + 1;
        if self.is_guaranteed.len() < len {
            self.is_guaranteed.resize(len, false);
            self.links.grow(len);
            self.others.grow(len);
        }
        self.is_guaranteed[usize::from(tenant)] = terms.class.is_guaranteed();
        self.others.set_weight(tenant, terms.class.weight_or(1));
    }

    fn forget(&mut self, tenant: u16) {
        self.others.forget(tenant);
    }

    fn moved(&mut self, tenant: u16, from: Standing, to: Standing) {
        match (self.is_guaranteed(tenant), from == Standing::Ready, to == Standing::Ready) {
            (true, true, _) => self.guaranteed.remove(&mut self.links, tenant),
            (true, _, true) => self.guaranteed.push_back(&mut self.links, tenant),
            (false, true, _) => self.others.remove(tenant),
            (false, _, true) => self.others.insert(tenant),
            _ => {}
        }
    }

    fn goes_first(&self, tenant: u16) -> bool {
        self.is_guaranteed(tenant)
    }
}

/// The policy of one poller.
#[derive(Debug)]
pub struct Reflex {
    config: ReflexConfig,
    strictest: Option<Nanos>,
    tokens: Bucket,
    flows: Flows<Order>,
}

impl Reflex {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A rate that is none, or a shape without HWQs or depth.
    pub fn new(config: ReflexConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        ConfigError::check(config.rate_iops >= 1.0, "rate_iops", "must be at least 1 per second")?;
        let order = Order {
            guaranteed: List::default(),
            links: Links::default(),
            others: Fair::default(),
            is_guaranteed: Vec::new(),
        };
        let flows = Flows::new(order, shape.hwqs, shape.hwq_depth);
        Ok(Self { config, strictest: None, tokens: Bucket::new(1.0, 1.0), flows })
    }

    fn set_strictest(&mut self, strictest: Option<Nanos>) {
        if self.strictest != strictest {
            self.strictest = strictest;
            if let Some(target) = strictest {
                let per_second = self.config.rate_for(target) * f64::from(COST_UNIT);
                let kept = per_second * KEPT * target.0 as f64 / 1e9;
                self.tokens.set_rate(per_second, kept.max(f64::from(COST_UNIT)));
            }
        }
    }
}

impl ByFlow for Reflex {
    type Turns = Order;

    fn flows(&self) -> &Flows<Order> {
        &self.flows
    }

    fn flows_mut(&mut self) -> &mut Flows<Order> {
        &mut self.flows
    }

    fn heed(&mut self, _: TenantSlot, terms: &Terms, _: Nanos) {
        if let Some(target) = terms.class.latency_target() {
            self.set_strictest(Some(self.strictest.map_or(target, |strictest| strictest.min(target))));
        }
    }

    #[inline]
    fn pick(&mut self, now: Nanos) -> Next {
        self.tokens.fill(now);
        let is_open = self.strictest.is_none() || self.tokens.is_open();
        match self.flows.next_by(|order| order.front(is_open)) {
            Next::WaitUntil(_) if !is_open => Next::WaitUntil(self.tokens.opens_at(now)),
            next => next,
        }
    }

    #[inline]
    fn sending(&mut self, tenant: u16, op: Op, len_bytes: u64) {
        let cost = self.config.cost.of(op, len_bytes);
        let order = &mut self.flows.turns;
        let is_guaranteed = order.is_guaranteed(tenant);
        if !is_guaranteed {
            order.others.charge(tenant, cost);
        }
        match (self.strictest, is_guaranteed) {
            (None, _) => {}
            (_, true) => self.tokens.take_at_most(cost.into()),
            (_, false) => self.tokens.take(cost.into()),
        }
    }

    fn refusing(&mut self, tenant: u16, consumed: bool) {
        let order = &mut self.flows.turns;
        if consumed && !order.is_guaranteed(tenant) {
            order.others.charge(tenant, COST_UNIT);
        }
    }

    #[inline]
    fn turn_over(&mut self, tenant: u16, _: Option<HwqId>) {
        let is_ready = self.flows.is_ready(tenant);
        let order = &mut self.flows.turns;
        if is_ready && order.is_guaranteed(tenant) {
            order.guaranteed.rotate(&mut order.links, tenant);
        }
    }

    fn end_interval(&mut self, reports: &[TenantReport], _: Nanos) {
        self.set_strictest(reports.iter().filter_map(|report| report.class.latency_target()).min());
    }
}

#[cfg(test)]
mod tests {
    use io_model::{TenantId, VqId};

    use policy::{Policy, VqSlot};

    use super::*;

    fn config() -> ReflexConfig {
        ReflexConfig { rate_iops: 1e6, alone: Nanos(10_000), cost: Cost::default() }
    }

    #[test]
    fn a_looser_target_gives_a_higher_rate() {
        let rates = [5, 15, 20, 50, 100, 1_000].map(|us| config().rate_for(Nanos::from_micros(us)));
        assert!(rates.is_sorted(), "{rates:?}");
        assert!(rates[0] < 1e5 && rates[5] > 0.99e6, "{rates:?}");
    }

    #[test]
    fn others_get_what_a_target_leaves_and_everything_without_one() {
        let shape = PollerShape { hwqs: 4, hwq_depth: 1024, guaranteed_vqs: 1, weighted: false };
        let mut policy = Reflex::new(config(), &shape).unwrap();
        let promised = Terms::guaranteed(Some(Nanos::from_micros(20)));
        for (at, terms) in [(0, promised), (1, Terms::best_effort(1))] {
            let vq = VqId { tenant: TenantId(at.into()), index: 1 };
            policy.attach(VqSlot(at), vq, TenantSlot(at), &terms, Nanos(0));
        }
        policy.arrived(VqSlot(1), u32::MAX, Nanos(0));
        let sent = |policy: &mut Reflex, from: u64| {
            let mut sent = 0.0;
            let (mut now, end) = (Nanos(from), Nanos(from + 10_000_000));
            while now < end {
                match policy.next(now) {
                    Next::Send { vq, hwq } => {
                        policy.sent(vq, hwq, Op::Write, 4096, now);
                        policy.completed(vq, hwq, TenantSlot(1), Op::Write, 4096, Nanos(0), now);
                        sent += 1.0;
                        now += Nanos(100);
                    }
                    Next::WaitUntil(at) => now = at,
                    Next::Idle => panic!("there is a backlog"),
                }
            }
            sent
        };
        let allowed = config().rate_for(Nanos::from_micros(20)) / 100.0;
        let limited = sent(&mut policy, 0);
        assert!((limited / allowed - 1.0).abs() < 0.02, "{limited} of {allowed}");
        policy.change_terms(TenantSlot(0), &Terms::guaranteed(None), Nanos(20_000_000));
        policy.interval(&[], Nanos(20_000_000));
        assert!(sent(&mut policy, 20_000_000) > 90_000.0);
    }
}
