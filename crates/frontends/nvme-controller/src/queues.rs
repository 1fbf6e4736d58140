//! All queues of a controller, by identifier.

use arbitration::{Arbiter, Arbitration};
use guest_memory::{GuestMemory, MappedU32};
use nvme_spec::Status;

use crate::config::MAX_IO_QUEUES;
use crate::dbbuf::{Doorbell, DoorbellPages, View};
use crate::queue::{Cq, Entry, Sq};
use crate::turns::{TOGETHER, class};

/// Queue identifiers 0 (admin) to 64.
pub(crate) const QIDS: usize = MAX_IO_QUEUES as usize + 1;

#[derive(Debug)]
pub(crate) struct Queues {
    // Boxed: most identifiers are unused, and an idle tenant should stay small.
    sqs: [Option<Box<Sq>>; QIDS],
    cqs: [Option<Box<Cq>>; QIDS],
    /// Submission queues that may be fetched from.
    pub live: u128,
    /// The same as VQs.
    pub shown: u128,
    /// Picks among the I/O queues, by identifier, while they are one VQ. Boxed: most guests have none.
    pub arbiter: Option<Box<Arbiter>>,
    /// Completion queues with entries posted since the last interrupts.
    pub dirty: u128,
    /// The poller is awake: keep event indexes behind.
    pub awake: bool,
    pub doorbells: DoorbellPages,
}

impl Queues {
    pub fn new(doorbells: DoorbellPages) -> Self {
        Self {
            sqs: [const { None }; QIDS],
            cqs: [const { None }; QIDS],
            live: 0,
            shown: 0,
            arbiter: None,
            dirty: 0,
            awake: true,
            doorbells,
        }
    }

    /// Makes the I/O queues one VQ, or lets each be its own. Before the first of them.
    pub fn arbitrate(&mut self, rule: Option<Arbitration>) {
        self.arbiter = rule.map(|rule| Box::new(Arbiter::new(rule, QIDS as u16)));
    }

    fn set_live(&mut self, qid: u16, live: bool) {
        self.live = self.live & !(1 << qid) | u128::from(live) << qid;
        let any_io = u128::from(self.live >> 1 != 0);
        self.shown = if self.arbiter.is_some() { self.live & 1 | any_io << TOGETHER } else { self.live };
    }

    #[inline]
    pub fn sq(&mut self, qid: u16) -> Option<&mut Sq> {
        self.sqs.get_mut(usize::from(qid))?.as_deref_mut()
    }

    #[inline]
    pub fn cq(&mut self, qid: u16) -> Option<&mut Cq> {
        self.cqs.get_mut(usize::from(qid))?.as_deref_mut()
    }

    /// A submission queue and the completion queue it completes to.
    #[inline]
    pub fn pair(&mut self, sqid: u16) -> Option<(&mut Sq, &mut Cq)> {
        let sq = self.sqs.get_mut(usize::from(sqid))?.as_deref_mut()?;
        let cq = self.cqs.get_mut(usize::from(sq.cqid))?.as_deref_mut()?;
        Some((sq, cq))
    }

    /// See [`Controller::doorbells`](crate::Controller::doorbells).
    pub fn doorbells(&self, out: &mut Vec<(MappedU32, u32)>) {
        for sq in self.sqs() {
            out.extend(sq.doorbell());
            // Commands wait for completion entries: the host makes room by the other doorbell.
            let cq = self.cqs.get(usize::from(sq.cqid)).and_then(Option::as_deref);
            out.extend(cq.filter(|_| sq.waiting() > 0).and_then(Cq::doorbell));
        }
    }

    pub fn sqs(&self) -> impl Iterator<Item = &Sq> {
        self.sqs.iter().flatten().map(|sq| &**sq)
    }

    pub fn sqs_mut(&mut self) -> impl Iterator<Item = &mut Sq> {
        self.sqs.iter_mut().flatten().map(|sq| &mut **sq)
    }

    pub fn cqs(&self) -> impl Iterator<Item = &Cq> {
        self.cqs.iter().flatten().map(|cq| &**cq)
    }

    pub fn cqs_mut(&mut self) -> impl Iterator<Item = &mut Cq> {
        self.cqs.iter_mut().flatten().map(|cq| &mut **cq)
    }

    /// Adds a submission queue whose identifier is free and whose completion queue exists.
    pub fn insert_sq(&mut self, sq: Sq) {
        if let Some(cq) = self.cq(sq.cqid) {
            cq.users += 1;
        }
        let qid = sq.at.qid;
        if let Some(place) = self.sqs.get_mut(usize::from(qid)) {
            if let Some(arbiter) = &mut self.arbiter {
                arbiter.set_class(qid, class(sq.priority));
                arbiter.forgive(qid);
            }
            *place = Some(Box::new(sq));
            self.set_live(qid, true);
        }
    }

    /// Nothing more is fetched from a submission queue.
    pub fn retire_sq(&mut self, qid: u16) {
        self.set_live(qid, false);
        if let Some(arbiter) = &mut self.arbiter {
            arbiter.set_backlogged(qid, false);
        }
    }

    /// A submission queue's QPRIO.
    pub fn qprio(&self, qid: u16) -> Option<u8> {
        Some(self.sqs.get(usize::from(qid))?.as_ref()?.priority)
    }

    /// Whether a submission queue has something to fetch, as far as is known without a look at doorbells.
    #[inline]
    pub fn has_next(&mut self, qid: u16) -> bool {
        self.pair(qid).is_some_and(|(sq, cq)| {
            sq.stream.is_some() || sq.waiting() > 0 && sq.has_room() && cq.free > 0 && !sq.waits_for_bounce
        })
    }

    pub fn insert_cq(&mut self, cq: Cq) {
        if let Some(place) = self.cqs.get_mut(usize::from(cq.at.qid)) {
            *place = Some(Box::new(cq));
        }
    }

    pub fn remove_sq(&mut self, qid: u16) {
        let Some(sq) = self.sqs.get_mut(usize::from(qid)).and_then(Option::take) else { return };
        self.retire_sq(qid);
        if let Some(cq) = self.cq(sq.cqid) {
            cq.users -= 1;
        }
    }

    pub fn remove_cq(&mut self, qid: u16) {
        if let Some(place) = self.cqs.get_mut(usize::from(qid)) {
            *place = None;
            self.dirty &= !(1 << qid);
        }
    }

    /// Every queue vanishes.
    pub fn clear(&mut self) {
        self.sqs = [const { None }; QIDS];
        self.cqs = [const { None }; QIDS];
        (self.live, self.shown) = (0, 0);
        self.arbiter = None;
        self.dirty = 0;
        self.doorbells.pages = None;
    }

    /// Posts a completion into the entry that was reserved for it.
    #[inline]
    pub fn post(&mut self, sqid: u16, cid: u16, dw0: u32, status: Status) {
        let Some((sq, cq)) = self.pair(sqid) else { return };
        if cq.post(Entry::new(dw0, sq.head, sqid, cid, status)) {
            let qid = cq.at.qid;
            self.dirty |= 1 << qid;
        }
    }

    /// Halts every queue that depends on guest memory in this range.
    pub fn detach(&mut self, iova: u64, len_bytes: u64) {
        for sq in self.sqs.iter_mut().flatten() {
            if sq.uses(iova, len_bytes) || self.doorbells.touches(sq.at.qid, iova, len_bytes) {
                sq.set_view(None);
            }
        }
        for cq in self.cqs.iter_mut().flatten() {
            if cq.uses(iova, len_bytes) || self.doorbells.touches(cq.at.qid, iova, len_bytes) {
                cq.set_view(None);
            }
        }
    }

    /// Lets halted queues go on where their memory can be reached; `all`: looks at the others too,
    /// because their doorbells moved.
    pub fn attach(&mut self, memory: &mut GuestMemory, all: bool) {
        for sq in self.sqs.iter_mut().flatten() {
            if all || sq.view().is_none() {
                let bytes = Sq::ring_bytes(sq.at.entries);
                sq.set_view(self.doorbells.view(memory, sq.at.qid, Doorbell::SqTail, sq.at.iova, bytes));
                sq.set_wakeup(!self.awake);
            }
        }
        for cq in self.cqs.iter_mut().flatten() {
            if all || cq.view().is_none() {
                let bytes = Cq::ring_bytes(cq.at.entries);
                if cq.set_view(self.doorbells.view(memory, cq.at.qid, Doorbell::CqHead, cq.at.iova, bytes)) {
                    self.dirty |= 1 << cq.at.qid;
                }
                cq.set_wakeup(!self.awake);
            }
        }
    }

    /// Doorbells have another place from now on, which is to say what they say where they are.
    pub fn move_doorbells(&mut self, memory: &mut GuestMemory) {
        let rung = |view: Option<&View>, known: u16| view.map_or(known.into(), |view| view.doorbell.load());
        let tails: Vec<_> = self.sqs().map(|sq| rung(sq.view(), sq.tail)).collect();
        let heads: Vec<_> = self.cqs().map(|cq| rung(cq.view(), cq.head)).collect();
        self.attach(memory, true);
        let places = self.sqs().map(Sq::view).zip(tails).chain(self.cqs().map(Cq::view).zip(heads));
        for (place, rung) in places {
            // The admin queue's stay where they are, and the host may just now ring there.
            if let Some(place) = place.filter(|view| view.event.is_some()) {
                place.doorbell.store(rung);
            }
        }
    }

    /// Sets every event index for a poller that is about to sleep (`true`) or just woke.
    pub fn set_wakeup(&mut self, wanted: bool) {
        self.awake = !wanted;
        self.sqs().for_each(|sq| sq.set_wakeup(wanted));
        self.cqs().for_each(|cq| cq.set_wakeup(wanted));
    }
}
