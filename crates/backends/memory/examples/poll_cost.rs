//! A poller's time per command: `cargo run --release -p backend-memory --example poll_cost`.
//!
//! 4 KiB random reads at a depth of 32 on a populated drive. The copy is in the figure of the drives with
//! content.

#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::time::Instant;

use backend_memory::{MemoryDrive, ModelDrive, NullDrive};
use guest_memory::{IoBuf, Mapping};
use io_model::{Backend, HwqId, Io, Nanos, Op, Place, TenantId};
use ssd_model::Profile;

const SIZE_BYTES: u64 = 1 << 30;
const COMMANDS: u32 = 2_000_000;
const DEPTH: u32 = 32;

fn main() {
    let (null, memory) = (NullDrive::new(SIZE_BYTES), MemoryDrive::new(SIZE_BYTES).expect("memory"));
    let model = ModelDrive::without_content(Profile::p5800x(), SIZE_BYTES);
    report("null", cost_ns(&mut null.open_queues(1, DEPTH)));
    report("memory", cost_ns(&mut memory.open_queues(1, DEPTH)));
    report("model, no content, virtual time", cost_ns(&mut model.open_queues(1, DEPTH).expect("a queue")));
}

fn report(name: &str, cost_ns: f64) {
    println!("{name:32} {cost_ns:6.1} ns per command");
}

fn cost_ns(backend: &mut impl Backend) -> f64 {
    let memory = Mapping::anonymous((DEPTH * 4096) as usize).expect("memory");
    let mut bufs: Vec<IoBuf> = Vec::new();
    for slot in 0..DEPTH {
        let mut buf = IoBuf::default();
        assert!(buf.push(&memory, u64::from(slot) * 4096, 4096));
        bufs.push(buf);
    }
    let mut now = Nanos(0);
    for offset_bytes in (0..SIZE_BYTES).step_by(4096) {
        run(backend, Op::Write, &mut bufs, &mut now, || offset_bytes);
    }
    let mut random = fastrand::Rng::with_seed(1);
    let started = Instant::now();
    for _ in 0..COMMANDS / DEPTH {
        run(backend, Op::Read, &mut bufs, &mut now, || random.u64(..SIZE_BYTES / 4096) * 4096);
    }
    started.elapsed().as_nanos() as f64 / f64::from(COMMANDS)
}

/// Submits all buffers and reaps until they are back.
fn run(backend: &mut impl Backend, op: Op, bufs: &mut Vec<IoBuf>, now: &mut Nanos, mut offset: impl FnMut() -> u64) {
    let count = bufs.len();
    for (tag, buf) in (0..).zip(bufs.drain(..)) {
        let command = Place::whole_drive(TenantId(0)).command(op, offset(), 4096);
        backend.submit(HwqId(0), Io { tag, command, buf }, *now);
    }
    backend.kick();
    while bufs.len() < count {
        *now = (*now).max(backend.next_event().unwrap_or_default());
        backend.reap(*now, &mut |_, done| {
            assert_eq!(done.outcome, Ok(()));
            bufs.push(done.buf);
        });
    }
}
