//! How long pollers wait for their CPUs, and how long they are busy: a host that has too few looks like a slow drive.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use io_model::Nanos;
use poller::Board;

/// The process's pollers: the daemon's numbers by the kernel's. Of all its threads, of which each tenant has one, to
/// find them by their names would take tens of milliseconds.
static POLLERS: Mutex<BTreeMap<i32, usize>> = Mutex::new(BTreeMap::new());

fn pollers() -> MutexGuard<'static, BTreeMap<i32, usize>> {
    POLLERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread whose waits count as a poller's, until this is dropped.
pub struct CountedPoller(i32);

impl CountedPoller {
    /// The calling thread, as the poller of that number.
    pub fn this_thread(poller: usize) -> Self {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        pollers().insert(thread, poller);
        Self(thread)
    }
}

impl Drop for CountedPoller {
    fn drop(&mut self) {
        pollers().remove(&self.0);
    }
}

/// What each poller waited since it started, in ns, while it could have run; by its number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuWaits(BTreeMap<usize, u64>);

impl CpuWaits {
    /// Until now. Nothing where the kernel does not say: it counts unless built without.
    pub fn now() -> Self {
        Self::of_those(|_| true)
    }

    /// The waits of one drive's pollers.
    fn of_drive(board: &Board) -> Self {
        let its_own = numbers(board);
        Self::of_those(|poller| its_own.contains(&poller))
    }

    fn of_those(is_one: impl Fn(usize) -> bool) -> Self {
        let threads = pollers().clone().into_iter().filter(|(_, poller)| is_one(*poller));
        Self(threads.filter_map(|(thread, poller)| Some((poller, waited_ns(thread)?))).collect())
    }

    /// That of one poller; `None`: the kernel does not say.
    pub fn of(&self, poller: usize) -> Option<u64> {
        self.0.get(&poller).copied()
    }

    /// The part of the last `span` that these pollers waited, in the mean; `then` is what was counted at its start.
    pub fn mean_part(&self, pollers: &[usize], then: &Self, span: Nanos) -> f64 {
        let parts = pollers.iter().map(|poller| self.part(*poller, then, span));
        parts.sum::<f64>() / pollers.len().max(1) as f64
    }

    /// The fraction of the span in which one poller waited.
    pub fn part(&self, poller: usize, then: &Self, span: Nanos) -> f64 {
        let waited_ns = self.of(poller).unwrap_or(0).saturating_sub(then.of(poller).unwrap_or(0));
        if span.0 > 0 { waited_ns as f64 / span.0 as f64 } else { 0.0 }
    }
}

/// What a drive's pollers had spent by some time.
pub struct PollersMark {
    at: Nanos,
    waits: CpuWaits,
    busy_ns: BTreeMap<usize, u64>,
}

impl PollersMark {
    /// Now.
    pub fn now(board: &Board, at: Nanos) -> Self {
        Self { at, waits: CpuWaits::of_drive(board), busy_ns: busy_ns(board) }
    }

    /// A time when none was there yet.
    pub fn of_none(at: Nanos) -> Self {
        Self { at, waits: CpuWaits::default(), busy_ns: BTreeMap::new() }
    }

    /// What they spent from then until `now`.
    pub fn until(&self, board: &Board, now: Nanos) -> CpuUse {
        let (waits, span) = (CpuWaits::of_drive(board), now - self.at);
        let part = |(poller, busy_ns): (usize, u64)| {
            let busy_ns = busy_ns.saturating_sub(self.busy_ns.get(&poller).copied().unwrap_or(0));
            let (waited, span_ns) = (waits.part(poller, &self.waits, span), span.0.max(1) as f64);
            (poller, Spent { waited: waited.min(1.0), busy: (busy_ns as f64 / span_ns).min(1.0) })
        };
        CpuUse(busy_ns(board).into_iter().map(part).collect())
    }
}

/// The numbers of a drive's pollers.
pub fn numbers(board: &Board) -> Vec<usize> {
    board.pollers().iter().map(|it| it.poller()).collect()
}

fn busy_ns(board: &Board) -> BTreeMap<usize, u64> {
    board.pollers().iter().map(|it| (it.poller(), it.spent().busy_ns)).collect()
}

/// Parts of a span, 0 to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// It could have run and had no CPU.
    pub waited: f64,
    /// It moved commands.
    pub busy: f64,
}

/// What each poller of a drive spent of a span, by its number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CpuUse(pub BTreeMap<usize, Spent>);

impl CpuUse {
    /// The most that any of these pollers spent of each: a command waits for the one that it is with.
    pub fn most(&self, pollers: &[usize]) -> Spent {
        let each = pollers.iter().filter_map(|poller| self.0.get(poller));
        each.fold(Spent::default(), |most, it| Spent {
            waited: most.waited.max(it.waited),
            busy: most.busy.max(it.busy),
        })
    }
}

/// A thread's wait; `None`: it ended.
fn waited_ns(thread: i32) -> Option<u64> {
    // Time on a CPU, time in the run queue, time slices (kernel documentation, "Scheduler Statistics").
    let schedstat = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_a_part_of_all_pollers_time() {
        let waits = |waited_ns: &[u64]| CpuWaits(waited_ns.iter().copied().enumerate().collect());
        let (then, now, second) = (waits(&[100, 100]), waits(&[600, 100]), Nanos(1_000));
        assert_eq!(
            (now.part(0, &then, second), now.part(1, &then, second), now.mean_part(&[0, 1], &then, second)),
            (0.5, 0.0, 0.25)
        );
        assert_eq!((now.mean_part(&[1], &then, second), now.mean_part(&[0], &then, second)), (0.0, 0.5));
        assert_eq!((now.part(7, &then, second), now.mean_part(&[], &then, second)), (0.0, 0.0));
        assert_eq!(waits(&[5]).part(0, &waits(&[5]), Nanos(0)), 0.0);
    }

    #[test]
    fn pollers_alone_are_counted_while_they_run() {
        let this = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(!pollers().contains_key(&this));
        let counted = CountedPoller::this_thread(4242);
        assert!(waited_ns(this).is_some() && pollers().contains_key(&this));
        assert!(CpuWaits::now().of(4242).is_some());
        drop(counted);
        assert!(!pollers().contains_key(&this), "other tests may have pollers, this one has none");
    }
}
