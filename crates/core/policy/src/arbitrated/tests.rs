//! Tenants are numbered as their priorities are listed; each has its VQs in slots of its own.

use io_model::{TenantId, VqId};

use super::*;
use crate::{Policy, PolicyConfig};

const T0: Nanos = Nanos(0);
const WAIT: Next = Next::WaitUntil(Nanos::MAX);
const KIB: u64 = 1024;

fn fixed(class: QueuePriority) -> TenantPriority {
    TenantPriority::Fixed(class)
}

const HIGH: TenantPriority = TenantPriority::Fixed(QueuePriority::High);
const MEDIUM: TenantPriority = TenantPriority::Fixed(QueuePriority::Medium);
const LOW: TenantPriority = TenantPriority::Fixed(QueuePriority::Low);

fn shape() -> PollerShape {
    PollerShape { hwqs: 4, hwq_depth: 256, guaranteed_vqs: 0, weighted: false }
}

/// A policy whose tenants have one VQ each, with more commands than they will ever send.
fn backlogged(kind: Kind, start: ArbitratedConfig, priorities: &[TenantPriority]) -> Arbitrated {
    let mut policy = Arbitrated::new(kind, &start, &shape()).unwrap();
    for (tenant, priority) in (0..).zip(priorities) {
        add(&mut policy, tenant, tenant, *priority, None);
    }
    policy
}

fn add(policy: &mut Arbitrated, slot: u16, tenant: u16, priority: TenantPriority, asked: Option<QueuePriority>) {
    let vq = VqId { tenant: TenantId(tenant.into()), index: slot + 1 };
    policy.attach(VqSlot(slot), vq, TenantSlot(tenant), &Terms { priority, ..Terms::default() }, T0);
    policy.asked_priority(VqSlot(slot), asked.unwrap_or(QueuePriority::Medium));
    policy.arrived(VqSlot(slot), u32::MAX, T0);
}

/// Sends one command and completes it at once; whose it was.
fn serve(policy: &mut Arbitrated, len_bytes: impl Fn(u16) -> u64) -> u16 {
    let Next::Send { vq, hwq } = policy.next(T0) else { panic!("somebody may always go") };
    policy.sent(vq, hwq, Op::Read, len_bytes(vq.0), T0);
    policy.completed(vq, hwq, TenantSlot(0), Op::Read, len_bytes(vq.0), T0, T0);
    vq.0
}

/// Bytes that each slot was served in this many commands.
fn bytes(policy: &mut Arbitrated, slots: usize, commands: usize, len_bytes: impl Fn(u16) -> u64 + Copy) -> Vec<u64> {
    let mut served = vec![0; slots];
    for _ in 0..commands {
        let slot = serve(policy, len_bytes);
        served[usize::from(slot)] += len_bytes(slot);
    }
    served
}

fn ratio(one: u64, other: u64) -> f64 {
    one as f64 / other as f64
}

#[test]
fn wrr_gives_classes_their_weights_in_commands_and_flows_of_a_class_turns() {
    let mut policy = backlogged(Kind::Wrr, ArbitratedConfig::wrr(), &[HIGH, MEDIUM, LOW, LOW]);
    let served = bytes(&mut policy, 4, 56 * 100, |_| 1);
    assert_eq!(served, [3_200, 1_600, 400, 400]);
}

#[test]
fn drr_gives_flows_their_quanta_in_bytes_whatever_the_sizes() {
    let mut policy = backlogged(Kind::Drr, ArbitratedConfig::drr(), &[HIGH, MEDIUM, LOW, LOW]);
    let served = bytes(&mut policy, 4, 200_000, |slot| [4 * KIB, 128 * KIB, 16 * KIB, 4 * KIB][usize::from(slot)]);
    assert!((ratio(served[0], served[1]) - 2.0).abs() < 0.01, "{served:?}");
    assert!((ratio(served[1], served[2]) - 2.0).abs() < 0.01, "{served:?}");
    assert!((ratio(served[2], served[3]) - 1.0).abs() < 0.01, "each flow of a class has its own quantum: {served:?}");
}

#[test]
fn urgent_tenants_go_first_under_both() {
    for (kind, config) in [(Kind::Wrr, ArbitratedConfig::wrr()), (Kind::Drr, ArbitratedConfig::drr())] {
        let mut policy = backlogged(kind, config, &[HIGH, fixed(QueuePriority::Urgent)]);
        assert!((0..500).all(|_| serve(&mut policy, |_| 128 * KIB) == 1));
        policy.arrived(VqSlot(1), 0, T0);
        assert_eq!(serve(&mut policy, |_| 4 * KIB), 0);
    }
}

#[test]
fn low_is_never_starved_beside_high_and_medium() {
    let extreme = ArbitratedConfig { high_weight: 256, medium_weight: 256, low_weight: 1, ..ArbitratedConfig::wrr() };
    for (kind, rounds) in [(Kind::Wrr, 513), (Kind::Drr, 4 * 513 + 64)] {
        let mut policy = backlogged(kind, extreme.clone(), &[HIGH, MEDIUM, LOW]);
        let mut since = 0;
        for _ in 0..50_000 {
            since = if serve(&mut policy, |_| 4 * KIB) == 2 { 0 } else { since + 1 };
            assert!(since < rounds, "{kind:?}");
        }
    }
}

#[test]
fn many_queues_large_commands_and_tiny_ones_gain_nothing_under_drr() {
    for rogue_bytes in [512, 4 * KIB, 128 * KIB, KIB * KIB] {
        let mut policy = backlogged(Kind::Drr, ArbitratedConfig::drr(), &[MEDIUM, MEDIUM]);
        (2..40).for_each(|slot| add(&mut policy, slot, 1, MEDIUM, None));
        let len_bytes = |slot: u16| if slot == 0 { 4 * KIB } else { rogue_bytes };
        let served = bytes(&mut policy, 40, 200_000, len_bytes);
        let rogue: u64 = served[1..].iter().sum();
        assert!(ratio(rogue, served[0]) < 1.03, "{rogue_bytes}: {rogue} against {}", served[0]);
    }
}

#[test]
fn doorbells_for_nothing_cost_only_the_one_who_rings() {
    for (kind, config) in [(Kind::Wrr, ArbitratedConfig::wrr()), (Kind::Drr, ArbitratedConfig::drr())] {
        let mut policy = backlogged(kind, config, &[MEDIUM, MEDIUM, LOW]);
        let mut served = [0_u32; 3];
        for _ in 0..30_000 {
            let Next::Send { vq, hwq } = policy.next(T0) else { panic!("somebody may always go") };
            if vq.0 == 1 {
                policy.refused(vq, false, T0);
                policy.arrived(vq, 1_000, T0);
                continue;
            }
            policy.sent(vq, hwq, Op::Read, 4 * KIB, T0);
            policy.completed(vq, hwq, TenantSlot(vq.0), Op::Read, 4 * KIB, T0, T0);
            served[usize::from(vq.0)] += 1;
        }
        // Under wrr the class medium halves its turns, as it would for a rogue that does send.
        let least = if kind == Kind::Wrr { 0.99 } else { 1.98 };
        assert!(f64::from(served[0]) >= least * f64::from(served[2]), "{kind:?}: {served:?}");
    }
}

#[test]
fn nobody_sheds_a_debt_by_creating_its_queue_anew() {
    let mut policy = backlogged(Kind::Drr, ArbitratedConfig::drr(), &[MEDIUM, MEDIUM]);
    let mut served = [0_u64; 2];
    for _ in 0..50_000 {
        let slot = serve(&mut policy, |slot| [4 * KIB, KIB * KIB][usize::from(slot)]);
        served[usize::from(slot)] += [4 * KIB, KIB * KIB][usize::from(slot)];
        if slot == 1 {
            policy.detach(VqSlot(1), T0);
            add(&mut policy, 1, 1, MEDIUM, None);
        }
    }
    assert!(ratio(served[1], served[0]) < 1.03, "{served:?}");
}

#[test]
fn a_queue_has_the_priority_that_its_client_asked_for_but_never_urgent() {
    let mut policy = Arbitrated::wrr(&ArbitratedConfig::wrr(), &shape()).unwrap();
    add(&mut policy, 0, 0, TenantPriority::OfQueue, Some(QueuePriority::Urgent));
    add(&mut policy, 1, 0, TenantPriority::OfQueue, Some(QueuePriority::Low));
    add(&mut policy, 2, 1, MEDIUM, Some(QueuePriority::Urgent));
    let served = bytes(&mut policy, 3, 56 * 100, |_| 1);
    assert_eq!(served, [3_200, 800, 1_600], "high, low, and what the configuration says");
}

#[test]
fn a_priority_that_changes_moves_waiting_commands_and_remembers_what_clients_asked_for() {
    let mut policy = backlogged(Kind::Wrr, ArbitratedConfig::wrr(), &[MEDIUM, MEDIUM]);
    add(&mut policy, 2, 0, MEDIUM, Some(QueuePriority::Low));
    let change = |policy: &mut Arbitrated, priority| {
        policy.change_terms(TenantSlot(0), &Terms { priority, ..Terms::default() }, T0)
    };
    let served = |policy: &mut Arbitrated| bytes(policy, 3, 56 * 100, |_| 1);
    assert_eq!(served(&mut policy), [1_400, 2_800, 1_400]);
    change(&mut policy, LOW);
    let [first, other, second] = served(&mut policy)[..] else { panic!("three VQs") };
    assert!(ratio(other, first + second) > 1.98 && first.abs_diff(second) <= 1, "16 : 8");
    change(&mut policy, TenantPriority::OfQueue);
    let [first, other, second] = served(&mut policy)[..] else { panic!("three VQs") };
    assert!(first.abs_diff(other) <= 16 && ratio(first, second) > 0.99, "medium, medium and low: 8, 8 and 8");
}

#[test]
fn the_next_tenant_in_a_slot_owes_nothing() {
    let mut policy = backlogged(Kind::Drr, ArbitratedConfig::drr(), &[MEDIUM, MEDIUM]);
    while serve(&mut policy, |slot| [4 * KIB, 64 * KIB * KIB][usize::from(slot)]) != 1 {}
    policy.detach(VqSlot(1), T0);
    policy.forget(TenantSlot(1));
    add(&mut policy, 1, 1, MEDIUM, None);
    let served = bytes(&mut policy, 2, 1_000, |_| 4 * KIB);
    assert!(ratio(served[1], served[0]) > 0.9, "{served:?}");
}

#[test]
fn the_window_counts_large_commands_for_what_they_cost() {
    let mut policy =
        backlogged(Kind::Wrr, ArbitratedConfig { max_in_flight: 40, ..ArbitratedConfig::wrr() }, &[MEDIUM, MEDIUM]);
    let mut sent = Vec::new();
    while let Next::Send { vq, hwq } = policy.next(T0) {
        let len_bytes = [128 * KIB, 4 * KIB][usize::from(vq.0)];
        policy.sent(vq, hwq, Op::Read, len_bytes, T0);
        sent.push((vq, hwq, len_bytes));
    }
    assert_eq!(sent.len(), 3, "32 + 1 + 32 of 40: the last one overdraws");
    assert_eq!(policy.next(T0), WAIT);
    let (vq, hwq, len_bytes) = sent[0];
    policy.completed(vq, hwq, TenantSlot(vq.0), Op::Read, len_bytes, T0, T0);
    assert!(matches!(policy.next(T0), Next::Send { .. }));
}

/// While a tenant has a command, the window has room and any HWQ has room, a command goes. The message names the seed
/// to replay.
#[test]
fn nothing_waits_where_something_may_go() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (window, depth) = (1 + random.u64(..64), 1 + random.u64(..16) as u32);
        let config = ArbitratedConfig { max_in_flight: window as u32, ..ArbitratedConfig::drr() };
        let priorities = [HIGH, LOW, fixed(QueuePriority::Urgent), TenantPriority::OfQueue, MEDIUM];
        let kind = if seed % 2 == 0 { Kind::Wrr } else { Kind::Drr };
        let shape = PollerShape { hwqs: 3, hwq_depth: depth, guaranteed_vqs: 0, weighted: false };
        let config = ArbitratedConfig { high_weight: 100, ..config };
        let mut policy = Arbitrated::new(kind, &config, &shape).unwrap();
        (0..8).for_each(|slot| {
            let priority = priorities[usize::from(slot % 5)];
            add(&mut policy, slot, slot % 5, priority, Some(CLASSES[usize::from(slot % 4)]));
            policy.arrived(VqSlot(slot), 0, T0);
        });
        let (mut backlog, mut flights) = ([0_u32; 8], Vec::new());
        for _ in 0..2_000 {
            let slot = random.u64(..8) as usize;
            backlog[slot] += random.u64(..4) as u32;
            policy.arrived(VqSlot(slot as u16), backlog[slot], T0);
            let blocks: u64 = flights.iter().map(|&(_, _, len_bytes): &(VqSlot, HwqId, u64)| len_bytes >> 12).sum();
            let may_go = blocks < window && flights.len() < 3 * depth as usize && backlog.iter().any(|&left| left > 0);
            let next = policy.next(T0);
            assert_eq!(matches!(next, Next::Send { .. }), may_go, "seed {seed}: {next:?} with {blocks} of {window}");
            if let Next::Send { vq, hwq } = next {
                let len_bytes = 4096 << random.u64(..6);
                policy.sent(vq, hwq, Op::Write, len_bytes, T0);
                backlog[usize::from(vq.0)] -= 1;
                flights.push((vq, hwq, len_bytes));
            }
            if random.u64(..2) == 0 && !flights.is_empty() {
                let at = random.u64(..flights.len() as u64) as usize;
                let (vq, hwq, len_bytes) = flights.swap_remove(at);
                policy.completed(vq, hwq, TenantSlot(vq.0 % 5), Op::Write, len_bytes, T0, T0);
            }
        }
    }
}

#[test]
fn settings_out_of_range_are_named() {
    let refused = |kind, config: ArbitratedConfig| Arbitrated::new(kind, &config, &shape()).unwrap_err().field;
    let (wrr, drr) = (ArbitratedConfig::wrr(), ArbitratedConfig::drr());
    assert_eq!(refused(Kind::Wrr, ArbitratedConfig { low_weight: 0, ..wrr.clone() }), "low_weight");
    assert_eq!(refused(Kind::Wrr, ArbitratedConfig { high_weight: 257, ..wrr.clone() }), "high_weight");
    assert_eq!(refused(Kind::Drr, ArbitratedConfig { medium_weight: 1_025, ..drr.clone() }), "medium_weight");
    assert_eq!(refused(Kind::Wrr, ArbitratedConfig { arbitration_burst: 0, ..wrr }), "arbitration_burst");
    assert_eq!(refused(Kind::Drr, ArbitratedConfig { max_in_flight: 0, ..drr }), "max_in_flight");
}

/// Sends until nothing may go; what went where.
fn fill(policy: &mut Arbitrated) -> Vec<(u16, HwqId)> {
    let send = || {
        let Next::Send { vq, hwq } = policy.next(T0) else { return None };
        policy.sent(vq, hwq, Op::Read, 4 * KIB, T0);
        Some((vq.0, hwq))
    };
    std::iter::from_fn(send).collect()
}

#[test]
fn a_drive_with_weights_gets_each_class_over_hwqs_of_it_in_the_same_order() {
    let priorities = [fixed(QueuePriority::Urgent), HIGH, MEDIUM, LOW, TenantPriority::OfQueue];
    let filled = |weighted| {
        let shape = PollerShape { hwqs: 7, hwq_depth: 200, guaranteed_vqs: 0, weighted };
        let config = ArbitratedConfig { max_in_flight: 200, ..ArbitratedConfig::wrr() };
        let mut policy = Arbitrated::wrr(&config, &shape).unwrap();
        for (tenant, priority) in (0..).zip(priorities) {
            add(&mut policy, tenant, tenant, priority, Some(QueuePriority::Low));
        }
        policy.arrived(VqSlot(0), 7, T0);
        (fill(&mut policy), policy)
    };
    let (went, mut policy) = filled(true);
    let order = |went: &[(u16, HwqId)]| went.iter().map(|one| one.0).collect::<Vec<_>>();
    assert_eq!(order(&went), order(&filled(false).0));
    assert_eq!(went.len(), 200);
    let classes = PolicyConfig::Wrr(ArbitratedConfig::wrr());
    let shape = PollerShape { hwqs: 7, hwq_depth: 200, guaranteed_vqs: 0, weighted: true };
    let classes = classes.hwq_classes(&shape).expect("the drive has weights");
    let expected = [QueuePriority::Urgent, QueuePriority::High, QueuePriority::Medium, QueuePriority::Low];
    for (vq, HwqId(hwq)) in went {
        assert_eq!(classes[usize::from(hwq)], expected[usize::from(vq).min(3)], "VQ {vq} over HWQ {hwq}");
    }
    assert_eq!(policy.hwq_of(VqSlot(1)), Some(HwqId(5)), "high has HWQs 1 and 5, and VQs go over them by their slots");
    let terms = Terms { priority: LOW, ..Terms::default() };
    policy.change_terms(TenantSlot(1), &terms, T0);
    assert_eq!(policy.hwq_of(VqSlot(1)), Some(HwqId(3)), "another class, other HWQs");
    let weights = WrrWeights { high: 32, medium: 16, low: 8 };
    assert_eq!(policy.wrr_weights(), Some(weights));
}

#[test]
fn a_drives_weights_are_left_alone_where_classes_have_no_hwqs_of_their_own() {
    let wrr = ArbitratedConfig::wrr();
    let of = |hwqs, hwq_depth, weighted| PollerShape { hwqs, hwq_depth, guaranteed_vqs: 0, weighted };
    let used = |shape: PollerShape| Arbitrated::wrr(&wrr, &shape).unwrap().wrr_weights().is_some();
    assert!(used(of(4, wrr.max_in_flight, true)));
    assert!(!used(of(3, wrr.max_in_flight, true)), "one for each class");
    assert!(!used(of(4, wrr.max_in_flight - 1, true)), "one could be full");
    assert!(!used(of(4, wrr.max_in_flight, false)));
    let drr = Arbitrated::drr(&ArbitratedConfig::drr(), &of(4, 1024, true)).unwrap();
    assert_eq!(drr.wrr_weights(), None);
}

#[test]
fn a_class_has_here_what_its_flows_are_of_all_pollers_flows() {
    let mut here = backlogged(Kind::Wrr, ArbitratedConfig::wrr(), &[HIGH, LOW]);
    let mut there = backlogged(Kind::Wrr, ArbitratedConfig::wrr(), &[HIGH, HIGH, HIGH, HIGH]);
    let mut served = [0; 2];
    for _ in 0..100 {
        let demands = [here.demand().unwrap(), there.demand().unwrap()];
        here.demands(&demands, 0, T0);
        there.demands(&demands, 1, T0);
        (0..100).for_each(|_| served[usize::from(serve(&mut here, |_| 4 * KIB))] += 1);
    }
    // A fifth of 32, and all of 8.
    assert!((ratio(served[0], served[1]) - 0.8).abs() < 0.03, "{served:?}");
}
