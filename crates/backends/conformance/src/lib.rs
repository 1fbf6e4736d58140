//! What every [`Backend`] must do, as one suite that each of them calls from its tests.
//!
//! The suite asserts, so a failure is a panic that says what was expected. It keeps a clock of its own:
//! it asks [`Backend::next_event`] and jumps there, so a drive model passes in virtual time, and it just
//! polls a back end that does not know. The random part prints its seed; the environment variable
//! `EVENKEEL_SEED` replays one.

#![forbid(unsafe_code)]

mod random;
mod rig;

use io_model::{Backend, DeviceError, Op};
use rig::Rig;

/// What the suite must know about the device under test.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    /// Its size; at least [`MIN_SIZE_BYTES`].
    pub size_bytes: u64,
    /// Ranges are multiples of this. A power of two, at most 4096.
    pub block_bytes: u64,
    /// Whether what is read is what was written. Without it, contents are not looked at.
    pub keeps_data: bool,
}

/// The smallest device that the suite can use.
pub const MIN_SIZE_BYTES: u64 = 8 << 20;

/// Runs the whole suite. `open` opens that many queues of that depth on the same drive, each time it is
/// called; the content may be anything at first and is overwritten.
pub fn check<B: Backend>(device: Device, mut open: impl FnMut(u16, u32) -> B) {
    assert!(device.size_bytes >= MIN_SIZE_BYTES && device.block_bytes <= 4096, "unfit for the suite: {device:?}");
    counts(&mut Rig::new(device, open(3, 17)));
    edges(&mut Rig::new(device, open(1, 8)));
    scattered(&mut Rig::new(device, open(1, 8)));
    refusals(&mut Rig::new(device, open(2, 8)));
    zeroes(&mut Rig::new(device, open(1, 8)));
    discard(&mut Rig::new(device, open(1, 8)));
    durability(&mut Rig::new(device, open(1, 8)));
    full_depth(&mut Rig::new(device, open(4, 32)));
    memory_comes_and_goes(&mut Rig::new(device, open(2, 8)));
    shared_drive(&mut Rig::new(device, open(1, 4)), &mut Rig::new(device, open(1, 4)));
    random::against_oracle(&mut Rig::new(device, open(3, 16)), random::seed());
    dropped_in_flight(Rig::new(device, open(2, 16)));
    edges(&mut Rig::new(device, open(1, 1)));
}

fn counts<B: Backend>(rig: &mut Rig<B>) {
    assert_eq!(rig.backend.hwqs(), 3, "hwqs");
    assert_eq!(rig.backend.depth(), 17, "depth");
    rig.backend.kick();
    rig.poll();
    assert_eq!(rig.finished(), 0, "nothing was submitted, something finished");
}

/// Patterns at the first and the last block, and large ones across any inner boundary.
fn edges<B: Backend>(rig: &mut Rig<B>) {
    let Device { size_bytes, block_bytes, .. } = rig.device;
    let ranges = [
        (0, block_bytes),
        (size_bytes - block_bytes, block_bytes),
        (block_bytes, 4096),
        ((1 << 20) - block_bytes, 2 * block_bytes),
        ((2 << 20) - 4096, 1 << 20),
        (size_bytes - (1 << 20), 1 << 20),
    ];
    for (pattern, (offset_bytes, len_bytes)) in (1..).zip(ranges) {
        rig.write(offset_bytes, len_bytes, pattern);
        rig.expect_pattern(offset_bytes, len_bytes, pattern);
    }
    rig.write(0, 3 * block_bytes, 77);
    rig.write(block_bytes, block_bytes, 78);
    rig.expect_pattern_part(0, 3 * block_bytes, 0, block_bytes, 77);
    rig.expect_pattern(block_bytes, block_bytes, 78);
    rig.expect_pattern_part(0, 3 * block_bytes, 2 * block_bytes, block_bytes, 77);
}

/// Guest memory in pieces, at any address and of any length.
fn scattered<B: Backend>(rig: &mut Rig<B>) {
    let block = rig.device.block_bytes;
    let pages: Vec<u64> = vec![4096; 64];
    let thousands: Vec<u64> = vec![512; 1536];
    let sectors_split: Vec<u64> = vec![100, 3, 2 * block - 103 - 44, 44];
    let unaligned_pages: Vec<u64> = [4096 - 40].into_iter().chain(vec![4096; 31]).chain([40]).collect();
    for (round, pieces) in [pages, thousands, sectors_split, unaligned_pages].iter().enumerate() {
        for first_byte in [0, 4, 512, 1021] {
            let len_bytes: u64 = pieces.iter().sum();
            let (offset_bytes, pattern) = (round as u64 * (1 << 20), 100 + round as u64 + first_byte);
            rig.write_pieces(offset_bytes, first_byte, pieces, pattern);
            rig.expect_pattern(offset_bytes, len_bytes, pattern);
            rig.expect_pattern_pieces(offset_bytes, first_byte, pieces, pattern);
        }
    }
}

/// Nothing outside of the device is touched, and every refusal comes back as a completion.
fn refusals<B: Backend>(rig: &mut Rig<B>) {
    let Device { size_bytes, block_bytes, .. } = rig.device;
    let huge = u64::MAX - block_bytes + 1;
    rig.write(size_bytes - block_bytes, block_bytes, 5);
    for op in [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard] {
        for (offset_bytes, len_bytes) in
            [(size_bytes, block_bytes), (size_bytes - block_bytes, 2 * block_bytes), (huge, 4096), (huge, block_bytes)]
        {
            let outcome = rig.one(op, offset_bytes, len_bytes);
            assert_eq!(outcome, Err(DeviceError::OutOfRange), "{op:?} of {len_bytes} bytes at {offset_bytes}");
        }
    }
    for op in [Op::Read, Op::Write] {
        let outcome = rig.one_with_buffer_of(op, 0, 2 * block_bytes, block_bytes);
        assert_eq!(outcome, Err(DeviceError::Memory), "{op:?} with a buffer shorter than its range");
    }
    rig.no_such_queue();
    rig.expect_pattern(size_bytes - block_bytes, block_bytes, 5);
}

fn zeroes<B: Backend>(rig: &mut Rig<B>) {
    let block = rig.device.block_bytes;
    for (offset_bytes, len_bytes) in [(4 * block, block), (4 * block, 9 * block), (4096, 1 << 20), (4 * block, 3 << 20)]
    {
        let (before, around) = (offset_bytes - block, len_bytes + 2 * block);
        rig.write_long(before, around, 9);
        assert_eq!(rig.one(Op::WriteZeroes, offset_bytes, len_bytes), Ok(()));
        rig.expect_zeroes(offset_bytes, len_bytes);
        rig.expect_pattern_part(before, around, 0, block, 9);
        rig.expect_pattern_part(before, around, around - block, block, 9);
    }
    let command = rig.command(Op::WriteZeroes, 0, 4096);
    assert_eq!(rig.run(command.with_fua(true)), Ok(()), "write zeroes with FUA");
    rig.expect_zeroes(0, 4096);
}

fn discard<B: Backend>(rig: &mut Rig<B>) {
    let block = rig.device.block_bytes;
    for (offset_bytes, len_bytes) in [(4096, block), (block, 64 << 10), (4096, 1 << 20)] {
        let (before, around) = (offset_bytes - block, len_bytes + 2 * block);
        rig.write_long(before, around, 11);
        assert_eq!(rig.one(Op::Discard, offset_bytes, len_bytes), Ok(()));
        rig.expect_pattern_or_zeroes(before, around, block, len_bytes, 11);
        rig.expect_pattern_part(before, around, 0, block, 11);
        rig.expect_pattern_part(before, around, around - block, block, 11);
        rig.write_long(before, around, 12);
        rig.expect_pattern(before, around.min(1 << 20), 12);
    }
}

fn durability<B: Backend>(rig: &mut Rig<B>) {
    rig.write(0, 4096, 21);
    assert_eq!(rig.one(Op::Flush, 0, 0), Ok(()), "flush");
    rig.expect_pattern(0, 4096, 21);
    let command = rig.command(Op::Write, 8192, 4096);
    rig.run_pattern(command.with_fua(true), 22);
    rig.expect_pattern(8192, 4096, 22);
}

/// Every queue takes as many commands as it says, and each comes back once, from the queue it went to.
fn full_depth<B: Backend>(rig: &mut Rig<B>) {
    let block = rig.device.block_bytes;
    for round in 0..3 {
        let (hwqs, depth) = (u64::from(rig.backend.hwqs()), u64::from(rig.backend.depth()));
        for index in 0..hwqs * depth {
            rig.start_write((index % hwqs) as u16, index * 4096, block, 1000 * round + index);
        }
        rig.drain();
        for index in 0..hwqs * depth {
            rig.expect_pattern(index * 4096, block, 1000 * round + index);
        }
    }
}

/// Memory is let go when it is told, and no sooner.
fn memory_comes_and_goes<B: Backend>(rig: &mut Rig<B>) {
    for round in 0..3 {
        for index in 0..8 {
            rig.start_write((index % 2) as u16, index * 4096, 4096, 50 + round);
        }
        rig.drain();
        rig.change_memory();
        rig.expect_pattern(0, 4096, 50 + round);
    }
}

/// What one poller wrote, another one reads.
fn shared_drive<B: Backend>(one: &mut Rig<B>, other: &mut Rig<B>) {
    one.write(4096, 8192, 31);
    other.expect_pattern(4096, 8192, 31);
    other.write(8192, 4096, 32);
    one.expect_pattern(8192, 4096, 32);
}

/// Buffers outlive whatever still uses them, and no longer.
fn dropped_in_flight<B: Backend>(mut rig: Rig<B>) {
    for index in 0..16 {
        rig.start_write((index % 2) as u16, index * 4096, 4096, 41);
    }
    rig.backend.kick();
    let memory = rig.abandon();
    assert_eq!(std::sync::Arc::strong_count(&memory), 1, "a dropped back end still holds buffers");
}
