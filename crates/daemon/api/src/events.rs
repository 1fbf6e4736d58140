//! What happened in a running daemon, told in order.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The longest that a request for events may wait for one, in seconds.
pub const MAX_EVENT_WAIT_S: u32 = 20;

/// What kind of thing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The daemon started.
    Started,
    /// A tenant or namespace is there that was not.
    Created,
    /// A tenant is promised or held to something else; a namespace is attached to others, or larger.
    Changed,
    /// A client attached to a tenant's socket.
    Attached,
    /// It is gone.
    Detached,
    /// A tenant or namespace was deleted.
    Deleted,
    /// What a deleted tenant left is overwritten, and free.
    Wiped,
    /// It can't be overwritten, and stays reserved until the next start.
    WipeFailed,
    /// The promise to a tenant fails.
    PromiseBroken,
    /// It is kept again.
    PromiseKept,
    /// The drive fails commands of a tenant.
    DriveFailing,
    /// Another policy decides on a drive.
    PolicyChanged,
    /// A drive was added.
    DriveAdded,
    /// An empty one was taken away.
    DriveRemoved,
}

impl EventKind {
    /// As people read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Attached => "attached",
            Self::Detached => "detached",
            Self::Deleted => "deleted",
            Self::Wiped => "wiped",
            Self::WipeFailed => "wipe failed",
            Self::PromiseBroken => "promise broken",
            Self::PromiseKept => "promise kept",
            Self::DriveFailing => "drive failing",
            Self::PolicyChanged => "policy changed",
            Self::DriveAdded => "drive added",
            Self::DriveRemoved => "drive removed",
        }
    }
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// It only grows, over restarts too; those of one daemon follow one another without a gap.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What.
    pub kind: EventKind,
    /// To whom.
    pub tenant: Option<String>,
    /// More of it, in words.
    pub what: Option<String>,
}

/// What happened after some number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// In order; at most 1,000, the rest comes with the next request.
    pub events: Vec<Event>,
    /// Something between `since` and these is not known any more: the reader was too slow, or the daemon was restarted.
    pub lost: bool,
    /// What to ask for next, as `since`.
    pub next: u64,
}

/// Which events are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventsAfter {
    /// Those after this number; 0: all that are known.
    #[serde(default)]
    pub since: u64,
    /// How long to wait for one if there is none, in seconds: at most 20.
    #[serde(default)]
    pub wait_s: u32,
}
