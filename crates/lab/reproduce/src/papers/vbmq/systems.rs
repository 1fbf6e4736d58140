//! The systems that VBMq is compared with, the two drives, and the VM.

use io_model::Nanos;
use policy::Terms;
use sim::workload::{Fio, Workload};
use sim::{Contention, HostCosts, Layout, PathCosts, Scenario, Tenant};
use ssd_model::{Placement, Profile, Writes};

use super::host;
use super::printed::{IODEPTH, VCPUS};
use crate::runner::Context;

/// A way from the VM to the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    /// One event loop that shares the global mutex with the vCPUs.
    Baseline,
    /// One event loop of its own: virtio-blk-data-plane.
    Vbdp,
    /// These two on a host where a lock's hand-over costs nothing, however many wait.
    FreeHandovers(Loop),
    /// This many queues with a polling thread each.
    Polling(u16),
    /// This many queues with an event-driven thread each.
    Event(u16),
    /// No VM.
    BareMetal,
}

/// A single event loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loop {
    Baseline,
    Vbdp,
}

/// VBMq as the paper's second phase has it: polling, a queue for each vCPU.
pub const VBMQ: System = System::Polling(VCPUS);

/// The four that Fig. 10 and 11 compare.
pub const SYSTEMS: [System; 4] = [System::Baseline, System::Vbdp, VBMQ, System::BareMetal];

impl System {
    /// In tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "Baseline",
            Self::Vbdp => "VBDP",
            Self::FreeHandovers(Loop::Baseline) => "Baseline, hand-overs free",
            Self::FreeHandovers(Loop::Vbdp) => "VBDP, hand-overs free",
            Self::Polling(_) => "VBMq",
            Self::Event(_) => "VBMq, event-driven",
            Self::BareMetal => "bare metal",
        }
    }

    /// Which queues share a thread, its costs on a drive, and the number of queues.
    fn parts(self, drive: Drive) -> (Layout, PathCosts, u16) {
        let (layout, path, vqs) = match self {
            Self::Baseline => (Layout::Virtio, host::BASELINE, 1),
            Self::Vbdp => (Layout::Virtio, host::VBDP, 1),
            Self::FreeHandovers(Loop::Baseline) => (Layout::Virtio, free_handovers(host::BASELINE), 1),
            Self::FreeHandovers(Loop::Vbdp) => (Layout::Virtio, free_handovers(host::VBDP), 1),
            Self::Polling(queues) => (Layout::PerQueue, host::POLLING, queues),
            Self::Event(queues) => (Layout::PerQueue, host::EVENT, queues),
            Self::BareMetal => (Layout::PerQueue, host::BARE_METAL, VCPUS),
        };
        let interrupt_ns = match (drive, self) {
            (Drive::Null, _) => 0,
            (Drive::Sm1715, Self::BareMetal) => host::INTERRUPT_NS,
            (Drive::Sm1715, Self::Polling(_) | Self::Event(_)) => host::INTERRUPT_UNDER_GUEST_NS,
            // It comes to some other core than the loop's.
            (Drive::Sm1715, Self::Baseline | Self::Vbdp | Self::FreeHandovers(_)) => 0,
        };
        (layout, PathCosts { complete_ns: path.complete_ns + interrupt_ns, ..path }, vqs)
    }
}

fn free_handovers(path: PathCosts) -> PathCosts {
    let free = |lock| Contention { handover_ns: 0, ..lock };
    PathCosts { mutex: free(path.mutex), ring: free(path.ring), ..path }
}

/// The paper's drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drive {
    /// Linux's null block device.
    Null,
    /// Samsung SM1715.
    Sm1715,
}

impl Drive {
    fn profile(self) -> Result<Profile, String> {
        let sm1715 = Profile::by_name("sm1715").ok_or("no profile sm1715")?;
        Ok(match self {
            Self::Sm1715 => sm1715,
            // Its time is its driver's, on the CPU that submits: the host's table has it.
            Self::Null => Profile {
                name: "null".into(),
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
            },
        })
    }
}

const WARMUP: Nanos = Nanos::from_millis(20);
const DURATION: Nanos = Nanos::from_millis(40);
const DISK_BYTES: u64 = 200_000_000_000;

/// fio's load in the VM: jobs and depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    pub jobs: u32,
    pub iodepth: u32,
    pub is_write: bool,
}

impl Load {
    /// 4K random read.
    pub fn read(jobs: u32) -> Self {
        Self { jobs, iodepth: IODEPTH, is_write: false }
    }
}

/// IOPS and mean latency (µs) of the VM.
pub fn run(context: &Context<'_>, system: System, drive: Drive, load: Load) -> Result<(f64, f64), String> {
    let (layout, path, vqs) = system.parts(drive);
    let tenant = Tenant {
        name: "VM".to_owned(),
        terms: Terms::default(),
        vcpus: VCPUS,
        vqs,
        queue_priorities: Vec::new(),
        size_bytes: DISK_BYTES,
        workload: Workload::Fio(Fio::random_4k(load.jobs, load.iodepth, if load.is_write { 0 } else { 100 })),
    };
    let scenario = Scenario {
        layout,
        costs: HostCosts { guest: host::GUEST, mediated: path, virtio: path, ..HostCosts::default() },
        tenants: vec![tenant],
        warmup: context.span(WARMUP),
        duration: context.span(DURATION),
        seed: context.seed(),
        ..Scenario::new(drive.profile()?)
    };
    let report = sim::run(&scenario).map_err(|error| error.to_string())?;
    if let Some(broken) = report.broken.first() {
        return Err(format!("the simulated system broke a rule: {broken:?}"));
    }
    let latency_us = report.tenants.first().map_or(f64::NAN, |tenant| tenant.latency.mean_ns / 1e3);
    Ok((report.total_iops(), latency_us))
}

/// What all figures of this paper rest on.
pub fn assumptions() -> Vec<String> {
    vec![
        "The paper's figures have no labels at their points: the numbers beside ours are those of its text, and curves \
         are compared by the shape that the text gives them."
            .to_owned(),
        format!(
            "A VM with {VCPUS} vCPUs, fio's 4K random I/O at depth {IODEPTH}. Baseline and VBDP are one event loop \
             with one queue, the first under a mutex that it shares with the vCPUs' exits; VBMq is a thread of its own \
             for each queue. One table of costs for the paper's host (POWER8, QEMU 2.3), fitted once to the text's \
             numbers."
        ),
        "There are as many cores as vCPUs, so a VBMq thread works on its vCPU's core and the vCPU stands still \
         meanwhile. A polling thread that finds nothing is taken to cost its vCPU nothing."
            .to_owned(),
        "A latency ends when the guest has handled the completion. fio's own also counts until its job asks for it, \
         which at this depth is most of what fio prints."
            .to_owned(),
    ]
}

/// How a series goes from its first to its last value: `1.2, 3.4`.
pub fn list(values: &[f64]) -> String {
    let text: Vec<String> = values.iter().map(|value| crate::report::short_number(*value)).collect();
    text.join(", ")
}

/// Whether no value is above the one before it; a step up of up to `slack` (a fraction) is none.
pub fn falls(values: &[f64], slack: f64) -> bool {
    values.iter().zip(values.iter().skip(1)).all(|(before, after)| *after <= before * (1.0 + slack))
}

/// Whether no value is below the one before it; a step down of up to `slack` (a fraction) is none.
pub fn grows(values: &[f64], slack: f64) -> bool {
    values.iter().zip(values.iter().skip(1)).all(|(before, after)| *after >= before * (1.0 - slack))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_their_slack() {
        assert!(falls(&[3.0, 3.03, 1.0], 0.02) && !falls(&[3.0, 3.1, 1.0], 0.02));
        assert!(grows(&[1.0, 0.99, 3.0], 0.02) && !grows(&[1.0, 0.9, 3.0], 0.02));
    }
}
