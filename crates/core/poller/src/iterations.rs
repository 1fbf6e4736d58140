//! What a poller does with its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use io_model::Nanos;

use crate::count::Count;
use crate::{Histogram, HistogramCounts, Inside, Percentiles};

/// In place of the time at which an iteration began: it sleeps, or has begun none.
const AT_REST: u64 = u64::MAX;

/// The iterations and sleeps of one poller, aligned so that no other poller writes the same cache line. It writes,
/// anyone reads.
#[derive(Debug)]
#[repr(align(128))]
pub struct Iterations {
    poller: usize,
    count: Count,
    busy_ns: Count,
    sleeps: Count,
    slept_ns: Count,
    begun_ns: AtomicU64,
    long: Histogram,
    inside: Arc<Inside>,
}

/// What a poller has done since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// Iterations that ended.
    pub iterations: u64,
    /// Time in iterations in which a command moved, in ns.
    pub busy_ns: u64,
    /// Times that it slept, or gave its CPU away for a moment.
    pub sleeps: u64,
    /// How long in all, in ns; a sleep counts once it is over.
    pub slept_ns: u64,
    /// It sleeps at this moment.
    pub is_asleep: bool,
}

impl Iterations {
    /// Those that take less are not counted as long: most take a few hundred nanoseconds.
    pub const LONG: Nanos = Nanos(50_000);

    /// None yet, of the poller of that number with that inside.
    pub fn new(poller: usize, inside: Arc<Inside>) -> Self {
        Self {
            poller,
            count: Count::default(),
            busy_ns: Count::default(),
            sleeps: Count::default(),
            slept_ns: Count::default(),
            begun_ns: AtomicU64::new(AT_REST),
            long: Histogram::default(),
            inside,
        }
    }

    /// The number of the poller, which is given once.
    pub fn poller(&self) -> usize {
        self.poller
    }

    /// The poller's HWQs and its policy's figures.
    pub fn inside(&self) -> &Inside {
        &self.inside
    }

    /// One begins. For the poller alone, as all that follows up to [`Iterations::woke`].
    #[inline]
    pub fn begins(&self, now: Nanos) {
        self.begun_ns.store(now.0, Ordering::Relaxed);
    }

    /// When the one that it is in began; none while it sleeps.
    pub fn begun(&self) -> Option<Nanos> {
        let begun_ns = self.begun_ns.load(Ordering::Relaxed);
        (begun_ns != AT_REST).then_some(Nanos(begun_ns))
    }

    /// One ended that took so long; `moved`: commands moved in it.
    #[inline]
    pub fn ended(&self, time: Nanos, moved: bool) {
        self.count.add(1);
        if moved {
            self.busy_ns.add(time.0);
        }
    }

    /// One took so long, at least [`Iterations::LONG`].
    pub fn took(&self, time: Nanos) {
        self.long.record(time.0);
    }

    /// It goes to sleep, however long, or begins no other one.
    pub fn falls_asleep(&self) {
        self.begun_ns.store(AT_REST, Ordering::Relaxed);
    }

    /// It is awake again, after so long, and begins one.
    pub fn woke(&self, now: Nanos, slept: Nanos) {
        self.begins(now);
        self.sleeps.add(1);
        self.slept_ns.add(slept.0);
    }

    /// Since the start.
    pub fn spent(&self) -> Spent {
        Spent {
            iterations: self.count.get(),
            busy_ns: self.busy_ns.get(),
            sleeps: self.sleeps.get(),
            slept_ns: self.slept_ns.get(),
            is_asleep: self.begun().is_none(),
        }
    }

    /// Counts of long ones since the start.
    pub fn counts(&self) -> HistogramCounts {
        self.long.counts()
    }

    /// How many long ones there were since `old` was read, and how long the longest took.
    pub fn since(&self, old: &HistogramCounts) -> (u64, Nanos) {
        let new = self.counts();
        (new.total() - old.total(), Nanos(Percentiles::between(old, &new).max_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iterations() -> Iterations {
        Iterations::new(3, Arc::new(Inside::new(1, 1)))
    }

    #[test]
    fn long_ones_are_counted_over_a_span() {
        let iterations = iterations();
        iterations.took(Nanos(900_000));
        let before = iterations.counts();
        assert_eq!(iterations.since(&before), (0, Nanos(0)));
        [60_000, 70_000].into_iter().for_each(|ns| iterations.took(Nanos(ns)));
        let (count, longest) = iterations.since(&before);
        assert_eq!(count, 2);
        assert!((70_000..71_200).contains(&longest.0), "within a 64th: {longest}");
        assert_eq!(iterations.since(&HistogramCounts::default()).0, 3);
    }

    #[test]
    fn time_is_busy_asleep_or_spent_looking() {
        let iterations = iterations();
        iterations.ended(Nanos(300), false);
        iterations.ended(Nanos(500), true);
        iterations.falls_asleep();
        assert!(iterations.spent().is_asleep);
        iterations.woke(Nanos(9_000), Nanos(7_000));
        assert_eq!(iterations.begun(), Some(Nanos(9_000)));
        let spent = Spent { iterations: 2, busy_ns: 500, sleeps: 1, slept_ns: 7_000, is_asleep: false };
        assert_eq!(iterations.spent(), spent);
    }
}
