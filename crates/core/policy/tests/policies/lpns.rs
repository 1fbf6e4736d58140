//! What LPNS promises, against a drive in virtual time; and where the published rule breaks.

use io_model::{HwqId, Nanos, Op, TenantId, VqId};
use policy::{Class, Lpns, LpnsConfig, Next, Passthrough, Policy, TenantReport, TenantSlot, Variant, VqSlot};

use crate::support::{INTERVAL, Workload, World};

/// How long is measured.
const SPAN: Nanos = Nanos::from_millis(400);
/// What 6 servers of 7.2 µs do in a second.
const DRIVE_IOPS: f64 = 833_333.0;

fn lpns(variant: Variant) -> Lpns {
    Lpns::new(LpnsConfig { variant, ..LpnsConfig::p5800x() }).expect("a valid preset")
}

fn corrected() -> Lpns {
    lpns(Variant::Corrected)
}

fn iops<P>(world: &World<P>, tenant: usize, span: Nanos) -> f64 {
    world.seen[tenant].latencies_ns.len() as f64 * 1e9 / span.0 as f64
}

/// Runs in for 200 ms, then measures.
fn measure<P: Policy>(policies: Vec<P>, tenants: &[Workload]) -> World<P> {
    let mut world = World::p5800x(policies, tenants);
    world.run(Nanos::from_millis(200));
    world.forget();
    world.run(SPAN);
    world
}

fn noisy() -> Workload {
    Workload::best_effort(1, 4, 32)
}

#[test]
fn a_promise_is_broken_by_round_robin_and_kept_by_lpns() {
    let tenants = [Workload::guaranteed(50), noisy(), noisy(), noisy()];
    let world = measure(vec![Passthrough::new(8, 1024)], &tenants);
    assert!(world.seen[0].mean_us() > 300.0, "{}", world.seen[0].mean_us());

    let world = measure(vec![corrected()], &tenants);
    assert!(world.seen[0].percentile_us(99.0) <= 50.0, "{}", world.seen[0].percentile_us(99.0));
    let others: f64 = (1..4).map(|tenant| iops(&world, tenant, SPAN)).sum();
    assert!(others > 0.75 * DRIVE_IOPS, "{others}");
}

#[test]
fn a_promise_is_kept_from_another_poller_through_reports_alone() {
    let tenants = [Workload::guaranteed(50), noisy().at(1), noisy().at(1), noisy().at(2)];
    let world = measure(vec![corrected(), corrected(), corrected()], &tenants);
    assert!(world.seen[0].percentile_us(99.0) <= 50.0, "{}", world.seen[0].percentile_us(99.0));
    let each: Vec<f64> = (1..4).map(|tenant| iops(&world, tenant, SPAN)).collect();
    assert!(each.iter().sum::<f64>() > 0.7 * DRIVE_IOPS, "{each:?}");
    // Equal weights, two at one poller and one alone: the cap is split by weight.
    assert!(each.iter().all(|iops| (iops / each[0] - 1.0).abs() < 0.1), "{each:?}");
}

#[test]
fn a_tighter_promise_is_bought_with_throughput() {
    let others = |target_us| {
        let world = measure(vec![corrected()], &[Workload::guaranteed(target_us), noisy(), noisy()]);
        let p99 = world.seen[0].percentile_us(99.0);
        assert!(p99 <= target_us as f64, "{p99} over {target_us}");
        iops(&world, 1, SPAN) + iops(&world, 2, SPAN)
    };
    let (tight, loose) = (others(14), others(50));
    assert!(tight < 0.5 * loose && tight > 0.05 * loose, "{tight} {loose}");
}

#[test]
fn the_feedback_finds_what_a_slower_drive_allows() {
    // Configured for a drive three times as fast: the cap would be too high by as much.
    let config = LpnsConfig { r_iops: 2_400_000.0, ..LpnsConfig::p5800x() };
    let tenants = [Workload::guaranteed(50), noisy(), noisy(), noisy()];
    let mut world = World::p5800x(vec![Lpns::new(config).unwrap()], &tenants);
    world.run(Nanos::from_millis(5_000));
    world.forget();
    world.run(Nanos::from_millis(3_000));
    assert!(world.seen[0].percentile_us(99.0) <= 50.0, "{}", world.seen[0].percentile_us(99.0));
    let omega = world.policies[0].throttle_state().omega;
    assert!((20.0..40.0).contains(&omega), "{omega}");
    let others: f64 = (1..4).map(|tenant| iops(&world, tenant, Nanos::from_millis(3_000))).sum();
    assert!(others > 0.75 * DRIVE_IOPS, "{others}");
}

#[test]
fn the_feedback_finds_what_a_skewed_drive_allows() {
    // A queue per unit: the rate is the same on the mean, but a command may meet a long queue, which the
    // calculus knows nothing of.
    let tenants = [Workload::guaranteed(60), noisy().at(1), noisy().at(1), noisy().at(1)];
    let mut world = World::p5800x(vec![corrected(), corrected()], &tenants);
    world.hashed = true;
    world.run(Nanos::from_millis(3_000));
    world.forget();
    world.run(Nanos::from_millis(2_000));
    assert!(world.seen[0].percentile_us(99.0) <= 60.0, "{}", world.seen[0].percentile_us(99.0));
    let others: f64 = (1..4).map(|tenant| iops(&world, tenant, Nanos::from_millis(2_000))).sum();
    assert!(others > 0.6 * DRIVE_IOPS, "{others}");
    assert!(world.policies[1].throttle_state().omega < 30.0);
}

#[test]
fn weights_are_kept_beside_a_guaranteed_tenant_and_without() {
    let best_effort = [1, 2, 4].map(|weight| Workload::best_effort(weight, 4, 64));
    for guaranteed in [true, false] {
        let mut tenants = best_effort.to_vec();
        if guaranteed {
            tenants.push(Workload::guaranteed(50));
        }
        let world = measure(vec![corrected()], &tenants);
        let shares: Vec<f64> = (0..3).map(|tenant| iops(&world, tenant, SPAN)).collect();
        assert!((shares[1] / shares[0] - 2.0).abs() < 0.06, "{guaranteed} {shares:?}");
        assert!((shares[2] / shares[0] - 4.0).abs() < 0.12, "{guaranteed} {shares:?}");
    }
}

#[test]
fn shares_are_counted_in_work_not_in_commands() {
    let large = noisy().with_len(128 << 10);
    let world = measure(vec![corrected()], &[large, noisy(), Workload::guaranteed(400)]);
    let (large, small) = (iops(&world, 0, SPAN) * 32.0, iops(&world, 1, SPAN));
    assert!((large / small - 1.0).abs() < 0.05, "{large} {small}");
    assert!(world.seen[2].percentile_us(99.0) <= 400.0, "{}", world.seen[2].percentile_us(99.0));
}

#[test]
fn a_heavy_tenant_does_not_starve_a_light_one() {
    let light = Workload::best_effort(1, 1, 1);
    let heavy = Workload::best_effort(1, 4, 256);
    let world = measure(vec![corrected()], &[light, heavy, heavy, Workload::guaranteed(50)]);
    // The light one has one command at a time: it waits for the drive, not for the others' queues.
    assert!(world.seen[0].percentile_us(99.0) <= 55.0, "{}", world.seen[0].percentile_us(99.0));
    assert!(iops(&world, 0, SPAN) > 15_000.0, "{}", iops(&world, 0, SPAN));
}

#[test]
fn an_idle_guaranteed_tenant_costs_nothing_but_stops_everyone_as_published() {
    let tenants = [Workload::guaranteed(50), noisy(), noisy()];
    let others = |policy: Lpns| {
        let mut world = World::p5800x(vec![policy], &tenants);
        world.sleep(0);
        world.run(Nanos::from_millis(300));
        world.forget();
        world.run(SPAN);
        iops(&world, 1, SPAN) + iops(&world, 2, SPAN)
    };
    let free = others(corrected());
    assert!(free > 0.99 * DRIVE_IOPS, "{free}");
    assert_eq!(others(lpns(Variant::Published)), 0.0);
}

#[test]
fn a_fast_guaranteed_tenant_disables_the_published_rule() {
    // Even in the crowd its p stays far above R/Ω = 4.2K IOPS, so θ·p is more than the drive does.
    let fast = Workload { vqs: 4, depth: 8, ..Workload::guaranteed(50) };
    let world = measure(vec![lpns(Variant::Published)], &[fast, noisy(), noisy(), noisy()]);
    assert!(world.seen[0].mean_us() > 400.0, "{}", world.seen[0].mean_us());
    assert!(world.policies[0].throttle_state().theta.is_some());
}

#[test]
fn the_published_rule_suspends_at_exactly_theta_times_p() {
    // About 2000 IOPS, 20 per interval; Ω = 190, i = 1, j = 2: θ = 94.5, so each may send floor(94.5·p).
    let slow = Workload::guaranteed(50).thinking(Nanos::from_micros(488));
    let mut world = World::p5800x(vec![lpns(Variant::Published)], &[slow, noisy(), noisy()]);
    world.run(Nanos::from_millis(300));
    assert_eq!(world.policies[0].throttle_state().theta, Some(94.5));
    let p = world.seen[0].per_interval.clone();
    assert!(p.iter().all(|count| (10..=21).contains(count)), "{p:?}");
    for noisy in [1, 2] {
        let sent = &world.seen[noisy].per_interval;
        let binding = (2..sent.len()).filter(|at| sent[*at] == (94.5 * p[at - 1] as f64) as u64);
        assert_eq!(binding.count(), sent.len() - 2, "{p:?} {sent:?}");
    }
}

#[test]
fn a_rogue_guaranteed_tenant_neither_starves_the_others_nor_breaks_its_own_promise() {
    let rogue = Workload { vqs: 4, depth: 256, ..Workload::guaranteed(50) };
    let world = measure(vec![corrected()], &[rogue, noisy(), noisy()]);
    let others = iops(&world, 1, SPAN) + iops(&world, 2, SPAN);
    assert!(others > 0.05 * DRIVE_IOPS, "{others}");
    assert!(iops(&world, 0, SPAN) > 0.5 * DRIVE_IOPS, "{}", iops(&world, 0, SPAN));
    assert!(world.seen[0].percentile_us(99.0) <= 50.0, "{}", world.seen[0].percentile_us(99.0));
}

#[test]
fn a_guaranteed_tenant_alone_may_use_the_whole_drive() {
    let deep = Workload { vqs: 4, depth: 64, ..Workload::guaranteed(50) };
    let world = measure(vec![corrected()], &[deep]);
    assert!(iops(&world, 0, SPAN) > 0.99 * DRIVE_IOPS, "{}", iops(&world, 0, SPAN));
    assert!(world.seen[0].mean_us() > 250.0);
}

#[test]
fn a_waking_guaranteed_tenant_is_protected_within_an_interval() {
    let tenants = [Workload::guaranteed(50), noisy().at(1), noisy().at(1)];
    let mut world = World::p5800x(vec![corrected(), corrected()], &tenants);
    world.run(Nanos::from_millis(100));
    world.sleep(0);
    world.run(SPAN);
    assert!(!world.policies[1].throttle_state().engaged);
    world.wake(0);
    world.run(INTERVAL + Nanos::from_millis(1));
    assert!(world.policies[1].throttle_state().engaged);
    world.forget();
    world.run(Nanos::from_millis(200));
    assert!(world.seen[0].percentile_us(99.0) <= 50.0, "{}", world.seen[0].percentile_us(99.0));
}

#[test]
fn bounds_say_what_they_rest_on() {
    let tenants = [Workload::guaranteed(50), noisy()];
    let world = measure(vec![corrected()], &tenants);
    let bound = world.policies[0].bound_of(TenantId(0));
    let published = bound.published.unwrap();
    assert_eq!(published.latency, Nanos(248_550));
    // 31.16 commands in all: 30.16 best-effort and one of its own.
    assert_eq!(bound.corrected, Some(Nanos(50_000)));
    assert_eq!(bound.vouched, bound.corrected);
    assert!((bound.rests_on.best_effort_cap.unwrap() - 30.16).abs() < 1e-6);
    assert_eq!(bound.rests_on.guaranteed_in_flight, 1.0);
    assert!(bound.rests_on.engaged && bound.rests_on.arriving_iops.is_some_and(|iops| iops <= 800_000.0));
    assert!(!published.rate_within_r, "p·Ω is far above R here");
    let worst = world.seen[0].percentile_us(100.0);
    assert!(worst <= 50.0, "{worst}");

    let world = measure(vec![lpns(Variant::Published)], &tenants);
    assert_eq!(world.policies[0].bound_of(TenantId(0)).corrected, None);
    assert_eq!(world.policies[0].bound_of(TenantId(0)).vouched, Some(Nanos(248_550)));
}

#[test]
fn no_bound_is_given_to_who_may_be_overtaken_in_a_drive_with_weights() {
    let vouched = |hwqs_high| {
        let config = LpnsConfig { hwqs_high, ..LpnsConfig::p5800x() };
        let world = measure(vec![Lpns::new(config).unwrap()], &[Workload::guaranteed(50), noisy()]);
        [0, 1].map(|tenant| world.policies[0].bound_of(TenantId(tenant)).vouched.is_some())
    };
    assert_eq!(vouched(None), [true, true], "the drive takes turns");
    assert_eq!(vouched(Some(1)), [true, false], "the guaranteed one goes first");
    assert_eq!(vouched(Some(0)), [false, false], "it has no queue of the class high");
}

#[test]
fn no_bound_is_given_where_commands_outrun_the_drive() {
    let config = LpnsConfig { r_iops: 300_000.0, ..LpnsConfig::p5800x() };
    let deep = Workload { vqs: 2, depth: 16, ..Workload::guaranteed(500) };
    let world = measure(vec![Lpns::new(config).unwrap()], &[deep]);
    let bound = world.policies[0].bound_of(TenantId(0));
    assert!(bound.rests_on.arriving_iops.is_some_and(|iops| iops > 300_000.0) && !bound.rests_on.windowed, "{bound:?}");
    assert_eq!(bound.corrected, None);
}

#[test]
fn a_guaranteed_vq_never_waits_for_the_home_that_it_lent() {
    let config = LpnsConfig { hwqs_exclusive: 1, hwqs_shared: 1, period: INTERVAL, ..LpnsConfig::p5800x() };
    let mut policy = Lpns::new(config).unwrap();
    let (owner, borrower) = (VqSlot(0), VqSlot(1));
    let (home, shared) = (HwqId(0), HwqId(1));
    let mut now = Nanos(0);
    let vq = |tenant| VqId { tenant: TenantId(tenant), index: 1 };
    policy.attach(owner, vq(0), TenantSlot(0), &Workload::guaranteed(50).class.into(), now);
    policy.attach(borrower, vq(1), TenantSlot(1), &noisy().class.into(), now);
    policy.arrived(borrower, 5, now);
    for _ in 0..2 {
        now += INTERVAL;
        policy.interval(&[], now);
    }
    assert_eq!((policy.hwq_of(owner), policy.hwq_of(borrower)), (Some(shared), Some(home)));
    for _ in 0..2 {
        assert_eq!(policy.next(now), Next::Send { vq: borrower, hwq: home });
        policy.sent(borrower, home, Op::Read, 4096, now);
    }

    policy.arrived(owner, 2, now);
    assert_eq!(policy.next(now), Next::Send { vq: owner, hwq: shared }, "at once, over the backup");
    assert!(policy.is_switching(owner));
    policy.sent(owner, shared, Op::Read, 4096, now);
    assert_eq!(policy.hwq_of(borrower), Some(shared), "the borrower goes on elsewhere");
    for left in [1, 0] {
        policy.completed(borrower, home, TenantSlot(1), Op::Read, 4096, Nanos(1), now);
        assert_eq!(policy.in_flight(home), left);
    }
    assert!(!policy.is_switching(owner));
    assert_eq!(policy.next(now), Next::Send { vq: owner, hwq: home }, "its command on the backup is still out");
    assert_eq!((policy.in_flight(shared), policy.switches()), (1, 3));
}

/// Sends from VQ slot 0 until the policy won't; returns how many commands went.
fn fill(policy: &mut Lpns, now: Nanos) -> u32 {
    policy.arrived(VqSlot(0), 1000, now);
    let mut sent = 0;
    while let Next::Send { vq, hwq } = policy.next(now) {
        policy.sent(vq, hwq, Op::Read, 4096, now);
        sent += 1;
    }
    sent
}

fn report(tenant: u32, class: Class, submitted: u64, busy_pollers: u32) -> TenantReport {
    TenantReport {
        submitted,
        completed: submitted,
        mean_latency: Nanos::from_micros(20),
        busy_pollers,
        ..TenantReport::new(TenantId(tenant), class)
    }
}

#[test]
fn a_larger_cap_is_told_an_interval_before_it_is_used() {
    let class = Class::guaranteed(Some(Nanos::from_micros(50)));
    let mut policy = corrected();
    let (own, best_effort) = (VqId { tenant: TenantId(1), index: 1 }, Class::BestEffort { weight: 1 });
    policy.attach(VqSlot(0), own, TenantSlot(0), &best_effort.into(), Nanos(0));
    let mut caps = Vec::new();
    // What the guaranteed tenant has in flight, which best effort may not.
    for (interval, depth) in (1..).zip([20, 20, 1, 1, 20]) {
        let now = Nanos::from_millis(10 * interval);
        let submitted = 1_000 * interval;
        let guaranteed = TenantReport { completed: submitted - depth, ..report(0, class, submitted, 1) };
        policy.interval(&[guaranteed, report(1, best_effort, submitted, 1)], now);
        // The rate allows more by then.
        let now = now + Nanos::from_millis(1);
        let sent = fill(&mut policy, now);
        for _ in 0..sent {
            let hwq = policy.hwq_of(VqSlot(0)).expect("attached");
            policy.completed(VqSlot(0), hwq, TenantSlot(0), Op::Read, 4096, Nanos(1), now);
        }
        caps.push((sent, policy.bound_of(TenantId(1)).rests_on.best_effort_cap.map(f64::ceil)));
    }
    let told = caps.iter().map(|(_, told)| *told).collect::<Vec<_>>();
    assert_eq!(told[1..], [Some(12.0), Some(30.0), Some(30.0), Some(30.0)], "{caps:?}");
    let used = caps.iter().map(|(used, _)| *used).collect::<Vec<_>>();
    assert_eq!(used[1..], [12, 12, 30, 12], "a smaller one at once: {caps:?}");
}

#[test]
fn pollers_that_serve_one_guaranteed_tenant_share_its_limit() {
    let class = Class::guaranteed(Some(Nanos::from_micros(50)));
    let sent_at_each = |busy_pollers: u32| -> Vec<u32> {
        let at = |interval| Nanos::from_millis(10 * interval);
        // Each poller serves one of the tenant's virtqueues, whose indexes count from 1.
        let poller = |index| {
            let mut policy = corrected();
            policy.attach(VqSlot(0), VqId { tenant: TenantId(0), index }, TenantSlot(0), &class.into(), at(0));
            for interval in 1..3 {
                let best_effort = report(1, Class::BestEffort { weight: 1 }, 1000 * interval, 1);
                policy.interval(&[report(0, class, 1000 * interval, busy_pollers), best_effort], at(interval));
            }
            fill(&mut policy, at(2))
        };
        (1..=busy_pollers as u16).map(poller).collect()
    };
    let alone = sent_at_each(1);
    assert!((6..32).contains(&alone[0]), "what the target allows: {alone:?}");
    for pollers in [2, 4] {
        let each = sent_at_each(pollers);
        let all: u32 = each.iter().sum();
        assert!((alone[0]..alone[0] + pollers).contains(&all), "{each:?} together, {alone:?} alone");
    }
    assert_eq!(sent_at_each(64), [1; 64], "everyone may have one at least");
}

#[test]
fn the_first_virtqueue_index_is_like_any_other() {
    let class = Class::guaranteed(Some(Nanos::from_micros(50)));
    let hwqs: Vec<_> = [0, 1, 64]
        .map(|index| {
            let mut policy = corrected();
            policy.attach(VqSlot(0), VqId { tenant: TenantId(0), index }, TenantSlot(0), &class.into(), Nanos(0));
            policy.arrived(VqSlot(0), 1, Nanos(0));
            policy.next(Nanos(0))
        })
        .into();
    assert_eq!(hwqs, [Next::Send { vq: VqSlot(0), hwq: HwqId(0) }; 3]);
}
