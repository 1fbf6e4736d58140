//! What a tenant experienced, in memory that does not grow with the number of I/Os.

use std::collections::BTreeMap;

use io_model::{Nanos, Op};
use policy::Percentile;
use poller::Histogram;
use serde::Serialize;

use crate::job::{Operation, Shape};

/// Standard errors between a measurement and the value relied on.
const CAUTION: f64 = 1.0;
/// At least this part of the I/Os that may be late is relied on.
const LEAST_LATE: f64 = 0.25;
/// Batches that a run is parted into, to see how much it varies.
const BATCHES: usize = 20;

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

/// What ended in a span of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Window {
    /// I/Os.
    pub ios: u64,
    /// Of these, how many took longer than the target, as the guest sees them.
    pub late: u64,
    /// Bytes of those that did not fail.
    pub bytes: u64,
    /// Their latencies' sum.
    pub latency_ns: u64,
}

impl Window {
    /// Mean latency, if anything ended.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.ios > 0).then(|| self.latency_ns as f64 / self.ios as f64)
    }
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

    /// What a part of them, 0 to 1, does not exceed.
    pub(crate) fn at(&self, quantile: f64) -> u64 {
        let [value_ns] = self.histogram.values_at([quantile]);
        value_ns.min(self.max_ns)
    }

    pub(crate) fn finish(&self) -> Latencies {
        let Moments { count, mean_ns, stddev_ns } = self.sums.moments();
        if count == 0 {
            return Latencies::default();
        }
        let at = [0.5, 0.95, 0.99, 0.999, 0.9999].map(|quantile| self.at(quantile));
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
    /// The first window's number, from time 0.
    first_window: u64,
    /// Each one in which something ended, and those before.
    windows: Vec<Window>,
}

impl Tally {
    /// What ends from `from` on is also counted for every window of this length, if it is not 0.
    pub(crate) fn with_windows(window: Nanos, from: Nanos) -> Self {
        Self { window_ns: window.0, first_window: from.0.checked_div(window.0).unwrap_or(0), ..Self::default() }
    }

    /// What as many I/Os as were promised did not exceed, and whether the promise was kept: a failed I/O breaks it.
    /// `None` without I/O.
    pub(crate) fn judge(&self, (target, percentile): (Nanos, Percentile)) -> Option<(u64, bool)> {
        let took_ns = (self.latencies.sums.count > 0).then(|| self.latencies.at(percentile.quantile()))?;
        Some((took_ns, took_ns <= target.0 && self.errors == 0))
    }

    /// As [`judge`](Self::judge), but of fewer I/Os by the standard error of the late ones' part.
    pub(crate) fn cautious_ns(&self, (_, percentile): (Nanos, Percentile)) -> Option<u64> {
        let may_be_late = 1.0 - percentile.quantile();
        let margin = CAUTION * self.late_error()?;
        Some(self.latencies.at(1.0 - (may_be_late - margin).max(may_be_late * LEAST_LATE)))
    }

    /// The standard error of the late I/Os' part, from the means of successive batches.
    fn late_error(&self) -> Option<f64> {
        let ios: u64 = self.windows.iter().map(|window| window.ios).sum();
        let late: u64 = self.windows.iter().map(|window| window.late).sum();
        if ios == 0 {
            return None;
        }
        let part = late as f64 / ios as f64;
        let batches = self.windows.chunks(self.windows.len().div_ceil(BATCHES));
        let deviation = |batch: &[Window]| {
            let of = |count: fn(&Window) -> u64| batch.iter().map(count).sum::<u64>() as f64;
            of(|window| window.late) - part * of(|window| window.ios)
        };
        let squares: f64 = batches.map(|batch| deviation(batch).powi(2)).sum();
        Some(squares.sqrt() / ios as f64)
    }

    /// How many I/Os were measured.
    pub(crate) fn count(&self) -> u64 {
        self.latencies.sums.count
    }

    /// The first window is the one of this time.
    pub(crate) fn start_windows(&mut self, from: Nanos) {
        self.first_window = from.0.checked_div(self.window_ns).unwrap_or(0);
    }

    pub(crate) fn io(&mut self, shape: &Shape, latency: Nanos, target_ns: u64, failed: bool, now_ns: u64) {
        let bytes = if failed { 0 } else { u64::from(shape.len_bytes) };
        let late = u64::from(latency.0 > target_ns);
        self.latencies.add(latency);
        self.bytes += bytes;
        self.late += late;
        match shape.op {
            Op::Read => self.reads.add(latency),
            Op::Write => self.writes.add(latency),
            Op::Flush | Op::WriteZeroes | Op::Discard => {}
        }
        self.errors += u64::from(failed);
        if let Some(number) = now_ns.checked_div(self.window_ns) {
            let at = number.saturating_sub(self.first_window) as usize;
            if self.windows.len() <= at {
                self.windows.resize(at + 1, Window::default());
            }
            let window = &mut self.windows[at];
            window.ios += 1;
            window.late += late;
            window.bytes += bytes;
            window.latency_ns += latency.0;
        }
    }

    pub(crate) fn operation(&mut self, operation: Operation) {
        self.operations.entry(operation.kind).or_default().add(operation.latency);
    }

    /// All windows until `end`.
    pub(crate) fn windows(&self, end: Nanos) -> Vec<Window> {
        let mut windows = self.windows.clone();
        if self.window_ns > 0 {
            let numbers = end.0.div_ceil(self.window_ns).saturating_sub(self.first_window);
            windows.resize(numbers as usize, Window::default());
        }
        windows
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
    fn a_promise_is_judged_at_its_own_percentile_and_a_failed_io_breaks_it() {
        let shape = Shape { op: Op::Read, offset_bytes: 0, len_bytes: 4096 };
        let mut tally = Tally::default();
        let promise = |percent| (Nanos(30), Percentile::new(percent).unwrap());
        assert_eq!(tally.judge(promise(99.0)), None);
        for at in 0..1_000 {
            tally.io(&shape, Nanos(if at < 995 { 20 } else { 40 }), 30, false, 0);
        }
        assert_eq!(
            [99.0, 99.5, 99.9].map(|percent| tally.judge(promise(percent))),
            [Some((20, true)), Some((20, true)), Some((40, false))]
        );
        tally.io(&shape, Nanos(20), 30, true, 0);
        assert_eq!(tally.judge(promise(99.0)), Some((20, false)));
    }

    #[test]
    fn fairness_compares_the_extremes() {
        assert_eq!(fairness_index(&[2.0, 4.0, 3.0]), 0.5);
        assert_eq!(fairness_index(&[7.0]), 1.0);
    }

    #[test]
    fn windows_hold_their_own_mean() {
        let mut tally = Tally::with_windows(Nanos(100), Nanos(200));
        let shape = Shape { op: Op::Read, offset_bytes: 0, len_bytes: 4096 };
        for (latency_ns, now_ns) in [(10, 220), (30, 290), (50, 450)] {
            tally.io(&shape, Nanos(latency_ns), 30, false, now_ns);
        }
        let windows = tally.windows(Nanos(550));
        let means: Vec<Option<f64>> = windows.iter().map(Window::mean_ns).collect();
        assert_eq!(means, [Some(20.0), None, Some(50.0), None]);
        assert_eq!(windows[0], Window { ios: 2, late: 0, bytes: 8192, latency_ns: 40 });
        assert_eq!((tally.bytes, tally.late, windows[2].late), (3 * 4096, 1, 1));
    }
}
