//! What a poller does with its time, and its long iterations.

use std::sync::Arc;

use io_model::Nanos;
use poller::{Board, Inside, Iterations};
use rustix::time::{ClockId, clock_gettime};

use crate::poller_watchdog::Pulses;

/// How old the last look at the CPU time may get while a poller runs. Each is a system call.
const LOOK_PERIOD: Nanos = Nanos::from_millis(200);

/// A thread that yielded the CPU for less got it back at once: the system call is saved.
const AWAY: Nanos = Nanos(5_000);

/// Measures one poller's iterations, from one reading of its clock to the next: two counts and a comparison for those
/// that are not long. Of a long one, the time counts in which the thread was on its CPU. The kernel says that for
/// longer spans alone: a wait for the CPU shortly before counts as if it had been in the long iteration.
pub struct Stopwatch {
    iterations: Arc<Iterations>,
    board: Arc<Board>,
    /// When the iteration began.
    begun: Nanos,
    /// When the CPU time was looked at, and what it was.
    looked: Nanos,
    used: Nanos,
}

impl Stopwatch {
    /// Of the poller of that number; call it in that poller's thread.
    pub fn start(poller: usize, board: &Arc<Board>, inside: &Arc<Inside>, pulses: &Pulses, now: Nanos) -> Self {
        let iterations = Arc::new(Iterations::new(poller, Arc::clone(inside)));
        board.add_poller(Arc::clone(&iterations));
        pulses.add(&iterations);
        iterations.begins(now);
        Self { iterations, board: Arc::clone(board), begun: now, looked: now, used: cpu_time() }
    }

    /// An iteration has ended, in which commands moved or not, and the next one begins. How long it took.
    #[inline]
    pub fn lap(&mut self, now: Nanos, moved: bool) -> Nanos {
        let took = now - self.begun;
        self.iterations.ended(took, moved);
        if took >= Iterations::LONG {
            self.was_long(now);
        } else if now - self.looked >= LOOK_PERIOD {
            (self.looked, self.used) = (now, cpu_time());
        }
        self.begun = now;
        self.iterations.begins(now);
        took
    }

    /// Ends an iteration in which nothing moved. The thread leaves: to sleep, to yield its CPU, or for good.
    pub fn pause(&mut self, now: Nanos) {
        self.lap(now, false);
        self.iterations.falls_asleep();
    }

    /// It is back.
    pub fn resume(&mut self, now: Nanos) {
        self.iterations.woke(now, now - self.begun);
        if now - self.begun >= AWAY {
            (self.looked, self.used) = (now, cpu_time());
        }
        self.begun = now;
    }

    #[cold]
    fn was_long(&mut self, now: Nanos) {
        let used = cpu_time();
        let waited = (now - self.looked) - (used - self.used);
        let took = (now - self.begun) - waited;
        if took >= Iterations::LONG {
            self.iterations.took(took);
        }
        (self.looked, self.used) = (now, used);
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        self.board.remove_poller(&self.iterations);
    }
}

/// To be called before threads are confined: the first look at such a clock looks for the kernel's vDSO too, by a
/// system call that pollers may not make.
pub fn prepare() {
    cpu_time();
}

/// What the thread has used of its CPU so far.
fn cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let ns = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    Nanos(u64::try_from(ns).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use poller::HistogramCounts;

    use super::*;
    use observe::clock::Clock;

    #[test]
    fn time_on_the_cpu_counts_and_time_away_from_it_does_not() {
        let (board, clock) = (Arc::new(Board::default()), Clock::start());
        let inside = Arc::new(Inside::new(1, 1));
        let mut stopwatch = Stopwatch::start(7, &board, &inside, &Pulses::default(), clock.now());
        let [iterations] = &board.pollers()[..] else { panic!("one poller") };
        assert_eq!(iterations.poller(), 7);

        std::thread::sleep(Duration::from_millis(20));
        stopwatch.lap(clock.now(), false);
        let (_, longest) = iterations.since(&HistogramCounts::default());
        assert!(longest < Nanos::from_millis(10), "it slept: {longest}");

        stopwatch.pause(clock.now());
        std::thread::sleep(Duration::from_millis(1));
        stopwatch.resume(clock.now());
        let until = cpu_time() + Nanos::from_millis(2);
        while cpu_time() < until {}
        stopwatch.lap(clock.now(), true);
        let (count, longest) = iterations.since(&HistogramCounts::default());
        assert!(count > 0 && longest >= Nanos(1_900_000), "{longest}");

        drop(stopwatch);
        assert!(board.pollers().is_empty());
    }
}
