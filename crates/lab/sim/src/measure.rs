//! What a tenant experienced, in memory that does not grow with the number of I/Os.

use std::collections::BTreeMap;

use io_model::{Nanos, Op};
use poller::Histogram;
use serde::Serialize;

use crate::job::{Operation, Shape};

/// A distribution of latencies. Times in ns; percentiles are within 1.6 % above.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Latencies {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Standard deviation.
    pub stddev_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// 99.99th percentile.
    pub p9999_ns: u64,
    /// Highest, exactly.
    pub max_ns: u64,
}

/// A distribution's moments. Times in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Moments {
    /// How many.
    pub count: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Standard deviation.
    pub stddev_ns: f64,
}

/// Sums that moments follow from.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    pub(crate) count: u64,
    ns: u64,
    /// Of the squares.
    squares: u128,
}

impl Sums {
    fn add(&mut self, latency: Nanos) {
        self.count += 1;
        self.ns += latency.0;
        self.squares += u128::from(latency.0) * u128::from(latency.0);
    }

    pub(crate) fn moments(&self) -> Moments {
        if self.count == 0 {
            return Moments::default();
        }
        let count = self.count as f64;
        let mean_ns = self.ns as f64 / count;
        let variance = self.squares as f64 / count - mean_ns * mean_ns;
        Moments { count: self.count, mean_ns, stddev_ns: variance.max(0.0).sqrt() }
    }
}

/// Collects latencies.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    histogram: Histogram,
    sums: Sums,
    max_ns: u64,
}

impl Collector {
    pub(crate) fn add(&mut self, latency: Nanos) {
        self.histogram.record(latency.0);
        self.sums.add(latency);
        self.max_ns = self.max_ns.max(latency.0);
    }

    pub(crate) fn finish(&self) -> Latencies {
        let Moments { count, mean_ns, stddev_ns } = self.sums.moments();
        if count == 0 {
            return Latencies::default();
        }
        let at = self.histogram.values_at([0.5, 0.95, 0.99, 0.999, 0.9999]).map(|value_ns| value_ns.min(self.max_ns));
        Latencies {
            count,
            mean_ns,
            stddev_ns,
            p50_ns: at[0],
            p95_ns: at[1],
            p99_ns: at[2],
            p999_ns: at[3],
            p9999_ns: at[4],
            max_ns: self.max_ns,
        }
    }
}

/// Counts of one tenant while it is measured.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) latencies: Collector,
    pub(crate) reads: Sums,
    pub(crate) writes: Sums,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) late: u64,
    pub(crate) over_bound: u64,
    pub(crate) operations: BTreeMap<&'static str, Collector>,
    window_ns: u64,
    window: (u64, u64, u64),
    pub(crate) windows_ns: Vec<f64>,
}

impl Tally {
    /// Mean latencies are also kept for every window of this length, if it is not 0.
    pub(crate) fn with_windows(window: Nanos) -> Self {
        Self { window_ns: window.0, ..Self::default() }
    }

    pub(crate) fn io(&mut self, shape: &Shape, latency: Nanos, failed: bool, now_ns: u64) {
        self.latencies.add(latency);
        if !failed {
            self.bytes += u64::from(shape.len_bytes);
        }
        match shape.op {
            Op::Read => self.reads.add(latency),
            Op::Write => self.writes.add(latency),
            Op::Flush | Op::WriteZeroes | Op::Discard => {}
        }
        self.errors += u64::from(failed);
        if let Some(number) = now_ns.checked_div(self.window_ns) {
            if number != self.window.0 {
                self.end_window();
                self.window = (number, 0, 0);
            }
            self.window.1 += 1;
            self.window.2 += latency.0;
        }
    }

    pub(crate) fn operation(&mut self, operation: Operation) {
        self.operations.entry(operation.kind).or_default().add(operation.latency);
    }

    pub(crate) fn end_window(&mut self) {
        let (_, count, sum_ns) = self.window;
        if count > 0 {
            self.windows_ns.push(sum_ns as f64 / count as f64);
        }
    }
}

/// Smallest slowdown over largest: 1 is perfectly fair (FairNVMe, Eq. 2). 1 for fewer than two tenants.
pub fn fairness_index(slowdowns: &[f64]) -> f64 {
    let most = slowdowns.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let least = slowdowns.iter().copied().fold(f64::INFINITY, f64::min);
    if slowdowns.len() < 2 || most <= 0.0 { 1.0 } else { least / most }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_distribution() {
        let mut collector = Collector::default();
        (1..=50).for_each(|ns| collector.add(Nanos(ns)));
        let seen = collector.finish();
        assert_eq!((seen.count, seen.mean_ns, seen.p50_ns, seen.p99_ns, seen.max_ns), (50, 25.5, 25, 50, 50));
        assert!((seen.stddev_ns - 14.430_8).abs() < 1e-3);
        assert_eq!(Collector::default().finish(), Latencies::default());
    }

    #[test]
    fn fairness_compares_the_extremes() {
        assert_eq!(fairness_index(&[2.0, 4.0, 3.0]), 0.5);
        assert_eq!(fairness_index(&[7.0]), 1.0);
    }

    #[test]
    fn windows_hold_their_own_mean() {
        let mut tally = Tally::with_windows(Nanos(100));
        let shape = Shape { op: Op::Read, offset_bytes: 0, len_bytes: 4096 };
        for (latency_ns, now_ns) in [(10, 20), (30, 90), (50, 250)] {
            tally.io(&shape, Nanos(latency_ns), false, now_ns);
        }
        tally.end_window();
        assert_eq!(tally.windows_ns, [20.0, 50.0]);
        assert_eq!(tally.bytes, 3 * 4096);
    }
}
