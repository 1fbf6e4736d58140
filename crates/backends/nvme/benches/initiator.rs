//! What driving an NVMe drive costs its poller per command: submitting, and taking completions.
//!
//! `cargo bench -p backend-nvme --bench initiator [-- --json]`. The drive is the fake of `nvme-driver`, on another CPU
//! as a drive's writes come from elsewhere; it works only between the two, while no clock runs, so it is never what is
//! waited for. The queue pair alone and the back end around it take turns in one run, 32 reads of 4 KiB in flight; the
//! best of many short runs is shown, since whatever else the machine does only adds.

#![allow(clippy::disallowed_methods, reason = "real time is what is measured, and drives have threads of their own")]

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use backend_nvme::{NvmeDrive, NvmeQueues, Options};
use guest_memory::Mapping;
use io_model::{Backend, HwqId, Io, IoBuf, Nanos, Op, Place, TenantId};
use nvme_driver::fake::{BLOCK_BYTES, Fake, FakeDevice};
use nvme_driver::{Blocks, Controller, Data, QueuePair};
use rustix::thread::{CpuSet, sched_setaffinity};

const DEPTH: u32 = 32;
const READ_BYTES: u64 = 4096;
/// Of the drive, and of the memory that is read into.
const BYTES: u64 = DEPTH as u64 * READ_BYTES;
const ROUNDS: u32 = 20;
const RUNS: u32 = 1000;
const DRIVES_CPU: usize = 0;
const OUR_CPU: usize = 1;

/// Something that sends reads to a drive.
trait Initiator {
    /// Sends [`DEPTH`] reads and rings.
    fn submit(&mut self);
    /// Takes all of their completions.
    fn reap(&mut self);
}

/// Drives, on a CPU of their own, which they leave alone between two turns: it may be a core's other thread.
struct Drives {
    turn: SyncSender<()>,
    done: Receiver<()>,
}

impl Drives {
    fn start(fakes: [Fake; 2]) -> Self {
        let ((turn, turns), (tell, done)) = (sync_channel(0), sync_channel(0));
        thread::spawn(move || {
            stay_on(DRIVES_CPU);
            while turns.recv().is_ok() {
                for fake in &fakes {
                    fake.scan_doorbells();
                    fake.state().log.clear();
                }
                tell.send(()).expect("somebody waits");
            }
        });
        Self { turn, done }
    }

    /// Executes what was sent to them, and returns when it is done.
    fn work(&self) {
        self.turn.send(()).expect("the drives live");
        self.done.recv().expect("the drives live");
    }
}

fn stay_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("two CPUs");
}

/// The queue pair of `nvme-driver`.
struct Pair {
    queue: QueuePair,
    iova: u64,
    _controller: Controller<FakeDevice>,
}

impl Initiator for Pair {
    fn submit(&mut self) {
        let blocks = (READ_BYTES / BLOCK_BYTES) as u32;
        for slot in 0..DEPTH {
            let data = Data { iova: self.iova + u64::from(slot) * READ_BYTES, len_bytes: READ_BYTES };
            let place = Blocks { nsid: 1, lba: u64::from(slot * blocks), count: blocks };
            self.queue.read(place, data).expect("room in the queue");
        }
        self.queue.ring().expect("a mapped doorbell");
    }

    fn reap(&mut self) {
        let reaped = self.queue.poll(&mut |done| assert!(done.status.is_success()));
        assert_eq!(reaped.expect("an honest drive"), DEPTH);
    }
}

/// The queue as a back end of the daemon, for a tenant's memory.
struct Hwq {
    queues: NvmeQueues,
    place: Place,
    bufs: Vec<IoBuf>,
    now: Nanos,
}

impl Initiator for Hwq {
    fn submit(&mut self) {
        self.now += Nanos(1);
        for slot in 0..DEPTH {
            let command = self.place.command(Op::Read, u64::from(slot) * READ_BYTES, READ_BYTES);
            let buf = self.bufs.pop().expect("all came back");
            self.queues.submit(HwqId(0), Io { tag: slot, command, buf }, self.now);
        }
        self.queues.kick();
    }

    fn reap(&mut self) {
        let Self { queues, bufs, now, .. } = self;
        queues.reap(*now, &mut |_, done| {
            assert_eq!(done.outcome, Ok(()));
            bufs.push(done.buf);
        });
        assert_eq!(bufs.len() as u32, DEPTH);
    }
}

/// Nanoseconds per command.
#[derive(Clone, Copy)]
struct Cost {
    submit_ns: f64,
    reap_ns: f64,
}

impl Cost {
    const NONE_YET: Self = Self { submit_ns: f64::INFINITY, reap_ns: f64::INFINITY };

    fn sum_ns(self) -> f64 {
        self.submit_ns + self.reap_ns
    }

    fn keep_best(&mut self, other: Self) {
        if other.sum_ns() < self.sum_ns() {
            *self = other;
        }
    }
}

/// One run: its clock runs in the initiator alone.
fn run(initiator: &mut impl Initiator, drives: &Drives) -> Cost {
    let (mut submit_ns, mut reap_ns) = (0, 0);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        initiator.submit();
        submit_ns += start.elapsed().as_nanos();
        drives.work();
        let start = Instant::now();
        initiator.reap();
        reap_ns += start.elapsed().as_nanos();
    }
    let per_command = |ns: u128| ns as f64 / f64::from(ROUNDS * DEPTH);
    Cost { submit_ns: per_command(submit_ns), reap_ns: per_command(reap_ns) }
}

fn pair() -> (Pair, Fake) {
    let fake = Fake::new(BYTES / BLOCK_BYTES).with_mapped_doorbells();
    let mut controller = Controller::start(fake.device()).expect("the fake starts");
    let queue = controller.create_queue_pair(DEPTH as u16 + 1, None).expect("a queue");
    let memory = controller.allocate_dma(BYTES as usize).expect("memory");
    (Pair { queue, iova: memory.iova(), _controller: controller }, fake)
}

fn hwq() -> (Hwq, Fake) {
    let fake = Fake::new(BYTES / BLOCK_BYTES).with_dma_space().with_mapped_doorbells();
    let (drive, running) = NvmeDrive::start(fake.device(), Options::default()).expect("the fake starts");
    thread::spawn(move || running.run(|_| {}));
    let mut queues = drive.open_queues(1, DEPTH).expect("a queue");
    let (guest, _) = Mapping::memfd("guest", BYTES as usize).expect("memory");
    let place = Place::whole_drive(TenantId(1));
    queues.map_memory(place.tenant, &guest).expect("the fake reaches it");
    let buf = |slot: u32| {
        let mut buf = IoBuf::default();
        assert!(buf.push(&guest, u64::from(slot) * READ_BYTES, READ_BYTES));
        buf
    };
    (Hwq { queues, place, bufs: (0..DEPTH).map(buf).collect(), now: Nanos(0) }, fake)
}

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    let ((mut pair, pair_drive), (mut hwq, hwq_drive)) = (pair(), hwq());
    let drives = Drives::start([pair_drive, hwq_drive]);
    stay_on(OUR_CPU);
    let mut costs = [("queue pair", Cost::NONE_YET), ("back end", Cost::NONE_YET)];
    for _ in 0..RUNS {
        costs[0].1.keep_best(run(&mut pair, &drives));
        costs[1].1.keep_best(run(&mut hwq, &drives));
    }
    print(json, &costs);
}

fn print(json: bool, costs: &[(&str, Cost)]) {
    if json {
        let row = |(layer, cost): &(&str, Cost)| {
            let Cost { submit_ns, reap_ns } = cost;
            format!(
                r#"{{"layer":"{layer}","submit_ns_per_command":{submit_ns:.2},"reap_ns_per_command":{reap_ns:.2}}}"#
            )
        };
        println!(r#"{{"initiator":[{}]}}"#, costs.iter().map(row).collect::<Vec<_>>().join(","));
        return;
    }
    println!("{:<12} {:>8} {:>8} {:>12}", "", "submit", "reap", "ns/command");
    for (layer, cost) in costs {
        println!("{layer:<12} {:>8.1} {:>8.1} {:>12.1}", cost.submit_ns, cost.reap_ns, cost.sum_ns());
    }
}
