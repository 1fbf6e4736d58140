//! What is asked of a drive, and of which one.

use io_model::QueuePriority;
use policy::{Class, Floor, Limits};
use ssd_model::Profile;

/// How a tenant asks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// It keeps this many commands outstanding over all its queues: 1 or more.
    Closed {
        /// Commands.
        depth: u32,
    },
    /// It asks so often, at random moments (Poisson), whatever comes back.
    Open {
        /// Commands per second, above 0.
        rate_iops: f64,
    },
}

/// Part of a tenant's commands have this length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Size {
    /// Bytes, a multiple of 512.
    pub len_bytes: u64,
    /// Its part of all commands; the parts of a tenant's sizes sum to 1.
    pub part: f64,
}

/// One tenant: what it was promised and what it will ask for, at random addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// For reports.
    pub name: String,
    /// The promise or the weight.
    pub class: Class,
    /// What it gets at least while it asks for it, under a policy that keeps floors.
    pub floor: Floor,
    /// What it gets at most.
    pub limits: Limits,
    /// Its priority under `wrr` and `drr`.
    pub priority: QueuePriority,
    /// How it asks.
    pub load: Load,
    /// Reads of all commands, 0 to 1; the others are writes.
    pub read_share: f64,
    /// At least one.
    pub sizes: Vec<Size>,
    /// The guest's CPUs, at least 1, each with a queue of its own. A closed load is spread over them evenly.
    pub vcpus: u16,
}

impl Tenant {
    /// Commands per second that its floor comes to.
    pub(crate) fn floor_iops(&self) -> f64 {
        self.floor.iops(self.mean_len_bytes())
    }

    /// Commands per second that its limits let through; none without one.
    pub(crate) fn most_iops(&self) -> Option<f64> {
        self.limits.most_iops(self.read_share, self.mean_len_bytes())
    }

    /// Mean length of its commands.
    pub fn mean_len_bytes(&self) -> f64 {
        self.sizes.iter().map(|size| size.part * size.len_bytes as f64).sum()
    }
}

/// What a command costs the host's CPUs, and how the host's pollers reach the drive. Times in ns; all may be 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// A vCPU's time between one I/O and the next; not part of a closed loop's latency.
    pub guest_app_ns: f64,
    /// A vCPU's time from the start of an I/O to its doorbell.
    pub guest_submit_ns: f64,
    /// What a write adds to that.
    pub guest_write_ns: f64,
    /// Taking an interrupt, once for all completions found then.
    pub guest_irq_ns: f64,
    /// Handling one completion.
    pub guest_complete_ns: f64,
    /// Part of `guest_app_ns` and `guest_complete_ns` that is exponentially distributed, 0 to 1; cut at 6.3 times its
    /// mean.
    pub guest_varies: f64,
    /// A poller's look at all queues, beside what is found there.
    pub poller_pass_ns: f64,
    /// Fetching and submitting one command.
    pub poller_fetch_ns: f64,
    /// What a write adds to that.
    pub poller_write_ns: f64,
    /// Reaping and posting one completion.
    pub poller_complete_ns: f64,
    /// Ringing the doorbell of one of the drive's queues, once in a pass.
    pub poller_doorbell_ns: f64,
    /// Raising the interrupt of one of a tenant's queues, once in a pass.
    pub poller_interrupt_ns: f64,
    /// Commands that a poller fetches in one pass, at most; at least 1.
    pub poller_batch: u32,
    /// From a raised interrupt until the guest takes it; occupies nothing.
    pub delay_ns: f64,
    /// The drive's queues at a poller that serves one tenant alone, at least 1.
    pub hwqs_own: u16,
    /// The drive's queues at a poller that several tenants share, at least 1.
    pub hwqs_shared: u16,
}

impl Host {
    /// A host that costs nothing.
    pub const FREE: Self = Self {
        guest_app_ns: 0.0,
        guest_submit_ns: 0.0,
        guest_write_ns: 0.0,
        guest_irq_ns: 0.0,
        guest_complete_ns: 0.0,
        guest_varies: 0.0,
        poller_pass_ns: 0.0,
        poller_fetch_ns: 0.0,
        poller_write_ns: 0.0,
        poller_complete_ns: 0.0,
        poller_doorbell_ns: 0.0,
        poller_interrupt_ns: 0.0,
        poller_batch: 64,
        delay_ns: 0.0,
        hwqs_own: 6,
        hwqs_shared: 8,
    };
}

impl Default for Host {
    /// The simulator's default host: LPNS's, fitted \[F\] to its Fig. 7a and 7b. Guests included; for measurements of a
    /// daemon by a client that is no guest, leave the guest's times out.
    fn default() -> Self {
        Self {
            guest_app_ns: 5_250.0,
            guest_submit_ns: 250.0,
            guest_write_ns: 530.0,
            guest_irq_ns: 250.0,
            guest_complete_ns: 1_380.0,
            guest_varies: 1.0,
            poller_pass_ns: 340.0,
            poller_fetch_ns: 760.0,
            poller_write_ns: 95.0,
            poller_complete_ns: 830.0,
            poller_doorbell_ns: 100.0,
            poller_interrupt_ns: 10.0,
            poller_batch: 24,
            delay_ns: 500.0,
            ..Self::FREE
        }
    }
}

/// A drive and its host.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// The drive.
    pub profile: Profile,
    /// The host.
    pub host: Host,
}
