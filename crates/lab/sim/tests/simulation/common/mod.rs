//! Scenarios that several tests start from.

pub mod shared;

use io_model::Nanos;
use policy::Class;
use sim::workload::{Fio, Workload};
use sim::{Fault, FaultKind, GuestCosts, HostCosts, Report, Scenario, Tenant};
use ssd_model::Profile;

pub const GUARANTEED: Class = Class::guaranteed(None);
pub const BEST_EFFORT: Class = Class::BestEffort { weight: 1 };

/// A tenant with a vCPU and a VQ for each of its jobs, reading 4 KiB at random.
pub fn reader(class: Class, jobs: u16, iodepth: u32) -> Tenant {
    Tenant {
        name: format!("n{jobs}d{iodepth}"),
        terms: class.into(),
        vcpus: jobs,
        vqs: jobs,
        queue_priorities: Vec::new(),
        encrypted_sector_bytes: None,
        first_writes: None,
        size_bytes: 1 << 30,
        workload: Workload::Fio(Fio::random_4k(jobs.into(), iodepth, 100)),
    }
}

/// 20 ms of these tenants on a P5800X.
pub fn scenario(tenants: Vec<Tenant>) -> Scenario {
    Scenario {
        tenants,
        warmup: Nanos::from_millis(2),
        duration: Nanos::from_millis(18),
        starvation_limit: Nanos::from_millis(5),
        ..Scenario::new(Profile::p5800x())
    }
}

/// Costs that never vary.
pub fn steady() -> HostCosts {
    HostCosts { guest: GuestCosts { varies_permille: 0, ..GuestCosts::default() }, ..HostCosts::default() }
}

pub fn with_fault(mut scenario: Scenario, at: Nanos, kind: FaultKind) -> Scenario {
    scenario.faults.push(Fault { at, kind });
    scenario
}

/// Plays it; no rule may be broken.
pub fn clean(scenario: &Scenario) -> Report {
    let report = sim::run(scenario).expect("the scenario is valid");
    assert_eq!(report.broken, [], "seed {}", scenario.seed);
    report
}
