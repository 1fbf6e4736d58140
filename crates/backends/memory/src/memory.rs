//! A drive in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use guest_memory::{HugePagesError, MapError, Mapping};
use io_model::{Backend, DeviceError, Done, HwqId, Io, Nanos, Op, Outcome};

/// Of the next command's range, what is asked for while this one's is copied. What lies in no cache waits for its
/// page's address and for its first lines; what follows comes by itself.
const PREFETCHED_LINES: u16 = 4;

/// Of what is zeroed by hand, at a time: some 20 µs, for which other commands wait.
const ZERO_STEP_BYTES: u64 = 128 << 10;

/// A drive's content: zeros until written.
///
/// Pollers share it without a lock. Two commands on one range that are in flight at the same time may
/// leave any mix of their bytes, as on a real drive.
#[derive(Debug, Clone)]
pub struct MemoryDrive {
    content: Arc<Mapping>,
    /// No page goes back to the system: what is to be zeroed is zeroed by hand.
    keeps_pages: bool,
}

impl MemoryDrive {
    /// An empty drive of `size_bytes`. Fails if that is 0 or more than the address space holds.
    pub fn new(size_bytes: u64) -> Result<Self, MapError> {
        let Ok(len_bytes) = usize::try_from(size_bytes) else {
            return Err(MapError::BadRange { offset_bytes: 0, len_bytes: size_bytes });
        };
        Ok(Self { content: Mapping::anonymous(len_bytes)?, keeps_pages: false })
    }

    /// An empty drive in the host's huge pages, all of them taken now. Fails if there are not enough.
    pub fn in_huge_pages(size_bytes: u64) -> Result<Self, HugePagesError> {
        Ok(Self { content: Mapping::huge(size_bytes)?, keeps_pages: true })
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.content.len_bytes()
    }

    /// `hwqs` queues of `depth` commands each, for one poller.
    pub fn open_queues(&self, hwqs: u16, depth: u32) -> Memory {
        let capacity = usize::from(hwqs).saturating_mul(depth as usize);
        let zeroing_capacity = if self.keeps_pages { capacity } else { 0 };
        let (sent, zeroing) = (VecDeque::with_capacity(capacity), VecDeque::with_capacity(zeroing_capacity));
        Memory { drive: self.clone(), hwqs, depth, sent, zeroing }
    }

    /// Whether the command zeroes more than others should wait for.
    fn is_long(&self, io: &Io) -> bool {
        let zeroes = matches!(io.command.op, Op::WriteZeroes | Op::Discard);
        zeroes && self.keeps_pages && io.command.len_bytes > ZERO_STEP_BYTES && io.check(self.size_bytes()).is_ok()
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
/// whole pages back to the system, which takes a system call; reads, writes and flushes take none. Huge pages are
/// zeroed instead, a step whenever something is reaped.
#[derive(Debug)]
pub struct Memory {
    drive: MemoryDrive,
    hwqs: u16,
    depth: u32,
    /// With room for all that the queues hold: a poller that respects the depth never makes it allocate.
    sent: VecDeque<(HwqId, Io)>,
    /// What zeroes much of a drive that keeps its pages, and how many bytes of it are zeroed. The first goes on.
    zeroing: VecDeque<(HwqId, Io, u64)>,
}

impl Memory {
    /// Goes on with what zeroes much.
    fn zero_a_step(&mut self, done: &mut impl FnMut(HwqId, Done)) {
        let Some((hwq, io, zeroed_bytes)) = self.zeroing.pop_front() else { return };
        let left_bytes = io.command.len_bytes - zeroed_bytes;
        let step_bytes = left_bytes.min(ZERO_STEP_BYTES);
        let is_done = self.drive.content.discard(io.command.offset_bytes + zeroed_bytes, step_bytes);
        match is_done {
            None => done(hwq, io.done(Err(DeviceError::Memory))),
            Some(()) if left_bytes == step_bytes => done(hwq, io.done(Ok(()))),
            Some(()) => self.zeroing.push_front((hwq, io, zeroed_bytes + step_bytes)),
        }
    }
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
            if hwq.0 < self.hwqs && self.drive.is_long(&io) {
                self.zeroing.push_back((hwq, io, 0));
                continue;
            }
            let outcome = if hwq.0 < self.hwqs { self.drive.execute(&io) } else { Err(DeviceError::Gone) };
            done(hwq, io.done(outcome));
        }
        self.zero_a_step(done);
    }

    /// The past, if something can be reaped.
    fn next_event(&self) -> Option<Nanos> {
        (!self.sent.is_empty() || !self.zeroing.is_empty()).then_some(Nanos(0))
    }
}

#[cfg(test)]
mod tests {
    use conformance::{Device, MIN_SIZE_BYTES};
    use io_model::{IoBuf, Place, TenantId};

    use super::*;

    fn keeping_pages(size_bytes: u64) -> MemoryDrive {
        MemoryDrive { keeps_pages: true, ..MemoryDrive::new(size_bytes).expect("memory") }
    }

    #[test]
    fn a_drive_that_keeps_its_pages_conforms() {
        let drive = keeping_pages(MIN_SIZE_BYTES + 512);
        let device = Device { size_bytes: drive.size_bytes(), block_bytes: 512, keeps_data: true };
        conformance::check(device, |hwqs, depth| drive.open_queues(hwqs, depth));
    }

    #[test]
    fn others_go_on_while_much_is_zeroed() {
        let drive = keeping_pages(4 * ZERO_STEP_BYTES);
        drive.content.write_at(0, &vec![7; 4 * ZERO_STEP_BYTES as usize]).expect("inside");
        let mut queues = drive.open_queues(1, 8);
        let place = Place::whole_drive(TenantId(0));
        let submit = |queues: &mut Memory, tag, command| {
            queues.submit(HwqId(0), Io { tag, command, buf: IoBuf::default() }, Nanos(0));
            let mut ended = Vec::new();
            queues.reap(Nanos(0), &mut |_, done| ended.push((done.tag, done.outcome)));
            ended
        };
        let (offset_bytes, len_bytes) = (512, 2 * ZERO_STEP_BYTES + 512);
        assert_eq!(submit(&mut queues, 1, place.command(Op::Discard, offset_bytes, len_bytes)), []);
        assert_eq!(queues.next_event(), Some(Nanos(0)), "it is to be asked again");
        assert_eq!(submit(&mut queues, 2, place.flush()), [(2, Ok(()))]);
        assert_eq!(submit(&mut queues, 3, place.flush()), [(3, Ok(())), (1, Ok(()))], "a third step does the rest");
        assert_eq!(queues.next_event(), None);
        let mut content = vec![1; 4 * ZERO_STEP_BYTES as usize];
        drive.content.read_at(0, &mut content).expect("inside");
        let zeroed = offset_bytes as usize..(offset_bytes + len_bytes) as usize;
        assert!(content.iter().enumerate().all(|(at, byte)| *byte == if zeroed.contains(&at) { 0 } else { 7 }));
    }

    #[test]
    fn what_does_not_fit_is_refused_at_once() {
        let drive = keeping_pages(2 * ZERO_STEP_BYTES);
        let mut queues = drive.open_queues(1, 8);
        let command = Place::whole_drive(TenantId(0)).command(Op::WriteZeroes, 512, 2 * ZERO_STEP_BYTES);
        queues.submit(HwqId(0), Io { tag: 1, command, buf: IoBuf::default() }, Nanos(0));
        let mut failed = 0;
        queues.reap(Nanos(0), &mut |_, done| failed += usize::from(done.outcome.is_err()));
        assert_eq!((failed, queues.next_event()), (1, None));
    }
}
