//! What tenants get, read from their probes: figures, verdicts, causes, history.
//!
//! Everything here only reads. The daemon hands out a [`DriveView`] of each drive.
//!
//! | module | what |
//! | --- | --- |
//! | `clock` | the daemon's clock |
//! | `cpu_waits` | what pollers spend of their CPUs, and how long they wait for them |
//! | `events` | the event log |
//! | `snapshot` | what tenants and pollers did over a span |
//! | `foresight` | forecasts of tenants, compared with their measurements |
//! | `explain` | what a promise costs others, and what limits best-effort tenants |
//! | `verdict` | the one judgement of a promise: kept or broken, by what, and what would help |
//! | `blame` | the cause of a broken promise over a span of the probes |
//! | `verdict_record` | the verdicts on one tenant, for its guest |
//! | `verdicts` | the last verdict on each tenant, every few seconds |
//! | `promise_events` | tells the log when a promise starts to fail |
//! | `usual` | what tenants usually do |
//! | `summaries` | ten seconds at a time, in files |
//! | `totals` | counters of `/metrics` that go on after a restart |
//! | `why` | why a tenant was slow at some time |

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it has a clock and threads")]

mod blame;
pub mod ceilings;
pub mod clock;
pub mod cpu_waits;
pub mod events;
pub mod explain;
pub mod foresight;
pub mod promise_events;
pub mod snapshot;
pub mod summaries;
pub mod totals;
pub mod usual;
pub mod verdict;
pub mod verdict_record;
pub mod verdicts;
pub mod why;

use std::collections::BTreeSet;
use std::sync::Arc;

use backend_nvme::LastHealth;
use confine::ThreadKind;
use poller::{Board, TenantProbes};

use crate::foresight::Foresight;

/// One drive, for threads that read what its tenants get.
#[derive(Clone)]
pub struct DriveView {
    /// The drive.
    pub name: Arc<str>,
    /// Its pollers.
    pub board: Arc<Board>,
    /// What was said of its tenants, and what measures them.
    pub foresight: Arc<Foresight>,
    /// What it says of itself, where the kernel does not have it.
    pub health: Option<LastHealth>,
    /// What overwrites deleted disks, while it is there: nothing is said of it.
    pub wiper: Option<TenantProbes>,
}

/// The daemon, as threads that read know it.
pub trait Daemon: Send + 'static {
    /// Each drive, with the tenants that are there now. `None`: the daemon has ended.
    fn views(&self) -> Option<Vec<DriveView>>;
    /// The names of the disks that the configuration file declares. `None`: the daemon has ended.
    fn declared(&self) -> Option<BTreeSet<String>>;
    /// The names of tenants whose promises fail have changed.
    fn tell_broken(&self, names: Vec<String>);
    /// A thread's first action: it confines itself to the system calls that it needs.
    fn begin(&self, kind: ThreadKind);
}
