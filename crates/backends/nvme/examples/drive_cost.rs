//! What a poller pays for submitting reads to a drive and for taking their completions, through the kernel or without
//! it; `cargo xtask guest-bench` compares the two on one drive.
//!
//! `cargo run --release -p backend-nvme --example drive_cost -- block PATH`, `ng PATH CHARACTER_DEVICE` for the same
//! with NVMe commands, or `nvme ADDRESS` for a drive that is claimed. A line of JSON for each length and depth: medians
//! of nanoseconds per command, less the clock's own. No clock runs while the drive works and the poller sleeps, so what
//! interrupts cost the kernel meanwhile is not in here.

#![allow(clippy::disallowed_methods, reason = "it measures, and waits for the drive")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use backend_nvme::{NvmeDrive, Options};
use backend_uring::{Kind, UringDrive};
use guest_memory::Mapping;
use io_model::{Backend, HwqId, Io, IoBuf, Nanos, Op, Place, TenantId};
use nvme_driver::VfioDevice;

const DEPTH: u32 = 32;
/// Commands in flight, and bytes of each.
const SHAPES: [(u32, u64); 4] = [(1, 4 << 10), (DEPTH, 4 << 10), (1, 128 << 10), (DEPTH, 128 << 10)];
const LONGEST_BYTES: u64 = 128 << 10;
const ROUNDS: usize = 60;
/// What the drive gets to end its commands: more, whenever that was too little.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["block", path] => {
            let drive = UringDrive::open(Path::new(path), Kind::Block, None)?;
            measure(&mut drive.open_queues(1, DEPTH)?)
        }
        ["ng", path, character_device] => {
            let drive = UringDrive::open_nvme(Path::new(path), Path::new(character_device))?;
            measure(&mut drive.open_queues(1, DEPTH)?)
        }
        ["nvme", address] => {
            let (drive, running) = NvmeDrive::start(VfioDevice::open(address.parse()?)?, Options::default())?;
            let running = thread::spawn(move || running.run(|_| {}));
            measure(&mut drive.open_queues(1, DEPTH)?)?;
            drop(drive);
            running.join().map_err(|_| "the drive's thread failed".into())
        }
        _ => Err("usage: drive_cost block PATH | ng PATH CHARACTER_DEVICE | nvme ADDRESS".into()),
    }
}

fn measure(backend: &mut impl Backend) -> Result<(), Box<dyn Error>> {
    let place = Place::whole_drive(TenantId(1));
    let (memory, _) = Mapping::memfd("data", (u64::from(DEPTH) * LONGEST_BYTES) as usize)?;
    backend.map_memory(place.tenant, &memory).map_err(|refused| format!("the drive reaches no memory: {refused:?}"))?;
    let clock_ns = clock_ns();
    for (depth, len_bytes) in SHAPES {
        let (mut submits, mut reaps, mut pause) = (Vec::new(), Vec::new(), FIRST_PAUSE);
        while submits.len() < ROUNDS {
            let ios = reads(&memory, place, depth, len_bytes);
            let start = Instant::now();
            for io in ios {
                backend.submit(HwqId(0), io, Nanos(0));
            }
            backend.kick();
            let submit_ns = start.elapsed().as_nanos() as f64;

            thread::sleep(pause);
            let start = Instant::now();
            let mut left = depth - reap(backend)?;
            let reap_ns = start.elapsed().as_nanos() as f64;
            if left == 0 {
                submits.push((submit_ns - clock_ns) / f64::from(depth));
                reaps.push((reap_ns - clock_ns) / f64::from(depth));
                continue;
            }
            pause *= 2;
            while left > 0 {
                backend.kick();
                left -= reap(backend)?;
            }
        }
        let (submit_ns, reap_ns) = (median(&mut submits), median(&mut reaps));
        println!(r#"{{"bytes":{len_bytes},"depth":{depth},"submit_ns":{submit_ns:.0},"reap_ns":{reap_ns:.0}}}"#);
    }
    Ok(())
}

/// One for each place in memory and on the drive.
fn reads(memory: &Arc<Mapping>, place: Place, depth: u32, len_bytes: u64) -> Vec<Io> {
    let read = |slot: u32| {
        let at = u64::from(slot) * LONGEST_BYTES;
        let mut buf = IoBuf::default();
        assert!(buf.push(memory, at, len_bytes), "the memory is there");
        Io { tag: slot, command: place.command(Op::Read, at, len_bytes), buf }
    };
    (0..depth).map(read).collect()
}

/// How many commands ended.
fn reap(backend: &mut impl Backend) -> Result<u32, Box<dyn Error>> {
    let (mut ended, mut failed) = (0, None);
    backend.reap(Nanos(0), &mut |_, done| {
        ended += 1;
        failed = failed.or(done.outcome.err());
    });
    failed.map_or(Ok(ended), |error| Err(format!("a read failed: {error:?}").into()))
}

/// What looking at the clock twice takes: where the clock is emulated, much.
fn clock_ns() -> f64 {
    let look = |_| Instant::now().elapsed().as_nanos() as f64;
    median(&mut (0..1000).map(look).collect::<Vec<_>>())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
