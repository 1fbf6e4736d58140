//! One queue's work, as calls of `step(now)`.

use io_model::QueuePriority;

use crate::Error;
use crate::disk::{Buffers, DiskQueue, Done, Failure, QueueShape, Request};
use crate::pace::Pace;
use crate::pattern::{Next, Pattern};
use crate::spec::{JobSpec, Range};
use crate::stats::{Direction, Totals, VerifyResult};
use crate::verify::Verifier;
use crate::verify::mix;

/// What a step came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Commands were sent or completed: step again at once.
    Busy,
    /// Nothing to do now; commands are in flight.
    Waiting,
    /// Nothing is in flight, and nothing is due before this time.
    IdleUntil(u64),
    /// The job is over.
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Sending, until the end of the run.
    Run,
    /// Waiting for what is in flight, then reading back.
    Drain,
    /// Reading back what was written, from this offset on.
    ReadBack(u64),
    /// Over.
    Done,
}

/// A command in flight, by its tag.
#[derive(Debug, Clone, Copy)]
struct Slot {
    next: Next,
    due_ns: u64,
    submitted_ns: u64,
    generation: u32,
    counted: bool,
}

/// Everything but the queue itself, so that completions can be handled while it is polled.
struct Core {
    spec: JobSpec,
    range: Range,
    slots: Vec<Slot>,
    buffers: Buffers,
    scratch: Vec<u8>,
    phase: Phase,
    pace: Pace,
    interval: Box<Totals>,
    verifier: Option<Verifier>,
    measure_from_ns: u64,
    not_before_ns: u64,
    last_done_ns: u64,
    issued_bytes: u64,
    completed_ios: u64,
    failed_ios: u64,
    error: Option<String>,
}

/// A job on one queue. It owns no clock and no thread: its user passes `now_ns`.
pub struct Job<Q: DiskQueue> {
    queue: Q,
    pattern: Pattern,
    pending: Option<Next>,
    core: Core,
    started: bool,
    stopped: bool,
    end_ns: u64,
}

impl<Q: DiskQueue> Job<Q> {
    /// Copy `copy` of `spec` on `queue`, which has [`shape`] at least; `range` is the copy's.
    pub fn new(spec: &JobSpec, copy: u16, queue: Q, range: Range) -> Result<Self, Error> {
        let depth = queue.depth();
        let buffers = queue.buffers();
        let seed = mix(spec.seed ^ mix(copy.into()));
        let mut scratch = vec![0; shape(spec, copy).buffer_bytes as usize];
        let mut rng = fastrand::Rng::with_seed(seed ^ 1);
        for tag in 0..depth {
            scratch.as_chunks_mut().0.iter_mut().for_each(|word| *word = rng.u64(..).to_le_bytes());
            let filled = buffers.write(tag, &scratch);
            filled.ok_or_else(|| Error::Spec("too little memory for the job's buffers".into()))?;
        }
        let unit = spec.block_sizes.min_bytes();
        let verifier = spec
            .verify
            .then(|| Verifier::new(spec.seed, unit, range.start_bytes, range.len_bytes, spec.rw.is_read_only()));
        let nothing = Next { direction: Direction::Read, offset_bytes: 0, len_bytes: 0 };
        let slot = Slot { next: nothing, due_ns: 0, submitted_ns: 0, generation: 0, counted: false };
        let core = Core {
            range,
            slots: vec![slot; depth.into()],
            buffers,
            scratch,
            phase: Phase::Run,
            pace: Pace::new(spec.rate_iops, spec.arrivals, 0, seed ^ 2),
            interval: Box::default(),
            verifier,
            measure_from_ns: 0,
            not_before_ns: 0,
            last_done_ns: 0,
            issued_bytes: 0,
            completed_ios: 0,
            failed_ios: 0,
            error: None,
            spec: spec.clone(),
        };
        let pattern = Pattern::new(spec, range, seed);
        Ok(Self { queue, pattern, pending: None, core, started: false, stopped: false, end_ns: u64::MAX })
    }

    /// Reaps what completed, then sends what may be sent, all with one time stamp: latencies include
    /// the time that this step takes.
    #[inline]
    pub fn step(&mut self, now_ns: u64) -> Step {
        if !self.started {
            self.start(now_ns);
        }
        let core = &mut self.core;
        let reaped = self.queue.poll(&mut |done| core.completed(done, now_ns));
        self.advance_phase(now_ns);
        let moved = match reaped.and_then(|reaped| Ok(self.issue(now_ns)? + reaped)) {
            Ok(moved) => moved,
            Err(error) => {
                self.abort(&error.to_string());
                0
            }
        };
        match self.core.phase {
            Phase::Done => Step::Finished,
            _ if moved > 0 => Step::Busy,
            _ if self.queue.in_flight() > 0 => Step::Waiting,
            _ => Step::IdleUntil(self.core.pace.due_ns(now_ns).max(self.core.not_before_ns).min(self.end_ns)),
        }
    }

    fn start(&mut self, now_ns: u64) {
        self.started = true;
        let spec = &self.core.spec;
        let span = |duration: std::time::Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.core.measure_from_ns = now_ns.saturating_add(span(spec.ramp_time));
        self.core.last_done_ns = self.core.measure_from_ns;
        if let Some(runtime) = spec.runtime {
            self.end_ns = self.core.measure_from_ns.saturating_add(span(runtime));
        }
        self.core.pace = Pace::new(spec.rate_iops, spec.arrivals, now_ns, mix(spec.seed ^ 2));
    }

    fn advance_phase(&mut self, now_ns: u64) {
        let core = &mut self.core;
        if core.phase == Phase::Run && (now_ns >= self.end_ns || core.moved_all() || self.stopped) {
            core.phase = Phase::Drain;
            core.last_done_ns = core.last_done_ns.max(now_ns.min(self.end_ns));
        }
        if self.queue.in_flight() > 0 {
            return;
        }
        let end_bytes = core.range.start_bytes + core.range.len_bytes;
        match core.phase {
            Phase::Drain | Phase::ReadBack(_) if self.stopped => core.phase = Phase::Done,
            Phase::Drain if core.reads_back() => core.phase = Phase::ReadBack(core.range.start_bytes),
            Phase::Drain => core.phase = Phase::Done,
            Phase::ReadBack(at) if at >= end_bytes => core.phase = Phase::Done,
            _ => {}
        }
    }

    /// Sends what is due and fits; rings once.
    fn issue(&mut self, now_ns: u64) -> Result<u32, Error> {
        let mut sent = 0;
        while let Some(tag) = self.queue.next_tag() {
            let Some((next, due_ns)) = self.next(now_ns) else { break };
            match self.submit(tag, next, due_ns, now_ns) {
                Ok(()) => sent += 1,
                Err(error) => {
                    self.abort(&error.to_string());
                    break;
                }
            }
        }
        if sent > 0 {
            self.queue.ring()?;
        }
        Ok(sent)
    }

    /// The next command and when it was due; `None`: not now.
    fn next(&mut self, now_ns: u64) -> Option<(Next, u64)> {
        match self.core.phase {
            Phase::Run => self.next_of_run(now_ns),
            Phase::ReadBack(_) if self.stopped => None,
            Phase::ReadBack(at) => self.core.next_read_back(at).map(|next| (next, now_ns)),
            Phase::Drain | Phase::Done => None,
        }
    }

    fn next_of_run(&mut self, now_ns: u64) -> Option<(Next, u64)> {
        let core = &mut self.core;
        let due_ns = core.pace.due_ns(now_ns);
        if due_ns > now_ns || core.not_before_ns > now_ns || core.moved_all() {
            return None;
        }
        let next = *self.pending.get_or_insert_with(|| self.pattern.next());
        if let Some(verifier) = &mut core.verifier
            && !verifier.claim(next.offset_bytes, next.len_bytes, next.direction != Direction::Read)
        {
            return None;
        }
        self.pending = None;
        core.pace.advance();
        core.issued_bytes += next.len_bytes;
        Some((next, due_ns))
    }

    fn submit(&mut self, tag: u16, next: Next, due_ns: u64, now_ns: u64) -> Result<(), Error> {
        let core = &mut self.core;
        let Next { direction, offset_bytes, len_bytes } = next;
        let mut generation = 0;
        if direction == Direction::Write
            && let Some(verifier) = &mut core.verifier
        {
            let stamped = &mut core.scratch[..len_bytes as usize];
            generation = verifier.stamp(offset_bytes, stamped);
            core.buffers.write(tag, stamped);
        }
        self.queue.send(Request { direction, offset_bytes, len_bytes, durable: core.spec.fua })?;
        let counted = core.phase == Phase::Run && due_ns >= core.measure_from_ns;
        core.slots[usize::from(tag)] = Slot { next, due_ns, submitted_ns: now_ns, generation, counted };
        Ok(())
    }

    /// Ends the job at once, without waiting for what is in flight.
    pub fn abort(&mut self, why: &str) {
        self.core.error.get_or_insert_with(|| why.to_string());
        self.core.phase = Phase::Done;
    }

    /// Ends the job early, in good order: what is in flight is waited for, nothing is read back.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Takes the counts since the last time, leaving `empty` in their place.
    pub fn swap_interval(&mut self, empty: Box<Totals>) -> Box<Totals> {
        std::mem::replace(&mut self.core.interval, empty)
    }

    /// What it does.
    pub fn spec(&self) -> &JobSpec {
        &self.core.spec
    }

    /// What its queue counts for among the client's, where that means anything.
    pub fn queue_priority(&self) -> Option<QueuePriority> {
        self.queue.priority()
    }

    /// Commands in flight.
    pub fn in_flight(&self) -> u16 {
        self.queue.in_flight()
    }

    /// Whether what completes now counts: the warm-up is over and the end not reached.
    pub fn is_measuring(&self, now_ns: u64) -> bool {
        self.started && self.core.phase == Phase::Run && now_ns >= self.core.measure_from_ns
    }

    /// Commands completed so far, also those that do not count.
    pub fn completed_ios(&self) -> u64 {
        self.core.completed_ios
    }

    /// Time from the end of the warm-up to the end of the run, or the last completion that counted if
    /// that came later.
    pub fn measured_ns(&self) -> u64 {
        self.core.last_done_ns.saturating_sub(self.core.measure_from_ns)
    }

    /// Commands that failed.
    pub fn failed_ios(&self) -> u64 {
        self.core.failed_ios
    }

    /// Why it ended early, or the first failure.
    pub fn error(&self) -> Option<&str> {
        self.core.error.as_deref()
    }

    /// What verifying found so far.
    pub fn verify_result(&self) -> Option<VerifyResult> {
        self.core.verifier.as_ref().map(|verifier| VerifyResult {
            checked_units: verifier.checked_units,
            mismatch_count: verifier.mismatch_count,
            mismatches: verifier.mismatches.clone(),
        })
    }

    /// Gives the queue back.
    pub fn into_queue(self) -> Q {
        self.queue
    }
}

/// The queue that copy `copy` of `spec` needs. Buffers are whole pages, so that NVMe's PRPs have no offset.
pub fn shape(spec: &JobSpec, copy: u16) -> QueueShape {
    let buffer_bytes = spec.block_sizes.max_bytes().next_multiple_of(nvme_spec::PAGE_BYTES);
    QueueShape { depth: spec.iodepth, buffer_bytes, priority: spec.queue_priority(copy) }
}

impl Core {
    #[inline]
    fn completed(&mut self, done: Done, now_ns: u64) {
        let slot = self.slots[usize::from(done.tag)];
        self.completed_ios += 1;
        let success = done.outcome.is_ok();
        if let Err(failure) = done.outcome {
            self.failed(slot.next, failure);
        }
        if self.verifier.is_some() {
            self.verify(done.tag, slot, success);
        }
        if slot.counted && success {
            let lat_ns = self.pace.is_paced().then(|| now_ns.saturating_sub(slot.due_ns));
            let clat_ns = now_ns.saturating_sub(slot.submitted_ns);
            self.interval.of_mut(slot.next.direction).record(slot.next.len_bytes, clat_ns, lat_ns);
            self.last_done_ns = now_ns;
        }
        if !self.spec.think_time.is_zero() && now_ns >= self.not_before_ns {
            self.not_before_ns = now_ns.saturating_add(self.spec.think_time.as_nanos() as u64);
        }
    }

    #[cold]
    fn failed(&mut self, next: Next, failure: Failure) {
        self.failed_ios += 1;
        let (kind, at, len) = (next.direction.name(), next.offset_bytes, next.len_bytes);
        self.error.get_or_insert_with(|| format!("{kind} of {len} bytes at offset {at} failed: {failure}"));
        if !self.spec.continue_on_error && self.phase == Phase::Run {
            self.phase = Phase::Drain;
        }
    }

    fn verify(&mut self, tag: u16, slot: Slot, success: bool) {
        let Some(verifier) = &mut self.verifier else { return };
        let Next { direction, offset_bytes, len_bytes } = slot.next;
        match direction {
            Direction::Read => {
                let data = &mut self.scratch[..len_bytes as usize];
                let read = self.buffers.read(tag, data);
                verifier.was_read(offset_bytes, len_bytes, read.filter(|()| success).map(|()| &*data));
            }
            Direction::Write => verifier.written(offset_bytes, len_bytes, success.then_some(slot.generation)),
            Direction::Trim => verifier.written(offset_bytes, len_bytes, None),
        }
    }

    /// Whether a job without a time limit has sent everything.
    fn moved_all(&self) -> bool {
        self.spec.runtime.is_none() && self.issued_bytes >= self.range.len_bytes
    }

    /// Whether what was written is read back at the end.
    fn reads_back(&self) -> bool {
        self.verifier.is_some() && !self.spec.rw.is_read_only()
    }

    /// The next block from `at` that something is known about, claimed.
    fn next_read_back(&mut self, mut at: u64) -> Option<Next> {
        let verifier = self.verifier.as_mut()?;
        let end = self.range.start_bytes + self.range.len_bytes;
        let mut found = None;
        while at < end && found.is_none() {
            let len_bytes = self.spec.block_sizes.max_bytes().min(end - at);
            if verifier.knows(at, len_bytes) && verifier.claim(at, len_bytes, false) {
                found = Some(Next { direction: Direction::Read, offset_bytes: at, len_bytes });
            }
            at += len_bytes;
        }
        self.phase = Phase::ReadBack(at);
        found
    }
}
