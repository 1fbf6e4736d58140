//! What FairNVMe shares out: against a drive in virtual time, by hand, and under random calls.
//! Replay a random case with `FAIR_SEED=<seed> cargo test -p policy fairnvme`.

use std::collections::VecDeque;

use fastrand::Rng;
use io_model::{HwqId, Nanos, Op, TenantId, VqId};
use policy::{
    Class, Cost, Demand, FairConfig, FairNvme, Next, Passthrough, Policy, TenantReport, TenantSlot, TenantState, Terms,
    Variant, VqSlot,
};

use crate::support::{self, Workload, World};

const SPAN: Nanos = Nanos::from_millis(400);
const T0: Nanos = Nanos(0);

/// The drive of `support`: costs in proportion to the length.
fn config(variant: Variant) -> FairConfig {
    let for_drive = FairConfig::for_drive(Nanos(11_050), Nanos(386_750), 6, Cost::default());
    FairConfig { variant, ..for_drive }
}

fn fair(variant: Variant, hwq_depth: u32) -> FairNvme {
    FairNvme::new(config(variant), 8, hwq_depth).expect("valid settings")
}

fn corrected() -> FairNvme {
    fair(Variant::Corrected, 1024)
}

/// Runs in for 100 ms, then measures.
fn measure<P: Policy>(policy: P, tenants: &[Workload]) -> World<P> {
    let mut world = World::p5800x(vec![policy], tenants);
    world.run(Nanos::from_millis(100));
    world.forget();
    world.run(SPAN);
    world
}

/// Work of each tenant for its weight, in parts of the mean.
fn shares<P>(world: &World<P>, tenants: &[Workload]) -> Vec<f64> {
    let work = |(seen, load): (&support::Seen, &Workload)| {
        let Class::BestEffort { weight } = load.class else { return 0.0 };
        seen.latencies_ns.len() as f64 * load.len_bytes as f64 / f64::from(weight)
    };
    let work: Vec<f64> = world.seen.iter().zip(tenants).map(work).collect();
    let mean = work.iter().sum::<f64>() / work.len() as f64;
    work.iter().map(|work| work / mean).collect()
}

fn assert_even(shares: &[f64]) {
    assert!(shares.iter().all(|share| (share - 1.0).abs() < 0.02), "{shares:?}");
}

#[test]
fn equal_weights_get_equal_work_whatever_the_sizes_and_depths() {
    let heavy = Workload::best_effort(1, 4, 32);
    let tenants = [heavy, heavy.with_len(16 << 10), heavy.with_len(64 << 10), Workload::best_effort(1, 2, 64)];
    assert_even(&shares(&measure(corrected(), &tenants), &tenants));
    // Round robin counts commands: the large ones get 16 times the work.
    let unfair = shares(&measure(Passthrough::new(8, 1024), &tenants), &tenants);
    assert!(unfair[2] > 8.0 * unfair[0], "{unfair:?}");
}

#[test]
fn work_follows_weights() {
    let tenants = [1, 2, 4].map(|weight| Workload::best_effort(weight, 4, 32));
    assert_even(&shares(&measure(corrected(), &tenants), &tenants));
    let tenants = [Workload::best_effort(1, 4, 32), Workload::best_effort(4, 4, 32).with_len(128 << 10)];
    assert_even(&shares(&measure(corrected(), &tenants), &tenants));
}

#[test]
fn work_follows_weights_where_an_hwq_holds_less_than_the_window() {
    let tenants = [1, 2, 4].map(|weight| Workload::best_effort(weight, 4, 32));
    let policy = FairNvme::new(config(Variant::Corrected), 1, 16).expect("valid settings");
    assert_even(&shares(&measure(policy, &tenants), &tenants));
}

#[test]
fn nothing_of_the_drive_is_lost_to_fairness() {
    let tenants = [Workload::best_effort(1, 4, 32); 8];
    let served = |world: &World<_>| world.seen.iter().map(|seen| seen.latencies_ns.len()).sum::<usize>() as f64;
    let most = 6.0 / 7_200e-9 * SPAN.0 as f64 / 1e9;
    assert!(served(&measure(corrected(), &tenants)) > 0.99 * most);
    // Alone, a tenant may fill the drive.
    let alone = measure(corrected(), &tenants[..1]);
    assert!(alone.seen[0].mean_us() > 100.0, "{}", alone.seen[0].mean_us());
}

#[test]
fn a_light_tenant_waits_for_a_window_and_not_for_its_neighbours_queues() {
    let light = Workload::best_effort(1, 1, 1);
    let heavy = Workload::best_effort(1, 4, 32);
    let tenants = [light, heavy, heavy, heavy, heavy, heavy, heavy, heavy];
    let beside = measure(Passthrough::new(8, 1024), &tenants);
    assert!(beside.seen[0].mean_us() > 900.0, "{}", beside.seen[0].mean_us());
    let beside = measure(corrected(), &tenants);
    // 6 commands for each unit: 36 × 7.2 / 6 µs and its own 11.
    assert!(beside.seen[0].mean_us() < 56.0, "{}", beside.seen[0].mean_us());
    let state = beside.policies[0].state(TenantId(0)).expect("attached");
    assert_eq!((state.state, state.weight), (TenantState::Idle, 1.0));
    assert_eq!(beside.policies[0].state(TenantId(1)).expect("attached").state, TenantState::Saturated);
    assert_eq!(beside.policies[0].state(TenantId(8)), None);
}

/// Tenants with one VQ each, driven by hand. Everything is a 4 KiB read.
struct Hand {
    policy: FairNvme,
    now: Nanos,
    in_flight: VecDeque<(VqSlot, HwqId, Nanos)>,
}

impl Hand {
    fn new(policy: FairNvme, tenants: u16) -> Self {
        let mut hand = Self { policy, now: T0, in_flight: VecDeque::new() };
        for slot in 0..tenants {
            let vq = VqId { tenant: TenantId(slot.into()), index: 1 };
            hand.policy.attach(VqSlot(slot), vq, TenantSlot(slot), &Terms::default(), T0);
        }
        hand
    }

    fn send(&mut self) -> Option<u16> {
        let Next::Send { vq, hwq } = self.policy.next(self.now) else { return None };
        self.policy.sent(vq, hwq, Op::Read, 4096, self.now);
        self.in_flight.push_back((vq, hwq, self.now));
        Some(vq.0)
    }

    /// The oldest command completes.
    fn complete(&mut self) {
        let (slot, hwq, sent) = self.in_flight.pop_front().expect("a command in flight");
        self.policy.completed(slot, hwq, TenantSlot(slot.0), Op::Read, 4096, self.now - sent, self.now);
    }

    /// Sends and completes one command every microsecond; how many each tenant sent.
    fn serve(&mut self, commands: u32) -> [u32; 4] {
        let mut sent = [0; 4];
        for _ in 0..commands {
            self.now += Nanos::from_micros(1);
            if let Some(tenant) = self.send() {
                sent[usize::from(tenant)] += 1;
            }
            if self.in_flight.len() > 4 {
                self.complete();
            }
        }
        sent
    }
}

#[test]
fn turns_alternate_command_by_command() {
    let mut hand = Hand::new(corrected(), 3);
    (0..3).for_each(|slot| hand.policy.arrived(VqSlot(slot), 10, T0));
    let turns: Vec<_> = (0..6).filter_map(|_| hand.send()).collect();
    assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn what_an_idle_tenant_did_not_use_is_not_saved_up() {
    let mut hand = Hand::new(corrected(), 2);
    hand.policy.arrived(VqSlot(0), 100_000, T0);
    assert_eq!(hand.serve(20_000), [20_000, 0, 0, 0]);
    let now = hand.now;
    hand.policy.arrived(VqSlot(1), 100_000, now);
    let sent = hand.serve(1_000);
    assert!(sent[0].abs_diff(sent[1]) <= 1, "{sent:?}");
}

#[test]
fn the_window_holds_only_among_rivals() {
    let window = 6 * 6;
    let mut hand = Hand::new(corrected(), 2);
    hand.policy.arrived(VqSlot(0), 1_000, T0);
    while hand.send().is_some() {}
    assert_eq!(hand.in_flight.len(), 1_000, "nobody else wants the drive");
    let now = hand.now;
    hand.policy.arrived(VqSlot(0), 1_000, now);
    hand.policy.arrived(VqSlot(1), 1_000, now);
    assert_eq!(hand.policy.next(now), Next::WaitUntil(Nanos::MAX));
    while hand.in_flight.len() >= window {
        assert_eq!(hand.send(), None);
        hand.complete();
    }
    assert_eq!(hand.send(), Some(1), "who had less so far");
    assert_eq!(hand.send(), None);
}

#[test]
fn the_window_is_split_with_other_pollers() {
    let mut hand = Hand::new(corrected(), 1);
    let report = |tenant, weight| TenantReport {
        submitted: 2,
        completed: 1,
        ..TenantReport::new(TenantId(tenant), Class::BestEffort { weight })
    };
    hand.policy.interval(&[report(0, 1), report(7, 2)], T0);
    hand.policy.arrived(VqSlot(0), 1_000, T0);
    while hand.send().is_some() {}
    assert_eq!(hand.in_flight.len(), 36, "nobody tells of anything elsewhere");
    let own = hand.policy.demand().expect("there is a limit");
    let other = Demand { claim: own.claim * 2.0, ..own };
    hand.policy.demands(&[own, other], 0, T0);
    while !hand.in_flight.is_empty() {
        hand.complete();
    }
    while hand.send().is_some() {}
    assert_eq!(hand.in_flight.len(), 12, "a third of 36");
    hand.policy.interval(&[report(0, 1), TenantReport { submitted: 1, ..report(7, 2) }], T0);
    while hand.send().is_some() {}
    assert_eq!(hand.in_flight.len(), 964, "the other poller's tenant sleeps: it is alone");
}

/// Tenants 0 and 2 share an HWQ that the drive neglects; tenant 1 has one of its own.
#[test]
fn a_tenant_kept_from_its_share_is_compensated_within_bounds() {
    let mut hand = Hand::new(FairNvme::new(config(Variant::Corrected), 2, 2).expect("valid settings"), 3);
    for step in 0_u32..400_000 {
        hand.now += Nanos::from_micros(1);
        let now = hand.now;
        (0..3).for_each(|slot| hand.policy.arrived(VqSlot(slot), 50, now));
        while hand.send().is_some() {}
        // HWQ 1, with tenant 1 alone, is served five times as often as HWQ 0.
        let served = HwqId(u16::from(!step.is_multiple_of(6)));
        if let Some(at) = hand.in_flight.iter().position(|flight| flight.1 == served) {
            hand.in_flight.swap(0, at);
            hand.complete();
        }
    }
    let weight = |tenant| hand.policy.state(TenantId(tenant)).expect("attached").weight;
    assert!(weight(0) > 1.1 && weight(2) > 1.1, "{} {}", weight(0), weight(2));
    assert!(weight(1) < 0.9, "{}", weight(1));
    assert!((0..3).all(|tenant| (0.25..=4.0).contains(&weight(tenant))));
}

#[test]
fn published_weights_grow_without_bound_and_corrected_ones_do_not() {
    let tenants = [Workload::best_effort(1, 4, 32); 4];
    let weights = |variant| {
        let world = measure(fair(variant, 1024), &tenants);
        (0..4).map(|tenant| world.policies[0].state(TenantId(tenant)).expect("attached").weight).collect::<Vec<_>>()
    };
    let published = weights(Variant::Published);
    assert!(published.iter().all(|weight| *weight > 10_000.0), "{published:?}");
    let corrected = weights(Variant::Corrected);
    assert!(corrected.iter().all(|weight| (0.9..=1.1).contains(weight)), "{corrected:?}");
}

#[test]
fn published_order_empties_the_first_budget_first_and_starts_over_at_an_unfair_command() {
    let mut hand = Hand::new(fair(Variant::Published, 1024), 2);
    (0..2).for_each(|slot| hand.policy.arrived(VqSlot(slot), 2_000, T0));
    let first: Vec<_> = (0..100).filter_map(|_| hand.send()).collect();
    assert!(first.iter().all(|tenant| *tenant == 0), "{first:?}");
    // Half of 1 ms × 6 units at 11.05 µs each: then the next one has its turn.
    let until_next = 100 + std::iter::from_fn(|| hand.send()).take_while(|tenant| *tenant == 0).count();
    assert_eq!(until_next, 272);
    hand.now = Nanos::from_millis(1);
    hand.complete();
    let state = hand.policy.state(TenantId(0)).expect("attached");
    assert_eq!((state.state, state.weight), (TenantState::Saturated, 2.0));
    assert_eq!(hand.send(), Some(0), "back to the first, with a new budget");
}

#[test]
fn published_states_follow_the_thresholds() {
    let mut hand = Hand::new(fair(Variant::Published, 1024), 1);
    hand.policy.arrived(VqSlot(0), 100, T0);
    // Thresholds 66.3 and 386.75 µs, the current one between.
    let mut complete_after = |latency_us: u64| {
        hand.send();
        hand.now += Nanos::from_micros(latency_us);
        hand.complete();
        let state = hand.policy.state(TenantId(0)).expect("attached");
        (state.state, state.weight, state.thresh_cur)
    };
    assert_eq!(complete_after(20), (TenantState::Idle, 0.5, Nanos(226_318)));
    assert_eq!(complete_after(20).1, 0.5, "not below β");
    assert_eq!(complete_after(100).0, TenantState::Balanced);
    let (state, weight, threshold) = complete_after(300);
    assert_eq!((state, weight), (TenantState::Unbalanced, 1.0));
    assert_eq!(threshold, Nanos(306_368), "half way to the highest");
    assert_eq!(complete_after(500), (TenantState::Saturated, 2.0, Nanos(386_750)));
}

const VQS: u64 = 16;
const TENANTS: u64 = 5;

/// Random legal calls. `waited`: commands that others sent while this tenant could have.
struct Calls {
    random: Rng,
    policy: FairNvme,
    depth: u32,
    now: Nanos,
    backlogs: Vec<u32>,
    attached: Vec<Option<TenantSlot>>,
    in_flight: Vec<(VqSlot, HwqId, TenantSlot)>,
    waited: Vec<u32>,
}

impl Calls {
    fn new(seed: u64, variant: Variant, depth: u32) -> Self {
        let policy = fair(variant, depth);
        Self {
            random: Rng::with_seed(seed),
            policy,
            depth,
            now: T0,
            backlogs: vec![0; VQS as usize],
            attached: vec![None; VQS as usize],
            in_flight: Vec::new(),
            waited: vec![0; TENANTS as usize],
        }
    }

    fn step(&mut self) {
        self.now += Nanos(self.random.u64(..4_000));
        let slot = self.random.u64(..VQS) as u16;
        let at = usize::from(slot);
        match (self.random.u64(..100), self.attached[at]) {
            (0..10, None) => {
                let tenant = TenantSlot(self.random.u64(..TENANTS) as u16);
                let vq = VqId { tenant: TenantId(tenant.0.into()), index: 1 };
                self.policy.attach(VqSlot(slot), vq, tenant, &Terms::default(), self.now);
                self.attached[at] = Some(tenant);
            }
            (0, Some(_)) => {
                self.policy.detach(VqSlot(slot), self.now);
                (self.attached[at], self.backlogs[at]) = (None, 0);
            }
            (10..40, Some(_)) => {
                self.backlogs[at] = self.random.u64(..30) as u32;
                self.policy.arrived(VqSlot(slot), self.backlogs[at], self.now);
            }
            (40..65, _) if !self.in_flight.is_empty() => {
                let done = self.random.u64(..self.in_flight.len() as u64) as usize;
                let (slot, hwq, tenant) = self.in_flight.swap_remove(done);
                let latency = Nanos(self.random.u64(..500_000));
                self.policy.completed(slot, hwq, tenant, Op::Read, 4096, latency, self.now);
            }
            _ => self.send(),
        }
        for tenant in 0..TENANTS as usize {
            if !self.has_backlog(TenantSlot(tenant as u16)) {
                self.waited[tenant] = 0;
            }
        }
    }

    fn has_backlog(&self, tenant: TenantSlot) -> bool {
        self.attached.iter().zip(&self.backlogs).any(|(owner, backlog)| *owner == Some(tenant) && *backlog > 0)
    }

    fn send(&mut self) {
        match self.policy.next(self.now) {
            Next::Send { vq, hwq } => {
                let at = usize::from(vq.0);
                let tenant = self.attached[at].expect("an attached VQ");
                assert!(self.backlogs[at] > 0, "an empty VQ is asked");
                let used = self.in_flight.iter().filter(|flight| flight.1 == hwq).count() as u32;
                assert!(used < self.depth, "a full queue is used");
                match self.random.u64(..20) {
                    0 => {
                        self.backlogs[at] = 0;
                        self.policy.refused(vq, false, self.now);
                        return;
                    }
                    1 => self.policy.refused(vq, true, self.now),
                    _ => {
                        self.policy.sent(vq, hwq, Op::Read, 4096, self.now);
                        self.in_flight.push((vq, hwq, tenant));
                    }
                }
                self.backlogs[at] -= 1;
                self.waited.iter_mut().for_each(|waited| *waited += 1);
                self.waited[usize::from(tenant.0)] = 0;
            }
            Next::WaitUntil(at) => {
                assert!(at > self.now, "waits for the past");
                assert!(!self.in_flight.is_empty(), "waits for a completion that can't come");
                assert!(self.backlogs.iter().any(|backlog| *backlog > 0), "waits with nothing to send");
            }
            Next::Idle => assert!(self.backlogs.iter().all(|backlog| *backlog == 0), "idle with something to send"),
        }
    }

    /// Everything that waits goes, and then the policy is idle.
    fn drain(&mut self) {
        for _ in 0..20_000 {
            self.send();
            if let Some((slot, hwq, tenant)) = self.in_flight.pop() {
                self.policy.completed(slot, hwq, tenant, Op::Read, 4096, Nanos(1), self.now);
            }
            self.now += Nanos(100);
        }
        assert_eq!(self.policy.next(self.now), Next::Idle);
        assert!(self.backlogs.iter().all(|backlog| *backlog == 0), "{:?}", self.backlogs);
    }
}

fn for_seeds(case: impl Fn(u64) + std::panic::RefUnwindSafe) {
    if let Some(seed) = std::env::var("FAIR_SEED").ok().and_then(|seed| seed.parse().ok()) {
        case(seed);
        return;
    }
    for seed in 0..200 {
        let outcome = std::panic::catch_unwind(|| case(seed));
        assert!(outcome.is_ok(), "replay with FAIR_SEED={seed}");
    }
}

#[test]
fn a_backlogged_tenant_is_served_after_a_bounded_number_of_others() {
    // A weight of 4 against one of ¼ sends 16 for 1; the order is rounded by an eighth; and who comes new has its first
    // turn.
    let bound = (TENANTS as u32 - 1) * (16 + 16 / 8 + 2);
    for_seeds(|seed| {
        let mut calls = Calls::new(seed, Variant::Corrected, 1024);
        for _ in 0..6_000 {
            calls.step();
            assert!(calls.waited.iter().all(|waited| *waited <= bound), "{:?}", calls.waited);
        }
        calls.drain();
    });
}

#[test]
fn both_variants_keep_the_contract_with_full_queues() {
    for_seeds(|seed| {
        let variant = if seed.is_multiple_of(2) { Variant::Published } else { Variant::Corrected };
        let mut calls = Calls::new(seed, variant, 1 + (seed % 5) as u32);
        (0..6_000).for_each(|_| calls.step());
        calls.drain();
    });
}

#[test]
fn vqs_of_one_tenant_take_turns_at_a_shallow_hwq() {
    let mut policy = FairNvme::new(FairConfig::p5800x(), 1, 2).expect("a valid preset");
    for slot in 0..4 {
        let vq = VqId { tenant: TenantId(0), index: slot + 1 };
        policy.attach(VqSlot(slot), vq, TenantSlot(0), &Terms::default(), Nanos(0));
        policy.arrived(VqSlot(slot), u32::MAX, Nanos(0));
    }
    let mut order = Vec::new();
    for round in 0..10 {
        let now = Nanos(round * 10_000);
        while let Next::Send { vq, hwq } = policy.next(now) {
            policy.sent(vq, hwq, Op::Read, 4_096, now);
            order.push(vq.0);
        }
        // Both at once: several VQs are woken.
        for _ in 0..2 {
            policy.completed(VqSlot(0), HwqId(0), TenantSlot(0), Op::Read, 4_096, Nanos(10_000), now);
        }
    }
    assert!(order.windows(6).all(|span| (0..4).all(|slot| span.contains(&slot))), "{order:?}");
}
