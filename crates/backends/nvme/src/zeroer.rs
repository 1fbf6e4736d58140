//! Zeroing for a thread that may wait.

use std::thread;
use std::time::{Duration, Instant};

use guest_memory::IoBuf;
use io_model::{Backend, DeviceError, HwqId, Io, Nanos, Op, Outcome, Place, TenantId};

use crate::drive::{NvmeDrive, StartError};
use crate::queues::NvmeQueues;

/// How much is zeroed by one request, so that a slow drive is not taken for one that hangs.
const STEP_BYTES: u64 = 64 << 20;
const DEPTH: u32 = 4;
/// The pause between two polls: a thread that zeroes has time.
const PAUSE: Duration = Duration::from_micros(200);

/// Zeroes ranges of a drive over a queue of its own, which it has only as long as it lives.
pub struct NvmeZeroer {
    queues: NvmeQueues,
    since: Instant,
}

impl NvmeZeroer {
    /// Opens its queue.
    ///
    /// # Errors
    /// The drive has none left, or is gone.
    pub fn new(drive: &NvmeDrive) -> Result<Self, StartError> {
        Ok(Self { queues: drive.open_queues(1, DEPTH)?, since: Instant::now() })
    }

    /// Makes a range read as zeros.
    ///
    /// # Errors
    /// The drive's. Part of it may be zeroed.
    pub fn zero(&mut self, offset_bytes: u64, len_bytes: u64) -> Outcome {
        let end_bytes = offset_bytes.checked_add(len_bytes).ok_or(DeviceError::OutOfRange)?;
        let mut at = offset_bytes;
        while at < end_bytes {
            let step_bytes = STEP_BYTES.min(end_bytes - at);
            self.run(Place::whole_drive(NOBODY).command(Op::WriteZeroes, at, step_bytes))?;
            at += step_bytes;
        }
        Ok(())
    }

    /// Makes what was zeroed durable.
    ///
    /// # Errors
    /// The drive's.
    pub fn sync(&mut self) -> Outcome {
        self.run(Place::whole_drive(NOBODY).flush())
    }

    fn run(&mut self, command: io_model::Command) -> Outcome {
        let now = Nanos(self.since.elapsed().as_nanos() as u64);
        self.queues.submit(HwqId(0), Io { tag: 0, command, buf: IoBuf::default() }, now);
        loop {
            self.queues.kick();
            let mut outcome = None;
            let now = Nanos(self.since.elapsed().as_nanos() as u64);
            self.queues.reap(now, &mut |_, done| outcome = Some(done.outcome));
            if let Some(outcome) = outcome {
                return outcome;
            }
            thread::sleep(PAUSE);
        }
    }
}

/// The drive does not need to know the tenant of the ranges.
const NOBODY: TenantId = TenantId(0);
