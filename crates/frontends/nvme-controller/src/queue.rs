//! Submission and completion queues: rings in guest memory, their indexes, and the table of commands
//! in flight.
//!
//! A command is fetched only after a completion slot was reserved for it, so posting can't fail. A
//! queue whose memory was unmapped is *halted*: it has no [`View`]; nothing is fetched from it, and
//! its completions are parked (never more than its depth, as each has its reserved slot) until the
//! memory is back.

use std::collections::VecDeque;

use bytemuck::{Pod, Zeroable};
use guest_memory::{CACHE_LINE_BYTES, MappedU32};
use nvme_spec::entry::{CQE_BYTES, SQE_BYTES};
use nvme_spec::opcode::nvm;
use nvme_spec::{Sqe, Status};

use crate::bounce::Bounce;
use crate::crash;
use crate::dbbuf::{View, overlaps};
use crate::dsm::RangeStream;

/// How many entries the one that is asked for is after the one that is read: a line that another core wrote last takes
/// longer to come than a command.
const AHEAD: u16 = 8;

/// The host wrote a value to a doorbell that its queue can't have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidDoorbell;

/// What a command in flight is, for its completion and the health log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Flush,
    WriteZeroes,
    Discard,
    Compare,
    Verify,
}

/// One command in flight.
#[derive(Debug)]
pub(crate) struct Slot {
    pub cid: u16,
    pub kind: Kind,
    /// As the command says.
    pub nsid: u32,
    /// Device commands that have not come back: 1, or more for Dataset Management. 0: no command.
    pub pending: u16,
    /// First error.
    pub status: Status,
    pub len_bytes: u32,
    pub slba: u64,
    /// Which command of its queue it is, counted from 1.
    pub number: u64,
    pub bounce: Option<Box<Bounce>>,
}

impl Slot {
    const UNUSED: Self = Self {
        cid: 0,
        kind: Kind::Flush,
        nsid: 0,
        pending: 0,
        status: Status::SUCCESS,
        len_bytes: 0,
        slba: 0,
        number: 0,
        bounce: None,
    };
}

/// Where a queue lies and how it was created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Geometry {
    pub qid: u16,
    pub entries: u16,
    pub iova: u64,
}

/// A command to be executed again.
#[derive(Debug)]
pub(crate) struct Again {
    /// Its place in the table.
    pub slot: u16,
    pub number: u64,
    pub sqe: Sqe,
}

/// A submission queue.
#[derive(Debug)]
pub(crate) struct Sq {
    pub at: Geometry,
    pub cqid: u16,
    pub priority: u8,
    pub head: u16,
    /// The tail when the doorbell was last read.
    pub tail: u16,
    /// Tells this queue's tokens from those of an earlier one with its identifier.
    pub generation: u16,
    /// Commands fetched so far.
    pub fetched: u64,
    /// The place in the table of the command that is being taken in, and its number.
    pub claimed: Option<(u16, u64)>,
    /// What another process fetched and did not complete, in the order in which it did. Their places are taken.
    pub again: VecDeque<Again>,
    /// A Delete command with this CID waits for the commands in flight.
    pub deleting: Option<u16>,
    /// A Dataset Management command whose ranges are being handed out.
    pub stream: Option<RangeStream>,
    /// The next command waits for bounce memory.
    pub waits_for_bounce: bool,
    /// The impossible tail that was reported last; 0 is none.
    bad_tail: u32,
    view: Option<View>,
    slots: Box<[Slot]>,
    free: Vec<u16>,
}

impl Sq {
    pub fn new(at: Geometry, cqid: u16, priority: u8, generation: u16, view: Option<View>) -> Self {
        Self {
            at,
            cqid,
            priority,
            head: 0,
            tail: 0,
            generation,
            fetched: 0,
            claimed: None,
            again: VecDeque::new(),
            deleting: None,
            stream: None,
            waits_for_bounce: false,
            bad_tail: 0,
            view,
            slots: (0..at.entries).map(|_| Slot::UNUSED).collect(),
            // Reversed, so that a shallow queue keeps to the first slots.
            free: (0..at.entries).rev().collect(),
        }
    }

    pub fn ring_bytes(entries: u16) -> u64 {
        u64::from(entries) * SQE_BYTES
    }

    /// Memory of our own that it needs.
    pub fn table_bytes(&self) -> u64 {
        (std::mem::size_of_val(&*self.slots) + self.free.capacity() * size_of::<u16>()) as u64
    }

    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    pub fn set_view(&mut self, view: Option<View>) {
        self.view = view;
    }

    pub fn uses(&self, iova: u64, len_bytes: u64) -> bool {
        overlaps(self.at.iova, Self::ring_bytes(self.at.entries), iova, len_bytes)
    }

    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Those of a namespace. Looks at every slot.
    pub fn in_flight_of(&self, nsid: u32) -> u32 {
        self.slots.iter().filter(|slot| slot.pending > 0 && slot.nsid == nsid).count() as u32
    }

    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Reads the tail doorbell. An impossible value is ignored, and reported once.
    #[inline]
    pub fn refresh(&mut self, awake: bool) -> Result<(), InvalidDoorbell> {
        let Some(view) = &self.view else { return Ok(()) };
        let tail = view.doorbell.load();
        if tail == u32::from(self.tail) {
            return Ok(());
        }
        if tail >= u32::from(self.at.entries) {
            let known = std::mem::replace(&mut self.bad_tail, tail);
            return if known == tail { Ok(()) } else { Err(InvalidDoorbell) };
        }
        self.bad_tail = 0;
        self.tail = tail as u16;
        if awake {
            view.follow(self.tail, self.at.entries);
        }
        (0..AHEAD.min(self.waiting() as u16)).for_each(|ahead| self.ask_for(ahead));
        Ok(())
    }

    /// Where the host rings while we sleep, and what it last wrote there as far as we know.
    pub fn doorbell(&self) -> Option<(MappedU32, u32)> {
        Some(self.view.as_ref()?.rings(self.known_tail()))
    }

    /// What the tail doorbell said when it was last read.
    #[inline]
    pub fn known_tail(&self) -> u32 {
        if self.bad_tail == 0 { self.tail.into() } else { self.bad_tail }
    }

    /// Commands between head and the last known tail.
    #[inline]
    pub fn waiting(&self) -> u32 {
        let (head, tail) = (u32::from(self.head), u32::from(self.tail));
        if tail >= head { tail - head } else { tail + u32::from(self.at.entries) - head }
    }

    /// A copy of the entry at the head.
    #[inline]
    pub fn peek(&self) -> Option<Sqe> {
        let mut sqe = Sqe::zeroed();
        let ring = &self.view.as_ref()?.ring;
        ring.read_64(u64::from(self.head) * SQE_BYTES, bytemuck::must_cast_mut(&mut sqe))?;
        if self.waiting() > AHEAD.into() {
            self.ask_for(AHEAD);
        }
        Some(sqe)
    }

    /// Prefetches the entry `ahead` after the head, which is in the cache of the host's core. Only for entries that are
    /// known to be written: that core would fetch it back otherwise.
    #[inline]
    fn ask_for(&self, ahead: u16) {
        let Some(view) = &self.view else { return };
        let (at, entries) = (u64::from(self.head) + u64::from(ahead), u64::from(self.at.entries));
        view.ring.prefetch(if at < entries { at } else { at - entries } * SQE_BYTES);
    }

    /// Consumes the entry at the head, and claims a place in the table for it: its identifier and number.
    #[inline]
    pub fn advance(&mut self) -> Option<(u16, u64)> {
        self.head = self.after(self.head);
        self.fetched += 1;
        self.claimed = self.free.pop().map(|id| (id, self.fetched));
        self.claimed
    }

    /// As [`Sq::take_again`], unless it would have to wait for bounce memory.
    #[inline]
    pub fn take_again_unless(&mut self, bounce_is_full: bool) -> Option<Sqe> {
        let next = self.again.front().filter(|_| self.view.is_some())?;
        if bounce_is_full && matches!(next.sqe.opc, nvm::COMPARE | nvm::VERIFY) {
            self.waits_for_bounce = true;
            return None;
        }
        self.take_again()
    }

    /// Takes the next command that is to be executed again, in the place that it has.
    pub fn take_again(&mut self) -> Option<Sqe> {
        let Again { slot, number, sqe } = self.again.pop_front()?;
        self.claimed = Some((slot, number));
        Some(sqe)
    }

    /// Forgets a command that was to be executed again, and turned out to be completed: its place and number.
    pub fn forget_again(&mut self, cid: u16) -> Option<(u16, u64)> {
        let at = self.again.iter().position(|it| it.sqe.cid == cid)?;
        let Again { slot, number, .. } = self.again.remove(at)?;
        self.free.push(slot);
        Some((slot, number))
    }

    /// The place that is claimed for a command which needs none: it is free again.
    #[inline]
    pub fn unclaim(&mut self) -> Option<(u16, u64)> {
        let claimed = self.claimed.take()?;
        self.free.push(claimed.0);
        Some(claimed)
    }

    /// A place of the table is taken, by another process's command.
    pub fn occupy(&mut self, slot: u16) {
        self.free.retain(|free| *free != slot);
    }

    fn after(&self, index: u16) -> u16 {
        if index + 1 == self.at.entries { 0 } else { index + 1 }
    }

    /// Enters a command into the place that is claimed for it; the identifier of that.
    #[inline]
    pub fn start(&mut self, sqe: &Sqe, kind: Kind, slba: u64, len_bytes: u64) -> Option<u16> {
        let (id, number) = self.claimed.take()?;
        let slot = self.slots.get_mut(usize::from(id))?;
        slot.number = number;
        slot.cid = sqe.cid;
        slot.nsid = sqe.nsid;
        slot.kind = kind;
        slot.pending = 1;
        slot.status = Status::SUCCESS;
        slot.slba = slba;
        slot.len_bytes = u32::try_from(len_bytes).unwrap_or(u32::MAX);
        Some(id)
    }

    /// The command in slot `id`. `None`: no such slot.
    #[inline]
    pub fn slot(&mut self, id: u32) -> Option<&mut Slot> {
        self.slots.get_mut(id as usize)
    }

    #[inline]
    pub fn finish(&mut self, id: u32) {
        self.free.push(id as u16);
    }

    /// Arms or disarms the event index for a poller that is about to sleep or just woke.
    pub fn set_wakeup(&self, wanted: bool) {
        if let Some(view) = &self.view {
            view.set_wakeup(wanted, self.tail, self.at.entries);
        }
    }
}

/// A completion queue entry but for its phase tag, as two little-endian halves.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub(crate) struct Entry {
    low: u64,
    high: u64,
}

/// A completion that waits for its ring to be reachable, and whose place in its queue's table it still has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parked {
    pub entry: Entry,
    pub sqid: u16,
    pub slot: u16,
    pub number: u64,
}

impl Entry {
    /// The submission queue and the identifier of the command that an entry of a ring is about.
    fn of(high: u64) -> (u16, u16) {
        ((high >> 16) as u16, (high >> 32) as u16)
    }

    pub fn cid(&self) -> u16 {
        Self::of(self.high).1
    }

    /// The completion with another head of its submission queue.
    pub fn with_head(self, sqhd: u16) -> Self {
        Self { high: self.high & !0xffff | u64::from(sqhd), ..self }
    }

    #[inline]
    pub fn new(dw0: u32, sqhd: u16, sqid: u16, cid: u16, status: Status) -> Self {
        let high = u64::from(sqhd) | u64::from(sqid) << 16 | u64::from(cid) << 32 | u64::from(status.0 << 1) << 48;
        Self { low: dw0.into(), high }
    }
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub at: Geometry,
    pub vector: u16,
    pub interrupts: bool,
    pub head: u16,
    pub tail: u16,
    pub phase: bool,
    /// Entries neither occupied nor reserved, as far as the last known head tells. Of an inherited queue, as if none
    /// were occupied.
    pub free: u16,
    /// Submission queues that complete here.
    pub users: u16,
    /// The impossible head that was reported last; 0 is none.
    bad_head: u32,
    /// Another process served it: whether its last completion is posted, the ring shows once it can be reached.
    pub is_inherited: bool,
    view: Option<View>,
    pub parked: Vec<Parked>,
}

impl Cq {
    pub fn new(at: Geometry, vector: u16, interrupts: bool, view: Option<View>) -> Self {
        let free = at.entries - 1;
        Self {
            at,
            vector,
            interrupts,
            head: 0,
            tail: 0,
            phase: true,
            free,
            users: 0,
            bad_head: 0,
            is_inherited: false,
            view,
            parked: Vec::new(),
        }
    }

    pub fn ring_bytes(entries: u16) -> u64 {
        u64::from(entries) * CQE_BYTES
    }

    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    pub fn set_view(&mut self, view: Option<View>) {
        self.view = view;
    }

    /// What the ring has at the tail, if it was posted in this round: which command it is about.
    pub fn posted_at_tail(&self) -> Option<(u16, u16)> {
        let (_, high) = self.view.as_ref()?.ring.consume_16(u64::from(self.tail) * CQE_BYTES)?;
        (high >> 48 & 1 == u64::from(self.phase)).then(|| Entry::of(high))
    }

    /// The entry at the tail is one that was to come, and is posted.
    pub fn inherit_posted(&mut self) {
        self.unreserve();
        self.pass_tail();
    }

    fn pass_tail(&mut self) {
        self.tail += 1;
        if self.tail == self.at.entries {
            self.tail = 0;
            self.phase = !self.phase;
        }
    }

    pub fn uses(&self, iova: u64, len_bytes: u64) -> bool {
        overlaps(self.at.iova, Self::ring_bytes(self.at.entries), iova, len_bytes)
    }

    fn distance(&self, from: u16, to: u16) -> u16 {
        if to >= from { to - from } else { to + (self.at.entries - from) }
    }

    /// Entries that the host has not consumed, as far as the last known head tells.
    pub fn occupied(&self) -> u16 {
        self.distance(self.head, self.tail)
    }

    /// Reads the head doorbell. An impossible value is ignored, and reported once.
    pub fn refresh(&mut self, awake: bool) -> Result<(), InvalidDoorbell> {
        let Some(view) = &self.view else { return Ok(()) };
        let head = view.doorbell.load();
        if head == u32::from(self.head) {
            return Ok(());
        }
        let consumed = u16::try_from(head)
            .ok()
            .filter(|head| *head < self.at.entries)
            .map(|head| self.distance(self.head, head))
            .filter(|consumed| *consumed <= self.occupied());
        let Some(consumed) = consumed else {
            let known = std::mem::replace(&mut self.bad_head, head);
            return if known == head { Ok(()) } else { Err(InvalidDoorbell) };
        };
        self.bad_head = 0;
        self.head = head as u16;
        self.free += consumed;
        if awake {
            view.follow(self.head, self.at.entries);
        }
        Ok(())
    }

    /// What the host has read of an inherited ring, its doorbell alone tells: the head that was last known may be more
    /// than a round ago. Until it says something possible, all of the ring counts as unread.
    pub fn inherit_head(&mut self) {
        let Some(view) = &self.view else { return };
        let rung = u16::try_from(view.doorbell.load()).ok().filter(|head| *head < self.at.entries);
        self.head = rung.unwrap_or((self.tail + 1) % self.at.entries);
        self.free = self.free.saturating_sub(self.occupied());
    }

    /// Where the host rings while we sleep, and what it last wrote there as far as we know.
    pub fn doorbell(&self) -> Option<(MappedU32, u32)> {
        let known = if self.bad_head == 0 { u32::from(self.head) } else { self.bad_head };
        Some(self.view.as_ref()?.rings(known))
    }

    /// Takes one free entry for a command that is about to be fetched. There must be one.
    #[inline]
    pub fn reserve(&mut self) {
        self.free -= 1;
    }

    /// Gives a reserved entry back unused.
    pub fn unreserve(&mut self) {
        self.free += 1;
    }

    /// Posts a completion into a reserved entry. `false`: the ring can't be reached.
    #[inline]
    pub fn publish(&mut self, entry: Entry) -> bool {
        let Some(view) = &self.view else { return false };
        let high = entry.high | u64::from(self.phase) << 48;
        crash::point();
        // Fails only where the VMM mapped the ring at an odd address; its guest sees nothing then.
        let at = u64::from(self.tail) * CQE_BYTES;
        let _ = view.ring.publish_16(at, entry.low, high);
        if at.is_multiple_of(CACHE_LINE_BYTES as u64) {
            // The host's core has the next line too, from the round before, and looks at this one now.
            view.ring.prefetch_to_write(at + CACHE_LINE_BYTES as u64);
        }
        self.pass_tail();
        true
    }

    pub fn set_wakeup(&self, wanted: bool) {
        if let Some(view) = &self.view {
            view.set_wakeup(wanted, self.head, self.at.entries);
        }
    }
}
