//! `GET /v1/why`: why a tenant was slow at some time in the last day.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{BlameRow, Event};

/// The longest time that one request may cover, in milliseconds.
pub const MAX_WHY_MS: u64 = 3_600_000;

/// The time that the request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhyAsked {
    /// Start, in milliseconds since 1970.
    pub from_unix_ms: u64,
    /// End, in milliseconds since 1970. At most an hour after the start. A time in the future means now.
    pub to_unix_ms: u64,
}

/// What a tenant got at some time, what it usually gets, and what was different.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// The tenant's name.
    pub tenant: String,
    /// The tenant's labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub labels: BTreeMap<String, String>,
    /// The tenant's drive.
    pub drive: String,
    /// The drive's policy at that time.
    pub policy: String,
    /// The latency promised at that time, in microseconds. Absent: none.
    pub latency_target_us: Option<f64>,
    /// The percentage of commands that had to meet the target.
    #[serde(default)]
    pub latency_percentile: Option<f64>,
    /// The tenant's weight at that time, if it was best-effort.
    pub weight: Option<u32>,
    /// Start of the time that this answer describes, in milliseconds since 1970. It is the slow part of the requested
    /// time, or all of it.
    pub from_unix_ms: u64,
    /// End of that time, in milliseconds since 1970.
    pub to_unix_ms: u64,
    /// Whether the tenant was slow: later than its target, or 1.5 times as slow as usual. Absent: there is nothing to
    /// compare with.
    pub slow: Option<bool>,
    /// Number of ten-second summaries that the answer describes.
    pub summaries: u64,
    /// Number of summaries in the requested time in which the tenant was active.
    pub summaries_asked: u64,
    /// Number of summaries that count as usual: the half hour before, and the parts of the requested time that were not
    /// slow.
    pub summaries_usual: u64,
    /// Load and latency at that time.
    pub then: Did,
    /// Usual load and latency. Absent: not known.
    pub usual: Option<Did>,
    /// Mean latency in microseconds that the model predicts for this load with no other tenant on the drive.
    pub alone_mean_us: Option<f64>,
    /// Percentage of the time in which the drive's pollers waited for a CPU.
    pub cpu_wait_percent: f64,
    /// The usual value of `cpu_wait_percent`.
    pub cpu_wait_usual_percent: Option<f64>,
    /// The drive's other active tenants. The first is the one whose load grew most above usual.
    pub neighbours: Vec<NeighbourThen>,
    /// What made the tenant slow. Absent: it was not slow, or the data does not show it.
    pub blame: Option<BlameRow>,
    /// What would have helped.
    pub remedies: Vec<Remedy>,
    /// Events at that time and in the minute before.
    pub events: Vec<Event>,
    /// What the answer lacks, and why.
    pub notes: Vec<String>,
}

/// A tenant's load and latency over some time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Did {
    /// Commands completed per second.
    pub iops: f64,
    /// Bytes read and written per second.
    pub bw_bytes: f64,
    /// Percentage of reads among the reads and writes.
    pub read_percent: f64,
    /// Mean size of a read or write, in bytes.
    pub mean_len_bytes: f64,
    /// Mean number of outstanding commands, including waiting ones.
    pub outstanding: f64,
    /// Mean latency, in microseconds.
    pub mean_us: f64,
    /// The part of the mean spent waiting for the policy, the tenant's limits or the poller.
    pub waited_us: f64,
    /// The part of the mean spent in the drive.
    pub served_us: f64,
    /// 99th percentile in microseconds. In `then`: the highest of all summaries; in `usual`: their median.
    pub p99_us: f64,
    /// Latency at the percentile that the target is for, in microseconds, chosen like `p99_us`. Without a target: the
    /// 99th percentile.
    #[serde(default)]
    pub at_percentile_us: f64,
    /// Longest latency, in microseconds.
    pub max_us: f64,
    /// Commands that took longer than the target.
    pub late: u64,
    /// Percentage of commands that were late only because a poller stalled.
    #[serde(default)]
    pub stalled_percent: f64,
    /// Commands that the drive failed.
    pub errors: u64,
}

/// Another tenant of the drive, at that time and usually.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NeighbourThen {
    /// The tenant's name. `(wiper)` is the daemon itself, overwriting deleted disks.
    pub name: String,
    /// The tenant's labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub labels: BTreeMap<String, String>,
    /// The latency promised to it, in microseconds. Absent: none.
    pub latency_target_us: Option<f64>,
    /// Load and latency at that time.
    pub then: Did,
    /// Usual load and latency. Absent: not known.
    pub usual: Option<Did>,
    /// `true`: its load was clearly above usual.
    pub grew: bool,
}

/// A change that would have helped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Remedy {
    /// The change, in words.
    pub what: String,
    /// The command that makes the change, if there is one.
    pub command: Option<String>,
    /// Predicted latency in microseconds at the promised percentile, or the 99th without a promise. Absent: no model
    /// was asked.
    pub predicted_us: Option<f64>,
}

/// The longest trace, in seconds: one day.
pub const MAX_TRACE_S: u32 = 86_400;

/// How long to record a tenant's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TraceAsked {
    /// Seconds to record: 1 to 86,400.
    pub seconds: u32,
}

/// Start of a trace's last line. A trace without it was cut off.
const TRACE_END: &str = "# end: ";

/// Formats a trace's last line.
pub fn trace_end(commands: u64, lost: u64) -> String {
    format!("{TRACE_END}{commands} commands, {lost} lost\n")
}

/// Parses a trace's last line: the commands in it, and those lost because the recorder could not keep up. `None`: it is
/// another line.
pub fn trace_ended(line: &str) -> Option<(u64, u64)> {
    let (commands, lost) = line.trim_end().strip_prefix(TRACE_END)?.split_once(" commands, ")?;
    Some((commands.parse().ok()?, lost.strip_suffix(" lost")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traces_end_is_known_again() {
        assert_eq!(trace_ended(&trace_end(12, 3)), Some((12, 3)));
        for other in ["", "# end", "# end: x commands, 0 lost\n", "0,0,read,8,4096,1,2,ok\n"] {
            assert_eq!(trace_ended(other), None, "{other}");
        }
    }
}
