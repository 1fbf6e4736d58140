//! What is asked of a drive, and of which one.

use io_model::QueuePriority;
use policy::Class;
use ssd_model::Profile;

/// How a tenant asks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// It keeps so many commands outstanding, all its queues together; 1 or more.
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
    /// Its priority under `wrr` and `drr`.
    pub priority: QueuePriority,
    /// How it asks.
    pub load: Load,
    /// Reads of all commands, 0 to 1; the others are writes.
    pub read_share: f64,
    /// At least one.
    pub sizes: Vec<Size>,
    /// The guest's CPUs, at least 1. Only [`Host`]s whose guests take time ask.
    pub vcpus: u16,
}

/// What a command costs the host. Times in ns; all may be 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// The poller's time to fetch and submit a command, one after another.
    pub poller_submit_ns: f64,
    /// The poller's time to complete a command.
    pub poller_complete_ns: f64,
    /// What a pass over all queues costs beside that.
    pub poller_pass_ns: f64,
    /// Latency that occupies nothing: doorbell to poller, interrupt to guest.
    pub delay_ns: f64,
    /// A vCPU's time for each command that counts as latency (submission, interrupt, completion).
    pub guest_latency_ns: f64,
    /// A vCPU's time between a command's completion and its next submission.
    pub guest_think_ns: f64,
}

/// A drive and its host.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// The drive.
    pub profile: Profile,
    /// The host.
    pub host: Host,
}
