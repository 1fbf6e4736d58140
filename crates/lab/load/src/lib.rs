//! A load generator: fio-style jobs over a real NVMe or virtio-blk client. `evenkeel load` uses it.
//!
//! | module | what |
//! | --- | --- |
//! | [`spec`] | [`JobSpec`]: what a job does, and checking it against a disk |
//! | [`priority`] | queue priorities and arbitration as operators write them |
//! | [`value`] | sizes, times and shares as operators write them |
//! | `pace`, `pattern` | where the next command goes and when, reproducible from a seed |
//! | [`verify`] | stamped blocks: finds corrupt, stale and misplaced data |
//! | [`job`] | [`Job`]: one queue's work, as calls of `step(now)`; no thread, no clock |
//! | [`disk`] | [`Disk`](disk::Disk): what a job needs of the transport |
//! | `nvme`, `vhost`, `attach` | the transports: vfio-user, vhost-user-blk, or either |
//! | `bridge` | what stands for what a vhost-user server lacks |
//! | [`stats`] | counts and latency histograms, per interval and summed |
//! | [`runner`] | threads, the clock, live samples, stopping, noticing that a device is gone |
//! | [`report`] | JSON with fio's field names, and a table |
//! | [`cli`] | the command line |
//!
//! Latencies: `clat` is from submission to completion; `lat` is from when the command was *due*, so that
//! a paced job that falls behind shows it. Jobs that are not paced have no due time but "now".
//!
//! Not implemented: fio's job files, replay of traces, files, interrupts (a job polls).

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it measures, and keeps to a rate")]

mod attach;
mod bridge;
pub mod cli;
pub mod disk;
pub mod job;
mod nvme;
mod pace;
mod pattern;
pub mod priority;
pub mod report;
pub mod runner;
pub mod spec;
pub mod stats;
pub mod value;
pub mod verify;
mod vhost;

pub use attach::{AnyDisk, AnyQueue, Frontend};
pub use job::{Job, Step};
pub use nvme::{NvmeDisk, NvmeQueue};
pub use runner::{Options, Patience, Sample, Target, run};
pub use spec::{JobSpec, Rw};
pub use stats::{Direction, JobResult};
pub use vhost::{Problem, VhostDisk, VhostQueue};

use std::path::PathBuf;

/// Why a run could not start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The device can't be reached or driven.
    #[error(transparent)]
    Device(#[from] nvme_driver::Error),
    /// A vhost-user-blk device can't be reached or driven.
    #[error("{}: {problem}", .path.display())]
    Vhost {
        /// Its socket.
        path: PathBuf,
        /// Why.
        problem: Problem,
    },
    /// A command was not taken.
    #[error(transparent)]
    Submit(#[from] nvme_driver::SubmitError),
    /// A job asks for what the device or the tool can't do.
    #[error("{0}")]
    Spec(String),
    /// The system refused something.
    #[error("{0}")]
    System(String),
}

impl Error {
    /// Whether what was asked for is wrong (a path, a parameter), rather than what happened then.
    pub fn is_bad_input(&self) -> bool {
        use nvme_driver::Error::{NoPermission, NoSocket, NobodyListens};
        match self {
            Self::Spec(_) => true,
            Self::Device(error) => matches!(error, NoSocket { .. } | NobodyListens { .. } | NoPermission { .. }),
            Self::Vhost { problem, .. } => problem.is_bad_input(),
            Self::Submit(_) | Self::System(_) => false,
        }
    }
}
