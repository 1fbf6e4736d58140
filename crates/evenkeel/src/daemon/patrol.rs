//! The night watch: looks at mapped doorbells for every poller that sleeps.
//!
//! A guest that stores into mapped memory wakes nobody. Each sleeping poller leaves a list of its doorbells
//! here; one thread looks at all of them every patrol interval and wakes the poller whose doorbell moved.
//! So an idle host pays for one short wake-up per interval, however many tenants it has, and nothing at all
//! while no client is attached.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guest_memory::MappedU32;

use super::doorman::Doorman;

/// Doorbells, each with the value that its poller last acted on.
pub type Doorbells = Vec<(MappedU32, u32)>;

struct Round {
    poller: usize,
    doorman: Arc<Doorman>,
    doorbells: Doorbells,
}

#[derive(Default)]
struct Shared {
    rounds: Mutex<Vec<Round>>,
    someone_sleeps: Condvar,
}

impl Shared {
    fn rounds(&self) -> MutexGuard<'_, Vec<Round>> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn walk(&self, period: Duration) {
        loop {
            let idle = |rounds: &mut Vec<Round>| rounds.is_empty();
            let rounds = self.someone_sleeps.wait_while(self.rounds(), idle).unwrap_or_else(PoisonError::into_inner);
            for round in rounds.iter() {
                if round.doorbells.iter().any(|(doorbell, seen)| doorbell.load() != *seen) {
                    round.doorman.wake();
                }
            }
            drop(rounds);
            std::thread::sleep(period);
        }
    }
}

/// Starts when the first poller sleeps; lives as long as the process.
#[derive(Clone)]
pub struct Patrol {
    shared: Arc<Shared>,
}

impl Patrol {
    /// A thread that looks every `period`.
    pub fn start(period: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let walker = Arc::clone(&shared);
        std::thread::Builder::new().name("patrol".into()).spawn(move || walker.walk(period))?;
        Ok(Self { shared })
    }

    /// Wakes `doorman` when one of these moves, until [`Patrol::forget`].
    pub fn watch(&self, poller: usize, doorman: &Arc<Doorman>, doorbells: Doorbells) {
        if !doorbells.is_empty() {
            self.shared.rounds().push(Round { poller, doorman: Arc::clone(doorman), doorbells });
            self.shared.someone_sleeps.notify_one();
        }
    }

    /// The poller is awake. Also lets go of its tenants' memory.
    pub fn forget(&self, poller: usize) {
        self.shared.rounds().retain(|round| round.poller != poller);
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
