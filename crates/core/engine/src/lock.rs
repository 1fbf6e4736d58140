//! Locks that CPUs wait for, in the order in which they ask.

use std::collections::VecDeque;

use crate::host::Contention;

/// A spinlock: how long everybody holds it is known when they ask.
///
/// A hand-over takes longer the more CPUs spin: each of them fetches the lock's cache line once more (Boyd-Wickizer et
/// al., "Non-scalable locks are dangerous", Linux Symposium 2012).
#[derive(Debug)]
pub(crate) struct Spinlock {
    costs: Contention,
    /// When the holder and the waiting threads are through.
    ends_ns: VecDeque<u64>,
}

impl Spinlock {
    pub(crate) fn new(costs: Contention) -> Self {
        Self { costs, ends_ns: VecDeque::new() }
    }

    /// Whether there is one.
    pub(crate) fn is_there(&self) -> bool {
        self.costs.hold_ns > 0
    }

    /// When a thread that takes the lock now is done.
    pub(crate) fn pass(&mut self, now_ns: u64) -> u64 {
        while self.ends_ns.front().is_some_and(|&end_ns| end_ns <= now_ns) {
            self.ends_ns.pop_front();
        }
        let waiting = self.ends_ns.len() as u64;
        let free_ns = self.ends_ns.back().map_or(now_ns, |&end_ns| end_ns.max(now_ns));
        let end_ns = free_ns + self.costs.hold_ns + waiting * self.costs.handover_ns;
        self.ends_ns.push_back(end_ns);
        end_ns
    }
}

/// The threads that may have the global mutex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    Vcpu { tenant: u16, vcpu: u16 },
    Poller(u16),
}

/// The virtual machine monitor's global mutex: waiters sleep, and the holder keeps it until it unlocks.
#[derive(Debug)]
pub(crate) struct Mutex {
    costs: Contention,
    is_held: bool,
    waiting: VecDeque<Holder>,
}

impl Mutex {
    pub(crate) fn new(costs: Contention) -> Self {
        Self { costs, is_held: false, waiting: VecDeque::new() }
    }

    /// Whether there is one.
    pub(crate) fn is_there(&self) -> bool {
        self.costs.hold_ns > 0
    }

    /// What an exit does while it holds it.
    pub(crate) fn hold_ns(&self) -> u64 {
        self.costs.hold_ns
    }

    /// Takes it if it is free, else waits. `true`: taken.
    pub(crate) fn ask(&mut self, holder: Holder) -> bool {
        if self.is_held {
            self.waiting.push_back(holder);
            return false;
        }
        self.is_held = true;
        true
    }

    /// Releases it. Returns the next holder, if any, and the cost of the hand-over: the more threads wait, the higher.
    pub(crate) fn release(&mut self) -> Option<(Holder, u64)> {
        let waiting = self.waiting.len() as u64;
        let next = self.waiting.pop_front();
        self.is_held = next.is_some();
        next.map(|holder| (holder, waiting * self.costs.handover_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Contention = Contention { hold_ns: 100, handover_ns: 10 };

    #[test]
    fn a_spinlock_slows_down_with_those_who_spin() {
        let mut lock = Spinlock::new(COSTS);
        // Alone; then behind one; then behind two; then alone again.
        assert_eq!([0, 0, 0, 500].map(|now_ns| lock.pass(now_ns)), [100, 210, 330, 600]);
        assert!(!Spinlock::new(Contention { hold_ns: 0, handover_ns: 0 }).is_there());
    }

    #[test]
    fn a_mutex_goes_to_who_asked_first() {
        let mut mutex = Mutex::new(COSTS);
        let vcpu = Holder::Vcpu { tenant: 0, vcpu: 3 };
        assert!(mutex.ask(Holder::Poller(0)));
        assert!(!mutex.ask(vcpu) && !mutex.ask(Holder::Poller(0)));
        assert_eq!(mutex.release(), Some((vcpu, 20)));
        assert_eq!(mutex.release(), Some((Holder::Poller(0), 10)));
        assert_eq!(mutex.release(), None);
        assert!(mutex.ask(vcpu), "free again");
    }
}
