//! A modelled drive in real or virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guest_memory::MapError;
use io_model::{Backend, DeviceError, Done, HwqId, Io, Nanos, Op, Outcome, QueuePriority, WrrWeights};
use ssd_model::{Kind, MAX_QUEUES, Profile, Request};

use crate::MemoryDrive;
use crate::ready::Ready;
use crate::shared_model::{Pending, SharedModel};

/// The drive has no more queues to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the drive model has {MAX_QUEUES} queues for all pollers together, and fewer than {wanted} are left in a row; \
         have fewer pollers (tenants can share them), or give each fewer queues"
)]
pub struct NoQueues {
    /// How many were asked for.
    pub wanted: u16,
}

/// A drive with the timing of a real one, over memory or over nothing.
///
/// All pollers' queues lead into the same modelled controller, so that they disturb each other as on the
/// real drive. Pollers must read one clock: the model's time is the `now` that they pass in.
#[derive(Debug, Clone)]
pub struct ModelDrive {
    size_bytes: u64,
    content: Option<MemoryDrive>,
    model: Arc<SharedModel>,
}

impl ModelDrive {
    /// With content, in memory. Fails as [`MemoryDrive::new`] does.
    pub fn over_memory(profile: Profile, size_bytes: u64) -> Result<Self, MapError> {
        let content = Some(MemoryDrive::new(size_bytes)?);
        Ok(Self { content, ..Self::without_content(profile, size_bytes) })
    }

    /// With timing only: no data moves, as in [`NullDrive`](crate::NullDrive).
    pub fn without_content(profile: Profile, size_bytes: u64) -> Self {
        Self { size_bytes, content: None, model: Arc::new(SharedModel::new(profile)) }
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// `hwqs` queues of `depth` commands each, for one poller, of the class medium. They go back to the drive with the
    /// value.
    pub fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Model, NoQueues> {
        self.open(hwqs, depth, |_| QueuePriority::Medium)
    }

    /// Like [`ModelDrive::open_queues`], one queue for each class named; and the drive, for all pollers, fetches by
    /// weighted round robin from now on.
    pub fn open_weighted_queues(
        &self,
        classes: &[QueuePriority],
        weights: WrrWeights,
        depth: u32,
    ) -> Result<Model, NoQueues> {
        let hwqs = u16::try_from(classes.len()).unwrap_or(u16::MAX);
        let class_of = |hwq: u16| classes.get(usize::from(hwq)).copied().unwrap_or(QueuePriority::Medium);
        let model = self.open(hwqs, depth, class_of)?;
        self.model.set_weights(weights);
        Ok(model)
    }

    fn open(&self, hwqs: u16, depth: u32, class_of: impl Fn(u16) -> QueuePriority) -> Result<Model, NoQueues> {
        let finished = Arc::new(AtomicBool::new(false));
        let first_hwq = self.model.claim(hwqs, depth, &finished, class_of).ok_or(NoQueues { wanted: hwqs })?;
        let capacity = u32::from(hwqs).saturating_mul(depth);
        Ok(Model {
            drive: self.clone(),
            first_hwq,
            finished,
            ready: Ready::new(hwqs, depth),
            slots: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
            pending: Vec::with_capacity(capacity as usize),
            tags: Vec::with_capacity(capacity as usize),
        })
    }

    /// Makes the drive fetch by weighted round robin with these weights. Seldom enough for a lock: a policy changes
    /// them every 10 ms at most.
    pub fn set_weights(&self, weights: WrrWeights) {
        self.model.set_weights(weights);
    }

    /// Whether the drive fetches by weighted round robin.
    pub fn is_weighted(&self) -> bool {
        self.model.is_weighted()
    }

    fn execute(&self, io: &Io) -> Outcome {
        match &self.content {
            Some(content) => content.execute(io),
            None => io.check(self.size_bytes),
        }
    }
}

/// One poller's queues on a [`ModelDrive`].
///
/// Data moves at submission, while the modelled drive would be at work, so that the copy does not add to the
/// modelled latency. The completion tells when the command is over. Refusals do not reach the model.
#[derive(Debug)]
pub struct Model {
    drive: ModelDrive,
    first_hwq: u16,
    /// Something of ours finished while another poller moved the drive on.
    finished: Arc<AtomicBool>,
    /// Refused commands.
    ready: Ready,
    /// Commands in the drive, by the tag that the drive knows them by.
    slots: Vec<Option<(HwqId, Io, Outcome)>>,
    free: Vec<u32>,
    pending: Vec<Pending>,
    tags: Vec<u32>,
}

impl Backend for Model {
    fn hwqs(&self) -> u16 {
        self.ready.hwqs()
    }

    fn depth(&self) -> u32 {
        self.ready.depth()
    }

    fn submit(&mut self, hwq: HwqId, io: Io, now: Nanos) {
        if hwq.0 >= self.hwqs() || self.free.is_empty() {
            return self.ready.push(hwq, io, Err(DeviceError::Gone));
        }
        let outcome = self.drive.execute(&io);
        if outcome.is_err() {
            return self.ready.push(hwq, io, outcome);
        }
        let Some(tag) = self.free.pop() else {
            return self.ready.push(hwq, io, Err(DeviceError::Gone));
        };
        let kind = match io.command.op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Flush | Op::WriteZeroes | Op::Discard => Kind::Control,
        };
        let request = Request { tag, kind, offset_bytes: io.command.offset_bytes, len_bytes: io.command.len_bytes };
        self.slots[tag as usize] = Some((hwq, io, outcome));
        self.pending.push((now.0, self.first_hwq + hwq.0, request));
    }

    fn kick(&mut self) {
        if !self.pending.is_empty() {
            self.drive.model.submit(&mut self.pending);
        }
    }

    fn reap(&mut self, now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        self.ready.reap(done);
        // Still pending: another poller was at the drive when we kicked.
        self.kick();
        if !self.finished.load(Ordering::Acquire) && !self.drive.model.is_due(now.0) {
            return;
        }
        // Taken back before looking, in one step: what was told since the look above must survive if the drive is taken
        // below, and what finishes from here on sets it anew.
        let told = self.finished.swap(false, Ordering::AcqRel);
        if !self.drive.model.collect(now.0, self.first_hwq, self.ready.hwqs(), &mut self.tags) {
            self.finished.fetch_or(told, Ordering::AcqRel);
            return;
        }
        for tag in self.tags.drain(..) {
            if let Some((hwq, io, outcome)) = self.slots.get_mut(tag as usize).and_then(Option::take) {
                self.free.push(tag);
                done(hwq, io.done(outcome));
            }
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        let now = !self.ready.is_empty() || !self.pending.is_empty() || self.finished.load(Ordering::Acquire);
        let next_ns = if now { 0 } else { self.drive.model.next_event_ns() };
        (next_ns != u64::MAX).then_some(Nanos(next_ns))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.drive.model.release(self.first_hwq, self.ready.hwqs());
    }
}
