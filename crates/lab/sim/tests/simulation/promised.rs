//! What `evenkeel` promises: a percentile just below the target, and no more taken from others than that needs.

use crate::common::{BEST_EFFORT, clean, reader, scenario};
use io_model::Nanos;
use policy::{Class, EvenkeelConfig, Floor, LpnsConfig, Percentile, PolicyConfig, Terms};
use sim::workload::{Access, Arrivals, BlockSize, Fio, Open, Workload};
use sim::{Change, ChangeKind, Report, Scenario, Tenant};
use ssd_model::Profile;

fn ours() -> PolicyConfig {
    PolicyConfig::Evenkeel(EvenkeelConfig::p5800x())
}

/// Reads, one at a time, beside two busy tenants of such commands.
fn beside(target: Nanos, kib: u32, read_percent: u8, policy: PolicyConfig) -> Scenario {
    let access =
        Access { block_sizes: vec![BlockSize { bytes: kib << 10, weight: 1 }], ..Access::random_4k(read_percent) };
    let mut busy = reader(BEST_EFFORT, 4, 64);
    busy.workload = Workload::Fio(Fio { jobs: 4, iodepth: 64, access });
    let promised = reader(Class::guaranteed(Some(target)), 1, 1);
    Scenario {
        policy: policy.into(),
        warmup: Nanos::from_millis(400),
        duration: Nanos::from_millis(200),
        ..scenario(vec![promised, busy.clone(), busy])
    }
}

fn others_bytes_s(report: &Report) -> f64 {
    report.tenants.iter().skip(1).map(|tenant| tenant.bandwidth_bytes_s).sum()
}

/// Of the target.
fn reached(report: &Report) -> f64 {
    let promised = &report.tenants[0];
    promised.latency.p99_ns as f64 / promised.target_ns.expect("it has one") as f64
}

#[test]
fn a_promise_is_kept_and_the_target_used_whatever_the_neighbours_ask_for() {
    let target = Nanos::from_micros(100);
    for (kib, read_percent) in [(4, 0), (16, 50), (64, 100)] {
        let report = clean(&beside(target, kib, read_percent, ours()));
        let reached = reached(&report);
        // With 4 KiB the poller is busy before the drive is.
        let least = if kib == 4 { 0.0 } else { 0.8 };
        assert!((least..=1.0).contains(&reached), "{kib} KiB: {reached}");
        let lpns = clean(&beside(target, kib, read_percent, PolicyConfig::Lpns(LpnsConfig::p5800x())));
        let (got, with_lpns) = (others_bytes_s(&report), others_bytes_s(&lpns));
        assert!(got > with_lpns * if kib == 4 { 0.97 } else { 1.4 }, "{kib} KiB: {got}, lpns {with_lpns}");
    }
}

/// Two tenants with commands of 1 MiB, of which one alone takes longer than the target, and one of weight 2 among them;
/// and two with 4 KiB.
#[test]
fn a_target_that_a_single_command_of_others_takes_longer_than_is_kept() {
    let mut scenario = beside(Nanos::from_micros(60), 1024, 0, ours());
    scenario.tenants[2].terms = Terms::best_effort(2);
    let mut short = reader(BEST_EFFORT, 4, 8);
    short.workload = Workload::Fio(Fio::random_4k(4, 8, 100));
    scenario.tenants.extend([short.clone(), short]);
    (scenario.warmup, scenario.duration) = (Nanos::from_millis(1_000), Nanos::from_millis(2_000));
    scenario.starvation_limit = Nanos::from_millis(500);
    let report = clean(&scenario);
    assert!(reached(&report) <= 1.0, "{}", reached(&report));
    let got: Vec<f64> = report.tenants[1..].iter().map(|tenant| tenant.bandwidth_bytes_s / 1e6).collect();
    // A hundredth of 800,000 commands of 4 KiB per second is theirs in any case.
    assert!(got[0] + got[1] > 30.0 && (1.8..2.2).contains(&(got[1] / got[0])), "by weight: {got:?}");
    assert!(got[2] > 300.0 && got[3] > 300.0, "others pass by: {got:?}");
}

/// Two tenants of weights 1 and 3 that keep 128 short commands outstanding each.
fn by_weight(profile: Profile, policy: PolicyConfig) -> Vec<f64> {
    let of = |weight| {
        let workload = Workload::Fio(Fio::random_4k(4, 32, 50));
        Tenant { terms: Terms::best_effort(weight), workload, ..reader(BEST_EFFORT, 4, 32) }
    };
    let scenario = Scenario { policy: policy.into(), profile, ..scenario(vec![of(1), of(3)]) };
    clean(&Scenario { warmup: Nanos::from_millis(200), duration: Nanos::from_millis(100), ..scenario })
        .tenants
        .iter()
        .map(|tenant| tenant.iops)
        .collect()
}

#[test]
fn weights_have_their_say_where_little_more_is_asked_for_than_keeps_the_drive_busy() {
    for profile in [Profile::p5800x(), Profile::pm1735()] {
        let figures = planner::drive_figures(&profile);
        let on = |is_assumed| {
            let config = EvenkeelConfig { is_assumed, ..EvenkeelConfig::on(&figures) };
            by_weight(profile.clone(), PolicyConfig::Evenkeel(config))
        };
        let (known, unknown) = (on(false), on(true));
        let drive = by_weight(profile.clone(), PolicyConfig::Passthrough).iter().sum::<f64>();
        let name = &profile.name;
        assert!((2.2..3.1).contains(&(known[1] / known[0])), "{name}: {known:?}");
        assert!(known.iter().sum::<f64>() > 0.96 * drive, "{name}: {known:?}, the drive has {drive}");
        // Another drive may need more to be busy.
        assert!(unknown.iter().sum::<f64>() > 0.99 * drive, "{name}: {unknown:?}, the drive has {drive}");
    }
}

#[test]
fn a_looser_target_never_gives_others_less() {
    // The first one is less than what a guest adds, and than two of anything.
    let got = [1, 40_000, 60_000, 100_000, 200_000].map(|target_ns| {
        let report = clean(&beside(Nanos(target_ns), 16, 50, ours()));
        others_bytes_s(&report)
    });
    assert!(got.is_sorted(), "{got:?}");
}

#[test]
fn nobody_is_held_back_for_a_tenant_that_is_not_there() {
    let scenario = beside(Nanos::from_micros(50), 16, 50, ours());
    let held = others_bytes_s(&clean(&scenario));
    let leaves = Change { at: Nanos(0), tenant: 0, kind: ChangeKind::Leaves };
    let gone = others_bytes_s(&clean(&Scenario { changes: vec![leaves], ..scenario.clone() }));
    let unnamed = Terms::guaranteed(None);
    let freed = Change { at: Nanos(0), tenant: 0, kind: ChangeKind::NewTerms(unnamed) };
    let freed = others_bytes_s(&clean(&Scenario { changes: vec![freed], ..scenario }));
    assert!(gone > held * 1.5 && freed > held * 1.5, "{held} {gone} {freed}");
}

#[test]
fn another_percentile_is_kept_and_used_as_well() {
    for (percent, least, ms) in [(95.0, 0.8, 200), (99.9, 0.6, 1_000)] {
        let percentile = Percentile::new(percent).expect("a percentile");
        let target = Nanos::from_micros(100);
        let mut scenario = beside(target, 16, 50, ours());
        scenario.tenants[0].terms = Class::Guaranteed { latency_target: Some(target), percentile }.into();
        scenario.duration = Nanos::from_millis(ms);
        let report = clean(&scenario);
        let latency = &report.tenants[0].latency;
        let took_ns = if percent == 95.0 { latency.p95_ns } else { latency.p999_ns };
        let reached = took_ns as f64 / 1e5;
        assert!((least..=1.0).contains(&reached), "{percent} %: {reached}");
    }
}

/// Two tenants with floors beside a promised one and two busy ones, all of 16 KiB.
fn with_floors(floors: [Floor; 2], depth: u32) -> Scenario {
    let mut scenario = beside(Nanos::from_micros(100), 16, 50, ours());
    for floor in floors {
        let mut tenant = reader(BEST_EFFORT, 2, depth);
        let Workload::Fio(busy) = &scenario.tenants[1].workload else { unreachable!("it is one of fio") };
        tenant.workload = Workload::Fio(Fio { jobs: 2, iodepth: depth, access: busy.access.clone() });
        tenant.terms.floor = floor;
        scenario.tenants.push(tenant);
    }
    scenario.duration = Nanos::from_millis(400);
    scenario
}

#[test]
fn floors_are_kept_beside_a_promise_and_lent_where_nobody_asks() {
    let ios = Floor { ios_per_sec: 100_000, mbytes_per_sec: 0 };
    let bytes = Floor { ios_per_sec: 0, mbytes_per_sec: 600 };
    for depth in [8, 64] {
        let report = clean(&with_floors([ios, bytes], depth));
        let [promised, busy, _, ios, bytes] = &report.tenants[..] else { panic!("five") };
        assert!((98_000.0..125_000.0).contains(&ios.iops), "depth {depth}: {}", ios.iops);
        assert!(bytes.bandwidth_bytes_s > 0.98 * (600 << 20) as f64, "depth {depth}: {}", bytes.bandwidth_bytes_s);
        // The policy does not see the guest's own part.
        assert!(promised.latency.p99_ns <= 103_000, "depth {depth}: {}", promised.latency.p99_ns);
        assert!(busy.iops > 1_000.0 && busy.iops < ios.iops, "depth {depth}: {}", busy.iops);
    }
    let mut idle = with_floors([ios, bytes], 8);
    idle.changes = [3, 4].map(|tenant| Change { at: Nanos(0), tenant, kind: ChangeKind::Leaves }).to_vec();
    let lent = clean(&idle);
    let without = clean(&beside(Nanos::from_micros(100), 16, 50, ours()));
    let ratio = others_bytes_s(&lent) / others_bytes_s(&without);
    assert!((0.95..1.1).contains(&ratio), "{ratio}");
}

#[test]
fn floors_are_shared_out_where_they_are_more_than_the_drive_has() {
    let much = Floor { ios_per_sec: 1_000_000, mbytes_per_sec: 0 };
    // Tenants without a promise have 1/64 of the work in flight then.
    let starvation_limit = Nanos::from_millis(50);
    let report = clean(&Scenario { starvation_limit, ..with_floors([much, much], 64) });
    let [_, busy, other, first, second] = &report.tenants[..] else { panic!("five") };
    let part = first.iops / (first.iops + second.iops);
    assert!((0.45..0.55).contains(&part), "{part}");
    assert!(busy.iops + other.iops > 0.01 * (first.iops + second.iops), "{} {}", busy.iops, other.iops);
}

#[test]
fn a_floor_beyond_what_a_poller_can_do_leaves_others_their_64th() {
    let busy = Fio { jobs: 8, iodepth: 16, access: Access::random_4k(50) };
    let busy = Tenant { workload: Workload::Fio(busy), ..reader(BEST_EFFORT, 8, 16) };
    let mut tenants = vec![busy; 2];
    tenants[1].terms.floor = Floor { ios_per_sec: 1_000_000, mbytes_per_sec: 0 };
    let mut scenario = Scenario { policy: ours().into(), ..scenario(tenants) };
    (scenario.warmup, scenario.duration) = (Nanos::from_millis(300), Nanos::from_millis(200));
    scenario.starvation_limit = Nanos::from_millis(100);
    let report = clean(&scenario);
    let [other, floor] = [0, 1].map(|tenant| report.tenants[tenant].iops);
    assert!(other > 0.014 * (other + floor) && floor > 500_000.0, "{other} {floor}");
}

#[test]
fn who_awakes_is_on_time_from_its_20th_command_on() {
    let mut scenario = beside(Nanos::from_micros(100), 16, 50, ours());
    let ms = Nanos::from_millis;
    // Bursts of 500 commands, one at a time, each after more than a second of silence.
    let arrivals = Arrivals::Bursts { iops: 5_000.0, on: ms(100), off: ms(1_200) };
    let access = Access::random_4k(100);
    scenario.tenants[0].workload = Workload::Open(Open { jobs: 1, arrivals, max_outstanding: 4, access });
    scenario.warmup = ms(1_000);
    scenario.duration = ms(3_000);
    let report = clean(&scenario);
    let it = &report.tenants[0];
    let (late, all) = (it.over_target, it.reads.count);
    assert!(late < 2 * 20 + all / 100, "{late} of {all}");
}
