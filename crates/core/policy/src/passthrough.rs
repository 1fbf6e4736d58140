//! Round robin without throttle: what MDev-NVMe does, and the yardstick for every other policy.

use io_model::{HwqId, Nanos, Op, VqId};

use crate::hwq_pool::HwqPool;
use crate::ready::{Links, List, NONE};
use crate::{Next, Policy, TenantReport, TenantSlot, Terms, VqSlot};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Detached,
    Idle,
    Ready,
    /// Its HWQ is full.
    Parked,
}

#[derive(Debug, Clone, Copy)]
struct Vq {
    state: State,
    backlog: u32,
}

/// One command from each backlogged VQ in turn. Each VQ has its HWQ from attach to detach, spread evenly;
/// a VQ is skipped only while its HWQ is full.
#[derive(Debug)]
pub struct Passthrough {
    pool: HwqPool,
    vqs: Vec<Vq>,
    links: Links,
    ready: List,
    /// VQs that wait for room, by HWQ.
    parked: Vec<List>,
    /// How many.
    waiting: u32,
}

impl Passthrough {
    /// Over `hwqs` HWQs (at least 1) that hold `hwq_depth` commands each.
    pub fn new(hwqs: u16, hwq_depth: u32) -> Self {
        let pool = HwqPool::new(0, hwqs, hwq_depth);
        let parked = vec![List::default(); usize::from(pool.len())];
        Self { pool, vqs: Vec::new(), links: Links::default(), ready: List::default(), parked, waiting: 0 }
    }

    fn vq(&mut self, slot: VqSlot) -> Option<&mut Vq> {
        self.vqs.get_mut(usize::from(slot.0)).filter(|vq| vq.state != State::Detached)
    }

    /// Takes a VQ out of whatever list it is in.
    fn rest(&mut self, slot: u16) {
        let hwq = self.pool.at(slot);
        match std::mem::replace(&mut self.vqs[usize::from(slot)].state, State::Idle) {
            State::Ready => {
                self.ready.remove(&mut self.links, slot);
                self.wake(hwq);
            }
            State::Parked => {
                self.parked[usize::from(hwq)].remove(&mut self.links, slot);
                self.waiting -= 1;
            }
            State::Idle | State::Detached => {}
        }
    }

    /// Lets one VQ that waits for this HWQ try again. Called whenever room came up or a VQ with room stopped to
    /// want it, so that room and a waiting VQ never stay apart.
    fn wake(&mut self, hwq: u16) {
        if self.parked[usize::from(hwq)].is_empty() || !self.pool.has_room(hwq, false) {
            return;
        }
        if let Some(slot) = self.parked[usize::from(hwq)].pop_front(&mut self.links) {
            self.waiting -= 1;
            self.vqs[usize::from(slot)].state = State::Ready;
            self.ready.push_back(&mut self.links, slot);
        }
    }

    /// One command left the VQ.
    fn took(&mut self, slot: VqSlot) {
        let Some(vq) = self.vq(slot) else { return };
        vq.backlog = vq.backlog.saturating_sub(1);
        match (vq.backlog, vq.state) {
            (0, _) => self.rest(slot.0),
            (_, State::Ready) => self.ready.rotate(&mut self.links, slot.0),
            _ => {}
        }
    }
}

impl Policy for Passthrough {
    fn attach(&mut self, slot: VqSlot, _: VqId, _: TenantSlot, _: &Terms, now: Nanos) {
        if slot.0 == NONE {
            return;
        }
        self.detach(slot, now);
        if self.vqs.len() <= usize::from(slot.0) {
            self.vqs.resize(usize::from(slot.0) + 1, Vq { state: State::Detached, backlog: 0 });
            self.links.grow(self.vqs.len());
        }
        self.vqs[usize::from(slot.0)] = Vq { state: State::Idle, backlog: 0 };
        self.pool.attach(slot.0, false, &mut Vec::new());
    }

    fn change_terms(&mut self, _: TenantSlot, _: &Terms, _: Nanos) {}

    fn forget(&mut self, _: TenantSlot) {}

    fn detach(&mut self, slot: VqSlot, _: Nanos) {
        if self.vq(slot).is_some() {
            self.rest(slot.0);
            self.vqs[usize::from(slot.0)].state = State::Detached;
            self.pool.detach(slot.0);
        }
    }

    #[inline]
    fn arrived(&mut self, slot: VqSlot, backlog: u32, _: Nanos) {
        let Some(vq) = self.vq(slot) else { return };
        vq.backlog = backlog;
        match (backlog, vq.state) {
            (0, _) => self.rest(slot.0),
            (_, State::Idle) => {
                vq.state = State::Ready;
                self.ready.push_back(&mut self.links, slot.0);
            }
            _ => {}
        }
    }

    #[inline]
    fn next(&mut self, _: Nanos) -> Next {
        while let Some(slot) = self.ready.front() {
            let hwq = self.pool.at(slot);
            if self.pool.has_room(hwq, false) {
                return Next::Send { vq: VqSlot(slot), hwq: HwqId(hwq) };
            }
            self.ready.remove(&mut self.links, slot);
            self.vqs[usize::from(slot)].state = State::Parked;
            self.parked[usize::from(hwq)].push_back(&mut self.links, slot);
            self.waiting += 1;
        }
        if self.waiting > 0 { Next::WaitUntil(Nanos::MAX) } else { Next::Idle }
    }

    #[inline]
    fn sent(&mut self, slot: VqSlot, hwq: HwqId, _: Op, _: u64, _: Nanos) {
        self.pool.sent(hwq);
        self.took(slot);
        if usize::from(hwq.0) < self.parked.len() {
            self.wake(hwq.0);
        }
    }

    fn refused(&mut self, slot: VqSlot, consumed: bool, _: Nanos) {
        if consumed {
            self.took(slot);
        } else if let Some(vq) = self.vq(slot) {
            vq.backlog = 0;
            self.rest(slot.0);
        }
    }

    #[inline]
    fn completed(&mut self, _: VqSlot, hwq: HwqId, _: TenantSlot, _: Op, _: u64, _: Nanos, _: Nanos) {
        self.pool.completed(hwq);
        if usize::from(hwq.0) < self.parked.len() {
            self.wake(hwq.0);
        }
    }

    fn interval(&mut self, _: &[TenantReport], _: Nanos) {}

    fn backlog_of(&self, slot: VqSlot) -> u32 {
        self.vqs.get(usize::from(slot.0)).map_or(0, |vq| vq.backlog)
    }

    fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        self.pool.hwq_of(slot)
    }
}

#[cfg(test)]
mod tests {
    use io_model::TenantId;

    use super::*;

    const T0: Nanos = Nanos(0);

    fn policy(hwqs: u16, depth: u32, vqs: u16) -> Passthrough {
        let mut policy = Passthrough::new(hwqs, depth);
        for slot in 0..vqs {
            let vq = VqId { tenant: TenantId(slot.into()), index: 1 };
            policy.attach(VqSlot(slot), vq, TenantSlot(slot), &Terms::default(), T0);
        }
        policy
    }

    fn send(policy: &mut Passthrough) -> Option<(u16, u16)> {
        let Next::Send { vq, hwq } = policy.next(T0) else { return None };
        policy.sent(vq, hwq, Op::Read, 4096, T0);
        Some((vq.0, hwq.0))
    }

    fn complete(policy: &mut Passthrough, hwq: u16) {
        policy.completed(VqSlot(0), HwqId(hwq), TenantSlot(0), Op::Read, 4096, T0, T0);
    }

    #[test]
    fn takes_one_command_from_each_in_turn() {
        let mut policy = policy(2, 64, 3);
        policy.arrived(VqSlot(0), 3, T0);
        policy.arrived(VqSlot(1), 1, T0);
        policy.arrived(VqSlot(2), 2, T0);
        let order: Vec<_> = std::iter::from_fn(|| send(&mut policy)).collect();
        assert_eq!(order, [(0, 0), (1, 1), (2, 0), (0, 0), (2, 0), (0, 0)]);
        assert_eq!(policy.next(T0), Next::Idle);
    }

    #[test]
    fn skips_only_full_queues_and_goes_on_when_there_is_room() {
        let mut policy = policy(2, 2, 4);
        (0..4).for_each(|slot| policy.arrived(VqSlot(slot), 10, T0));
        let order: Vec<_> = std::iter::from_fn(|| send(&mut policy)).collect();
        assert_eq!(order, [(0, 0), (1, 1), (2, 0), (3, 1)]);
        assert_eq!(policy.next(T0), Next::WaitUntil(Nanos::MAX));
        complete(&mut policy, 1);
        assert_eq!(send(&mut policy), Some((1, 1)));
        assert_eq!(send(&mut policy), None);
        complete(&mut policy, 1);
        assert_eq!(send(&mut policy), Some((3, 1)), "waiting VQs take turns");
    }

    #[test]
    fn room_is_not_lost_when_the_woken_vq_goes_away() {
        let mut policy = policy(1, 1, 3);
        (0..3).for_each(|slot| policy.arrived(VqSlot(slot), 2, T0));
        assert_eq!(send(&mut policy), Some((0, 0)));
        assert_eq!(policy.next(T0), Next::WaitUntil(Nanos::MAX));
        complete(&mut policy, 0);
        policy.refused(VqSlot(1), false, T0);
        policy.detach(VqSlot(2), T0);
        assert_eq!(send(&mut policy), Some((0, 0)));
    }

    #[test]
    fn refusals() {
        let mut policy = policy(1, 8, 2);
        policy.arrived(VqSlot(0), 2, T0);
        policy.arrived(VqSlot(1), 1, T0);
        policy.refused(VqSlot(0), true, T0);
        assert_eq!(send(&mut policy), Some((1, 0)));
        policy.refused(VqSlot(0), false, T0);
        assert_eq!(policy.next(T0), Next::Idle);
        policy.arrived(VqSlot(0), 1, T0);
        assert_eq!(send(&mut policy), Some((0, 0)));
    }
}
