//! `GET /live`: what each tenant gets now and which tenants harm others. The page shows it once a second.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{BlameRow, BoundRow, DriveHealth, Event, Operation};

/// All drives and tenants over about the last second.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct Live {
    /// The daemon's version.
    pub version: String,
    /// The versions of the state that this daemon leaves to its successor when a signal ends it.
    ///
    /// The form is `<NVMe controller state>.<keeper protocol>.<virtio disk state>`.
    #[serde(default)]
    pub handover: String,
    /// When the daemon started, in milliseconds since 1970. All counters start at 0 then.
    pub started_at_unix_ms: u64,
    /// When these values were read, in milliseconds since 1970. The daemon reads them once a second at most.
    pub at_unix_ms: u64,
    /// The length of time that `moved` and `latency` cover, 1 to 10,000 ms. Absent if there was no request in the last
    /// 10 s: ask again in a second.
    pub span_ms: Option<u64>,
    /// The drives, in the order in which they were added.
    pub drives: Vec<LiveDrive>,
    /// The running pollers, drive by drive.
    #[serde(default)]
    pub pollers: Vec<LivePoller>,
    /// The tenants, drive by drive, in the order in which they were added.
    pub tenants: Vec<LiveTenant>,
    /// Background operations, such as overwriting deleted disks.
    pub operations: Vec<Operation>,
    /// The last 50 events, oldest first. Clients that attach and detach are left out.
    pub events: Vec<Event>,
}

/// A poller over the span.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LivePoller {
    /// The poller's number, as in its thread's name.
    pub poller: usize,
    /// Percentage of the span in which the poller moved commands.
    pub busy_percent: f64,
    /// Percentage of the span in which the poller was ready to run but had no CPU.
    pub cpu_wait_percent: f64,
}

/// A drive and the disks on it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LiveDrive {
    /// The drive's name. No other drive has it.
    pub name: String,
    /// The scheduling policy.
    pub policy: String,
    /// Capacity for disks, in bytes.
    pub size_bytes: u64,
    /// Bytes available to new disks.
    pub free_bytes: u64,
    /// Bytes of deleted disks that are not overwritten yet. They become free then.
    pub wiping_bytes: u64,
    /// Why the drive failed to open, or was given up. Its disks are not served.
    pub failed: Option<String>,
    /// The drive's own health report, at most a minute old.
    pub health: Option<DriveHealth>,
    /// The disks and namespaces on this drive.
    pub disks: Vec<LiveDisk>,
}

/// A disk and its size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveDisk {
    /// The disk's name. No other disk has it.
    pub name: String,
    /// Size in bytes, as its guest sees it.
    pub size_bytes: u64,
    /// Owner of the key that encrypts the disk's data: `host` or `tenant`. Absent: it is not encrypted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub encryption: Option<String>,
    /// `true`: the daemon does not have the disk's key. No client can attach until it has.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub locked: bool,
}

/// One tenant. Latencies run from when the daemon first sees the doorbell until it posts the completion.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LiveTenant {
    /// The tenant's name.
    pub name: String,
    /// The tenant's labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub labels: BTreeMap<String, String>,
    /// The drive that the tenant's disk is on.
    pub drive: String,
    /// `guaranteed` or `best-effort`.
    pub class: String,
    /// Weight of a best-effort tenant.
    pub weight: Option<u32>,
    /// Latency promised to a guaranteed tenant, in nanoseconds.
    pub target_ns: Option<u64>,
    /// The percentage of commands that must meet the target.
    #[serde(default)]
    pub latency_percentile: Option<f64>,
    /// What a best-effort tenant gets at least, in words.
    #[serde(default)]
    pub floor: Option<String>,
    /// The expected 99th percentile of latency, in nanoseconds. Absent if there is no model of the drive.
    pub predicted_p99_ns: Option<u64>,
    /// The last verdict on the promise. Absent without a promise, and in the first seconds.
    pub verdict: Option<LiveVerdict>,
    /// Throughput and errors in the span. Absent if there was no span.
    pub moved: Option<Moved>,
    /// Commands in flight at the drive.
    pub in_flight: u64,
    /// Latency of the commands completed in the span. Absent if there were none.
    pub latency: Option<LiveLatency>,
}

/// A verdict on a promise, with the figures of the span that was judged: the daemon judges every 5 s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveVerdict {
    /// Length of the span, in milliseconds: 5 s, or up to 300 s if there are fewer than 100 commands.
    pub span_ms: u64,
    /// Whether the promise was kept. Absent with too few commands to tell.
    pub kept: Option<bool>,
    /// Latency at the promised percentile, in nanoseconds. Absent without a latency target or without commands.
    pub at_percentile_ns: Option<u64>,
    /// What broke the promise, if it was broken.
    pub blame: Option<BlameRow>,
}

/// A tenant's throughput and errors in a span.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Moved {
    /// Completions per second.
    pub iops: f64,
    /// Bytes read and written per second.
    pub bytes_per_second: u64,
    /// Completions in the span that took longer than the target.
    pub late: u64,
    /// Commands in the span that the drive failed.
    pub errors: u64,
}

/// Latency of the commands completed in a span, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LiveLatency {
    /// Mean.
    pub mean_ns: u64,
    /// The part of the mean spent in the tenant's queue.
    pub waited_ns: u64,
    /// The part of the mean spent in the drive.
    pub served_ns: u64,
    /// Median. This and the other percentiles are accurate within 1.6 %.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
}

/// All data about one tenant, including its latency histogram.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LiveDetail {
    /// See [`Live::started_at_unix_ms`].
    pub started_at_unix_ms: u64,
    /// When the counts were read, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The tenant, as in `GET /live`.
    pub tenant: LiveTenant,
    /// The limits, in words. Absent: none.
    pub limits: Option<String>,
    /// Priority under the policies `wrr` and `drr`: `urgent`, `high`, `medium`, `low` or `client`.
    pub priority: Option<String>,
    /// `true`: the tenant is served even if its promise can't be kept.
    pub overcommit: bool,
    /// The load that the daemon expects from this tenant, in words.
    pub demand: String,
    /// `true`: the load is an assumption, because the configuration declares none.
    pub assumed: bool,
    /// Hardware queues (HWQs) used in the last 10 ms, numbered within the tenant's poller.
    pub hwqs: Vec<u16>,
    /// The latency that the policy guarantees now, in nanoseconds, if it guarantees one. It covers the time in the
    /// drive, and only holds if the drive serves waiting commands in order.
    pub bound_ns: Option<u64>,
    /// The terms that the bound is made of.
    pub bound: Option<BoundRow>,
    /// Upper bounds of the histogram's buckets in nanoseconds, rising.
    pub upper_ns: Vec<u64>,
    /// Completions per bucket since the tenant was added or the daemon started. The last, extra count is of commands
    /// slower than all bounds.
    pub counts: Vec<u64>,
}
