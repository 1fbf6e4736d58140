//! The systems that FairNVMe is compared with, and its two drives.

use io_model::Nanos;
use policy::{Class, FairConfig, LpnsConfig, PolicyConfig, Variant};
use sim::workload::{Fio, Workload};
use sim::{HostCosts, Layout, PathCosts, Scenario, Tenant};
use ssd_model::Profile;

use crate::runner::{Context, Error};

/// A virtualization system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// The drive under the host's own kernel, one job set, no VM.
    Native,
    /// QEMU's virtio-blk.
    Virtio,
    /// SPDK vhost.
    Spdk,
    /// LPNS as published, the first VM guaranteed.
    Lpns,
    /// FairNVMe as published.
    FairNvme,
    /// Our correction of FairNVMe, on the daemon's layout.
    Ours,
}

impl System {
    /// What the paper compares, and ours.
    pub const SHARED: [Self; 5] = [Self::Virtio, Self::Spdk, Self::Lpns, Self::FairNvme, Self::Ours];

    /// In tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "Native",
            Self::Virtio => "Virtio",
            Self::Spdk => "SPDK",
            Self::Lpns => "LPNS",
            Self::FairNvme => "FairNVMe",
            Self::Ours => "Evenkeel fair",
        }
    }

    fn layout(self) -> Layout {
        match self {
            Self::Native => Layout::SrIov,
            Self::Virtio => Layout::Virtio,
            Self::Spdk => Layout::Spdk,
            Self::Lpns | Self::Ours => Layout::Evenkeel,
            Self::FairNvme => Layout::Mdev,
        }
    }

    fn policy(self, drive: Drive) -> PolicyConfig {
        match self {
            Self::Native | Self::Virtio | Self::Spdk => PolicyConfig::Passthrough,
            Self::Lpns => PolicyConfig::Lpns(drive.lpns()),
            Self::FairNvme => PolicyConfig::Fair(FairConfig { variant: Variant::Published, ..drive.fair() }),
            Self::Ours => PolicyConfig::Fair(FairConfig { variant: Variant::Corrected, ..drive.fair() }),
        }
    }

    /// The published rules may suspend a tenant for as long as they like; that is for a figure to show. Ours may not.
    fn starvation_limit(self) -> Nanos {
        match self {
            Self::Lpns | Self::FairNvme => Nanos::MAX,
            _ => Nanos::from_millis(1_000),
        }
    }

    fn class(self, tenant: usize) -> Class {
        match (self, tenant) {
            (Self::Lpns, 0) => Class::guaranteed(None),
            _ => Class::BestEffort { weight: 1 },
        }
    }
}

/// The paper's drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drive {
    /// Intel DC P3520.
    P3520,
    /// Samsung PM1735.
    Pm1735,
}

impl Drive {
    /// As the paper writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::P3520 => "P3520",
            Self::Pm1735 => "PM1735",
        }
    }

    fn profile(self) -> Profile {
        match self {
            Self::P3520 => Profile::p3520(),
            Self::Pm1735 => Profile::pm1735(),
        }
    }

    fn fair(self) -> FairConfig {
        match self {
            Self::P3520 => FairConfig::p3520(),
            Self::Pm1735 => FairConfig::pm1735(),
        }
    }

    /// LPNS was never tuned for the P3520 in print: Ω is that of the other flash drive; R and L_h are the drive's.
    fn lpns(self) -> LpnsConfig {
        let published = LpnsConfig { variant: Variant::Published, ..LpnsConfig::pm1735() };
        match self {
            Self::P3520 => LpnsConfig { r_iops: 298_000.0, l_h: Nanos(99_940), parallelism: 36, ..published },
            Self::Pm1735 => published,
        }
    }
}

/// vCPUs and VQs of a VM (§5.1).
const QUEUES: u16 = 4;
/// A VM's share of the drive (§5.1).
const DISK_BYTES: u64 = 64 << 30;
/// Longer than thresholds and weights take to settle.
const WARMUP: Nanos = Nanos::from_millis(200);
const DURATION: Nanos = Nanos::from_millis(400);

/// This paper's host: the default table, but for what Table 2's Virtio and SPDK columns say about theirs. Its QEMU
/// takes more for a command and longer to wake, and its SPDK is vhost-scsi, whose SCSI layer in the guest delays a
/// completion.
fn host() -> HostCosts {
    let costs = HostCosts::default();
    let virtio = PathCosts { fetch_ns: 4_700, complete_ns: 4_700, wake_ns: 22_000, ..costs.virtio };
    let spdk = PathCosts { delivery_ns: costs.spdk.delivery_ns + 3_000, ..costs.spdk };
    let direct = PathCosts { delivery_ns: 2_000, ..costs.direct };
    HostCosts { virtio, spdk, direct, ..costs }
}

/// VMs with these workloads.
pub fn scenario(context: &Context<'_>, system: System, drive: Drive, workloads: &[Workload]) -> Scenario {
    let tenant = |(i, workload): (usize, &Workload)| Tenant {
        name: format!("VM{}", i + 1),
        terms: system.class(i).into(),
        vcpus: QUEUES,
        vqs: QUEUES,
        queue_priorities: Vec::new(),
        size_bytes: DISK_BYTES,
        workload: workload.clone(),
    };
    Scenario {
        drive_bytes: 1_200_000_000_000,
        costs: host(),
        layout: system.layout(),
        policy: system.policy(drive).into(),
        tenants: workloads.iter().enumerate().map(tenant).collect(),
        warmup: context.span(WARMUP),
        duration: context.span(DURATION),
        seed: context.seed(),
        starvation_limit: system.starvation_limit(),
        ..Scenario::new(drive.profile())
    }
}

/// `count` VMs that all do the same.
pub fn alike(workload: &Workload, count: usize) -> Vec<Workload> {
    vec![workload.clone(); count]
}

/// fio's random 4K I/O with this many jobs and this depth.
pub fn fio(jobs: u32, iodepth: u32, read_percent: u8) -> Workload {
    Workload::Fio(Fio::random_4k(jobs, iodepth, read_percent))
}

/// Runs a scenario; a broken rule is an error.
pub fn run(scenario: &Scenario) -> Result<sim::Report, String> {
    let report = sim::run(scenario).map_err(|error| error.to_string())?;
    match report.broken.first() {
        Some(broken) => Err(format!("the simulated system broke a rule: {broken:?}")),
        None => Ok(report),
    }
}

/// A tenant's mean latency as a multiple of what its workload has alone on the drive, by tenant.
pub fn slowdowns(report: &sim::Report, native_ns: &[f64]) -> Vec<f64> {
    report.tenants.iter().zip(native_ns).map(|(tenant, alone_ns)| tenant.latency.mean_ns / alone_ns).collect()
}

/// The mean latency of each workload alone on the drive, in ns.
pub fn native_means(context: &Context<'_>, drive: Drive, workloads: &[Workload]) -> Result<Vec<f64>, Error> {
    let index: Vec<usize> = (0..workloads.len()).collect();
    context.all(
        &index,
        |i| format!("workload {} alone on {}", i + 1, drive.name()),
        |i| {
            let alone: Vec<Workload> = workloads.get(*i).cloned().into_iter().collect();
            let report = run(&scenario(context, System::Native, drive, &alone))?;
            Ok(report.tenants.first().map_or(f64::NAN, |tenant| tenant.latency.mean_ns))
        },
    )
}

/// Why gains are smaller than the printed ones, and what would have to change.
pub const NO_CONTENTION: &str = "The printed gains are the best of all cases on a host with fewer cores (24) than \
     vCPUs (32) and service threads, chosen by the authors to make CPUs scarce. There a thread that sleeps, as QEMU's, \
     waits for a CPU each time it wakes; that stretches its tail, its spread and its slowdown by factors. Here nobody \
     waits for a CPU, so systems differ only by their code and by their policy, and beyond saturation the drive's \
     queue hides both. To get the printed sizes the simulator would have to schedule vCPUs and threads on fewer CPUs.";

/// What all figures of this paper rest on.
pub fn assumptions(drive: Drive) -> Vec<String> {
    let mut all = vec![
        format!(
            "Drive: the {} profile. Host: one table of costs for all figures of this paper, the default one but for \
             four numbers fitted to Table 2: QEMU takes 9.4 µs per command and 22 µs to wake, vhost-scsi delays a \
             completion by 3 µs, and the host itself takes an interrupt in 2. VMs have 4 vCPUs, 4 queues and 64 GiB.",
            drive.name()
        ),
        "Virtio is one event loop for each VM, SPDK one polling reactor for all, FairNVMe one poller for all with the \
         policy as published, Evenkeel fair our correction of it."
            .to_owned(),
        "The paper does not say which VMs LPNS guaranteed. Here the first one is, and the published throttle holds the \
         others back."
            .to_owned(),
        "Every vCPU and every poller has a host CPU of its own. The paper's host had 24 cores for 32 vCPUs and the \
         threads that serve them."
            .to_owned(),
    ];
    if drive == Drive::P3520 {
        all.push(
            "LPNS on the P3520: Ω = 100 as printed for the PM1735, R = 298K/s, L_h = 99.94 µs. No values are printed."
                .to_owned(),
        );
    }
    all
}
