//! One virtqueue: its ring, its requests in flight, its log, and its event descriptors.

use std::os::fd::OwnedFd;

use eventfd::EventFd;
use guest_memory::{GuestMemory, MappedRange};

use crate::chain::priority;
use crate::config::MAX_RING_SIZE;
use crate::fault::{FaultKind, StartError};
use crate::inflight::{Indexes, Log};
use crate::kill;
use crate::lanes::{Lane, Waiting};
use crate::request::{Ranges, Status};
use crate::ring::{Place, Ring};
use crate::spec::feature;

/// What a client says of a virtqueue before it starts.
#[derive(Debug)]
pub struct RingSetup {
    /// Descriptors: a power of two, 1 to [`MAX_RING_SIZE`](crate::MAX_RING_SIZE).
    pub size: u16,
    /// Guest address of the descriptor table.
    pub desc: u64,
    /// Guest address of the available ring.
    pub avail: u64,
    /// Guest address of the used ring.
    pub used: u64,
    /// The available entry to start from, modulo 2^16; ignored if the log was in use before.
    pub next_avail: u16,
    /// Features that the driver acknowledged.
    pub features: u64,
    /// Where to interrupt the driver. `None`: it polls.
    pub call: Option<OwnedFd>,
    /// Where to say that the ring stopped by a fault.
    pub err: Option<OwnedFd>,
    /// The virtqueue's region of the log; see [`inflight_region`](crate::inflight_region).
    pub inflight: Option<MappedRange>,
    /// Nobody asked for that log, and its memory is our own: a ring that it can't describe is served nevertheless, but
    /// no other process can go on with it.
    pub log_is_own: bool,
}

/// A client kept an eventfd of its own from being signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldUp;

/// How a ring started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// The used index of the ring: how many requests it has completed, modulo 2^16.
    pub used_idx: u16,
    /// Whether an earlier process or client left a log. Otherwise there is none, or a new one.
    pub resumed: bool,
    /// Requests that were fetched but not completed then; they are done again.
    pub resubmitted: u16,
}

/// One request in flight; its place in the table is its head.
#[derive(Debug, Clone, Copy)]
struct Slot {
    busy: bool,
    /// First error.
    status: Status,
    /// Device commands that have not come back, and ranges not handed out.
    pending: u16,
    /// Bytes written, for the used element: of a success, and of a failure.
    written: (u32, u32),
    /// Guest address of the status byte.
    status_address: u64,
}

const FREE: Slot = Slot { busy: false, status: Status::Ok, pending: 0, written: (0, 0), status_address: 0 };

/// A request that is done, until its used element is published.
#[derive(Debug, Clone, Copy)]
struct Used {
    head: u16,
    written: u32,
}

/// A virtqueue that was started.
#[derive(Debug)]
pub(crate) struct Queue {
    pub ring: Ring,
    pub features: u64,
    pub call: Option<EventFd>,
    pub err: Option<EventFd>,
    /// Tells this ring's tokens from those of an earlier one.
    pub generation: u16,
    pub enabled: bool,
    /// Nothing new is fetched.
    pub stopping: bool,
    /// Device commands that have not come back.
    pub in_flight: u32,
    /// The ranges of the request at `ranges_head` that are being handed out.
    pub ranges: Ranges,
    ranges_head: u16,
    ranges_lane: Lane,
    /// Requests to do again; the next one is last.
    resubmit: Vec<u16>,
    /// Requests by priority, where the disk has them so.
    waiting: Option<Box<Waiting>>,
    log: Option<Log>,
    slots: Box<[Slot]>,
    done: Vec<Used>,
}

impl Queue {
    /// Checks what the client says, and takes over what the log says.
    pub fn start(
        setup: RingSetup,
        memory: &mut GuestMemory,
        generation: u16,
        awake: bool,
        by_priority: bool,
    ) -> Result<(Self, Started), StartError> {
        let RingSetup { size, desc, avail, used, next_avail, features, call, err, inflight, log_is_own } = setup;
        if !size.is_power_of_two() || size > MAX_RING_SIZE {
            return Err(StartError::Size { size });
        }
        let place = Place { size, desc, avail, used, event_idx: features & feature::EVENT_IDX != 0 };
        let view = place.view(memory)?;
        let indexes = Indexes { avail: view.avail_idx(), used: view.used_idx(), next_avail };
        let open = if log_is_own { Log::open_own } else { |range, size, ring| Log::open(range, size, ring).map(Some) };
        let opened = inflight.map(|range| open(range, size, indexes)).transpose()?.flatten();
        let (log, resubmit, resumed) = match opened {
            Some(opened) => (Some(opened.log), opened.inflight, opened.resumed),
            None => (None, Vec::new(), false),
        };
        let resubmitted = resubmit.len() as u16;
        let next_avail = if resumed { indexes.used.wrapping_add(resubmitted) } else { next_avail };
        if indexes.avail.wrapping_sub(next_avail) > size {
            return Err(StartError::Avail { avail: indexes.avail, next_avail, size });
        }
        let queue = Self {
            ring: Ring::new(place, view, next_avail),
            features,
            call: call.map(EventFd::new),
            err: err.map(EventFd::new),
            generation,
            enabled: false,
            stopping: false,
            in_flight: 0,
            ranges: Ranges::NONE,
            ranges_head: 0,
            ranges_lane: Lane::only(0),
            resubmit,
            waiting: by_priority.then(|| Box::new(Waiting::new(size))),
            log,
            slots: vec![FREE; usize::from(size)].into(),
            done: Vec::with_capacity(usize::from(size)),
        };
        queue.ring.set_wakeup(!awake);
        // An interrupt for the last published completion may have died with the process that published it.
        Ok((queue, Started { used_idx: indexes.used, resumed, resubmitted }))
    }

    /// Whether requests that were fetched, or taken off the ring, before still have to leave.
    pub fn is_draining(&self) -> bool {
        let is_waiting = self.waiting.as_ref().is_some_and(|waiting| waiting.len() > 0);
        self.ranges_left() > 0 || !self.resubmit.is_empty() || is_waiting
    }

    /// Whether commands can be fetched.
    pub fn is_live(&self) -> bool {
        self.ring.view.is_some() && (self.is_draining() || self.enabled && !self.stopping)
    }

    /// Whether nothing is left to do for requests that were fetched.
    pub fn is_quiet(&self) -> bool {
        let can_go_on = self.ring.view.is_some();
        self.in_flight == 0 && !(can_go_on && (self.is_draining() || !self.done.is_empty()))
    }

    #[inline]
    pub fn ranges_left(&self) -> u32 {
        self.ranges.left().into()
    }

    /// Whether [`Queue::backlog`] may tell something new, or has something to publish.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.ring.is_rung() || !self.done.is_empty()
    }

    /// Commands waiting, as far as the driver tells; of one lane where it has several.
    #[inline]
    pub fn backlog(&mut self, lane: Lane, memory: &mut GuestMemory) -> Result<u32, FaultKind> {
        self.publish();
        if self.waiting.is_some() {
            return self.backlog_of_lane(lane, memory);
        }
        let before = self.ranges_left() + self.resubmit.len() as u32;
        if self.stopping || !self.enabled {
            return Ok(before);
        }
        Ok(before + u32::from(self.ring.waiting()?))
    }

    // Separate, so that queues without priorities don't have its code in their way.
    #[inline(never)]
    fn backlog_of_lane(&mut self, lane: Lane, memory: &mut GuestMemory) -> Result<u32, FaultKind> {
        self.sort(memory)?;
        let ranges = if self.ranges_lane == lane { self.ranges_left() } else { 0 };
        Ok(ranges + self.waiting.as_ref().map_or(0, |waiting| waiting.in_lane(lane)))
    }

    /// Puts what is to be done again, and what the driver made available since, into lanes. Not more than the ring
    /// has descriptors: a driver that keeps to the rules never has more.
    fn sort(&mut self, memory: &mut GuestMemory) -> Result<(), FaultKind> {
        let indirect = self.features & feature::INDIRECT_DESC != 0;
        loop {
            let Some(waiting) = self.waiting.as_mut().filter(|waiting| waiting.len() < self.slots.len()) else {
                return Ok(());
            };
            let (head, again) = match self.resubmit.pop() {
                Some(head) => (head, true),
                None if self.stopping || !self.enabled => return Ok(()),
                None => match self.ring.peek()? {
                    Some(head) => (head, false),
                    None => return Ok(()),
                },
            };
            let ioprio = self.ring.view.as_ref().map_or(0, |view| priority(&view.desc, head, indirect, memory));
            waiting.put(head, ioprio);
            if !again {
                if let Some(log) = &mut self.log {
                    log.fetched(head);
                }
                self.ring.advance();
            }
        }
    }

    /// The head of the next request of a lane, which stays where it is, and whether it is off the ring already: taken
    /// by an earlier life, or into its lane.
    #[inline]
    pub fn peek(&mut self, lane: Lane) -> Result<Option<(u16, bool)>, FaultKind> {
        let next = match (&self.waiting, self.resubmit.last()) {
            (Some(waiting), _) => waiting.first(lane).map(|head| (head, true)),
            (None, Some(head)) => Some((*head, true)),
            (None, None) if self.stopping || !self.enabled => None,
            (None, None) => self.ring.peek()?.map(|head| (head, false)),
        };
        match next {
            // Its used element could have no place in the ring.
            Some((head, _)) if self.slots.get(usize::from(head)).is_none_or(|slot| slot.busy) => {
                Err(FaultKind::HeadTwice { head })
            }
            next => Ok(next),
        }
    }

    /// The request that was peeked at is in flight from now on.
    #[inline]
    pub fn take(&mut self, lane: Lane, (head, again): (u16, bool), status_address: u64, written: (u32, u32)) {
        if again {
            match &mut self.waiting {
                Some(waiting) => waiting.pop(lane),
                None => drop(self.resubmit.pop()),
            }
        } else {
            if let Some(log) = &mut self.log {
                log.fetched(head);
            }
            self.ring.advance();
        }
        if let Some(slot) = self.slots.get_mut(usize::from(head)) {
            *slot = Slot { busy: true, status: Status::Ok, pending: 1, written, status_address };
        }
    }

    /// The request at `head` is done by the ranges, one command each.
    pub fn start_ranges(&mut self, lane: Lane, head: u16) {
        self.ranges_lane = lane;
        if let Some(slot) = self.slots.get_mut(usize::from(head)) {
            slot.pending = self.ranges.left();
        }
        self.ranges_head = head;
    }

    /// The next command of the request whose ranges are being handed out, and that request's head.
    pub fn next_range(&mut self, place: &io_model::Place) -> Option<(u16, io_model::Command)> {
        let command = self.ranges.next_command(place)?;
        Some((self.ranges_head, command))
    }

    /// How many bytes a success wrote, where that is known only after the fetch.
    pub fn set_written(&mut self, head: u16, written: u32) {
        if let Some(slot) = self.slots.get_mut(usize::from(head)) {
            slot.written.0 = written;
        }
    }

    /// Ends one part of a request; with its last part, the request. The used element waits for
    /// [`Queue::publish`].
    #[inline]
    pub fn end_part(&mut self, head: u16, status: Status, memory: &mut GuestMemory) -> Result<(), FaultKind> {
        let Some(slot) = self.slots.get_mut(usize::from(head)) else { return Ok(()) };
        if slot.status == Status::Ok {
            slot.status = status;
        }
        slot.pending = slot.pending.saturating_sub(1);
        if slot.pending > 0 {
            return Ok(());
        }
        let address = slot.status_address;
        let written = if slot.status == Status::Ok { slot.written.0 } else { slot.written.1 };
        if kill::is_alive() && memory.write_u8(address, slot.status as u8).is_err() {
            return Err(FaultKind::StatusMemory { head, address });
        }
        self.done.push(Used { head, written });
        Ok(())
    }

    /// Publishes every request that is done, if the ring can be reached.
    #[inline]
    pub fn publish(&mut self) {
        if self.done.is_empty() || self.ring.view.is_none() {
            return;
        }
        for (ahead, used) in (0..).zip(&self.done) {
            self.ring.put_used(ahead, used.head, used.written);
            if let Some(log) = &mut self.log {
                log.join_batch(used.head);
            }
        }
        if let Some(log) = &self.log {
            log.close_batch();
        }
        self.ring.publish(self.done.len() as u16);
        for used in &self.done {
            if let Some(log) = &self.log {
                log.clear(used.head);
            }
            if let Some(slot) = self.slots.get_mut(usize::from(used.head)) {
                slot.busy = false;
            }
        }
        if let Some(log) = &self.log {
            log.end_batch(self.ring.used);
        }
        self.done.clear();
    }

    /// Whether the driver had the write cache on, as an earlier life noted it.
    pub fn noted_write_cache(&self) -> Option<bool> {
        self.log.as_ref()?.write_cache()
    }

    /// Notes whether the driver has the write cache on.
    pub fn note_write_cache(&self, on: bool) {
        if let Some(log) = &self.log {
            log.note_write_cache(on);
        }
    }

    /// Interrupts the driver, if there is a way to. `Err`: its client held us up.
    pub fn interrupt(&self) -> Result<bool, HeldUp> {
        match &self.call {
            Some(call) if call.raise() => Ok(true),
            Some(_) => Err(HeldUp),
            None => Ok(false),
        }
    }

    /// Pins the ring in new guest memory. `false`: it is not there.
    pub fn attach(&mut self, memory: &mut GuestMemory, awake: bool) -> bool {
        self.ring.view = self.ring.place.view(memory).ok();
        self.set_wakeup(!awake);
        self.ring.view.is_some()
    }

    /// See [`Ring::set_wakeup`]. Not of a ring that stops: once it is quiet, its memory is the guest's for anything
    /// else.
    pub fn set_wakeup(&self, wanted: bool) {
        if !self.stopping {
            self.ring.set_wakeup(wanted);
        }
    }
}
