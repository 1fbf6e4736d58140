//! FairNVMe: fair queues by tenant state. `fairnvme.toml` has the words of its figures.
//!
//! The paper's figures show most numbers as bars without labels: only its tables and the gains in its text can be
//! compared with.

pub mod cases;
pub mod sweeps;

use io_model::Nanos;
use policy::{Class, FairConfig, LpnsConfig, PolicyConfig, Variant};
use sim::workload::Workload;
use sim::{HostCosts, Layout, PathCosts, Scenario};

use super::bench::{EVENKEEL, evenkeel, profile, tenant};
use crate::runner::Context;

/// Intel DC P3520.
const P3520: &str = "P3520";
/// Samsung PM1735.
const PM1735: &str = "PM1735";

/// What the paper compares, our correction of FairNVMe and the default policy on the daemon's layout, and a control.
const SHARED: [&str; 7] = ["Virtio", "SPDK", "LPNS", FAIR[0], FAIR[1], EVENKEEL, CONTROL];
/// FairNVMe as published, and our correction of it.
const FAIR: [&str; 2] = ["FairNVMe", "fair corrected"];
/// FairNVMe's layout with round robin: what holds here, too, is not the policy's doing.
const CONTROL: &str = "no policy";
/// How far an unseen number may be off.
const TOLERANCE: f64 = 0.25;

/// vCPUs and VQs of a VM (§5.1).
const QUEUES: u16 = 4;
/// A VM's share of the drive (§5.1).
const DISK_BYTES: u64 = 64 << 30;
/// Not measured, which is longer than thresholds and weights take to settle, and measured.
const SPAN_MS: (u64, u64) = (200, 400);

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

/// VMs with these workloads. Native is the drive under the host's own kernel, one job set, no VM.
fn scenario(context: &Context<'_>, system: &str, drive: &str, workloads: Vec<Workload>) -> Result<Scenario, String> {
    let flash = LpnsConfig { variant: Variant::Published, ..LpnsConfig::pm1735() };
    let (lpns, fair) = match drive {
        // LPNS was never tuned for it in print: Ω is that of the other flash drive; R and L_h are the drive's.
        P3520 => {
            let lpns = LpnsConfig { r_iops: 298_000.0, l_h: Nanos(99_940), parallelism: 36, ..flash };
            (lpns, FairConfig::p3520())
        }
        _ => (flash, FairConfig::pm1735()),
    };
    let fair = |variant| PolicyConfig::Fair(FairConfig { variant, ..fair });
    let (layout, policy) = match system {
        "Native" => (Layout::SrIov, PolicyConfig::Passthrough),
        "Virtio" => (Layout::Virtio, PolicyConfig::Passthrough),
        "SPDK" => (Layout::Spdk, PolicyConfig::Passthrough),
        "LPNS" => (Layout::Evenkeel, PolicyConfig::Lpns(lpns)),
        "FairNVMe" => (Layout::Mdev, fair(Variant::Published)),
        "fair corrected" => (Layout::Evenkeel, fair(Variant::Corrected)),
        EVENKEEL => (Layout::Evenkeel, evenkeel(&profile(drive)?)),
        CONTROL => (Layout::Mdev, PolicyConfig::Passthrough),
        _ => return Err(format!("no system {system}")),
    };
    // The published rules may suspend a tenant for as long as they like; that is for a figure to show. Ours may not.
    let is_patient = ["LPNS", "FairNVMe"].contains(&system);
    let starvation_limit = if is_patient { Nanos::MAX } else { Nanos::from_millis(1_000) };
    let vms = workloads.into_iter().enumerate().map(|(i, workload)| {
        let is_first = system == "LPNS" && i == 0;
        let class = if is_first { Class::guaranteed(None) } else { Class::BestEffort { weight: 1 } };
        tenant(format!("VM{}", i + 1), class, QUEUES, DISK_BYTES, workload)
    });
    let scenario = context.scenario(profile(drive)?, vms.collect(), SPAN_MS);
    let (policy, drive_bytes) = (policy.into(), 1_200_000_000_000);
    Ok(Scenario { layout, policy, drive_bytes, costs: host(), starvation_limit, ..scenario })
}
