//! Random legal calls to any policy, driven by events as a poller in virtual time is; tenants' terms change, tenants
//! leave, and others take their slots. A seed decides everything, and every failure names it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use fastrand::Rng;
use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId};
use policy::{
    Class, Floor, Limits, Next, Policy, PollerShape, TenantPriority, TenantReport, TenantSlot, Terms, VqSlot,
};

pub const SEEDS: u64 = 60;
const STEPS: u32 = 3_000;
const SLOTS: u64 = 20;
const TENANTS: u64 = 6;
const INTERVAL: Nanos = Nanos::from_millis(10);

/// Any limits and any priority but urgent, which may starve the others.
fn terms(class: Class, random: &mut Rng) -> Terms {
    let mut limit = |least, most| if random.u64(..2) == 0 { 0 } else { u64::from(random.u32(least..=most)) };
    let limits = Limits {
        rw_ios_per_sec: limit(20, 50_000),
        rw_mbytes_per_sec: limit(1, 1_000),
        r_mbytes_per_sec: limit(1, 1_000),
        w_mbytes_per_sec: limit(1, 1_000),
        r_ios_per_sec: limit(20, 50_000),
        w_ios_per_sec: limit(20, 50_000),
        burst: Nanos(limit(1, 50_000_000)),
    };
    let floor = Floor { ios_per_sec: limit(1, 20_000), mbytes_per_sec: limit(1, 100) };
    let priority = match random.u64(..4) {
        0 => TenantPriority::Fixed(QueuePriority::High),
        1 => TenantPriority::Fixed(QueuePriority::Medium),
        2 => TenantPriority::Fixed(QueuePriority::Low),
        _ => TenantPriority::OfQueue,
    };
    Terms { class, limits, floor, priority, pollers: 1, group: None }
}

fn class(random: &mut Rng) -> Class {
    match random.u64(..6) {
        0 => Class::guaranteed(None),
        1 => Class::guaranteed(Some(Nanos::from_micros(random.u32(20..=400).into()))),
        _ => Class::BestEffort { weight: random.u32(1..=8) },
    }
}

#[derive(Debug, Clone, Copy)]
struct Vq {
    tenant: TenantSlot,
    backlog: u32,
    served: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    done: Nanos,
    slot: VqSlot,
    hwq: HwqId,
    tenant: TenantSlot,
    read: bool,
    len_bytes: u64,
    sent: Nanos,
}

/// What a poller, its tenants and its drive know.
pub struct World<P> {
    random: Rng,
    policy: P,
    shape: PollerShape,
    /// Commands that may be with the drive.
    most_in_flight: usize,
    now: Nanos,
    next_interval: Nanos,
    vqs: BTreeMap<VqSlot, Vq>,
    flights: BinaryHeap<Reverse<Flight>>,
    in_flight: Vec<u32>,
    /// By the tenant's slot.
    reports: Vec<TenantReport>,
    terms: Vec<Terms>,
    tenants_so_far: u32,
    /// Reads of this length alone; else of any, and writes.
    len_bytes: Option<u64>,
    /// The random poller sometimes refuses.
    refuses: bool,
}

impl<P: Policy> World<P> {
    /// A poller of random shape. `build`: its policy, and how many commands may be with the drive.
    pub fn new(seed: u64, guaranteed: u64, build: impl FnOnce(&mut Rng, &PollerShape) -> (P, usize)) -> Self {
        let mut random = Rng::with_seed(seed);
        let (hwqs, hwq_depth) = (random.u32(3..=7) as u16, random.u32(1..=12));
        let shape = PollerShape { hwqs, hwq_depth, guaranteed_vqs: 2, weighted: random.bool() };
        Self::at(shape, random, guaranteed, build)
    }

    fn at(
        shape: PollerShape,
        mut random: Rng,
        guaranteed: u64,
        build: impl FnOnce(&mut Rng, &PollerShape) -> (P, usize),
    ) -> Self {
        let (policy, most_in_flight) = build(&mut random, &shape);
        let classes = (0..TENANTS).map(|tenant| match tenant {
            0 if guaranteed > 0 => Class::guaranteed(Some(Nanos::from_micros(40))),
            _ if tenant < guaranteed => Class::guaranteed(None),
            _ => Class::BestEffort { weight: random.u32(1..=8) },
        });
        let classes: Vec<_> = classes.collect();
        let terms: Vec<_> = classes.into_iter().map(|class| terms(class, &mut random)).collect();
        let reports = (0..).zip(&terms).map(|(id, terms)| report(TenantId(id), terms.class)).collect();
        Self {
            random,
            policy,
            shape,
            most_in_flight,
            now: Nanos(0),
            next_interval: INTERVAL,
            vqs: BTreeMap::new(),
            flights: BinaryHeap::new(),
            in_flight: vec![0; usize::from(shape.hwqs)],
            reports,
            terms,
            tenants_so_far: TENANTS as u32,
            len_bytes: None,
            refuses: true,
        }
    }

    fn slot(&mut self) -> VqSlot {
        VqSlot(self.random.u64(..SLOTS) as u16)
    }

    fn tenant(&mut self) -> TenantSlot {
        TenantSlot(self.random.u64(..TENANTS) as u16)
    }

    fn attach(&mut self, slot: VqSlot, tenant: TenantSlot) {
        let at = usize::from(tenant.0);
        let vq = VqId { tenant: self.reports[at].tenant, index: slot.0 + 1 };
        self.policy.attach(slot, vq, tenant, &self.terms[at], self.now);
        let asked = [QueuePriority::Urgent, QueuePriority::High, QueuePriority::Medium, QueuePriority::Low];
        self.policy.asked_priority(slot, asked[self.random.u64(..4) as usize]);
        self.vqs.insert(slot, Vq { tenant, backlog: 0, served: 0 });
    }

    fn change(&mut self, tenant: TenantSlot, terms: Terms) {
        let at = usize::from(tenant.0);
        self.terms[at] = terms;
        self.reports[at].class = terms.class;
        self.policy.change_terms(tenant, &terms, self.now);
    }

    /// A tenant takes its VQs away, and another one comes in its place once nothing of it is with the drive.
    fn replace(&mut self, tenant: TenantSlot) {
        let own: Vec<_> = self.vqs.iter().filter(|(_, vq)| vq.tenant == tenant).map(|(slot, _)| *slot).collect();
        for slot in own {
            self.vqs.remove(&slot);
            self.policy.detach(slot, self.now);
        }
        if self.flights.iter().all(|flight| flight.0.tenant != tenant) {
            self.policy.forget(tenant);
            let at = usize::from(tenant.0);
            let class = class(&mut self.random);
            self.terms[at] = terms(class, &mut self.random);
            self.reports[at] = report(TenantId(self.tenants_so_far), class);
            self.tenants_so_far += 1;
        }
    }

    fn arrive(&mut self, slot: VqSlot, backlog: u32) {
        if let Some(vq) = self.vqs.get_mut(&slot) {
            vq.backlog = backlog;
            self.policy.arrived(slot, backlog, self.now);
        }
    }

    /// Sends all that may go; when to ask again. At most `budget` commands, as a poller's iteration has one.
    fn dispatch(&mut self, budget: u32) -> Nanos {
        for _ in 0..budget {
            match self.policy.next(self.now) {
                Next::Send { vq, hwq } => self.obey(vq, hwq),
                Next::WaitUntil(at) => {
                    assert!(at > self.now, "waits for the past: {at:?} at {:?}", self.now);
                    assert!(self.vqs.values().any(|vq| vq.backlog > 0), "waits with nothing to send");
                    let hopeless = at == Nanos::MAX && self.flights.is_empty();
                    assert!(!hopeless, "waits for a completion with nothing in flight");
                    return at;
                }
                Next::Idle => {
                    assert!(self.vqs.values().all(|vq| vq.backlog == 0), "idle with something to send");
                    return Nanos::MAX;
                }
            }
        }
        self.now
    }

    fn obey(&mut self, slot: VqSlot, hwq: HwqId) {
        let vq = self.vqs.get_mut(&slot).expect("an attached VQ");
        assert!(vq.backlog > 0, "an empty VQ is asked");
        assert!(hwq.0 < self.shape.hwqs, "there is no {hwq:?}");
        let used = &mut self.in_flight[usize::from(hwq.0)];
        assert!(*used < self.shape.hwq_depth, "{hwq:?} is full");
        assert!(self.flights.len() < self.most_in_flight, "more than the cap in flight");
        match self.random.u64(..20) {
            0 if self.refuses => {
                vq.backlog -= 1;
                self.policy.refused(slot, true, self.now);
            }
            1 if self.refuses => {
                vq.backlog = 0;
                self.policy.refused(slot, false, self.now);
            }
            _ => {
                vq.backlog -= 1;
                vq.served += 1;
                *used += 1;
                let tenant = vq.tenant;
                let read = self.len_bytes.is_some() || self.random.u64(..2) == 0;
                let len_bytes = self.len_bytes.unwrap_or(512 << self.random.u64(..9));
                let done = self.now + Nanos(1_000 + self.random.u64(..200_000));
                self.policy.sent(slot, hwq, op(read), len_bytes, self.now);
                self.reports[usize::from(tenant.0)].submitted += 1;
                self.flights.push(Reverse(Flight { done, slot, hwq, tenant, read, len_bytes, sent: self.now }));
            }
        }
    }

    /// Lets time pass until the next thing that happens, or `at`.
    fn pass(&mut self, at: Nanos) {
        let done = self.flights.peek().map_or(Nanos::MAX, |flight| flight.0.done);
        self.now = self.now.max(at.min(done).min(self.next_interval));
        while self.flights.peek().is_some_and(|flight| flight.0.done <= self.now) {
            let Some(Reverse(Flight { slot, hwq, tenant, read, len_bytes, sent, .. })) = self.flights.pop() else {
                return;
            };
            self.in_flight[usize::from(hwq.0)] -= 1;
            self.reports[usize::from(tenant.0)].completed += 1;
            self.policy.completed(slot, hwq, tenant, op(read), len_bytes, self.now - sent, self.now);
        }
        if self.now >= self.next_interval {
            let mut reports = self.reports.clone();
            reports.sort_by_key(|report| report.tenant);
            self.policy.demand();
            self.policy.interval(&reports, self.now);
            self.look_inside();
            self.next_interval += INTERVAL;
        }
    }

    /// What operators are told are numbers, each once.
    fn look_inside(&self) {
        let mut told = Vec::new();
        self.policy.figures(&mut |figure, value| told.push((figure.name(), value)));
        for tenant in 0..TENANTS as u16 {
            let mut of_tenant = Vec::new();
            self.policy.tenant_figures(TenantSlot(tenant), &mut |figure, value| of_tenant.push((figure.name(), value)));
            assert!(of_tenant.iter().all(|(_, value)| value.is_finite()), "{of_tenant:?}");
            let names: BTreeMap<&str, f64> = of_tenant.iter().copied().collect();
            assert_eq!(names.len(), of_tenant.len(), "{of_tenant:?}");
        }
        assert!(told.iter().all(|(_, value)| value.is_finite() && *value >= 0.0), "{told:?}");
        let names: BTreeMap<&str, f64> = told.iter().copied().collect();
        assert_eq!(names.len(), told.len(), "{told:?}");
    }

    fn step(&mut self) {
        match self.random.u64(..100) {
            0..4 => {
                let (slot, tenant) = (self.slot(), self.tenant());
                if !self.vqs.contains_key(&slot) {
                    self.attach(slot, tenant);
                }
            }
            4..6 => {
                let slot = self.slot();
                if self.vqs.remove(&slot).is_some() {
                    self.policy.detach(slot, self.now);
                }
            }
            6..40 => {
                let (slot, more) = (self.slot(), self.random.u32(0..=8));
                let backlog = self.vqs.get(&slot).map_or(0, |vq| vq.backlog);
                self.arrive(slot, if more == 8 { 0 } else { backlog + more });
            }
            _ => {}
        }
        let budget = self.random.u32(1..=64);
        let again = self.dispatch(budget);
        let pause = self.now + Nanos(self.random.u64(..20_000));
        self.pass(again.min(pause));
    }

    /// No more arrivals: all that waits must go, and all that went must come back.
    fn drain(&mut self) {
        // LPNS as published holds everybody for an idle guaranteed tenant, and says so: leave none.
        for (tenant, terms) in (0..).map(TenantSlot).zip(self.terms.clone()) {
            self.change(tenant, Terms { class: Class::BestEffort { weight: 1 }, ..terms });
        }
        self.refuses = false;
        for _ in 0..400_000 {
            let again = self.dispatch(u32::MAX);
            if again == Nanos::MAX && self.flights.is_empty() {
                break;
            }
            self.pass(again);
        }
        let left: Vec<_> = self.vqs.iter().filter(|(_, vq)| vq.backlog > 0).collect();
        assert!(left.is_empty(), "never served: {left:?}");
        assert!(self.flights.is_empty() && self.in_flight.iter().all(|used| *used == 0));
        assert!(self.reports.iter().all(|report| report.submitted == report.completed));
        assert_eq!(self.policy.next(self.now), Next::Idle);
    }
}

fn report(tenant: TenantId, class: Class) -> TenantReport {
    TenantReport { mean_latency: Nanos::from_micros(20), ..TenantReport::new(tenant, class) }
}

fn op(read: bool) -> Op {
    if read { Op::Read } else { Op::Write }
}

/// What must hold, whatever is asked.
pub fn random_calls(mut world: World<impl Policy>) {
    (0..STEPS).for_each(|_| world.step());
    world.drain();
}

/// Beside all that, terms change and tenants come and go.
pub fn changing_tenants(mut world: World<impl Policy>) {
    for _ in 0..STEPS {
        let tenant = world.tenant();
        match world.random.u64(..40) {
            0 => world.replace(tenant),
            1..4 => {
                let class = class(&mut world.random);
                let terms = terms(class, &mut world.random);
                world.change(tenant, terms);
            }
            _ => {}
        }
        world.step();
    }
    assert!(world.tenants_so_far > 2 * TENANTS as u32, "too few came and went");
    world.drain();
}

/// Everyone always has commands: everyone gets some. Nobody is guaranteed.
pub fn saturation(mut world: World<impl Policy>) {
    world.refuses = false;
    for slot in 0..SLOTS {
        world.attach(VqSlot(slot as u16), TenantSlot((slot % TENANTS) as u16));
        world.arrive(VqSlot(slot as u16), u32::MAX);
    }
    let end = Nanos::from_millis(3_000);
    while world.now < end {
        let again = world.dispatch(64);
        world.pass(again);
    }
    let starved: Vec<_> = world.vqs.iter().filter(|(_, vq)| vq.served == 0).collect();
    assert!(starved.is_empty(), "starved: {starved:?}");
}

/// Tenants 0 and 1 with a backlog for ever, and these terms after a while; commands that each was served in the
/// `measured` completions that follow the `settling` ones.
pub fn served_after_change<P: Policy>(
    build: impl FnOnce(&PollerShape) -> P,
    terms: [Terms; 2],
    settling: u64,
    measured: u64,
) -> [u64; 2] {
    // Only the policy's own cap is in the way.
    let shape = PollerShape { hwqs: 4, hwq_depth: 1024, guaranteed_vqs: 0, weighted: false };
    let mut world = World::at(shape, Rng::with_seed(1), 0, |_, shape| (build(shape), usize::MAX));
    (world.refuses, world.len_bytes) = (false, Some(4096));
    world.terms.fill(Terms::best_effort(1));
    for tenant in 0..2 {
        world.attach(VqSlot(tenant), TenantSlot(tenant));
        world.arrive(VqSlot(tenant), u32::MAX);
    }
    let run = |world: &mut World<P>, commands: u64| {
        let before = world.reports.iter().map(|report| report.completed).sum::<u64>();
        while world.reports.iter().map(|report| report.completed).sum::<u64>() < before + commands {
            let again = world.dispatch(64);
            world.pass(again);
        }
    };
    // Until the first interval showed that two compete.
    while world.now < Nanos(3 * INTERVAL.0) {
        let again = world.dispatch(64);
        world.pass(again);
    }
    for (tenant, terms) in (0..).map(TenantSlot).zip(terms) {
        world.change(tenant, terms);
    }
    run(&mut world, settling);
    let before = [0, 1].map(|tenant| world.reports[tenant].completed);
    run(&mut world, measured);
    [0, 1].map(|tenant: usize| world.reports[tenant].completed - before[tenant])
}

/// Runs `test` over these policies and this number of seeds, or over those that the environment names with `POLICY` and
/// `POLICY_SEED`.
pub fn each(names: &[&str], seeds: u64, test: impl Fn(&str, u64) + std::panic::RefUnwindSafe) {
    let only = std::env::var("POLICY").ok();
    let seed = std::env::var("POLICY_SEED").ok().and_then(|seed| seed.parse().ok());
    for name in names.iter().filter(|name| only.as_deref().is_none_or(|only| only == **name)) {
        if let Some(seed) = seed {
            test(name, seed);
            continue;
        }
        for seed in 0..seeds {
            let outcome = std::panic::catch_unwind(|| test(name, seed));
            assert!(outcome.is_ok(), "replay with POLICY={name} POLICY_SEED={seed}");
        }
    }
}
