//! How many I/Os a second one core simulates, and in how much memory: `cargo bench -p sim`.
//!
//! The LPNS paper's setting: one guaranteed tenant (n1d1) beside six noisy ones (n4d32), 4 KiB random reads on the
//! P5800X, under `lpns`. Speed is reckoned with CPU time, since whatever else the machine does should not count.

#![allow(clippy::disallowed_methods)] // The simulator has no clock of its own; its benchmark needs one.

use io_model::Nanos;
use policy::{Class, LpnsConfig, PolicyConfig};
use sim::workload::{Fio, Workload};
use sim::{Scenario, Tenant};
use ssd_model::Profile;

fn tenant(class: Class, jobs: u32, iodepth: u32) -> Tenant {
    Tenant {
        name: format!("n{jobs}d{iodepth}"),
        terms: class.into(),
        vcpus: jobs as u16,
        vqs: jobs as u16,
        queue_priorities: Vec::new(),
        encrypted_sector_bytes: None,
        first_writes: None,
        size_bytes: 10 << 30,
        workload: Workload::Fio(Fio::random_4k(jobs, iodepth, 100)),
    }
}

fn scenario(duration: Nanos) -> Scenario {
    let mut tenants = vec![tenant(Class::guaranteed(Some(Nanos::from_micros(50))), 1, 1)];
    tenants.extend((0..6).map(|_| tenant(Class::BestEffort { weight: 1 }, 4, 32)));
    Scenario {
        policy: PolicyConfig::Lpns(LpnsConfig::p5800x()).into(),
        tenants,
        warmup: Nanos(0),
        duration,
        ..Scenario::new(Profile::p5800x())
    }
}

/// A line of `/proc/self/…` that begins with `key`, its first number.
fn proc_number(file: &str, key: &str) -> f64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(f64::NAN)
}

/// CPU time of this process in seconds: the scheduler's own account, in ns.
fn cpu_s() -> f64 {
    proc_number("/proc/self/schedstat", "") / 1e9
}

fn main() {
    let mut best = 0.0_f64;
    for _ in 0..5 {
        let started_s = cpu_s();
        let report = sim::run(&scenario(Nanos::from_millis(500))).expect("the scenario is valid");
        best = best.max(report.simulated_ios as f64 / (cpu_s() - started_s));
    }
    println!("{:.2} M simulated I/Os per CPU second (best of 5)", best / 1e6);
    let before_kib = proc_number("/proc/self/status", "VmHWM:");
    // As long as 10 M I/Os take.
    let report = sim::run(&scenario(Nanos::from_millis(17_500))).expect("the scenario is valid");
    println!(
        "{:.1} M I/Os in one run: {:.1} MiB of memory at most, {:.1} MiB before it",
        report.simulated_ios as f64 / 1e6,
        proc_number("/proc/self/status", "VmHWM:") / 1024.0,
        before_kib / 1024.0
    );
}
