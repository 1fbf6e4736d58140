//! A poller that asks only the queues that rang, those that it fetched from and those that appeared, misses nothing.

use bytemuck::Zeroable;
use fastrand::Rng;
use io_model::{Fetch, Source};
use nvme_spec::data::DsmRange;
use nvme_spec::opcode::{admin, dsm, nvm};
use nvme_spec::regs::Cc;
use nvme_spec::{Sqe, Status};
use test_clients::seeds;

use crate::host::{Host, RAM_BYTES, RAM_IOVA, rw};

const QUEUES: u16 = 4;
const SQ_ENTRIES: u16 = 512;
/// Few, so that commands wait for the host to take completions.
const CQ_ENTRIES: u16 = 6;
/// Fits every submission queue without a look at what was fetched.
const MOST_WAITING: u16 = 400;

/// The poller's side: what it believes of each VQ.
struct Asker {
    live: u128,
    ask: u128,
    known: [u32; 128],
}

impl Asker {
    /// All are new to it.
    fn new() -> Self {
        Self { live: 0, ask: 0, known: [0; 128] }
    }

    /// Asks whom it must, and finds that nobody else has anything new.
    fn look(&mut self, host: &mut Host) {
        while host.controller.service() > 0 {}
        let live = host.controller.live_vqs();
        let appeared = live & !self.live;
        self.live = live;
        let asked = host.controller.rung() | std::mem::take(&mut self.ask) | appeared;
        for vq in (0..128_u16).filter(|vq| live >> vq & 1 == 1) {
            let (backlog, known) = (host.controller.backlog(vq), &mut self.known[usize::from(vq)]);
            assert!(asked >> vq & 1 == 1 || backlog == *known, "VQ {vq} has {backlog}, not {known}, and did not ring");
            *known = backlog;
        }
    }

    /// Fetches up to `most` commands.
    fn fetch(&mut self, host: &mut Host, most: usize) {
        for _ in 0..most {
            let waits = |vq: &u16| self.live >> vq & 1 == 1 && self.known[usize::from(*vq)] > 0;
            let Some(vq) = (0..128).find(waits) else { return };
            self.ask |= 1 << vq;
            match host.controller.fetch(vq) {
                Fetch::Command(command, buf, token) => host.in_flight.push((token, command, buf)),
                Fetch::Handled => {}
                Fetch::Empty => self.known[usize::from(vq)] = 1,
            }
            self.known[usize::from(vq)] -= 1;
        }
    }
}

struct World {
    host: Host,
    asker: Asker,
    random: Rng,
    /// Commands put into each queue since all was done.
    pushed: [u16; QUEUES as usize + 1],
    completed: usize,
    sent: usize,
}

impl World {
    fn new(ams: u8, is_shadowed: bool, seed: u64) -> Self {
        let mut host = Host::new(crate::host::config());
        host.enable_with(32, Cc::enable_nvm().with_ams(ams));
        let mut world = Self {
            host,
            asker: Asker::new(),
            random: Rng::with_seed(seed),
            pushed: [0; QUEUES as usize + 1],
            completed: 0,
            sent: 0,
        };
        (1..=QUEUES).for_each(|qid| world.create(qid, true));
        if is_shadowed {
            let (shadow, events) = (world.host.alloc(4096), world.host.alloc(4096));
            let sqe = Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr: [shadow, events], ..Sqe::zeroed() };
            assert_eq!(world.host.admin(sqe).status(), Status::SUCCESS);
            world.host.shadow = Some(shadow);
        }
        world
    }

    fn create(&mut self, qid: u16, with_cq: bool) {
        if with_cq {
            let cq = self.host.create_cq_sqe(qid, CQ_ENTRIES, qid);
            assert_eq!(self.host.admin(cq).status(), Status::SUCCESS);
            self.host.track_cq(&cq);
        }
        self.host.create_sq(qid, SQ_ENTRIES, qid);
    }

    fn push(&mut self) {
        let qid = self.random.u16(1..=QUEUES);
        for _ in 0..self.random.u16(1..12).min(MOST_WAITING - self.pushed[usize::from(qid)]) {
            let data = self.host.alloc(4096);
            let sqe = match self.random.u32(..8) {
                0 => {
                    let ranges = [0, 1, 2].map(|n| DsmRange { cattr: 0, nlb: 8, slba: n * 8 });
                    self.host.write(data, bytemuck::cast_slice(&ranges));
                    Sqe { opc: nvm::DATASET_MANAGEMENT, nsid: 1, cdw10: 2, cdw11: dsm::AD, ..Sqe::zeroed() }
                }
                1 => rw(nvm::VERIFY, 0, 2048),
                2 => rw(nvm::READ, u64::MAX / 2, 1),
                _ => rw(nvm::READ, 0, 8),
            };
            self.host.push(qid, Sqe { dptr: [data, 0], ..sqe });
            self.pushed[usize::from(qid)] += 1;
            self.sent += 1;
        }
        self.host.ring(qid);
    }

    fn take_completions(&mut self, qid: u16) {
        self.completed += self.host.completions(qid).len();
    }

    /// Until nothing is left to do, by the same rule.
    fn drain(&mut self) {
        while self.completed < self.sent {
            let before = (self.completed, self.host.in_flight.len());
            self.asker.look(&mut self.host);
            self.asker.fetch(&mut self.host, 64);
            let fetched = self.host.in_flight.len();
            self.host.finish_all();
            (1..=QUEUES).for_each(|qid| self.take_completions(qid));
            assert!(fetched > 0 || self.completed > before.0, "{} of {} and nothing to do", before.0, self.sent);
        }
        self.pushed = [0; QUEUES as usize + 1];
    }

    /// A queue is deleted and made anew; whatever its doorbell said then.
    fn renew(&mut self) {
        self.drain();
        let qid = self.random.u16(1..=QUEUES);
        let delete = Sqe { opc: admin::DELETE_SQ, cdw10: qid.into(), ..Sqe::zeroed() };
        assert_eq!(self.host.admin(delete).status(), Status::SUCCESS);
        self.asker.look(&mut self.host);
        self.create(qid, false);
    }

    /// Memory goes and comes back; commands are rung for meanwhile.
    fn halt(&mut self) {
        self.host.finish_all();
        self.host.controller.dma_unmap(RAM_IOVA, RAM_BYTES).expect("mapped");
        assert!(self.host.controller.take_unmapped(&mut ()).is_some(), "nothing pins it");
        self.asker.look(&mut self.host);
        self.push();
        self.asker.look(&mut self.host);
        self.asker.fetch(&mut self.host, 3);
        self.host.map_ram();
    }
}

#[test]
fn who_did_not_ring_has_nothing_new() {
    for seed in seeds(12) {
        for (ams, is_shadowed) in [(Cc::AMS_ROUND_ROBIN, false), (Cc::AMS_ROUND_ROBIN, true), (Cc::AMS_WEIGHTED, true)]
        {
            let mut world = World::new(ams, is_shadowed, seed);
            for _ in 0..400 {
                match world.random.u32(..100) {
                    0..30 => world.push(),
                    30..60 => {
                        let most = world.random.usize(1..10);
                        world.asker.fetch(&mut world.host, most);
                    }
                    60..75 if !world.host.in_flight.is_empty() => world.host.finish_one(),
                    75..90 => {
                        let qid = world.random.u16(1..=QUEUES);
                        world.take_completions(qid);
                    }
                    90..94 => world.drain(),
                    94..97 => world.renew(),
                    97..98 => world.halt(),
                    _ => {}
                }
                if world.random.bool() {
                    world.asker.look(&mut world.host);
                }
            }
            world.drain();
        }
    }
}
