//! The drive: events in the order of their time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::fetch::Fetch;
use crate::units::{Through, Units};
use crate::write_buffer::WriteBuffer;
use crate::{Profile, Writes};

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

/// A command was submitted to a queue that the drive does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownQueue;

/// A command on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Finish {
    at_ns: u64,
    hwq: u16,
    tag: u32,
}

/// A command whose units are at work. Ordered by the end of that, then as dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct InUnits {
    last_ns: u64,
    sequence: u64,
    first_ns: u64,
    len_bytes: u64,
    hwq: u16,
    tag: u32,
    lane: usize,
}

/// Commands leave in three lanes, each in order of time, so that no heap is needed to sort them.
const LANES: usize = 3;
const READ: usize = 0;
const WRITE: usize = 1;
const CONTROL: usize = 2;

/// One direction of the link.
#[derive(Debug)]
struct Link {
    mb_s: u64,
    free_at: u64,
}

impl Link {
    fn new(mb_s: u32) -> Self {
        Self { mb_s: u64::from(mb_s.max(1)), free_at: 0 }
    }

    fn transfer_ns(&self, len_bytes: u64) -> u64 {
        len_bytes.saturating_mul(1_000) / self.mb_s
    }

    /// Carries what the units produce, from when the first piece of it could be under way.
    fn stream(&mut self, through: Through, len_bytes: u64) -> u64 {
        let lead_ns = self.transfer_ns(len_bytes.min(4096));
        let start = self.free_at.max(through.first_ns.saturating_sub(lead_ns));
        self.free_at = (start + self.transfer_ns(len_bytes)).max(through.last_ns);
        self.free_at
    }

    /// Carries what is all there at `now_ns`.
    fn carry(&mut self, now_ns: u64, len_bytes: u64) -> u64 {
        self.free_at = self.free_at.max(now_ns) + self.transfer_ns(len_bytes);
        self.free_at
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
    now_ns: u64,
    fetch: Fetch,
    controller_free_at: u64,
    units: Units,
    in_units: BinaryHeap<Reverse<InUnits>>,
    read_link: Link,
    write_link: Link,
    write_buffer: Option<WriteBuffer>,
    lanes: [VecDeque<Finish>; LANES],
    /// Finished and not polled.
    finished: VecDeque<Finish>,
    /// Fetched and not finished.
    inside: u32,
    sequence: u64,
}

impl Drive {
    /// An idle drive with `hwqs` queues, [`MAX_HWQS`](crate::MAX_HWQS) at most.
    pub fn new(profile: Profile, hwqs: u16) -> Self {
        let window = profile.window.max(1) as usize;
        let write_link = Link::new(profile.link_write_mb_s);
        let write_buffer = match profile.writes {
            Writes::InPlace { .. } => None,
            Writes::Buffered { buffer_bytes, drain_ns, .. } => {
                Some(WriteBuffer::new(buffer_bytes, drain_ns, write_link.transfer_ns(4096)))
            }
        };
        Self {
            profile,
            now_ns: 0,
            fetch: Fetch::new(hwqs, profile.burst),
            controller_free_at: 0,
            units: Units::new(&profile),
            in_units: BinaryHeap::with_capacity(window),
            read_link: Link::new(profile.link_read_mb_s),
            write_link,
            write_buffer,
            lanes: std::array::from_fn(|_| VecDeque::with_capacity(window)),
            finished: VecDeque::with_capacity(window),
            inside: 0,
            sequence: 0,
        }
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
        if self.fetch.push(hwq, request) { Ok(()) } else { Err(UnknownQueue) }
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
            None => self.next().map(|(at_ns, _)| at_ns),
        }
    }

    /// The next event. Of several at one time, the one nearest to the end comes first: it makes room.
    fn next(&self) -> Option<(u64, Event)> {
        let lanes = self.lanes.iter().enumerate();
        let finish =
            lanes.filter_map(|(lane, queue)| queue.front().map(|finish| (finish.at_ns, Event::Finish { lane })));
        let units = self.in_units.peek().map(|Reverse(first)| (first.last_ns, Event::UnitsDone));
        let may_fetch = !self.fetch.is_empty() && self.inside < self.profile.window.max(1);
        let fetch = may_fetch.then(|| (self.controller_free_at.max(self.now_ns), Event::Fetch));
        finish.chain(units).chain(fetch).min_by_key(|&(at_ns, _)| at_ns)
    }

    fn advance(&mut self, until_ns: u64) {
        while let Some((at_ns, event)) = self.next()
            && at_ns <= until_ns
        {
            self.now_ns = at_ns.max(self.now_ns);
            match event {
                Event::Finish { lane } => {
                    self.finished.extend(self.lanes[lane].pop_front());
                    self.inside -= 1;
                }
                Event::UnitsDone => self.leave_units(),
                Event::Fetch => self.fetch_one(),
            }
        }
        self.now_ns = self.now_ns.max(until_ns);
    }

    fn leave_units(&mut self) {
        let Some(Reverse(done)) = self.in_units.pop() else { return };
        let link = if done.lane == READ { &mut self.read_link } else { &mut self.write_link };
        let through = Through { first_ns: done.first_ns, last_ns: done.last_ns };
        let at_ns = link.stream(through, done.len_bytes) + self.profile.pipeline_ns;
        self.lanes[done.lane].push_back(Finish { at_ns, hwq: done.hwq, tag: done.tag });
    }

    fn fetch_one(&mut self) {
        let Some((hwq, request)) = self.fetch.next() else { return };
        let Request { tag, kind, offset_bytes, len_bytes } = request;
        let at_ns = self.now_ns + self.profile.controller_ns;
        self.controller_free_at = at_ns;
        self.inside += 1;
        let (lane, first_ns) = match (kind, self.profile.writes) {
            (Kind::Read, _) => (READ, self.profile.read_ns),
            (Kind::Write, Writes::InPlace { write_ns }) => (WRITE, write_ns),
            (Kind::Write, Writes::Buffered { ack_ns, .. }) => {
                let arrived_ns = self.write_link.carry(at_ns, len_bytes);
                let buffer = self.write_buffer.as_mut();
                let admitted_ns = buffer.map_or(arrived_ns, |buffer| buffer.admit(arrived_ns, len_bytes));
                self.lanes[WRITE].push_back(Finish { at_ns: admitted_ns + ack_ns, hwq, tag });
                return;
            }
            (Kind::Control, _) => {
                self.lanes[CONTROL].push_back(Finish { at_ns: at_ns + self.profile.pipeline_ns, hwq, tag });
                return;
            }
        };
        let Through { first_ns, last_ns } = self.units.occupy(at_ns, offset_bytes, len_bytes, first_ns);
        self.sequence += 1;
        self.in_units.push(Reverse(InUnits { last_ns, sequence: self.sequence, first_ns, len_bytes, hwq, tag, lane }));
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Finish { lane: usize },
    UnitsDone,
    Fetch,
}
