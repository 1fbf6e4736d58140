//! Nanoseconds per command for fetch and complete together, one-page reads through PRP, with the
//! host's own work (entries, doorbells) kept out of the measured part.
//!
//! `cargo bench -p nvme-controller`

// A benchmark measures real time.
#![allow(clippy::disallowed_methods)]

#[allow(dead_code)]
#[path = "../tests/controller/host.rs"]
mod host;

use std::time::{Duration, Instant};

use host::{Host, config};
use io_model::{Fetch, Source};
use nvme_controller::Doorbells;
use nvme_spec::Sqe;
use nvme_spec::data::{SglDescriptor, sgl_type};
use nvme_spec::opcode::nvm;
use nvme_spec::regs::Cc;

const COMMANDS: u32 = 2_000_000;
/// Pairs of measurements, with a journal and without one.
const ROUNDS: usize = 7;

fn main() {
    println!("{:<28} {:>6} {:>10}", "read", "batch", "ns/command");
    for batch in [1, 32, 128, 256] {
        let read = |host: &mut Host, page| host.rw(nvm::READ, page % 1024 * 8, 8, data(page), 4096);
        // By turns, so that what else the machine does is felt by both.
        let round = || [false, true].map(|is_kept| spent_ns(Cc::AMS_ROUND_ROBIN, is_kept, batch, read));
        let rounds: Vec<[f64; 2]> = (0..ROUNDS).map(|_| round()).collect();
        let median = |of: fn(&[f64; 2]) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_unstable_by(f64::total_cmp);
            all[all.len() / 2]
        };
        row("4 KiB, PRP, no journal", batch, median(|[without, _]| *without));
        row("4 KiB, PRP", batch, median(|[_, with]| *with));
        row("what the journal costs", batch, median(|[without, with]| with - without));
    }
    for (name, ams) in [("4 KiB, PRP, weighted queues", Cc::AMS_WEIGHTED), ("4 KiB, PRP, deficits", Cc::AMS_VENDOR)] {
        measure_under(ams, name, 32, |host, page| host.rw(nvm::READ, page % 1024 * 8, 8, data(page), 4096));
    }
    measure("4 KiB, two PRP pages", 32, |host, page| host.rw(nvm::READ, 0, 8, data(page) + 2048, 4096));
    measure("4 KiB, SGL", 32, |_, page| {
        let block = SglDescriptor::new(sgl_type::DATA_BLOCK, data(page), 4096);
        Sqe { flags: 0x40, dptr: bytemuck::cast(block), ..host::rw(nvm::READ, 0, 8) }
    });
    let mut list = None;
    measure("128 KiB, PRP list", 32, |host, _| {
        *list.get_or_insert_with(|| host.rw(nvm::READ, 0, 256, data(0), 131_072))
    });
    println!("\n{:<28} {:>6} {:>10}", "a look at an idle tenant", "of", "ns/look");
    for queues in [1, 16, 64] {
        for tenants in [1, 64, 256] {
            row(&format!("{queues} queues"), tenants, look_ns(queues, tenants));
        }
    }
}

/// The time of a look at an idle tenant with this many queues, one of this many tenants in turn.
fn look_ns(queues: u16, tenants: u16) -> f64 {
    const LOOKS: u32 = 20_000;
    let host = |_| {
        let config = nvme_controller::ControllerConfig { doorbells: Doorbells::Mapped, ..config() };
        let mut host = Host::without_journal(config);
        host.enable(32);
        (1..=queues).for_each(|qid| host.create_pair(qid, 64));
        host
    };
    let mut hosts: Vec<Host> = (0..tenants).map(host).collect();
    let rounds = LOOKS / u32::from(tenants);
    let mut best = Duration::MAX;
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..rounds {
            for host in &mut hosts {
                let controller = host.controller.at(0);
                let (done, live) = (controller.service(), controller.live_vqs());
                let mut rung = controller.rung() & live;
                while rung != 0 {
                    std::hint::black_box(controller.backlog(rung.trailing_zeros() as u16));
                    rung &= rung - 1;
                }
                std::hint::black_box(done);
            }
        }
        best = best.min(start.elapsed());
    }
    best.as_nanos() as f64 / f64::from(rounds * u32::from(tenants))
}

/// Page `n` of the upper half of guest memory.
fn data(page: u64) -> u64 {
    host::RAM_IOVA + host::RAM_BYTES / 2 + page % 4096 * 4096
}

fn measure(name: &str, batch: u16, command: impl FnMut(&mut Host, u64) -> Sqe) {
    measure_under(Cc::AMS_ROUND_ROBIN, name, batch, command);
}

/// VQ 1 is the only queue under every arbitration.
fn measure_under(ams: u8, name: &str, batch: u16, command: impl FnMut(&mut Host, u64) -> Sqe) {
    row(name, batch, spent_ns(ams, true, batch, command));
}

fn row(name: &str, batch: u16, ns: f64) {
    println!("{name:<28} {batch:>6} {ns:>10.1}");
}

/// A command's time; `is_kept`: with a journal.
fn spent_ns(ams: u8, is_kept: bool, batch: u16, mut command: impl FnMut(&mut Host, u64) -> Sqe) -> f64 {
    let config = nvme_controller::ControllerConfig { doorbells: Doorbells::Mapped, ..config() };
    let mut host = if is_kept { Host::new(config) } else { Host::without_journal(config) };
    host.enable_with(32, Cc::enable_nvm().with_ams(ams));
    host.create_pair(1, 1024);
    let mut in_flight = Vec::with_capacity(usize::from(batch));
    let mut spent = Duration::ZERO;
    let mut done = 0;
    while done < COMMANDS {
        for n in 0..batch {
            let sqe = command(&mut host, u64::from(n));
            host.push(1, sqe);
        }
        host.ring(1);
        let controller = host.controller.at(0);
        let start = Instant::now();
        for _ in 0..batch {
            if controller.backlog(1) > 0
                && let Fetch::Command(command, buf, token) = controller.fetch(1)
            {
                in_flight.push((command, buf, token));
            }
        }
        for (_, buf, token) in in_flight.drain(..) {
            controller.complete(token, Ok(()), buf);
        }
        controller.notify();
        spent += start.elapsed();
        done += u32::from(batch);
        let completions = host.completions(1);
        assert!(completions.iter().all(|cqe| cqe.status().is_success()) && completions.len() == usize::from(batch));
    }
    spent.as_nanos() as f64 / f64::from(done)
}
