//! The night watch: looks at mapped doorbells for every poller that sleeps.
//!
//! A guest that stores into mapped memory wakes nobody. Each sleeping poller leaves a list of its doorbells
//! here; one thread looks at all of them every patrol interval and wakes the poller whose doorbell moved.
//! So an idle host pays for one short wake-up per interval, however many tenants it has, and nothing at all
//! while no client is attached. After a second in which nobody woke or fell asleep the interval is four times
//! as long: on a virtual machine a bare wake-up costs 10 to 30 µs, and a thousand of them more than 1 % of a core.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guest_memory::MappedU32;

use crate::doorman::Doorman;

/// Doorbells, each with the value that its poller last acted on.
pub type Doorbells = Vec<(MappedU32, u32)>;

/// Looks without any change before they become rarer, and by how much.
const PATIENT_AFTER: u32 = 1000;
const PATIENT_FACTOR: u32 = 4;

struct Round {
    poller: usize,
    doorman: Arc<Doorman>,
    doorbells: Doorbells,
}

#[derive(Default)]
struct Rounds {
    of: Vec<Round>,
    /// Looks since somebody woke or fell asleep.
    calm: u32,
}

#[derive(Default)]
struct Shared {
    rounds: Mutex<Rounds>,
    someone_sleeps: Condvar,
}

impl Shared {
    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn walk(&self, period: Duration) {
        loop {
            let idle = |rounds: &mut Rounds| rounds.of.is_empty();
            let rounds = self.someone_sleeps.wait_while(self.rounds(), idle);
            let mut rounds = rounds.unwrap_or_else(PoisonError::into_inner);
            for round in &rounds.of {
                if round.doorbells.iter().any(|(doorbell, seen)| doorbell.load() != *seen) {
                    round.doorman.wake();
                }
            }
            rounds.calm = rounds.calm.saturating_add(1);
            let factor = if rounds.calm > PATIENT_AFTER { PATIENT_FACTOR } else { 1 };
            drop(rounds);
            std::thread::sleep(period * factor);
        }
    }
}

/// A handle to the thread, which lives as long as the process.
#[derive(Clone)]
pub struct Patrol {
    shared: Arc<Shared>,
}

impl Patrol {
    /// A thread that looks every `period`, at first.
    pub fn start(period: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let walker = Arc::clone(&shared);
        std::thread::Builder::new().name("patrol".into()).spawn(move || walker.walk(period))?;
        Ok(Self { shared })
    }

    /// Wakes `doorman` when one of these moves, until [`Patrol::forget`]. Not for pollers without mapped doorbells: they
    /// sleep and wake per command, and would meet at the lock.
    pub fn watch(&self, poller: usize, doorman: &Arc<Doorman>, doorbells: Doorbells) {
        let mut rounds = self.shared.rounds();
        rounds.of.push(Round { poller, doorman: Arc::clone(doorman), doorbells });
        rounds.calm = 0;
        drop(rounds);
        self.shared.someone_sleeps.notify_one();
    }

    /// The poller is awake. Also lets go of its tenants' memory.
    pub fn forget(&self, poller: usize) {
        let mut rounds = self.shared.rounds();
        rounds.of.retain(|round| round.poller != poller);
        rounds.calm = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_memory::Mapping;

    #[test]
    fn a_doorbell_that_moves_wakes_its_poller() {
        let page = Mapping::anonymous(4096).unwrap();
        let patrol = Patrol::start(Duration::from_millis(1)).unwrap();
        let doorman = Arc::new(Doorman::new().unwrap());
        let cell = MappedU32::new(&page, 8).unwrap();
        for value in 1..20 {
            doorman.lie_down();
            patrol.watch(0, &doorman, vec![(cell.clone(), value - 1)]);
            let guest = cell.clone();
            let thread = std::thread::spawn(move || guest.store(value));
            // Without a timeout: a doorbell that is missed would hang the test.
            doorman.sleep(None);
            patrol.forget(0);
            thread.join().unwrap();
        }
        drop(cell);
        assert_eq!(Arc::strong_count(&page), 1, "forgotten doorbells hold no memory");
    }
}
