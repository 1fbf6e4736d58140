//! A controller whose I/O queues are with several pollers: a part of it at each.
//!
//! Each part is a [`Controller`] of its own, over the same doorbell page and journal. All hear the same of their client
//! (register writes, memory, interrupts, resets) in the same order, the first part as the last of them. That one has
//! the admin queue, is what reads of registers see, and records the state. A completion queue and all submission queues
//! that complete into it are with one part, which fetches, completes, interrupts and journals there, and tells nobody.
//!
//! Between parts there are messages alone, for what is rare:
//!
//! | from the first | back | then |
//! | --- | --- | --- |
//! | make or delete a queue, move doorbells, turn the write cache on or off, tell what you counted | an answer | the admin command, which is in hand meanwhile, completes |
//! | delete a submission queue | once nothing of it is in flight | the Delete command completes; others go on before |
//!
//! Without being asked, a part tells that it has nothing in flight since a reset or shutdown, which ends when all have
//! told, and that a guest wrote an impossible doorbell. What a reset made meaningless is told apart by counting resets,
//! of which each part sees the same.

use std::collections::BTreeMap;

use nvme_spec::{Sqe, Status};

use crate::Controller;
use crate::admin::{ErrorLog, Reply};
use crate::dbbuf::ShadowPages;
use crate::msix::Interrupts;
use crate::queue::Geometry;
use crate::stats::Health;

/// Which part of a controller one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Its number, from 0.
    pub index: u16,
    /// How many there are.
    pub of: u16,
}

impl Part {
    /// The only one.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// Whether it has the admin queue.
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    /// The part that a completion queue is with.
    fn with_cq(self, cqid: u16) -> u16 {
        cqid.saturating_sub(1) % self.of.max(1)
    }

    /// Whether a completion queue is with this one.
    pub(crate) fn has_cq(self, cqid: u16) -> bool {
        if cqid == 0 { self.is_first() } else { self.with_cq(cqid) == self.index }
    }
}

/// What one part tells another: see [`Controller::take_message`].
#[derive(Debug)]
pub struct PartMessage {
    from: u16,
    /// Resets that the sender had seen.
    life: u32,
    body: Body,
}

#[derive(Debug)]
enum Body {
    /// To be answered.
    Ask(Ask),
    Answer(Result<(), Status>, Option<Box<Counts>>),
    /// Answered by [`Body::Deleted`] once nothing of it is in flight.
    DeleteSq(u16),
    Deleted(u16),
    /// Nothing is in flight since this many resets and shutdowns.
    Quiet(u32),
    /// Answered by [`Body::Heard`], before which nothing of the kind is told again.
    InvalidDoorbell,
    Heard,
}

/// What the first part asks of others.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ask {
    CreateCq(CqSpec),
    CreateSq(SqSpec),
    DeleteCq(u16),
    MoveDoorbells(ShadowPages),
    SetWriteCache(u8),
    /// What was counted since it was asked for last.
    Counts,
}

/// A completion queue to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CqSpec {
    pub at: Geometry,
    pub vector: u16,
    pub interrupts: bool,
}

/// A submission queue to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SqSpec {
    pub at: Geometry,
    pub cqid: u16,
    pub priority: u8,
}

/// What a part counted that log pages tell.
#[derive(Debug)]
pub(crate) struct Counts {
    health: Health,
    errors: ErrorLog,
}

/// A submission queue of another part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FarSq {
    pub spec: SqSpec,
    /// A Delete command with this CID waits for it.
    pub deleting: Option<u16>,
}

/// An admin command that waits for other parts.
#[derive(Debug)]
struct Pending {
    sqe: Sqe,
    ask: Ask,
    /// Parts that have not answered, a bit each.
    waiting: u64,
    result: Result<(), Status>,
}

/// What a controller knows of its other parts.
#[derive(Debug)]
pub(crate) struct Parts {
    part: Part,
    /// Resets so far.
    life: u32,
    /// Resets and shutdowns so far.
    halts: u32,
    /// For other parts, by their number.
    outbox: Vec<(u16, PartMessage)>,
    /// Until when each other part has been quiet, as the first one knows.
    quiet: Vec<u32>,
    /// Their queues, as the first one knows.
    pub sqs: BTreeMap<u16, FarSq>,
    pub cqs: BTreeMap<u16, CqSpec>,
    pending: Option<Box<Pending>>,
    /// An impossible doorbell was told, and not heard yet.
    has_told_doorbell: bool,
}

impl Parts {
    pub fn new(part: Part) -> Self {
        let others = if part.is_first() { usize::from(part.of.saturating_sub(1)) } else { 0 };
        Self {
            part,
            life: 0,
            halts: 0,
            outbox: Vec::new(),
            quiet: vec![0; others],
            sqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            pending: None,
            has_told_doorbell: false,
        }
    }

    /// Only the first part keeps in mind what others have.
    pub fn forget_unless_first(&mut self) {
        if !self.part.is_first() {
            self.sqs.clear();
            self.cqs.clear();
        }
    }

    fn tell(&mut self, to: u16, body: Body) {
        let (from, life) = (self.part.index, self.life);
        self.outbox.push((to, PartMessage { from, life, body }));
    }

    /// Queues vanish, and what was asked is asked no more.
    pub fn reset(&mut self) {
        self.life = self.life.wrapping_add(1);
        self.pending = None;
        self.sqs.clear();
        self.cqs.clear();
        self.halt();
    }

    /// A reset or a shutdown waits for what is in flight.
    pub fn halt(&mut self) {
        self.halts = self.halts.wrapping_add(1);
    }

    /// This part has nothing in flight since the last reset or shutdown. Whether that ends here: the first part waits
    /// for all others.
    pub fn is_quiet(&mut self) -> bool {
        let halts = self.halts;
        if !self.part.is_first() {
            self.tell(0, Body::Quiet(halts));
        }
        // Others hear of what halts them first, and may be ahead.
        self.quiet.iter().all(|quiet| quiet.wrapping_sub(halts) as i32 >= 0)
    }

    /// The admin command that waits for other parts.
    pub fn in_hand(&self) -> Option<&Sqe> {
        Some(&self.pending.as_ref()?.sqe)
    }

    /// Submission queues of other parts that are being deleted.
    pub fn deleting(&self) -> usize {
        self.sqs.values().filter(|sq| sq.deleting.is_some()).count()
    }

    /// Parts but the first, a bit each.
    fn others(&self) -> u64 {
        (1..self.part.of.min(64)).fold(0, |bits, part| bits | 1 << part)
    }
}

impl<I: Interrupts> Controller<I> {
    /// Which part of the controller this is.
    pub fn part(&self) -> Part {
        self.config.part
    }

    /// A message for another part, and that part's number. The controller's user passes it to [`hear`](Self::hear)
    /// there, between each two parts in the order in which they were taken.
    pub fn take_message(&mut self) -> Option<(u16, PartMessage)> {
        let outbox = &mut self.parts.outbox;
        if outbox.is_empty() { None } else { Some(outbox.remove(0)) }
    }

    /// Another part tells something.
    pub fn hear(&mut self, PartMessage { from, life, body }: PartMessage) {
        let is_of_now = life == self.parts.life;
        match body {
            Body::Quiet(halts) => {
                if let Some(quiet) = self.parts.quiet.get_mut(usize::from(from).wrapping_sub(1)) {
                    *quiet = halts;
                }
                self.settle();
            }
            Body::InvalidDoorbell => {
                if is_of_now {
                    self.invalid_doorbell();
                }
                self.parts.tell(from, Body::Heard);
            }
            Body::Heard => self.parts.has_told_doorbell = false,
            Body::Answer(_, Some(counts)) if !is_of_now => self.absorb(&counts),
            // A reset came between.
            _ if !is_of_now => {}
            Body::Ask(ask) => {
                let done = self.obey(ask);
                let counts = matches!(ask, Ask::Counts).then(|| Box::new(self.take_counts()));
                self.parts.tell(from, Body::Answer(done, counts));
            }
            Body::Answer(done, counts) => self.answered(from, done, counts),
            Body::DeleteSq(qid) => self.begin_deletion(qid, 0),
            Body::Deleted(qid) => self.far_sq_deleted(qid),
        }
    }

    /// Whether there is such a submission queue, wherever.
    pub(crate) fn has_sq(&mut self, qid: u16) -> bool {
        self.queues.sq(qid).is_some() || self.parts.sqs.contains_key(&qid)
    }

    /// Whether there is such a completion queue, wherever.
    pub(crate) fn has_cq(&mut self, qid: u16) -> bool {
        self.queues.cq(qid).is_some() || self.parts.cqs.contains_key(&qid)
    }

    /// Submission queues that complete to a completion queue, if there is one.
    pub(crate) fn users_of(&mut self, cqid: u16) -> Option<usize> {
        if self.parts.cqs.contains_key(&cqid) {
            return Some(self.parts.sqs.values().filter(|sq| sq.spec.cqid == cqid).count());
        }
        self.queues.cq(cqid).map(|cq| cq.users.into())
    }

    /// An impossible doorbell is for the first part to report. `true`: this is another one, which tells it.
    pub(crate) fn tells_doorbell(&mut self) -> bool {
        let is_other = !self.config.part.is_first();
        if is_other && !std::mem::replace(&mut self.parts.has_told_doorbell, true) {
            self.parts.tell(0, Body::InvalidDoorbell);
        }
        is_other
    }

    /// Does what a command asks for about a completion queue and what completes there: here, or in the part that it is
    /// with.
    pub(crate) fn ask_about(&mut self, cqid: u16, sqe: &Sqe, ask: Ask) -> Result<Reply, Status> {
        let part = self.config.part.with_cq(cqid);
        if part == self.config.part.index {
            return self.obey(ask).map(|()| Reply::Now(0));
        }
        Ok(self.ask(1 << part, sqe, ask))
    }

    /// What a command asks for is done here, and is to be done in all other parts.
    pub(crate) fn ask_others(&mut self, sqe: &Sqe, ask: Ask) -> Result<Reply, Status> {
        match self.parts.others() {
            0 => self.others_did(sqe, ask),
            others => Ok(self.ask(others, sqe, ask)),
        }
    }

    fn ask(&mut self, parts: u64, sqe: &Sqe, ask: Ask) -> Reply {
        (0..64).filter(|part| parts >> part & 1 != 0).for_each(|part| self.parts.tell(part, Body::Ask(ask)));
        self.parts.pending = Some(Box::new(Pending { sqe: *sqe, ask, waiting: parts, result: Ok(()) }));
        Reply::Later
    }

    /// Whether an admin command waits for other parts. No other one is executed meanwhile.
    #[inline]
    pub(crate) fn waits_for_parts(&self) -> bool {
        self.parts.pending.is_some()
    }

    fn obey(&mut self, ask: Ask) -> Result<(), Status> {
        match ask {
            Ask::CreateCq(spec) => return self.open_cq(spec),
            Ask::CreateSq(spec) => return self.open_sq(spec),
            Ask::DeleteCq(qid) => self.queues.remove_cq(qid),
            Ask::MoveDoorbells(pages) => {
                self.queues.doorbells.pages = Some(pages);
                self.queues.move_doorbells(&mut self.memory);
            }
            Ask::SetWriteCache(on) => self.features.write_cache = on,
            Ask::Counts => {}
        }
        Ok(())
    }

    fn answered(&mut self, from: u16, done: Result<(), Status>, counts: Option<Box<Counts>>) {
        counts.iter().for_each(|counts| self.absorb(counts));
        let Some(pending) = &mut self.parts.pending else { return };
        pending.waiting &= !(1 << from);
        pending.result = pending.result.and(done);
        if pending.waiting != 0 {
            return;
        }
        let Some(pending) = self.parts.pending.take() else { return };
        let Pending { sqe, ask, result, .. } = *pending;
        self.work.is_executing = true;
        let result = result.and_then(|()| self.others_did(&sqe, ask));
        self.conclude(&sqe, result);
        self.work.is_executing = false;
        self.post_admin();
    }

    /// Other parts did what a command asked for.
    fn others_did(&mut self, sqe: &Sqe, ask: Ask) -> Result<Reply, Status> {
        match ask {
            Ask::CreateCq(spec) => _ = self.parts.cqs.insert(spec.at.qid, spec),
            Ask::CreateSq(spec) => _ = self.parts.sqs.insert(spec.at.qid, FarSq { spec, deleting: None }),
            Ask::DeleteCq(qid) => _ = self.parts.cqs.remove(&qid),
            Ask::MoveDoorbells(_) | Ask::SetWriteCache(_) => {}
            Ask::Counts => return self.get_log_page(sqe),
        }
        Ok(Reply::Now(0))
    }

    fn absorb(&mut self, counts: &Counts) {
        self.health.absorb(&counts.health);
        self.errors.absorb(&counts.errors);
    }

    fn take_counts(&mut self) -> Counts {
        let Health { power_cycles, unsafe_shutdowns, .. } = self.health;
        let kept = Health { power_cycles, unsafe_shutdowns, ..Health::default() };
        let errors = std::mem::replace(&mut self.errors, bytemuck::Zeroable::zeroed());
        Counts { health: std::mem::replace(&mut self.health, kept), errors }
    }

    /// Begins to delete a submission queue of another part. `false`: there is none, or it is being deleted.
    pub(crate) fn delete_far_sq(&mut self, qid: u16, cid: u16) -> bool {
        let Some(sq) = self.parts.sqs.get_mut(&qid).filter(|sq| sq.deleting.is_none()) else { return false };
        sq.deleting = Some(cid);
        let part = self.config.part.with_cq(sq.spec.cqid);
        self.parts.tell(part, Body::DeleteSq(qid));
        true
    }

    /// A submission queue of this part, which is not the first, is deleted.
    pub(crate) fn tell_deleted(&mut self, qid: u16) {
        self.parts.tell(0, Body::Deleted(qid));
    }

    fn far_sq_deleted(&mut self, qid: u16) {
        let Some(cid) = self.parts.sqs.get(&qid).and_then(|sq| sq.deleting) else { return };
        self.parts.sqs.remove(&qid);
        self.queues.complete_admin(cid, 0, Status::SUCCESS);
        self.post_admin();
    }
}
