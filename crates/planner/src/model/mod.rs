//! The queueing model: mean values by iteration.

mod lpns;
mod share;
mod tail;
mod work;

use io_model::{Op, QueuePriority};
use policy::{COST_UNIT, Class, Cost, PolicyConfig};
use ssd_model::{Profile, Writes};

use crate::{Host, Load, Site, Tenant};
use lpns::Throttle;
pub(crate) use lpns::{ceiling, guaranteed_limit};
use share::{CLASSES, Claim, Level, fill};
use tail::{Part, percentile_ns};
pub(crate) use work::transfer_ns;
use work::{Service, Work, works};

const READ: usize = 0;
const WRITE: usize = 1;

/// Where commands queue inside of the drive.
const STATIONS: usize = 5;
const CONTROLLER: usize = 0;
const UNITS: usize = 1;
const LINK_READ: usize = 2;
const LINK_WRITE: usize = 3;
const DRAIN: usize = 4;

/// How busy the controller may be before its queues wait for turns.
const CONTROLLER_FULL: f64 = 0.98;
const ITERATIONS: usize = 600;
const SETTLED: f64 = 1e-5;

/// One tenant in the model. Rates per ns, times in ns.
#[derive(Debug, Clone)]
struct Flow {
    /// Commands that may be outstanding.
    population: f64,
    /// An open load's rate.
    rate: Option<f64>,
    vcpus: f64,
    works: [Work; 2],
    /// What a command costs under the policy, in reference commands: mean, mean square, least.
    cost: f64,
    cost_square: f64,
    cost_least: f64,
    /// Each price and which part of the commands has it.
    prices: Vec<(f64, f64)>,
    /// Commands (or cost) in one turn.
    turn: f64,
    class: usize,
    urgent: bool,
    pool: usize,

    /// Commands per ns.
    x: f64,
    /// Backlog that a newcomer finds of this flow's, by station, ns of service.
    own: [f64; STATIONS],
    /// What a newcomer waits, by station.
    waits: [f64; STATIONS],
    /// By kind: from the fetch to the end in the drive.
    inside_ns: [f64; 2],
    /// By kind: variance of that.
    inside_variance: [f64; 2],
    /// By kind: waits in that.
    inside_waits: [f64; 2],
    /// From the poller's fetch to its reaping.
    slot_ns: f64,
    /// Wait for the policy.
    policy_ns: f64,
    /// Wait for room in the drive.
    window_ns: f64,
    window_sum: (f64, f64),
    /// Mean latency by kind.
    latency_ns: [f64; 2],
    /// The part of a closed loop's cycle that no latency counts.
    think_ns: f64,
    /// Backlogs at its vCPU: completions, submissions.
    guest: [f64; 2],
    guest_wait_ns: f64,
}

/// One poller with its policy.
#[derive(Debug, Clone)]
struct Pool {
    members: Vec<usize>,
    hwqs: f64,
    class_turns: Option<[f64; CLASSES]>,
    /// Cost in flight.
    cap: f64,
    /// Cost per ns.
    rate: f64,
    /// Whether a newcomer waits for half a round of turns.
    rounds: bool,
    level: Level,
    urgent_level: Level,
    /// How long it takes until there is room for the next command.
    room_ns: f64,
    /// How busy the poller is, and how long a pass takes that has something to do.
    busy: f64,
    pass_ns: f64,
    work_rate: f64,
    sends_rate: f64,
}

/// One of the drive's queues.
#[derive(Debug, Clone, Default)]
struct Hwq {
    /// Flows and which part of each comes here.
    users: Vec<(usize, f64)>,
    wait_ns: f64,
}

pub(crate) struct Model<'a> {
    profile: &'a Profile,
    host: &'a Host,
    flows: Vec<Flow>,
    pools: Vec<Pool>,
    backlog: [f64; STATIONS],
    /// Utilization by station.
    busy: [f64; STATIONS],
    parallel: f64,
    hwqs: Vec<Hwq>,
    /// How long the drive takes to fetch once from every queue that has something, where queues must wait.
    round_ns: f64,
    /// By which part it changed in the last step.
    round_moved: f64,
    /// What writes wait for room in the buffer.
    buffer_ns: f64,
    /// Flash: pages programmed per ns, and a die's time for each.
    pages_rate: f64,
    page: Service,
    /// Flash: what an operation waits for its channel.
    channel_ns: f64,
    page_wait_ns: f64,
    throttle: Option<Throttle>,
    /// How alike the units' queues are: 1 if every command visits all of them.
    alike: f64,
}

/// What the iteration found for one tenant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means {
    pub(crate) iops: f64,
    pub(crate) mean_ns: f64,
}

impl Flow {
    fn price(&mut self, cost: &Cost, tenant: &Tenant) {
        (self.cost, self.cost_square, self.cost_least) = (0.0, 0.0, f64::INFINITY);
        self.prices.clear();
        for size in &tenant.sizes {
            for (op, part) in [(Op::Read, tenant.read_share), (Op::Write, 1.0 - tenant.read_share)] {
                let one = f64::from(cost.of(op, size.len_bytes)) / f64::from(COST_UNIT);
                let part = part * size.part;
                self.cost += part * one;
                self.cost_square += part * one * one;
                if part > 0.0 {
                    self.cost_least = self.cost_least.min(one);
                    self.prices.push((one, part));
                }
            }
        }
    }
}

fn weight_of(class: Class) -> f64 {
    match class {
        Class::BestEffort { weight } => f64::from(weight),
        Class::Guaranteed { .. } => 1.0,
    }
}

fn class_of(priority: QueuePriority) -> usize {
    match priority {
        QueuePriority::Urgent | QueuePriority::High => 0,
        QueuePriority::Medium => 1,
        QueuePriority::Low => 2,
    }
}

impl<'a> Model<'a> {
    pub(crate) fn new(site: &'a Site, policy: &PolicyConfig, tenants: &[Tenant]) -> Self {
        let Site { profile, host } = site;
        let guaranteed = |tenant: &Tenant| matches!(tenant.class, Class::Guaranteed { .. });
        let own_pollers = matches!(policy, PolicyConfig::Passthrough | PolicyConfig::Lpns(_));
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut shared = Vec::new();
        for (at, tenant) in tenants.iter().enumerate() {
            if own_pollers && guaranteed(tenant) { groups.push(vec![at]) } else { shared.push(at) }
        }
        if !shared.is_empty() {
            groups.push(shared);
        }
        let mut flows: Vec<Flow> = tenants.iter().map(|tenant| flow(profile, tenant)).collect();
        let mut pools = Vec::new();
        for members in groups {
            for &at in &members {
                flows[at].pool = pools.len();
            }
            let hwqs = if members.len() == 1 { host.hwqs_own } else { host.hwqs_shared };
            pools.push(Pool {
                members,
                hwqs: f64::from(hwqs.max(1)),
                class_turns: None,
                cap: f64::INFINITY,
                rate: f64::INFINITY,
                rounds: true,
                level: Level::ALL,
                urgent_level: Level::ALL,
                room_ns: 0.0,
                busy: 0.0,
                pass_ns: 0.0,
                work_rate: 0.0,
                sends_rate: 0.0,
            });
        }
        let mut model = Self {
            profile,
            host,
            flows,
            pools,
            backlog: [0.0; STATIONS],
            busy: [0.0; STATIONS],
            parallel: f64::from(profile.units.max(1)),
            hwqs: Vec::new(),
            round_ns: 1e3,
            round_moved: 0.0,
            buffer_ns: 0.0,
            pages_rate: 0.0,
            page: Service::default(),
            channel_ns: 0.0,
            page_wait_ns: 0.0,
            throttle: None,
            alike: 0.0,
        };
        model.bind();
        model.apply(policy, tenants);
        model
    }

    /// Spreads each poller's queues over its HWQs.
    fn bind(&mut self) {
        for pool in &self.pools {
            let first = self.hwqs.len();
            let count = pool.hwqs as usize;
            self.hwqs.resize(first + count, Hwq::default());
            let mut next = 0;
            for &at in &pool.members {
                let vqs = self.flows[at].vcpus as usize;
                for _ in 0..vqs {
                    self.hwqs[first + next % count].users.push((at, 1.0 / vqs as f64));
                    next += 1;
                }
            }
        }
    }

    fn apply(&mut self, policy: &PolicyConfig, tenants: &[Tenant]) {
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
                    flow.turn = weight_of(tenant.class) / flow.cost;
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
                    flow.turn = weight_of(tenant.class) / flow.cost;
                }
                self.pools.iter_mut().for_each(|pool| pool.rounds = false);
                self.throttle = Throttle::new(config, tenants, &self.pools);
                self.throttle_now();
            }
            _ => {}
        }
    }

    /// Iterates until nothing changes any more.
    pub(crate) fn solve(&mut self) {
        for iteration in 0..ITERATIONS {
            let damping = if iteration < 5 { 1.0 } else { 0.5 };
            let change = self.step(damping);
            if iteration > 20 && change < SETTLED {
                break;
            }
        }
    }

    /// Moves what best effort may have in flight as the promises fare.
    fn throttle_now(&mut self) {
        let Some(mut throttle) = self.throttle.take() else { return };
        let missed =
            throttle.targets.iter().any(|&(at, target_ns)| self.percentile_ns(at, throttle.may_miss) > target_ns);
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

    fn step(&mut self, damping: f64) -> f64 {
        self.throttle_now();
        self.reckon_pollers();
        self.reckon_drive();
        self.reckon_latency();
        self.take_turns();
        let buffer_ns = self.buffer_ns;
        let change = self.share(damping);
        self.reckon_backlog();
        let buffer_moved = (self.buffer_ns - buffer_ns).abs() / (self.buffer_ns + 1e3);
        change.max(self.round_moved).max(buffer_moved)
    }

    /// How busy pollers are and how long their passes take.
    fn reckon_pollers(&mut self) {
        let host = self.host;
        for pool in &mut self.pools {
            let (mut work, mut jobs, mut sends) = (0.0, 0.0, 0.0);
            for &at in &pool.members {
                let flow = &self.flows[at];
                work += flow.x * service(host, flow);
                jobs += 2.0 * flow.x;
                sends += flow.x;
            }
            pool.work_rate = work;
            pool.sends_rate = sends;
            let batch = f64::from(host.poller_batch);
            let per_command = if sends > 0.0 { work / sends } else { 0.0 };
            let longest = host.poller_pass_ns + host.poller_doorbell_ns * pool.hwqs.min(batch) + batch * per_command;
            let mean_job = if jobs > 0.0 { work / jobs } else { 0.0 };
            let (mut busy, mut pass) = (work.min(1.0), host.poller_pass_ns + mean_job);
            for _ in 0..20 {
                let sent = 0.5 + sends * busy * pass;
                let doorbells = host.poller_doorbell_ns * touched(pool.hwqs, sent);
                let fixed = host.poller_pass_ns + doorbells;
                pass = (fixed + mean_job + busy * work.min(1.0) * pass).min(longest);
                let jobs_in_pass = 1.0 + jobs * busy * pass;
                let target = (jobs / jobs_in_pass * pass).min(1.0);
                busy = 0.5 * (busy + target);
            }
            pool.busy = busy;
            pool.pass_ns = pass;
        }
    }

    /// From a job's arrival at its poller until the pass that does it has done all of its work.
    fn visit_ns(&self, flow: &Flow, own_ns: f64) -> f64 {
        let (pool, host) = (&self.pools[flow.pool], self.host);
        let own = if pool.sends_rate > 0.0 { flow.x / flow.population / pool.sends_rate } else { 1.0 };
        let others = (1.0 - own).max(0.0);
        let busy = pool.busy * others;
        let start = (1.0 - busy) * host.poller_pass_ns / 2.0 + busy * pool.pass_ns / 2.0;
        start + own_ns + busy * pool.work_rate.min(1.0) * others * pool.pass_ns
    }

    /// What newcomers wait at each station.
    fn reckon_drive(&mut self) {
        let controller_ns = self.profile.controller_ns as f64;
        let crowd: f64 = self.flows.iter().map(|flow| flow.x * flow.slot_ns).sum();
        for at in 0..self.flows.len() {
            let flow = &self.flows[at];
            let pool = &self.pools[flow.pool];
            let inside = (flow.x * flow.slot_ns).max(1.0).min(flow.population);
            let _ = inside;
            let capped = pool.level != Level::ALL;
            let waits = std::array::from_fn(|s| {
                let own = flow.own[s] / flow.population;
                let own = if capped { own.max(self.backlog[s] / crowd.max(1.0)) } else { own };
                (self.backlog[s] - own).max(0.0)
            });
            let sent = pool.sends_rate * pool.busy * pool.pass_ns;
            let burst = (sent / 2.0).min(f64::from(self.host.poller_batch) / 2.0);
            let flow = &mut self.flows[at];
            flow.waits = waits;
            flow.waits[CONTROLLER] += burst * controller_ns;
            for kind in [READ, WRITE] {
                let work = &flow.works[kind];
                let link_at = if kind == READ { LINK_READ } else { LINK_WRITE };
                let link = flow.waits[link_at];
                let mut wait = flow.waits[CONTROLLER];
                let mut service = controller_ns + work.delay_ns;
                let mut variance = spread(wait, self.busy[CONTROLLER]) + spread(link, self.busy[link_at]);
                variance += work.link.variance() * 1.0;
                if work.pieces > 0.0 {
                    let fan =
                        Fan::new(work, self.channel_ns, self.parallel, flow.waits[UNITS], self.busy[UNITS], self.alike);
                    service += fan.service_ns;
                    wait += fan.wait_ns;
                    let left = (link + work.link.mean_ns - work.lead_ns - fan.spread_ns).max(0.0);
                    wait += left.min(link);
                    service += (left - link).max(0.0);
                    variance += (flow.waits[UNITS] / self.busy[UNITS].clamp(0.05, 1.0)).powi(2) + work.piece.variance();
                } else {
                    wait += link + self.buffer_ns;
                    service += work.link.mean_ns;
                    variance += (0.2 * self.buffer_ns).powi(2);
                }
                flow.inside_ns[kind] = wait + service;
                flow.inside_waits[kind] = wait;
                flow.inside_variance[kind] = variance;
            }
        }
    }

    /// Latencies and what a closed loop does between them.
    fn reckon_latency(&mut self) {
        let host = self.host;
        for at in 0..self.flows.len() {
            let flow = &self.flows[at];
            let [reads, writes] = flow.works.map(|work| work.part);
            let fetch = host.poller_fetch_ns + host.poller_write_ns * writes + host.poller_doorbell_ns;
            let submit_visit = self.visit_ns(flow, fetch);
            let complete_visit = self.visit_ns(flow, host.poller_complete_ns + host.poller_interrupt_ns);
            let guest = guest(host, flow);
            let drive: f64 = reads * flow.inside_ns[READ] + writes * flow.inside_ns[WRITE];
            let pool = &self.pools[flow.pool];
            // A slot is taken when its command is fetched, and free when the poller has seen the end.
            let slot = (submit_visit - pool.busy * pool.pass_ns / 2.0).max(fetch)
                + drive
                + (1.0 - pool.busy) * host.poller_pass_ns / 2.0
                + pool.busy * pool.pass_ns / 2.0;
            let outside = submit_visit + complete_visit + host.delay_ns + guest.latency_ns;
            let flow = &mut self.flows[at];
            flow.slot_ns = slot + flow.window_ns;
            flow.think_ns = guest.think_ns;
            for kind in [READ, WRITE] {
                let write = if kind == WRITE { host.guest_write_ns } else { 0.0 };
                flow.latency_ns[kind] = outside + write + flow.inside_ns[kind] + flow.window_ns;
            }
            flow.guest = guest.backlog;
            flow.guest_wait_ns = guest.wait_ns;
        }
    }

    /// How long commands wait in the drive's queues for their turn, when its window is full or its controller busy. Every
    /// queue has its turn in every round, and is first in, first out.
    fn take_turns(&mut self) {
        let window = f64::from(self.profile.window.max(1));
        let drive =
            |flow: &Flow| flow.works[READ].part * flow.inside_ns[READ] + flow.works[WRITE].part * flow.inside_ns[WRITE];
        let inside: f64 = self.flows.iter().map(|flow| flow.x * drive(flow)).sum();
        let full = (inside / window).max(self.busy[CONTROLLER] / CONTROLLER_FULL);
        let least = self.profile.controller_ns.max(100) as f64;
        let round_ns = self.round_ns;
        self.round_ns = (self.round_ns * (0.12 * (full - 1.0).clamp(-1.0, 1.0)).exp()).clamp(least, 1e10);
        self.round_moved = (self.round_ns / round_ns - 1.0).abs();
        if self.round_ns <= least * 1.01 {
            self.flows.iter_mut().for_each(|flow| flow.window_ns *= 0.5);
            self.hwqs.iter_mut().for_each(|hwq| hwq.wait_ns *= 0.5);
            return;
        }
        let free = |flow: &Flow| flow.cycle_ns() - flow.window_ns + flow.policy_ns;
        for hwq in &mut self.hwqs {
            let (mut rate, mut slope) = (0.0, 0.0);
            for &(at, part) in &hwq.users {
                let flow = &self.flows[at];
                let cycle = free(flow) + hwq.wait_ns;
                let x = part * flow.wants(cycle);
                rate += x;
                slope += x / cycle;
            }
            let too_many = rate * self.round_ns - 1.0;
            if slope > 0.0 {
                hwq.wait_ns += 0.7 * too_many.clamp(-0.9, 2.0) * rate / slope;
            }
            hwq.wait_ns = hwq.wait_ns.max(self.round_ns / 2.0);
        }
        for flow in &mut self.flows {
            flow.window_sum = (0.0, 0.0);
        }
        for hwq in &self.hwqs {
            for &(at, part) in &hwq.users {
                let flow = &mut self.flows[at];
                let x = part * flow.wants(free(flow) + hwq.wait_ns);
                flow.window_sum.0 += x * hwq.wait_ns;
                flow.window_sum.1 += x;
            }
        }
        for flow in &mut self.flows {
            let (sum, x) = flow.window_sum;
            let wait = if x > 0.0 { sum / x } else { 0.0 };
            flow.window_ns = 0.5 * (flow.window_ns + wait);
        }
    }

    /// Everyone's rate, by the policy.
    fn share(&mut self, damping: f64) -> f64 {
        let mut change = 0.0_f64;
        for pool in &mut self.pools {
            let (mut urgent, mut others) = (Vec::new(), Vec::new());
            for &at in &pool.members {
                let flow = &self.flows[at];
                let list = if flow.urgent { &mut urgent } else { &mut others };
                list.push((at, claim(self.host, pool, flow)));
            }
            let mut has = [in_flight_at_cap(pool, &self.flows), 1.0, pool.rate];
            let first = fill_all(&urgent, None, &has);
            for (_, claim) in &urgent {
                let rate = first.rate(claim);
                for (has, uses) in has.iter_mut().zip(claim.uses) {
                    *has = (*has - rate * uses).max(1e-6);
                }
            }
            let level = fill_all(&others, pool.class_turns, &has);
            let at_cap = pool.members.iter().map(|&at| &self.flows[at]).fold((0.0, 0.0), |sum, flow| {
                (sum.0 + flow.x * flow.cost, sum.1 + flow.x * flow.cost_square)
            });
            pool.room_ns = if at_cap.0 > 0.0 { at_cap.1 / at_cap.0 / 2.0 / at_cap.0 } else { 0.0 };
            pool.level = level;
            pool.urgent_level = first;
            let of = |claims: Vec<(usize, Claim)>, level: Level| {
                claims.into_iter().map(move |(at, claim)| (at, claim, level))
            };
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

    /// What newcomers find at the stations now.
    fn reckon_backlog(&mut self) {
        self.reckon_pages();
        let controller = Service::fixed(self.profile.controller_ns as f64);
        let channel_ns = self.channel_ns;
        let mut pieces = (0.0, 0.0);
        self.busy = [0.0; STATIONS];
        for flow in &mut self.flows {
            flow.own = [0.0; STATIONS];
            let mut queue = |s: usize, visits: f64, wait: f64, service: Service| {
                flow.own[s] += flow.x * visits * (wait * service.mean_ns + service.square / 2.0);
                self.busy[s] += flow.x * visits * service.mean_ns;
            };
            for (kind, work) in flow.works.iter().enumerate() {
                queue(CONTROLLER, work.part, flow.waits[CONTROLLER], controller);
                let link = if kind == READ { LINK_READ } else { LINK_WRITE };
                queue(link, work.part, flow.waits[link], work.link);
                if work.pieces > 0.0 {
                    let visits = work.part * work.pieces / self.parallel;
                    let piece = work.piece.after(channel_ns);
                    queue(UNITS, visits, flow.waits[UNITS], piece);
                    let load = flow.x * visits * piece.mean_ns;
                    pieces.0 += load;
                    pieces.1 += load * ((work.pieces - 1.0) / (self.parallel - 1.0).max(1.0)).min(1.0);
                }
            }
        }
        self.alike = if pieces.0 > 0.0 { pieces.1 / pieces.0 } else { 0.0 };
        for s in 0..STATIONS {
            self.backlog[s] = self.flows.iter().map(|flow| flow.own[s]).sum();
        }
        if let Writes::Programmed { nand, .. } = self.profile.writes {
            let visits = self.pages_rate / self.parallel;
            self.busy[UNITS] += visits * self.page.mean_ns;
            // Pages go to the dies in turn: a die has a second one only when there are more than dies.
            let queued = (visits * (self.page_wait_ns + self.page.mean_ns) - 1.0).max(0.0);
            let wait = self.backlog[UNITS] + queued * self.page.mean_ns;
            self.page_wait_ns = 0.5 * (self.page_wait_ns + wait);
            if nand.reads_wait_for_programs {
                self.backlog[UNITS] += visits * (wait * self.page.mean_ns + self.page.square / 2.0);
            }
        }
        self.move_buffer_wait();
    }

    /// Flash: how many pages are programmed, and what that takes.
    fn reckon_pages(&mut self) {
        let Writes::Programmed { nand, .. } = self.profile.writes else { return };
        let transfer = transfer_ns(nand.channel_mb_s, nand.page_bytes);
        let bytes: f64 = self.flows.iter().map(|f| f.x * f.works[WRITE].part * f.works[WRITE].room_bytes).sum();
        self.pages_rate = bytes / nand.page_bytes as f64;
        // The other dies of the channel.
        let others = (self.parallel / f64::from(nand.channels.max(1)) - 1.0).max(0.0) / self.parallel;
        let mut wait = self.pages_rate * others * transfer * transfer / 2.0;
        for flow in &self.flows {
            for work in &flow.works {
                wait += flow.x * work.part * work.pieces * others * work.channel.square / 2.0;
            }
        }
        self.channel_ns = wait;
        let program = nand.program_ns as f64 + transfer + wait;
        let amplification = work::amplification(self.profile);
        let sense = self.profile.read_ns as f64
            + (nand.page_bytes.div_ceil(4096).max(1) - 1) as f64 * self.profile.further_ns as f64;
        let copies = (amplification - 1.0) * (program + sense + transfer);
        let erases = if amplification > 1.0 {
            amplification * nand.erase_ns as f64 / f64::from(nand.pages_per_block.max(1))
        } else {
            0.0
        };
        self.page = Service::fixed(program).after(copies + erases);
    }

    /// Lets writes wait for room in the buffer just so long that it takes no more than it gives on.
    fn move_buffer_wait(&mut self) {
        let full = match self.profile.writes {
            Writes::InPlace { .. } => return,
            Writes::Buffered { .. } => {
                self.flows.iter().map(|flow| flow.x * flow.works[WRITE].part * flow.works[WRITE].drain.mean_ns).sum()
            }
            Writes::Programmed { buffer_bytes, nand, .. } => {
                let pages = (buffer_bytes / nand.page_bytes.max(1)).max(1) as f64;
                self.pages_rate * (self.page_wait_ns + self.page.mean_ns) / pages
            }
        };
        self.busy[DRAIN] = full;
        // How much longer a writer's round gets for each ns of waiting.
        let (mut rounds, mut writes) = (0.0, 0.0);
        for flow in &self.flows {
            let work = &flow.works[WRITE];
            let takes = flow.x * work.part * work.room_bytes;
            let held = self.pools[flow.pool].level != Level::ALL;
            let round = if held { flow.slot_ns } else { flow.cycle_ns() };
            rounds += takes * round / work.part.max(0.01);
            writes += takes;
        }
        if writes > 0.0 {
            let step = 0.15 * (full - 1.0).clamp(-0.5, 1.0) * rounds / writes;
            self.buffer_ns = (self.buffer_ns + step).max(0.0);
        }
    }

    pub(crate) fn means(&self, at: usize) -> Means {
        let flow = &self.flows[at];
        let served = flow.works[READ].part * flow.latency_ns[READ] + flow.works[WRITE].part * flow.latency_ns[WRITE];
        Means { iops: flow.x * 1e9, mean_ns: served + flow.policy_ns }
    }

    /// What all but `above` of a tenant's commands stay below.
    pub(crate) fn percentile_ns(&self, at: usize, above: f64) -> f64 {
        let flow = &self.flows[at];
        let pool = &self.pools[flow.pool];
        let host = self.host;
        let polled = 2.0 * (0.4 * pool.busy * pool.pass_ns).powi(2) + 2.0 * (host.poller_pass_ns / 4.0).powi(2);
        let guest = (host.guest_varies * host.guest_complete_ns).powi(2) + flow.guest_wait_ns.powi(2);
        let turn = if flow.rate.is_none() { 0.15 } else { 0.6 };
        let shared = polled + guest + (turn * flow.policy_ns).powi(2) + (0.3 * flow.window_ns).powi(2);
        let waits = flow.guest_wait_ns + flow.policy_ns + flow.window_ns + 1.5 * pool.busy * pool.pass_ns;
        let part = |kind: usize| {
            let mean_ns = flow.latency_ns[kind] + flow.policy_ns;
            let least = mean_ns - waits - flow.inside_waits[kind] - 0.8 * host.guest_complete_ns;
            let variance = shared + flow.inside_variance[kind];
            // Nothing is so regular that it stays near its least.
            let least_ns = least.min(mean_ns - variance.sqrt()).max(0.0);
            Part { part: flow.works[kind].part, least_ns, mean_ns, variance }
        };
        percentile_ns(&[part(READ), part(WRITE)], above)
    }

    pub(crate) fn drive_utilization(&self) -> f64 {
        self.busy.iter().copied().fold(0.0, f64::max)
    }

    pub(crate) fn poller_utilization(&self) -> f64 {
        self.pools.iter().map(|pool| pool.busy).fold(0.0, f64::max)
    }
}

/// Variance of a wait that only the part `busy` of all commands has, exponentially distributed.
fn spread(wait: f64, busy: f64) -> f64 {
    let busy = busy.clamp(0.1, 1.0);
    wait * wait * (2.0 - busy) / busy
}

/// How a command's pieces end.
struct Fan {
    service_ns: f64,
    wait_ns: f64,
    /// Between the first end and the last.
    spread_ns: f64,
}

impl Fan {
    fn new(work: &Work, channel_ns: f64, parallel: f64, wait: f64, busy: f64, alike: f64) -> Self {
        let side_by_side = work.pieces.min(parallel).max(1.0);
        let service = (work.piece.mean_ns + channel_ns) * work.pieces / side_by_side;
        let busy = busy.clamp(1e-9, 1.0);
        let free = 1.0 + (side_by_side - 1.0) * (1.0 - alike);
        let theta = wait / busy;
        let whole = free.floor();
        let harmonic =
            |count: f64| (1..=count as u32).map(|j| (1.0 - (1.0 - busy).powi(j as i32)) / f64::from(j)).sum::<f64>();
        let low = harmonic(whole);
        let high = low + (1.0 - (1.0 - busy).powi(whole as i32 + 1)) / (whole + 1.0);
        let slowest = theta * (low + (free - whole) * (high - low));
        let quickest = theta * busy.powf(free) / free;
        Self { service_ns: service, wait_ns: slowest, spread_ns: (slowest - quickest).max(0.0) }
    }
}

/// The poller's time for a command.
fn service(host: &Host, flow: &Flow) -> f64 {
    host.poller_fetch_ns
        + host.poller_write_ns * flow.works[WRITE].part
        + host.poller_complete_ns
        + host.poller_interrupt_ns
}

/// HWQs that so many sends touch.
fn touched(hwqs: f64, sends: f64) -> f64 {
    hwqs * (1.0 - (1.0 - 1.0 / hwqs).powf(sends))
}

struct GuestTimes {
    latency_ns: f64,
    wait_ns: f64,
    think_ns: f64,
    backlog: [f64; 2],
}

/// A vCPU: completions first, then submissions.
fn guest(host: &Host, flow: &Flow) -> GuestTimes {
    let writes = flow.works[WRITE].part;
    let varying = |ns: f64| (ns * host.guest_varies).powi(2);
    let submit = host.guest_app_ns + host.guest_submit_ns + host.guest_write_ns * writes;
    let submit_square = submit * submit + varying(host.guest_app_ns);
    let complete = host.guest_complete_ns;
    let complete_square = complete * complete + varying(complete);
    let x = flow.x / flow.vcpus;
    let irq = host.guest_irq_ns * (1.0 - x * complete).clamp(0.0, 1.0);
    let complete = complete + irq;
    let own = if flow.rate.is_some() { 1.0 } else { (1.0 - flow.vcpus / flow.population).max(0.0) };
    let [complete_backlog, submit_backlog] = flow.guest;
    let complete_wait = own * (complete_backlog + x * submit_square / 2.0);
    let submit_wait = own * (complete_backlog + submit_backlog) / (1.0 - own * x * complete).max(0.05);
    let backlog =
        [x * (complete_wait * complete + complete_square / 2.0), x * (submit_wait * submit + submit_square / 2.0)];
    let done = complete_wait + complete;
    match flow.rate {
        None => GuestTimes {
            wait_ns: complete_wait,
            latency_ns: host.guest_submit_ns + done,
            think_ns: submit_wait + host.guest_app_ns,
            backlog,
        },
        Some(_) => GuestTimes {
            wait_ns: complete_wait + submit_wait + host.guest_app_ns,
            latency_ns: submit_wait + host.guest_app_ns + host.guest_submit_ns + done,
            think_ns: 0.0,
            backlog,
        },
    }
}

/// What a flow that is not held back waits for its turn: half of the time between two of its turns, longer if it
/// sometimes needs several. A closed loop that is back before its next turn always waits for that: it goes around with the turns.
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

/// What is in flight on average when the cap is reached: the last command may overdraw it.
fn in_flight_at_cap(pool: &Pool, flows: &[Flow]) -> f64 {
    let (mut slots, mut held, mut cost, mut square, mut least) = (0.0, 0.0, 0.0, 0.0, f64::INFINITY);
    for flow in pool.members.iter().map(|&at| &flows[at]) {
        slots += flow.x * flow.slot_ns;
        held += flow.x * flow.slot_ns * flow.cost;
        cost += flow.x * flow.cost;
        square += flow.x * flow.cost_square;
        least = f64::min(least, flow.cost_least);
    }
    if cost <= 0.0 || !pool.cap.is_finite() {
        return pool.cap;
    }
    let seen = square / cost;
    // Wide: the excess is half of a command as the cap meets it. Narrow: one command at a time.
    let wide = pool.cap + if pool.rounds { 0.0 } else { mixed(pool, flows, cost) * ((seen - least) / 2.0).max(0.0) };
    let narrow = (held / slots).max(pool.cap);
    let width = ((pool.cap - least) / (seen - least).max(1e-3)).clamp(0.0, 1.0);
    narrow + (wide - narrow) * width
}

/// Where the cap holds a whole number of the dearest commands, these alone never overdraw it: which part of what is in
/// flight is not among them, twice over. 1 for other caps.
fn mixed(pool: &Pool, flows: &[Flow], cost: f64) -> f64 {
    let members = || pool.members.iter().map(|&at| &flows[at]);
    let dearest = members().flat_map(|flow| &flow.prices).map(|price| price.0).fold(0.0, f64::max);
    if dearest <= 0.0 || (pool.cap / dearest).fract() > 1e-9 {
        return 1.0;
    }
    let by_dearest = |flow: &Flow| {
        let prices = flow.prices.iter().filter(|price| price.0 == dearest);
        flow.x * prices.map(|price| price.0 * price.1).sum::<f64>()
    };
    let part = members().map(by_dearest).sum::<f64>() / cost;
    1.0 - part * part
}

fn fill_all(claims: &[(usize, Claim)], turns: Option<[f64; CLASSES]>, has: &[f64; share::RESOURCES]) -> Level {
    fill(&claims.iter().map(|claim| claim.1).collect::<Vec<_>>(), turns, has)
}

fn claim(host: &Host, pool: &Pool, flow: &Flow) -> Claim {
    let batch = f64::from(host.poller_batch);
    let overhead = (host.poller_pass_ns + host.poller_doorbell_ns * pool.hwqs.min(batch)) / batch;
    let short = short_wait(pool, flow, pool.level);
    Claim {
        wants: flow.wants(flow.cycle_ns() + short),
        turn: flow.turn,
        uses: [flow.cost * flow.slot_ns, service(host, flow) + overhead, flow.cost],
        class: flow.class,
    }
}

impl Flow {
    /// A command's way but for its wait for the policy.
    fn cycle_ns(&self) -> f64 {
        let [reads, writes] = self.works.map(|work| work.part);
        self.think_ns + reads * self.latency_ns[READ] + writes * self.latency_ns[WRITE]
    }

    /// The rate at which it would go around in such a time.
    fn wants(&self, cycle_ns: f64) -> f64 {
        let most = self.population / cycle_ns.max(1.0);
        self.rate.map_or(most, |rate| rate.min(most))
    }
}

/// Commands that an open load may have outstanding on each vCPU.
const OPEN_OUTSTANDING: f64 = 4096.0;

fn flow(profile: &Profile, tenant: &Tenant) -> Flow {
    let vcpus = f64::from(tenant.vcpus.max(1));
    let (population, rate, vcpus) = match tenant.load {
        Load::Closed { depth } => (f64::from(depth), None, vcpus.min(f64::from(depth))),
        Load::Open { rate_iops } => (OPEN_OUTSTANDING * vcpus, Some(rate_iops / 1e9), vcpus),
    };
    Flow {
        population,
        rate,
        vcpus,
        works: works(profile, tenant),
        cost: 1.0,
        cost_square: 1.0,
        cost_least: 1.0,
        prices: Vec::new(),
        turn: 1.0,
        class: 0,
        urgent: false,
        pool: 0,
        x: rate.unwrap_or(population / 1e5).min(population / 1e5),
        own: [0.0; STATIONS],
        waits: [0.0; STATIONS],
        inside_ns: [0.0; 2],
        inside_variance: [0.0; 2],
        inside_waits: [0.0; 2],
        slot_ns: 0.0,
        policy_ns: 0.0,
        window_ns: 0.0,
        window_sum: (0.0, 0.0),
        latency_ns: [0.0; 2],
        think_ns: 0.0,
        guest: [0.0; 2],
        guest_wait_ns: 0.0,
    }
}
