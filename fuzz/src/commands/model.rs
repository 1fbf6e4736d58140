//! The reference model of queues and completions: which commands are open, and which completion each of
//! them must get.

use std::collections::{BTreeMap, VecDeque};

use guest_memory::Access;
use nvme_spec::entry::{CQE_BYTES, SQE_BYTES};
use nvme_spec::{Cqe, PAGE_BYTES, Sqe, Status};

use super::meaning::Part;
use super::ram::{Piece, Ram, overlaps};

/// What a completion queue's memory holds wherever no completion was posted: like none that can come.
const POISON: [u8; CQE_BYTES as usize] = [0xee; CQE_BYTES as usize];

/// A submission queue.
#[derive(Debug)]
pub struct Sq {
    pub cqid: u16,
    pub entries: u16,
    pub iova: u64,
    pub head: u16,
    /// Where the guest puts its next command.
    pub next: u16,
    /// Tails that the guest wrote and the controller may go up to.
    tails: Vec<u16>,
    /// The doorbell as last seen, unless it is out of range.
    doorbell: Option<u16>,
    pub deleting: bool,
    /// Commands of a stream that were not handed out, and whose they are.
    pub stream: Option<(u64, VecDeque<Part>)>,
}

impl Sq {
    pub fn new(cqid: u16, entries: u16, iova: u64) -> Self {
        Self { cqid, entries, iova, head: 0, next: 0, tails: Vec::new(), doorbell: None, deleting: false, stream: None }
    }

    /// The doorbell says this now.
    fn saw_tail(&mut self, value: u32) {
        self.doorbell = u16::try_from(value).ok().filter(|tail| *tail < self.entries);
        if let Some(tail) = self.doorbell
            && tail != self.head
            && !self.tails.contains(&tail)
        {
            self.tails.push(tail);
        }
    }

    /// Whether the guest put something there that the controller has not taken.
    pub fn has_news(&self) -> bool {
        self.doorbell.is_some_and(|doorbell| doorbell != self.head)
    }

    /// Whether the controller may take the entry at the head.
    pub fn may_yield(&self) -> bool {
        let streams = self.stream.as_ref().is_some_and(|(_, parts)| !parts.is_empty());
        !self.tails.is_empty() && !self.deleting && !streams
    }

    /// The controller took the entry at the head. Returns whether the guest had ever put one there.
    fn take(&mut self) -> bool {
        let allowed = !self.tails.is_empty();
        self.head = (self.head + 1) % self.entries;
        self.tails.retain(|tail| *tail != self.head);
        allowed
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    pub entries: u16,
    pub iova: u64,
    pub head: u16,
    pub tail: u16,
    pub phase: bool,
    /// The device writes other things to its memory too: what is posted can't be told.
    pub blurred: bool,
}

impl Cq {
    pub fn new(entries: u16, iova: u64) -> Self {
        Self { entries, iova, head: 0, tail: 0, phase: true, blurred: false }
    }

    fn distance(&self, from: u16, to: u16) -> u16 {
        (to + self.entries - from) % self.entries
    }

    fn saw_head(&mut self, value: u32) {
        if let Ok(head) = u16::try_from(value)
            && head < self.entries
            && self.distance(self.head, head) <= self.distance(self.head, self.tail)
        {
            self.head = head;
        }
    }
}

/// How far a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// This many device commands have not come back.
    Device(usize),
    /// Asynchronous Event Request: may complete whenever something happens.
    Held,
    /// Delete I/O Submission Queue, of this queue.
    Deleting(u16),
    /// Format NVM.
    Formatting,
    /// Its completion was posted, or waits for its queue's memory.
    Due,
}

/// What its completion must say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Any,
    Success,
    Failure,
    Exactly(Status),
}

/// A command that was fetched and whose completion was not seen.
#[derive(Debug)]
pub struct Open {
    pub serial: u64,
    pub sqid: u16,
    cqid: u16,
    cid: u16,
    pub state: State,
    pub verdict: Verdict,
}

impl Open {
    pub fn is_held(&self) -> bool {
        self.state == State::Held
    }
}

#[derive(Debug, Default)]
pub struct Model {
    pub sqs: BTreeMap<u16, Sq>,
    pub cqs: BTreeMap<u16, Cq>,
    pub open: Vec<Open>,
    /// Shadow doorbells and event indexes.
    pub pages: Option<(u64, u64)>,
    next_serial: u64,
}

impl Model {
    /// A reset: nothing is left that could complete.
    pub fn clear(&mut self) {
        *self = Self { next_serial: self.next_serial, ..Self::default() };
    }

    fn queue_memory(&self, ram: &Ram, qid: u16, iova: u64, len_bytes: u64, access: Access) -> Option<Piece> {
        if let Some((shadow, events)) = self.pages.filter(|_| qid > 0) {
            ram.one(shadow, PAGE_BYTES, Access::Write)?;
            ram.one(events, PAGE_BYTES, Access::Write)?;
        }
        ram.one(iova, len_bytes, access)
    }

    /// A submission queue's memory, unless the queue is halted.
    pub fn sq_ring(&self, ram: &Ram, qid: u16) -> Option<Piece> {
        let sq = self.sqs.get(&qid)?;
        self.queue_memory(ram, qid, sq.iova, u64::from(sq.entries) * SQE_BYTES, Access::Read)
    }

    /// A completion queue's memory, unless the queue is halted.
    pub fn cq_ring(&self, ram: &Ram, qid: u16) -> Option<Piece> {
        let cq = self.cqs.get(&qid)?;
        self.queue_memory(ram, qid, cq.iova, u64::from(cq.entries) * CQE_BYTES, Access::Write)
    }

    /// The entry at a queue's head.
    pub fn peek(&self, ram: &Ram, qid: u16) -> Option<Sqe> {
        let ring = self.sq_ring(ram, qid)?;
        let at = ring.start + usize::from(self.sqs.get(&qid)?.head) * SQE_BYTES as usize;
        Some(bytemuck::pod_read_unaligned(ram.expected(&(at..at + SQE_BYTES as usize))))
    }

    /// Where a doorbell is in guest memory, if it is there.
    pub fn shadow_bell(&self, ram: &Ram, qid: u16, is_head: bool) -> Option<Piece> {
        let (shadow, _) = self.pages.filter(|_| qid > 0)?;
        ram.one(shadow + 8 * u64::from(qid) + if is_head { 4 } else { 0 }, 4, Access::Write)
    }

    /// Looks at every doorbell, as the controller may at its next call.
    pub fn look(&mut self, ram: &Ram, page: impl Fn(u16, bool) -> u32) {
        let value = |model: &Self, qid: u16, is_head: bool| match model.pages {
            Some(_) if qid > 0 => {
                let piece = model.shadow_bell(ram, qid, is_head)?;
                Some(u32::from_le_bytes(ram.expected(&piece).try_into().ok()?))
            }
            _ => Some(page(qid, is_head)),
        };
        for qid in self.sqs.keys().copied().collect::<Vec<_>>() {
            let tail = value(self, qid, false);
            if let (Some(sq), Some(tail)) = (self.sqs.get_mut(&qid), tail) {
                sq.saw_tail(tail);
            }
        }
        for qid in self.cqs.keys().copied().collect::<Vec<_>>() {
            let head = value(self, qid, true);
            if let (Some(cq), Some(head)) = (self.cqs.get_mut(&qid), head) {
                cq.saw_head(head);
            }
        }
    }

    /// The controller took a command out of a queue.
    pub fn fetched(&mut self, qid: u16) {
        let sq = self.sqs.get_mut(&qid).unwrap_or_else(|| panic!("a command of queue {qid}, which does not exist"));
        assert!(!sq.deleting, "a command of queue {qid}, which is being deleted");
        assert!(sq.take(), "queue {qid}: a command that was never submitted");
    }

    /// It is open from now on.
    pub fn start(&mut self, sqid: u16, cid: u16, state: State, verdict: Verdict) -> u64 {
        self.next_serial += 1;
        let cqid = self.sqs.get(&sqid).map_or(0, |sq| sq.cqid);
        self.open.push(Open { serial: self.next_serial, sqid, cqid, cid, state, verdict });
        self.next_serial
    }

    /// One device command of it came back.
    pub fn part_done(&mut self, serial: u64, verdict: Verdict) {
        let Some(open) = self.open.iter_mut().find(|open| open.serial == serial) else { return };
        if open.verdict != Verdict::Failure {
            open.verdict = verdict;
        }
        if let State::Device(parts) = open.state {
            open.state = if parts > 1 { State::Device(parts - 1) } else { State::Due };
        }
    }

    /// It ended by itself.
    pub fn due(&mut self, serial: u64, verdict: Verdict) {
        if let Some(open) = self.open.iter_mut().find(|open| open.serial == serial) {
            (open.state, open.verdict) = (State::Due, verdict);
        }
    }

    /// Queues whose deletion waited for their commands, and has nothing to wait for any more.
    pub fn end_deletions(&mut self) {
        let busy = |model: &Self, qid: u16| {
            model.open.iter().any(|open| open.sqid == qid && matches!(open.state, State::Device(_)))
        };
        let over = |(qid, sq): (&u16, &Sq)| (sq.deleting && !busy(self, *qid)).then_some(*qid);
        for qid in self.sqs.iter().filter_map(over).collect::<Vec<_>>() {
            self.sqs.remove(&qid);
            for open in self.open.iter_mut().filter(|open| open.state == State::Deleting(qid)) {
                (open.state, open.verdict) = (State::Due, Verdict::Success);
            }
        }
    }

    /// Marks completion queues in memory that the device writes other things to.
    pub fn blur<'a>(&mut self, ram: &Ram, written: impl Iterator<Item = &'a Piece>) {
        let rings: Vec<(u16, Piece)> =
            self.cqs.keys().filter_map(|qid| Some((*qid, self.cq_ring(ram, *qid)?))).collect();
        let pages = self.pages.map(|(shadow, events)| [shadow, events]).into_iter().flatten();
        let mut others: Vec<Piece> = pages.filter_map(|page| ram.one(page, PAGE_BYTES, Access::Write)).collect();
        others.extend(written.cloned());
        for (qid, ring) in &rings {
            let shared = rings.iter().any(|(other, its)| other != qid && overlaps(its, ring));
            if (shared || others.iter().any(|other| overlaps(other, ring)))
                && let Some(cq) = self.cqs.get_mut(qid)
            {
                cq.blurred = true;
            }
        }
    }

    /// Takes every completion that was posted, then checks that none is missing.
    pub fn collect(&mut self, ram: &mut Ram) {
        for qid in self.cqs.keys().copied().collect::<Vec<_>>() {
            let Some(ring) = self.cq_ring(ram, qid) else { continue };
            if self.cqs.get(&qid).is_some_and(|cq| cq.blurred) {
                ram.allow(&ring);
                self.open.retain(|open| open.cqid != qid || open.state != State::Due);
                continue;
            }
            while let Some(cqe) = self.next_posted(ram, qid, &ring) {
                self.account(qid, &cqe);
            }
        }
        for open in self.open.iter().filter(|open| open.state == State::Due) {
            let reachable = self.cq_ring(ram, open.cqid).is_some();
            assert!(!reachable, "no completion came for {open:?}");
        }
        let Self { open, cqs, .. } = self;
        open.retain(|open| cqs.contains_key(&open.cqid));
    }

    /// Whether a completion of this queue came that was not collected.
    pub fn newest_is_of(&self, ram: &Ram, sqid: u16) -> bool {
        let found = || {
            let cqid = self.sqs.get(&sqid)?.cqid;
            let cq = self.cqs.get(&cqid).filter(|cq| !cq.blurred)?;
            let at = self.cq_ring(ram, cqid)?.start + usize::from(cq.tail) * POISON.len();
            let raw = ram.actual(&(at..at + POISON.len()));
            let cqe: Cqe = bytemuck::pod_read_unaligned(&raw);
            (raw != ram.expected(&(at..at + POISON.len()))).then_some(cqe.sqid == sqid)
        };
        found().unwrap_or(false)
    }

    fn next_posted(&mut self, ram: &mut Ram, qid: u16, ring: &Piece) -> Option<Cqe> {
        let cq = self.cqs.get_mut(&qid)?;
        let at = ring.start + usize::from(cq.tail) * POISON.len();
        let piece = at..at + POISON.len();
        let raw = ram.actual(&piece);
        if raw == ram.expected(&piece) {
            return None;
        }
        ram.poke(&piece, &POISON);
        let cqe: Cqe = bytemuck::pod_read_unaligned(&raw);
        assert_eq!(cqe.phase(), cq.phase, "queue {qid}: phase of {cqe:?}");
        cq.tail = (cq.tail + 1) % cq.entries;
        cq.phase ^= cq.tail == 0;
        assert_ne!(cq.tail, cq.head, "queue {qid} overflowed with {cqe:?}");
        Some(cqe)
    }

    fn account(&mut self, cqid: u16, cqe: &Cqe) {
        let named = |open: &Open| open.cqid == cqid && open.sqid == cqe.sqid && open.cid == cqe.cid;
        let ready = |open: &Open| named(open) && open.state == State::Due && fits(open.verdict, cqe.status());
        let held = |open: &Open| named(open) && open.state == State::Held;
        let at = self.open.iter().position(ready).or_else(|| self.open.iter().position(held));
        let Some(at) = at else {
            let same: Vec<&Open> = self.open.iter().filter(|open| named(open)).collect();
            panic!("queue {cqid}: {cqe:?}, status {:?}, but what is open is {same:?}", cqe.status());
        };
        self.open.remove(at);
    }

    /// Fills a completion queue's memory with what no completion looks like.
    pub fn poison(ram: &mut Ram, ring: &Piece) {
        let entries = ring.len() / POISON.len();
        ram.poke(ring, &POISON.repeat(entries));
    }
}

fn fits(verdict: Verdict, status: Status) -> bool {
    match verdict {
        Verdict::Any => true,
        Verdict::Success => status.is_success(),
        Verdict::Failure => !status.is_success(),
        Verdict::Exactly(expected) => status == expected,
    }
}
