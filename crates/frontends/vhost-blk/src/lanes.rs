//! Requests by the priority that each carries: `ioprio` in its header, where Linux' driver puts that of the process
//! (`ionice`).
//!
//! A request is taken off its ring, in the ring's order, into the lane of its priority, and each lane is a VQ: so the
//! policy chooses among priorities, and within one the ring's order stays. Only heads are kept, at most as many as the
//! ring has descriptors; the request is still read when it is fetched. The log has it from here on, so the next process
//! does it too.

use std::collections::VecDeque;

use io_model::QueuePriority;

/// The priorities that a request can have; nothing in it makes it urgent.
const LANES: [QueuePriority; 3] = [QueuePriority::High, QueuePriority::Medium, QueuePriority::Low];

/// The most virtqueues of a disk whose requests go by priority: three VQs each, of the 128 that a tenant can have.
pub const MAX_QUEUES_BY_PRIORITY: u16 = 42;

/// A virtqueue and which of its lanes, by its VQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane {
    pub queue: u16,
    pub vq: u16,
}

impl Lane {
    /// The one that a virtqueue without priorities has.
    pub fn only(queue: u16) -> Self {
        Self { queue, vq: 1 + queue }
    }

    /// By its VQ, which is not 0. `by_priority`: virtqueues have three.
    #[inline]
    pub fn of_vq(vq: u16, by_priority: bool) -> Option<Self> {
        let from_0 = vq.checked_sub(1)?;
        // A branch: the division is not free, and most disks have no priorities.
        Some(if by_priority { Self::of_three(vq, from_0) } else { Self { queue: from_0, vq } })
    }

    #[cold]
    fn of_three(vq: u16, from_0: u16) -> Self {
        Self { queue: from_0 % MAX_QUEUES_BY_PRIORITY, vq }
    }

    /// Which of the virtqueue's.
    fn at(self) -> usize {
        usize::from(self.vq.saturating_sub(1) / MAX_QUEUES_BY_PRIORITY)
    }

    /// What it counts for.
    pub fn priority(self) -> QueuePriority {
        LANES.get(self.at()).copied().unwrap_or(QueuePriority::Medium)
    }

    /// All VQs of a virtqueue, a bit each.
    #[inline]
    pub fn bits(queue: u16, by_priority: bool) -> u128 {
        const OF_THREE: u128 = 1 | 1 << MAX_QUEUES_BY_PRIORITY | 1 << (2 * MAX_QUEUES_BY_PRIORITY);
        (if by_priority { OF_THREE } else { 1 }) << (1 + queue)
    }
}

/// The requests of a virtqueue that wait in its lanes.
#[derive(Debug)]
pub(crate) struct Waiting([VecDeque<u16>; LANES.len()]);

impl Waiting {
    /// None yet, and room for `size` in each lane, so that taking one never allocates.
    pub fn new(size: u16) -> Self {
        Self(LANES.map(|_| VecDeque::with_capacity(size.into())))
    }

    /// Requests in all lanes.
    pub fn len(&self) -> usize {
        self.0.iter().map(VecDeque::len).sum()
    }

    /// Requests in one lane.
    #[inline]
    pub fn in_lane(&self, lane: Lane) -> u32 {
        self.0.get(lane.at()).map_or(0, |heads| heads.len() as u32)
    }

    /// The next one of a lane.
    #[inline]
    pub fn first(&self, lane: Lane) -> Option<u16> {
        self.0.get(lane.at())?.front().copied()
    }

    /// It is fetched.
    #[inline]
    pub fn pop(&mut self, lane: Lane) {
        if let Some(heads) = self.0.get_mut(lane.at()) {
            heads.pop_front();
        }
    }

    /// One more, of a request with that `ioprio`.
    #[inline]
    pub fn put(&mut self, head: u16, ioprio: u32) {
        self.0[lane_of(ioprio)].push_back(head);
    }
}

/// Linux' classes of `ioprio_set(2)`, in the bits above the level: none and best-effort are medium, as in all front
/// ends.
#[inline]
fn lane_of(ioprio: u32) -> usize {
    const CLASS_SHIFT: u32 = 13;
    const CLASS_MASK: u32 = 0b111;
    const REALTIME: u32 = 1;
    const IDLE: u32 = 3;
    match ioprio >> CLASS_SHIFT & CLASS_MASK {
        REALTIME => 0,
        IDLE => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vq_is_one_lane_of_one_virtqueue() {
        for by_priority in [false, true] {
            let queues = if by_priority { MAX_QUEUES_BY_PRIORITY } else { crate::MAX_QUEUES };
            let mut seen = 0_u128;
            for queue in 0..queues {
                let bits = Lane::bits(queue, by_priority);
                assert_eq!(seen & bits, 0, "{queue}");
                seen |= bits;
                for vq in (0..128).filter(|vq| bits >> vq & 1 == 1) {
                    let lane = Lane::of_vq(vq, by_priority).expect("not 0");
                    assert_eq!((lane.queue, lane.vq), (queue, vq));
                }
            }
            assert_eq!(seen & 1, 0, "VQ 0 is the flush");
        }
        assert_eq!(Lane::of_vq(0, true), None);
    }

    #[test]
    fn a_process_priority_has_its_lane() {
        // With levels; 4 to 7 are no classes yet.
        for (ioprio, lane) in [(0, 1), (1 << 13, 0), (1 << 13 | 7, 0), (2 << 13 | 4, 1), (3 << 13, 2), (7 << 13, 1)] {
            assert_eq!(lane_of(ioprio), lane, "{ioprio:#x}");
        }
        assert_eq!(lane_of(u32::MAX), 1);
    }
}
