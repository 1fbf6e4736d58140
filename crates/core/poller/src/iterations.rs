//! How long a poller's iterations took.

use io_model::Nanos;

use crate::{Histogram, Percentiles};

/// The long iterations of one poller. It writes, anyone reads.
#[derive(Debug)]
pub struct Iterations {
    poller: usize,
    long: Histogram,
}

impl Iterations {
    /// Those that take less are not counted: most take a few hundred nanoseconds.
    pub const LONG: Nanos = Nanos(50_000);

    /// None yet.
    pub fn new(poller: usize) -> Self {
        Self { poller, long: Histogram::default() }
    }

    /// The number of the poller, which is given once.
    pub fn poller(&self) -> usize {
        self.poller
    }

    /// One took so long, at least [`Iterations::LONG`]. For the poller alone.
    pub fn took(&self, time: Nanos) {
        self.long.record(time.0);
    }

    /// Counts of those since the start; see [`Histogram::counts`].
    pub fn counts(&self) -> Vec<u64> {
        self.long.counts()
    }

    /// How many there were since `old` was read (empty: since the start), and how long the longest took.
    pub fn since(&self, old: &[u64]) -> (u64, Nanos) {
        let new = self.counts();
        let all = |counts: &[u64]| counts.iter().sum::<u64>();
        (all(&new) - all(old), Nanos(Percentiles::between(old, &new).max_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ones_are_counted_over_a_span() {
        let iterations = Iterations::new(3);
        iterations.took(Nanos(900_000));
        let before = iterations.counts();
        assert_eq!(iterations.since(&before), (0, Nanos(0)));
        [60_000, 70_000].into_iter().for_each(|ns| iterations.took(Nanos(ns)));
        let (count, longest) = iterations.since(&before);
        assert_eq!(count, 2);
        assert!((70_000..71_200).contains(&longest.0), "within a 64th: {longest}");
        assert_eq!(iterations.since(&[]).0, 3);
    }
}
