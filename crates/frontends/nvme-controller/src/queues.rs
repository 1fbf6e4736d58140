//! All queues of a controller, by identifier.

use arbitration::{Arbiter, Arbitration};
use guest_memory::{GuestMemory, MappedU32};
use nvme_spec::Status;

use crate::config::MAX_IO_QUEUES;
use crate::crash::{self, Swap};
use crate::dbbuf::{Doorbell, DoorbellPages, View};
use crate::journal::Journal;
use crate::queue::{Cq, Entry, Parked, Sq};
use crate::turns::{TOGETHER, class};
use crate::word::Word;

/// Queue identifiers 0 (admin) to 64.
pub(crate) const QIDS: usize = MAX_IO_QUEUES as usize + 1;

/// A submission queue's doorbell, apart from its queue: a look at all of them touches nothing else.
#[derive(Debug, Clone)]
struct Tail {
    /// `None`: no such queue, its memory is out of reach, or it is the admin queue's.
    doorbell: Option<MappedU32>,
    /// What it said when its queue's backlog was last asked for.
    known: u32,
}

impl Tail {
    const NONE: Self = Self { doorbell: None, known: 0 };
}

#[derive(Debug)]
pub(crate) struct Queues {
    // Boxed: most identifiers are unused, and an idle tenant should stay small.
    sqs: [Option<Box<Sq>>; QIDS],
    cqs: [Option<Box<Cq>>; QIDS],
    /// One past the highest identifier of a queue since the last reset: who goes through all queues stops there.
    end: usize,
    /// Submission queues that may be fetched from.
    pub live: u128,
    /// The queues as VQs, as a bit set.
    pub shown: u128,
    /// Picks among the I/O queues, by identifier, while they are one VQ. Boxed: most guests have none.
    pub arbiter: Option<Box<Arbiter>>,
    /// What rings the I/O queues, by identifier and side by side.
    tails: Vec<Tail>,
    /// Submission queues with commands that can't be fetched now: they wait for something else than their doorbell.
    hindered: u128,
    /// Completion queues with entries posted since the last interrupts.
    pub dirty: u128,
    /// The poller is awake: keep event indexes behind.
    pub awake: bool,
    pub doorbells: DoorbellPages,
    /// Completions of admin commands that are not posted yet: what they say must be recorded first.
    pub outbox: Vec<Entry>,
    /// What outlives this process, if it is kept elsewhere.
    pub journal: Option<Journal>,
}

impl Queues {
    pub fn new(doorbells: DoorbellPages) -> Self {
        Self {
            sqs: [const { None }; QIDS],
            cqs: [const { None }; QIDS],
            end: 0,
            live: 0,
            shown: 0,
            arbiter: None,
            tails: Vec::new(),
            hindered: 0,
            dirty: 0,
            awake: true,
            doorbells,
            outbox: Vec::new(),
            journal: None,
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
        self.sqs[..self.end].iter().flatten().map(|sq| &**sq)
    }

    pub fn sqs_mut(&mut self) -> impl Iterator<Item = &mut Sq> {
        self.sqs[..self.end].iter_mut().flatten().map(|sq| &mut **sq)
    }

    pub fn cqs(&self) -> impl Iterator<Item = &Cq> {
        self.cqs[..self.end].iter().flatten().map(|cq| &**cq)
    }

    pub fn cqs_mut(&mut self) -> impl Iterator<Item = &mut Cq> {
        self.cqs[..self.end].iter_mut().flatten().map(|cq| &mut **cq)
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
            self.end = self.end.max(usize::from(qid) + 1);
            self.set_live(qid, true);
            self.follow_doorbell(qid);
        }
    }

    /// A submission queue came or went, or its doorbell lies elsewhere from now on.
    fn follow_doorbell(&mut self, qid: u16) {
        let at = usize::from(qid);
        let view = self.sqs.get(at).and_then(Option::as_ref).and_then(|sq| sq.view());
        let doorbell = view.filter(|_| qid > 0).map(|view| view.doorbell.clone());
        if self.tails.len() <= at {
            self.tails.resize(at + 1, Tail::NONE);
        }
        self.tails[at].doorbell = doorbell;
        // Whatever it says is news.
        self.hindered |= 1 << qid;
    }

    /// Submission queues whose backlog may not be what it was when it was last asked for; of I/O queues that are one
    /// VQ, that VQ.
    #[inline]
    pub fn rung(&self) -> u128 {
        let mut rung = self.hindered & self.live;
        for (qid, tail) in self.tails.iter().enumerate() {
            if tail.doorbell.as_ref().is_some_and(|doorbell| doorbell.load() != tail.known) {
                rung |= 1 << qid;
            }
        }
        if self.arbiter.is_some() { u128::from(rung >> 1 != 0) << TOGETHER } else { rung }
    }

    /// The backlog of a submission queue was told, up to this value of its doorbell. `all`: nothing else waits there.
    #[inline]
    pub fn told(&mut self, qid: u16, doorbell: u32, all: bool) {
        if let Some(tail) = self.tails.get_mut(usize::from(qid)) {
            tail.known = doorbell;
        }
        let bit = 1 << qid;
        if all {
            self.hindered &= !bit;
        } else {
            self.hindered |= bit;
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
            let is_reachable = cq.view().is_some() && !sq.waits_for_bounce;
            let has_new = sq.waiting() > 0 && sq.has_room() && cq.free > 0;
            sq.stream.is_some() || is_reachable && (!sq.again.is_empty() || has_new)
        })
    }

    pub fn insert_cq(&mut self, cq: Cq) {
        let at = usize::from(cq.at.qid);
        if let Some(place) = self.cqs.get_mut(at) {
            *place = Some(Box::new(cq));
            self.end = self.end.max(at + 1);
        }
    }

    /// Forgets which command a queue's last completion belonged to: the word of each says that it is done, and another
    /// command may get its number.
    pub fn forget_last(&mut self, cqid: u16) {
        if let (Some(journal), Some(cq)) = (&self.journal, self.cqs.get(usize::from(cqid)).and_then(Option::as_ref)) {
            journal.posted(cq, (0, 0, 0));
        }
    }

    pub fn remove_sq(&mut self, qid: u16) {
        let Some(sq) = self.sqs.get_mut(usize::from(qid)).and_then(Option::take) else { return };
        self.retire_sq(qid);
        self.follow_doorbell(qid);
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
        self.end = 0;
        (self.live, self.shown) = (0, 0);
        self.arbiter = None;
        self.tails.clear();
        self.hindered = 0;
        self.dirty = 0;
        self.outbox.clear();
        self.doorbells.pages = None;
    }

    /// Has an admin command completed, once that is recorded: see [`Queues::post_admin`].
    pub fn complete_admin(&mut self, cid: u16, dw0: u32, status: Status) {
        let Some(sq) = self.sq(0) else { return };
        let entry = Entry::new(dw0, sq.head, 0, cid, status);
        self.outbox.push(entry);
    }

    /// Posts what is recorded of admin commands, into the entries that were reserved for it.
    pub fn post_admin(&mut self) {
        let entries = std::mem::take(&mut self.outbox);
        let Some(cq) = self.cq(0) else { return };
        for entry in &entries {
            cq.publish(*entry);
        }
        self.dirty |= u128::from(!entries.is_empty());
        // Its room is used again.
        self.outbox = entries;
        self.outbox.clear();
    }

    /// Posts the completion of an I/O command into the entry that was reserved for it, or parks it while the ring can't
    /// be reached. `slot` is the command's place in its queue's table, which is free then, and its number.
    #[inline]
    pub fn post(&mut self, sqid: u16, (slot, number): (u16, u64), cid: u16, status: Status) {
        let Some(sq) = self.sqs.get(usize::from(sqid)).and_then(Option::as_deref) else { return };
        let entry = Entry::new(0, sq.head, sqid, cid, status);
        let Some(cq) = self.cqs.get_mut(usize::from(sq.cqid)).and_then(Option::as_deref_mut) else { return };
        if let Some(journal) = self.journal.as_ref().filter(|_| crash::is_swapped(Swap::DoneBeforePosted)) {
            journal.set_word(sqid, slot, Word::Done(number));
        }
        if !cq.publish(entry) {
            cq.parked.push(Parked { entry, sqid, slot, number });
            if let Some(journal) = &self.journal {
                journal.set_word(sqid, slot, Word::Parked(number, status.0));
            }
            return;
        }
        self.dirty |= 1 << cq.at.qid;
        if let Some(journal) = &self.journal {
            journal.completed(cq, (sqid, slot, number));
        }
    }

    /// Halts every queue that depends on guest memory in this range.
    pub fn detach(&mut self, iova: u64, len_bytes: u64) {
        for sq in self.sqs[..self.end].iter_mut().flatten() {
            if sq.uses(iova, len_bytes) || self.doorbells.touches(sq.at.qid, iova, len_bytes) {
                sq.set_view(None);
            }
        }
        for cq in self.cqs[..self.end].iter_mut().flatten() {
            if cq.uses(iova, len_bytes) || self.doorbells.touches(cq.at.qid, iova, len_bytes) {
                cq.set_view(None);
            }
        }
        (0..self.end as u16).for_each(|qid| self.follow_doorbell(qid));
    }

    /// Lets halted queues go on where their memory can be reached; `all`: looks at the others too,
    /// because their doorbells moved.
    pub fn attach(&mut self, memory: &mut GuestMemory, all: bool) {
        for sq in self.sqs[..self.end].iter_mut().flatten() {
            if all || sq.view().is_none() {
                let bytes = Sq::ring_bytes(sq.at.entries);
                sq.set_view(self.doorbells.view(memory, sq.at.qid, Doorbell::SqTail, sq.at.iova, bytes));
                sq.set_wakeup(!self.awake);
            }
        }
        for cq in self.cqs[..self.end].iter_mut().flatten() {
            if all || cq.view().is_none() {
                let bytes = Cq::ring_bytes(cq.at.entries);
                cq.set_view(self.doorbells.view(memory, cq.at.qid, Doorbell::CqHead, cq.at.iova, bytes));
                cq.set_wakeup(!self.awake);
            }
        }
        for qid in 0..self.end as u16 {
            self.go_on(qid);
            self.follow_doorbell(qid);
        }
    }

    /// A completion queue whose ring can be reached again gets what waited for that.
    fn go_on(&mut self, qid: u16) {
        let Some(cq) = self.cqs.get_mut(usize::from(qid)).and_then(Option::as_deref_mut) else { return };
        if cq.view().is_none() {
            return;
        }
        if std::mem::take(&mut cq.is_inherited) {
            self.inherit(qid);
        }
        let Some(cq) = self.cqs.get_mut(usize::from(qid)).and_then(Option::as_deref_mut) else { return };
        for Parked { entry, sqid, slot, number } in std::mem::take(&mut cq.parked) {
            cq.publish(entry);
            self.dirty |= 1 << qid;
            if let Some(journal) = &self.journal {
                journal.completed(cq, (sqid, slot, number));
            }
        }
    }

    /// The process before us may have posted a completion and not noted that, and the host has read on.
    fn inherit(&mut self, qid: u16) {
        let Some(cq) = self.cqs.get_mut(usize::from(qid)).and_then(Option::as_deref_mut) else { return };
        if qid == 0 {
            // Those of admin commands are recorded before they are posted, all that are posted at a time.
            let mut is_posted = |entry: &&Entry| {
                let is_its = cq.posted_at_tail() == Some((0, entry.cid()));
                if is_its {
                    cq.inherit_posted();
                }
                is_its
            };
            let done = self.outbox.iter().take_while(|entry| is_posted(entry)).count();
            self.outbox.drain(..done);
        } else if let Some((sqid, cid)) = cq.posted_at_tail() {
            let of_parked = cq.parked.iter().position(|it| it.sqid == sqid && it.entry.cid() == cid);
            let parked = of_parked.map(|at| cq.parked.remove(at)).map(|it| (it.slot, it.number));
            let sq = self.sqs.get_mut(usize::from(sqid)).and_then(Option::as_deref_mut);
            // Of nobody's, it is what the guest had there before.
            if let Some((slot, number)) = parked.or_else(|| sq?.forget_again(cid)) {
                cq.inherit_posted();
                if let Some(journal) = &self.journal {
                    journal.completed(cq, (sqid, slot, number));
                }
            }
        }
        cq.inherit_head();
        self.dirty |= 1 << qid;
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
