//! What every policy must hold to, whatever it is asked: random legal calls over each variant of [`PolicyConfig`],
//! driven by events as a poller in virtual time is; tenants' terms change, tenants leave, and others take their slots.
//! A seed decides everything, and every failure names it. Replay one with `POLICY=<name> POLICY_SEED=<seed> cargo test
//! -p policy every_policy`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use fastrand::Rng;
use io_model::{HwqId, Nanos, Op, QueuePriority, TenantId, VqId};
use policy::compared::{Gimbal, GimbalConfig, IoCost, IoCostConfig, Reflex, ReflexConfig};
use policy::{
    AnyPolicy, ArbitratedConfig, Class, Cost, D2fqConfig, EvenkeelConfig, FairConfig, Floor, K2Config, Limits,
    LpnsConfig, MqfqConfig, Next, Policy, PolicyConfig, PolicyKind, PollerShape, TenantPriority, TenantReport,
    TenantSlot, Terms, Variant, VqSlot,
};

const SEEDS: u64 = 60;
const STEPS: u32 = 3_000;
const SLOTS: u64 = 20;
const TENANTS: u64 = 6;
const INTERVAL: Nanos = Nanos::from_millis(10);

/// Those that no configuration names.
const COMPARED: [&str; 3] = ["iocost", "gimbal", "reflex"];

/// One of [`COMPARED`], on some drive.
fn compared(name: &str, random: &mut Rng, shape: &PollerShape) -> AnyPolicy {
    let (rate_iops, cost) = (f64::from(random.u32(10_000..=2_000_000)), Cost::default());
    match name {
        "iocost" => IoCost::new(IoCostConfig { rate_iops, cost }, shape).expect("valid settings").into(),
        "reflex" => {
            let alone = Nanos::from_micros(random.u32(5..=100).into());
            Reflex::new(ReflexConfig { rate_iops, alone, cost }, shape).expect("valid settings").into()
        }
        "gimbal" => {
            let least = Nanos::from_micros(random.u32(10..=250).into());
            let (highest, dearest_write) = (Nanos(least.0 * 6), f64::from(random.u32(1..=9)));
            let config = GimbalConfig { least, highest, dearest_write, first_rate: rate_iops * 4096.0 };
            Gimbal::new(config, shape).expect("valid settings").into()
        }
        _ => unreachable!("no such policy: {name}"),
    }
}

/// A random configuration of the named policy.
fn config(name: &str, random: &mut Rng) -> PolicyConfig {
    match name {
        "passthrough" => PolicyConfig::Passthrough,
        "lpns" => {
            let variant = if random.u64(..2) == 0 { Variant::Published } else { Variant::Corrected };
            PolicyConfig::Lpns(LpnsConfig { variant, ..LpnsConfig::p5800x() })
        }
        "fair" => {
            let variant = if random.u64(..2) == 0 { Variant::Published } else { Variant::Corrected };
            PolicyConfig::Fair(FairConfig { variant, ..FairConfig::p3520() })
        }
        "k2" => PolicyConfig::K2(K2Config { max_in_flight: random.u32(1..=40) }),
        "mqfq" => PolicyConfig::Mqfq(MqfqConfig {
            gap_commands: random.u32(1..=64),
            max_in_flight: random.u32(1..=40),
            guaranteed_weight: random.u32(1..=20),
            ..MqfqConfig::default()
        }),
        "d2fq" => {
            let medium_gap_commands = random.u32(0..=10);
            let low_gap_commands = medium_gap_commands + random.u32(0..=20);
            PolicyConfig::D2fq(D2fqConfig { medium_gap_commands, low_gap_commands, ..D2fqConfig::default() })
        }
        "caps" => PolicyConfig::Caps,
        "evenkeel" => PolicyConfig::Evenkeel(EvenkeelConfig {
            max_in_flight: random.u32(1..=40),
            floor_in_flight: random.u32(1..=4),
            ..EvenkeelConfig::p5800x()
        }),
        "wrr" => PolicyConfig::Wrr(arbitrated(256, random)),
        "drr" => PolicyConfig::Drr(arbitrated(1_024, random)),
        _ => unreachable!("no such policy: {name}"),
    }
}

fn arbitrated(most_weight: u32, random: &mut Rng) -> ArbitratedConfig {
    let mut weight = || random.u32(1..=most_weight) as u16;
    let (high_weight, medium_weight, low_weight) = (weight(), weight(), weight());
    let (arbitration_burst, max_in_flight) = (random.u32(1..=256) as u16, random.u32(1..=40));
    ArbitratedConfig { high_weight, medium_weight, low_weight, arbitration_burst, max_in_flight }
}

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
    Terms { class, limits, floor, priority, pollers: 1 }
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
struct World {
    random: Rng,
    policy: AnyPolicy,
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

impl World {
    fn new(name: &str, seed: u64, guaranteed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let (hwqs, hwq_depth) = (random.u32(3..=7) as u16, random.u32(1..=12));
        let shape = PollerShape { hwqs, hwq_depth, guaranteed_vqs: 2, weighted: random.bool() };
        let (policy, most_in_flight) = if COMPARED.contains(&name) {
            (compared(name, &mut random, &shape), usize::MAX)
        } else {
            let config = config(name, &mut random);
            let most_in_flight = match &config {
                PolicyConfig::K2(config) => config.max_in_flight as usize,
                PolicyConfig::Mqfq(config) => config.max_in_flight as usize,
                PolicyConfig::Wrr(config) | PolicyConfig::Drr(config) => config.max_in_flight as usize,
                _ => usize::MAX,
            };
            assert_eq!(config.name(), name);
            (config.build(&shape).expect("valid settings"), most_in_flight)
        };
        assert_eq!(policy.name(), name);
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

fn random_calls(name: &str, seed: u64) {
    let mut world = World::new(name, seed, 2);
    (0..STEPS).for_each(|_| world.step());
    world.drain();
}

/// Beside all that, terms change and tenants come and go.
fn changing_tenants(name: &str, seed: u64) {
    let mut world = World::new(name, seed, 2);
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

/// Tenants 0 and 1 with a backlog for ever, and these weights and classes; commands that each was served in the
/// `measured` completions that follow the `settling` ones.
fn served_after_change(name: &str, seed: u64, terms: [Terms; 2], settling: u64, measured: u64) -> [u64; 2] {
    let mut world = World::new(name, seed, 0);
    // Only the policy's own cap is in the way.
    world.shape = PollerShape { hwqs: 4, hwq_depth: 1024, guaranteed_vqs: 0, weighted: false };
    world.policy = match config(name, &mut world.random) {
        PolicyConfig::Lpns(config) => {
            PolicyConfig::Lpns(LpnsConfig { variant: Variant::Corrected, saturation_factor: 4, ..config })
        }
        PolicyConfig::Fair(_) => PolicyConfig::Fair(FairConfig { parallel_units: 2, ..FairConfig::p5800x() }),
        PolicyConfig::Mqfq(_) => PolicyConfig::Mqfq(MqfqConfig { max_in_flight: 24, ..MqfqConfig::default() }),
        PolicyConfig::Wrr(_) => PolicyConfig::Wrr(ArbitratedConfig { max_in_flight: 24, ..ArbitratedConfig::wrr() }),
        PolicyConfig::Drr(_) => PolicyConfig::Drr(ArbitratedConfig { max_in_flight: 24, ..ArbitratedConfig::drr() }),
        _ => unreachable!("{name} promises no shares"),
    }
    .build(&world.shape)
    .expect("valid settings");
    world.in_flight = vec![0; 4];
    (world.refuses, world.most_in_flight, world.len_bytes) = (false, usize::MAX, Some(4096));
    world.terms.fill(Terms::best_effort(1));
    for tenant in 0..2 {
        world.attach(VqSlot(tenant), TenantSlot(tenant));
        world.arrive(VqSlot(tenant), u32::MAX);
    }
    let run = |world: &mut World, commands: u64| {
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

/// Everyone always has commands: everyone gets some.
fn saturation(name: &str, seed: u64) {
    let mut world = World::new(name, seed, 0);
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

/// Runs `test` over every policy and seed, or over those that the environment names.
fn each(test: impl Fn(&str, u64) + std::panic::RefUnwindSafe, seeds: u64) {
    let only = std::env::var("POLICY").ok();
    let seed = std::env::var("POLICY_SEED").ok().and_then(|seed| seed.parse().ok());
    let names = PolicyKind::NAMES.into_iter().chain(COMPARED);
    for name in names.filter(|name| only.as_deref().is_none_or(|only| only == *name)) {
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

#[test]
fn invariants_hold_under_random_calls() {
    each(random_calls, SEEDS);
}

#[test]
fn nothing_is_lost_while_terms_change_and_tenants_come_and_go() {
    each(changing_tenants, SEEDS);
}

#[test]
fn weights_and_priorities_that_change_count_within_200_completions() {
    let heavy = [Terms::best_effort(1), Terms::best_effort(4)];
    let fixed = |class| Terms { priority: TenantPriority::Fixed(class), ..Terms::default() };
    let high = [fixed(QueuePriority::Low), fixed(QueuePriority::High)];
    for (name, terms) in [("lpns", heavy), ("fair", heavy), ("mqfq", heavy), ("wrr", high), ("drr", high)] {
        let [light, heavy] = served_after_change(name, 1, terms, 200, 2_000);
        let ratio = heavy as f64 / light as f64;
        // `fair` moves weights itself, by what latencies show.
        let within = if name == "fair" { 2.4..6.4 } else { 3.6..4.4 };
        assert!(within.contains(&ratio), "{name}: {light} and {heavy}");
    }
}

#[test]
fn nobody_starves_while_everybody_wants() {
    each(saturation, 6);
}

#[test]
fn names_are_those_of_the_configurations() {
    let names = PolicyKind::NAMES.map(|name| config(name, &mut Rng::with_seed(0)).name());
    assert_eq!(names, PolicyKind::NAMES);
}

#[test]
fn a_poller_without_queues_is_refused() {
    for name in PolicyKind::NAMES {
        let config = config(name, &mut Rng::with_seed(1));
        for (hwqs, hwq_depth, field) in [(0, 8, "hwqs"), (8, 0, "hwq_depth")] {
            let shape = PollerShape { hwqs, hwq_depth, guaranteed_vqs: 1, weighted: false };
            assert_eq!(config.build(&shape).map(|_| ()).unwrap_err().field, field, "{name}");
        }
    }
}

#[test]
fn who_uses_the_drives_weighted_round_robin_says_so_with_classes_and_weights() {
    use QueuePriority::{High, Low, Medium, Urgent};
    for (name, weighted) in PolicyKind::NAMES.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let config = config(name, &mut Rng::with_seed(2));
        let shape = PollerShape { hwqs: 5, hwq_depth: 1 << 20, guaranteed_vqs: 2, weighted };
        let classes = match (name, weighted) {
            ("d2fq", _) => Some(vec![High, Medium, Low, High, Medium]),
            ("lpns", true) => Some(vec![High, High, Medium, Medium, Medium]),
            ("wrr", true) => Some(vec![Urgent, High, Medium, Low, Urgent]),
            _ => None,
        };
        assert_eq!(config.hwq_classes(&shape), classes, "{name}");
        assert_eq!(config.wrr_weights(&shape).is_some(), classes.is_some(), "{name}");
        assert_eq!(config.wrr_weights(&shape), config.build(&shape).unwrap().wrr_weights(), "{name}");
        assert_eq!(config.needs_weighted(), name == "d2fq");
    }
}
