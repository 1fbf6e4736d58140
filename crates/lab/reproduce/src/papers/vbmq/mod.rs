//! VBMq: as many queues to one virtual machine as it has CPUs, a thread for each. `vbmq.toml` has the words of its
//! figures.
//!
//! | module | what |
//! | --- | --- |
//! | `host` | what a command costs the paper's host: one table for all figures |
//! | `queues` | Fig. 7 to 9: how many queues; events or polling |
//! | `jobs` | Fig. 10: the four systems on a null block device; Fig. 11 is the same on an SSD |
//!
//! The paper's figures have no labels at their points: only the numbers of its text can be compared with.

mod host;
pub mod jobs;
pub mod queues;

use policy::{PolicyConfig, Terms};
use sim::{Contention, HostCosts, Layout, PathCosts, Scenario, Tenant};
use ssd_model::{Placement, Profile, Writes};

use super::bench::{EVENKEEL, evenkeel, fio, first, list, profile, run, tenant};
use crate::report::short_number;
use crate::runner::Context;

/// vCPUs of the VM, and the largest number of jobs (§IV.A, §V.C).
const VCPUS: u16 = 20;
/// fio's iodepth in all experiments.
const IODEPTH: u32 = 32;
/// Linux's null block device.
const NULL: &str = "null";
/// Samsung SM1715.
const SM1715: &str = "SM1715";

/// VBMq as the paper's second phase has it, polling, and with threads that sleep and are woken.
const VBMQ: &str = "VBMq";
const EVENT: &str = "VBMq, event-driven";
const BARE_METAL: &str = "bare metal";
/// The default policy on one poller with a core of its own, as the daemon serves best-effort tenants unless told
/// otherwise. [`EVENKEEL`] has VBMq's threads.
const ONE_POLLER: &str = "evenkeel, one poller";

/// Not measured, and measured.
const SPAN_MS: (u64, u64) = (20, 40);
/// For the default policy, whose threads need 200 ms to split their cap well.
const SETTLED_MS: (u64, u64) = (220, 40);
const DISK_BYTES: u64 = 200_000_000_000;

fn drive(name: &str) -> Result<Profile, String> {
    let sm1715 = profile(SM1715)?;
    if name == SM1715 {
        return Ok(sm1715);
    }
    // Its time is its driver's, on the CPU that submits: the host's table has it.
    Ok(Profile {
        name: NULL.into(),
        units: 1,
        placement: Placement::Pooled,
        read_ns: 1,
        further_ns: 0,
        writes: Writes::InPlace { write_ns: 1, ack_ns: 0 },
        gc: None,
        controller_ns: 0,
        pipeline_ns: 0,
        link_read_mb_s: 1_000_000,
        link_write_mb_s: 1_000_000,
        window: 65_535,
        ..sm1715
    })
}

/// A host where a lock's hand-over costs nothing, however many wait.
fn free_handovers(path: PathCosts) -> PathCosts {
    let free = |lock| Contention { handover_ns: 0, ..lock };
    PathCosts { mutex: free(path.mutex), ring: free(path.ring), ..path }
}

/// Jobs, depth, and reads in 100.
type Load = (u32, u32, u8);

/// IOPS and mean latency (µs) of the VM under a system, which has `queues` if it is VBMq.
fn play(
    context: &Context<'_>,
    system: &str,
    queues: u16,
    on: &str,
    (jobs, depth, reads): Load,
) -> Result<(f64, f64), String> {
    let (layout, path, vqs) = match system {
        "Baseline" => (Layout::Virtio, host::BASELINE, 1),
        "VBDP" => (Layout::Virtio, host::VBDP, 1),
        "Baseline, hand-overs free" => (Layout::Virtio, free_handovers(host::BASELINE), 1),
        "VBDP, hand-overs free" => (Layout::Virtio, free_handovers(host::VBDP), 1),
        VBMQ | EVENKEEL => (Layout::PerQueue, host::POLLING, queues),
        ONE_POLLER => (Layout::Evenkeel, host::POLLING, queues),
        EVENT => (Layout::PerQueue, host::EVENT, queues),
        BARE_METAL => (Layout::PerQueue, host::BARE_METAL, VCPUS),
        _ => return Err(format!("no system {system}")),
    };
    let interrupt_ns = match (on, system) {
        (SM1715, BARE_METAL) => host::INTERRUPT_NS,
        (SM1715, VBMQ | EVENT | EVENKEEL) => host::INTERRUPT_UNDER_GUEST_NS,
        // The null device has none, and a loop's comes to some other core than the loop's.
        _ => 0,
    };
    let path = PathCosts { complete_ns: path.complete_ns + interrupt_ns, ..path };
    let vm = Tenant { vqs, ..tenant("VM", Terms::default(), VCPUS, DISK_BYTES, fio(jobs, depth, reads)) };
    let costs = HostCosts { guest: host::GUEST, mediated: path, virtio: path, ..HostCosts::default() };
    let drive = drive(on)?;
    let (policy, span_ms) = match system {
        EVENKEEL | ONE_POLLER => (evenkeel(&drive), SETTLED_MS),
        _ => (PolicyConfig::Passthrough, SPAN_MS),
    };
    let scenario = context.scenario(drive, vec![vm], span_ms);
    let report = run(&Scenario { layout, costs, policy: policy.into(), ..scenario })?;
    Ok((report.total_iops(), first(&report, |vm| vm.latency.mean_ns / 1e3)))
}

/// IOPS for a criterion: `1.2, 3.4K`.
fn kiops(values: &[f64]) -> String {
    list(values, |iops| short_number(iops / 1e3)) + "K"
}
