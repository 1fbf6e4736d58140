//! Types of the daemon's APIs, and clients for them. The daemon serves them.
//!
//! * HTTP on `api.sock`: disks and drives. [`NewDisk`] and others are the bodies, [`Rest`] is the client. [`Live`] is
//!   for pages that refresh each second.
//! * Over the control socket: what tenants get. [`Ask`] and [`Answer`] are lines of JSON, [`Client`] is the asking end.

#![forbid(unsafe_code)]

mod apply;
mod ceilings;
mod change;
mod client;
mod disks;
mod drives;
mod events;
mod live;
mod namespaces;
mod rest;
mod snapshot;
mod why;

use std::path::{Path, PathBuf};

pub use apply::{Action, Applied, Apply, Exported, Key, Step};
pub use ceilings::Ceilings;
pub use change::{DiskChange, Dropped};
pub use client::{Client, NoDaemon, WHO_ELSE_MAY_ASK};
pub use disks::{Deletion, Disk, DiskState, NewDisk, Operation, OperationState, Problem, Wipe};
pub use drives::{Drive, DriveHealth, DriveRemoval, NewDrive, Sanitize, SanitizeStep};
pub use events::{Event, EventKind, Events, EventsAfter, MAX_EVENT_WAIT_S};
pub use live::{Live, LiveDetail, LiveDisk, LiveDrive, LiveLatency, LiveTenant, Moved};
pub use namespaces::{Attach, Attachment, Namespace};
pub use rest::{Rest, api_path};
use serde::{Deserialize, Serialize};
pub use snapshot::{BlameRow, BoundRow, DrivePolicy, HeldRow, PollerRow, Predicted, PriceRow, Snapshot, TenantRow};
pub use why::{Did, MAX_TRACE_S, MAX_WHY_MS, NeighbourThen, Remedy, TraceAsked, Why, WhyAsked, trace_end, trace_ended};

/// The longest span that a client may ask for, in milliseconds. The daemon keeps the start of a span for this long.
pub const MAX_SPAN_MS: u64 = 60_000;

/// The control socket of the daemon that keeps its sockets in `runtime_dir`.
pub fn control_path(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("control")
}

/// What can be asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// All tenants, over the next `span_ms` milliseconds; 0: since the start.
    Stats {
        /// At most [`MAX_SPAN_MS`].
        span_ms: u64,
    },
}

/// What comes back.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To [`Ask::Stats`].
    Stats(Snapshot),
    /// The request was not understood.
    Error(String),
}
