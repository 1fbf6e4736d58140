//! The drive behind all pollers, in virtual time, with its faults.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

use arbitration::Arbitration;
use io_model::{Backend, DeviceError, Done, HwqId, Io, IoBuf, Nanos, Op, Outcome, QueuePriority, WrrWeights};
use ssd_model::{Drive, Kind, Request};

use crate::check::{Ledger, Rule};
use crate::port::Meter;
use crate::sabotage::{Sabotage, VICTIM};

/// A command with the drive. Only its tag is kept of the poller's request: simulated commands have no data.
struct Flight {
    tag: u32,
    serial: u64,
    poller: u16,
    /// The poller's HWQ, and the drive's.
    hwq: u16,
    queue: u16,
    /// When the drive got it; `u64::MAX`: not yet.
    sent_ns: u64,
}

/// A tag of the drive's.
enum Tag {
    Free,
    Used(Flight),
    /// The host gave its command up and the drive still has it: it may not be used again before the drive let go.
    GivenUp,
}

/// What one poller has here.
#[derive(Default)]
struct Share {
    first_hwq: u16,
    /// Submitted, not kicked.
    pending: Vec<(u16, Request)>,
    /// When the kick happens; the poller was still at work when it asked for it.
    kicked_ns: Option<u64>,
    finished: VecDeque<Finished>,
}

/// A command that its poller has not reaped yet.
struct Finished {
    hwq: HwqId,
    tag: u32,
    outcome: Outcome,
    serial: u64,
}

/// What is going to happen to a command that a fault holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// The drive lets go of it, at last.
    Ends { failed: bool },
    /// The host gives up on the command with this serial number.
    GiveUp { serial: u64 },
}

/// Commands by tag and what waits for each poller.
#[derive(Default)]
struct Table {
    tags: Vec<Tag>,
    free: Vec<u32>,
    shares: Vec<Share>,
    sabotage: Sabotage,
}

impl Table {
    fn enter(&mut self, flight: Flight) -> u32 {
        if let Some(tag) = self.free.pop() {
            self.tags[tag as usize] = Tag::Used(flight);
            return tag;
        }
        self.tags.push(Tag::Used(flight));
        (self.tags.len() - 1) as u32
    }

    fn flight(&self, tag: u32) -> Option<&Flight> {
        if let Some(Tag::Used(flight)) = self.tags.get(tag as usize) { Some(flight) } else { None }
    }

    /// The drive lets go of a command.
    fn end(&mut self, tag: u32, outcome: Outcome, woken: &mut Vec<u16>) {
        self.free.push(tag);
        if let Tag::Used(flight) = std::mem::replace(&mut self.tags[tag as usize], Tag::Free) {
            self.hand_over(flight, outcome, woken);
        }
    }

    /// The host gives a command up, if it is still under way.
    fn give_up(&mut self, tag: u32, serial: u64, woken: &mut Vec<u16>) {
        if self.flight(tag).is_some_and(|flight| flight.serial == serial)
            && let Tag::Used(flight) = std::mem::replace(&mut self.tags[tag as usize], Tag::GivenUp)
        {
            self.hand_over(flight, Err(DeviceError::Gone), woken);
        }
    }

    fn hand_over(&mut self, flight: Flight, outcome: Outcome, woken: &mut Vec<u16>) {
        let Flight { tag, serial, poller, hwq, .. } = flight;
        let hwq = HwqId(hwq);
        let share = &mut self.shares[usize::from(poller)];
        if share.finished.is_empty() {
            woken.push(poller);
        }
        if self.sabotage == Sabotage::DeliverTwice && serial == VICTIM {
            share.finished.push_back(Finished { hwq, tag, outcome, serial });
        }
        share.finished.push_back(Finished { hwq, tag, outcome, serial });
    }
}

/// Faults of the drive that are in force.
#[derive(Debug, Default)]
struct Faults {
    error_ppm: u32,
    stalled_until_ns: u64,
    /// By the drive's queues.
    lost_hwqs: u128,
    timeout_ns: u64,
    /// Held commands: until when, in which order, which tag, and their fate.
    held: BinaryHeap<Reverse<(u64, u64, u32, Fate)>>,
    order: u64,
}

impl Faults {
    fn is_lost(&self, queue: u16) -> bool {
        self.lost_hwqs & (1 << queue) != 0
    }

    fn hold(&mut self, until_ns: u64, tag: u32, fate: Fate) {
        self.order += 1;
        self.held.push(Reverse((until_ns, self.order, tag, fate)));
    }

    fn next_ns(&self) -> u64 {
        self.held.peek().map_or(u64::MAX, |Reverse(held)| held.0)
    }
}

/// The drive and everything that was submitted to it.
pub(crate) struct SimDrive {
    drive: Drive,
    table: Table,
    faults: Faults,
    rng: fastrand::Rng,
    size_bytes: u64,
    ledger: Rc<RefCell<Ledger>>,
    /// When something may have finished; kept because the engine asks before every event.
    next_ns: u64,
}

impl SimDrive {
    pub(crate) fn new(
        drive: Drive,
        size_bytes: u64,
        seed: u64,
        ledger: Rc<RefCell<Ledger>>,
        sabotage: Sabotage,
    ) -> Self {
        Self {
            drive,
            table: Table { sabotage, ..Table::default() },
            faults: Faults::default(),
            rng: fastrand::Rng::with_seed(seed),
            size_bytes,
            ledger,
            next_ns: u64::MAX,
        }
    }

    /// Gives a poller the queues from this one on.
    pub(crate) fn add_poller(&mut self, first_hwq: u16) {
        self.table.shares.push(Share { first_hwq, ..Share::default() });
    }

    /// Puts the queues from `first_hwq` on into classes of weighted round robin.
    pub(crate) fn set_classes(&mut self, first_hwq: u16, classes: &[QueuePriority], weights: WrrWeights) {
        for (hwq, &class) in (first_hwq..).zip(classes) {
            // Queues were given out within the drive's number.
            let _ = self.drive.set_class(hwq, class);
        }
        self.set_weights(weights);
    }

    /// Has the drive fetch by weighted round robin.
    pub(crate) fn set_weights(&mut self, weights: WrrWeights) {
        let burst = match self.drive.arbitration() {
            Arbitration::RoundRobin { burst } | Arbitration::WeightedRoundRobin { burst, .. } => burst,
            Arbitration::DeficitRoundRobin { .. } => 1,
        };
        self.drive.set_arbitration(Arbitration::WeightedRoundRobin { burst, weights });
    }

    /// From now on this many commands in a million fail.
    pub(crate) fn set_errors(&mut self, ppm: u32) {
        self.faults.error_ppm = ppm;
    }

    /// Nothing finishes until then.
    pub(crate) fn stall(&mut self, until_ns: u64) {
        self.faults.stalled_until_ns = self.faults.stalled_until_ns.max(until_ns);
    }

    /// From now on a queue's completions come twice as late as the host waits for them: after it gave up.
    pub(crate) fn lose(&mut self, queue: u16, timeout_ns: u64, now_ns: u64) {
        let Self { table, faults, .. } = self;
        faults.lost_hwqs |= 1_u128.checked_shl(u32::from(queue)).unwrap_or(0);
        faults.timeout_ns = timeout_ns;
        for (tag, place) in table.tags.iter().enumerate() {
            if let Tag::Used(flight) = place
                && flight.queue == queue
                && flight.sent_ns != u64::MAX
            {
                let until_ns = now_ns.max(flight.sent_ns.saturating_add(timeout_ns));
                faults.hold(until_ns, tag as u32, Fate::GiveUp { serial: flight.serial });
            }
        }
        self.reckon();
    }

    /// When something may have finished.
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    fn reckon(&mut self) {
        self.next_ns = self.drive.next_finish().unwrap_or(u64::MAX).min(self.faults.next_ns());
    }

    /// Lets the drive work until `now_ns`; tells the pollers that something finished for.
    pub(crate) fn advance(&mut self, now_ns: u64, woken: &mut Vec<u16>) {
        let Self { drive, table, faults, rng, .. } = self;
        let healthy = faults.error_ppm == 0 && faults.stalled_until_ns <= now_ns && faults.lost_hwqs == 0;
        drive.poll(now_ns, &mut |queue, tag, _| {
            if healthy {
                return table.end(tag, Ok(()), woken);
            }
            let failed = rng.u32(0..1_000_000) < faults.error_ppm;
            if faults.is_lost(queue) {
                let late_ns = now_ns.saturating_add(faults.timeout_ns.saturating_mul(2));
                faults.hold(late_ns, tag, Fate::Ends { failed });
            } else if faults.stalled_until_ns > now_ns {
                faults.hold(faults.stalled_until_ns, tag, Fate::Ends { failed });
            } else {
                table.end(tag, outcome(failed), woken);
            }
        });
        while faults.next_ns() <= now_ns
            && let Some(Reverse((_, _, tag, fate))) = faults.held.pop()
        {
            match fate {
                Fate::Ends { failed } => table.end(tag, outcome(failed), woken),
                Fate::GiveUp { serial } => table.give_up(tag, serial, woken),
            }
        }
        self.reckon();
    }

    /// When the poller's kick happens.
    pub(crate) fn kicked_ns(&self, poller: u16) -> Option<u64> {
        self.table.shares[usize::from(poller)].kicked_ns
    }

    /// The poller's kick happens now.
    pub(crate) fn flush(&mut self, poller: u16, now_ns: u64) {
        let Self { drive, table, faults, .. } = self;
        let Table { shares, tags, sabotage, .. } = table;
        let share = &mut shares[usize::from(poller)];
        share.kicked_ns = None;
        for (queue, request) in share.pending.drain(..) {
            if let Tag::Used(flight) = &mut tags[request.tag as usize] {
                flight.sent_ns = now_ns;
                if faults.is_lost(queue) {
                    let serial = flight.serial;
                    faults.hold(now_ns.saturating_add(faults.timeout_ns), request.tag, Fate::GiveUp { serial });
                }
                if *sabotage == Sabotage::Lose && flight.serial == VICTIM {
                    continue;
                }
            }
            // Queues were given out within the drive's number.
            let _ = drive.submit(now_ns, queue, request);
        }
        self.reckon();
    }

    /// Whether a poller has something to reap.
    pub(crate) fn has_finished(&self, poller: u16) -> bool {
        !self.table.shares[usize::from(poller)].finished.is_empty()
    }

    fn submit(&mut self, poller: u16, hwq: HwqId, io: Io) {
        let serial = self.ledger.borrow_mut().submitted(&io.command);
        let command = io.command;
        let share = &mut self.table.shares[usize::from(poller)];
        if command.offset_bytes.checked_add(command.len_bytes).is_none_or(|end_bytes| end_bytes > self.size_bytes) {
            self.ledger.borrow_mut().violate(Rule::InBounds, || format!("{command:?} is beyond the drive's end"));
            let outcome = Err(DeviceError::OutOfRange);
            return share.finished.push_back(Finished { hwq, tag: io.tag, outcome, serial });
        }
        let kind = match command.op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Flush | Op::WriteZeroes | Op::Discard => Kind::Control,
        };
        let queue = share.first_hwq + hwq.0;
        let tag = self.table.enter(Flight { tag: io.tag, serial, poller, hwq: hwq.0, queue, sent_ns: u64::MAX });
        let request = Request { tag, kind, offset_bytes: command.offset_bytes, len_bytes: command.len_bytes };
        self.table.shares[usize::from(poller)].pending.push((queue, request));
    }

    fn take_finished(&mut self, poller: u16) -> Option<(HwqId, Done)> {
        let Finished { hwq, tag, outcome, serial } = self.table.shares[usize::from(poller)].finished.pop_front()?;
        self.ledger.borrow_mut().returned(serial);
        Some((hwq, Done { tag, outcome, buf: IoBuf::default() }))
    }
}

fn outcome(failed: bool) -> Outcome {
    if failed { Err(DeviceError::Medium) } else { Ok(()) }
}

/// One poller's queues on a [`SimDrive`].
pub(crate) struct SimBackend {
    pub(crate) shared: Rc<RefCell<SimDrive>>,
    pub(crate) meter: Rc<Meter>,
    pub(crate) poller: u16,
    pub(crate) hwqs: u16,
    pub(crate) depth: u32,
    /// Queues with something pending.
    pub(crate) touched: u128,
}

impl Backend for SimBackend {
    fn hwqs(&self) -> u16 {
        self.hwqs
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn submit(&mut self, hwq: HwqId, io: Io, _: Nanos) {
        self.touched |= 1 << hwq.0.min(127);
        self.shared.borrow_mut().submit(self.poller, hwq, io);
    }

    fn kick(&mut self) {
        if self.touched == 0 {
            return;
        }
        self.meter.spend(u64::from(self.touched.count_ones()) * self.meter.costs.doorbell_ns);
        self.touched = 0;
        self.shared.borrow_mut().table.shares[usize::from(self.poller)].kicked_ns = Some(self.meter.now_ns());
    }

    fn reap(&mut self, _: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        loop {
            // Taken one by one: each is completed before the next, and `done` may come back to the drive.
            let next = self.shared.borrow_mut().take_finished(self.poller);
            let Some((hwq, finished)) = next else { return };
            done(hwq, finished);
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        // The engine wakes the poller when something finished.
        Some(Nanos::MAX)
    }
}
