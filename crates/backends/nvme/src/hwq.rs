//! One HWQ: a queue pair of the drive and the requests on it.

use std::collections::VecDeque;
use std::slice::Iter;
use std::sync::atomic::{AtomicU64, Ordering};

use guest_memory::Segment;
use io_model::{DeviceError, Done, Io, Nanos, Op, Outcome};
use nvme_driver::{Error, QueuePair};
use nvme_spec::opcode::{dsm, nvm, rw};
use nvme_spec::{Sqe, Status};

use crate::bounces::{BOUNCE_BYTES, Bounce, Bounces};
use crate::describe::{Piece, Pointer, by_prps, by_sgl, repeated};
use crate::drive::Abilities;
use crate::reach::Reach;

/// What the requests of a poller's HWQs share.
pub(crate) struct Tools<'a> {
    pub drive: &'a Abilities,
    pub reach: &'a mut Reach,
    pub bounces: &'a mut Bounces,
    /// Shared by pollers: what is counted here was copied, which costs far more.
    pub copied_bytes: &'a AtomicU64,
}

/// A request.
#[derive(Debug)]
struct Flight {
    io: Option<Io>,
    /// How much of it commands were made of. A flush has one byte.
    issued_bytes: u64,
    /// Its commands that are with the drive.
    parts: u32,
    /// Those of them whose data are copied: one at a time, so that one request doesn't have all places.
    copies: u32,
    /// How it will end, if nothing else fails.
    outcome: Outcome,
    /// It is in [`Hwq::waiting`].
    is_waiting: bool,
    /// A command of it was aborted by us and sent again.
    was_aborted: bool,
}

impl Flight {
    const FREE: Self =
        Self { io: None, issued_bytes: 0, parts: 0, copies: 0, outcome: Ok(()), is_waiting: false, was_aborted: false };

    fn is_issued(&self) -> bool {
        let all = |io: &Io| if io.command.op == Op::Flush { 1 } else { io.command.len_bytes };
        self.outcome.is_err() || self.io.as_ref().is_none_or(|io| self.issued_bytes >= all(io))
    }

    fn is_over(&self) -> bool {
        self.io.is_some() && self.parts == 0 && !self.is_waiting && self.is_issued()
    }
}

/// A command that the drive has.
#[derive(Debug, Clone, Copy)]
struct Part {
    flight: u32,
    skip_bytes: u64,
    len_bytes: u64,
    bounce: Option<Bounce>,
    started: Nanos,
    stage: Stage,
}

/// What was done about a command that does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Young,
    Aborted,
}

/// What is to be done about a command that does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    /// Abort the command of this identifier.
    Abort(u16),
    /// Delete the queue, and make it anew.
    Recover,
}

/// How far a queue is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    /// It is about to be replaced: what comes waits.
    Held,
    /// There will never be one.
    Gone,
}

/// What happened to a request that was to be issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Issue {
    All,
    QueueFull,
    NoBounce,
}

/// One HWQ.
pub(crate) struct Hwq {
    pair: QueuePair,
    /// Pairs that it had before. Identifiers of queues are used again.
    replaced: u32,
    state: State,
    flights: Vec<Flight>,
    free: Vec<u32>,
    /// By command identifier.
    parts: Vec<Option<Part>>,
    /// Requests that have more commands than the queue has room for, or no place for a copy.
    waiting: VecDeque<u32>,
    /// Requests that just ended; empty between calls.
    over: Vec<u32>,
    is_touched: bool,
}

impl Hwq {
    /// A queue over a new queue pair, with room for `depth` requests.
    pub fn new(pair: QueuePair, depth: u32) -> Self {
        let parts = vec![None; pair.depth().into()];
        Self {
            pair,
            replaced: 0,
            state: State::Running,
            flights: (0..depth).map(|_| Flight::FREE).collect(),
            free: (0..depth).rev().collect(),
            parts,
            waiting: VecDeque::with_capacity(depth as usize),
            over: Vec::with_capacity(depth as usize),
            is_touched: false,
        }
    }

    /// How often it was replaced.
    pub fn replaced(&self) -> u32 {
        self.replaced
    }

    /// Whether it has any request.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.free.len() < self.flights.len()
    }

    /// Takes a request in, or says how it ended already.
    #[inline]
    pub fn submit(&mut self, io: Io, tools: &mut Tools<'_>, now: Nanos) -> Result<(), (Io, Outcome)> {
        if let Err(error) = admit(&io, tools.drive) {
            return Err((io, Err(error)));
        }
        if is_nothing(&io, tools.drive) {
            return Err((io, Ok(())));
        }
        let Some(index) = self.free.pop().filter(|_| self.state != State::Gone) else {
            return Err((io, Err(DeviceError::Gone)));
        };
        self.flights[index as usize] = Flight { io: Some(io), ..Flight::FREE };
        if self.state == State::Held || self.issue(index, tools, now) != Issue::All {
            self.wait(index);
        } else if self.flights[index as usize].is_over() {
            // Its data could not be copied.
            return self.take(index).map_or(Ok(()), |(io, outcome)| Err((io, outcome)));
        }
        Ok(())
    }

    fn wait(&mut self, index: u32) {
        self.flights[index as usize].is_waiting = true;
        self.waiting.push_back(index);
    }

    /// Makes commands of a request as far as there is room.
    #[inline]
    fn issue(&mut self, index: u32, tools: &mut Tools<'_>, now: Nanos) -> Issue {
        let flight = &mut self.flights[index as usize];
        while !flight.is_issued() {
            let Some(io) = &flight.io else { return Issue::All };
            let Some(cid) = self.pair.next_cid() else { return Issue::QueueFull };
            let step = match next_step(&self.pair, io, flight.issued_bytes, flight.copies, tools) {
                Ok(Some(step)) => step,
                Ok(None) => return Issue::NoBounce,
                Err(error) => {
                    flight.outcome = Err(error);
                    break;
                }
            };
            if self.pair.submit(step.sqe, None) != Ok(cid) {
                step.bounce.into_iter().for_each(|bounce| tools.bounces.give(bounce));
                return Issue::QueueFull;
            }
            self.parts[usize::from(cid)] = Some(Part {
                flight: index,
                skip_bytes: flight.issued_bytes,
                len_bytes: step.len_bytes,
                bounce: step.bounce,
                started: now,
                stage: Stage::Young,
            });
            flight.issued_bytes += step.len_bytes;
            flight.parts += 1;
            flight.copies += u32::from(step.bounce.is_some());
            self.is_touched = true;
        }
        Issue::All
    }

    fn take(&mut self, index: u32) -> Option<(Io, Outcome)> {
        let Flight { io, outcome, .. } = std::mem::replace(&mut self.flights[index as usize], Flight::FREE);
        self.free.push(index);
        io.map(|io| (io, outcome))
    }

    fn end(&mut self, index: u32, ended: &mut impl FnMut(Done)) {
        if let Some((io, outcome)) = self.take(index) {
            ended(io.done(outcome));
        }
    }

    /// Issues what waits, and tells the drive of everything new.
    ///
    /// # Errors
    /// Its doorbell can't be rung.
    #[inline]
    pub fn kick(&mut self, tools: &mut Tools<'_>, now: Nanos, ended: &mut impl FnMut(Done)) -> Result<(), Error> {
        if self.state != State::Running {
            return Ok(());
        }
        if !self.waiting.is_empty() {
            self.issue_waiting(tools, now, ended);
        }
        if std::mem::take(&mut self.is_touched) { self.pair.ring() } else { Ok(()) }
    }

    fn issue_waiting(&mut self, tools: &mut Tools<'_>, now: Nanos, ended: &mut impl FnMut(Done)) {
        for _ in 0..self.waiting.len() {
            let Some(index) = self.waiting.pop_front() else { return };
            match self.issue(index, tools, now) {
                Issue::All => {
                    self.flights[index as usize].is_waiting = false;
                    if self.flights[index as usize].is_over() {
                        self.end(index, ended);
                    }
                }
                Issue::NoBounce => self.waiting.push_back(index),
                Issue::QueueFull => return self.waiting.push_front(index),
            }
        }
    }

    /// Takes completions off the queue.
    ///
    /// # Errors
    /// The drive lied. What it told before that counts.
    #[inline]
    pub fn reap(&mut self, tools: &mut Tools<'_>, ended: &mut impl FnMut(Done)) -> Result<(), Error> {
        if self.state == State::Gone || self.pair.in_flight() == 0 {
            return Ok(());
        }
        let Self { pair, flights, parts, waiting, over, .. } = self;
        let polled = pair.poll(&mut |done| {
            let Some(part) = parts[usize::from(done.cid)].take() else { return };
            let flight = &mut flights[part.flight as usize];
            finish(flight, &part, done.status, tools);
            if !flight.is_issued() && !flight.is_waiting && flight.parts == 0 {
                // Sent again after an abort.
                flight.is_waiting = true;
                waiting.push_back(part.flight);
            } else if flight.is_over() {
                over.push(part.flight);
            }
        });
        while let Some(index) = self.over.pop() {
            self.end(index, ended);
        }
        polled.map(drop)
    }

    /// Says what is to be done about commands that are older than `limit`, each once.
    pub fn find_late(&mut self, now: Nanos, limit: Nanos, patience: Nanos, late: &mut impl FnMut(Late)) {
        if self.state != State::Running || self.pair.in_flight() == 0 {
            return;
        }
        let mut is_stuck = false;
        for (cid, part) in (0..).zip(&mut self.parts) {
            let Some(part) = part else { continue };
            let age = now - part.started;
            if part.stage == Stage::Young && age >= limit {
                part.stage = Stage::Aborted;
                late(Late::Abort(cid));
            }
            is_stuck |= age >= limit + patience;
        }
        if is_stuck {
            self.hold();
            late(Late::Recover);
        }
    }

    /// Sends nothing more until it is replaced.
    pub fn hold(&mut self) {
        if self.state == State::Running {
            self.state = State::Held;
        }
    }

    /// Goes on with another pair. The drive has forgotten the former one, which is returned, and the commands that did
    /// not end are lost.
    pub fn replace(&mut self, pair: QueuePair, tools: &mut Tools<'_>, ended: &mut impl FnMut(Done)) -> QueuePair {
        self.lose(tools, ended);
        self.parts.resize(pair.depth().into(), None);
        self.state = State::Running;
        self.replaced += 1;
        std::mem::replace(&mut self.pair, pair)
    }

    /// The drive is gone, and with it everything that was to be done.
    pub fn give_up(&mut self, tools: &mut Tools<'_>, ended: &mut impl FnMut(Done)) {
        self.lose(tools, ended);
        self.state = State::Gone;
        self.pair.disconnect();
        while let Some(index) = self.waiting.pop_front() {
            self.flights[index as usize].outcome = Err(DeviceError::Gone);
            self.end(index, ended);
        }
    }

    /// What came back has ended as it says; what did not is lost.
    fn lose(&mut self, tools: &mut Tools<'_>, ended: &mut impl FnMut(Done)) {
        // A drive that lies here too changes nothing any more.
        let _ = self.reap(tools, ended);
        self.is_touched = false;
        for cid in 0..self.parts.len() {
            let Some(part) = self.parts[cid].take() else { continue };
            part.bounce.into_iter().for_each(|bounce| tools.bounces.give(bounce));
            let flight = &mut self.flights[part.flight as usize];
            flight.parts -= 1;
            flight.copies -= u32::from(part.bounce.is_some());
            flight.outcome = Err(DeviceError::Gone);
            if flight.is_over() {
                self.end(part.flight, ended);
            }
        }
    }

    /// Its pair, which the drive must forget before the requests' memory is anybody else's.
    pub fn into_parts(self) -> (QueuePair, impl Sized) {
        (self.pair, self.flights)
    }
}

/// Whether the drive can be asked that.
fn admit(io: &Io, drive: &Abilities) -> Outcome {
    io.check(drive.size_bytes)?;
    let command = &io.command;
    let block = u64::from(drive.block_bytes);
    if (command.offset_bytes | command.len_bytes) & (block - 1) != 0 {
        return Err(DeviceError::Unsupported);
    }
    Ok(())
}

/// Whether there is nothing to do.
fn is_nothing(io: &Io, drive: &Abilities) -> bool {
    match io.command.op {
        Op::Flush => !drive.write_cache,
        Op::Discard => !drive.discard || io.command.len_bytes == 0,
        _ => io.command.len_bytes == 0,
    }
}

/// A command of the request ended.
#[inline]
fn finish(flight: &mut Flight, part: &Part, status: Status, tools: &mut Tools<'_>) {
    flight.parts -= 1;
    let mut outcome = nvme_driver::outcome(status);
    let is_ours = part.stage == Stage::Aborted && (status.sct(), status.sc()) == ABORTED && !flight.was_aborted;
    if let Some(bounce) = part.bounce {
        flight.copies -= 1;
        if outcome.is_ok() && !copy_back(flight, part, bounce, tools) {
            outcome = Err(DeviceError::Memory);
        }
        tools.bounces.give(bounce);
    }
    if is_ours {
        // The drive does work: what it was told to leave is sent again, with whatever followed.
        flight.was_aborted = true;
        flight.issued_bytes = flight.issued_bytes.min(part.skip_bytes);
    } else if outcome.is_err() && flight.outcome.is_ok() {
        flight.outcome = outcome;
    }
}

const ABORTED: (u8, u8) = (Status::ABORT_REQUESTED.sct(), Status::ABORT_REQUESTED.sc());

fn copy_back(flight: &Flight, part: &Part, bounce: Bounce, tools: &Tools<'_>) -> bool {
    match &flight.io {
        Some(io) if io.command.op == Op::Read => copy(io, part.skip_bytes, part.len_bytes, bounce, tools, false),
        _ => true,
    }
}

/// Copies a part of a request's data. Only a part that is not the whole allocates, and it is copied anyway.
fn copy(io: &Io, skip_bytes: u64, len_bytes: u64, bounce: Bounce, tools: &Tools<'_>, to_device: bool) -> bool {
    let (memory, at) = tools.bounces.at(bounce);
    tools.copied_bytes.fetch_add(len_bytes, Ordering::Relaxed);
    if skip_bytes == 0 && len_bytes == io.buf.len_bytes() {
        return memory.copy(at, &io.buf, to_device);
    }
    memory.copy(at, &io.buf.part(skip_bytes, len_bytes), to_device)
}

/// The next command of a request.
struct Step {
    sqe: Sqe,
    len_bytes: u64,
    bounce: Option<Bounce>,
}

/// `Ok(None)`: it needs a place for a copy, and there is none.
#[inline]
fn next_step(
    pair: &QueuePair,
    io: &Io,
    done_bytes: u64,
    copies: u32,
    tools: &mut Tools<'_>,
) -> Result<Option<Step>, DeviceError> {
    let drive = tools.drive;
    let command = &io.command;
    let left = command.len_bytes.saturating_sub(done_bytes);
    let len_bytes = left.min(drive.max_bytes);
    let step = |opc, pointer: Pointer, len_bytes, bounce| {
        let fua = command.fua && drive.write_cache && command.op != Op::Read;
        let mut sqe = ranged(opc, drive, command.offset_bytes + done_bytes, len_bytes);
        sqe.cdw12 |= if fua { rw::FUA } else { 0 };
        (sqe.dptr, sqe.flags) = (pointer.dptr, pointer.flags);
        Ok(Some(Step { sqe, len_bytes, bounce }))
    };
    match command.op {
        Op::Flush => {
            let sqe = Sqe { opc: nvm::FLUSH, nsid: drive.nsid, ..Sqe::default() };
            Ok(Some(Step { sqe, len_bytes: 1, bounce: None }))
        }
        Op::Discard => discard(pair, command.offset_bytes + done_bytes, left, drive).map(Some),
        Op::WriteZeroes if drive.write_zeroes => {
            step(nvm::WRITE_ZEROES, Pointer { dptr: [0; 2], flags: 0 }, len_bytes, None)
        }
        Op::WriteZeroes => {
            let zeros = repeated(pair, tools.bounces.zeros(), len_bytes).ok_or(DeviceError::Unsupported)?;
            step(nvm::WRITE, zeros, len_bytes, None)
        }
        Op::Read | Op::Write => {
            let opc = if command.op == Op::Read { nvm::READ } else { nvm::WRITE };
            if let Some(pointer) = describe(pair, io.buf.segments(), done_bytes, len_bytes, tools) {
                return step(opc, pointer, len_bytes, None);
            }
            let len_bytes = len_bytes.min(BOUNCE_BYTES);
            let Some(bounce) = (copies == 0).then(|| tools.bounces.take()).flatten() else { return Ok(None) };
            let copied = command.op == Op::Read || copy(io, done_bytes, len_bytes, bounce, tools, true);
            let pointer = by_prps(pair, std::iter::once(Some((tools.bounces.iova(bounce), len_bytes))));
            let Some(pointer) = pointer.filter(|_| copied) else {
                tools.bounces.give(bounce);
                return Err(DeviceError::Memory);
            };
            step(opc, pointer, len_bytes, Some(bounce))
        }
    }
}

/// Where a part of the data lies, if the drive can be told.
#[inline]
fn describe(pair: &QueuePair, all: &[Segment], skip: u64, len: u64, tools: &mut Tools<'_>) -> Option<Pointer> {
    let reach = &mut *tools.reach;
    by_prps(pair, Pieces::new(all, skip, len, reach))
        .or_else(|| by_sgl(pair, Pieces::new(all, skip, len, reach), tools.drive.sgl_granularity?))
}

fn ranged(opc: u8, drive: &Abilities, offset_bytes: u64, len_bytes: u64) -> Sqe {
    let lba = offset_bytes >> drive.block_shift;
    let blocks = (len_bytes >> drive.block_shift) as u32;
    let (cdw10, cdw11) = (lba as u32, (lba >> 32) as u32);
    Sqe { opc, nsid: drive.nsid, cdw10, cdw11, cdw12: blocks.saturating_sub(1), ..Sqe::default() }
}

fn discard(pair: &QueuePair, offset_bytes: u64, left: u64, drive: &Abilities) -> Result<Step, DeviceError> {
    let blocks = (left >> drive.block_shift).min(u32::MAX.into());
    // One range: context attributes, length, start (NVM 3.2.3).
    let list = pair.put_list(0, blocks << 32).and(pair.put_list(1, offset_bytes >> drive.block_shift));
    let list = list.ok_or(DeviceError::Unsupported)?;
    let sqe = Sqe { opc: nvm::DATASET_MANAGEMENT, nsid: drive.nsid, cdw11: dsm::AD, dptr: [list, 0], ..Sqe::default() };
    Ok(Step { sqe, len_bytes: blocks << drive.block_shift, bounce: None })
}

/// Pieces of segments, each inside of one mapping.
struct Pieces<'a> {
    segments: Iter<'a, Segment>,
    at: usize,
    here: u64,
    left: u64,
    reach: &'a mut Reach,
}

impl<'a> Pieces<'a> {
    #[inline]
    fn new(all: &'a [Segment], mut skip: u64, left: u64, reach: &'a mut Reach) -> Self {
        let mut pieces = Self { segments: all.iter(), at: 0, here: 0, left, reach };
        while pieces.open_next() && pieces.here <= skip {
            skip -= pieces.here;
        }
        let skipped = skip.min(pieces.here);
        pieces.at += skipped as usize;
        pieces.here -= skipped;
        pieces
    }

    #[inline]
    fn open_next(&mut self) -> bool {
        let Some(segment) = self.segments.next() else { return false };
        (self.at, self.here) = (segment.as_ptr() as usize, segment.len_bytes() as u64);
        true
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        if self.left == 0 || (self.here == 0 && !self.open_next()) {
            return None;
        }
        let Some((iova, reached)) = self.reach.find(self.at) else { return Some(None) };
        let len_bytes = reached.min(self.here).min(self.left);
        self.at += len_bytes as usize;
        self.here -= len_bytes;
        self.left -= len_bytes;
        Some(Some((iova, len_bytes)))
    }
}
