//! What was seen, stage by stage: small enough to keep in a file, so that an interrupted run goes on.

use serde::{Deserialize, Serialize};

use crate::estimate::Estimate;

/// Everything that was measured. A stage that is `None` is still to be done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Lone commands, and bursts.
    pub basics: Option<Basics>,
    /// Address range that lies on one unit; `Some(None)`: can't be seen.
    pub stripe_bytes: Option<Option<u64>>,
    /// The units.
    pub units: Option<Units>,
    /// Reads of several sizes.
    pub reads: Option<Reads>,
    /// Channels that units share.
    pub channels: Option<Channels>,
    /// Commands inside.
    pub window: Option<Window>,
    /// Commands that the drive fetches from one queue before it turns to the next; `Some(None)`: can't be seen.
    pub burst: Option<Option<u32>>,
    /// Reads of several sizes at several depths.
    pub read_cells: Option<Vec<Cell>>,
    /// Lone writes, and bursts of writes.
    pub writes: Option<WriteTimes>,
    /// Reads beside writes.
    pub beside: Option<Beside>,
    /// Writes that go on.
    pub sustained: Option<Sustained>,
    /// Writes and mixes of several sizes at several depths.
    pub write_cells: Option<Vec<Cell>>,
}

/// A size and a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Length of the command.
    pub len_bytes: u64,
    /// The time.
    pub ns: Estimate,
}

/// Lone commands, and bursts. Times in ns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Basics {
    /// A lone flush; `None` where the drive has none.
    pub flush: Option<Estimate>,
    /// A lone random read of 4 KiB.
    pub read: Estimate,
    /// Between two of many flushes that came at once.
    pub flush_spacing: Option<Estimate>,
    /// Between two of many reads of the smallest size, at distant addresses, that came at once; the least.
    pub small_spacing: Estimate,
    /// Between two of many reads of 4 KiB at distant addresses, that came at once; the least.
    pub apart_spacing: Estimate,
    /// Between two of many reads of 4 KiB at one address, that came at once.
    pub same_spacing: Estimate,
    /// One address is one unit: it is slower than many.
    pub by_address: bool,
}

/// The units, counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Units {
    /// How many.
    pub count: u32,
    /// Nothing was left to be found.
    pub complete: bool,
    /// An address on each, in bytes; empty where addresses don't tell.
    pub addresses: Vec<u64>,
    /// How long a read of a stripe keeps its unit, where addresses don't tell.
    pub stripe_ns: Option<Estimate>,
}

/// Reads of several sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reads {
    /// Lone ones within a stripe.
    pub within: Vec<Point>,
    /// Lone ones of whole stripes on different units.
    pub beyond: Vec<Point>,
    /// Between two of many at one address.
    pub same: Vec<Point>,
    /// Between two of a few of the smallest size that came at once, each for a unit of its own.
    pub distinct_spacing: Option<Estimate>,
}

/// Channels that units share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Channels {
    /// How many; 0: none can be seen.
    pub count: u32,
    /// A stripe's time on a channel; `None` without channels.
    pub stripe_ns: Option<Estimate>,
}

/// Commands inside of the drive.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// How many at most; `None`: more than were tried.
    pub commands: Option<Estimate>,
    /// How many were tried.
    pub tried: u32,
}

/// Throughput and latency of one load: random addresses, a closed loop.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Reads among the commands, in percent; the others are writes.
    pub read_percent: u8,
    /// Length of each.
    pub len_bytes: u64,
    /// Commands in flight.
    pub depth: u32,
    /// Commands per second.
    pub iops: f64,
    /// Mean latency.
    pub mean_ns: f64,
    /// Median latency.
    pub p50_ns: f64,
    /// 99th percentile.
    pub p99_ns: f64,
}

/// Lone writes, and bursts of writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WriteTimes {
    /// Lone ones within a stripe.
    pub within: Vec<Point>,
    /// Lone ones of whole stripes on different units.
    pub beyond: Vec<Point>,
    /// Between two large ones of a few that came at once.
    pub large_spacing: Point,
    /// Between two of many of 4 KiB at distant addresses.
    pub apart_spacing: Estimate,
    /// Between two of many of 4 KiB at one address.
    pub same_spacing: Estimate,
    /// One address is slower than many.
    pub by_address: bool,
}

/// Random reads of 4 KiB, one at a time, beside writes of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// Writes in flight.
    pub write_depth: u32,
    /// The reads' latency.
    pub read: Estimate,
    /// Their mean without the longest eighth, ns.
    pub read_mean_ns: f64,
}

/// Small random writes that go on and on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sustained {
    /// Length of each.
    pub len_bytes: u64,
    /// Writes in flight.
    pub depth: u32,
    /// How many were made.
    pub count: u32,
    /// Between two of them at last.
    pub spacing: Estimate,
    /// Between two of them at first.
    pub first_spacing_ns: f64,
    /// How many finish together at last.
    pub lump: u32,
    /// When some of them finished: index from 0 and time since the first one finished.
    pub points: Vec<(u32, u64)>,
}
