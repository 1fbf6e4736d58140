//! A drive in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use guest_memory::{MapError, Mapping};
use io_model::{Backend, DeviceError, Done, HwqId, Io, Nanos, Op, Outcome};

/// Of the next command's range, what is asked for while this one's is copied. What lies in no cache waits for its
/// page's address and for its first lines; what follows comes by itself.
const PREFETCHED_LINES: u16 = 4;

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
        let capacity = usize::from(hwqs).saturating_mul(depth as usize);
        Memory { drive: self.clone(), hwqs, depth, sent: VecDeque::with_capacity(capacity) }
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
/// Data is copied when it is reaped, all that was submitted one after the other, so that memory is asked for the next
/// range in time: copies that other work lies between wait for it each. [`Op::WriteZeroes`] and [`Op::Discard`] give
/// whole pages back to the system, which takes a system call; reads, writes and flushes take none.
#[derive(Debug)]
pub struct Memory {
    drive: MemoryDrive,
    hwqs: u16,
    depth: u32,
    /// With room for all that the queues hold: a poller that respects the depth never makes it allocate.
    sent: VecDeque<(HwqId, Io)>,
}

impl Backend for Memory {
    fn hwqs(&self) -> u16 {
        self.hwqs
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    #[inline]
    fn submit(&mut self, hwq: HwqId, io: Io, _now: Nanos) {
        self.sent.push_back((hwq, io));
    }

    fn kick(&mut self) {}

    #[inline]
    fn reap(&mut self, _now: Nanos, done: &mut impl FnMut(HwqId, Done)) {
        while let Some((hwq, io)) = self.sent.pop_front() {
            if let Some((_, next)) = self.sent.front() {
                self.drive.content.prefetch(next.command.offset_bytes, PREFETCHED_LINES);
            }
            let outcome = if hwq.0 < self.hwqs { self.drive.execute(&io) } else { Err(DeviceError::Gone) };
            done(hwq, io.done(outcome));
        }
    }

    /// The past, if something can be reaped.
    fn next_event(&self) -> Option<Nanos> {
        (!self.sent.is_empty()).then_some(Nanos(0))
    }
}
