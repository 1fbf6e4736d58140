//! Commands are held against the bound that was vouched for, and what it rests on is told apart.

use crate::common::{BEST_EFFORT, clean, reader, scenario, with_fault};
use io_model::Nanos;
use policy::{Class, EvenkeelConfig, Floor, LpnsConfig, PolicyConfig};
use sim::{FREE, FaultKind, Layout, Scenario};
use ssd_model::Placement;

/// A promise beside a busy neighbour, on a drive that serves at R in the order of arrival, on a host that costs
/// nothing.
fn promised() -> Scenario {
    let promise = Class::guaranteed(Some(Nanos::from_micros(50)));
    let mut scenario = scenario(vec![reader(promise, 1, 1), reader(BEST_EFFORT, 4, 128)]);
    scenario.policy = PolicyConfig::Lpns(LpnsConfig::p5800x()).into();
    scenario.profile.placement = Placement::Pooled;
    scenario.costs.mediated = FREE;
    scenario.duration = Nanos::from_millis(100);
    scenario
}

#[test]
fn a_drive_that_keeps_its_figures_excuses_nothing() {
    for policy in both() {
        for layout in [Layout::Evenkeel, Layout::Mdev] {
            let seen = clean(&Scenario { layout, policy: policy.clone().into(), ..promised() }).bounds;
            assert!(seen.held > 1_000, "{policy:?} {layout:?}: {seen:?}");
            assert_eq!(seen.over, 0, "{policy:?} {layout:?}: {seen:?}");
        }
    }
}

fn both() -> [PolicyConfig; 2] {
    [PolicyConfig::Lpns(LpnsConfig::p5800x()), PolicyConfig::Evenkeel(EvenkeelConfig::p5800x())]
}

#[test]
fn beside_floors_a_bound_counts_all_that_they_may_have() {
    let mut scenario = promised();
    scenario.policy = PolicyConfig::Evenkeel(EvenkeelConfig::p5800x()).into();
    let vouched = |scenario: &Scenario| {
        let seen = clean(scenario);
        assert!(seen.bounds.held > 1_000 && seen.bounds.over == 0, "{:?}", seen.bounds);
        seen.tenants[0].bound.as_ref().and_then(|bound| bound.vouched_ns).expect("a bound")
    };
    let without = vouched(&scenario);
    scenario.tenants[1].terms.floor = Floor { ios_per_sec: 700_000, mbytes_per_sec: 0 };
    let beside = vouched(&scenario);
    assert!(beside * 2 > without * 3, "{beside} ns, {without} ns without");
}

#[test]
fn a_drive_that_stalls_or_hashes_is_to_blame_itself() {
    let stall = FaultKind::Stall { lasts: Nanos::from_millis(3) };
    for policy in both() {
        let promised = Scenario { policy: policy.into(), ..promised() };
        let stalled = clean(&with_fault(promised.clone(), Nanos::from_millis(50), stall)).bounds;
        assert!(stalled.over > 0 && stalled.slow_drive == stalled.over, "{stalled:?}");
        let mut hashed = promised;
        hashed.profile.placement = Placement::Hashed;
        let hashed = clean(&hashed).bounds;
        assert!(hashed.slow_drive > 0 && hashed.slow_drive + hashed.overdrawn == hashed.over, "{hashed:?}");
    }
}

#[test]
fn who_asks_for_more_than_before_is_told_so() {
    // One guaranteed tenant as before; another that sleeps until long after the first bound.
    let promise = Class::guaranteed(Some(Nanos::from_micros(500)));
    let mut late = reader(promise, 4, 64);
    late.workload = sim::workload::Workload::Open(sim::workload::Open {
        jobs: 4,
        arrivals: sim::workload::Arrivals::Bursts { iops: 2e6, on: Nanos::from_millis(5), off: Nanos::from_millis(45) },
        access: sim::workload::Access::random_4k(100),
        max_outstanding: 256,
    });
    let mut scenario = promised();
    scenario.tenants.push(late);
    let seen = clean(&scenario).bounds;
    assert!(seen.more_load > 0, "{seen:?}");
}
