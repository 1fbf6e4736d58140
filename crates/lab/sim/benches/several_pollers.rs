//! What best-effort tenants get on 1 to 16 pollers, in virtual time: `cargo bench -p sim --bench several_pollers`.
//!
//! 16 tenants (n4d32) of 4 KiB random reads, or of 64 KiB, beside one that was promised a latency, with the costs of
//! LPNS's host: 1.7 µs of a poller for a command. Under policies that give all tenants one order, without that one, and
//! with weights of 1, 4 and 7 or priorities.

use io_model::{Nanos, QueuePriority};
use policy::{
    ArbitratedConfig, Class, DriveFigures, EvenkeelConfig, FairConfig, LpnsConfig, PolicyConfig, TenantPriority,
};
use rivals::{K2Config, LabConfig, MqfqConfig};
use sim::workload::{Access, BlockSize, Fio, Workload};
use sim::{Contestant, Scenario, Tenant};
use ssd_model::Profile;

fn reader(class: Class, (jobs, iodepth): (u32, u32), kib: u32) -> Tenant {
    let block_sizes = vec![BlockSize { bytes: kib << 10, weight: 1 }];
    let access = Access { block_sizes, ..Access::random_4k(100) };
    Tenant {
        name: format!("n{jobs}d{iodepth}"),
        terms: class.into(),
        vcpus: jobs as u16,
        vqs: jobs as u16,
        queue_priorities: Vec::new(),
        encrypted_sector_bytes: None,
        first_writes: None,
        size_bytes: 1 << 30,
        workload: Workload::Fio(Fio { jobs, iodepth, access }),
    }
}

/// A drive, what is promised there, and what others read.
struct Case {
    profile: Profile,
    figures: DriveFigures,
    target: Nanos,
    kib: u32,
}

fn cases() -> [Case; 3] {
    let on_p5800x = |kib| Case {
        profile: Profile::p5800x(),
        figures: DriveFigures {
            lpns: LpnsConfig::p5800x(),
            fair: FairConfig::p5800x(),
            max_in_flight: 48,
            is_assumed: false,
        },
        target: Nanos::from_micros(100),
        kib,
    };
    let figures =
        DriveFigures { lpns: LpnsConfig::pm1735(), fair: FairConfig::pm1735(), max_in_flight: 100, is_assumed: false };
    let on_pm1735 = Case { profile: Profile::pm1735(), figures, target: Nanos::from_millis(1), kib: 4 };
    [on_p5800x(4), on_p5800x(64), on_pm1735]
}

fn scenario(policy: &LabConfig, case: &Case, pollers: u16) -> Scenario {
    let promised = reader(Class::guaranteed(Some(case.target)), (1, 1), 4);
    let others = std::iter::repeat_n(reader(Class::BestEffort { weight: 1 }, (4, 32), case.kib), 16);
    Scenario {
        policy: policy.clone(),
        tenants: std::iter::once(promised).chain(others).collect(),
        best_effort_pollers: pollers,
        warmup: Nanos::from_millis(1_000),
        duration: Nanos::from_millis(500),
        ..Scenario::new(case.profile.clone())
    }
}

/// 16 tenants under a policy that gives all one order.
fn together(policy: &LabConfig, kib: u32, pollers: u16) -> Scenario {
    let priorities = [QueuePriority::High, QueuePriority::Medium, QueuePriority::Low];
    let tenants = (0..16).map(|at| {
        let mut tenant = reader(Class::BestEffort { weight: 1 + 3 * (at % 3) }, (4, 32), kib);
        tenant.terms.priority = TenantPriority::Fixed(priorities[at as usize % 3]);
        tenant
    });
    Scenario {
        policy: policy.clone(),
        tenants: tenants.collect(),
        best_effort_pollers: pollers,
        starvation_limit: Nanos::from_millis(100),
        warmup: Nanos::from_millis(600),
        duration: Nanos::from_millis(500),
        ..Scenario::new(Profile::p5800x())
    }
}

/// What each policy that gives all tenants one order gives on several pollers, and the most that a tenant's part of
/// that differs from its part on one.
fn all_together() -> Result<(), sim::ScenarioError> {
    println!("| reads | policy | pollers | MB/s | busiest poller | share, most apart |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for kib in [4, 64] {
        for policy in [
            LabConfig::K2(K2Config::default()),
            LabConfig::Caps,
            LabConfig::Mqfq(MqfqConfig::default()),
            PolicyConfig::Wrr(ArbitratedConfig::wrr()).into(),
            PolicyConfig::Drr(ArbitratedConfig::drr()).into(),
            PolicyConfig::Fair(FairConfig::p5800x()).into(),
        ] {
            let mut on_one = Vec::new();
            for pollers in [1, 2, 4, 8, 16] {
                let report = sim::run(&together(&policy, kib, pollers))?;
                let got = || report.tenants.iter().map(|tenant| tenant.bandwidth_bytes_s / 1e6);
                let sum = got().sum::<f64>();
                let parts: Vec<f64> = got().map(|bytes| bytes / sum).collect();
                if pollers == 1 {
                    on_one.clone_from(&parts);
                }
                let apart = parts.iter().zip(&on_one).map(|(part, one)| (part / one - 1.0).abs()).fold(0.0, f64::max);
                let busiest = report.poller_utilization.iter().fold(0.0, |most: f64, busy| most.max(*busy));
                let name = policy.name();
                println!("| {kib} KiB | {name} | {pollers} | {sum:.0} | {busiest:.2} | {:.1} % |", apart * 100.0);
            }
        }
    }
    Ok(())
}

fn main() -> Result<(), sim::ScenarioError> {
    all_together()?;
    println!("| drive, promise | policy | others' reads | pollers | MB/s | Jain | busiest poller | p99, µs |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for case in cases() {
        let evenkeel = PolicyConfig::Evenkeel(EvenkeelConfig::on(&case.figures));
        for policy in [evenkeel, PolicyConfig::Lpns(case.figures.lpns.clone())].map(LabConfig::from) {
            for pollers in [1, 2, 4, 8, 16] {
                let report = sim::run(&scenario(&policy, &case, pollers))?;
                let got = || report.tenants.iter().skip(1).map(|tenant| tenant.bandwidth_bytes_s / 1e6);
                let (sum, squares) = (got().sum::<f64>(), got().map(|bytes| bytes * bytes).sum::<f64>());
                let busiest = report.poller_utilization.iter().skip(1).fold(0.0, |most: f64, busy| most.max(*busy));
                let p99_us = report.tenants[0].latency.p99_ns as f64 / 1e3;
                let Case { profile, target, kib, .. } = &case;
                let (drive, target_us, name) = (&profile.name, target.0 / 1_000, policy.name());
                let jain = sum * sum / 16.0 / squares;
                print!("| {drive}, {target_us} µs | {name} | {kib} KiB | {pollers} ");
                println!("| {sum:.0} | {jain:.4} | {busiest:.2} | {p99_us:.0} |");
            }
        }
    }
    Ok(())
}
