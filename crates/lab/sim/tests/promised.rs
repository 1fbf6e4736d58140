//! What `evenkeel` promises: a percentile just below the target, and no more taken from others than that needs.

mod common;

use common::{BEST_EFFORT, clean, reader, scenario};
use io_model::Nanos;
use policy::{Class, EvenkeelConfig, LpnsConfig, PolicyConfig, Terms};
use sim::workload::{Access, BlockSize, Fio, Workload};
use sim::{Change, ChangeKind, Report, Scenario};

fn ours() -> PolicyConfig {
    PolicyConfig::Evenkeel(EvenkeelConfig::p5800x())
}

/// Reads, one at a time, beside two busy tenants of such commands.
fn beside(target: Nanos, kib: u32, read_percent: u8, policy: PolicyConfig) -> Scenario {
    let access =
        Access { block_sizes: vec![BlockSize { bytes: kib << 10, weight: 1 }], ..Access::random_4k(read_percent) };
    let mut busy = reader(BEST_EFFORT, 4, 64);
    busy.workload = Workload::Fio(Fio { jobs: 4, iodepth: 64, access });
    let promised = reader(Class::Guaranteed { latency_target: Some(target) }, 1, 1);
    Scenario {
        policy,
        warmup: Nanos::from_millis(600),
        duration: Nanos::from_millis(300),
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

#[test]
fn a_looser_target_never_gives_others_less() {
    let got = [40, 60, 100, 200].map(|target_us| {
        let report = clean(&beside(Nanos::from_micros(target_us), 16, 50, ours()));
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
