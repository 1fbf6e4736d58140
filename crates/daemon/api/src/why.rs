//! Why a tenant was slow at some time in the last day.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{BlameRow, Event};

/// The longest time that can be asked about at once.
pub const MAX_WHY_MS: u64 = 3_600_000;

/// Which time is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct WhyAsked {
    /// Its start, in milliseconds since 1970.
    pub from_unix_ms: u64,
    /// Its end; an hour after the start at most. Later than now is now.
    pub to_unix_ms: u64,
}

/// What a tenant got at some time, beside what it gets usually, and what was different.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// The tenant.
    pub tenant: String,
    /// Its drive.
    pub drive: String,
    /// The drive's policy then.
    pub policy: String,
    /// The promise to it then, in microseconds.
    pub latency_target_us: Option<f64>,
    /// The percentage of its commands that this was for.
    #[serde(default)]
    pub latency_percentile: Option<f64>,
    /// Its weight then, if it was promised nothing.
    pub weight: Option<u32>,
    /// Start of the time that this is about: the slow part of what was asked for, or all of it. Milliseconds since
    /// 1970.
    pub from_unix_ms: u64,
    /// Its end.
    pub to_unix_ms: u64,
    /// Whether it was slow: later than the target, or half as slow again as usual. None: there is nothing to compare
    /// with.
    pub slow: Option<bool>,
    /// Summaries of ten seconds that this is about.
    pub summaries: u64,
    /// Summaries in which the tenant did something, of the time that was asked for.
    pub summaries_asked: u64,
    /// Summaries that count as usual: of the half hour before, and what is not slow of the time that was asked for.
    pub summaries_usual: u64,
    /// What it did and got then.
    pub then: Did,
    /// The same usually.
    pub usual: Option<Did>,
    /// Mean latency of what it did then if it were alone on the drive, in microseconds, by the model.
    pub alone_mean_us: Option<f64>,
    /// Part of the time in which the drive's pollers waited for a CPU.
    pub cpu_wait_percent: f64,
    /// The same usually.
    pub cpu_wait_usual_percent: Option<f64>,
    /// The drive's other tenants that did something then, the one that did most more than usual first.
    pub neighbours: Vec<NeighbourThen>,
    /// Whose fault it was. None: it was not slow, or nothing shows it.
    pub blame: Option<BlameRow>,
    /// What would have helped.
    pub remedies: Vec<Remedy>,
    /// What happened then and in the minute before.
    pub events: Vec<Event>,
    /// What to know of this answer: what is missing from it, and why.
    pub notes: Vec<String>,
}

/// What a tenant did and got over some time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Did {
    /// Commands completed per second.
    pub iops: f64,
    /// Bytes read and written per second.
    pub bw_bytes: f64,
    /// Reads of the commands that read or write.
    pub read_percent: f64,
    /// Bytes that a command moves, in the mean.
    pub mean_len_bytes: f64,
    /// Commands outstanding in the mean, waiting ones included.
    pub outstanding: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// The part of it that passed in the tenant's queue: the policy's, its limits', the poller's.
    pub waited_us: f64,
    /// The part of it that passed with the drive.
    pub served_us: f64,
    /// 99th percentile: of the time that this is about the highest of its summaries, usually their median.
    pub p99_us: f64,
    /// The percentile that its target is for, in the same way; the 99th without one.
    #[serde(default)]
    pub at_percentile_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Commands later than the target.
    pub late: u64,
    /// The part of its commands that was late only because a poller stood still.
    #[serde(default)]
    pub stalled_percent: f64,
    /// Commands that the drive failed.
    pub errors: u64,
}

/// A neighbour, then and usually.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NeighbourThen {
    /// Its name; `(wiper)`: what overwrites deleted disks.
    pub name: String,
    /// The promise to it, if any, in microseconds.
    pub latency_target_us: Option<f64>,
    /// What it did and got then.
    pub then: Did,
    /// The same usually.
    pub usual: Option<Did>,
    /// It did clearly more than usual.
    pub grew: bool,
}

/// Something that would have helped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Remedy {
    /// What, in words.
    pub what: String,
    /// The command that does it, where one does.
    pub command: Option<String>,
    /// Within what so many of the tenant's commands would be as were promised, or 99 of 100, in microseconds, by the
    /// model. None: no model was asked.
    pub predicted_us: Option<f64>,
}

/// The longest trace, in seconds: a day.
pub const MAX_TRACE_S: u32 = 86_400;

/// How long a tenant's commands are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TraceAsked {
    /// In seconds, 1 to 86,400.
    pub seconds: u32,
}

/// What a trace's last line begins with. A trace without it was cut off.
const TRACE_END: &str = "# end: ";

/// A trace's last line.
pub fn trace_end(commands: u64, lost: u64) -> String {
    format!("{TRACE_END}{commands} commands, {lost} lost\n")
}

/// What a trace's last line says: commands in it, and those that were lost since who recorded them could not keep up.
/// `None`: it is another line.
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
