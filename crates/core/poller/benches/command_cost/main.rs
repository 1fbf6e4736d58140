//! What a command costs a poller, from the guest's ring to the back end and back: a front end over guest memory in this
//! process, a poller, a policy, and the back end that does nothing.
//!
//! `cargo bench -p poller --bench command_cost` prints nanoseconds of processor time. With a case as its arguments
//! (front end, policy, class and depth, as its table has them, and how many queues of an NVMe tenant do nothing beside)
//! it does that one alone, in the same way each time: to be counted by `valgrind --tool=callgrind
//! --toggle-collect='*iteration*'`, which knows nothing of what else the machine does. With the word `pollers` it tells
//! what two of them do beside each other.

mod nvme;
mod pollers;
mod vhost;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use backend_memory::{Null, NullDrive};
use io_model::{Nanos, Source, TenantId};
use policy::{AnyPolicy, Class, EvenkeelConfig, LpnsConfig, PolicyConfig, PollerShape};
use poller::{Board, Poller, Probe, Progress};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const TENANT: TenantId = TenantId(3);
const DISK_BYTES: u64 = 1 << 30;
const HWQS: u16 = 4;
const HWQ_DEPTH: u32 = 256;
const COMMANDS: u32 = 20_000;
/// Of which the best counts: whatever else the machine does only adds.
const RUNS: u32 = 30;
/// What an iteration takes of the clock that the poller is shown.
const ITERATION: Nanos = Nanos(300);

const FRONT_ENDS: [&str; 2] = ["vhost-user-blk", "vfio-user"];
const POLICIES: [&str; 3] = ["passthrough", "lpns", "evenkeel"];
const CLASSES: [&str; 2] = ["best-effort", "guaranteed"];
/// 0: an attached guest that asks for nothing, per iteration.
const DEPTHS: [u16; 4] = [0, 1, 32, 128];

/// The driver in a guest: 4 KiB reads, over one queue.
trait Guest {
    /// Makes `count` more commands available.
    fn offer(&mut self, count: u16);

    /// Takes the completions that there are.
    fn take(&mut self) -> u16;
}

struct Case {
    front_end: String,
    policy: String,
    class: String,
    depth: u16,
    idle_queues: u16,
}

impl Case {
    fn class(&self) -> Class {
        match self.class.as_str() {
            "guaranteed" => Class::guaranteed(Some(Nanos::from_micros(100))),
            _ => Class::BestEffort { weight: 1 },
        }
    }

    fn policy(&self) -> AnyPolicy {
        let config = match self.policy.as_str() {
            "lpns" => PolicyConfig::Lpns(LpnsConfig::p5800x()),
            "evenkeel" => PolicyConfig::Evenkeel(EvenkeelConfig::p5800x()),
            _ => PolicyConfig::Passthrough,
        };
        let guaranteed_vqs = self.class().is_guaranteed().into();
        let shape = PollerShape { hwqs: HWQS, hwq_depth: HWQ_DEPTH, guaranteed_vqs, weighted: false };
        config.build(&shape).expect("valid settings")
    }

    /// Runs this many commands. Returns the time per command by that clock, including the guest's part.
    fn measure(&self, commands: u32, clock_ns: fn() -> u64) -> f64 {
        if self.front_end == "vfio-user" {
            let (guest, source) = nvme::attach(self.idle_queues);
            self.measure_with(guest, source, commands, clock_ns)
        } else {
            let (guest, source) = vhost::attach(self.depth.max(1));
            self.measure_with(guest, source, commands, clock_ns)
        }
    }

    fn measure_with<S: Source>(&self, mut guest: impl Guest, source: S, commands: u32, clock_ns: fn() -> u64) -> f64 {
        let null = NullDrive::new(DISK_BYTES).open_queues(HWQS, HWQ_DEPTH);
        let mut now = Nanos(1);
        let mut poller = Poller::new(null, self.policy(), Arc::new(Board::default()), now);
        let probe = Arc::new(Probe::new(TENANT, self.class()));
        assert!(poller.add(source, probe, &self.class().into()).is_ok());
        let start_ns = clock_ns();
        if self.depth == 0 {
            (0..commands).for_each(|_| _ = iteration(&mut poller, &mut now));
            return (clock_ns() - start_ns) as f64 / f64::from(commands);
        }
        // Half of them a moment later, so that an iteration has completions and new commands both.
        let mut offered = u32::from(self.depth.div_ceil(2));
        guest.offer(offered as u16);
        let mut taken = 0;
        while taken < commands {
            iteration(&mut poller, &mut now);
            let done = guest.take();
            taken += u32::from(done);
            let more = (taken + u32::from(self.depth) - offered).min(u32::from(self.depth.div_ceil(2)));
            guest.offer(more as u16);
            offered += more;
        }
        let spent_ns = clock_ns() - start_ns;
        while poller.inflight() > 0 {
            poller.finish(now);
        }
        spent_ns as f64 / f64::from(commands)
    }

    /// As [`Case::measure`], with the guest on another CPU and by the wall clock. Each iteration reads the clock, as
    /// the daemon's do. Cache lines then move between the CPUs.
    fn measure_across(&self, commands: u32) -> f64 {
        if self.front_end == "vfio-user" {
            let (guest, source) = nvme::attach(self.idle_queues);
            self.measure_across_with(guest, source, commands)
        } else {
            let (guest, source) = vhost::attach(self.depth);
            self.measure_across_with(guest, source, commands)
        }
    }

    fn measure_across_with<S: Source>(&self, mut guest: impl Guest + Send, source: S, commands: u32) -> f64 {
        let null = NullDrive::new(DISK_BYTES).open_queues(HWQS, HWQ_DEPTH);
        let mut poller = Poller::new(null, self.policy(), Arc::new(Board::default()), Nanos(wall_ns()));
        let probe = Arc::new(Probe::new(TENANT, self.class()));
        assert!(poller.add(source, probe, &self.class().into()).is_ok());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                pin(1);
                let start_ns = wall_ns();
                guest.offer(self.depth);
                let mut taken = 0;
                while taken < commands {
                    let done = guest.take();
                    taken += u32::from(done);
                    let wanted = commands.saturating_sub(taken + u32::from(self.depth - done));
                    guest.offer(done.min(wanted as u16));
                }
                let spent_ns = wall_ns() - start_ns;
                is_over.store(true, Ordering::Relaxed);
                spent_ns as f64 / f64::from(commands)
            });
            pin(0);
            while !is_over.load(Ordering::Relaxed) {
                poller.step(Nanos(wall_ns()));
            }
            client.join().expect("the guest's thread")
        })
    }
}

/// What is counted.
#[inline(never)]
fn iteration<S: Source>(poller: &mut Poller<S, Null, AnyPolicy>, now: &mut Nanos) -> Progress {
    *now += ITERATION;
    poller.step(*now)
}

/// Keeps this thread on a CPU.
fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    // Where it may not run there it runs elsewhere.
    let _ = sched_setaffinity(None, &set);
}

fn wall_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Processor time of this thread so far: other work on the machine counts less than with a clock on the wall.
fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments == ["pollers"] {
        return pollers::print();
    }
    if let [front_end, policy, class, depth, idle @ ..] = &arguments[..] {
        let depth = depth.parse().expect("a depth");
        let case = Case {
            front_end: front_end.into(),
            policy: policy.into(),
            class: class.into(),
            depth,
            idle_queues: idle.first().map_or(0, |count| count.parse().expect("a number of queues")),
        };
        // That clock can't be asked under valgrind.
        case.measure(COMMANDS, || 0);
        return;
    }
    println!(
        "{:<16} {:<12} {:<12} {:>6} {:>12} {:>12}",
        "front end", "policy", "class", "depth", "ns/command", "across"
    );
    for front_end in FRONT_ENDS {
        for policy in POLICIES {
            for class in CLASSES {
                for depth in DEPTHS {
                    let case = Case {
                        front_end: front_end.into(),
                        policy: policy.into(),
                        class: class.into(),
                        depth,
                        idle_queues: 0,
                    };
                    let best = |one: &dyn Fn() -> f64| (0..RUNS).map(|_| one()).fold(f64::INFINITY, f64::min);
                    let alone = best(&|| case.measure(COMMANDS, thread_ns));
                    let across = if depth == 0 { 0.0 } else { best(&|| case.measure_across(COMMANDS)) };
                    println!("{front_end:<16} {policy:<12} {class:<12} {depth:>6} {alone:>12.1} {across:>12.1}");
                }
            }
        }
    }
}
