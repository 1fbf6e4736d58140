//! What pollers do beside each other that share a drive under one policy: each on a CPU of its own, with a best-effort
//! tenant's queue and that tenant's driver, so that nothing but the policy's parts is between them.

use std::sync::{Arc, Barrier};

use backend_memory::NullDrive;
use io_model::Nanos;
use poller::{Board, Poller, Probe};

use crate::{Case, DISK_BYTES, Guest, HWQ_DEPTH, HWQS, TENANT, nvme, pin, wall_ns};

const POLICIES: [&str; 3] = ["passthrough", "lpns", "evenkeel"];
const DEPTH: u16 = 32;
const SPAN_NS: u64 = 300_000_000;
/// Of which the best counts.
const ROUNDS: usize = 7;

/// Commands per microsecond of this many pollers together.
fn together(case: &Case, pollers: usize) -> f64 {
    let (board, start) = (Arc::new(Board::default()), Barrier::new(pollers));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..pollers)
            .map(|cpu| {
                let (board, start) = (board.clone(), &start);
                scope.spawn(move || {
                    pin(cpu);
                    let (guest, source) = nvme::attach(0);
                    let null = NullDrive::new(DISK_BYTES).open_queues(HWQS, HWQ_DEPTH);
                    let mut poller = Poller::new(null, case.policy(), board, Nanos(wall_ns()));
                    let probe = Arc::new(Probe::new(TENANT, case.class()));
                    assert!(poller.add(source, probe, &case.class().into()).is_ok());
                    start.wait();
                    serve(guest, |now| _ = poller.step(now))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a poller's thread")).sum()
    })
}

/// Commands per microsecond of one of them.
fn serve(mut guest: impl Guest, mut step: impl FnMut(Nanos)) -> f64 {
    let (start_ns, mut taken) = (wall_ns(), 0_u64);
    guest.offer(DEPTH);
    loop {
        let now_ns = wall_ns();
        if now_ns - start_ns >= SPAN_NS {
            return taken as f64 * 1e3 / (now_ns - start_ns) as f64;
        }
        step(Nanos(now_ns));
        let done = guest.take();
        taken += u64::from(done);
        guest.offer(done);
    }
}

/// One tenant, and as many queues of it as there are pollers.
pub fn print() {
    println!("{:<12} {:>12} {:>12} {:>8}", "policy", "1, M/s", "2, M/s", "ratio");
    for policy in POLICIES {
        let case = Case {
            front_end: "vfio-user".into(),
            policy: policy.into(),
            class: "best-effort".into(),
            depth: DEPTH,
            idle_queues: 0,
        };
        let best = |pollers| (0..ROUNDS).map(|_| together(&case, pollers)).fold(0.0, f64::max);
        let (one, two) = (best(1), best(2));
        println!("{policy:<12} {one:>12.2} {two:>12.2} {:>8.2}", two / one);
    }
}
