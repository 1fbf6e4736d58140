//! Who gets what now, and who hurts whom: for the page, and whoever else looks once a second.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{BlameRow, BoundRow, DriveHealth, Event, Operation};

/// All drives and tenants over about the last second.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Live {
    /// The daemon's.
    pub version: String,
    /// What another daemon must know to go on where this one leaves its clients, ending on a signal: `<version of
    /// controllers' states>.<version of what is said to the keeper>.<version of virtio disks' states>`.
    #[serde(default)]
    pub handover: String,
    /// When the daemon started, in milliseconds since 1970: what is counted since then begins anew with another.
    pub started_at_unix_ms: u64,
    /// When this was read, in milliseconds since 1970. Whoever asks again within a second gets the same again.
    pub at_unix_ms: u64,
    /// Over how long `moved` and `latency` of tenants are measured, 1 to 10,000 ms. None where nobody asked in the 10 s
    /// before: ask again in a second.
    pub span_ms: Option<u64>,
    /// In the order in which they came.
    pub drives: Vec<LiveDrive>,
    /// Drive by drive, in the order in which they came.
    pub tenants: Vec<LiveTenant>,
    /// What goes on by itself, such as wipes.
    pub operations: Vec<Operation>,
    /// The last 50 things that happened, but for clients that came and went, the oldest first.
    pub events: Vec<Event>,
}

/// A drive and who holds what of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LiveDrive {
    /// Unique among the drives.
    pub name: String,
    /// The scheduling policy.
    pub policy: String,
    /// Bytes that disks may have.
    pub size_bytes: u64,
    /// Bytes that new disks could have in all.
    pub free_bytes: u64,
    /// Bytes that deleted disks left, and that are free once they are wiped.
    pub wiping_bytes: u64,
    /// Why it could not be had, or was given up; its disks are not served.
    pub failed: Option<String>,
    /// What the drive says of itself, a minute ago at most.
    pub health: Option<DriveHealth>,
    /// Disks and namespaces on it.
    pub disks: Vec<LiveDisk>,
}

/// What a disk holds of its drive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveDisk {
    /// Unique among the living.
    pub name: String,
    /// Bytes that its guest sees.
    pub size_bytes: u64,
}

/// One tenant. Latencies run from the doorbell's first sight to the posted completion.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LiveTenant {
    /// The tenant.
    pub name: String,
    /// The drive that it is on.
    pub drive: String,
    /// `guaranteed` or `best-effort`.
    pub class: String,
    /// The share of a best-effort tenant.
    pub weight: Option<u32>,
    /// The promise to a guaranteed tenant.
    pub target_ns: Option<u64>,
    /// The percentage of its commands that take no longer.
    #[serde(default)]
    pub latency_percentile: Option<f64>,
    /// What a best-effort tenant gets at least, in words.
    #[serde(default)]
    pub floor: Option<String>,
    /// What 99 of 100 of its commands are expected to take, where there is a model.
    pub predicted_p99_ns: Option<u64>,
    /// What it did in the span; none where there was no span.
    pub moved: Option<Moved>,
    /// Commands that the drive has.
    pub in_flight: u64,
    /// How long its commands took; none where none was completed in the span.
    pub latency: Option<LiveLatency>,
    /// Whether the promise was kept over 5 s and more, up to a few seconds ago. None without one, and where fewer than
    /// 100 commands were asked for.
    pub kept: Option<bool>,
    /// Whose fault it was if not.
    pub blame: Option<BlameRow>,
}

/// What a tenant did in a span.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Moved {
    /// Completions per second.
    pub iops: f64,
    /// Bytes read and written per second.
    pub bytes_per_second: u64,
    /// Completions later than the target.
    pub late: u64,
    /// Commands that the drive failed.
    pub errors: u64,
}

/// How long commands took that were completed in a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveLatency {
    /// Mean.
    pub mean_ns: u64,
    /// The part of it that passed in the tenant's queue.
    pub waited_ns: u64,
    /// The part of it that passed with the drive.
    pub served_ns: u64,
    /// Median, within 1.6 %; so are the others.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
}

/// All that is known of one tenant, with how its latencies are spread.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LiveDetail {
    /// See [`Live::started_at_unix_ms`].
    pub started_at_unix_ms: u64,
    /// When the counts were read, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// As `GET /live` has it.
    pub tenant: LiveTenant,
    /// What it may do at most, in words.
    pub limits: Option<String>,
    /// `urgent`, `high`, `medium`, `low` or `client` under `wrr` and `drr`.
    pub priority: Option<String>,
    /// It is served even if its promise can't be kept.
    pub overcommit: bool,
    /// What it is taken to ask for, in words.
    pub demand: String,
    /// Nobody declared that.
    pub assumed: bool,
    /// HWQs in use in the last 10 ms, as numbers within the tenant's poller.
    pub hwqs: Vec<u16>,
    /// The latency that the policy vouches for now, if any: time with a drive that serves waiting commands in order.
    pub bound_ns: Option<u64>,
    /// What stands behind it.
    pub bound: Option<BoundRow>,
    /// Upper bounds of the latencies in `counts`, rising.
    pub upper_ns: Vec<u64>,
    /// Completions since the tenant came or the daemon started, by latency: those above the bound before and up to the
    /// same place in `upper_ns`; the last count is of those above all bounds.
    pub counts: Vec<u64>,
}
