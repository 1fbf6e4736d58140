//! LPNS: a promised latency beside noisy neighbours. `lpns.toml` has the words of its figures.
//!
//! | module | what |
//! | --- | --- |
//! | `alone` | Fig. 2 and Table 1: what happens without a policy |
//! | `beside` | Fig. 7 and 8: fio in the promised VM |
//! | `web` | Fig. 9 to 11: the web server's stand-in |
//! | `omega` | Fig. 13: the Ω sweep and the bounds |
//! | `queues` | the queue pool and its scheduling, switched off |

pub mod alone;
pub mod beside;
pub mod omega;
pub mod queues;
pub mod web;

use io_model::Nanos;
use policy::{LpnsConfig, PolicyConfig, Terms, Variant};
use rivals::{D2fqConfig, K2Config, LabConfig, MqfqConfig};
use sim::workload::Workload;
use sim::{Layout, Report, Scenario};

use super::bench::{EVENKEEL, evenkeel, first, mean_us, profile, tenant};
use crate::runner::Context;

/// Intel Optane P5800X, 400 GB.
const P5800X: &str = "P5800X";
/// Samsung PM1735, 1.6 TB.
const PM1735: &str = "PM1735";

/// LPNS as published.
const LPNS: &str = "LPNS";
/// Our correction of LPNS, and the default policy, on LPNS's layout.
const OURS: [&str; 2] = ["lpns corrected", EVENKEEL];
/// The systems that know the promise.
const KEEPERS: [&str; 3] = [LPNS, OURS[0], OURS[1]];
/// LPNS's layout with round robin: what holds here, too, is not the policy's doing.
const CONTROL: &str = "no policy";

/// What all do in a run: reads in 100, and its name.
const OPERATIONS: [(u8, &str); 2] = [(100, "read"), (0, "write")];

/// How far an unseen number may be off.
const TOLERANCE: f64 = 0.25;
/// Five points of loss.
const LOSS_SLACK: f64 = 0.05;

const VM1_MEAN: &str = "VM1 mean latency (µs)";

/// vCPUs and VQs of a VM (§5.1).
const QUEUES: u16 = 4;
/// A VM's disk (§5.1).
const DISK_BYTES: u64 = 40_000_000_000;
/// After 200 ms queues are given out anew for the first time; throttles settle within a few tens.
const WARMUP_MS: u64 = 200;

/// The latency that the paper promises on a drive, in µs.
fn target_us(drive: &str) -> f64 {
    if drive == P5800X { 50.0 } else { 90.0 }
}

/// R, L_h, Ω and what else LPNS must know of a drive.
fn figures_of(drive: &str) -> LpnsConfig {
    if drive == P5800X { LpnsConfig::p5800x() } else { LpnsConfig::pm1735() }
}

/// Whether a VM is promised a latency (the paper's SVM, else an IVM), and what it does.
type Vm = (bool, Workload);

/// `svms` VMs that do one thing and are promised a latency, then `ivms` others.
fn mix(svms: usize, quiet: &Workload, ivms: usize, loud: &Workload) -> Vec<Vm> {
    let svms = std::iter::repeat_n((true, quiet.clone()), svms);
    svms.chain(std::iter::repeat_n((false, loud.clone()), ivms)).collect()
}

/// VMs on a drive under a system, measured for that many milliseconds.
fn scenario(context: &Context<'_>, system: &str, drive: &str, vms: &[Vm], ms: u64) -> Result<Scenario, String> {
    let lpns = |variant| PolicyConfig::Lpns(LpnsConfig { variant, ..figures_of(drive) }).into();
    let (layout, policy) = match system {
        LPNS => (Layout::Evenkeel, lpns(Variant::Published)),
        "lpns corrected" => (Layout::Evenkeel, lpns(Variant::Corrected)),
        EVENKEEL => (Layout::Evenkeel, evenkeel(&profile(drive)?).into()),
        CONTROL => (Layout::Evenkeel, PolicyConfig::Passthrough.into()),
        "K2 (32)" => (Layout::K2, LabConfig::K2(K2Config { max_in_flight: 32 })),
        "K2 (16)" => (Layout::K2, LabConfig::K2(K2Config { max_in_flight: 16 })),
        "K2 (8)" => (Layout::K2, LabConfig::K2(K2Config { max_in_flight: 8 })),
        "MQFQ" => (Layout::K2, LabConfig::Mqfq(MqfqConfig::default())),
        "D2FQ" => (Layout::K2, LabConfig::D2fq(D2fqConfig::default())),
        "Virtio" => (Layout::Virtio, PolicyConfig::Passthrough.into()),
        "SPDK" => (Layout::Spdk, PolicyConfig::Passthrough.into()),
        "MDev" => (Layout::Mdev, PolicyConfig::Passthrough.into()),
        "SR-IOV" => (Layout::SrIov, PolicyConfig::Passthrough.into()),
        _ => return Err(format!("no system {system}")),
    };
    let target = Nanos((target_us(drive) * 1e3) as u64);
    let vms = vms.iter().enumerate().map(|(i, (promised, workload))| {
        let terms = if *promised { Terms::guaranteed(Some(target)) } else { Terms::default() };
        tenant(format!("VM{}", i + 1), terms, QUEUES, DISK_BYTES, workload.clone())
    });
    let mut scenario = context.scenario(profile(drive)?, vms.collect(), (WARMUP_MS, ms));
    if ["MQFQ", "D2FQ"].contains(&system) {
        // K2's one lock is what they were made to do without.
        scenario.costs.k2.lock_ns = 0;
    }
    let drive_bytes = if drive == P5800X { 400_000_000_000 } else { 1_600_000_000_000 };
    Ok(Scenario { layout, policy, drive_bytes, ..scenario })
}

/// The first VM's mean latency in µs.
fn vm1_us(report: &Report) -> f64 {
    first(report, mean_us)
}

/// Bandwidth in MB/s of all VMs from the one with this index on.
fn mb_s_from(report: &Report, first: usize) -> f64 {
    report.tenants.iter().skip(first).map(|tenant| tenant.bandwidth_bytes_s / 1e6).sum()
}
