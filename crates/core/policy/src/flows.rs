//! VQs with work, grouped into flows, and the HWQs that they wait for. All policies but LPNS use this.
//!
//! A flow is a tenant, or a single VQ in a policy that knows no tenants. The VQs of a flow take turns. The policy
//! decides through [`Turns`] which flow goes next.
//!
//! A VQ whose HWQ is full is parked there. Room wakes one VQ, which passes on the room that it does not use, so room
//! and a waiting VQ never coexist. Every operation is O(1), and a command causes a bounded number of them.

mod asked;
mod parked;

use io_model::{HwqId, Nanos, QueuePriority};

use self::asked::Told;
use self::parked::Parked;
use crate::hwq_pool::HwqPool;
use crate::ready::{Links, List, NONE};
use crate::window::{Claim, Window};
use crate::{Next, TenantSlot, Terms, VqSlot};

/// Whether a flow could send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Has no commands.
    Idle,
    /// Has commands, but each HWQ that was tried is full.
    Blocked,
    /// Could send.
    Ready,
}

/// The order among flows.
pub trait Turns {
    /// Some flows [go first](Self::goes_first): they must not wait for room that is kept for others.
    const SOME_GO_FIRST: bool = false;

    /// Makes room for this flow, which is not ready, and sets its tenant's terms.
    fn attach(&mut self, flow: u16, terms: &Terms);

    /// The tenant of an idle flow left. Forgets its state. The flow may never have been attached.
    fn forget(&mut self, _flow: u16) {}

    /// How this flow counts when pollers split what may be in flight.
    fn claim(&self, _flow: u16) -> Claim {
        Claim::Weight(1.0)
    }

    /// The flow's standing changed.
    fn moved(&mut self, flow: u16, from: Standing, to: Standing);

    /// Whether the policy holds a ready flow back now.
    fn holds(&self, _flow: u16) -> bool {
        false
    }

    /// Whether the flow's VQs go before others that wait for the same HWQ.
    fn goes_first(&self, _flow: u16) -> bool {
        false
    }

    /// After this many commands to an HWQ, its next room is offered to a flow that does not go first.
    fn goes_first_times(&self) -> u32 {
        u32::MAX
    }

    /// The length of the flow's turn among those that don't go first at the same HWQ: the larger its weight, the
    /// shorter.
    fn turn(&self, _flow: u16) -> u64 {
        1
    }

    /// A full HWQ has room for a VQ of this flow. Returns whether the VQ takes it, before the flows that go first.
    ///
    /// `offers`: the number of offers at this HWQ since a flow last took one, including this one.
    fn is_due(&mut self, _flow: u16, _offers: u32) -> bool {
        false
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Detached,
    Idle,
    Ready,
    Parked,
}

#[derive(Debug, Clone, Copy)]
struct Vq {
    state: State,
    /// Parked: whether among those that go first.
    first: bool,
    /// Parked: since when, as a number that grows and wraps.
    since: u32,
    /// The priority that its client asked for.
    asked: QueuePriority,
    tenant: u16,
    flow: u16,
    /// Parked: the HWQ that it waits for. Ready: the HWQ whose room it was woken for, if any.
    hwq: u16,
    /// How often it was woken for room that others then took, since it was last served.
    lost: u8,
    /// Ready: the room that it was woken for is reserved for it.
    is_kept: bool,
    /// Its turn among those that don't go first: the lowest is offered room next.
    turn: u64,
    backlog: u32,
}

/// After losing room this often, room is reserved for a VQ: cycles repeat, and one VQ may be too late in each.
const KEPT_AFTER: u8 = 4;

const NO_VQ: Vq = Vq {
    state: State::Detached,
    first: false,
    since: 0,
    asked: QueuePriority::Medium,
    tenant: NONE,
    flow: NONE,
    hwq: NONE,
    lost: 0,
    is_kept: false,
    turn: 0,
    backlog: 0,
};

impl Vq {
    /// Others took the room that it was woken for.
    fn lose(&mut self) {
        self.lost = self.lost.saturating_add(1);
    }
}

const NO_FLOW: Flow =
    Flow { standing: Standing::Idle, woken: List::EMPTY, ready: List::EMPTY, backlogged: 0, served: 0 };

#[derive(Debug, Clone, Copy)]
struct Flow {
    standing: Standing,
    /// VQs woken for room go before the other ready ones. Empty while the policy holds the flow back.
    woken: List,
    ready: List,
    /// VQs with a backlog, ready or parked.
    backlogged: u16,
    /// Work done for it; wraps.
    served: u32,
}

/// The VQs of one poller.
#[derive(Debug)]
pub struct Flows<T> {
    /// The order among flows.
    pub turns: T,
    pool: HwqPool,
    vqs: Vec<Vq>,
    links: Links,
    flows: Vec<Flow>,
    /// By flow.
    told: Vec<Told>,
    /// What may be in flight in all.
    pub(crate) window: Window,
    /// By HWQ.
    parked: Vec<Parked>,
    /// Number of times that a VQ was parked; wraps.
    parkings: u32,
    /// VQs with a backlog.
    backlogged: u32,
    /// Commands in flight.
    in_flight: u32,
}

impl<T: Turns> Flows<T> {
    /// Creates flows over `hwqs` HWQs (at least 1) that hold `depth` commands each.
    pub fn new(turns: T, hwqs: u16, depth: u32) -> Self {
        let pool = HwqPool::new(0, hwqs, depth);
        let parked = vec![Parked::default(); usize::from(pool.len())];
        let (vqs, links, flows, told) = (Vec::new(), Links::default(), Vec::new(), Vec::new());
        let window = Window::unlimited();
        Self { turns, pool, vqs, links, flows, told, window, parked, parkings: 0, backlogged: 0, in_flight: 0 }
    }

    /// Limits what may be in flight at all pollers together: a number of commands, or their cost.
    pub fn within(self, all: u64) -> Self {
        Self { window: Window::new(all), ..self }
    }

    pub(crate) fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        self.pool.hwq_of(slot)
    }

    /// Whether a flow is ready.
    #[inline]
    pub fn is_ready(&self, flow: u16) -> bool {
        self.flows.get(usize::from(flow)).is_some_and(|flow| flow.standing == Standing::Ready)
    }

    /// Whether any VQ has commands.
    pub fn any_backlog(&self) -> bool {
        self.backlogged > 0
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Whether an HWQ (`0..hwqs`) has room.
    #[inline]
    pub(crate) fn has_room(&self, hwq: u16) -> bool {
        self.pool.has_room(hwq, false)
    }

    /// Attaches a VQ of a tenant to `flow`. Slots from 65535 on don't exist and are ignored.
    pub(crate) fn attach(&mut self, slot: VqSlot, tenant: TenantSlot, flow: u16, terms: &Terms) {
        if slot.0 == NONE || tenant.0 == NONE || flow == NONE {
            return;
        }
        self.detach(slot);
        if self.vqs.len() <= usize::from(slot.0) {
            self.vqs.resize(usize::from(slot.0) + 1, NO_VQ);
            self.links.grow(self.vqs.len());
        }
        self.make_room(flow);
        self.tell(flow, terms);
        self.vqs[usize::from(slot.0)] = Vq { state: State::Idle, tenant: tenant.0, flow, ..NO_VQ };
        self.pool.attach(slot.0, false, &mut Vec::new());
    }

    fn make_room(&mut self, flow: u16) {
        if self.flows.len() <= usize::from(flow) {
            self.flows.resize(usize::from(flow) + 1, NO_FLOW);
            self.told.resize(self.flows.len(), Told::default());
        }
    }

    /// Passes a flow's terms to the policy. They decide on the list that the flow belongs to.
    fn tell(&mut self, flow: u16, terms: &Terms) {
        let standing = self.flows[usize::from(flow)].standing;
        if standing == Standing::Idle {
            return self.turns.attach(flow, terms);
        }
        self.turns.moved(flow, standing, Standing::Idle);
        self.turns.attach(flow, terms);
        self.turns.moved(flow, Standing::Idle, standing);
    }

    /// The terms of a VQ's flow changed.
    pub(crate) fn retune(&mut self, slot: VqSlot, terms: &Terms) {
        let Some(flow) = self.flow_of(slot) else { return };
        self.tell(flow, terms);
        let goes_first = self.turns.goes_first(flow);
        let Vq { state, first, hwq, .. } = self.vqs[usize::from(slot.0)];
        if state == State::Parked && first != goes_first {
            self.parked[usize::from(hwq)].list(first).remove(&mut self.links, slot.0);
            self.parked[usize::from(hwq)].list(goes_first).push_back(&mut self.links, slot.0);
            self.vqs[usize::from(slot.0)].first = goes_first;
        }
    }

    /// Moves a VQ with its backlog to another flow, which the policy knows.
    pub(crate) fn move_to(&mut self, slot: VqSlot, flow: u16) {
        if self.flow_of(slot).is_none_or(|from| from == flow) {
            return;
        }
        let backlog = self.vqs[usize::from(slot.0)].backlog;
        self.rest(slot.0);
        self.make_room(flow);
        self.vqs[usize::from(slot.0)].flow = flow;
        self.arrived(slot, backlog);
    }

    /// All slots that were ever attached are below this.
    pub(crate) fn slots(&self) -> u16 {
        self.vqs.len() as u16
    }

    /// The tenant of an attached VQ.
    pub(crate) fn tenant_of(&self, slot: VqSlot) -> Option<TenantSlot> {
        let vq = self.vqs.get(usize::from(slot.0)).filter(|vq| vq.state != State::Detached)?;
        Some(TenantSlot(vq.tenant))
    }

    /// The commands that a VQ is known to have.
    pub(crate) fn backlog_of(&self, slot: VqSlot) -> u32 {
        self.vqs.get(usize::from(slot.0)).map_or(0, |vq| vq.backlog)
    }

    /// The priority that the client of an attached VQ asked for.
    pub(crate) fn asked_by(&self, slot: VqSlot) -> QueuePriority {
        self.vqs[usize::from(slot.0)].asked
    }

    pub(crate) fn set_asked(&mut self, slot: VqSlot, priority: QueuePriority) {
        self.vqs[usize::from(slot.0)].asked = priority;
    }

    pub(crate) fn detach(&mut self, slot: VqSlot) {
        if self.flow_of(slot).is_some() {
            self.rest(slot.0);
            self.vqs[usize::from(slot.0)] = NO_VQ;
            self.pool.detach(slot.0);
        }
    }

    /// The flow of an attached VQ.
    #[inline]
    pub fn flow_of(&self, slot: VqSlot) -> Option<u16> {
        let vq = self.vqs.get(usize::from(slot.0)).filter(|vq| vq.state != State::Detached)?;
        Some(vq.flow)
    }

    #[inline]
    pub(crate) fn arrived(&mut self, slot: VqSlot, backlog: u32) {
        if self.flow_of(slot).is_none() {
            return;
        }
        let vq = &mut self.vqs[usize::from(slot.0)];
        vq.backlog = backlog;
        match (vq.state, backlog) {
            (State::Idle, 1..) => {
                let flow = vq.flow;
                self.backlogged += 1;
                self.flows[usize::from(flow)].backlogged += 1;
                self.ready(slot.0, NONE, false);
            }
            (_, 0) => self.rest(slot.0),
            _ => {}
        }
    }

    /// The flow's next VQ whose HWQ has room. VQs without room are parked; a flow with none left is no longer ready.
    #[inline]
    pub(crate) fn pick(&mut self, flow: u16) -> Option<Next> {
        self.pick_at(flow, Self::bound_to)
    }

    /// Like [`next_by`](Self::next_by), for a window that counts commands.
    #[inline]
    pub fn next_within(&mut self, now: Nanos, front: impl Fn(&mut T) -> Option<u16>) -> Next {
        if self.any_backlog() && !self.window.has_room(self.in_flight.into(), now) {
            return self.window.wait();
        }
        self.next_by(front)
    }

    /// What to send next. `front` returns the flow whose turn it is. A flow whose HWQs are all full is no longer ready
    /// after `pick`, so `front` does not return it again.
    #[inline]
    pub fn next_by(&mut self, front: impl Fn(&mut T) -> Option<u16>) -> Next {
        if !self.any_backlog() {
            return Next::Idle;
        }
        while let Some(flow) = front(&mut self.turns) {
            if let Some(send) = self.pick(flow) {
                return send;
            }
        }
        // The HWQs are full: commands are in flight, and one will complete.
        Next::WaitUntil(Nanos::MAX)
    }

    /// The HWQ (`0..hwqs`) of an attached slot.
    #[inline]
    pub(crate) fn bound_to(&self, slot: u16) -> u16 {
        self.pool.at(slot)
    }

    /// The next command of a flow, where the policy chooses the HWQ (`0..hwqs`) of each slot.
    #[inline(always)] // As a call it costs `fair` 6 ns: what it returns is written in pieces and read at once.
    pub fn pick_at(&mut self, flow: u16, hwq_of: impl Fn(&Self, u16) -> u16) -> Option<Next> {
        while let Some(slot) = self.front_of(flow) {
            let hwq = hwq_of(self, slot);
            if self.pool.has_room(hwq, false) || self.is_kept(slot, hwq) {
                return Some(Next::Send { vq: VqSlot(slot), hwq: HwqId(hwq) });
            }
            self.park(slot, hwq);
        }
        None
    }

    /// Whether room at this HWQ is reserved for the VQ.
    #[cold] // Asked where an HWQ is full.
    fn is_kept(&self, slot: u16, hwq: u16) -> bool {
        let vq = &self.vqs[usize::from(slot)];
        vq.is_kept && vq.hwq == hwq
    }

    #[inline]
    fn front_of(&self, flow: u16) -> Option<u16> {
        let flow = &self.flows[usize::from(flow)];
        flow.woken.front().or(flow.ready.front())
    }

    /// The VQ's command was sent.
    #[inline]
    pub(crate) fn sent(&mut self, slot: VqSlot, hwq: HwqId) {
        self.in_flight += 1;
        self.pool.sent(hwq);
        if let Some(parked) = self.parked.get_mut(usize::from(hwq.0)) {
            parked.passed = parked.passed.saturating_add(1);
        }
        self.took(slot);
        self.wake(hwq.0);
    }

    /// There was nothing to send.
    pub(crate) fn refused(&mut self, slot: VqSlot, consumed: bool) {
        if consumed {
            self.took(slot);
        } else {
            self.arrived(slot, 0);
        }
    }

    #[inline]
    pub(crate) fn completed(&mut self, hwq: HwqId) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.pool.completed(hwq);
        self.wake(hwq.0);
    }

    /// The policy holds a ready flow back: room that its VQs were woken for goes to others.
    fn pass_on(&mut self, flow: u16) {
        while let Some(slot) = self.flows[usize::from(flow)].woken.front() {
            let hwq = self.move_to_back(slot);
            self.vqs[usize::from(slot)].lose();
            self.wake(hwq);
        }
    }

    /// Puts a ready VQ behind all others of its flow. Returns the HWQ whose room it was woken for.
    #[inline]
    fn move_to_back(&mut self, slot: u16) -> u16 {
        let vq = &mut self.vqs[usize::from(slot)];
        let woken_for = std::mem::replace(&mut vq.hwq, NONE);
        let flow = &mut self.flows[usize::from(vq.flow)];
        if woken_for == NONE {
            flow.ready.rotate(&mut self.links, slot);
        } else {
            flow.woken.remove(&mut self.links, slot);
            flow.ready.push_back(&mut self.links, slot);
            self.give_up_room(slot, woken_for);
        }
        woken_for
    }

    /// Takes a ready VQ out of its list. Returns the HWQ whose room it was woken for.
    #[inline]
    fn unlist(&mut self, slot: u16) -> u16 {
        let vq = &mut self.vqs[usize::from(slot)];
        let woken_for = std::mem::replace(&mut vq.hwq, NONE);
        let flow = &mut self.flows[usize::from(vq.flow)];
        let list = if woken_for == NONE { &mut flow.ready } else { &mut flow.woken };
        list.remove(&mut self.links, slot);
        self.give_up_room(slot, woken_for);
        woken_for
    }

    /// Releases the room that is reserved for a VQ.
    #[inline]
    fn give_up_room(&mut self, slot: u16, hwq: u16) {
        if self.vqs[usize::from(slot)].is_kept {
            self.vqs[usize::from(slot)].is_kept = false;
            self.pool.completed(HwqId(hwq));
        }
    }

    /// A command left the VQ: the flow's next VQ has its turn.
    fn took(&mut self, slot: VqSlot) {
        let Some(flow) = self.flow_of(slot) else { return };
        let vq = &mut self.vqs[usize::from(slot.0)];
        (vq.backlog, vq.lost) = (vq.backlog.saturating_sub(1), 0);
        match (vq.backlog, vq.state) {
            (0, _) => self.rest(slot.0),
            (_, State::Ready) => {
                let woken_for = self.move_to_back(slot.0);
                self.wake(woken_for);
            }
            _ => {}
        }
        if self.turns.holds(flow) {
            self.pass_on(flow);
        }
    }

    /// Takes a VQ out of its list.
    fn rest(&mut self, slot: u16) {
        let Vq { state, flow, hwq, first, .. } = self.vqs[usize::from(slot)];
        match state {
            State::Ready => _ = self.unlist(slot),
            State::Parked => self.parked[usize::from(hwq)].list(first).remove(&mut self.links, slot),
            State::Idle | State::Detached => return,
        }
        let vq = &mut self.vqs[usize::from(slot)];
        (vq.state, vq.hwq, vq.lost) = (State::Idle, NONE, 0);
        self.backlogged -= 1;
        self.flows[usize::from(flow)].backlogged -= 1;
        self.settle(flow);
        if state == State::Ready {
            self.wake(hwq);
        }
    }

    #[inline(never)] // Seldom, and none of its callers' business.
    fn park(&mut self, slot: u16, hwq: u16) {
        let woken_for = self.unlist(slot);
        let vq = &mut self.vqs[usize::from(slot)];
        if woken_for != NONE {
            vq.lose();
        }
        let flow = vq.flow;
        (vq.state, vq.hwq, vq.first) = (State::Parked, hwq, self.turns.goes_first(flow));
        let Vq { first, since, lost, .. } = *vq;
        let Self { parked, vqs, links, .. } = self;
        let parked = &mut parked[usize::from(hwq)];
        let (now, list) = (parked.turn, parked.list(first));
        if lost > 0 {
            // Others took the room that it was woken for, so it keeps its place. All before it were woken too.
            list.insert_where(links, slot, |other| vqs[usize::from(other)].since.wrapping_sub(since) as i32 > 0);
        } else {
            self.parkings = self.parkings.wrapping_add(1);
            let vq = &mut vqs[usize::from(slot)];
            vq.since = self.parkings;
            // A VQ can't save up turns that it did not use.
            vq.turn = vq.turn.max(now);
            list.push_back(links, slot);
        }
        self.settle(flow);
        self.wake(woken_for);
    }

    /// Puts a VQ with a backlog into its flow's list. `is_next`: before all others.
    fn ready(&mut self, slot: u16, woken_for: u16, is_next: bool) {
        let vq = &mut self.vqs[usize::from(slot)];
        (vq.state, vq.hwq) = (State::Ready, woken_for);
        let flow = vq.flow;
        let state = &mut self.flows[usize::from(flow)];
        let list = if woken_for == NONE { &mut state.ready } else { &mut state.woken };
        if is_next {
            list.push_front(&mut self.links, slot);
        } else {
            list.push_back(&mut self.links, slot);
        }
        self.settle(flow);
    }

    /// Wakes VQs that wait for this HWQ, up to the first that may go. Called when room comes up, and when a VQ did not
    /// use the room that it was woken for.
    #[inline]
    fn wake(&mut self, hwq: u16) {
        if self.parked.get(usize::from(hwq)).is_some_and(|parked| !parked.is_empty()) {
            self.wake_parked(hwq);
        }
    }

    #[inline(never)] // Seldom, and none of its callers' business.
    fn wake_parked(&mut self, hwq: u16) {
        if !self.pool.has_room(hwq, false) {
            return;
        }
        loop {
            let times = self.turns.goes_first_times();
            let Self { parked, links, vqs, turns, .. } = self;
            let parked = &mut parked[usize::from(hwq)];
            let offered = parked.offer(times, links, |slot| vqs[usize::from(slot)].turn);
            let due = offered.filter(|slot| turns.is_due(vqs[usize::from(*slot)].flow, parked.offers));
            if let Some(slot) = due {
                let vq = &mut vqs[usize::from(slot)];
                parked.others.remove(links, slot);
                (parked.offers, parked.turn) = (0, vq.turn);
                vq.turn += turns.turn(vq.flow);
            }
            let Some(slot) = due.or_else(|| parked.pop(links)) else { return };
            let Vq { flow, lost, .. } = self.vqs[usize::from(slot)];
            self.ready(slot, hwq, due.is_some());
            if !self.turns.holds(flow) {
                if lost >= KEPT_AFTER && !T::SOME_GO_FIRST {
                    self.vqs[usize::from(slot)].is_kept = true;
                    self.pool.sent(HwqId(hwq));
                }
                return;
            }
            self.move_to_back(slot);
            self.vqs[usize::from(slot)].lose();
        }
    }

    /// Tells the policy if the flow's standing changed.
    fn settle(&mut self, flow: u16) {
        let state = &mut self.flows[usize::from(flow)];
        let now = match (state.woken.is_empty() && state.ready.is_empty(), state.backlogged) {
            (false, _) => Standing::Ready,
            (true, 1..) => Standing::Blocked,
            (true, 0) => Standing::Idle,
        };
        let before = std::mem::replace(&mut state.standing, now);
        if before != now {
            self.turns.moved(flow, before, now);
        }
    }
}
