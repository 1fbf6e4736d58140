//! The pool of hardware queues: exclusive ones (1-1) that carry one VQ, shared ones (1-N) for the rest.
//!
//! Exclusive queues come first (`0..exclusive`). A guaranteed VQ has one as its *home* while there are
//! enough; homes of idle guaranteed VQs and exclusive queues that are nobody's home are lent to the busiest
//! best-effort VQs, anew every period. Every VQ is bound to exactly one queue at any time, so it can always send
//! on: while an exclusive queue still carries its last user's commands, its next user sends through a shared
//! one (its backup), and moves over when the last of them has completed. Both complete into the same VQ, since a
//! command carries its origin with it.
//!
//! Where the drive's arbitration prefers some exclusive queues ([`keeping`](HwqPool::keeping)), those are homes alone
//! and never lent: a queue has its class from its creation on, and best effort would be served as if it were
//! guaranteed. Such a poller lends the other exclusive queues only.

use io_model::HwqId;

use crate::ready::NONE;
use crate::{Lending, VqSlot};

/// How much a VQ wants an exclusive queue; see [`HwqPool::schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// Guaranteed: at once and always.
    Home,
    /// Guaranteed and idle for the last period: its home may be lent.
    Idle,
    /// Best effort, with this backlog.
    Backlog(u32),
}

/// A VQ whose new commands go elsewhere from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) slot: u16,
    /// The queue that they went to.
    pub(crate) from: u16,
}

#[derive(Debug, Clone, Copy)]
struct Hwq {
    in_flight: u32,
    /// VQs whose new commands go here.
    bound: u16,
    /// The VQ that an exclusive queue belongs to now.
    owner: u16,
    /// The VQ that gets it once it is empty.
    incoming: u16,
    /// The guaranteed VQ whose home it is.
    home_of: u16,
}

#[derive(Debug, Clone, Copy)]
struct Binding {
    /// Where new commands go.
    hwq: u16,
    home: u16,
    /// The exclusive queue that it waits for.
    awaited: u16,
    guaranteed: bool,
    attached: bool,
}

const UNBOUND: Binding = Binding { hwq: NONE, home: NONE, awaited: NONE, guaranteed: false, attached: false };

/// The queues of one poller and who sends over which.
#[derive(Debug)]
pub(crate) struct HwqPool {
    hwqs: Vec<Hwq>,
    bindings: Vec<Binding>,
    exclusive: u16,
    /// The number of these, from the first on, that are never lent.
    kept: u16,
    depth: u32,
    /// Room in each shared queue that best effort leaves to guaranteed VQs on their backup.
    reserve: u32,
    switches: u64,
    lending: Lending,
    /// Where the next turn begins.
    turn: u16,
    /// Scratch of `schedule`: best-effort VQs by backlog.
    order: Vec<(u32, bool, u16)>,
}

impl HwqPool {
    /// At least one queue is shared, and there is at least one.
    pub(crate) fn new(exclusive: u16, shared: u16, depth: u32) -> Self {
        let total = exclusive.saturating_add(shared).clamp(1, NONE - 1);
        let exclusive = exclusive.min(total - 1);
        let depth = depth.max(1);
        let reserve = if exclusive == 0 { 0 } else { (depth / 8).max(1).min(depth - 1) };
        let hwq = Hwq { in_flight: 0, bound: 0, owner: NONE, incoming: NONE, home_of: NONE };
        Self {
            hwqs: vec![hwq; usize::from(total)],
            bindings: Vec::new(),
            exclusive,
            kept: 0,
            depth,
            reserve,
            switches: 0,
            lending: Lending::default(),
            turn: 0,
            order: Vec::new(),
        }
    }

    /// With another way to lend exclusive queues.
    pub(crate) fn lending(self, lending: Lending) -> Self {
        Self { lending, ..self }
    }

    /// Reserves the first `kept` exclusive queues for guaranteed VQs, which get them before others.
    pub(crate) fn keeping(self, kept: u16) -> Self {
        Self { kept: kept.min(self.exclusive), ..self }
    }

    pub(crate) fn len(&self) -> u16 {
        self.hwqs.len() as u16
    }

    /// Binds a VQ: a guaranteed one to a home if one is left, else to a shared queue. VQs that had to leave a
    /// queue for it are added to `moved`.
    pub(crate) fn attach(&mut self, slot: u16, guaranteed: bool, moved: &mut Vec<Moved>) {
        if self.bindings.len() <= usize::from(slot) {
            self.bindings.resize(usize::from(slot) + 1, UNBOUND);
            self.order.reserve(self.bindings.len() - self.order.len());
        }
        self.detach(slot);
        *self.binding(slot) = Binding { guaranteed, attached: true, ..UNBOUND };
        self.bind(slot, self.backup());
        if guaranteed {
            self.find_home(slot);
            self.claim(slot, moved);
        } else if self.lending == Lending::Never
            && let Some(free) = (self.kept..self.exclusive).find(|hwq| self.is_free(*hwq))
        {
            self.hand_over(free, slot, moved);
        }
    }

    /// Frees what the VQ held. Its commands in flight still count until they complete.
    pub(crate) fn detach(&mut self, slot: u16) {
        let Binding { hwq, home, awaited, attached, .. } = std::mem::replace(self.binding(slot), UNBOUND);
        if !attached {
            return;
        }
        self.hwq(hwq).bound -= 1;
        if self.hwq(hwq).owner == slot {
            self.hwq(hwq).owner = NONE;
        }
        if awaited != NONE {
            self.hwq(awaited).incoming = NONE;
        }
        if home != NONE {
            self.hwq(home).home_of = NONE;
        }
    }

    /// Where the VQ's next command goes. The VQ is attached.
    #[inline]
    pub(crate) fn at(&self, slot: u16) -> u16 {
        self.bindings[usize::from(slot)].hwq
    }

    /// Where the VQ's next command goes.
    pub(crate) fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        let binding = self.bindings.get(usize::from(slot.0)).filter(|binding| binding.attached)?;
        Some(HwqId(binding.hwq))
    }

    /// Whether the VQ sends through its backup until an exclusive queue is empty.
    pub(crate) fn is_switching(&self, slot: VqSlot) -> bool {
        self.bindings.get(usize::from(slot.0)).is_some_and(|binding| binding.awaited != NONE)
    }

    /// Moves to an exclusive queue since the start.
    pub(crate) fn switches(&self) -> u64 {
        self.switches
    }

    /// Commands in flight on a queue.
    pub(crate) fn in_flight(&self, hwq: HwqId) -> u32 {
        self.hwqs.get(usize::from(hwq.0)).map_or(0, |hwq| hwq.in_flight)
    }

    /// Whether the queue takes one more command.
    #[inline]
    pub(crate) fn has_room(&self, hwq: u16, guaranteed: bool) -> bool {
        let keep = if guaranteed || hwq < self.exclusive { 0 } else { self.reserve };
        self.hwqs[usize::from(hwq)].in_flight < self.depth - keep
    }

    #[inline]
    pub(crate) fn sent(&mut self, hwq: HwqId) {
        if let Some(hwq) = self.hwqs.get_mut(usize::from(hwq.0)) {
            hwq.in_flight += 1;
        }
    }

    /// A command on the queue ended. A VQ that waited for this queue to run empty is returned: it is bound here now.
    #[inline]
    pub(crate) fn completed(&mut self, hwq: HwqId) -> Option<Moved> {
        let queue = self.hwqs.get_mut(usize::from(hwq.0))?;
        queue.in_flight = queue.in_flight.saturating_sub(1);
        if queue.in_flight > 0 || queue.incoming == NONE {
            return None;
        }
        let next = std::mem::replace(&mut queue.incoming, NONE);
        self.binding(next).awaited = NONE;
        Some(self.own(hwq.0, next))
    }

    /// A guaranteed VQ has work: it gets its home back. Its borrower moves to a shared queue (and into
    /// `moved`); until the borrower's commands have completed the VQ sends through its backup.
    #[inline]
    pub(crate) fn claim(&mut self, slot: u16, moved: &mut Vec<Moved>) {
        let Binding { hwq, home, awaited, .. } = self.bindings[usize::from(slot)];
        if home == NONE || hwq == home || awaited == home {
            return;
        }
        self.vacate(home, moved);
        self.hand_over(home, slot, moved);
    }

    /// The switch at each period's end. Guaranteed VQs in use keep or get their home; what else is exclusive goes
    /// to the best-effort VQs with the longest backlogs. VQs bound anew are added to `moved`.
    pub(crate) fn schedule(&mut self, want: impl Fn(u16) -> Want, moved: &mut Vec<Moved>) {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        for slot in 0..self.bindings.len() as u16 {
            let Binding { attached, guaranteed, home, .. } = self.bindings[usize::from(slot)];
            match want(slot) {
                _ if !attached => {}
                Want::Home | Want::Idle if guaranteed && home == NONE => {
                    self.find_home(slot);
                    self.claim(slot, moved);
                }
                Want::Home => self.claim(slot, moved),
                Want::Backlog(backlog) if backlog > 0 => order.push(match self.lending {
                    Lending::Backlog => (backlog, self.has_exclusive(slot), slot),
                    Lending::Turns | Lending::Never => (self.turn_of(slot), false, slot),
                }),
                Want::Idle | Want::Backlog(_) => {}
            }
        }
        if self.lending == Lending::Never {
            self.order = order;
            return;
        }
        let lendable = |pool: &Self, hwq: u16| match pool.hwqs[usize::from(hwq)].home_of {
            NONE => true,
            home_of => want(home_of) == Want::Idle,
        };
        let places = (self.kept..self.exclusive).filter(|hwq| lendable(self, *hwq)).count();
        // Longest backlog first. Among equals, VQs that have a queue already, so that none moves without need.
        let by_need = |a: &(u32, bool, u16), b: &(u32, bool, u16)| (b.0, b.1, a.2).cmp(&(a.0, a.1, b.2));
        if order.len() > places {
            if places > 0 {
                order.select_nth_unstable_by(places - 1, by_need);
            }
            order.truncate(places);
        }
        order.sort_unstable_by(by_need);
        if let Some((.., last)) = order.last() {
            self.turn = last + 1;
        }
        self.lend(&order, lendable, moved);
        self.order = order;
    }

    /// The sooner its turn comes, the more.
    fn turn_of(&self, slot: u16) -> u32 {
        let slots = self.bindings.len() as u32;
        slots - (u32::from(slot) + slots - u32::from(self.turn) % slots) % slots
    }

    /// Nobody's home, and nobody has it or waits for it.
    fn is_free(&self, hwq: u16) -> bool {
        let Hwq { owner, incoming, home_of, .. } = self.hwqs[usize::from(hwq)];
        owner == NONE && incoming == NONE && home_of == NONE
    }

    /// Gives one lendable exclusive queue to each of `winners`, and takes theirs from all others.
    fn lend(&mut self, winners: &[(u32, bool, u16)], lendable: impl Fn(&Self, u16) -> bool, moved: &mut Vec<Moved>) {
        for hwq in self.kept..self.exclusive {
            let Hwq { owner, incoming, home_of, .. } = self.hwqs[usize::from(hwq)];
            let user = if incoming != NONE { incoming } else { owner };
            if user != NONE && user != home_of && !winners.iter().any(|winner| winner.2 == user) {
                self.vacate(hwq, moved);
            }
        }
        let mut winners = winners.iter().map(|winner| winner.2);
        // Queues that are nobody's home first: lending a home costs its VQ a moment on the backup later.
        for homes in [false, true] {
            for hwq in self.kept..self.exclusive {
                let Hwq { owner, incoming, home_of, .. } = self.hwqs[usize::from(hwq)];
                let free = incoming == NONE && (owner == NONE || owner == home_of);
                if (home_of != NONE) != homes || !free || !lendable(self, hwq) {
                    continue;
                }
                let Some(winner) = winners.find(|slot| !self.has_exclusive(*slot)) else { return };
                self.vacate(hwq, moved);
                self.hand_over(hwq, winner, moved);
            }
        }
    }

    /// Makes `slot` the next owner of an exclusive queue without owner: now if it is empty, else when it is.
    fn hand_over(&mut self, hwq: u16, slot: u16, moved: &mut Vec<Moved>) {
        if self.hwq(hwq).in_flight == 0 {
            moved.push(self.own(hwq, slot));
        } else {
            self.hwq(hwq).incoming = slot;
            self.binding(slot).awaited = hwq;
        }
    }

    /// Whether the VQ sends over an exclusive queue or will soon.
    fn has_exclusive(&self, slot: u16) -> bool {
        let Binding { hwq, awaited, .. } = self.bindings[usize::from(slot)];
        hwq < self.exclusive || awaited != NONE
    }

    fn own(&mut self, hwq: u16, slot: u16) -> Moved {
        self.hwq(hwq).owner = slot;
        self.switches += 1;
        self.bind(slot, hwq)
    }

    /// Sends the owner of an exclusive queue to a shared one and forgets who waits for it.
    fn vacate(&mut self, hwq: u16, moved: &mut Vec<Moved>) {
        let owner = std::mem::replace(&mut self.hwq(hwq).owner, NONE);
        if owner != NONE {
            let backup = self.backup();
            moved.push(self.bind(owner, backup));
        }
        let incoming = std::mem::replace(&mut self.hwq(hwq).incoming, NONE);
        if incoming != NONE {
            self.binding(incoming).awaited = NONE;
        }
    }

    fn bind(&mut self, slot: u16, hwq: u16) -> Moved {
        let from = std::mem::replace(&mut self.binding(slot).hwq, hwq);
        if from != NONE {
            self.hwq(from).bound -= 1;
        }
        self.hwq(hwq).bound += 1;
        Moved { slot, from }
    }

    /// The shared queue with the fewest VQs.
    fn backup(&self) -> u16 {
        let shared = self.exclusive..self.len();
        shared.min_by_key(|hwq| self.hwqs[usize::from(*hwq)].bound).unwrap_or(self.exclusive)
    }

    fn find_home(&mut self, slot: u16) {
        let free = |hwq: &u16| self.hwqs[usize::from(*hwq)].home_of == NONE;
        // Kept ones come first: without a home of a VQ's they have no owner.
        let unused = |hwq: &u16| self.hwqs[usize::from(*hwq)].owner != NONE;
        if let Some(home) = (0..self.exclusive).filter(free).min_by_key(unused) {
            self.hwq(home).home_of = slot;
            self.binding(slot).home = home;
        }
    }

    fn hwq(&mut self, hwq: u16) -> &mut Hwq {
        &mut self.hwqs[usize::from(hwq)]
    }

    fn binding(&mut self, slot: u16) -> &mut Binding {
        &mut self.bindings[usize::from(slot)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(pool: &mut HwqPool, slot: u16) -> HwqId {
        let hwq = pool.hwq_of(VqSlot(slot)).unwrap();
        pool.sent(hwq);
        hwq
    }

    /// 2 exclusive queues (0, 1), 2 shared (2, 3).
    fn pool(guaranteed: &[bool]) -> HwqPool {
        let mut pool = HwqPool::new(2, 2, 8);
        for (slot, guaranteed) in guaranteed.iter().enumerate() {
            pool.attach(slot as u16, *guaranteed, &mut Vec::new());
        }
        pool
    }

    fn places(pool: &HwqPool) -> Vec<u16> {
        (0..pool.bindings.len() as u16).map(|slot| pool.at(slot)).collect()
    }

    #[test]
    fn guaranteed_vqs_get_homes_and_the_rest_is_spread_over_shared_queues() {
        let pool = pool(&[true, false, true, false, false]);
        assert_eq!(places(&pool), [0, 2, 1, 3, 2]);
    }

    #[test]
    fn longest_backlogs_get_what_is_left_of_the_exclusive_queues() {
        let mut pool = pool(&[true, false, false, false]);
        let backlogs = [0, 3, 9, 5];
        let mut moved = Vec::new();
        let want = |slot| if slot == 0 { Want::Home } else { Want::Backlog(backlogs[usize::from(slot)]) };
        pool.schedule(want, &mut moved);
        assert_eq!(places(&pool), [0, 2, 1, 2]);
        assert_eq!(moved, [Moved { slot: 2, from: 3 }]);
        // Equal backlogs: nobody moves. A longer one: its VQ takes the queue over.
        pool.schedule(|slot| if slot == 0 { Want::Home } else { Want::Backlog(4) }, &mut moved);
        assert_eq!(places(&pool), [0, 2, 1, 2]);
        pool.schedule(|slot| if slot == 0 { Want::Home } else { Want::Backlog(u32::from(slot)) }, &mut moved);
        assert_eq!(pool.at(3), 1);
        assert!(pool.at(2) >= 2);
    }

    #[test]
    fn a_queue_changes_hands_only_when_empty_and_its_next_user_uses_a_backup() {
        let mut pool = pool(&[true, false, false]);
        let mut moved = Vec::new();
        let first = |slot| if slot == 0 { Want::Home } else { Want::Backlog(10 - u32::from(slot)) };
        pool.schedule(first, &mut moved);
        assert_eq!(send(&mut pool, 1), HwqId(1));
        assert_eq!(send(&mut pool, 1), HwqId(1));
        moved.clear();
        let second = |slot| if slot == 0 { Want::Home } else { Want::Backlog(u32::from(slot)) };
        pool.schedule(second, &mut moved);
        assert_eq!(moved, [Moved { slot: 1, from: 1 }], "the former user leaves at once");
        assert!(pool.is_switching(VqSlot(2)));
        let backup = send(&mut pool, 2);
        assert!(backup.0 >= 2);
        assert!(send(&mut pool, 1).0 >= 2, "new commands of the former user go elsewhere");
        assert_eq!(pool.completed(HwqId(1)), None);
        assert_eq!(pool.completed(HwqId(1)), Some(Moved { slot: 2, from: backup.0 }));
        assert!(!pool.is_switching(VqSlot(2)));
        assert_eq!(send(&mut pool, 2), HwqId(1), "while its command on the backup is still in flight");
        assert_eq!(pool.in_flight(backup), 1);
        assert_eq!(pool.switches(), 3);
    }

    #[test]
    fn an_idle_home_is_lent_last_and_comes_back_with_the_first_command() {
        let mut pool = pool(&[true, false, false]);
        let mut moved = Vec::new();
        let want = |slot| if slot == 0 { Want::Idle } else { Want::Backlog(u32::from(slot)) };
        pool.schedule(want, &mut moved);
        assert_eq!((pool.at(2), pool.at(1)), (1, 0));
        assert!(pool.at(0) >= 2);
        send(&mut pool, 1);
        moved.clear();
        pool.claim(0, &mut moved);
        assert_eq!(moved, [Moved { slot: 1, from: 0 }]);
        assert!(pool.is_switching(VqSlot(0)));
        let backup = pool.at(0);
        assert!(backup >= 2);
        pool.claim(0, &mut moved);
        assert_eq!(moved.len(), 1, "claiming twice changes nothing");
        assert_eq!(pool.completed(HwqId(0)), Some(Moved { slot: 0, from: backup }));
        assert_eq!(pool.at(0), 0);
    }

    #[test]
    fn best_effort_leaves_room_for_guaranteed_vqs_on_their_backup() {
        let mut pool = pool(&[true, false]);
        for _ in 0..7 {
            send(&mut pool, 1);
        }
        let shared = pool.at(1);
        assert!(!pool.has_room(shared, false));
        assert!(pool.has_room(shared, true));
    }

    #[test]
    fn detaching_frees_the_queue_for_the_next_and_counts_what_is_in_flight() {
        let mut pool = pool(&[true, true, true]);
        assert_eq!(places(&pool), [0, 1, 2], "one more guaranteed VQ than exclusive queues");
        send(&mut pool, 0);
        pool.detach(0);
        let want = |slot| if slot == 0 { Want::Backlog(0) } else { Want::Home };
        pool.schedule(want, &mut Vec::new());
        assert_eq!(pool.at(2), 2);
        assert_eq!(pool.completed(HwqId(0)), Some(Moved { slot: 2, from: 2 }));
        assert_eq!(pool.at(2), 0);
    }

    #[test]
    fn in_turns_everybody_with_work_has_an_exclusive_queue_once_in_a_round() {
        let mut pool = HwqPool::new(2, 1, 8).lending(Lending::Turns);
        (0..5).for_each(|slot| pool.attach(slot, false, &mut Vec::new()));
        let mut had = [0; 5];
        for _ in 0..5 {
            // The longest backlog gets no more than the others.
            pool.schedule(|slot| Want::Backlog(if slot == 3 { 0 } else { 1 + u32::from(slot) }), &mut Vec::new());
            (0..5).filter(|slot| pool.at(*slot) < 2).for_each(|slot| had[usize::from(slot)] += 1);
        }
        assert_eq!((had[3], had.iter().sum::<i32>()), (0, 10));
        assert!([0, 1, 2, 4].iter().all(|slot| (2..=3).contains(&had[*slot])), "{had:?}");
    }

    #[test]
    fn without_switching_who_came_first_keeps_its_queue_and_a_home_still_comes_first() {
        let mut pool = HwqPool::new(2, 1, 8).lending(Lending::Never);
        (0..3).for_each(|slot| pool.attach(slot, false, &mut Vec::new()));
        let backlogs = |slot| Want::Backlog(u32::from(slot) * 10);
        pool.schedule(backlogs, &mut Vec::new());
        assert_eq!(places(&pool), [0, 1, 2]);
        let mut moved = Vec::new();
        pool.attach(3, true, &mut moved);
        pool.schedule(|slot| if slot == 3 { Want::Home } else { backlogs(slot) }, &mut moved);
        assert!(pool.at(3) < 2, "{:?}", places(&pool));
        pool.detach(3);
        assert_eq!((0..3).filter(|slot| pool.at(*slot) < 2).count(), 1, "the one that had to leave stays away");
    }

    #[test]
    fn kept_queues_are_homes_before_others_and_lent_to_nobody() {
        for lending in [Lending::Backlog, Lending::Turns, Lending::Never] {
            let mut pool = HwqPool::new(3, 1, 8).lending(lending).keeping(2);
            (0..4).for_each(|slot| pool.attach(slot, slot == 3, &mut Vec::new()));
            let idle = |slot| if slot == 3 { Want::Idle } else { Want::Backlog(1 + u32::from(slot)) };
            pool.schedule(idle, &mut Vec::new());
            assert_eq!(pool.at(3), 0, "{lending:?}: an idle home is kept");
            let mut lent: Vec<u16> = (0..3).map(|slot| pool.at(slot)).collect();
            lent.sort_unstable();
            assert_eq!(lent, [2, 3, 3], "{lending:?}: queue 1 is nobody's, and yet not lent");
            // Two more guaranteed VQs than are kept: the last one has what is lent otherwise.
            (4..6).for_each(|slot| pool.attach(slot, true, &mut Vec::new()));
            assert_eq!((pool.at(4), pool.at(5)), (1, 2), "{lending:?}");
        }
    }

    #[test]
    fn one_queue_is_shared_whatever_was_asked_for() {
        let pool = HwqPool::new(1, 0, 0);
        assert_eq!((pool.len(), pool.exclusive, pool.depth), (1, 0, 1));
        assert!(pool.has_room(0, false));
    }
}
