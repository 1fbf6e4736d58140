//! Whether pollers make progress: what the service manager's watchdog is fed with.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use io_model::Nanos;

/// In place of a time: it sleeps, or has ended its last iteration.
const AT_REST: u64 = u64::MAX;

/// When a poller began the iteration that it is in. It writes, anyone reads; on a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Pulse {
    poller: usize,
    begun_ns: AtomicU64,
}

impl Pulse {
    /// An iteration begins. One store.
    #[inline]
    pub fn beat(&self, now: Nanos) {
        self.begun_ns.store(now.0, Ordering::Relaxed);
    }

    /// From now on it sleeps, however long; or begins no other iteration.
    #[inline]
    pub fn rest(&self) {
        self.begun_ns.store(AT_REST, Ordering::Relaxed);
    }
}

/// A poller that does not get on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck {
    /// Its number.
    pub poller: usize,
    /// For how long its iteration has lasted.
    pub lasts: Nanos,
}

/// The pulses of all pollers. The lock guards the list: it is taken when a poller starts, and by who looks.
#[derive(Debug, Clone, Default)]
pub struct Pulses(Arc<Mutex<Vec<Weak<Pulse>>>>);

impl Pulses {
    /// That of a poller of that number, from its start until it drops it.
    pub fn add(&self, poller: usize) -> Arc<Pulse> {
        let pulse = Arc::new(Pulse { poller, begun_ns: AtomicU64::new(AT_REST) });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|pulse| pulse.strong_count() > 0);
        all.push(Arc::downgrade(&pulse));
        pulse
    }

    /// The poller whose iteration has lasted longest, if that is `limit` or more.
    pub fn stuck(&self, now: Nanos, limit: Nanos) -> Option<Stuck> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lasting = all.iter().filter_map(Weak::upgrade).filter_map(|pulse| {
            let begun_ns = pulse.begun_ns.load(Ordering::Relaxed);
            (begun_ns != AT_REST).then(|| Stuck { poller: pulse.poller, lasts: now - Nanos(begun_ns) })
        });
        lasting.max_by_key(|it| it.lasts).filter(|it| it.lasts >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_get_on_is_found_and_who_sleeps_is_not() {
        let (pulses, limit) = (Pulses::default(), Nanos(100));
        let (one, other) = (pulses.add(0), pulses.add(7));
        assert_eq!(pulses.stuck(Nanos(1000), limit), None, "neither has begun");
        one.beat(Nanos(1000));
        other.beat(Nanos(950));
        assert_eq!(pulses.stuck(Nanos(1049), limit), None);
        assert_eq!(pulses.stuck(Nanos(1050), limit), Some(Stuck { poller: 7, lasts: Nanos(100) }));
        // A look that is older than a beat, as threads have it.
        assert_eq!(pulses.stuck(Nanos(900), limit), None);
        other.rest();
        assert_eq!(pulses.stuck(Nanos(1050), limit), None);
        assert_eq!(pulses.stuck(Nanos(1100), limit), Some(Stuck { poller: 0, lasts: Nanos(100) }));
        drop(one);
        assert_eq!(pulses.stuck(Nanos(5000), limit), None, "its poller has ended");
    }
}
