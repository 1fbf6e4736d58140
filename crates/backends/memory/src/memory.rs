//! A drive in memory.

use std::sync::Arc;

use guest_memory::{MapError, Mapping};
use io_model::{Backend, DeviceError, Done, HwqId, Io, Nanos, Op, Outcome};

use crate::ready::Ready;

/// A drive's content: zeros until written.
///
/// Pollers share it without a lock. Two commands on one range that are in flight at the same time may
/// leave any mix of their bytes, as on a real drive.
#[derive(Debug, Clone)]
pub struct MemoryDrive {
    content: Arc<Mapping>,
}

impl MemoryDrive {
    /// An empty drive of `size_bytes`. Fails if that is 0 or more than the address space holds.
    pub fn new(size_bytes: u64) -> Result<Self, MapError> {
        let Ok(len_bytes) = usize::try_from(size_bytes) else {
            return Err(MapError::BadRange { offset_bytes: 0, len_bytes: size_bytes });
        };
        Ok(Self { content: Mapping::anonymous(len_bytes)? })
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.content.len_bytes()
    }

    /// `hwqs` queues of `depth` commands each, for one poller.
    pub fn open_queues(&self, hwqs: u16, depth: u32) -> Memory {
        Memory { drive: self.clone(), ready: Ready::new(hwqs, depth) }
    }

    /// Does what the command says, at once.
    #[inline]
    pub(crate) fn execute(&self, io: &Io) -> Outcome {
        io.check(self.size_bytes())?;
        let (offset_bytes, len_bytes) = (io.command.offset_bytes, io.command.len_bytes);
        // The range is inside of the drive: a copy fails for want of the guest's memory.
        let is_done = match io.command.op {
            Op::Read => io.buf.copy_mapping(&self.content, offset_bytes, false),
            Op::Write => io.buf.copy_mapping(&self.content, offset_bytes, true),
            Op::Flush => true,
            Op::WriteZeroes | Op::Discard => self.content.discard(offset_bytes, len_bytes).is_some(),
        };
        if is_done { Ok(()) } else { Err(DeviceError::Memory) }
    }
}

/// One poller's queues on a [`MemoryDrive`].
///
/// The copy happens at submission. [`Op::WriteZeroes`] and [`Op::Discard`] give whole pages back to the
/// system, which takes a system call; reads, writes and flushes take none.
#[derive(Debug)]
pub struct Memory {
    drive: MemoryDrive,
    ready: Ready,
}

impl Backend for Memory {
    fn hwqs(&self) -> u16 {
        self.ready.hwqs()
    }

    fn depth(&self) -> u32 {
        self.ready.depth()
    }

    #[inline]
    fn submit(&mut self, hwq: HwqId, io: Io, _now: Nanos) {
        let outcome = if hwq.0 < self.hwqs() { self.drive.execute(&io) } else { Err(DeviceError::Gone) };
        self.ready.push(hwq, io, outcome);
    }

    fn kick(&mut self) {}

    #[inline]
    fn reap(&mut self, _now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        self.ready.reap(done);
    }

    fn next_event(&self) -> Option<Nanos> {
        self.ready.next_event()
    }
}
