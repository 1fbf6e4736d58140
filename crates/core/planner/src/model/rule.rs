//! The policy's part: who waits for whom, and what may be in flight.

use io_model::{Op, QueuePriority};
use policy::{COST_UNIT, Cost, EVENKEEL_LEAST_PART, EVENKEEL_MOST_OWED, PolicyConfig};

use super::evenkeel::{Cap, paced};
use super::host::service;
use super::lpns::Throttle;
use super::share::{CLASSES, COST, Claim, Level, RESOURCES, fill};
use super::window::in_flight_at_cap;
use super::{Flow, Model, OWN_DOING, Pool, Price, READ, WRITE};
use crate::{Host, Tenant};

/// Between two looks of a policy at what was done.
const INTERVAL_NS: f64 = 1e7;

impl Model<'_> {
    pub(super) fn apply(&mut self, policy: &PolicyConfig, tenants: &[Tenant]) {
        match policy {
            PolicyConfig::Passthrough => {
                for flow in &mut self.flows {
                    flow.turn = flow.vcpus;
                }
            }
            PolicyConfig::Wrr(config) => {
                let turns = [config.high_weight, config.medium_weight, config.low_weight].map(f64::from);
                for (flow, tenant) in self.flows.iter_mut().zip(tenants) {
                    flow.price(&Cost::default(), tenant);
                    flow.class = class_of(tenant.priority);
                    flow.urgent = tenant.priority == QueuePriority::Urgent;
                }
                for pool in &mut self.pools {
                    pool.class_turns = Some(turns);
                    pool.cap = f64::from(config.max_in_flight);
                }
            }
            PolicyConfig::Drr(config) => {
                let quanta = [config.high_weight, config.medium_weight, config.low_weight].map(f64::from);
                for (flow, tenant) in self.flows.iter_mut().zip(tenants) {
                    flow.price(&Cost::default(), tenant);
                    flow.turn = quanta[class_of(tenant.priority)] / 4.0 / flow.cost;
                    flow.urgent = tenant.priority == QueuePriority::Urgent;
                }
                for pool in &mut self.pools {
                    pool.cap = f64::from(config.max_in_flight);
                }
            }
            PolicyConfig::Fair(config) => {
                for (flow, tenant) in self.flows.iter_mut().zip(tenants) {
                    flow.price(&config.cost, tenant);
                    flow.turn = f64::from(tenant.class.weight().unwrap_or(1)) / flow.cost;
                }
                let per_unit =
                    (config.window.0 as f64 / config.reference_time.0 as f64).max(1.0 / f64::from(COST_UNIT));
                let contended = tenants.len() > 1;
                for pool in &mut self.pools {
                    pool.rounds = false;
                    pool.cap = if contended { per_unit * f64::from(config.parallel_units) } else { f64::INFINITY };
                }
            }
            PolicyConfig::Lpns(config) => {
                for (flow, tenant) in self.flows.iter_mut().zip(tenants) {
                    flow.price(&config.cost, tenant);
                    flow.turn = f64::from(tenant.class.weight().unwrap_or(1)) / flow.cost;
                }
                self.pools.iter_mut().for_each(|pool| pool.rounds = false);
                self.throttle = Throttle::new(config, tenants, &self.pools);
                self.throttle_now();
            }
            PolicyConfig::Evenkeel(config) => {
                for (flow, tenant) in self.flows.iter_mut().zip(tenants) {
                    flow.price(&config.cost, tenant);
                    flow.turn = f64::from(tenant.class.weight().unwrap_or(1)) / flow.cost;
                    flow.floor = tenant.floor_iops() / 1e9;
                }
                self.pools.iter_mut().for_each(|pool| pool.rounds = false);
                for (at, sends) in paced(config, self.profile, tenants) {
                    self.flows[at].most = self.flows[at].most.min(sends);
                }
                self.cap = Some(Cap::new(config, tenants, &self.pools));
                self.cap_now();
            }
        }
    }

    /// Moves the cap of `evenkeel`.
    pub(super) fn cap_now(&mut self) {
        let Some(mut cap) = self.cap.take() else { return };
        if let Some(at) = cap.pool {
            let members = || self.pools[at].members.iter().map(|&at| &self.flows[at]);
            let commands: f64 = members().map(|flow| flow.x).sum();
            let mean_cost = members().map(|flow| flow.x * flow.cost).sum::<f64>() / commands;
            let sent = |flow: &Flow| -> Vec<_> { flow.prices.iter().map(|it| (it.cost, it.part * flow.x)).collect() };
            let dearest = || dearest(members().flat_map(sent).collect());
            cap.judge(mean_cost, dearest, |tenant| (self.seen_tail(tenant), self.flows[tenant].x * INTERVAL_NS));
            let short = members().filter(|flow| flow.asks_for_floor()).map(|flow| flow.x / flow.floor);
            let units: f64 = members().map(|flow| flow.x * flow.held_ns()).sum();
            cap.judge_floors(short.reduce(f64::min), units);
            self.pools[at].cap = cap.sends_below();
            self.pace(&cap, at);
        }
        self.cap = Some(cap);
    }

    /// Gives turns by weight to tenants whose commands exceed the cap alone.
    fn pace(&mut self, cap: &Cap, pool: usize) {
        let pool = &self.pools[pool];
        let mut claims = Vec::new();
        for &at in &pool.members {
            let flow = &mut self.flows[at];
            flow.paced = f64::INFINITY;
            let (mut takes_ns, mut cost) = (0.0, 0.0);
            for price in &mut flow.prices {
                price.is_paced = cap.is_paced(price.cost) && flow.floor == 0.0;
                if price.is_paced {
                    takes_ns += price.part * flow.slots_ns[price.kind];
                    cost += price.part * price.cost;
                }
            }
            if cost > 0.0 {
                let (wants, turn) = (flow.asks(flow.cycle_ns()), flow.turn * flow.cost / cost);
                claims.push((at, Claim { wants, least: 0.0, turn, uses: [takes_ns, cost, 0.0], class: 0 }));
            }
        }
        let only: Vec<Claim> = claims.iter().map(|claim| claim.1).collect();
        let by_time = fill(&only, None, &[cap.pace, f64::INFINITY, f64::INFINITY]);
        let by_cost = fill(&only, None, &[f64::INFINITY, cap.paced_at_least, f64::INFINITY]);
        let level = by_time.or_higher(by_cost);
        for (at, claim) in claims {
            self.flows[at].paced = if level.rounds.is_finite() { level.rate(&claim) } else { f64::INFINITY };
        }
    }

    /// Moves what best effort may have in flight as the promises fare.
    pub(super) fn throttle_now(&mut self) {
        let Some(mut throttle) = self.throttle.take() else { return };
        let missed = throttle.targets.iter().any(|&(at, target_ns)| {
            let flow = &self.flows[at];
            // A tenant that fills its own limit is judged by its mean only.
            let own_doing = flow.x * flow.slot_ns >= OWN_DOING * throttle.guaranteed_cap;
            match own_doing {
                true => flow.slot_ns > target_ns,
                false => self.tail(at).longer(target_ns) > throttle.may_miss,
            }
        });
        throttle.judge(missed);
        let (mut depth, mut rate) = (0.0, 0.0);
        for flow in throttle.guaranteed.iter().map(|&at| &self.flows[at]) {
            depth += (flow.x * flow.slot_ns).max(1.0);
            rate += flow.x;
        }
        for &at in &throttle.guaranteed {
            self.pools[self.flows[at].pool].cap = throttle.guaranteed_cap;
        }
        if let Some(pool) = throttle.pool {
            let pool = &mut self.pools[pool];
            (pool.cap, pool.rate) = throttle.best_effort(depth, rate);
        }
        self.throttle = Some(throttle);
    }

    /// What tenants without a promise get beside others, whatever the cap, and at which poller.
    fn owed(&self) -> Option<(usize, Owed)> {
        let cap = self.cap.as_ref().filter(|cap| cap.is_engaged())?;
        let pool = cap.pool?;
        let (mut rate, mut in_flight) = (0.0, 0.0);
        for flow in self.flows.iter().filter(|flow| flow.pool != pool) {
            rate += flow.x * flow.cost;
            in_flight += flow.x * flow.held_ns();
        }
        let part = f64::from(EVENKEEL_LEAST_PART);
        Some((pool, Owed { rate: rate / part, in_flight: (in_flight / part).max(EVENKEEL_MOST_OWED.into()) }))
    }

    /// Cost per ns that tenants without a promise get beside floors.
    fn owed_beside_floors(&self) -> Option<f64> {
        self.cap.as_ref()?;
        let all: f64 = self.flows.iter().map(|flow| flow.x * flow.cost).sum();
        Some(all / f64::from(EVENKEEL_LEAST_PART))
    }

    /// Everyone's rate, by the policy.
    pub(super) fn share(&mut self, damping: f64) -> f64 {
        let mut change = 0.0_f64;
        let (owed, beside_floors) = (self.owed(), self.owed_beside_floors());
        for (at, pool) in self.pools.iter_mut().enumerate() {
            let owed = owed.filter(|owed| owed.0 == at).map(|owed| owed.1);
            let [(urgent, first), (others, level)] = turns(self.host, pool, &self.flows, owed, beside_floors);
            let at_cap = pool
                .members
                .iter()
                .map(|&at| &self.flows[at])
                .fold((0.0, 0.0), |sum, flow| (sum.0 + flow.x * flow.cost, sum.1 + flow.x * flow.cost_square));
            pool.room_ns = if at_cap.0 > 0.0 { at_cap.1 / at_cap.0 / 2.0 / at_cap.0 } else { 0.0 };
            pool.level = level;
            pool.urgent_level = first;
            let of = |claims: Claims, level: Level| claims.into_iter().map(move |(at, claim)| (at, claim, level));
            for (at, claim, level) in of(urgent, first).chain(of(others, level)) {
                let flow = &mut self.flows[at];
                let rate = level.rate(&claim);
                let free = flow.cycle_ns();
                let wait = match flow.rate {
                    None => flow.population / rate - free,
                    Some(open) if rate < open * 0.999 => flow.population / rate - free,
                    Some(_) => short_wait(pool, flow, level),
                };
                flow.policy_ns = flow.policy_ns * (1.0 - damping) + damping * wait.max(0.0);
                let next = flow.x * (1.0 - damping) + damping * rate;
                change = change.max((next / flow.x - 1.0).abs());
                flow.x = next;
            }
        }
        change
    }
}

/// Cost per ns, and in flight beyond the cap.
#[derive(Clone, Copy)]
struct Owed {
    rate: f64,
    in_flight: f64,
}

impl Flow {
    fn price(&mut self, cost: &Cost, tenant: &Tenant) {
        (self.cost, self.cost_square, self.cost_least) = (0.0, 0.0, f64::INFINITY);
        self.prices.clear();
        for size in &tenant.sizes {
            for (op, kind, part) in [(Op::Read, READ, tenant.read_share), (Op::Write, WRITE, 1.0 - tenant.read_share)] {
                let one = f64::from(cost.of(op, size.len_bytes)) / f64::from(COST_UNIT);
                let part = part * size.part;
                self.cost += part * one;
                self.cost_square += part * one * one;
                if part > 0.0 {
                    self.cost_least = self.cost_least.min(one);
                    self.prices.push(Price { kind, cost: one, part, is_paced: false });
                }
            }
        }
    }
}

/// What a command costs that is there in each interval: such come, or dearer ones. `sent`: costs, and how many per ns.
fn dearest(mut sent: Vec<(f64, f64)>) -> f64 {
    sent.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut in_interval = 0.0;
    let dearest = sent.into_iter().find(|(_, rate)| {
        in_interval += rate * INTERVAL_NS;
        in_interval >= 1.0
    });
    dearest.map_or(0.0, |(cost, _)| cost)
}

fn class_of(priority: QueuePriority) -> usize {
    match priority {
        QueuePriority::Urgent | QueuePriority::High => 0,
        QueuePriority::Medium => 1,
        QueuePriority::Low => 2,
    }
}

/// What a flow that is not held back waits for its turn: half of the time between two of its turns, longer if it
/// sometimes needs several. A closed loop that is back before its next turn always waits for that: it goes around with
/// the turns.
fn short_wait(pool: &Pool, flow: &Flow, level: Level) -> f64 {
    if flow.urgent || !level.rounds.is_finite() {
        return 0.0;
    }
    if !pool.rounds {
        // By least use: it goes next, once there is room, unless it has just had its share.
        let share_ns = 1.0 / (flow.turn * level.rounds);
        let own = if flow.rate.is_some() { 1.0 } else { 1.0 - 1.0 / flow.population };
        let busy = (own * flow.x * share_ns).min(0.95);
        return pool.room_ns + share_ns / 2.0 * busy / (1.0 - busy);
    }
    let mine = level.by_class[flow.class];
    let between = if mine.is_finite() { 1.0 / mine } else { 0.0 };
    // The other classes' part of a round.
    let others = pool.class_turns.map_or(0.0, |turns| 1.0 - turns[flow.class] / turns.iter().sum::<f64>());
    let classes = others * others / level.rounds / 2.0;
    if flow.rate.is_none() {
        let period = if mine.is_finite() { between } else { 1.0 / level.rounds };
        return (classes + between / 2.0).max(period - flow.cycle_ns());
    }
    let turn = flow.turn.max(1.0);
    let busy = (flow.x * between / turn).min(0.95);
    classes + between / 2.0 * (1.0 + busy / (turn * (1.0 - busy)))
}

/// A claim that would get less than its minimum gets the minimum first, even beyond what there is.
fn fill_all(claims: &[(usize, Claim)], turns: Option<[f64; CLASSES]>, has: &[f64; RESOURCES]) -> Level {
    let mut others: Vec<Claim> = claims.iter().map(|claim| claim.1).collect();
    let mut left = *has;
    loop {
        let level = fill(&others, turns, &left);
        let is_short = |claim: &Claim| level.turns(claim) < claim.least;
        if !others.iter().any(is_short) {
            return level;
        }
        for claim in others.iter().filter(|claim| is_short(claim)) {
            for ((left, has), uses) in left.iter_mut().zip(has).zip(claim.uses) {
                *left = (*left - claim.least * uses).max(has / f64::from(EVENKEEL_LEAST_PART));
            }
        }
        others.retain(|claim| !is_short(claim));
        // Nobody is left who gets more than that.
        if others.is_empty() {
            return level;
        }
    }
}

type Claims = Vec<(usize, Claim)>;

/// The turns at a poller: of the tenants that go first, and of the others.
fn turns(
    host: &Host,
    pool: &Pool,
    flows: &[Flow],
    owed: Option<Owed>,
    beside_floors: Option<f64>,
) -> [(Claims, Level); 2] {
    let claims = pool.members.iter().map(|&at| (at, claim(host, pool, &flows[at], true)));
    let (urgent, mut others): (Claims, Claims) = claims.partition(|(at, _)| flows[*at].urgent);
    let mut has = [in_flight_at_cap(pool, flows), 1.0, pool.rate];
    let first = fill_all(&urgent, None, &has);
    for (_, claim) in &urgent {
        let rate = first.rate(claim);
        for (has, uses) in has.iter_mut().zip(claim.uses) {
            *has = (*has - rate * uses).max(1e-6);
        }
    }
    let mut level = fill_all(&others, pool.class_turns, &has);
    if let Some(owed) = owed {
        has[0] += owed.in_flight;
        has[COST] = owed.rate;
        if let Some(as_owed) = by_owed(host, pool, flows, (&others, level), &has) {
            (others, level) = as_owed;
        }
    }
    if let Some(rate) = beside_floors
        && let Some(with_owed) = with_owed(flows, &others, level, rate)
    {
        level = fill_all(&with_owed, None, &has);
        others = with_owed;
    }
    [(urgent, first), (others, level)]
}

/// The claims if tenants without a promise would otherwise send less than they are owed. They then send as their turns
/// allow, without pauses for oversized commands.
fn by_owed(
    host: &Host,
    pool: &Pool,
    flows: &[Flow],
    (paced, level): (&Claims, Level),
    has: &[f64; RESOURCES],
) -> Option<(Claims, Level)> {
    let sent = |claims: &Claims, level: Level| -> f64 {
        claims.iter().map(|(_, claim)| level.rate(claim) * claim.uses[COST]).sum()
    };
    let sent_paced = sent(paced, level);
    if sent_paced >= has[COST] {
        return None;
    }
    let claims: Claims = paced.iter().map(|&(at, _)| (at, claim(host, pool, &flows[at], false))).collect();
    let level = fill_all(&claims, None, has);
    (sent(&claims, level) > sent_paced).then_some((claims, level))
}

/// The claims if tenants without a floor would otherwise send less than `owed` beside tenants with one. They then send
/// that much without waiting for turns, and tenants with floors wait for it.
fn with_owed(flows: &[Flow], claims: &Claims, level: Level, owed: f64) -> Option<Claims> {
    let is_owed = |at: usize| flows[at].floor == 0.0;
    let sum = |of: &dyn Fn(usize, &Claim) -> f64| -> f64 {
        claims.iter().filter(|(at, _)| is_owed(*at)).map(|(at, claim)| of(*at, claim) * flows[*at].cost).sum()
    };
    let asks = |at: usize| flows[at].asks(flows[at].cycle_ns());
    let has_floors = claims.iter().any(|(_, claim)| claim.least > 0.0);
    if !has_floors || sum(&|_, claim| level.rate(claim)) >= owed.min(sum(&|at, _| asks(at))) {
        return None;
    }
    let (turns, left) = (sum(&|_, claim| claim.turn), 1.0 - 1.0 / f64::from(EVENKEEL_LEAST_PART));
    let least = |at: usize, claim: &Claim| match is_owed(at) {
        true => (claim.turn / turns * owed).min(asks(at)),
        false => claim.least * left,
    };
    let claim = |&(at, claim): &(usize, Claim)| {
        let least = least(at, &claim);
        (at, Claim { wants: claim.wants.max(least), least, ..claim })
    };
    Some(claims.iter().map(claim).collect())
}

/// `pauses`: no more than its pauses let it send.
fn claim(host: &Host, pool: &Pool, flow: &Flow, pauses: bool) -> Claim {
    let batch = f64::from(host.poller_batch);
    let overhead = (host.poller_pass_ns + host.poller_doorbell_ns * pool.hwqs.min(batch)) / batch;
    let short = short_wait(pool, flow, pool.level);
    // A tenant below its floor does not wait for turns.
    let wants = |cycle_ns| if pauses { flow.wants(cycle_ns) } else { flow.asks(cycle_ns) };
    let least = flow.floor.min(wants(flow.cycle_ns()));
    Claim {
        wants: wants(flow.cycle_ns() + short).max(least),
        least,
        turn: flow.turn,
        uses: [flow.held_ns(), service(host, flow) + overhead, flow.cost],
        class: flow.class,
    }
}
