//! The queueing model: a network of queues, solved for its mean values by iteration.
//!
//! Approximate mean value analysis (Schweitzer and Bard): a command that arrives at a queue finds the others' average
//! load
//! average, and of its own load all but itself. Times of service are taken as they are: the command in service has half
//! of its own time left on average (Reiser), which for equal times gives Baskett and Smith's rate of units that are hit
//! at random. Where commands wait for a policy's or the drive's choice instead of in a queue, weighted max-min filling
//! says who gets how much.
//!
//! | file | what |
//! | --- | --- |
//! | `work` | what a command asks of each part of the drive |
//! | `drive` | waits in the drive: its queues, controller, units or dies, links, buffer |
//! | `host` | pollers that work in passes; vCPUs |
//! | `rule`, `share` | the policy: turns, weights, what may be in flight |
//! | `lpns` | where the throttle comes to rest |
//! | `evenkeel` | where the cap comes to rest |
//! | `window` | what is in flight where a cap is met |
//! | `tail` | percentiles |
//!
//! Not modelled: reads that suspend programs (they are taken not to wait, and programs not to be delayed), bursts of
//! garbage collection, the published variants of `lpns` and `fair`, `fair`'s moving weights, clients' own priorities.

mod drive;
mod evenkeel;
mod host;
mod lpns;
mod rule;
mod share;
mod tail;
mod window;
mod work;

use policy::{Class, PolicyConfig};
use ssd_model::Profile;

use crate::bound::has_own_pollers;
use crate::{Host, LimitedBy, Load, Site, Tenant};
use evenkeel::Cap;
use host::guest;
use lpns::Throttle;
pub(crate) use lpns::{ceiling, guaranteed_limit};
use share::{CLASSES, Level};
use tail::Part;
pub use tail::Tail;
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
/// A part that is busier than this is what commands wait for.
const BUSY: f64 = 0.9;
/// Part of its limit in flight from which `lpns` takes a guaranteed tenant's misses for its own doing.
const OWN_DOING: f64 = 0.9;
/// A wait that is that part of a command's way is one.
const WAITS: f64 = 0.05;
const SETTLED: f64 = 1e-4;

/// One tenant in the model. Rates per ns, times in ns.
#[derive(Debug, Clone)]
struct Flow {
    /// Commands that may be outstanding.
    population: f64,
    /// An open load's rate.
    rate: Option<f64>,
    /// What it asks for at most; of that, what its own limits let through.
    most: f64,
    limit: f64,
    vcpus: f64,
    works: [Work; 2],
    /// What a command costs under the policy, in reference commands: mean, mean square, least.
    cost: f64,
    cost_square: f64,
    cost_least: f64,
    prices: Vec<Price>,
    /// Commands (or cost) in one turn.
    turn: f64,
    /// Commands per ns that it gets whatever its turns are, and at most.
    floor: f64,
    paced: f64,
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
    /// From the poller's fetch to its reaping: in the mean, and by kind.
    slot_ns: f64,
    slots_ns: [f64; 2],
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

/// Commands of one kind and cost.
#[derive(Debug, Clone, Copy)]
struct Price {
    kind: usize,
    cost: f64,
    /// Of the tenant's commands.
    part: f64,
    /// Whether it goes by itself, with a pause after it.
    is_paced: bool,
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
    /// Mean time of service by station.
    service_ns: [f64; STATIONS],
    parallel: f64,
    hwqs: Vec<Hwq>,
    /// How long the drive takes to fetch once from every queue that has something, where queues must wait.
    round_ns: f64,
    /// By which part it changed in the last step.
    round_moved: f64,
    /// What writes wait for room in the buffer.
    buffer_ns: f64,
    /// How long the buffer takes to make room for one.
    room_ns: f64,
    /// Flash: pages programmed per ns, and a die's time for each.
    pages_rate: f64,
    page: Service,
    /// Flash: what an operation waits for its channel.
    channel_ns: f64,
    page_wait_ns: f64,
    throttle: Option<Throttle>,
    cap: Option<Cap>,
    /// How alike the units' queues are: 1 if every command visits all of them.
    alike: f64,
    /// What makes waits for a unit differ beside their mean: how unequal the times of service are.
    uneven_ns: f64,
}

/// What is not the same in all of a tenant's commands, in one part of their way.
#[derive(Debug, Clone, Copy, Default)]
struct Beyond {
    wait_ns: f64,
    variance: f64,
}

/// What the iteration found for one tenant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Means {
    pub(crate) iops: f64,
    pub(crate) mean_ns: f64,
}

impl<'a> Model<'a> {
    pub(crate) fn new(site: &'a Site, policy: &PolicyConfig, tenants: &[Tenant]) -> Self {
        let Site { profile, host } = site;
        let guaranteed = |tenant: &Tenant| matches!(tenant.class, Class::Guaranteed { .. });
        let own_pollers = has_own_pollers(policy);
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
            service_ns: [0.0; STATIONS],
            parallel: f64::from(profile.units.max(1)),
            hwqs: Vec::new(),
            round_ns: 1e3,
            round_moved: 0.0,
            buffer_ns: 0.0,
            room_ns: 0.0,
            pages_rate: 0.0,
            page: Service::default(),
            channel_ns: 0.0,
            page_wait_ns: 0.0,
            throttle: None,
            cap: None,
            alike: 0.0,
            uneven_ns: 0.0,
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

    /// Iterates until nothing changes any more.
    pub(crate) fn solve(&mut self) {
        for iteration in 0..ITERATIONS {
            let damping = if iteration < 5 { 1.0 } else { 0.5 };
            let change = self.step(damping);
            if iteration > 20 && change < SETTLED {
                break;
            }
        }
        self.fit_into_drive();
    }

    /// Where the iteration did not come to rest, it may promise more than a part of the drive can do: everyone gets
    /// less then, in equal proportion. And a closed loop waits exactly as long as its rate says (Little's law).
    fn fit_into_drive(&mut self) {
        let too_much = self.drive_utilization().max(1.0);
        self.busy.iter_mut().for_each(|busy| *busy /= too_much);
        for flow in &mut self.flows {
            flow.x /= too_much;
            if flow.rate.is_some() {
                continue;
            }
            let latency_ns = (flow.population / flow.x - flow.think_ns).max(1.0);
            let served_ns = flow.cycle_ns() - flow.think_ns;
            flow.policy_ns = (latency_ns - served_ns).max(0.0);
            if served_ns > latency_ns {
                flow.latency_ns.iter_mut().for_each(|ns| *ns *= latency_ns / served_ns);
            }
        }
    }

    fn step(&mut self, damping: f64) -> f64 {
        self.throttle_now();
        self.cap_now();
        self.reckon_pollers();
        self.reckon_drive();
        self.reckon_latency();
        self.take_turns();
        let buffer_ns = self.buffer_ns;
        let change = self.share(damping);
        self.reckon_backlog();
        let buffer_moved = (self.buffer_ns - buffer_ns).abs() / (self.buffer_ns + 1e3);
        let cap_moved = self.cap.as_ref().map_or(0.0, |cap| cap.moved);
        change.max(self.round_moved).max(buffer_moved).max(cap_moved)
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
            flow.slots_ns = flow.inside_ns.map(|inside_ns| flow.slot_ns - drive + inside_ns);
            flow.think_ns = guest.think_ns;
            for kind in [READ, WRITE] {
                let write = if kind == WRITE { host.guest_write_ns } else { 0.0 };
                flow.latency_ns[kind] = outside + write + flow.inside_ns[kind] + flow.window_ns;
            }
            flow.guest = guest.backlog;
            flow.guest_wait_ns = guest.wait_ns;
        }
    }

    /// A tenant asks for no more than that; of what there is not enough of, it gets in proportion to `weight` commands.
    pub(crate) fn ask(&mut self, at: usize, iops: f64, weight: f64) {
        let flow = &mut self.flows[at];
        (flow.most, flow.turn) = (iops / 1e9, weight);
    }

    /// Whether a tenant's commands wait for their turn, and not only in the drive.
    pub(crate) fn waits_for_turn(&self, at: usize) -> bool {
        let flow = &self.flows[at];
        flow.policy_ns > WAITS * flow.cycle_ns()
    }

    pub(crate) fn means(&self, at: usize) -> Means {
        let flow = &self.flows[at];
        let served = flow.works[READ].part * flow.latency_ns[READ] + flow.works[WRITE].part * flow.latency_ns[WRITE];
        Means { iops: flow.x * 1e9, mean_ns: served + flow.policy_ns }
    }

    /// A tenant's latencies.
    pub(crate) fn tail(&self, at: usize) -> Tail {
        let (flow, host) = (&self.flows[at], self.host);
        let guest = Beyond {
            wait_ns: flow.guest_wait_ns + 0.8 * host.guest_complete_ns,
            variance: (host.guest_varies * host.guest_complete_ns).powi(2) + flow.guest_wait_ns.powi(2),
        };
        self.tail_of(at, flow.latency_ns, guest)
    }

    /// The percentiles as the tenant's poller sees them: without the guest's part.
    fn seen_tail(&self, at: usize) -> Tail {
        let flow = &self.flows[at];
        self.tail_of(at, flow.slots_ns, Beyond::default())
    }

    /// `served_ns`: means by kind but for the wait for the policy, of which `guest` is part.
    fn tail_of(&self, at: usize, served_ns: [f64; 2], guest: Beyond) -> Tail {
        let flow = &self.flows[at];
        let pool = &self.pools[flow.pool];
        let polled = 2.0 * (0.4 * pool.busy * pool.pass_ns).powi(2) + 2.0 * (self.host.poller_pass_ns / 4.0).powi(2);
        // Fitted. A closed loop waits for as many turns as it has commands; turns by class are the most regular.
        let one = if pool.class_turns.is_some() { 0.4 } else { 0.7 };
        let turn = if flow.rate.is_none() { (one / flow.population.sqrt()).min(0.5) } else { 0.6 };
        let shared = polled + guest.variance + (turn * flow.policy_ns).powi(2) + (0.1 * flow.window_ns).powi(2);
        let waits = guest.wait_ns + flow.policy_ns + flow.window_ns + 1.5 * pool.busy * pool.pass_ns;
        let part = |kind: usize| {
            let mean_ns = served_ns[kind] + flow.policy_ns;
            let least = mean_ns - waits - flow.inside_waits[kind];
            let variance = shared + flow.inside_variance[kind];
            // Nothing is so regular that it stays near its least.
            let least_ns = least.min(mean_ns - variance.sqrt()).max(0.0);
            Part { part: flow.works[kind].part, least_ns, mean_ns, variance }
        };
        Tail::new([part(READ), part(WRITE)])
    }

    /// What keeps a tenant from getting more.
    pub(crate) fn limited_by(&self, at: usize) -> LimitedBy {
        let flow = &self.flows[at];
        let pool = &self.pools[flow.pool];
        if flow.rate.is_some_and(|rate| flow.x >= rate * 0.999) {
            return LimitedBy::Demand;
        }
        if flow.x >= flow.limit * 0.999 {
            return LimitedBy::Limits;
        }
        if flow.policy_ns > 0.5 * flow.cycle_ns() {
            let by_lpns = self.throttle.as_ref().filter(|throttle| !throttle.guaranteed.is_empty());
            let by_cap = self.cap.as_ref().filter(|cap| cap.is_engaged());
            let held = by_lpns.and_then(|throttle| throttle.pool).or(by_cap.and_then(|cap| cap.pool));
            let throttled = held == Some(flow.pool);
            return match () {
                () if throttled => LimitedBy::Throttle,
                () if pool.busy > BUSY => LimitedBy::Poller,
                () => LimitedBy::Share,
            };
        }
        if flow.think_ns > 0.5 * flow.cycle_ns() {
            return LimitedBy::Guest;
        }
        let waits = flow.window_ns
            + flow.works[READ].part * flow.inside_waits[READ]
            + flow.works[WRITE].part * flow.inside_waits[WRITE];
        if self.drive_utilization() > BUSY || waits > 0.5 * flow.cycle_ns() {
            LimitedBy::Drive
        } else {
            LimitedBy::Demand
        }
    }

    pub(crate) fn drive_utilization(&self) -> f64 {
        self.busy.iter().copied().fold(0.0, f64::max)
    }

    pub(crate) fn poller_utilization(&self) -> f64 {
        self.pools.iter().map(|pool| pool.busy).fold(0.0, f64::max)
    }
}

impl Flow {
    /// A command's way but for its wait for the policy.
    fn cycle_ns(&self) -> f64 {
        let [reads, writes] = self.works.map(|work| work.part);
        self.think_ns + reads * self.latency_ns[READ] + writes * self.latency_ns[WRITE]
    }

    /// The rate at which it would go around in such a time.
    fn asks(&self, cycle_ns: f64) -> f64 {
        let most = (self.population / cycle_ns.max(1.0)).min(self.most);
        self.rate.map_or(most, |rate| rate.min(most))
    }

    /// Whether it has a floor, and would have all of that if nothing took any time.
    fn asks_for_floor(&self) -> bool {
        self.floor > 0.0 && self.asks(1.0) >= self.floor
    }

    /// As far as its pauses let it.
    fn wants(&self, cycle_ns: f64) -> f64 {
        self.asks(cycle_ns).min(self.paced)
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
    // A promise is judged by all that is asked for, not by what limits let through.
    let limit = tenant.most_iops().filter(|_| !tenant.class.is_guaranteed()).map_or(f64::INFINITY, |most| most / 1e9);
    Flow {
        population,
        rate,
        most: limit,
        limit,
        vcpus,
        works: works(profile, tenant),
        cost: 1.0,
        cost_square: 1.0,
        cost_least: 1.0,
        prices: Vec::new(),
        turn: 1.0,
        floor: 0.0,
        paced: f64::INFINITY,
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
        slots_ns: [0.0; 2],
        policy_ns: 0.0,
        window_ns: 0.0,
        window_sum: (0.0, 0.0),
        latency_ns: [0.0; 2],
        think_ns: 0.0,
        guest: [0.0; 2],
        guest_wait_ns: 0.0,
    }
}
