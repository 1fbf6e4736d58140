//! What best-effort tenants get on 1 to 16 pollers, in virtual time: `cargo bench -p sim --bench several_pollers`.
//!
//! 16 tenants (n4d32) of 4 KiB random reads, or of 64 KiB, on the P5800X beside one that was promised 100 µs, with the
//! costs of LPNS's host: 1.7 µs of a poller for a command.

use io_model::Nanos;
use policy::{Class, EvenkeelConfig, LpnsConfig, PolicyConfig};
use sim::workload::{Access, BlockSize, Fio, Workload};
use sim::{Scenario, Tenant};
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
        size_bytes: 1 << 30,
        workload: Workload::Fio(Fio { jobs, iodepth, access }),
    }
}

fn scenario(policy: &PolicyConfig, kib: u32, pollers: u16) -> Scenario {
    let promised = reader(Class::guaranteed(Some(Nanos::from_micros(100))), (1, 1), 4);
    let others = std::iter::repeat_n(reader(Class::BestEffort { weight: 1 }, (4, 32), kib), 16);
    Scenario {
        policy: policy.clone(),
        tenants: std::iter::once(promised).chain(others).collect(),
        best_effort_pollers: pollers,
        warmup: Nanos::from_millis(1_000),
        duration: Nanos::from_millis(1_000),
        ..Scenario::new(Profile::p5800x())
    }
}

fn main() -> Result<(), sim::ScenarioError> {
    println!("| policy | KiB | pollers | others, MB/s | Jain | busiest poller | p99, us |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for policy in [PolicyConfig::Evenkeel(EvenkeelConfig::p5800x()), PolicyConfig::Lpns(LpnsConfig::p5800x())] {
        for kib in [4, 64] {
            for pollers in [1, 2, 4, 8, 16] {
                let report = sim::run(&scenario(&policy, kib, pollers))?;
                let got = || report.tenants.iter().skip(1).map(|tenant| tenant.bandwidth_bytes_s / 1e6);
                let (sum, squares) = (got().sum::<f64>(), got().map(|bytes| bytes * bytes).sum::<f64>());
                let busiest = report.poller_utilization.iter().skip(1).fold(0.0, |most: f64, busy| most.max(*busy));
                let p99_us = report.tenants[0].latency.p99_ns as f64 / 1e3;
                let jain = sum * sum / 16.0 / squares;
                let name = policy.name();
                println!("| {name} | {kib} | {pollers} | {sum:.0} | {jain:.4} | {busiest:.2} | {p99_us:.0} |");
            }
        }
    }
    Ok(())
}
