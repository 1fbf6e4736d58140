//! Events: a numbered log of what happened in a running daemon.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The longest time that a request may wait for an event, in seconds.
pub const MAX_EVENT_WAIT_S: u32 = 20;

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The daemon started.
    Started,
    /// A tenant or namespace was created.
    Created,
    /// A tenant's promise, weight, limits or size changed, or a namespace's size or attachments.
    Changed,
    /// A client attached to a tenant's socket.
    Attached,
    /// The client of a tenant's socket detached.
    Detached,
    /// A tenant or namespace was deleted.
    Deleted,
    /// The daemon does not have an encrypted disk's key: no client can attach until it has.
    Locked,
    /// The key of a locked disk is here.
    Unlocked,
    /// An encrypted disk got another key: its data can't be read any more.
    Erased,
    /// An encrypted disk has another key everywhere, and its data as before.
    Reencrypted,
    /// A deleted disk's data was overwritten, and its space is free.
    Wiped,
    /// A deleted disk's data can't be overwritten. Its space stays reserved until the daemon starts next.
    WipeFailed,
    /// A tenant's promise is no longer kept.
    PromiseBroken,
    /// A tenant's promise is kept again.
    PromiseKept,
    /// A tenant's commands fail with errors from the drive.
    DriveFailing,
    /// Less than a tenth of the pool of a drive's thin disks is free.
    PoolLow,
    /// The pool of a drive's thin disks is full: their writes to new places fail.
    PoolFull,
    /// The pool of a drive's thin disks has room again.
    PoolRoom,
    /// A drive's scheduling policy changed.
    PolicyChanged,
    /// A drive was added.
    DriveAdded,
    /// A drive without disks was removed.
    DriveRemoved,
}

impl EventKind {
    /// The kind's name, as people read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Attached => "attached",
            Self::Detached => "detached",
            Self::Deleted => "deleted",
            Self::Locked => "locked",
            Self::Unlocked => "unlocked",
            Self::Erased => "erased",
            Self::Reencrypted => "re-encrypted",
            Self::Wiped => "wiped",
            Self::WipeFailed => "wipe failed",
            Self::PromiseBroken => "promise broken",
            Self::PromiseKept => "promise kept",
            Self::DriveFailing => "drive failing",
            Self::PoolLow => "pool low",
            Self::PoolFull => "pool full",
            Self::PoolRoom => "pool has room",
            Self::PolicyChanged => "policy changed",
            Self::DriveAdded => "drive added",
            Self::DriveRemoved => "drive removed",
        }
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// The event's number. Numbers only grow, also over restarts. One daemon's events have no gaps between them.
    pub number: u64,
    /// Time of the event, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The kind of event.
    pub kind: EventKind,
    /// The tenant or namespace, if the event is about one.
    pub tenant: Option<String>,
    /// The tenant's labels at that time.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub labels: BTreeMap<String, String>,
    /// Details, in words.
    pub what: Option<String>,
}

/// The events after a given number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// The events in order, at most 1,000. The next request returns the rest.
    pub events: Vec<Event>,
    /// `true`: events after `since` are missing. The reader was too slow, or the daemon was restarted.
    pub lost: bool,
    /// The value of `since` for the next request.
    pub next: u64,
}

/// Which events to return.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsAfter {
    /// Return the events after this number. 0: all that the daemon still has.
    #[serde(default)]
    pub since: u64,
    /// Seconds to wait for an event if there is none: 0 to 20.
    #[serde(default)]
    pub wait_s: u32,
}
