//! The event loop: deterministic, complete, and as long as its parts say.

use crate::common::{BEST_EFFORT, GUARANTEED, clean, reader, scenario, steady};
use io_model::Nanos;
use policy::PolicyConfig;
use rivals::{LabConfig, MqfqConfig};
use sim::{FREE, GuestCosts, HostCosts, Layout, PathCosts, Report, Scenario};

fn json(report: &Report) -> String {
    serde_json::to_string(report).expect("a report is plain data")
}

#[test]
fn the_seed_decides_everything() {
    let mut scenario = scenario(vec![reader(GUARANTEED, 1, 1), reader(BEST_EFFORT, 2, 16)]);
    for layout in Layout::ALL {
        scenario.layout = layout;
        scenario.seed = 1;
        let first = json(&clean(&scenario));
        assert_eq!(first, json(&clean(&scenario)), "{layout:?}");
        scenario.seed = 2;
        assert_ne!(first, json(&clean(&scenario)), "{layout:?}");
    }
}

/// One guest with one command at a time under costs that never vary: each latency is the sum of its parts.
#[test]
fn a_lone_tenants_latency_is_the_sum_of_the_parts() {
    let guest =
        GuestCosts { app_ns: 1_000, submit_ns: 10, write_ns: 0, irq_ns: 200, complete_ns: 3_000, varies_permille: 0 };
    let path = PathCosts {
        pass_ns: 400,
        fetch_ns: 500_000,
        complete_ns: 6_000_000,
        doorbell_ns: 70_000_000,
        interrupt_ns: 100_000_000,
        delivery_ns: 800_000_000,
        ..FREE
    };
    let alone = |path: PathCosts| {
        let mut scenario = scenario(vec![reader(BEST_EFFORT, 1, 1)]);
        scenario.costs = HostCosts { guest, mediated: path, ..HostCosts::default() };
        scenario.starvation_limit = Nanos::from_millis(100_000);
        (scenario.warmup, scenario.duration) = (Nanos(0), Nanos::from_millis(20_000));
        clean(&scenario).tenants[0].latency.clone()
    };
    let profile = ssd_model::Profile::p5800x();
    let drive_ns = profile.controller_ns + profile.read_ns + profile.pipeline_ns;
    let guest_ns = 10 + 200 + 3_000;
    let free = alone(FREE);
    assert_eq!(free.max_ns, guest_ns + drive_ns);
    assert_eq!(free.mean_ns, (guest_ns + drive_ns) as f64, "no I/O differs");
    // Half a pass until the poller sees the doorbell, half a pass until it sees the completion.
    let path_ns = 400 + 500_000 + 70_000_000 + 6_000_000 + 800_000_000;
    assert_eq!(alone(path).max_ns, guest_ns + drive_ns + path_ns);
}

#[test]
fn a_sleeping_loop_pays_for_each_waking() {
    let latency_ns = |wake_ns| {
        let mut scenario = scenario(vec![reader(BEST_EFFORT, 1, 1)]);
        scenario.costs = steady();
        scenario.costs.mediated.wake_ns = wake_ns;
        clean(&scenario).tenants[0].latency.max_ns
    };
    assert_eq!(latency_ns(5_000), latency_ns(0) + 2 * 5_000, "once for the doorbell, once for the drive");
}

#[test]
fn a_lock_is_taken_in_turn_twice_for_each_command() {
    let free = HostCosts { guest: GuestCosts { varies_permille: 0, ..GuestCosts::default() }, k2: FREE, ..steady() };
    let run = |tenants, lock_ns| {
        let mut scenario = Scenario { layout: Layout::K2, ..scenario(tenants) };
        scenario.costs = HostCosts { k2: PathCosts { lock_ns, ..FREE }, ..free };
        clean(&scenario)
    };
    let alone = |lock_ns| run(vec![reader(BEST_EFFORT, 1, 1)], lock_ns).tenants[0].latency.max_ns;
    assert_eq!(alone(1_000), alone(0) + 1_000, "the second time comes when the application knows already");
    // With everybody at it, the lock is what limits: a command holds it for 2 × 2 µs.
    let crowd = run((0..8).map(|_| reader(BEST_EFFORT, 4, 32)).collect(), 2_000);
    assert!((crowd.total_iops() - 250_000.0).abs() < 5_000.0, "{} IOPS", crowd.total_iops());
}

#[test]
fn layouts_group_tenants_as_their_systems_do() {
    let mixed = [true, false, false, true];
    let pollers = |layout: Layout| layout.pollers(&mixed, 1);
    assert_eq!(pollers(Layout::Evenkeel), [vec![0], vec![3], vec![1, 2]]);
    for one in [Layout::Mdev, Layout::Spdk, Layout::K2] {
        assert_eq!(pollers(one), [vec![0, 1, 2, 3]], "{one:?}");
    }
    for each in [Layout::Virtio, Layout::SrIov] {
        assert_eq!(pollers(each), [[0], [1], [2], [3]], "{each:?}");
    }
    assert_eq!(Layout::Evenkeel.pollers(&[true], 1), [[0]], "no poller for nobody");
    let tenants = vec![reader(GUARANTEED, 1, 1), reader(BEST_EFFORT, 1, 4)];
    for layout in Layout::ALL {
        let scenario = Scenario { layout, ..scenario(tenants.clone()) };
        assert_eq!(clean(&scenario).poller_utilization.len(), scenario.pollers().len());
    }
}

#[test]
fn every_policy_drains_on_every_layout() {
    let tenants = vec![reader(GUARANTEED, 1, 1), reader(BEST_EFFORT, 4, 32), reader(BEST_EFFORT, 4, 32)];
    let policies = [
        PolicyConfig::Passthrough,
        PolicyConfig::Lpns(policy::LpnsConfig::p5800x()),
        PolicyConfig::Fair(policy::FairConfig::p5800x()),
        PolicyConfig::Wrr(policy::ArbitratedConfig::wrr()),
        PolicyConfig::Drr(policy::ArbitratedConfig::drr()),
    ];
    let rivals = [LabConfig::Mqfq(MqfqConfig::default()), LabConfig::Caps];
    for policy in policies.map(LabConfig::from).into_iter().chain(rivals) {
        for layout in Layout::ALL {
            let report = clean(&Scenario { layout, policy: policy.clone(), ..scenario(tenants.clone()) });
            let busy = report.tenants.iter().all(|tenant| tenant.latency.count > 0);
            assert!(busy, "{} on {layout:?}", report.policy);
        }
    }
}

/// Ten times the I/Os, hardly an allocation more.
#[test]
fn memory_does_not_grow_with_the_run() {
    let run = |duration_ms| {
        let mut scenario = scenario(vec![reader(GUARANTEED, 1, 1), reader(BEST_EFFORT, 4, 32)]);
        scenario.duration = Nanos::from_millis(duration_ms);
        let mut ios = 0;
        let used = allocation_counter::measure(|| ios = sim::run(&scenario).unwrap().simulated_ios);
        (ios, used)
    };
    let (short_ios, short) = run(30);
    let (long_ios, long) = run(300);
    assert!(long_ios > 8 * short_ios, "{short_ios}, {long_ios}");
    let more_bytes = long.bytes_max.saturating_sub(short.bytes_max);
    assert!(more_bytes < 64 << 10, "{more_bytes} bytes more for {long_ios} I/Os than for {short_ios}");
    let more = long.count_total.saturating_sub(short.count_total);
    assert!(more < 1_000, "{more} allocations more for {} I/Os more", long_ios - short_ios);
}
