//! The drive: events in the order of their time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use io_model::QueuePriority;

use crate::fetch::Fetch;
use crate::link::Link;
use crate::nand::{Flash, Out};
use crate::units::{Through, Units};
use crate::write_buffer::WriteBuffer;
use arbitration::Arbitration;

use crate::{Profile, Writes};

/// A longer command is timed as one of this length.
pub const MAX_COMMAND_BYTES: u64 = 1 << 30;

/// More commands than this are never inside, whatever [`Profile::window`] says.
const MAX_WINDOW: u32 = 65_535;

/// What a command is to a drive's timing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Data out of the drive.
    Read,
    /// Data into the drive.
    Write,
    /// Flush, discard, write zeroes: no data, no unit.
    Control,
}

/// One command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The caller's; comes back from [`Drive::poll`].
    pub tag: u32,
    /// What it is.
    pub kind: Kind,
    /// Where it starts on the drive.
    pub offset_bytes: u64,
    /// How long it is. A command costs time proportional to its stripes.
    pub len_bytes: u64,
}

/// There is no such queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the drive has no such queue")]
pub struct UnknownQueue;

/// A command on its way out.
#[derive(Debug, Clone, Copy)]
struct Finish {
    at_ns: u64,
    hwq: u16,
    tag: u32,
}

/// A command in the medium or on its way there.
#[derive(Debug, Clone, Copy, Default)]
struct Inside {
    first_ns: u64,
    len_bytes: u64,
    hwq: u16,
    tag: u32,
    is_read: bool,
}

/// Commands leave in three lanes, each in order of time, so that no heap is needed to sort them.
const LANES: usize = 3;
const READ: usize = 0;
const WRITE: usize = 1;
const CONTROL: usize = 2;

/// What is behind the controller.
#[derive(Debug)]
enum Medium {
    /// Units whose work is known when it arrives, and perhaps a buffer in front of them. The heap holds the
    /// commands in the units by the end of their work: time, then order of dispatch, then slot.
    Units { units: Units, ends: BinaryHeap<Reverse<u128>>, buffer: Option<WriteBuffer> },
    /// Dies on channels, stepped by events of their own.
    Flash(Flash),
}

impl Medium {
    fn new(profile: &Profile, write_link: &Link, window: usize) -> Self {
        let buffer = match profile.writes {
            Writes::Programmed { buffer_bytes, nand, .. } => {
                return Self::Flash(Flash::new(profile, nand, buffer_bytes, window));
            }
            Writes::InPlace { .. } => None,
            Writes::Buffered { buffer_bytes, drain_ns, .. } => {
                let amplified = |ns: u64| match profile.active_gc() {
                    Some(gc) => (ns as f64 * gc.write_amplification()).round() as u64,
                    None => ns,
                };
                Some(WriteBuffer::new(buffer_bytes, amplified(drain_ns), amplified(write_link.transfer_ns(4096))))
            }
        };
        Self::Units { units: Units::new(profile), ends: BinaryHeap::with_capacity(window), buffer }
    }

    /// When it has something to do next; `u64::MAX`: nothing.
    #[inline]
    fn next_ns(&self) -> u64 {
        match self {
            Self::Units { ends, .. } => ends.peek().map_or(u64::MAX, |Reverse(end)| (end >> 64) as u64),
            Self::Flash(flash) => flash.next_ns(),
        }
    }
}

/// A drive in the middle of its work.
///
/// Costs O(log window) for a command of one stripe, O(stripes) more for larger ones, whatever the number
/// of queues. It allocates only while its queues grow to the depth that they are used with.
///
/// Times may not go back. A time earlier than one that was already passed in counts as that one.
#[derive(Debug)]
pub struct Drive {
    profile: Profile,
    window: u32,
    now_ns: u64,
    fetch: Fetch,
    controller_free_at: u64,
    medium: Medium,
    /// By slot: the commands in the medium.
    inside: Vec<Inside>,
    free_slots: Vec<u16>,
    read_link: Link,
    write_link: Link,
    lanes: [VecDeque<Finish>; LANES],
    /// When each lane's first command finishes; `u64::MAX` when empty. Beside the lanes because every step asks.
    lane_ns: [u64; LANES],
    /// Finished and not polled.
    finished: VecDeque<Finish>,
    /// Fetched and not finished.
    in_flight: u32,
    sequence: u64,
    /// What the flash handed out; kept for its memory.
    out: Vec<Out>,
}

impl Drive {
    /// An idle drive with `hwqs` queues, [`MAX_QUEUES`](crate::MAX_QUEUES) at most, all of the class medium.
    pub fn new(profile: Profile, hwqs: u16) -> Self {
        let window = profile.window.clamp(1, MAX_WINDOW);
        let slots = window as usize;
        let write_link = Link::new(profile.link_write_mb_s);
        Self {
            window,
            now_ns: 0,
            fetch: Fetch::new(hwqs, profile.arbitration),
            controller_free_at: 0,
            medium: Medium::new(&profile, &write_link, slots),
            inside: vec![Inside::default(); slots],
            free_slots: (0..window as u16).rev().collect(),
            read_link: Link::new(profile.link_read_mb_s),
            write_link,
            lanes: std::array::from_fn(|_| VecDeque::with_capacity(slots)),
            lane_ns: [u64::MAX; LANES],
            finished: VecDeque::with_capacity(slots),
            in_flight: 0,
            sequence: 0,
            out: Vec::new(),
            profile,
        }
    }

    /// Puts a queue into an arbitration class.
    pub fn set_class(&mut self, hwq: u16, class: QueuePriority) -> Result<(), UnknownQueue> {
        if self.fetch.set_class(hwq, class) { Ok(()) } else { Err(UnknownQueue) }
    }

    /// The arbitration in force: the profile's until [`Drive::set_arbitration`].
    pub fn arbitration(&self) -> Arbitration {
        self.fetch.arbitration()
    }

    /// Changes the arbitration for all that is not fetched yet.
    pub fn set_arbitration(&mut self, arbitration: Arbitration) {
        self.fetch.set_arbitration(arbitration);
    }

    /// Number of queues.
    pub fn hwqs(&self) -> u16 {
        self.fetch.hwqs()
    }

    /// What it is made of.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Puts a command into a queue at `now_ns`.
    pub fn submit(&mut self, now_ns: u64, hwq: u16, request: Request) -> Result<(), UnknownQueue> {
        // The arbiter must not see the command in a turn that was before it came.
        self.advance(now_ns);
        let len_bytes = request.len_bytes.min(MAX_COMMAND_BYTES);
        if self.fetch.push(hwq, Request { len_bytes, ..request }) { Ok(()) } else { Err(UnknownQueue) }
    }

    /// Lets the drive work until `now_ns` and hands out what finished: queue, tag and the time at which
    /// it finished, in the order of those times.
    pub fn poll(&mut self, now_ns: u64, finished: &mut impl FnMut(u16, u32, u64)) {
        self.advance(now_ns);
        for Finish { at_ns, hwq, tag } in self.finished.drain(..) {
            finished(hwq, tag, at_ns);
        }
    }

    /// When something happens next; in the past if something finished that was not polled yet. `None`: the
    /// drive is idle.
    pub fn next_event(&self) -> Option<u64> {
        match self.finished.front() {
            Some(finish) => Some(finish.at_ns),
            None => Some(self.next().0).filter(|&at_ns| at_ns != u64::MAX),
        }
    }

    /// A time before which [`Drive::poll`] hands nothing out, unless more is submitted: never late, often exact, and
    /// seldomer than [`Drive::next_event`], which also tells of the drive's inner steps. `None`: the drive is idle.
    pub fn next_finish(&self) -> Option<u64> {
        if let Some(finish) = self.finished.front() {
            return Some(finish.at_ns);
        }
        let in_lanes = self.lane_ns.into_iter().min().unwrap_or(u64::MAX);
        let pipeline_ns = self.profile.pipeline_ns;
        let (medium_ns, least_ns) = match self.profile.writes {
            Writes::InPlace { .. } => (pipeline_ns, pipeline_ns),
            Writes::Buffered { ack_ns, .. } => (pipeline_ns, pipeline_ns.min(ack_ns)),
            Writes::Programmed { ack_ns, .. } => (pipeline_ns.min(ack_ns), pipeline_ns.min(ack_ns)),
        };
        let in_medium = self.medium.next_ns().saturating_add(medium_ns);
        let fetched = self.fetch_ns().saturating_add(self.profile.controller_ns).saturating_add(least_ns);
        Some(in_lanes.min(in_medium).min(fetched)).filter(|&at_ns| at_ns != u64::MAX)
    }

    /// When the next command is fetched; `u64::MAX`: none, or no room.
    #[inline]
    fn fetch_ns(&self) -> u64 {
        let may_fetch = !self.fetch.is_empty() && self.in_flight < self.window;
        if may_fetch { self.controller_free_at.max(self.now_ns) } else { u64::MAX }
    }

    /// The next event. Of several at one time, the one nearest to the end comes first: it makes room.
    #[inline]
    fn next(&self) -> (u64, Event) {
        let mut next = (self.lane_ns[0], Event::Finish { lane: 0 });
        for lane in 1..LANES {
            if self.lane_ns[lane] < next.0 {
                next = (self.lane_ns[lane], Event::Finish { lane });
            }
        }
        let medium_ns = self.medium.next_ns();
        if medium_ns < next.0 {
            next = (medium_ns, Event::Medium);
        }
        let fetch_ns = self.fetch_ns();
        if fetch_ns < next.0 {
            next = (fetch_ns, Event::Fetch);
        }
        next
    }

    fn advance(&mut self, until_ns: u64) {
        loop {
            let (at_ns, event) = self.next();
            if at_ns > until_ns || at_ns == u64::MAX {
                break;
            }
            self.now_ns = at_ns.max(self.now_ns);
            match event {
                Event::Finish { lane } => {
                    self.finished.extend(self.lanes[lane].pop_front());
                    self.lane_ns[lane] = self.lanes[lane].front().map_or(u64::MAX, |finish| finish.at_ns);
                    self.in_flight -= 1;
                }
                Event::Medium => self.step_medium(),
                Event::Fetch => self.fetch_one(),
            }
        }
        self.now_ns = self.now_ns.max(until_ns);
    }

    /// A lane's commands finish in the order in which they entered it.
    fn leave(&mut self, lane: usize, at_ns: u64, hwq: u16, tag: u32) {
        let queue = &mut self.lanes[lane];
        let at_ns = queue.back().map_or(at_ns, |last| last.at_ns.max(at_ns));
        queue.push_back(Finish { at_ns, hwq, tag });
        self.lane_ns[lane] = self.lane_ns[lane].min(at_ns);
    }

    fn step_medium(&mut self) {
        match &mut self.medium {
            Medium::Units { ends, .. } => {
                let Some(Reverse(end)) = ends.pop() else { return };
                self.leave_units(end as u16, (end >> 64) as u64);
            }
            Medium::Flash(flash) => {
                let mut out = std::mem::take(&mut self.out);
                flash.step(&mut out);
                for one in out.drain(..) {
                    match one {
                        Out::Read { slot, first_ns } => {
                            self.inside[usize::from(slot)].first_ns = first_ns;
                            self.leave_units(slot, self.now_ns);
                        }
                        Out::Admitted { slot } => self.acknowledge(slot),
                    }
                }
                self.out = out;
            }
        }
    }

    fn leave_units(&mut self, slot: u16, last_ns: u64) {
        let Inside { first_ns, len_bytes, hwq, tag, is_read } = self.inside[usize::from(slot)];
        self.free_slots.push(slot);
        let (lane, link) = if is_read { (READ, &mut self.read_link) } else { (WRITE, &mut self.write_link) };
        let ack_ns = match self.profile.writes {
            Writes::InPlace { ack_ns, .. } if !is_read => ack_ns,
            _ => 0,
        };
        let at_ns = link.stream(Through { first_ns, last_ns }, len_bytes) + self.profile.pipeline_ns + ack_ns;
        self.leave(lane, at_ns, hwq, tag);
    }

    /// The flash's buffer has all of a write.
    fn acknowledge(&mut self, slot: u16) {
        let Inside { len_bytes, hwq, tag, .. } = self.inside[usize::from(slot)];
        self.free_slots.push(slot);
        let Writes::Programmed { ack_ns, ack_further_ns, .. } = self.profile.writes else { return };
        let further = len_bytes.div_ceil(4096).max(1) - 1;
        self.leave(WRITE, self.now_ns + ack_ns + further * ack_further_ns, hwq, tag);
    }

    fn fetch_one(&mut self) {
        let Some((hwq, request)) = self.fetch.next() else { return };
        let at_ns = self.now_ns + self.profile.controller_ns;
        self.controller_free_at = at_ns;
        self.in_flight += 1;
        match (request.kind, self.profile.writes) {
            (Kind::Control, _) => self.leave(CONTROL, at_ns + self.profile.pipeline_ns, hwq, request.tag),
            (Kind::Read, _) => self.occupy(at_ns, hwq, request, self.profile.read_ns),
            (Kind::Write, Writes::InPlace { write_ns, .. }) => self.occupy(at_ns, hwq, request, write_ns),
            (Kind::Write, Writes::Buffered { ack_ns, .. } | Writes::Programmed { ack_ns, .. }) => {
                self.buffer(at_ns, hwq, request, ack_ns);
            }
        }
    }

    /// Brings a command to the units or dies that its addresses lie on.
    fn occupy(&mut self, at_ns: u64, hwq: u16, request: Request, service_ns: u64) {
        let Request { tag, kind, offset_bytes, len_bytes } = request;
        let is_read = kind == Kind::Read;
        let slot = enter(&mut self.inside, &mut self.free_slots, Inside { first_ns: 0, len_bytes, hwq, tag, is_read });
        match &mut self.medium {
            Medium::Units { units, ends, .. } => {
                let Through { first_ns, last_ns } = units.occupy(at_ns, offset_bytes, len_bytes, service_ns);
                self.inside[usize::from(slot)].first_ns = first_ns;
                self.sequence += 1;
                ends.push(Reverse(u128::from(last_ns) << 64 | u128::from(self.sequence) << 16 | u128::from(slot)));
            }
            Medium::Flash(flash) => flash.read(at_ns, slot, offset_bytes, len_bytes),
        }
    }

    /// Brings a write over the link to the buffer.
    fn buffer(&mut self, at_ns: u64, hwq: u16, request: Request, ack_ns: u64) {
        let Request { tag, len_bytes, .. } = request;
        let arrived_ns = self.write_link.carry(at_ns, len_bytes);
        match &mut self.medium {
            Medium::Units { buffer, .. } => {
                let admitted_ns = buffer.as_mut().map_or(arrived_ns, |buffer| buffer.admit(arrived_ns, len_bytes));
                self.leave(WRITE, admitted_ns + ack_ns, hwq, tag);
            }
            Medium::Flash(flash) => {
                let slot =
                    enter(&mut self.inside, &mut self.free_slots, Inside { len_bytes, hwq, tag, ..Inside::default() });
                flash.write(arrived_ns, slot, len_bytes);
            }
        }
    }
}

/// As many slots as the window has places, so one is free.
fn enter(inside: &mut [Inside], free_slots: &mut Vec<u16>, command: Inside) -> u16 {
    let slot = free_slots.pop().unwrap_or(0);
    inside[usize::from(slot)] = command;
    slot
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Finish { lane: usize },
    Medium,
    Fetch,
}
