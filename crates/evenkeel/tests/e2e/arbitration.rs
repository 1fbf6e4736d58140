//! One tenant's queues of several priorities: what its client asked for is kept while commands wait in its own queues.

use std::process::Command;
use std::time::Instant;

use io_model::{QueuePriority, WrrWeights};
use nvme_driver::{Arbitration, Controller, DmaMemory, Doorbell, PciDevice, VfioUserDevice};
use nvme_spec::opcode::{admin, create, nvm};
use nvme_spec::regs::{cq_head_doorbell, sq_tail_doorbell};
use nvme_spec::vendor::Quanta;
use nvme_spec::{Cqe, Sqe};
use serde_json::Value;

use crate::harness::{Daemon, HANG, Home, errors, wait_for};

/// Commands of each queue: one less than a ring of 256 entries holds.
const COMMANDS: u16 = 255;
const RING_BYTES: u64 = 256 * 64;

/// So few commands are with the drive at a time that all others wait where they can be chosen from.
fn serve(home: &Home) -> Daemon {
    home.configure(
        "[device]\nbackend = \"model\"\nprofile = \"p3520\"\nsize = \"16MiB\"\n\
         [policy]\nname = \"wrr\"\nmax_in_flight = 2\n[[tenant]]\nname = \"db\"\nsize = \"16MiB\"\n",
    );
    home.serve()
}

/// A client with several submission queues and one completion queue, which tells the order of completions.
struct Client {
    // Memory goes before the connection does.
    rings: DmaMemory,
    completions: DmaMemory,
    data: DmaMemory,
    kicks: Vec<Doorbell>,
    controller: Controller<VfioUserDevice>,
}

impl Client {
    /// Queues 1 to 4: of urgent, high, medium and low priority.
    fn attach(home: &Home, arbitration: Arbitration) -> Self {
        let directory = home.runtime_dir().join("db");
        let device = wait_for("a place at the tenant's socket", || VfioUserDevice::connect(&directory).ok());
        let mut controller = Controller::start_with(device, Some(arbitration)).unwrap();
        let rings = controller.allocate_dma(4 * RING_BYTES as usize).unwrap();
        let completions = controller.allocate_dma(1024 * 16).unwrap();
        let data = controller.allocate_dma(4 << 10).unwrap();
        let command = |opc, qid: u32, entries: u32, cdw11, iova| Sqe {
            opc,
            cdw10: qid | (entries - 1) << 16,
            cdw11,
            dptr: [iova, 0],
            ..Sqe::default()
        };
        let cq = command(admin::CREATE_CQ, 1, 1024, create::PC, completions.iova());
        controller.admin().run("Create I/O Completion Queue", cq, None).unwrap();
        for (n, qprio) in (0..).zip([create::QPRIO_URGENT, create::QPRIO_HIGH, create::QPRIO_MEDIUM, create::QPRIO_LOW])
        {
            let attributes = create::PC | u32::from(qprio) << create::QPRIO_SHIFT | 1 << 16;
            let iova = rings.iova() + u64::from(n) * RING_BYTES;
            let sq = command(admin::CREATE_SQ, n + 1, 256, attributes, iova);
            controller.admin().run("Create I/O Submission Queue", sq, None).unwrap();
        }
        let kicks = (1..=4).map(|qid| controller.device().doorbell(sq_tail_doorbell(qid, 0)).unwrap()).collect();
        Self { rings, completions, data, kicks, controller }
    }

    /// Fills all queues with reads of `blocks` blocks each, rings for all of them at once, and returns by which queues
    /// commands completed, in order.
    fn run(&mut self, blocks: [u32; 4]) -> Vec<u16> {
        for (queue, blocks) in (0..).zip(blocks) {
            for n in 0..u64::from(COMMANDS) {
                // Each page of data is the same one: nobody looks at it.
                let dptr = [self.data.iova(), if blocks > 8 { self.data.iova() } else { 0 }];
                let sqe = Sqe { opc: nvm::READ, nsid: 1, cid: n as u16, dptr, cdw12: blocks - 1, ..Sqe::default() };
                self.rings.write(queue * RING_BYTES + n * 64, bytemuck::bytes_of(&sqe)).unwrap();
            }
        }
        // The least urgent first: what comes before the last kick is seen is little, and of low priority.
        self.kicks.iter_mut().rev().for_each(|kick| kick.write(COMMANDS.into()).unwrap());
        let (start, mut order) = (Instant::now(), Vec::new());
        while order.len() < 4 * usize::from(COMMANDS) {
            let mut raw = [0; 16];
            self.completions.read(order.len() as u64 * 16, &mut raw).unwrap();
            let cqe: Cqe = bytemuck::cast(raw);
            if cqe.phase() {
                assert!(cqe.status().is_success(), "{cqe:?}");
                order.push(cqe.sqid);
                continue;
            }
            assert!(start.elapsed() < HANG, "a command never completed");
            std::thread::yield_now();
        }
        let mut head = self.controller.device().doorbell(cq_head_doorbell(1, 0)).unwrap();
        head.write(order.len() as u32).unwrap();
        order
    }
}

/// Commands of each of the queues in `order`.
fn shares(order: &[u16], qids: [u16; 3]) -> [usize; 3] {
    qids.map(|qid| order.iter().filter(|other| **other == qid).count())
}

/// What follows the urgent queue's commands, which come in one piece (but for what was with the drive already).
fn after_the_urgent(order: &[u16]) -> &[u16] {
    let first = order.iter().position(|qid| *qid == 1).unwrap();
    let last = order.iter().rposition(|qid| *qid == 1).unwrap();
    assert!(last - first < usize::from(COMMANDS) + 2, "others came between the urgent: {order:?}");
    &order[last + 1..]
}

#[test]
fn four_classes_get_their_weights() {
    let home = Home::new();
    let daemon = serve(&home);
    let weights = WrrWeights { high: 32, medium: 16, low: 8 };
    let mut client = Client::attach(&home, Arbitration::Weighted(Some(weights)));
    let order = client.run([8; 4]);
    for (round, window) in after_the_urgent(&order).chunks_exact(56).take(6).enumerate() {
        // Two commands are with the drive, which may answer the second one first.
        for (found, expected) in shares(window, [2, 3, 4]).into_iter().zip([32, 16, 8]) {
            assert!(found.abs_diff(expected) <= 2, "round {round}: {window:?}");
        }
    }
    drop(client);
    daemon.stop();
}

#[test]
fn bytes_are_shared_by_quanta_whatever_the_sizes() {
    let home = Home::new();
    let daemon = serve(&home);
    let quanta = Quanta { high_kib: 16, medium_kib: 16, low_kib: 4 };
    let mut client = Client::attach(&home, Arbitration::Deficit(Some(quanta)));
    // High: 8 KiB each; medium: 4 KiB; low: 512 bytes.
    let order = client.run([8, 16, 8, 1]);
    let (rounds, rest) = (30, after_the_urgent(&order));
    let counts = shares(&rest[..rounds * (2 + 4 + 8)], [2, 3, 4]);
    for (found, a_round) in counts.into_iter().zip([2, 4, 8]) {
        assert!(found.abs_diff(a_round * rounds) <= 10, "{counts:?} in {rounds} rounds");
    }
    drop(client);
    daemon.stop();
}

fn job(report: &Value, at: usize) -> (&str, f64) {
    let job = &report["jobs"][at];
    (job["queue_priority"].as_str().unwrap_or("none"), job["read"]["clat_ns"]["mean"].as_f64().unwrap())
}

#[test]
fn load_creates_queues_of_all_four_classes() {
    let home = Home::new();
    let daemon = serve(&home);
    for arbitration in ["wrr:32,16,1", "drr:64,32,1"] {
        let report = home
            .load(
                "db",
                &format!(
                    "--rw read --iodepth 32 --size 4m --numjobs 4 --queue-priority low,urgent,medium,high \
                     --arbitration {arbitration}"
                ),
            )
            .expect_clean();
        let [low, urgent, medium, high] = [0, 1, 2, 3].map(|at| job(&report, at));
        assert_eq!([low.0, urgent.0, medium.0, high.0], ["low", "urgent", "medium", "high"]);
        assert!(urgent.1 < high.1 && high.1 < medium.1 && medium.1 < low.1, "{arbitration}: {report:#}");
    }
    // Without priorities: nothing to be seen of them, and a wish for one is refused.
    let report = home.load("db", "--rw read --size 1m --arbitration rr").expect_clean();
    assert_eq!(job(&report, 0).0, "none");
    let (code, said) = home.load("db", "--rw read --size 1m --arbitration rr --queue-priority high").end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.as_str().unwrap().contains("--arbitration wrr"), "{said}");
    daemon.stop();
}

#[test]
fn a_queue_s_priority_follows_from_ionice() {
    let home = Home::new();
    let daemon = serve(&home);
    for (class, expected) in [("2", "medium"), ("3", "low")] {
        let mut ionice = Command::new("ionice");
        ionice.args(["-c", class, env!("CARGO_BIN_EXE_evenkeel"), "load"]).arg(home.runtime_dir().join("db"));
        let output = ionice.args(["--rw", "read", "--size", "1m", "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(job(&report, 0).0, expected);
    }
    let report = home.load("db", "--rw read --size 1m").expect_clean();
    let own = match nvme_driver::priority_of_this_thread() {
        QueuePriority::High => "high",
        QueuePriority::Low => "low",
        _ => "medium",
    };
    assert_eq!(job(&report, 0).0, own);
    daemon.stop();
}
