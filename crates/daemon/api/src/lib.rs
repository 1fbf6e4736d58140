//! Types of the daemon's API, and clients for it.
//!
//! The API is HTTP on `api.sock`. [`DiskSpec`] and others are the bodies, [`Rest`] is the client. [`Live`] is for pages
//! that refresh each second, [`Snapshot`] has each tenant's statistics over one span.

#![forbid(unsafe_code)]

mod apply;
mod ceilings;
mod disks;
mod document;
mod drives;
mod error;
mod events;
mod hour;
mod live;
mod namespaces;
mod patch;
mod rest;
mod snapshot;
mod why;

pub use apply::{Action, Applied, Apply, Exported, Key, Step};
pub use ceilings::Ceilings;
pub use disks::{
    Deletion, Disk, DiskSnapshot, DiskSpec, DiskState, DiskVerdict, Erasure, HostKeys, NewSnapshots, Operation,
    OperationState, Problem, Rewrapped, Rollback, TenantKey, Wipe, labels_in_words,
};
pub use document::{Items, document};
pub use drives::{Drive, DriveHealth, DriveRemoval, NewDrive, PoolRoom};
pub use error::{DiskError, Reason};
pub use events::{Event, EventKind, Events, EventsAfter, MAX_EVENT_WAIT_S};
pub use hour::{HOUR_MINUTES, LastHour, TenantHour};
pub use live::{Live, LiveDetail, LiveDisk, LiveDrive, LiveLatency, LivePoller, LiveTenant, LiveVerdict, Moved};
pub use namespaces::{Attach, Attachment, Namespace};
pub use patch::{DiskPatch, Dropped};
pub use rest::{NoDaemon, Rest, api_path};
pub use snapshot::{
    BlameRow, BoundRow, DrivePolicy, HeldRow, MAX_SPAN_MS, PollerRow, Predicted, PriceRow, Snapshot, StatsAsked,
    TenantRow,
};
pub use why::{Did, MAX_TRACE_S, MAX_WHY_MS, NeighbourThen, Remedy, TraceAsked, Why, WhyAsked, trace_end, trace_ended};
