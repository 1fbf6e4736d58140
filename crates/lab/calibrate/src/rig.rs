//! The measuring loop over a back end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use guest_memory::{IoBuf, MapError, Mapping};
use io_model::{Backend, DeviceError, HwqId, Io, Nanos, Op, Place, TenantId};

use crate::clock::Clock;

/// The longest command that is measured.
pub const MAX_LEN_BYTES: u64 = 64 << 20;

/// HWQs that a rig wants: one to be measured on, and several to fill the drive with.
pub const HWQS: u16 = 6;

/// With fewer nothing fills the drive while another queue is measured on.
pub const HWQS_LEAST: u16 = 2;

/// Commands that each of them holds.
pub const DEPTH: u32 = 1024;

/// The most that a stage has on one queue.
pub const DEPTH_LEAST: u32 = 256;

/// Nobody else is there while a drive is measured.
const WHOLE_DRIVE: Place = Place::whole_drive(TenantId(0));

/// How often a burst is repeated because the host was elsewhere.
const BURST_TRIES: usize = 8;

/// A drive that answers nothing for so long is not waited for any more.
const STUCK_NS: u64 = 60_000_000_000;

/// Why measuring ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The operator wants to stop.
    #[error("interrupted")]
    Interrupted,
    /// The drive failed a command.
    #[error("the drive failed a {op:?} of {len_bytes} bytes at {offset_bytes}: {error:?}")]
    Device {
        /// What was asked.
        op: Op,
        /// Where.
        offset_bytes: u64,
        /// How much.
        len_bytes: u64,
        /// Its answer.
        error: DeviceError,
    },
    /// Nothing comes back.
    #[error("the drive did not answer for 60 s")]
    Stuck,
}

/// Why measuring can't begin.
#[derive(Debug, thiserror::Error)]
pub enum NoMemory {
    /// There is none.
    #[error("no memory for the data that are measured with: {0}")]
    None(#[from] MapError),
    /// The drive may not reach it.
    #[error(
        "the drive can't be given {len_bytes} bytes of memory to move data to and from ({reason}): it takes that much \
         locked memory and some, so raise the limit (ulimit -l unlimited)"
    )]
    OutOfReach {
        /// How much.
        len_bytes: u64,
        /// The kernel's reason.
        reason: std::io::Error,
    },
}

/// The range that may be measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Facts {
    /// Read from anywhere below this.
    pub size_bytes: u64,
    /// The smallest command, a power of two.
    pub block_bytes: u64,
    /// Start and length of what may be overwritten; multiples of 4096.
    pub overwrite: Option<(u64, u64)>,
    /// What the measuring loop itself adds to a lone command's latency, and to the time between two of a burst.
    pub own_ns: (f64, f64),
}

/// One command of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shot {
    pub(crate) hwq: u16,
    pub(crate) op: Op,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
}

impl Shot {
    pub(crate) fn read(offset_bytes: u64, len_bytes: u64) -> Self {
        Self { hwq: 0, op: Op::Read, offset_bytes, len_bytes }
    }

    pub(crate) fn write(offset_bytes: u64, len_bytes: u64) -> Self {
        Self { hwq: 0, op: Op::Write, offset_bytes, len_bytes }
    }

    pub(crate) const FLUSH: Self = Self { hwq: 0, op: Op::Flush, offset_bytes: 0, len_bytes: 0 };

    pub(crate) fn on(self, hwq: u16) -> Self {
        Self { hwq, ..self }
    }
}

/// A finished command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finish {
    pub(crate) id: usize,
    pub(crate) at_ns: u64,
}

/// What a closed loop saw.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loop {
    /// Finish times from the start of the loop, in their order.
    pub(crate) finished_ns: Vec<u64>,
    /// Latencies, in the same order.
    pub(crate) latency_ns: Vec<u64>,
}

/// A back end, a clock and the memory that data moves to and from.
pub struct Rig<'s, B, C> {
    backend: B,
    clock: C,
    facts: Facts,
    stop: &'s AtomicBool,
    read_to: Arc<Mapping>,
    write_from: Arc<Mapping>,
    in_flight: Vec<Option<(Shot, usize)>>,
    free: Vec<u32>,
    spare: Vec<IoBuf>,
    failed: Option<Failure>,
    pub(crate) rng: Rng,
}

impl<'s, B: Backend, C: Clock> Rig<'s, B, C> {
    /// Measures on `backend`, which should have [`HWQS`] queues of [`DEPTH`] commands, and must have [`HWQS_LEAST`] of
    /// [`DEPTH_LEAST`], until `stop` is set.
    ///
    /// # Errors
    /// No memory for the data, or none that the drive reaches.
    pub fn new(mut backend: B, clock: C, facts: Facts, stop: &'s AtomicBool) -> Result<Self, NoMemory> {
        let mut rng = Rng::with_seed(0x0e5e_4b1e);
        let len = MAX_LEN_BYTES.min(facts.size_bytes.next_multiple_of(4096).max(4096));
        let read_to = Mapping::anonymous(len as usize)?;
        // A drive may compress, or not store zeros at all.
        let write_from = Mapping::anonymous((1 << 20) as usize)?;
        for at in (0..1 << 20).step_by(8) {
            write_from.write_at(at, &rng.u64(..).to_ne_bytes());
        }
        // A drive behind an IOMMU has its data copied otherwise, which would be measured too.
        for memory in [&read_to, &write_from] {
            backend.map_memory(WHOLE_DRIVE.tenant, memory).map_err(|refused| NoMemory::OutOfReach {
                len_bytes: memory.len_bytes(),
                reason: std::io::Error::from_raw_os_error(refused.errno),
            })?;
        }
        let capacity = u32::from(backend.hwqs()) * backend.depth();
        Ok(Self {
            backend,
            clock,
            facts,
            stop,
            read_to,
            write_from,
            in_flight: vec![None; capacity as usize],
            free: (0..capacity).rev().collect(),
            spare: Vec::new(),
            failed: None,
            rng,
        })
    }

    /// What may be measured.
    pub fn facts(&self) -> Facts {
        self.facts
    }

    /// Commands that all queues but the first hold together, one less than they could.
    pub(crate) fn backlog_max(&self) -> usize {
        (usize::from(self.backend.hwqs()).saturating_sub(1) * self.backend.depth() as usize).saturating_sub(1)
    }

    /// Queues that can be measured on.
    pub(crate) fn hwqs(&self) -> u16 {
        self.backend.hwqs()
    }

    /// The queue for the `n`th command of a backlog, so that the first one stays free.
    pub(crate) fn backlog_hwq(&self, n: usize) -> u16 {
        (n / self.backend.depth() as usize + 1) as u16
    }

    pub(crate) fn now_ns(&mut self) -> u64 {
        self.clock.now().0
    }

    /// Lets time pass, for the drive to empty its buffers.
    pub(crate) fn pause(&mut self, pause_ns: u64) -> Result<(), Failure> {
        let until = Nanos(self.now_ns().saturating_add(pause_ns));
        while self.clock.now() < until {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Failure::Interrupted);
            }
            self.clock.wait(Some(until));
        }
        Ok(())
    }

    /// Queues a command. The caller keeps to the queue's depth.
    pub(crate) fn submit(&mut self, shot: Shot, id: usize, now_ns: u64) {
        let Some(tag) = self.free.pop() else { return };
        let mut buf = self.spare.pop().unwrap_or_default();
        buf.clear();
        match shot.op {
            Op::Read => _ = buf.push(&self.read_to, 0, shot.len_bytes),
            Op::Write => _ = buf.push(&self.write_from, 0, shot.len_bytes),
            Op::Flush | Op::WriteZeroes | Op::Discard => {}
        }
        let Shot { op, offset_bytes, len_bytes, hwq } = shot;
        let command = WHOLE_DRIVE.command(op, offset_bytes, len_bytes);
        self.in_flight[tag as usize] = Some((shot, id));
        self.backend.submit(HwqId(hwq), Io { tag, command, buf }, Nanos(now_ns));
    }

    /// Waits until something finishes, and appends it.
    pub(crate) fn finish_some(&mut self, out: &mut Vec<Finish>) -> Result<(), Failure> {
        let (before, started_ns) = (out.len(), self.now_ns());
        loop {
            self.backend.kick();
            let now = self.clock.now();
            let (in_flight, free, spare, failed) =
                (&mut self.in_flight, &mut self.free, &mut self.spare, &mut self.failed);
            self.backend.reap(now, &mut |_, done| {
                let Some((shot, id)) = in_flight.get_mut(done.tag as usize).and_then(Option::take) else { return };
                free.push(done.tag);
                spare.push(done.buf);
                if let Err(error) = done.outcome {
                    let Shot { op, offset_bytes, len_bytes, .. } = shot;
                    *failed = Some(Failure::Device { op, offset_bytes, len_bytes, error });
                }
                out.push(Finish { id, at_ns: now.0 });
            });
            if out.len() > before {
                return self.failed.map_or(Ok(()), Err);
            }
            let next = self.backend.next_event();
            if now.0.saturating_sub(started_ns) > STUCK_NS {
                return Err(Failure::Stuck);
            }
            self.clock.wait(next);
        }
    }

    fn outstanding(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }

    /// Waits until nothing is with the drive any more.
    pub(crate) fn drain(&mut self) -> Result<(), Failure> {
        let mut finished = Vec::new();
        let mut outcome = Ok(());
        while self.outstanding() > 0 {
            match self.finish_some(&mut finished) {
                Err(Failure::Stuck) => return Err(Failure::Stuck),
                Err(failure) => outcome = Err(failure),
                Ok(()) => {}
            }
        }
        outcome
    }

    /// Time that the host lost, see [`Clock::lost`].
    pub(crate) fn lost_ns(&self) -> u64 {
        self.clock.lost().0
    }

    /// Submits all at once; when each one finished, from then. Again if the host was elsewhere meanwhile, some times.
    pub(crate) fn burst(&mut self, shots: &[Shot]) -> Result<Vec<u64>, Failure> {
        let mut lost_ns = self.lost_ns();
        let mut finished = self.burst_once(shots)?;
        for _ in 0..BURST_TRIES {
            if self.lost_ns() == lost_ns {
                break;
            }
            lost_ns = self.lost_ns();
            finished = self.burst_once(shots)?;
        }
        Ok(finished)
    }

    fn burst_once(&mut self, shots: &[Shot]) -> Result<Vec<u64>, Failure> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted);
        }
        let start_ns = self.now_ns();
        for (id, shot) in shots.iter().enumerate() {
            self.submit(*shot, id, start_ns);
        }
        let mut finished = Vec::with_capacity(shots.len());
        while finished.len() < shots.len() {
            if let Err(failure) = self.finish_some(&mut finished) {
                self.drain_quietly();
                return Err(failure);
            }
        }
        let mut at_ns = vec![0; shots.len()];
        for finish in finished {
            at_ns[finish.id] = finish.at_ns.saturating_sub(start_ns);
        }
        Ok(at_ns)
    }

    /// The latency of a command that finds the drive idle, ns, less the loop's own part.
    pub(crate) fn lone(&mut self, shot: Shot) -> Result<f64, Failure> {
        let latency_ns = self.burst(&[shot])?[0] as f64;
        Ok((latency_ns - self.facts.own_ns.0).max(0.0))
    }

    /// Keeps `depth` commands in flight until `count` finished or `limit_ns` passed.
    pub(crate) fn closed_loop(
        &mut self,
        depth: usize,
        count: usize,
        limit_ns: u64,
        mut next: impl FnMut(&mut Rng) -> Shot,
    ) -> Result<Loop, Failure> {
        let start_ns = self.now_ns();
        let mut submitted_ns = Vec::with_capacity(count);
        let mut finished = Vec::with_capacity(depth);
        let mut seen = Loop::default();
        while seen.finished_ns.len() < count {
            let now_ns = self.now_ns();
            let over = now_ns.saturating_sub(start_ns) > limit_ns;
            let room = if over { 0 } else { depth.saturating_sub(self.outstanding()) };
            for _ in 0..room.min(count - submitted_ns.len()) {
                let shot = next(&mut self.rng);
                self.submit(shot, submitted_ns.len(), now_ns);
                submitted_ns.push(now_ns);
            }
            if self.outstanding() == 0 {
                break;
            }
            let stopped = if self.stop.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) };
            if let Err(failure) = stopped.and_then(|()| self.finish_some(&mut finished)) {
                self.drain_quietly();
                return Err(failure);
            }
            for finish in finished.drain(..) {
                seen.finished_ns.push(finish.at_ns.saturating_sub(start_ns));
                seen.latency_ns.push(finish.at_ns.saturating_sub(submitted_ns[finish.id]));
            }
        }
        Ok(seen)
    }

    /// A failure is told already; what is left must be over before the queues can be closed.
    fn drain_quietly(&mut self) {
        let _ = self.drain();
        self.failed = None;
    }
}
