//! Connection slots of the API, shared so that no process can keep others out.
//!
//! A process has at most twice as many slots as are free: alone 2/3 of them, and less beside others. So there is a slot
//! for a process that has none, until as many processes as there are slots hold one each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::Pid;
use tokio::sync::Notify;

/// All places.
pub struct Places {
    shares: Mutex<Shares>,
    freed: Notify,
}

struct Shares {
    free: usize,
    /// Of processes that have one.
    taken: HashMap<Pid, usize>,
}

/// A place, given back when this is dropped.
pub struct Place {
    places: Arc<Places>,
    process: Pid,
}

impl Places {
    /// This many slots, all free.
    pub fn new(count: usize) -> Arc<Self> {
        let shares = Shares { free: count, taken: HashMap::new() };
        Arc::new(Self { shares: Mutex::new(shares), freed: Notify::new() })
    }

    /// A place for a process, as soon as there is one that it may have.
    pub async fn take(self: &Arc<Self>, process: Pid) -> Place {
        loop {
            // Before the look: what is given back after it ends the wait.
            let freed = self.freed.notified();
            if let Some(place) = self.try_take(process) {
                return place;
            }
            freed.await;
        }
    }

    fn try_take(self: &Arc<Self>, process: Pid) -> Option<Place> {
        let mut shares = self.shares();
        let has = shares.taken.get(&process).copied().unwrap_or(0);
        if has >= 2 * shares.free {
            return None;
        }
        shares.free -= 1;
        shares.taken.insert(process, has + 1);
        Some(Place { places: Arc::clone(self), process })
    }

    fn shares(&self) -> MutexGuard<'_, Shares> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut shares = self.places.shares();
        shares.free += 1;
        if let Some(has) = shares.taken.get_mut(&self.process) {
            *has -= 1;
            if *has == 0 {
                shares.taken.remove(&self.process);
            }
        }
        drop(shares);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: i32) -> Pid {
        Pid::from_raw(id).unwrap()
    }

    #[test]
    fn no_process_takes_all_and_what_is_given_back_is_free() {
        let places = Places::new(64);
        let of = |id| std::iter::from_fn(|| places.try_take(process(id))).collect::<Vec<_>>();
        let greedy = of(1);
        assert_eq!(greedy.len(), 43);
        // Several greedy ones leave room too.
        let rest: Vec<Vec<Place>> = (2..8).map(of).collect();
        let counts: Vec<usize> = rest.iter().map(Vec::len).collect();
        assert_eq!(counts, [14, 5, 2, 0, 0, 0]);
        drop(greedy);
        assert_eq!(of(9).len(), 29);
        drop(rest);
        let shares = places.shares();
        assert_eq!((shares.free, shares.taken.len()), (64, 0));
    }
}
