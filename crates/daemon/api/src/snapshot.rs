//! Statistics of all tenants over a span of time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::drives::DriveHealth;

/// The longest span that a client may ask for: until then the daemon keeps what its answer starts from.
pub const MAX_SPAN_MS: u64 = 60_000;

/// Which span [`Snapshot`] is to be about.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct StatsAsked {
    /// Length of the span, which starts now, in milliseconds: at most 60,000. 0: since the daemon started.
    #[serde(default)]
    pub span_ms: u64,
}

/// All tenants over one span.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The policy in force on each drive.
    pub drives: Vec<DrivePolicy>,
    /// Length of the span, in milliseconds.
    pub span_ms: u64,
    /// The tenants, drive by drive, in the order in which they were added.
    pub tenants: Vec<TenantRow>,
    /// The running pollers, drive by drive.
    pub pollers: Vec<PollerRow>,
}

/// A poller over one span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PollerRow {
    /// The poller's number, as in its thread's name. Numbers are not reused.
    pub poller: usize,
    /// The poller's drive.
    pub drive: String,
    /// Percentage of the span in which the poller moved commands.
    #[serde(default)]
    pub busy_percent: f64,
    /// Percentage of the span in which the poller was ready to run but had no CPU.
    #[serde(default)]
    pub cpu_wait_percent: f64,
    /// Iterations of 50 µs or more. Time in which other threads had the CPU does not count.
    pub long_iterations: u64,
    /// The longest such iteration, in microseconds. 0: there was none.
    pub longest_us: f64,
}

/// A drive and its policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrivePolicy {
    /// The drive.
    pub drive: String,
    /// The policy.
    pub policy: String,
    /// The drive's own health report, at most a minute old. Absent if a kernel driver owns the drive: ask the kernel.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub health: Option<DriveHealth>,
}

/// One tenant over one span. Latencies run from when the daemon first sees the doorbell until it posts the completion.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TenantRow {
    /// The tenant's name.
    pub name: String,
    /// The tenant's labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub labels: BTreeMap<String, String>,
    /// The drive that the tenant's disk is on.
    pub drive: String,
    /// Owner of the key that encrypts the disk's data: `host` or `tenant`. Absent: it is not encrypted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub encryption: Option<String>,
    /// `true`: the daemon does not have the disk's key. No client can attach until it has.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub locked: bool,
    /// `guaranteed` or `best-effort`.
    pub class: String,
    /// Weight of a best-effort tenant.
    pub weight: Option<u32>,
    /// Latency promised to a guaranteed tenant, in microseconds.
    pub latency_target_us: Option<f64>,
    /// The percentage of commands that must meet the target.
    #[serde(default)]
    pub latency_percentile: Option<f64>,
    /// The measured latency at that percentile, in microseconds.
    #[serde(default)]
    pub at_percentile_us: Option<f64>,
    /// What a best-effort tenant gets at least, in words.
    #[serde(default)]
    pub floor: Option<String>,
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
    /// Completions per second.
    pub iops: f64,
    /// Bytes read and written per second.
    pub bw_bytes: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// The part of the mean spent in the tenant's queue.
    pub waited_us: f64,
    /// The part of the mean spent in the drive.
    pub served_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// 99.99th percentile.
    pub p9999_us: f64,
    /// The latency that the policy guarantees now, in microseconds, if it guarantees one.
    ///
    /// It runs from when the policy sends the command to the drive. It holds for drives that serve waiting commands in
    /// order.
    pub bound_us: Option<f64>,
    /// The terms that the bound is made of.
    pub bound: Option<BoundRow>,
    /// Completions in the span that took longer than the target.
    pub violations: u64,
    /// Violations that would have met the target had the poller not stalled: another thread had its CPU, or it waited
    /// for a page of memory. While they exceed what the promise allows, no tenant is throttled because of them.
    #[serde(default)]
    pub stalled: u64,
    /// Commands that were in flight when the span started and still are: they take longer than the span.
    #[serde(default)]
    pub overdue: u64,
    /// Commands in the span that the drive failed.
    pub errors: u64,
    /// Numbers of the pollers that serve this tenant, as in [`Snapshot::pollers`].
    #[serde(default)]
    pub pollers: Vec<usize>,
    /// Hardware queues (HWQs) used in the last 10 ms, numbered within the tenant's poller. With several pollers: those
    /// that any of them used.
    pub hwqs: Vec<u16>,
    /// The model's prediction. Absent if the configuration names no drive profile, or the policy has no model.
    pub predicted: Option<Predicted>,
    /// Whether the promise was kept. Absent without a promise, or with too few commands to tell: fewer than 100 for a
    /// 99th percentile.
    pub kept: Option<bool>,
    /// What broke the promise, if it was broken.
    pub blame: Option<BlameRow>,
    /// What this latency promise costs the other tenants. Absent if the policy throttles nobody for it, if the span had
    /// no commands, or if there is no model. With many promises, only the first ones have it.
    #[serde(default)]
    pub price: Option<PriceRow>,
    /// What limits this best-effort tenant, under a policy that keeps promises. Absent if the span had no commands.
    #[serde(default)]
    pub held: Option<HeldRow>,
}

/// Combined throughput of the tenants without a latency target, in bytes per second. The model predicts it for the
/// measured load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PriceRow {
    /// With this promise as it is.
    pub others_bw_bytes: f64,
    /// If the tenant were best-effort instead.
    pub without_bw_bytes: f64,
    /// A target about 1.5 times as long, in microseconds.
    pub looser_target_us: f64,
    /// With that longer target.
    pub looser_bw_bytes: f64,
}

/// What limits a tenant's throughput.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldRow {
    /// The cause:
    ///
    /// * `promise`: another tenant's promise limits the work in flight at the drive.
    /// * `floor`: another tenant's minimum goes first.
    /// * `limits`: the tenant's own limits.
    /// * `group`: the limits of the tenant's group.
    /// * `depth`: the drive already has all commands that the tenant has issued.
    /// * `share`: the other tenants get their shares.
    /// * `cpu`: the tenant's poller waits for a CPU of the host.
    /// * `poller`: the poller is at its maximum.
    /// * `drive`: the drive is at its maximum.
    pub by: String,
    /// The tenant whose promise or minimum it is, or the group whose limits.
    pub whose: Option<String>,
}

impl HeldRow {
    /// The cause as a table shows it, such as `the promise to "db"`.
    pub fn in_words(&self) -> String {
        let whose = self.whose.as_deref().unwrap_or("");
        match self.by.as_str() {
            "promise" => format!("the promise to {whose:?}"),
            "floor" => format!("the floor of {whose:?}"),
            "limits" => "its own limits".to_owned(),
            "group" => format!("the limits of group {whose:?}"),
            "depth" => "nothing: the drive has all of its commands".to_owned(),
            "share" => "its share beside the others".to_owned(),
            "cpu" => "the host: its poller had to wait for a CPU".to_owned(),
            "poller" => "the host: its poller has no CPU time left".to_owned(),
            by => format!("the {by}"),
        }
    }
}

/// A latency bound and the terms that it is made of.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BoundRow {
    /// The bound d·Ω/R + L_h as the paper prints it (LPNS §4.3, Eqs. 1 to 5), in microseconds. Only under `lpns`. It
    /// assumes a burst that nothing enforces.
    pub published_us: Option<f64>,
    /// The bound b/R + L_h in microseconds, where b is the enforced burst. Absent while the rates allow no such bound.
    pub corrected_us: Option<f64>,
    /// R: the drive's rate in commands of 4 KiB per second.
    pub r_iops: f64,
    /// L_h: in microseconds.
    pub l_h_us: f64,
    /// Ω of the published bound.
    pub omega: Option<f64>,
    /// Whether p·Ω ≤ R. If not, the published bound does not hold.
    pub published_rate_within_r: Option<bool>,
    /// Whether best-effort tenants are throttled now.
    pub engaged: bool,
    /// The most commands of 4 KiB that all best-effort tenants together may have in flight.
    pub best_effort_cap: Option<f64>,
    /// By how much one large command may exceed that cap, in commands of 4 KiB.
    pub overdraft: f64,
    /// Commands that guaranteed tenants had in flight.
    pub guaranteed_in_flight: f64,
    /// v: the commands per second that may arrive. Absent if no rate is limited.
    pub arriving_iops: Option<f64>,
}

/// What the model expects of a tenant in a long span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Predicted {
    /// Completions per second.
    pub iops: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Expected 99th percentile of latency, in microseconds, at queue depth 1 with no other tenant on the drive.
    #[serde(default)]
    pub alone_us: f64,
    /// `declared`: predicted for the load in the configuration. `measured`: the configuration has none, so it is for
    /// the load measured in the span.
    pub demand: String,
}

/// What broke a promise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlameRow {
    /// `own` (the tenant itself), `neighbour`, `drive` or `host`.
    pub culprit: String,
    /// The neighbour's name, if it was one.
    pub neighbour: Option<String>,
    /// The evidence, in words.
    pub why: String,
}

impl BlameRow {
    /// The cause as a table or log shows it, such as `neighbour "batch": it keeps …`.
    pub fn in_words(&self) -> String {
        let who = match (&self.neighbour, self.culprit.as_str()) {
            (Some(name), _) => format!("neighbour {name:?}"),
            (None, "own") => "its own load".to_owned(),
            (None, culprit) => format!("the {culprit}"),
        };
        format!("{who}: {}", self.why)
    }
}
