//! Looks at mapped doorbells for every poller that sleeps.
//!
//! A guest that stores into mapped memory wakes nobody. What is looked at is the daemon's own: a doorbell page, whose
//! size nobody can change. Guest memory is not, since its owner could make whoever looks at it wait, and with it every
//! poller that wants the lock.
//! Each sleeping poller leaves a list of its doorbells
//! here; one thread looks at all of them every interval and wakes the poller whose doorbell moved.
//! So an idle host pays for one short wake-up per interval, however many tenants it has, and nothing at all
//! while no client is attached. After a second in which nobody woke or fell asleep the interval is four times
//! as long, and after four more, eight times: on a virtual machine a bare wake-up costs 10 to 45 µs, and 250 of them
//! a second up to 1 % of a core. So a command waits longer for the scanner only after a pause that was much longer.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use confine::ThreadKind;
use guest_memory::MappedU32;

use crate::poller_waker::PollerWaker;
use crate::{panics, threads};

/// Doorbells, each with the value that its poller last acted on.
pub type Doorbells = Vec<(MappedU32, u32)>;

/// Looks without any change before they become rarer, and by how much then. The most first.
const PATIENCE: [(u32, u32); 2] = [(2000, 8), (1000, 4)];

struct Sleeper {
    poller: usize,
    waker: Arc<PollerWaker>,
    doorbells: Doorbells,
}

#[derive(Default)]
struct Sleepers {
    of: Vec<Sleeper>,
    /// Looks since somebody woke or fell asleep.
    calm: u32,
}

#[derive(Default)]
struct Shared {
    sleepers: Mutex<Sleepers>,
    someone_sleeps: Condvar,
}

impl Shared {
    fn sleepers(&self) -> MutexGuard<'_, Sleepers> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scan(&self, period: Duration) {
        threads::enter(ThreadKind::Doorbells);
        panics::drill();
        loop {
            let idle = |sleepers: &mut Sleepers| sleepers.of.is_empty();
            let sleepers = self.someone_sleeps.wait_while(self.sleepers(), idle);
            let mut sleepers = sleepers.unwrap_or_else(PoisonError::into_inner);
            for sleeper in &sleepers.of {
                if sleeper.doorbells.iter().any(|(doorbell, seen)| doorbell.load() != *seen) {
                    sleeper.waker.wake();
                }
            }
            sleepers.calm = sleepers.calm.saturating_add(1);
            let factor = PATIENCE.iter().find(|(after, _)| sleepers.calm > *after).map_or(1, |(_, factor)| *factor);
            drop(sleepers);
            std::thread::sleep(period * factor);
        }
    }
}

/// A handle to the thread, which lives as long as the process.
#[derive(Clone)]
pub struct DoorbellScanner {
    shared: Arc<Shared>,
}

impl DoorbellScanner {
    /// A thread that looks every `period`, at first.
    pub fn start(period: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let walker = Arc::clone(&shared);
        std::thread::Builder::new().name("doorbells".into()).spawn(move || walker.scan(period))?;
        Ok(Self { shared })
    }

    /// Wakes `waker` when one of these moves, until [`DoorbellScanner::forget`]. Not for pollers without mapped
    /// doorbells: they sleep and wake per command, and would meet at the lock.
    pub fn watch(&self, poller: usize, waker: &Arc<PollerWaker>, doorbells: Doorbells) {
        let mut sleepers = self.shared.sleepers();
        sleepers.of.push(Sleeper { poller, waker: Arc::clone(waker), doorbells });
        sleepers.calm = 0;
        drop(sleepers);
        self.shared.someone_sleeps.notify_one();
    }

    /// The poller is awake. Also lets go of its tenants' memory.
    pub fn forget(&self, poller: usize) {
        let mut sleepers = self.shared.sleepers();
        sleepers.of.retain(|sleeper| sleeper.poller != poller);
        sleepers.calm = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_memory::Mapping;

    #[test]
    fn a_doorbell_that_moves_wakes_its_poller() {
        let page = Mapping::anonymous(4096).unwrap();
        let scanner = DoorbellScanner::start(Duration::from_millis(1)).unwrap();
        let waker = Arc::new(PollerWaker::new().unwrap());
        let cell = MappedU32::new(&page, 8).unwrap();
        for value in 1..20 {
            waker.prepare_to_sleep();
            scanner.watch(0, &waker, vec![(cell.clone(), value - 1)]);
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
