//! Whether pollers make progress: what the service manager's watchdog is fed with.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use io_model::Nanos;
use poller::Iterations;

/// A poller that does not get on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck {
    /// Its number.
    pub poller: usize,
    /// For how long its iteration has lasted.
    pub lasts: Nanos,
}

/// All pollers of all drives. The lock guards the list: it is taken when a poller starts, and by who looks.
#[derive(Debug, Clone, Default)]
pub struct Pulses(Arc<Mutex<Vec<Weak<Iterations>>>>);

impl Pulses {
    /// One more, from its start until it drops its iterations.
    pub fn add(&self, poller: &Arc<Iterations>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|poller| poller.strong_count() > 0);
        all.push(Arc::downgrade(poller));
    }

    /// The poller whose iteration has lasted longest, if that is `limit` or more.
    pub fn stuck(&self, now: Nanos, limit: Nanos) -> Option<Stuck> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lasting = all
            .iter()
            .filter_map(Weak::upgrade)
            .filter_map(|it| Some(Stuck { poller: it.poller(), lasts: now - it.begun()? }));
        lasting.max_by_key(|it| it.lasts).filter(|it| it.lasts >= limit)
    }
}

#[cfg(test)]
mod tests {
    use poller::Inside;

    use super::*;

    #[test]
    fn who_does_not_get_on_is_found_and_who_sleeps_is_not() {
        let (pulses, limit) = (Pulses::default(), Nanos(100));
        let [one, other] = [0, 7].map(|poller| Arc::new(Iterations::new(poller, Arc::new(Inside::new(1, 1)))));
        [&one, &other].into_iter().for_each(|it| pulses.add(it));
        assert_eq!(pulses.stuck(Nanos(1000), limit), None, "neither has begun");
        one.begins(Nanos(1000));
        other.begins(Nanos(950));
        assert_eq!(pulses.stuck(Nanos(1049), limit), None);
        assert_eq!(pulses.stuck(Nanos(1050), limit), Some(Stuck { poller: 7, lasts: Nanos(100) }));
        // A look that is older than an iteration's begin, as threads have it.
        assert_eq!(pulses.stuck(Nanos(900), limit), None);
        other.falls_asleep();
        assert_eq!(pulses.stuck(Nanos(1050), limit), None);
        assert_eq!(pulses.stuck(Nanos(1100), limit), Some(Stuck { poller: 0, lasts: Nanos(100) }));
        drop(one);
        assert_eq!(pulses.stuck(Nanos(5000), limit), None, "its poller has ended");
    }
}
