//! How long pollers wait for their CPUs: a host that has too few looks like a slow drive.

use std::path::Path;

use io_model::Nanos;

use crate::poller_thread::NAME_PREFIX;

/// What all pollers together waited since they started, while they could have run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuWaits {
    pollers: u32,
    waited_ns: u64,
}

impl CpuWaits {
    /// Until now. Nothing where the kernel does not say: it counts unless built without.
    pub fn now() -> Self {
        let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Self::default() };
        let waits = threads.flatten().filter_map(|thread| waited_ns(&thread.path()));
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

/// A poller's wait; `None` for another thread, or one that ended.
fn waited_ns(thread: &Path) -> Option<u64> {
    let name = std::fs::read_to_string(thread.join("comm")).ok()?;
    if !name.starts_with(NAME_PREFIX) {
        return None;
    }
    // Time on a CPU, time in the run queue, time slices (kernel documentation, "Scheduler Statistics").
    std::fs::read_to_string(thread.join("schedstat")).ok()?.split_whitespace().nth(1)?.parse().ok()
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
    fn only_pollers_are_counted() {
        let here = CpuWaits::now().pollers;
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (ready, started) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("{NAME_PREFIX}999")).spawn(move || {
            let _ = ready.send(());
            let _ = ended.recv();
        });
        started.recv().expect("it runs");
        assert!(CpuWaits::now().pollers > here, "other tests may have pollers, too");
        drop(end);
        thread.expect("a thread").join().expect("it ends");
    }
}
