//! What a daemon says of its tenants over a span of time.

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
    /// The next so many milliseconds, 60,000 at most. 0: since the daemon started.
    #[serde(default)]
    pub span_ms: u64,
}

/// All tenants over one span.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The policy in force on each drive.
    pub drives: Vec<DrivePolicy>,
    /// Length of the span.
    pub span_ms: u64,
    /// Drive by drive, in the order in which they came.
    pub tenants: Vec<TenantRow>,
    /// Those that run, drive by drive.
    pub pollers: Vec<PollerRow>,
}

/// A poller over one span.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PollerRow {
    /// Its number, as in its thread's name; given once.
    pub poller: usize,
    /// Its drive.
    pub drive: String,
    /// Percent of the span in which it moved commands.
    #[serde(default)]
    pub busy_percent: f64,
    /// Percent of the span in which it could have run and had no CPU.
    #[serde(default)]
    pub cpu_wait_percent: f64,
    /// Iterations that took 50 µs and more, without the time in which others had the CPU.
    pub long_iterations: u64,
    /// The longest of them; 0: there was none.
    pub longest_us: f64,
}

/// A drive and its policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrivePolicy {
    /// The drive.
    pub drive: String,
    /// The policy.
    pub policy: String,
    /// What the drive says of itself, a minute ago at most. Where the kernel has the drive, ask the kernel.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub health: Option<DriveHealth>,
}

/// One tenant over one span. Latencies run from the doorbell's first sight to the posted completion.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TenantRow {
    /// The tenant.
    pub name: String,
    /// The drive that it is on.
    pub drive: String,
    /// `guaranteed` or `best-effort`.
    pub class: String,
    /// The share of a best-effort tenant.
    pub weight: Option<u32>,
    /// The promise to a guaranteed tenant.
    pub latency_target_us: Option<f64>,
    /// The percentage of its commands that this is for.
    #[serde(default)]
    pub latency_percentile: Option<f64>,
    /// That percentile of their latencies.
    #[serde(default)]
    pub at_percentile_us: Option<f64>,
    /// What a best-effort tenant gets at least, in words.
    #[serde(default)]
    pub floor: Option<String>,
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
    /// Completions per second.
    pub iops: f64,
    /// Bytes read and written per second.
    pub bw_bytes: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// The part of it that passed in the tenant's queue.
    pub waited_us: f64,
    /// The part of it that passed with the drive.
    pub served_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// 99.99th percentile.
    pub p9999_us: f64,
    /// The latency that the policy vouches for now, if any: time with a drive that serves waiting commands in
    /// order, from the moment that the policy let the command go.
    pub bound_us: Option<f64>,
    /// What stands behind it.
    pub bound: Option<BoundRow>,
    /// Completions later than the target, in this span.
    pub violations: u64,
    /// Of these, those that would have been in time had their poller not stood still: this host took its CPU, or a page
    /// of memory was not there. While they are more than the promise allows, nobody is held back for them.
    #[serde(default)]
    pub stalled: u64,
    /// Commands that the drive had at the start of the span and has not answered: they take longer than the span.
    #[serde(default)]
    pub overdue: u64,
    /// Commands that the drive failed, in this span.
    pub errors: u64,
    /// The numbers of the pollers that serve it, as in [`Snapshot::pollers`].
    #[serde(default)]
    pub pollers: Vec<usize>,
    /// HWQs in use in the last 10 ms, as numbers within the tenant's poller; of several pollers, those that any of
    /// them used.
    pub hwqs: Vec<u16>,
    /// What the model says; none where the file names no drive, or there is no model of the policy.
    pub predicted: Option<Predicted>,
    /// Whether as many commands met the target as were to; none without one, and where nothing was asked.
    pub kept: Option<bool>,
    /// Whose fault it was if they did not.
    pub blame: Option<BlameRow>,
    /// What the promise of a latency costs the others; none where the policy holds nobody back for it, nothing was
    /// asked, or there is no model. Of many promises only the first ones have it.
    #[serde(default)]
    pub price: Option<PriceRow>,
    /// What keeps a best-effort tenant from more under such a policy; none where nothing was asked.
    #[serde(default)]
    pub held: Option<HeldRow>,
}

/// What tenants without a latency target get together, as the model says for the load that was measured: bytes per
/// second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PriceRow {
    /// Beside the promise.
    pub others_bw_bytes: f64,
    /// If the tenant were a best-effort one.
    pub without_bw_bytes: f64,
    /// A target about half as long again, µs.
    pub looser_target_us: f64,
    /// Beside that.
    pub looser_bw_bytes: f64,
}

/// What keeps a tenant from more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldRow {
    /// `promise`: others have no more work with the drive than one leaves them; `floor`: another one's goes first;
    /// `limits`: its own; `depth`: the drive has all that it asks for; `share`: others have theirs; `cpu`: its poller
    /// waits for a CPU of the host's; `poller`: that does no more; `drive`: that does no more.
    pub by: String,
    /// Whose promise or floor.
    pub whose: Option<String>,
}

impl HeldRow {
    /// For a table: `the promise to "db"`.
    pub fn in_words(&self) -> String {
        let whose = self.whose.as_deref().unwrap_or("");
        match self.by.as_str() {
            "promise" => format!("the promise to {whose:?}"),
            "floor" => format!("the floor of {whose:?}"),
            "limits" => "its own limits".to_owned(),
            "depth" => "nothing: the drive has all that it asks for".to_owned(),
            "share" => "its share beside the others".to_owned(),
            "cpu" => "the host: its poller had to wait for a CPU".to_owned(),
            "poller" => "the host: its poller has no CPU time left".to_owned(),
            by => format!("the {by}"),
        }
    }
}

/// A latency bound and what it rests on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BoundRow {
    /// Under `lpns`: d·Ω/R + L_h as its paper prints it (LPNS §4.3, Eqs. 1 to 5); nothing enforces the burst that it
    /// assumes.
    pub published_us: Option<f64>,
    /// b/R + L_h with the burst b that is enforced; none while rates don't allow one.
    pub corrected_us: Option<f64>,
    /// R, commands of 4 KiB per second.
    pub r_iops: f64,
    /// L_h.
    pub l_h_us: f64,
    /// Ω of the published bound.
    pub omega: Option<f64>,
    /// Whether p·Ω ≤ R, without which the published bound has no ground.
    pub published_rate_within_r: Option<bool>,
    /// Whether best-effort tenants are throttled now.
    pub engaged: bool,
    /// Commands of 4 KiB that best-effort tenants may have in flight together.
    pub best_effort_cap: Option<f64>,
    /// By how much one large command may exceed that.
    pub overdraft: f64,
    /// Commands that guaranteed tenants had in flight.
    pub guaranteed_in_flight: f64,
    /// v: commands per second that may arrive; none where no rate is limited.
    pub arriving_iops: Option<f64>,
}

/// What a tenant was expected to get over a span, were it long.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Predicted {
    /// Completions per second.
    pub iops: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// What 99 of 100 of its commands take one at a time with nobody else on the drive.
    #[serde(default)]
    pub alone_us: f64,
    /// `declared`, or `measured`: nobody declared what it asks for, so this is for what it asked in the span.
    pub demand: String,
}

/// Whose fault it is that a promise failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BlameRow {
    /// `own`, `neighbour`, `drive` or `host`.
    pub culprit: String,
    /// The neighbour.
    pub neighbour: Option<String>,
    /// What shows it.
    pub why: String,
}

impl BlameRow {
    /// For a table or a log: `neighbour "batch": it keeps …`.
    pub fn in_words(&self) -> String {
        let who = match (&self.neighbour, self.culprit.as_str()) {
            (Some(name), _) => format!("neighbour {name:?}"),
            (None, "own") => "its own load".to_owned(),
            (None, culprit) => format!("the {culprit}"),
        };
        format!("{who}: {}", self.why)
    }
}
