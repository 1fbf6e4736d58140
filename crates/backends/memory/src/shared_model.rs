//! The one modelled drive behind all pollers' queues.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use arbitration::Arbitration;
use io_model::{QueuePriority, WrrWeights};
use ssd_model::{Drive, MAX_QUEUES, Profile, Request};

/// A command on its way into the drive: when, and the drive's queue.
pub(crate) type Pending = (u64, u16, Request);

/// A modelled drive, shared by pollers.
///
/// Pollers usually share no lock. But a real drive's controller is one machine that serializes all queues, so the
/// commands of one poller delay those of others. That machine is the value behind this mutex. Pollers only *try* to
/// lock it. A poller that finds it locked comes back at the next poll: the holder advances the drive for all, and no
/// poller ever sleeps here.
#[derive(Debug)]
pub(crate) struct SharedModel {
    state: Mutex<State>,
    /// When the drive has something to do next; `u64::MAX` when idle. Lets polls before that stay off the lock.
    next_event_ns: AtomicU64,
}

#[derive(Debug)]
struct State {
    drive: Drive,
    queues: Vec<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// The poller's flag: "something of yours finished". `None`: nobody's.
    owner: Option<Arc<AtomicBool>>,
    in_flight: u32,
    finished: VecDeque<u32>,
}

impl SharedModel {
    pub(crate) fn new(profile: Profile) -> Self {
        let queues = (0..MAX_QUEUES).map(|_| Queue::default()).collect();
        let state = Mutex::new(State { drive: Drive::new(profile, MAX_QUEUES), queues });
        Self { state, next_event_ns: AtomicU64::new(u64::MAX) }
    }

    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes `hwqs` neighbouring queues that nobody owns and where nothing is left in flight, and puts each into its
    /// class; returns the first one. Not for the polling path.
    pub(crate) fn claim(
        &self,
        hwqs: u16,
        depth: u32,
        owner: &Arc<AtomicBool>,
        class_of: impl Fn(u16) -> QueuePriority,
    ) -> Option<u16> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |queue: &Queue| queue.owner.is_none() && queue.in_flight == 0;
        let wanted = usize::from(hwqs.max(1));
        let first = state.queues.windows(wanted).position(|queues| queues.iter().all(free))?;
        let State { drive, queues } = &mut *state;
        for (hwq, queue) in queues.iter_mut().skip(first).take(usize::from(hwqs)).enumerate() {
            queue.owner = Some(Arc::clone(owner));
            queue.finished.reserve(depth as usize);
            // The drive has as many queues as this list.
            let _ = drive.set_class((first + hwq) as u16, class_of(hwq as u16));
        }
        Some(first as u16)
    }

    /// Makes the drive fetch by weighted round robin; the burst stays the drive's. Not for the polling path.
    pub(crate) fn set_weights(&self, weights: WrrWeights) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let burst = match state.drive.arbitration() {
            Arbitration::RoundRobin { burst } | Arbitration::WeightedRoundRobin { burst, .. } => burst,
            Arbitration::DeficitRoundRobin { .. } => 1,
        };
        state.drive.set_arbitration(Arbitration::WeightedRoundRobin { burst, weights });
    }

    /// Whether the drive fetches by weighted round robin. Not for the polling path.
    pub(crate) fn is_weighted(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(state.drive.arbitration(), Arbitration::WeightedRoundRobin { .. })
    }

    /// Gives queues back. What is in flight there ends unseen, in its own time.
    pub(crate) fn release(&self, first: u16, hwqs: u16) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for queue in state.queues.iter_mut().skip(usize::from(first)).take(usize::from(hwqs)) {
            queue.owner = None;
            queue.finished.clear();
        }
    }

    /// Submits and empties `pending`, or leaves it if another poller is at the drive.
    #[inline]
    pub(crate) fn submit(&self, pending: &mut Vec<Pending>) {
        let Some(mut state) = self.try_state() else { return };
        let State { drive, queues } = &mut *state;
        for (now_ns, hwq, request) in pending.drain(..) {
            if let Some(queue) = queues.get_mut(usize::from(hwq))
                && drive.submit(now_ns, hwq, request).is_ok()
            {
                queue.in_flight += 1;
            }
        }
        self.publish(&state);
    }

    /// Whether [`SharedModel::collect`] may find anything.
    #[inline]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_event_ns()
    }

    #[inline]
    pub(crate) fn next_event_ns(&self) -> u64 {
        // Relaxed: a hint. What it leads to is read under the lock.
        self.next_event_ns.load(Ordering::Relaxed)
    }

    /// Moves the drive on to `now_ns` and takes out the tags that finished in the caller's queues. `false`:
    /// another poller is at it.
    pub(crate) fn collect(&self, now_ns: u64, first: u16, hwqs: u16, tags: &mut Vec<u32>) -> bool {
        let Some(mut state) = self.try_state() else { return false };
        let State { drive, queues } = &mut *state;
        drive.poll(now_ns, &mut |hwq, tag, _| {
            let Some(queue) = queues.get_mut(usize::from(hwq)) else { return };
            queue.in_flight = queue.in_flight.saturating_sub(1);
            if let Some(owner) = &queue.owner {
                queue.finished.push_back(tag);
                owner.store(true, Ordering::Release);
            }
        });
        for queue in queues.iter_mut().skip(usize::from(first)).take(usize::from(hwqs)) {
            tags.extend(queue.finished.drain(..));
        }
        self.publish(&state);
        true
    }

    fn publish(&self, state: &State) {
        self.next_event_ns.store(state.drive.next_event().unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
