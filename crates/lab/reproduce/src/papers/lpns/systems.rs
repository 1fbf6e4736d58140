//! The systems that LPNS is compared with, its two drives, and its VMs.

use io_model::Nanos;
use policy::{LpnsConfig, PolicyConfig, Terms, Variant};
use rivals::{D2fqConfig, K2Config, LabConfig, MqfqConfig};
use sim::workload::{Fio, Webuser, Workload};
use sim::{HostCosts, Layout, Scenario, Tenant, TenantReport};
use ssd_model::Profile;

use super::printed::LOADS;
use crate::runner::{Context, Error};

/// A way to share the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// QEMU's virtio-blk.
    Virtio,
    /// SPDK vhost.
    Spdk,
    /// MDev-NVMe.
    Mdev,
    /// LPNS as published.
    Lpns,
    /// A scheduler on the host with at most this many commands in flight.
    K2(u32),
    /// A queue of the drive for each VM.
    SrIov,
    /// Our correction of LPNS, told the target.
    Ours,
    /// A fair scheduler on the host.
    Mqfq,
    /// A fair scheduler on the host that uses the drive's arbitration.
    D2fq,
}

impl System {
    /// In tables and legends.
    pub fn name(self) -> String {
        match self {
            Self::Virtio => "Virtio".to_owned(),
            Self::Spdk => "SPDK".to_owned(),
            Self::Mdev => "MDev".to_owned(),
            Self::Lpns => "LPNS".to_owned(),
            Self::K2(max_in_flight) => format!("K2 ({max_in_flight})"),
            Self::SrIov => "SR-IOV".to_owned(),
            Self::Ours => "Evenkeel".to_owned(),
            Self::Mqfq => "MQFQ".to_owned(),
            Self::D2fq => "D2FQ".to_owned(),
        }
    }

    fn layout(self) -> Layout {
        match self {
            Self::Virtio => Layout::Virtio,
            Self::Spdk => Layout::Spdk,
            Self::Mdev => Layout::Mdev,
            Self::Lpns | Self::Ours => Layout::Evenkeel,
            Self::SrIov => Layout::SrIov,
            Self::K2(_) | Self::Mqfq | Self::D2fq => Layout::K2,
        }
    }

    fn policy(self, drive: Drive) -> LabConfig {
        let lpns = |variant| PolicyConfig::Lpns(LpnsConfig { variant, ..drive.lpns() }).into();
        match self {
            Self::Virtio | Self::Spdk | Self::Mdev | Self::SrIov => PolicyConfig::Passthrough.into(),
            Self::Lpns => lpns(Variant::Published),
            Self::Ours => lpns(Variant::Corrected),
            Self::K2(max_in_flight) => LabConfig::K2(K2Config { max_in_flight }),
            Self::Mqfq => LabConfig::Mqfq(MqfqConfig::default()),
            Self::D2fq => LabConfig::D2fq(D2fqConfig::default()),
        }
    }

    fn costs(self) -> HostCosts {
        let mut costs = HostCosts::default();
        if matches!(self, Self::Mqfq | Self::D2fq) {
            // K2's one lock is what they were made to do without.
            costs.k2.lock_ns = 0;
        }
        costs
    }
}

/// The paper's drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drive {
    /// Intel Optane P5800X, 400 GB.
    P5800X,
    /// Samsung PM1735, 1.6 TB.
    Pm1735,
}

impl Drive {
    /// As the paper writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::P5800X => "P5800X",
            Self::Pm1735 => "PM1735",
        }
    }

    fn profile(self) -> Profile {
        match self {
            Self::P5800X => Profile::p5800x(),
            Self::Pm1735 => Profile::pm1735(),
        }
    }

    fn size_bytes(self) -> u64 {
        match self {
            Self::P5800X => 400_000_000_000,
            Self::Pm1735 => 1_600_000_000_000,
        }
    }

    /// R, L_h, Ω and what else LPNS must know.
    pub fn lpns(self) -> LpnsConfig {
        match self {
            Self::P5800X => LpnsConfig::p5800x(),
            Self::Pm1735 => LpnsConfig::pm1735(),
        }
    }

    /// The latency that the paper promises on it.
    pub fn target_us(self) -> f64 {
        match self {
            Self::P5800X => 50.0,
            Self::Pm1735 => 90.0,
        }
    }
}

/// One VM.
#[derive(Debug, Clone)]
pub struct Vm {
    /// Whether it is promised a latency: the paper's SVM. Else an IVM.
    pub guaranteed: bool,
    /// What it does.
    pub workload: Workload,
}

/// A VM that is promised a latency.
pub fn guaranteed(workload: Workload) -> Vm {
    Vm { guaranteed: true, workload }
}

/// A VM that is promised nothing.
pub fn noisy(workload: Workload) -> Vm {
    Vm { guaranteed: false, workload }
}

/// `svms` VMs that do one thing and are promised a latency, then `ivms` others.
pub fn mix(svms: usize, quiet: &Workload, ivms: usize, loud: &Workload) -> Vec<Vm> {
    let svms = std::iter::repeat_n(guaranteed(quiet.clone()), svms);
    svms.chain(std::iter::repeat_n(noisy(loud.clone()), ivms)).collect()
}

/// fio's random 4K I/O with this many jobs and this depth.
pub fn fio(jobs: u32, iodepth: u32, read_percent: u8) -> Workload {
    Workload::Fio(Fio::random_4k(jobs, iodepth, read_percent))
}

/// The stand-in for the web server's trace.
pub fn webuser() -> Workload {
    Workload::Webuser(Webuser::default())
}

/// vCPUs and VQs of a VM (§5.1).
const QUEUES: u16 = 4;
/// A VM's disk (§5.1).
const DISK_BYTES: u64 = 40_000_000_000;
/// After 200 ms queues are given out anew for the first time; throttles settle within a few tens.
const WARMUP: Nanos = Nanos::from_millis(200);

/// VMs on a drive under a system, measured for `duration`.
pub fn scenario(context: &Context<'_>, system: System, drive: Drive, vms: &[Vm], duration: Nanos) -> Scenario {
    let target = Nanos((drive.target_us() * 1e3) as u64);
    let tenant = |(i, vm): (usize, &Vm)| Tenant {
        name: format!("VM{}", i + 1),
        terms: if vm.guaranteed { Terms::guaranteed(Some(target)) } else { Terms::default() },
        vcpus: QUEUES,
        vqs: QUEUES,
        queue_priorities: Vec::new(),
        size_bytes: DISK_BYTES,
        workload: vm.workload.clone(),
    };
    Scenario {
        drive_bytes: drive.size_bytes(),
        costs: system.costs(),
        layout: system.layout(),
        policy: system.policy(drive),
        tenants: vms.iter().enumerate().map(tenant).collect(),
        warmup: context.span(WARMUP),
        duration: context.span(duration),
        seed: context.seed(),
        ..Scenario::new(drive.profile())
    }
}

/// VM1 with one 4K I/O outstanding beside VM2 with each of the paper's loads, under each system: Fig. 7a to 7d. The
/// load's place in [`LOADS`] and the system stand beside each report.
pub fn over_loads(
    context: &Context<'_>,
    drive: Drive,
    systems: &[System],
    read_percent: u8,
    duration: Nanos,
) -> Result<Vec<(usize, System, sim::Report)>, Error> {
    let runs: Vec<(usize, System)> =
        (0..LOADS.len()).flat_map(|load| systems.iter().map(move |system| (load, *system))).collect();
    let seen = context.all(
        &runs,
        |(load, system)| format!("{} beside {}", system.name(), LOADS[*load].0),
        |(load, system)| {
            let (_, jobs, depth) = LOADS[*load];
            let vms = [guaranteed(fio(1, 1, read_percent)), noisy(fio(jobs, depth, read_percent))];
            run(&scenario(context, *system, drive, &vms, duration))
        },
    )?;
    Ok(runs.into_iter().zip(seen).map(|((load, system), report)| (load, system, report)).collect())
}

/// Runs a scenario; a broken rule is an error.
pub fn run(scenario: &Scenario) -> Result<sim::Report, String> {
    let report = sim::run(scenario).map_err(|error| error.to_string())?;
    match report.broken.first() {
        Some(broken) => Err(format!("the simulated system broke a rule: {broken:?}")),
        None => Ok(report),
    }
}

/// A tenant's mean latency in µs; not a number if it did nothing.
pub fn mean_us(tenant: &TenantReport) -> f64 {
    if tenant.latency.count > 0 { tenant.latency.mean_ns / 1e3 } else { f64::NAN }
}

/// The first VM's mean latency in µs.
pub fn vm1_us(report: &sim::Report) -> f64 {
    report.tenants.first().map_or(f64::NAN, mean_us)
}

/// Bandwidth in MB/s of all VMs from the one with this index on.
pub fn mb_s_from(report: &sim::Report, first: usize) -> f64 {
    report.tenants.iter().skip(first).map(|tenant| tenant.bandwidth_bytes_s / 1e6).sum()
}

/// What all figures of this paper rest on.
pub fn assumptions(drive: Drive) -> Vec<String> {
    vec![
        format!(
            "Drive: the {} profile. Host: the default table of costs, the same for all systems and figures. VMs have 4 \
             vCPUs, 4 queues and 40 GB; VM1 is the one with the promise.",
            drive.name()
        ),
        "Virtio is one event loop for each VM, SPDK and MDev one polling loop for all, SR-IOV a queue of the drive for \
         each VM. LPNS polls for each promised VM on a thread of its own and for all others on another, with the \
         policy as published; its share of a figure is that layout's and the throttle's together."
            .to_owned(),
        format!(
            "Evenkeel is the same layout with our correction of LPNS, told a target of {} µs.",
            drive.target_us()
        ),
    ]
}
