//! A back end on the test bench: submits, polls, and checks what every completion owes.

use std::collections::HashMap;
use std::sync::Arc;

use guest_memory::{IoBuf, Mapping};
use io_model::{Backend, Command, HwqId, Io, Nanos, Op, Outcome, Place, TenantId};

use crate::Device;

/// Guest memory of the bench: one slot per command in flight.
const SLOT_BYTES: u64 = 4 << 20;
const SLOTS: u64 = 256;

/// Polls without a completion before the bench gives up: minutes for a back end that needs real time.
const PATIENCE_POLLS: u64 = 1 << 30;

/// The suite has the whole device.
const PLACE: Place = Place::whole_drive(TenantId(7));

struct Flight {
    hwq: HwqId,
    slot: u64,
    first: Option<(usize, usize)>,
    len_bytes: u64,
}

pub(crate) struct Rig<B> {
    pub(crate) device: Device,
    pub(crate) backend: B,
    memory: Arc<Mapping>,
    free_slots: Vec<u64>,
    now: Nanos,
    next_tag: u32,
    in_flight: HashMap<u32, Flight>,
    outcomes: HashMap<u32, (Outcome, u64)>,
}

impl<B: Backend> Rig<B> {
    pub(crate) fn new(device: Device, mut backend: B) -> Self {
        // Shared, as a guest's is.
        let (memory, _) = Mapping::memfd("conformance", (SLOT_BYTES * SLOTS) as usize).expect("memory for the bench");
        backend.map_memory(PLACE.tenant, &memory).expect("memory that the device can reach");
        Self {
            device,
            backend,
            memory,
            free_slots: (0..SLOTS).rev().collect(),
            now: Nanos(1_000),
            next_tag: 0,
            in_flight: HashMap::new(),
            outcomes: HashMap::new(),
        }
    }

    pub(crate) fn finished(&self) -> usize {
        self.outcomes.len()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(crate) fn command(&self, op: Op, offset_bytes: u64, len_bytes: u64) -> Command {
        PLACE.command(op, offset_bytes, len_bytes)
    }

    /// Submits with a buffer of these pieces, the first of them `first_byte` into a page and every next
    /// one in a page of its own where they are small; fills it with `pattern` if given.
    fn start(
        &mut self,
        hwq: u16,
        command: Command,
        first_byte: u64,
        pieces: &[u64],
        pattern: Option<u64>,
    ) -> (u32, u64) {
        let slot = self.free_slots.pop().expect("a free slot of guest memory");
        let mut buf = IoBuf::default();
        let mut at = slot * SLOT_BYTES + first_byte;
        let mut done = 0;
        for &piece in pieces {
            if let Some(pattern) = pattern {
                self.memory.write_at(at, &bytes(pattern, done, piece)).expect("inside of guest memory");
            }
            assert!(buf.push(&self.memory, at, piece), "a piece of guest memory");
            done += piece;
            // A gap that keeps the next piece's alignment, so that the pieces do not merge.
            at += piece + if pieces.len() > 1 { 1024 } else { 0 };
        }
        let tag = self.next_tag;
        self.next_tag += 1;
        let first = buf.segments().first().map(|segment| (segment.as_ptr() as usize, segment.len_bytes()));
        self.in_flight.insert(tag, Flight { hwq: HwqId(hwq), slot, first, len_bytes: buf.len_bytes() });
        self.backend.submit(HwqId(hwq), Io { tag, command, buf }, self.now);
        (tag, slot)
    }

    /// One poll: kick, reap, and let time pass.
    pub(crate) fn poll(&mut self) {
        self.backend.kick();
        if let Some(at) = self.backend.next_event() {
            self.now = self.now.max(at);
        }
        let before = self.in_flight.len();
        let Self { backend, in_flight, outcomes, free_slots, now, .. } = self;
        backend.reap(*now, &mut |hwq, done| {
            let flight = in_flight.remove(&done.tag).expect("a tag that is in flight, once");
            assert_eq!(hwq, flight.hwq, "tag {} came back from another queue", done.tag);
            let first = done.buf.segments().first().map(|segment| (segment.as_ptr() as usize, segment.len_bytes()));
            assert_eq!((first, done.buf.len_bytes()), (flight.first, flight.len_bytes), "another buffer came back");
            free_slots.push(flight.slot);
            outcomes.insert(done.tag, (done.outcome, flight.slot));
        });
        self.now += Nanos(100);
        if self.in_flight.len() == before && before > 0 {
            std::thread::yield_now();
        }
    }

    pub(crate) fn drain(&mut self) {
        let mut polls: u64 = 0;
        while !self.in_flight.is_empty() {
            self.poll();
            polls += 1;
            assert!(polls < PATIENCE_POLLS, "{} commands never finished", self.in_flight.len());
        }
        self.poll();
        for (tag, (outcome, _)) in self.outcomes.drain() {
            assert_eq!(outcome, Ok(()), "tag {tag}");
        }
    }

    fn finish(&mut self, tag: u32) -> (Outcome, u64) {
        let mut polls: u64 = 0;
        loop {
            if let Some(end) = self.outcomes.remove(&tag) {
                return end;
            }
            self.poll();
            polls += 1;
            assert!(polls < PATIENCE_POLLS, "tag {tag} never finished");
        }
    }

    /// Runs one command with a plain buffer to its end.
    pub(crate) fn run(&mut self, command: Command) -> Outcome {
        let pieces: &[u64] = if command.op.has_data() { &[command.len_bytes] } else { &[] };
        let (tag, _) = self.start(0, command, 0, pieces, None);
        self.finish(tag).0
    }

    pub(crate) fn one(&mut self, op: Op, offset_bytes: u64, len_bytes: u64) -> Outcome {
        self.run(self.command(op, offset_bytes, len_bytes))
    }

    pub(crate) fn one_with_buffer_of(&mut self, op: Op, offset_bytes: u64, len_bytes: u64, buf_bytes: u64) -> Outcome {
        let (tag, _) = self.start(0, self.command(op, offset_bytes, len_bytes), 0, &[buf_bytes], None);
        self.finish(tag).0
    }

    pub(crate) fn no_such_queue(&mut self) {
        let hwq = self.backend.hwqs();
        let (tag, _) = self.start(hwq, self.command(Op::Write, 0, 4096), 0, &[4096], Some(3));
        assert!(self.finish(tag).0.is_err(), "a queue that does not exist took a command");
    }

    pub(crate) fn run_pattern(&mut self, command: Command, pattern: u64) {
        let (tag, _) = self.start(0, command, 0, &[command.len_bytes], Some(pattern));
        assert_eq!(self.finish(tag).0, Ok(()), "{command:?}");
    }

    pub(crate) fn write(&mut self, offset_bytes: u64, len_bytes: u64, pattern: u64) {
        self.run_pattern(self.command(Op::Write, offset_bytes, len_bytes), pattern);
    }

    /// As [`Rig::write`], for ranges beyond a mebibyte.
    pub(crate) fn write_long(&mut self, offset_bytes: u64, len_bytes: u64, pattern: u64) {
        let pieces: Vec<u64> = (0..len_bytes).step_by(1 << 20).map(|done| (len_bytes - done).min(1 << 20)).collect();
        let mut done = 0;
        for piece in pieces {
            let slot = self.start_write_at(0, offset_bytes + done, piece, pattern, done);
            assert_eq!(self.finish(slot).0, Ok(()), "write");
            done += piece;
        }
    }

    fn start_write_at(&mut self, hwq: u16, offset_bytes: u64, len_bytes: u64, pattern: u64, done: u64) -> u32 {
        let slot = *self.free_slots.last().expect("a free slot of guest memory");
        self.memory.write_at(slot * SLOT_BYTES, &bytes(pattern, done, len_bytes)).expect("inside of guest memory");
        self.start(hwq, self.command(Op::Write, offset_bytes, len_bytes), 0, &[len_bytes], None).0
    }

    pub(crate) fn start_write(&mut self, hwq: u16, offset_bytes: u64, len_bytes: u64, pattern: u64) {
        self.start_write_at(hwq, offset_bytes, len_bytes, pattern, 0);
    }

    /// Starts a command without data, whose outcome [`Rig::drain`] checks.
    pub(crate) fn start_plain(&mut self, hwq: u16, op: Op, offset_bytes: u64, len_bytes: u64) {
        self.start(hwq, self.command(op, offset_bytes, len_bytes), 0, &[], None);
    }

    pub(crate) fn write_pieces(&mut self, offset_bytes: u64, first_byte: u64, pieces: &[u64], pattern: u64) {
        let command = self.command(Op::Write, offset_bytes, pieces.iter().sum());
        let (tag, _) = self.start(0, command, first_byte, pieces, Some(pattern));
        assert_eq!(self.finish(tag).0, Ok(()), "a write from {} pieces, the first at {first_byte}", pieces.len());
    }

    /// Reads into pieces and compares; memory between the pieces must stay as it was.
    pub(crate) fn expect_pattern_pieces(&mut self, offset_bytes: u64, first_byte: u64, pieces: &[u64], pattern: u64) {
        let command = self.command(Op::Read, offset_bytes, pieces.iter().sum());
        let (tag, slot) = self.start(0, command, first_byte, pieces, Some(!pattern));
        let (outcome, _) = self.finish(tag);
        assert_eq!(outcome, Ok(()), "a read into {} pieces, the first at {first_byte}", pieces.len());
        if !self.device.keeps_data {
            return;
        }
        let (mut at, mut done) = (slot * SLOT_BYTES + first_byte, 0);
        for &piece in pieces {
            assert!(self.memory_at(at, piece) == bytes(pattern, done, piece), "piece at byte {done} of {command:?}");
            done += piece;
            at += piece + 1024;
        }
    }

    fn memory_at(&self, at: u64, len_bytes: u64) -> Vec<u8> {
        let mut out = vec![0; len_bytes as usize];
        self.memory.read_at(at, &mut out).expect("inside of guest memory");
        out
    }

    /// What the device holds.
    pub(crate) fn read(&mut self, offset_bytes: u64, len_bytes: u64) -> Vec<u8> {
        let command = self.command(Op::Read, offset_bytes, len_bytes);
        let (tag, slot) = self.start(0, command, 0, &[len_bytes], Some(0xdead));
        let (outcome, _) = self.finish(tag);
        assert_eq!(outcome, Ok(()), "{command:?}");
        self.memory_at(slot * SLOT_BYTES, len_bytes)
    }

    pub(crate) fn expect_pattern(&mut self, offset_bytes: u64, len_bytes: u64, pattern: u64) {
        self.expect_pattern_part(offset_bytes, len_bytes, 0, len_bytes, pattern);
    }

    /// Of a pattern that was written to the first range, expects `part_bytes` from `part_offset`.
    pub(crate) fn expect_pattern_part(
        &mut self,
        offset_bytes: u64,
        len_bytes: u64,
        part_offset: u64,
        part_bytes: u64,
        pattern: u64,
    ) {
        assert!(part_offset + part_bytes <= len_bytes);
        let read = self.read(offset_bytes + part_offset, part_bytes);
        if self.device.keeps_data {
            let same = read == bytes(pattern, part_offset, part_bytes);
            assert!(same, "{part_bytes} bytes at {} are not pattern {pattern}", offset_bytes + part_offset);
        }
    }

    pub(crate) fn expect_zeroes(&mut self, offset_bytes: u64, len_bytes: u64) {
        let read = self.read(offset_bytes, len_bytes);
        if self.device.keeps_data {
            assert!(read.iter().all(|&byte| byte == 0), "{len_bytes} bytes at {offset_bytes} are not zeros");
        }
    }

    /// After a discard: each block of the part holds the pattern, or zeros.
    pub(crate) fn expect_pattern_or_zeroes(
        &mut self,
        offset_bytes: u64,
        len_bytes: u64,
        part_offset: u64,
        part_bytes: u64,
        pattern: u64,
    ) {
        assert!(part_offset + part_bytes <= len_bytes);
        let block = self.device.block_bytes as usize;
        let read = self.read(offset_bytes + part_offset, part_bytes);
        let pattern = bytes(pattern, part_offset, part_bytes);
        for (read, pattern) in read.chunks(block).zip(pattern.chunks(block)) {
            if self.device.keeps_data {
                let zeroes = read.iter().all(|&byte| byte == 0);
                assert!(zeroes || read == pattern, "a discarded block is neither zeros nor what it was");
            }
        }
    }

    /// Ends with this memory and goes on with other memory. What the old one was must be nobody's then.
    pub(crate) fn change_memory(&mut self) {
        assert!(self.in_flight.is_empty(), "commands in flight use the memory");
        let (new, _) = Mapping::memfd("conformance", (SLOT_BYTES * SLOTS) as usize).expect("memory for the bench");
        let alias = Mapping::alias(&new);
        // Map the memory twice, for two tenants.
        self.backend.map_memory(PLACE.tenant, &new).expect("memory that the device can reach");
        self.backend.map_memory(TenantId(8), &alias).expect("memory that the device can reach");
        let old = std::mem::replace(&mut self.memory, new);
        self.backend.unmap_memory(PLACE.tenant, &old);
        assert_eq!(Arc::strong_count(&old), 1, "unmapped memory is still in use");
        drop(old);
        self.backend.unmap_memory(TenantId(8), &alias);
    }

    /// Drops the back end as it is and returns the guest memory.
    pub(crate) fn abandon(self) -> Arc<Mapping> {
        self.memory
    }
}

/// `len_bytes` of an endless pattern, from `from` on: no two blocks of it and no two patterns are equal.
pub(crate) fn bytes(pattern: u64, from: u64, len_bytes: u64) -> Vec<u8> {
    let (first, end) = (from / 8, (from + len_bytes).div_ceil(8));
    let mut out: Vec<u8> = (first..end).flat_map(|word| mix(pattern ^ word << 20).to_le_bytes()).collect();
    out.drain(..(from - first * 8) as usize);
    out.truncate(len_bytes as usize);
    out
}

/// The finalizer of SplitMix64.
pub(crate) fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
