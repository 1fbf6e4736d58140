//! What the tenants' applications ask for.
//!
//! | module | workload |
//! | --- | --- |
//! | `access` | which operation, where and how much: shared by the next three |
//! | `fio` | a closed loop: each I/O that ends is followed by another |
//! | `open` | an open loop: arrivals come whether or not the last I/O ended |
//! | `phases` | a closed loop that does something else from time to time, or nothing |
//! | `webuser` | a stand-in for the web server's trace that LPNS replays |
//! | `replay` | a block trace |
//!
//! Not implemented: fio's rate limits, think times and offsets that follow a distribution; a guest's file system and
//! page cache; applications with logic of their own, as a database: record a trace of those.
//!
//! A workload is data; [`Workload::jobs`] makes its threads. All random numbers come from the seed that is passed
//! in, so the same workload, disk and seed ask for the same I/Os as long as they complete in the same order.

mod access;
#[cfg(test)]
mod driver;
mod fio;
mod open;
mod phases;
mod replay;
mod seed;
#[cfg(test)]
mod tests;
mod webuser;

pub use access::{Access, BlockSize, Pattern};
pub use fio::Fio;
pub use open::{Arrivals, Open};
pub use phases::{AWAKE, Phase, Phases, WAKING};
pub use replay::{Replay, Request};
pub use webuser::Webuser;

use crate::Job;

/// What one tenant's guest runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// A closed loop with a depth.
    Fio(Fio),
    /// A closed loop with a depth that does something else from time to time.
    Phases(Phases),
    /// An open loop with a rate.
    Open(Open),
    /// An open loop with a wandering rate.
    Webuser(Webuser),
    /// A block trace.
    Replay(Replay),
    /// Nothing.
    Idle,
    /// Overwrites what deleted disks left: the daemon's wiper, a tenant without a disk. The engine gives it its work.
    Wipe,
    /// Copies shared pieces of thin disks: a mover of the daemon's. The engine gives it its work.
    Copy,
}

impl Workload {
    /// Its threads, in order: job i runs on vCPU i modulo the number of vCPUs. `disk_bytes` is the size of the
    /// tenant's disk. A workload that does not [`validate`](Self::validate) has none.
    pub fn jobs(&self, disk_bytes: u64, seed: u64) -> Vec<Box<dyn Job>> {
        if self.validate(disk_bytes).is_err() {
            return Vec::new();
        }
        match self {
            Self::Fio(fio) => fio.jobs(disk_bytes, seed),
            Self::Phases(phases) => phases.jobs(disk_bytes, seed),
            Self::Open(open) => open.jobs(disk_bytes, seed),
            Self::Webuser(webuser) => webuser.jobs(disk_bytes, seed),
            Self::Replay(replay) => replay.jobs(),
            Self::Idle | Self::Wipe | Self::Copy => Vec::new(),
        }
    }

    /// Says what can't be run on a disk of this size.
    pub fn validate(&self, disk_bytes: u64) -> Result<(), WorkloadError> {
        match self {
            Self::Fio(fio) => fio.validate(disk_bytes),
            Self::Phases(phases) => phases.validate(disk_bytes),
            Self::Open(open) => open.validate(disk_bytes),
            Self::Webuser(webuser) => webuser.validate(disk_bytes),
            Self::Replay(replay) => replay.validate(disk_bytes),
            Self::Idle | Self::Wipe | Self::Copy => Ok(()),
        }
    }
}

/// Why a workload can't be run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// A number outside of its range.
    #[error("{name} is {value}, expected {expected}")]
    Range {
        /// Which number, as in the workload's fields.
        name: &'static str,
        /// What it is.
        value: f64,
        /// What it may be.
        expected: &'static str,
    },
    /// The disk is too small, or so is the part of it that may be used.
    #[error("{jobs} jobs need {need_bytes} bytes, only {have_bytes} may be used")]
    Space {
        /// How many jobs share the space.
        jobs: u32,
        /// What they need.
        need_bytes: u64,
        /// What there is.
        have_bytes: u64,
    },
    /// A list that may not be empty.
    #[error("{0} is empty")]
    Empty(&'static str),
    /// All requests of a trace are at one time, so it can't be looped.
    #[error("the trace spans no time, so it can't be looped")]
    NoSpan,
    /// A trace reaches beyond the disk.
    #[error("the trace ends at {end_bytes} bytes, the disk at {disk_bytes}")]
    PastEnd {
        /// The end of the trace's last block.
        end_bytes: u64,
        /// The size of the disk.
        disk_bytes: u64,
    },
}

/// Fails unless `value` lies in `range`.
fn within(
    name: &'static str,
    value: u64,
    range: std::ops::RangeInclusive<u64>,
    expected: &'static str,
) -> Result<(), WorkloadError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(WorkloadError::Range { name, value: value as f64, expected })
}

/// Fails unless `value` is a finite number in `min..=max`.
fn within_f64(name: &'static str, value: f64, min: f64, max: f64, expected: &'static str) -> Result<(), WorkloadError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(WorkloadError::Range { name, value, expected })
}
