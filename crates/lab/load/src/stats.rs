//! Counts and latencies.

use hdrhistogram::Histogram;
use io_model::QueuePriority;

use crate::spec::JobSpec;
use crate::verify::Mismatch;

/// Latencies up to this are told apart; longer ones count as this long.
const MAX_LATENCY_NS: u64 = 100_000_000_000;

/// What a command does, in fio's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Trim: NVMe's Dataset Management (deallocate), virtio's discard.
    Trim,
}

impl Direction {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Trim];

    /// fio's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Trim => "trim",
        }
    }
}

/// A distribution of latencies in ns; percentiles have three digits.
#[derive(Debug, Clone)]
pub struct Latency {
    histogram: Histogram<u64>,
    min_ns: u64,
    max_ns: u64,
    sum_ns: u128,
}

impl Default for Latency {
    fn default() -> Self {
        // The bounds are constants that the constructor accepts.
        let histogram = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3);
        let histogram = histogram.unwrap_or_else(|error| unreachable!("constant bounds: {error}"));
        Self { histogram, min_ns: u64::MAX, max_ns: 0, sum_ns: 0 }
    }
}

impl Latency {
    /// Records one latency.
    #[inline]
    pub fn record(&mut self, latency_ns: u64) {
        self.histogram.saturating_record(latency_ns);
        self.min_ns = self.min_ns.min(latency_ns);
        self.max_ns = self.max_ns.max(latency_ns);
        self.sum_ns += u128::from(latency_ns);
    }

    /// Number of latencies.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Smallest; 0 if there is none.
    pub fn min_ns(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.min_ns }
    }

    /// Largest; 0 if there is none.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Mean; 0 if there is none.
    pub fn mean_ns(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum_ns as f64 / self.count() as f64 }
    }

    /// Standard deviation, from the histogram.
    pub fn stddev_ns(&self) -> f64 {
        self.histogram.stdev()
    }

    /// The latency that `percentile` percent of all do not exceed; 0 if there is none.
    pub fn percentile_ns(&self, percentile: f64) -> u64 {
        // The histogram answers with a bucket's upper end, which may lie above the largest value.
        self.histogram.value_at_percentile(percentile).min(self.max_ns)
    }

    /// How many latencies exceed `limit_ns`, within the histogram's three digits.
    pub fn count_above(&self, limit_ns: u64) -> u64 {
        self.count() - self.histogram.count_between(0, limit_ns.min(MAX_LATENCY_NS))
    }

    fn merge(&mut self, other: &Self) {
        if other.count() > 0 {
            // Same bounds: adding can't fail.
            let added = self.histogram.add(&other.histogram);
            debug_assert!(added.is_ok());
            self.min_ns = self.min_ns.min(other.min_ns);
            self.max_ns = self.max_ns.max(other.max_ns);
            self.sum_ns += other.sum_ns;
        }
    }

    fn clear(&mut self) {
        if self.count() > 0 {
            self.histogram.reset();
        }
        (self.min_ns, self.max_ns, self.sum_ns) = (u64::MAX, 0, 0);
    }
}

/// Commands of one direction.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Commands completed.
    pub ios: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// From submission to completion.
    pub clat: Latency,
    /// From when a paced command was due to its completion. Empty for jobs that are not paced: it would
    /// be `clat`.
    lat: Option<Box<Latency>>,
}

impl Counts {
    #[inline]
    pub(crate) fn record(&mut self, bytes: u64, clat_ns: u64, lat_ns: Option<u64>) {
        self.ios += 1;
        self.bytes += bytes;
        self.clat.record(clat_ns);
        if let Some(lat_ns) = lat_ns {
            self.lat.get_or_insert_default().record(lat_ns);
        }
    }

    /// From when a command was due to its completion.
    pub fn lat(&self) -> &Latency {
        self.lat.as_deref().unwrap_or(&self.clat)
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.clat.merge(&other.clat);
        if let Some(lat) = &other.lat {
            self.lat.get_or_insert_default().merge(lat);
        }
    }

    fn clear(&mut self) {
        (self.ios, self.bytes) = (0, 0);
        self.clat.clear();
        if let Some(lat) = &mut self.lat {
            lat.clear();
        }
    }
}

/// Counts of all directions over some time.
#[derive(Debug, Clone, Default)]
pub struct Totals([Counts; 3]);

impl Totals {
    /// Counts of one direction.
    #[inline]
    pub fn of(&self, direction: Direction) -> &Counts {
        &self.0[direction as usize]
    }

    #[inline]
    pub(crate) fn of_mut(&mut self, direction: Direction) -> &mut Counts {
        &mut self.0[direction as usize]
    }

    /// Commands of all directions.
    pub fn ios(&self) -> u64 {
        self.0.iter().map(|counts| counts.ios).sum()
    }

    /// Bytes of all directions.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|counts| counts.bytes).sum()
    }

    /// All directions together.
    pub fn combined(&self) -> Counts {
        let mut all = Counts::default();
        self.0.iter().for_each(|counts| all.merge(counts));
        all
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(mine, theirs)| mine.merge(theirs));
    }

    /// Back to nothing, keeping the memory.
    pub fn clear(&mut self) {
        self.0.iter_mut().for_each(Counts::clear);
    }
}

/// What verifying found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyResult {
    /// Units (blocks of the smallest size) that were checked.
    pub checked_units: u64,
    /// Units that were wrong.
    pub mismatch_count: u64,
    /// The first of them.
    pub mismatches: Vec<Mismatch>,
}

/// One job's results.
#[derive(Debug, Clone)]
pub struct JobResult {
    /// Name of the job.
    pub name: String,
    /// Name of what it ran against.
    pub target: String,
    /// What was asked.
    pub spec: JobSpec,
    /// What its queue counted for among the client's, where that means anything.
    pub queue_priority: Option<QueuePriority>,
    /// Counts and latencies, warm-up and final read-back excluded.
    pub totals: Totals,
    /// Time measured.
    pub runtime_ns: u64,
    /// Commands per second of each full interval of about a second.
    pub interval_iops: Vec<f64>,
    /// Commands that failed.
    pub failed_ios: u64,
    /// Why the job ended early, if it did, or the first failure.
    pub error: Option<String>,
    /// With [`JobSpec::verify`]: what it found.
    pub verify: Option<VerifyResult>,
}

impl JobResult {
    /// Whether everything worked and everything checked was right.
    pub fn is_clean(&self) -> bool {
        self.error.is_none() && self.verify.as_ref().is_none_or(|verify| verify.mismatch_count == 0)
    }
}
