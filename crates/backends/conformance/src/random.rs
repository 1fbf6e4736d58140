//! Random commands against a byte array.

use fastrand::Rng;
use io_model::{Backend, Op};

use crate::rig::{Rig, bytes};

/// The part of the device that is used, half at each end.
const SPAN_BYTES: u64 = 2 << 20;
const ROUNDS: usize = 400;

/// The seed of this run: `EVENKEEL_SEED`, or a fixed one.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("EVENKEEL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_260_101);
    eprintln!("conformance: EVENKEEL_SEED={seed}");
    seed
}

/// Batches of random commands on ranges that do not overlap within a batch, in random queues; reads and,
/// at the end, the whole span must agree with an array that saw the same commands.
pub(crate) fn against_oracle<B: Backend>(rig: &mut Rig<B>, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let mut oracle = vec![0; SPAN_BYTES as usize];
    for at in (0..SPAN_BYTES).step_by(1 << 20) {
        let device_at = place(rig, at);
        rig.write(device_at, 1 << 20, at);
        oracle[at as usize..][..1 << 20].copy_from_slice(&bytes(at, 0, 1 << 20));
    }
    for _ in 0..ROUNDS {
        batch(rig, &mut random, &mut oracle);
    }
    for at in (0..SPAN_BYTES).step_by(1 << 18) {
        expect(rig, &oracle, at, 1 << 18);
    }
}

/// Where a byte of the span lies on the device: the first half at its start, the rest at its end.
fn place<B: Backend>(rig: &Rig<B>, at: u64) -> u64 {
    if at < SPAN_BYTES / 2 { at } else { rig.device.size_bytes - SPAN_BYTES + at }
}

fn batch<B: Backend>(rig: &mut Rig<B>, random: &mut Rng, oracle: &mut [u8]) {
    let block = rig.device.block_bytes;
    let (hwqs, depth) = (u64::from(rig.backend.hwqs()), u64::from(rig.backend.depth()));
    let mut at = random.u64(..SPAN_BYTES / 2 / block) * block;
    let mut touched = Vec::new();
    for index in 0..=random.u64(..hwqs * depth) {
        let len_bytes = random.u64(1..=16) * block;
        let half_end = if at < SPAN_BYTES / 2 { SPAN_BYTES / 2 } else { SPAN_BYTES };
        if at + len_bytes > half_end {
            break;
        }
        let (hwq, pattern, device_at) = ((index % hwqs) as u16, random.u64(..), place(rig, at));
        let range = at as usize..(at + len_bytes) as usize;
        match random.u8(..8) {
            0 => {
                rig.start_plain(hwq, Op::WriteZeroes, device_at, len_bytes);
                oracle[range].fill(0);
            }
            1 => rig.start_plain(hwq, Op::Flush, 0, 0),
            _ => {
                rig.start_write(hwq, device_at, len_bytes, pattern);
                oracle[range].copy_from_slice(&bytes(pattern, 0, len_bytes));
            }
        }
        touched.push((at, len_bytes));
        at += len_bytes + random.u64(..4) * block;
        if random.u8(..5) == 0 {
            rig.poll();
        }
    }
    rig.drain();
    assert_eq!(rig.in_flight(), 0);
    for (at, len_bytes) in touched {
        expect(rig, oracle, at, len_bytes);
    }
}

fn expect<B: Backend>(rig: &mut Rig<B>, oracle: &[u8], at: u64, len_bytes: u64) {
    let device_at = place(rig, at);
    let read = rig.read(device_at, len_bytes);
    let same = !rig.device.keeps_data || read == oracle[at as usize..(at + len_bytes) as usize];
    assert!(same, "{len_bytes} bytes at {device_at} are not what was written last");
}
