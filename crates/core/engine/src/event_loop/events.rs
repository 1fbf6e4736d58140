//! What is going to happen, in the order of time.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// What may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A poller's kick happens.
    Flush {
        poller: u16,
    },
    Poll {
        poller: u16,
    },
    Vcpu {
        tenant: u16,
        vcpu: u16,
    },
    Timer {
        tenant: u16,
        thread: u32,
    },
    /// A poller lets go of the global mutex.
    Release,
    Interval,
    /// The measured time begins.
    Measure,
    /// The check for starved queues.
    Look,
    Fault {
        fault: u16,
    },
    FaultEnds {
        fault: u16,
    },
    /// A tenant comes, goes or gets other terms.
    Change {
        change: u32,
    },
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    at_ns: u64,
    sequence: u64,
    event: Event,
}

impl Entry {
    /// One number, so that a comparison takes no branch; no two entries share it.
    fn key(&self) -> u128 {
        u128::from(self.at_ns) << 64 | u128::from(self.sequence)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// This many of the soonest entries are kept sorted.
const NEAR: usize = 64;

/// Events by time; of several at one time, the one that was added first.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The soonest ones, the very next one last. Most events lead to another one a few places behind them: moving
    /// those few costs less than a heap does, which sifts through all its levels twice.
    near: Vec<Entry>,
    /// What comes after all of those.
    far: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
}

impl Events {
    pub(super) fn push(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        let entry = Entry { at_ns, sequence: self.sequence, event };
        if self.far.peek().is_some_and(|Reverse(first)| first.at_ns <= at_ns) {
            return self.far.push(Reverse(entry));
        }
        let place = self.near.partition_point(|other| other.at_ns > at_ns);
        self.near.insert(place, entry);
        if self.near.len() > NEAR {
            self.far.push(Reverse(self.near.remove(0)));
        }
    }

    /// When the next one happens; `u64::MAX`: there is none.
    pub(super) fn next_ns(&mut self) -> u64 {
        if self.near.is_empty() {
            self.near.extend((0..NEAR / 2).map_while(|_| self.far.pop()).map(|Reverse(entry)| entry));
            self.near.reverse();
        }
        self.near.last().map_or(u64::MAX, |entry| entry.at_ns)
    }

    /// The one that [`Events::next_ns`] told of.
    pub(super) fn take(&mut self) -> Option<Event> {
        self.near.pop().map(|entry| entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_then_of_arrival() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut events = Events::default();
        let mut expected = std::collections::BTreeMap::new();
        let mut now_ns = 0;
        for thread in 0..20_000_u32 {
            // Waves: from a handful to several times what is kept sorted, with many at one time.
            let few = thread / 1_000 % 2 == 0;
            let pops = if few { rng.u32(0..4) } else { rng.u32(0..2) };
            let at_ns = now_ns + rng.u64(0..100);
            events.push(at_ns, Event::Timer { tenant: 0, thread });
            expected.insert((at_ns, thread), ());
            for _ in 0..pops.min(expected.len() as u32) {
                let Some(((at_ns, thread), ())) = expected.pop_first() else { break };
                assert_eq!(events.next_ns(), at_ns);
                assert_eq!(events.take(), Some(Event::Timer { tenant: 0, thread }));
                now_ns = at_ns;
            }
        }
        while let Some(((at_ns, thread), ())) = expected.pop_first() {
            assert_eq!((events.next_ns(), events.take()), (at_ns, Some(Event::Timer { tenant: 0, thread })));
        }
        assert_eq!((events.next_ns(), events.take()), (u64::MAX, None));
    }
}
