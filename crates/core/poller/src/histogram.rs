//! A latency histogram with one writer and any number of readers.

use std::mem;
use std::ops::{AddAssign, Range};
use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets per power of two: a value is known within 1/64 of itself.
const SUB_BITS: u32 = 6;
const SUB: u64 = 1 << SUB_BITS;
/// Values from 2^40 ns (18 minutes) on share the last bucket.
const TOP_BITS: u32 = 40;
const BUCKETS: usize = ((TOP_BITS - SUB_BITS + 1) as usize) << SUB_BITS;

/// Counts of latencies in nanoseconds, log-linear: exact below 64 ns, within 1.6 % above.
///
/// One thread records with plain loads and stores (no locked instruction per command); readers see
/// each bucket's latest value, not a snapshot of all of them at one instant.
///
/// By hand, because crates that do this take `&mut self` or a locked instruction to record. The simulator, which runs
/// the pollers' own code, reads the same one; a load generator's client, which nobody reads beside it, has
/// `hdrhistogram`.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

fn bucket_of(value_ns: u64) -> usize {
    if value_ns < SUB {
        return value_ns as usize;
    }
    let exponent = value_ns.ilog2();
    if exponent >= TOP_BITS {
        return BUCKETS - 1;
    }
    let shift = exponent - SUB_BITS;
    ((u64::from(shift) + 1) * SUB + ((value_ns >> shift) - SUB)) as usize
}

/// The highest value that falls in a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    ((bucket % SUB + SUB + 1) << shift) - 1
}

impl Histogram {
    /// Counts one latency. Only one thread may record.
    #[inline]
    pub fn record(&self, value_ns: u64) {
        let bucket = &self.buckets[bucket_of(value_ns)];
        bucket.store(bucket.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A copy of the counts, for percentiles over a span: compare with an older copy.
    pub fn counts(&self) -> HistogramCounts {
        let count = |bucket: &AtomicU64| bucket.load(Ordering::Relaxed);
        let Some(first) = self.buckets.iter().position(|bucket| count(bucket) != 0) else {
            return HistogramCounts::default();
        };
        // None falls to zero again.
        let last = self.buckets.iter().rposition(|bucket| count(bucket) != 0).unwrap_or(first);
        HistogramCounts { first, counts: self.buckets[first..=last].iter().map(count).collect() }
    }

    /// For each of these shares (0 to 1, rising) the smallest value that at least this share of all values does not
    /// exceed; zeros if nothing was counted.
    pub fn values_at<const N: usize>(&self, shares: [f64; N]) -> [u64; N] {
        values_at(shares, 0..self.buckets.len(), |bucket| self.buckets[bucket].load(Ordering::Relaxed))
    }
}

/// What a [`Histogram`] had counted at some time, or several together. By default nothing.
///
/// Latencies of one tenant fill some dozens of its 2,240 buckets: nothing is kept of those before and after.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HistogramCounts {
    /// The bucket of the first of `counts`.
    first: usize,
    counts: Vec<u64>,
}

impl HistogramCounts {
    /// How many values were counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How many values are at most as long as each of these (rising) for sure: a value that may be longer than one,
    /// within 1.6 %, counts as longer.
    pub fn at_most(&self, bounds_ns: impl IntoIterator<Item = u64>) -> impl Iterator<Item = u64> {
        let (mut buckets, mut seen) = (self.buckets().zip(&self.counts).peekable(), 0);
        bounds_ns.into_iter().map(move |bound_ns| {
            while let Some((_, count)) = buckets.next_if(|(bucket, _)| upper_ns(*bucket) <= bound_ns) {
                seen += count;
            }
            seen
        })
    }

    fn buckets(&self) -> Range<usize> {
        self.first..self.first + self.counts.len()
    }

    fn count(&self, bucket: usize) -> u64 {
        let at = bucket.checked_sub(self.first);
        at.and_then(|at| self.counts.get(at)).copied().unwrap_or(0)
    }
}

impl AddAssign for HistogramCounts {
    fn add_assign(&mut self, other: Self) {
        if self.counts.is_empty() || other.counts.is_empty() {
            *self = if self.counts.is_empty() { other } else { mem::take(self) };
            return;
        }
        let (mine, its) = (self.buckets(), other.buckets());
        let all = mine.start.min(its.start)..mine.end.max(its.end);
        let counts = all.clone().map(|bucket| self.count(bucket) + other.count(bucket)).collect();
        *self = Self { first: all.start, counts };
    }
}

fn values_at<const N: usize>(shares: [f64; N], buckets: Range<usize>, count: impl Fn(usize) -> u64) -> [u64; N] {
    let total: u64 = buckets.clone().map(&count).sum();
    let mut values = [0; N];
    if total == 0 {
        return values;
    }
    let ranks = shares.map(|share| ((total as f64 * share).ceil() as u64).clamp(1, total));
    let (mut seen, mut next) = (0, 0);
    for bucket in buckets {
        seen += count(bucket);
        while next < N && seen >= ranks[next] {
            values[next] = upper_ns(bucket);
            next += 1;
        }
    }
    values
}

/// Percentiles of a set of counts, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Percentiles {
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// 99.99th percentile.
    pub p9999_ns: u64,
    /// Highest.
    pub max_ns: u64,
}

impl Percentiles {
    /// Of what was counted in `new` and not yet in `old`. Zeros if nothing was.
    pub fn between(old: &HistogramCounts, new: &HistogramCounts) -> Self {
        let delta = |bucket| new.count(bucket).saturating_sub(old.count(bucket));
        let shares = [0.5, 0.99, 0.999, 0.9999, 1.0];
        let [p50_ns, p99_ns, p999_ns, p9999_ns, max_ns] = values_at(shares, new.buckets(), delta);
        Self { p50_ns, p99_ns, p999_ns, p9999_ns, max_ns }
    }

    /// One quantile, 0 to 1, of the same.
    pub fn one_between(old: &HistogramCounts, new: &HistogramCounts, quantile: f64) -> u64 {
        let delta = |bucket| new.count(bucket).saturating_sub(old.count(bucket));
        let [value_ns] = values_at([quantile], new.buckets(), delta);
        value_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_hold_their_values() {
        let mut last = 0;
        for value_ns in (0..5_000).chain((5_000..80_000_000).step_by(997)) {
            let bucket = bucket_of(value_ns);
            assert!(bucket == last || bucket == last + 1 || value_ns > 5_000, "gap before {value_ns}");
            assert!(upper_ns(bucket) >= value_ns);
            assert!(upper_ns(bucket) - value_ns <= value_ns / 64, "{value_ns} is off by too much");
            last = bucket;
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of((1 << TOP_BITS) - 1), BUCKETS - 1);
    }

    #[test]
    fn what_may_be_longer_than_a_bound_is_not_counted_below_it() {
        let histogram = Histogram::default();
        [1, 63, 64, 10_000, 10_240, 1 << 50].into_iter().for_each(|value_ns| histogram.record(value_ns));
        let below: Vec<u64> = histogram.counts().at_most([0, 63, 64, 10_000, 10_400, 1 << 45]).collect();
        // The bucket of 10,000 goes on to 10,111; what is longer than 18 minutes counts as that.
        assert_eq!(below, [0, 2, 3, 3, 5, 6]);
        assert_eq!(HistogramCounts::default().at_most([5, 10]).collect::<Vec<_>>(), [0, 0]);
    }

    #[test]
    fn percentiles_of_a_known_set() {
        let histogram = Histogram::default();
        (1..=50).for_each(|value_ns| histogram.record(value_ns));
        let old = histogram.counts();
        let all = Percentiles::between(&HistogramCounts::default(), &old);
        assert_eq!((all.p50_ns, all.p99_ns, all.max_ns), (25, 50, 50));
        assert_eq!(Percentiles::one_between(&HistogramCounts::default(), &old, 0.9), 45);
        histogram.record(60);
        assert_eq!(Percentiles::between(&old, &histogram.counts()).p50_ns, 60);
        assert_eq!(Percentiles::between(&old, &old), Percentiles::default());
    }
    #[test]
    fn counts_of_several_are_those_of_all() {
        let spans = [1..=50_u64, 60..=70, 40..=65, 1 << 20..=1 << 21];
        let all = Histogram::default();
        let mut sum = HistogramCounts::default();
        for span in spans {
            let one = Histogram::default();
            for value_ns in span.step_by(3) {
                [&one, &all].iter().for_each(|histogram| histogram.record(value_ns));
            }
            sum += one.counts();
            sum += HistogramCounts::default();
            assert_eq!(sum, all.counts());
        }
        assert_eq!(sum.total(), all.counts().at_most([u64::MAX]).sum::<u64>());
    }
}
