//! How many commands a second the model simulates: `cargo bench -p ssd-model`.
//!
//! A closed loop of 8 queues with 32 commands each. Shown is the best of many short runs, since whatever else the
//! machine does only adds.

#![allow(clippy::disallowed_methods)] // The model has no clock of its own; its benchmark needs one.

use std::time::Instant;

use ssd_model::{Drive, Kind, Profile, Request};

const COMMANDS: u64 = 20_000;
const RUNS: u32 = 100;
const HWQS: u16 = 8;
const DEPTH: u32 = 32;

fn main() {
    for profile in Profile::built_in() {
        for (name, kind) in [("read", Kind::Read), ("write", Kind::Write)] {
            let mut best_s = f64::MAX;
            let mut virtual_ns = 0;
            for _ in 0..RUNS {
                let mut drive = Drive::new(profile.clone(), HWQS);
                let started = Instant::now();
                virtual_ns = simulate(&mut drive, kind);
                best_s = best_s.min(started.elapsed().as_secs_f64());
            }
            println!(
                "{:8} 4 KiB random {name:5}: {:5.1} M commands/s simulated, {:6.0}K IOPS in virtual time",
                profile.name,
                COMMANDS as f64 / best_s / 1e6,
                COMMANDS as f64 / virtual_ns as f64 * 1e6,
            );
        }
    }
}

fn simulate(drive: &mut Drive, kind: Kind) -> u64 {
    let mut random = fastrand::Rng::with_seed(1);
    let mut request = |tag| Request { tag, kind, offset_bytes: random.u64(..1 << 37) * 4096, len_bytes: 4096 };
    let (mut now_ns, mut finished_total) = (0, 0);
    for tag in 0..u32::from(HWQS) * DEPTH {
        drive.submit(now_ns, (tag % u32::from(HWQS)) as u16, request(tag)).expect("the queue exists");
    }
    let mut finished = Vec::new();
    while finished_total < COMMANDS {
        now_ns = drive.next_finish().unwrap_or(now_ns);
        drive.poll(now_ns, &mut |hwq, tag, _| finished.push((hwq, tag)));
        for (hwq, tag) in finished.drain(..) {
            finished_total += 1;
            drive.submit(now_ns, hwq, request(tag)).expect("the queue exists");
        }
    }
    now_ns
}
