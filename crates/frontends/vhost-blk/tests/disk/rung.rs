//! A poller that asks only the queues that rang, those that it fetched from and those that appeared, misses nothing.

use fastrand::Rng;
use io_model::{Fetch, Source};

use crate::guest::*;

/// The poller's side: what it believes of each VQ.
struct Asker {
    live: u128,
    ask: u128,
    known: [u32; 128],
}

impl Asker {
    /// Asks whom it must, and finds that nobody else has anything new.
    fn look(&mut self, world: &mut World) {
        let live = world.queues.live_vqs();
        let appeared = live & !self.live;
        self.live = live;
        let asked = world.queues.rung() | std::mem::take(&mut self.ask) | appeared;
        for vq in (0..128_u16).filter(|vq| live >> vq & 1 == 1) {
            let (backlog, known) = (world.queues.backlog(vq), &mut self.known[usize::from(vq)]);
            assert!(asked >> vq & 1 == 1 || backlog == *known, "VQ {vq} has {backlog}, not {known}, and did not ring");
            *known = backlog;
        }
    }

    fn fetch(&mut self, world: &mut World, most: usize) {
        for _ in 0..most {
            let waits = |vq: &u16| self.live >> vq & 1 == 1 && self.known[usize::from(*vq)] > 0;
            let Some(vq) = (0..128).find(waits) else { return };
            self.ask |= 1 << vq;
            match world.queues.fetch(vq) {
                Fetch::Command(command, buf, token) => world.in_flight.push((token, command, buf)),
                Fetch::Handled => {}
                Fetch::Empty => self.known[usize::from(vq)] = 1,
            }
            self.known[usize::from(vq)] -= 1;
        }
    }
}

#[test]
fn who_did_not_ring_has_nothing_new() {
    for seed in 1..=30 {
        for by_priority in [false, true] {
            let mut random = Rng::with_seed(seed);
            let mut world = World::new(vhost_blk::DiskConfig { by_priority, ..config() }, 64, u64::MAX);
            let mut asker = Asker { live: 0, ask: 0, known: [0; 128] };
            let (mut sent, mut done) = (0, 0);
            for _ in 0..1_000 {
                match random.u32(..100) {
                    0..35 => {
                        let mut request = match random.u32(..8) {
                            0 => Request::ranges(DISCARD, &[(0, 8, 0), (8, 8, 0), (16, 8, 0)]),
                            1 => Request::read(u64::MAX, 512),
                            _ => Request::read(8, 4096),
                        };
                        // The classes of Linux: real-time, best effort, idle.
                        request.ioprio = random.u32(1..4) << 13;
                        sent += usize::from(world.driver.submit(&world.ram, &request, Framing::Direct).is_some());
                    }
                    35..65 => asker.fetch(&mut world, random.usize(1..6)),
                    65..75 => world.complete(),
                    75..85 => world.queues.notify(),
                    85..95 => done += world.driver.completions(&world.ram).len(),
                    95..97 => {
                        world.queues.enable(QUEUE, random.bool());
                        asker.ask = u128::MAX;
                    }
                    _ => {}
                }
                if random.bool() {
                    asker.look(&mut world);
                }
            }
            world.queues.enable(QUEUE, true);
            asker.ask = u128::MAX;
            for _ in 0..8 {
                asker.look(&mut world);
                asker.fetch(&mut world, 256);
                world.complete();
                world.queues.notify();
                done += world.driver.completions(&world.ram).len();
            }
            assert_eq!((done, world.queues.take_fault()), (sent, None), "seed {seed}, by priority: {by_priority}");
        }
    }
}
