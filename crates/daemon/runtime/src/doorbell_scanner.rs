//! Looks at mapped doorbells for every poller that sleeps.
//!
//! A guest that stores into mapped memory wakes no thread. The scanner reads only the daemon's own memory: doorbell
//! pages, whose size no client can change. It never reads guest memory: its owner could block the scanner, and with it
//! every poller that wants the lock.
//! Each sleeping poller leaves a list of its doorbells here; one thread looks at them and wakes the poller whose
//! doorbell moved. [How often](period) is each poller's own: the longer it has had nothing to do, the more seldom. A
//! neighbour that is never calm changes neither.
//!
//! To wake up costs more (10 to 45 µs on a virtual machine) than to look. So pollers are looked at together: each a
//! little too early, none too late. An idle host wakes up as often as one poller needs it, however many there are, and
//! never while no client is attached.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use confine::ThreadKind;
use guest_memory::MappedU32;
use io_model::Nanos;

use crate::poller_waker::PollerWaker;
use crate::{panics, threads};
use observe::clock::Clock;

/// Doorbells, each with the value that its poller last acted on.
pub type Doorbells = Vec<(MappedU32, u32)>;

/// How often a sleeping poller is looked at to begin with, and how seldom at most.
const FIRST: Nanos = Nanos::from_millis(1);
const AT_MOST: Nanos = Nanos::from_millis(20);

/// The time between two looks, after a poller had nothing to do for `quiet`: 1/1000 of that, within the bounds. After a
/// long pause a guest waits a little longer, and an idle host seldom wakes up.
pub fn period(quiet: Nanos) -> Nanos {
    Nanos(quiet.0 / 1000).clamp(FIRST, AT_MOST)
}

/// A poller that sleeps.
pub struct Sleeper {
    /// Its number.
    pub poller: usize,
    /// Woken when one of its doorbells moves.
    pub waker: Arc<PollerWaker>,
    /// What is looked at.
    pub doorbells: Doorbells,
    /// When it had something to do for the last time.
    pub last_progress: Nanos,
    /// When its doorbells were looked at for the last time.
    pub looked: Nanos,
}

impl Sleeper {
    fn period(&self, now: Nanos) -> Nanos {
        period(now - self.last_progress)
    }

    /// Looks, unless less than half of its period is over. After that it is looked at whenever another one is, so that
    /// all with an equal period are soon looked at together.
    fn look(&mut self, now: Nanos) {
        if now - self.looked < Nanos(self.period(now).0 / 2) {
            return;
        }
        self.looked = now;
        if self.doorbells.iter().any(|(doorbell, seen)| doorbell.load() != *seen) {
            self.waker.wake();
        }
    }
}

#[derive(Default)]
struct Sleepers {
    of: Vec<Sleeper>,
    /// When the thread wakes up by itself; `None`: never.
    wakes: Option<Nanos>,
}

impl Sleepers {
    /// Looks at the pollers that are due, and returns when the next one is due.
    fn look(&mut self, now: Nanos) -> Option<Nanos> {
        self.of.iter_mut().for_each(|sleeper| sleeper.look(now));
        self.wakes = self.of.iter().map(|sleeper| sleeper.looked + sleeper.period(now)).min();
        self.wakes
    }

    /// Takes one that has just looked itself. Returns whether the thread has to wake up earlier than it would.
    fn add(&mut self, sleeper: Sleeper) -> bool {
        let due = sleeper.looked + sleeper.period(sleeper.looked);
        self.of.push(sleeper);
        self.wakes.is_none_or(|wakes| due < wakes)
    }
}

#[derive(Default)]
struct Shared {
    sleepers: Mutex<Sleepers>,
    changed: Condvar,
}

impl Shared {
    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scan(&self, clock: Clock) {
        threads::enter(ThreadKind::Doorbells);
        panics::drill();
        let mut sleepers = self.sleepers();
        loop {
            let now = clock.now();
            sleepers = match sleepers.look(now) {
                None => self.changed.wait(sleepers).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let waited = self.changed.wait_timeout(sleepers, Duration::from_nanos((due - now).0));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// A handle to the thread, which lives as long as the process.
#[derive(Clone)]
pub struct DoorbellScanner {
    shared: Arc<Shared>,
}

impl DoorbellScanner {
    /// The thread, which sleeps until there is a poller to watch for.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(clock: Clock) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let walker = Arc::clone(&shared);
        std::thread::Builder::new().name("doorbells".into()).spawn(move || walker.scan(clock))?;
        Ok(Self { shared })
    }

    /// Watches over one that falls asleep, until [`DoorbellScanner::forget`]. Not for pollers without mapped
    /// doorbells: they sleep and wake per command, and would meet at the lock.
    pub fn watch(&self, sleeper: Sleeper) {
        if self.shared.sleepers().add(sleeper) {
            self.shared.changed.notify_one();
        }
    }

    /// The poller is awake. Also lets go of its tenants' memory.
    pub fn forget(&self, poller: usize) {
        self.shared.sleepers().of.retain(|sleeper| sleeper.poller != poller);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use guest_memory::Mapping;

    fn sleeper(poller: usize, last_progress: Nanos, looked: Nanos) -> Sleeper {
        let waker = Arc::new(PollerWaker::new().unwrap());
        Sleeper { poller, waker, doorbells: Vec::new(), last_progress, looked }
    }

    /// When each is looked at from `start` to `end`, as by a thread that is woken in time.
    fn looks(sleepers: &mut Sleepers, start: Nanos, end: Nanos) -> (usize, HashMap<usize, Vec<Nanos>>) {
        let (mut now, mut wakes, mut looks) = (start, 0, HashMap::<_, Vec<_>>::new());
        while now < end {
            wakes += 1;
            let next = sleepers.look(now).unwrap();
            for sleeper in sleepers.of.iter().filter(|sleeper| sleeper.looked == now) {
                looks.entry(sleeper.poller).or_default().push(now);
            }
            assert!(next > now);
            now = next;
        }
        (wakes, looks)
    }

    fn longest(times: &[Nanos]) -> Nanos {
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    }

    #[test]
    fn the_longer_nothing_happens_the_more_seldom_it_looks() {
        let mut sleepers = Sleepers::default();
        assert!(sleepers.add(sleeper(0, Nanos(0), Nanos::from_millis(500))));
        for (from_ms, shortest_us, longest_us) in
            [(500, 1_000, 1_000), (2_000, 2_000, 2_100), (10_000, 10_000, 10_100), (30_000, 20_000, 20_000)]
        {
            let from = Nanos::from_millis(from_ms);
            let (_, looks) = looks(&mut sleepers, from, from + Nanos::from_millis(100));
            for pair in looks[&0].windows(2) {
                let between = pair[1] - pair[0];
                let expected = Nanos(shortest_us * 1000)..=Nanos(longest_us * 1000);
                assert!(expected.contains(&between), "{between} after {from_ms} ms");
            }
        }
    }

    #[test]
    fn a_neighbour_that_is_never_calm_has_nobody_else_looked_at_more_often_than_twice() {
        let start = Nanos::from_millis(100_000);
        let mut sleepers = Sleepers::default();
        sleepers.add(sleeper(0, start, start));
        sleepers.add(sleeper(1, Nanos(0), start));
        let (wakes, looks) = looks(&mut sleepers, start, start + Nanos::from_millis(1_000));
        assert!(looks[&0].len() >= 999 && wakes <= looks[&0].len() + 1, "{wakes} wake-ups");
        assert!((50..=100).contains(&looks[&1].len()), "{}", looks[&1].len());
        assert!(longest(&looks[&1]) <= AT_MOST);
    }

    #[test]
    fn those_with_the_same_pace_are_looked_at_at_once() {
        let start = Nanos::from_millis(100_000);
        let mut sleepers = Sleepers::default();
        for poller in 0..64 {
            sleepers.add(sleeper(poller, Nanos(0), start + Nanos(poller as u64 * 310_000)));
        }
        let start = start + AT_MOST;
        let (wakes, looks) = looks(&mut sleepers, start, start + Nanos::from_millis(1_000));
        assert!(wakes <= 55, "{wakes} wake-ups");
        for times in looks.values() {
            assert!(longest(times) <= AT_MOST);
        }
    }

    #[test]
    fn who_falls_asleep_beside_a_calm_one_does_not_wait_for_it() {
        let start = Nanos::from_millis(100_000);
        let mut sleepers = Sleepers::default();
        sleepers.add(sleeper(0, Nanos(0), start));
        sleepers.look(start);
        assert!(sleepers.add(sleeper(1, start, start + Nanos(1))), "the thread is woken");
        assert_eq!(sleepers.look(start + Nanos(2)), Some(start + Nanos(1) + FIRST));
        sleepers.of.retain(|sleeper| sleeper.poller != 1);
        assert!(!sleepers.add(sleeper(1, start, start + Nanos(3))), "it wakes up in time");
    }

    #[test]
    fn a_doorbell_that_moves_wakes_its_poller() {
        let page = Mapping::anonymous(4096).unwrap();
        let clock = Clock::start();
        let scanner = DoorbellScanner::start(clock).unwrap();
        let waker = Arc::new(PollerWaker::new().unwrap());
        let cell = MappedU32::new(&page, 8).unwrap();
        for value in 1..20 {
            waker.prepare_to_sleep();
            let now = clock.now();
            let doorbells = vec![(cell.clone(), value - 1)];
            scanner.watch(Sleeper { waker: Arc::clone(&waker), doorbells, ..sleeper(0, now, now) });
            let guest = cell.clone();
            let thread = std::thread::spawn(move || guest.store(value));
            // Without a timeout: a doorbell that is missed would hang the test.
            waker.sleep(None);
            scanner.forget(0);
            thread.join().unwrap();
        }
        drop(cell);
        assert_eq!(Arc::strong_count(&page), 1, "forgotten doorbells hold no memory");
    }
}
