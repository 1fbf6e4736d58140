//! A drive and its tenants in virtual time: `k` servers behind one first-in first-out queue, or with a queue
//! each; closed-loop tenants, one or several pollers. Deterministic, and as simple as can be: it is here to test
//! policies, not drives.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use io_model::{HwqId, Nanos, Op, TenantId, VqId};
use policy::{Class, Next, Policy, TenantReport, TenantSlot, VqSlot};

pub const INTERVAL: Nanos = Nanos::from_millis(10);

/// What a tenant does: every VQ keeps `depth` commands going, each issued `think` after the last one's end.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    pub class: Class,
    pub poller: usize,
    pub vqs: u16,
    pub depth: u32,
    pub len_bytes: u64,
    pub think: Nanos,
}

impl Workload {
    pub fn guaranteed(target_us: u64) -> Self {
        let class = Class::guaranteed(Some(Nanos::from_micros(target_us)));
        Self { class, poller: 0, vqs: 1, depth: 1, len_bytes: 4096, think: Nanos(0) }
    }

    pub fn best_effort(weight: u32, vqs: u16, depth: u32) -> Self {
        Self { class: Class::BestEffort { weight }, vqs, depth, ..Self::guaranteed(0) }
    }

    pub fn at(self, poller: usize) -> Self {
        Self { poller, ..self }
    }

    pub fn with_len(self, len_bytes: u64) -> Self {
        Self { len_bytes, ..self }
    }

    pub fn thinking(self, think: Nanos) -> Self {
        Self { think, ..self }
    }
}

/// What a tenant saw.
#[derive(Debug, Default)]
pub struct Seen {
    pub submitted: u64,
    pub completed: u64,
    pub violations: u64,
    pub latencies_ns: Vec<u64>,
    /// Commands submitted in each interval.
    pub per_interval: Vec<u64>,
    interval_start: (u64, usize),
}

impl Seen {
    pub fn mean_us(&self) -> f64 {
        self.latencies_ns.iter().sum::<u64>() as f64 / self.latencies_ns.len().max(1) as f64 / 1000.0
    }

    pub fn percentile_us(&self, percent: f64) -> f64 {
        let mut sorted = self.latencies_ns.clone();
        sorted.sort_unstable();
        let at = (sorted.len() as f64 * percent / 100.0) as usize;
        sorted.get(at.min(sorted.len().saturating_sub(1))).map_or(0.0, |ns| *ns as f64 / 1000.0)
    }
}

#[derive(Debug, Clone, Copy)]
struct Vq {
    tenant: usize,
    slot: VqSlot,
    backlog: u32,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done { vq: usize, hwq: HwqId, sent: Nanos },
    Arrival { vq: usize },
}

/// `servers` that take `service` for 4 KiB (longer commands in proportion), and a constant `fixed` latency.
pub struct World<P> {
    pub policies: Vec<P>,
    pub seen: Vec<Seen>,
    pub now: Nanos,
    tenants: Vec<Workload>,
    vqs: Vec<Vq>,
    /// By poller: VQ of each slot.
    slots: Vec<Vec<usize>>,
    /// When each server is free.
    servers: Vec<Nanos>,
    /// Each command belongs to one server, as its address says; else the first free one takes it.
    pub hashed: bool,
    service: Nanos,
    fixed: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    next_interval: Nanos,
    asleep: VecDeque<usize>,
}

impl<P: Policy> World<P> {
    /// A drive with the parameters of a P5800X: 6 × 7.2 µs, 11.05 µs when idle.
    pub fn p5800x(policies: Vec<P>, tenants: &[Workload]) -> Self {
        let mut world = Self {
            slots: policies.iter().map(|_| Vec::new()).collect(),
            policies,
            seen: Vec::new(),
            now: Nanos(0),
            tenants: Vec::new(),
            vqs: Vec::new(),
            servers: vec![Nanos(0); 6],
            hashed: false,
            service: Nanos(7_200),
            fixed: Nanos(3_850),
            events: BinaryHeap::new(),
            sequence: 0,
            next_interval: INTERVAL,
            asleep: VecDeque::new(),
        };
        tenants.iter().for_each(|tenant| world.add(*tenant));
        world
    }

    pub fn add(&mut self, tenant: Workload) {
        let id = self.tenants.len();
        self.tenants.push(tenant);
        self.seen.push(Seen::default());
        for index in 0..tenant.vqs {
            let slots = &mut self.slots[tenant.poller];
            let slot = VqSlot(slots.len() as u16);
            slots.push(self.vqs.len());
            let vq = VqId { tenant: TenantId(id as u32), index: index + 1 };
            self.policies[tenant.poller].attach(slot, vq, TenantSlot(id as u16), &tenant.class.into(), self.now);
            for _ in 0..tenant.depth {
                self.post(self.now, Event::Arrival { vq: self.vqs.len() });
            }
            self.vqs.push(Vq { tenant: id, slot, backlog: 0 });
        }
    }

    /// A tenant issues no more commands until `wake`.
    pub fn sleep(&mut self, tenant: usize) {
        self.asleep.push_back(tenant);
    }

    pub fn wake(&mut self, tenant: usize) {
        self.asleep.retain(|asleep| *asleep != tenant);
        for vq in 0..self.vqs.len() {
            if self.vqs[vq].tenant == tenant {
                (0..self.tenants[tenant].depth).for_each(|_| self.post(self.now, Event::Arrival { vq }));
            }
        }
    }

    /// Forgets latencies and counts so far, so that a run-in is not measured.
    pub fn forget(&mut self) {
        for seen in &mut self.seen {
            seen.latencies_ns.clear();
            seen.interval_start.1 = 0;
            seen.per_interval.clear();
        }
    }

    fn post(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    pub fn run(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            let waits = (0..self.policies.len()).map(|poller| self.dispatch(poller)).min().unwrap_or(Nanos::MAX);
            let event = self.events.peek().map_or(Nanos::MAX, |Reverse((at, ..))| *at);
            self.now = waits.min(event).min(self.next_interval).min(end);
            while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
                if let Some(Reverse((_, _, event))) = self.events.pop() {
                    self.handle(event);
                }
            }
            if self.now >= self.next_interval {
                self.end_interval();
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival { vq } => {
                let Vq { tenant, slot, backlog } = &mut self.vqs[vq];
                if self.asleep.contains(tenant) {
                    return;
                }
                *backlog += 1;
                self.policies[self.tenants[*tenant].poller].arrived(*slot, *backlog, self.now);
            }
            Event::Done { vq, hwq, sent } => {
                let Vq { tenant, slot, .. } = self.vqs[vq];
                let load = self.tenants[tenant];
                let latency = self.now - sent;
                let seen = &mut self.seen[tenant];
                seen.completed += 1;
                seen.latencies_ns.push(latency.0);
                if let Some(target) = load.class.latency_target() {
                    seen.violations += u64::from(latency > target);
                }
                let id = TenantSlot(tenant as u16);
                self.policies[load.poller].completed(slot, hwq, id, Op::Read, load.len_bytes, latency, self.now);
                self.post(self.now + load.think, Event::Arrival { vq });
            }
        }
    }

    fn dispatch(&mut self, poller: usize) -> Nanos {
        loop {
            match self.policies[poller].next(self.now) {
                Next::Idle => return Nanos::MAX,
                Next::WaitUntil(at) => {
                    assert!(at > self.now, "a wait until {at:?} at {:?}", self.now);
                    return at;
                }
                Next::Send { vq, hwq } => self.submit(poller, vq, hwq),
            }
        }
    }

    fn submit(&mut self, poller: usize, slot: VqSlot, hwq: HwqId) {
        let at = self.slots[poller][usize::from(slot.0)];
        let vq = &mut self.vqs[at];
        assert!(vq.backlog > 0, "{slot:?} has nothing to send");
        vq.backlog -= 1;
        let load = self.tenants[vq.tenant];
        self.seen[vq.tenant].submitted += 1;
        let service = Nanos(self.service.0 * load.len_bytes.div_ceil(4096).max(1));
        let server = self.server();
        let done = self.servers[server].max(self.now) + service;
        self.servers[server] = done;
        self.post(done + self.fixed, Event::Done { vq: at, hwq, sent: self.now });
        self.policies[poller].sent(slot, hwq, Op::Read, load.len_bytes, self.now);
    }

    fn server(&self) -> usize {
        let servers = self.servers.len();
        if self.hashed {
            // Multiplicative hashing of a running number stands for random addresses.
            return (self.sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % servers;
        }
        (0..servers).min_by_key(|server| self.servers[*server]).unwrap_or(0)
    }

    fn end_interval(&mut self) {
        let reports: Vec<_> = (0..self.tenants.len()).map(|tenant| self.report(tenant)).collect();
        let told: Vec<_> = self.policies.iter_mut().map(Policy::demand).collect();
        let demands: Vec<_> = told.iter().flatten().copied().collect();
        let mut own = 0;
        for (policy, told) in self.policies.iter_mut().zip(told) {
            if told.is_some() {
                policy.demands(&demands, own, self.now);
                own += 1;
            }
            policy.interval(&reports, self.now);
        }
        self.next_interval += INTERVAL;
    }

    fn report(&mut self, tenant: usize) -> TenantReport {
        let seen = &mut self.seen[tenant];
        let last = &seen.latencies_ns[seen.interval_start.1..];
        let mean = last.iter().sum::<u64>().checked_div(last.len() as u64).unwrap_or(0);
        seen.per_interval.push(seen.submitted - seen.interval_start.0);
        seen.interval_start = (seen.submitted, seen.latencies_ns.len());
        TenantReport {
            submitted: seen.submitted,
            completed: seen.completed,
            violations: seen.violations,
            mean_latency: Nanos(mean),
            ..TenantReport::new(TenantId(tenant as u32), self.tenants[tenant].class)
        }
    }
}
