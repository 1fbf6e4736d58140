//! The device is killed after each single store that another process can see, and once more after each store of its
//! second life; then a third one ends the work. The guest gets every request completed exactly once, and its data is
//! what it wrote.

#[path = "../tests/disk/guest.rs"]
#[allow(dead_code, reason = "written for the other tests")]
mod guest;

use io_model::Source;

use crate::kill::{arm, disarm};
use guest::*;

const SIZE: u16 = 8;

/// What the guest does: each entry is offered together.
fn script() -> Vec<Vec<Request>> {
    let write = |sector| Request::write(sector, &pattern(sector, 512));
    vec![
        vec![write(0), write(1), write(2)],
        vec![Request::read(0, 512), write(3), Request::ranges(WRITE_ZEROES, &[(40, 1, 0), (42, 1, 0)])],
        vec![write(4), Request::other(FLUSH, 0), Request::other(77, 0), Request::read(3, 512), write(5)],
    ]
}

/// Whether the device died since it was armed.
fn died() -> bool {
    let left = disarm();
    arm(left);
    left == 0
}

/// One guest from start to end. Each of the device's lives ends after a given number of stores, except for the last.
struct Run {
    world: World,
    lives: Vec<u64>,
    /// Requests done by the guest's count, and by the used ring's.
    done: usize,
}

impl Run {
    fn start(lives: &[u64]) -> Self {
        let mut lives = lives.to_vec();
        lives.reverse();
        let mut run = Self { world: World::unstarted(config(), SIZE), lives, done: 0 };
        run.next_life();
        run
    }

    fn next_life(&mut self) {
        loop {
            arm(self.lives.pop().unwrap_or(u64::MAX));
            self.world.restart();
            if !died() {
                break;
            }
        }
        // What was published may not have been told.
        assert!(self.world.interrupted());
        self.collect();
    }

    fn collect(&mut self) {
        for done in self.world.driver.completions(&self.world.ram) {
            self.done += 1;
            assert!([OK, UNSUPP].contains(&done.status), "{done:?}");
            if !done.data.is_empty() {
                let sectors = [0, 3].map(|sector| pattern(sector, 512));
                assert!(sectors.contains(&done.data), "a read got something else");
            }
        }
    }

    /// Works like a poller until nothing is open, some requests at a time and not in order.
    fn serve(&mut self) {
        for turn in 0..1000 {
            if self.world.driver.open.is_empty() {
                return;
            }
            self.turn(turn);
            if died() {
                self.next_life();
            } else {
                self.collect();
            }
        }
        panic!("requests are lost: {:?}", self.world.driver.open);
    }

    /// An iteration of a poller; it ends where the device dies.
    fn turn(&mut self, turn: usize) {
        let world = &mut self.world;
        for _ in 0..2 {
            if world.queues.backlog(VQ) > 0
                && let io_model::Fetch::Command(command, buf, token) = world.queues.fetch(VQ)
            {
                world.in_flight.push((token, command, buf));
            }
            if died() {
                return;
            }
        }
        let count = if turn.is_multiple_of(3) { 1 } else { 2 };
        for _ in 0..count.min(world.in_flight.len()) {
            let (token, command, buf) = world.in_flight.swap_remove(turn % world.in_flight.len());
            let outcome = world.drive.execute(&command, &buf);
            world.queues.complete(token, outcome, buf);
            if died() {
                return;
            }
        }
        world.queues.notify();
    }

    /// The whole script. Returns the stores of the last life that was armed.
    fn play(mut self) -> u64 {
        let script = script();
        for batch in &script {
            for (n, request) in batch.iter().enumerate() {
                let framing = if n % 2 == 0 { Framing::Indirect } else { Framing::Direct };
                self.world.driver.submit(&self.world.ram, request, framing).expect("room in the ring");
            }
            self.serve();
        }
        let stores = u64::MAX - disarm();
        assert_eq!(self.done, script.iter().map(Vec::len).sum::<usize>());
        assert!(self.world.queues.is_quiet(QUEUE) && self.world.drive.guards_are_whole());
        for sector in 0..6 {
            let at = (BASE_BYTES + 512 * sector) as usize;
            assert_eq!(self.world.drive.content[at..at + 512], pattern(sector, 512), "sector {sector}");
        }
        stores
    }
}

#[test]
fn killed_after_every_store() {
    let stores = Run::start(&[]).play();
    assert!(stores > 100, "the script is worth it: {stores} stores");
    for first in 0..=stores {
        Run::start(&[first]).play();
    }
}

#[test]
fn killed_again_while_it_recovers() {
    let stores = Run::start(&[]).play();
    for first in 0..=stores {
        for second in 0..12 {
            Run::start(&[first, second]).play();
        }
    }
}
