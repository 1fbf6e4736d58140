//! How long pollers wait for their CPUs: a host that has too few looks like a slow drive.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use io_model::Nanos;

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

/// What all pollers together waited since they started, while they could have run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuWaits {
    pollers: u32,
    waited_ns: u64,
}

impl CpuWaits {
    /// Until now. Nothing where the kernel does not say: it counts unless built without.
    pub fn now() -> Self {
        let threads = pollers().clone();
        let waits = threads.into_keys().filter_map(waited_ns);
        waits.fold(Self::default(), |sum, waited_ns| Self {
            pollers: sum.pollers + 1,
            waited_ns: sum.waited_ns.saturating_add(waited_ns),
        })
    }

    /// The part of the last `span` that pollers waited, in the mean; `then` is what was counted at its start.
    pub fn since(&self, then: &Self, span: Nanos) -> f64 {
        let all_ns = f64::from(self.pollers) * span.0 as f64;
        if all_ns > 0.0 { self.waited_ns.saturating_sub(then.waited_ns) as f64 / all_ns } else { 0.0 }
    }
}

/// What each poller waited since it started, in ns, by its number; what the kernel does not tell is left out.
pub fn waits_by_poller() -> BTreeMap<usize, u64> {
    let threads = pollers().clone();
    threads.into_iter().filter_map(|(thread, poller)| Some((poller, waited_ns(thread)?))).collect()
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
        let waits = |pollers, waited_ns| CpuWaits { pollers, waited_ns };
        assert_eq!(waits(2, 700).since(&waits(2, 200), Nanos(1_000)), 0.25);
        assert_eq!(waits(0, 0).since(&waits(0, 0), Nanos(1_000)), 0.0);
        assert_eq!(waits(1, 5).since(&waits(1, 5), Nanos(0)), 0.0);
    }

    #[test]
    fn pollers_alone_are_counted_while_they_run() {
        let this = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(!pollers().contains_key(&this));
        let counted = CountedPoller::this_thread(4242);
        assert!(waited_ns(this).is_some() && pollers().contains_key(&this));
        assert!(waits_by_poller().contains_key(&4242));
        assert!(CpuWaits::now().pollers > 0);
        drop(counted);
        assert!(!pollers().contains_key(&this), "other tests may have pollers, this one has none");
    }
}
