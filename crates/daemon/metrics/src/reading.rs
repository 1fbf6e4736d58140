//! What is told at a scrape.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use api::{BlameRow, Disk, Drive, Operation, Predicted};
use policy::{PolicyFigure, TenantFigure};
use serde::{Deserialize, Serialize};

/// Upper bounds of the latency histogram's buckets, in ns, rising: six to a decade, so that a percentile between two of
/// them is off by a fifth at most.
pub const BOUNDS_NS: [u64; 39] = [
    5_000,
    7_000,
    10_000,
    15_000,
    20_000,
    30_000,
    50_000,
    70_000,
    100_000,
    150_000,
    200_000,
    300_000,
    500_000,
    700_000,
    1_000_000,
    1_500_000,
    2_000_000,
    3_000_000,
    5_000_000,
    7_000_000,
    10_000_000,
    15_000_000,
    20_000_000,
    30_000_000,
    50_000_000,
    70_000_000,
    100_000_000,
    150_000_000,
    200_000_000,
    300_000_000,
    500_000_000,
    700_000_000,
    1_000_000_000,
    1_500_000_000,
    2_000_000_000,
    3_000_000_000,
    5_000_000_000,
    7_000_000_000,
    10_000_000_000,
];

/// All that a daemon tells at one moment. Counts are since the start of the daemon, or
/// since what they are of came; those of tenants go on from the daemon before.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// The daemon's version.
    pub version: String,
    /// When it started, in seconds since 1970 (UTC).
    pub started_at_s: f64,
    /// Its drives, those that could not be had too.
    pub drives: Vec<DriveReading>,
    /// What goes on by itself.
    pub operations: Vec<Operation>,
    /// File systems that it writes to.
    pub file_systems: Vec<FileSystem>,
}

/// A drive with all that is on it.
#[derive(Debug, Clone)]
pub struct DriveReading {
    /// What the API says of it.
    pub drive: Drive,
    /// What the API says of its disks.
    pub disks: Vec<Disk>,
    /// Its pollers.
    pub pollers: Vec<PollerReading>,
    /// Its tenants.
    pub tenants: Vec<TenantReading>,
}

/// A poller.
#[derive(Debug, Clone, Default)]
pub struct PollerReading {
    /// Its number, as in its thread's name; given once.
    pub poller: usize,
    /// Iterations that ended.
    pub iterations: u64,
    /// Time in iterations in which a command moved, in ns.
    pub busy_ns: u64,
    /// Times that it slept or gave its CPU away.
    pub sleeps: u64,
    /// How long in all, in ns.
    pub slept_ns: u64,
    /// It sleeps at this moment.
    pub is_asleep: bool,
    /// How long it could have run and had no CPU, in ns; `None`: the kernel does not tell.
    pub cpu_waited_ns: Option<u64>,
    /// Iterations of 50 µs and more, without the time in which others had the CPU.
    pub long_iterations: u64,
    /// The longest of them so far, in ns; 0: there was none.
    pub longest_ns: u64,
    /// Commands that each of its HWQs holds.
    pub hwq_depth: u32,
    /// Commands in flight on each.
    pub hwqs_in_flight: Vec<u64>,
    /// Its policy's figures, by their numbers.
    pub figures: [Option<f64>; PolicyFigure::COUNT],
}

/// What a tenant moved in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Moved {
    /// Commands that completed.
    pub completions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that the drive failed.
    pub errors: u64,
}

impl AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        let sum = |one: u64, other: u64| one.saturating_add(other);
        self.completions = sum(self.completions, other.completions);
        self.bytes = sum(self.bytes, other.bytes);
        self.errors = sum(self.errors, other.errors);
    }
}

/// What was counted of a tenant: it only grows, over the daemon's lives too.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Reads.
    pub reads: Moved,
    /// Writes.
    pub writes: Moved,
    /// Commands that move no data: flushes, discards, zeroing.
    pub others: Moved,
    /// Completions later than the target then in force.
    pub late: u64,
    /// Completions at most as late as each of [`BOUNDS_NS`].
    pub at_most: Vec<u64>,
    /// Sum of all latencies, in ns.
    pub latency_ns: u64,
    /// The part of it that passed with the drive, in ns.
    pub served_ns: u64,
}

impl AddAssign<&Self> for Totals {
    fn add_assign(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.others += other.others;
        self.late = self.late.saturating_add(other.late);
        self.at_most.resize(self.at_most.len().max(other.at_most.len()), 0);
        self.at_most.iter_mut().zip(&other.at_most).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        self.latency_ns = self.latency_ns.saturating_add(other.latency_ns);
        self.served_ns = self.served_ns.saturating_add(other.served_ns);
    }
}

/// A tenant.
#[derive(Debug, Clone, Default)]
pub struct TenantReading {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// `guaranteed` or `best-effort`.
    pub class: String,
    /// The share of a best-effort tenant.
    pub weight: Option<u32>,
    /// The promise to a guaranteed one, in ns.
    pub target_ns: Option<u64>,
    /// The part of its commands that it is for, 0 to 1.
    pub quantile: Option<f64>,
    /// What the policy can vouch for, in ns.
    pub bound_ns: Option<u64>,
    /// What was counted.
    pub totals: Totals,
    /// Commands with the drive.
    pub in_flight: u64,
    /// Commands that wait in the tenant's queues.
    pub waiting: u64,
    /// Its policy's figures, by their numbers.
    pub figures: [Option<f64>; TenantFigure::COUNT],
    /// Where its queues send.
    pub queues: Vec<QueueReading>,
    /// How it fared lately, once that was judged.
    pub verdict: Option<Verdict>,
}

/// A tenant's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueReading {
    /// Its number: a queue pair's or a virtqueue's.
    pub queue: u16,
    /// The poller that serves it.
    pub poller: usize,
    /// The HWQ that its next command goes to, numbered within the poller.
    pub hwq: u16,
}

/// How a tenant fared over a span that ended lately.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// Length of the span, in ms.
    pub span_ms: u64,
    /// 99th percentile of its latencies, in µs; `None`: nothing was asked.
    pub p99_us: Option<f64>,
    /// Latency at the promised percentile, in µs. `None`: no promise, or nothing was asked.
    pub at_percentile_us: Option<f64>,
    /// What the model says of it.
    pub predicted: Option<Predicted>,
    /// Whether its promise was kept; `None`: it has none, or asked too little to tell.
    pub kept: Option<bool>,
    /// What broke the promise, if it was broken.
    pub blame: Option<BlameRow>,
}

/// A file system that the daemon writes to.
#[derive(Debug, Clone, Default)]
pub struct FileSystem {
    /// A directory or file there.
    pub path: String,
    /// What is kept there: `state`, or the name of the drive whose image it is.
    pub holds: String,
    /// Its size.
    pub size_bytes: u64,
    /// What is left of it for the daemon.
    pub free_bytes: u64,
}
