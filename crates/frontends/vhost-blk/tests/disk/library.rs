//! The `virtio-queue` crate as a second opinion: it serves the same descriptors and available ring as our device,
//! into a used ring of its own, and everything that both write or decide must be the same.

use std::fs::File;

use io_model::{Op, Source};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

use crate::guest::*;

const SIZE: u16 = 32;

/// Their used ring lies behind ours.
const THEIR_USED: u64 = 0x3000;

struct Library {
    queue: Queue,
    memory: GuestMemoryMmap,
    used: u64,
    /// Fetched, not returned: head, what the device may read, what it may write.
    in_flight: Vec<(u16, u64, u64)>,
}

impl Library {
    fn new(world: &World, event_idx: bool) -> Self {
        let file = File::from(world.ram.fd.try_clone().expect("a descriptor"));
        let region = (GuestAddress(RAM), RAM_BYTES as usize, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([region]).expect("mappable");
        let used = world.driver.ring.used + THEIR_USED;
        let mut queue = Queue::new(SIZE).expect("a good size");
        queue.try_set_desc_table_address(GuestAddress(world.driver.ring.desc)).expect("aligned");
        queue.try_set_avail_ring_address(GuestAddress(world.driver.ring.avail)).expect("aligned");
        queue.try_set_used_ring_address(GuestAddress(used)).expect("aligned");
        queue.set_event_idx(event_idx);
        queue.set_ready(true);
        assert!(queue.is_valid(&memory));
        Self { queue, memory, used, in_flight: Vec::new() }
    }

    fn fetch(&mut self) {
        while let Some(chain) = self.queue.pop_descriptor_chain(&self.memory) {
            let head = chain.head_index();
            let sum = |write| {
                let pieces = chain.clone().filter(|desc| desc.is_write_only() == write);
                pieces.map(|desc| u64::from(desc.len())).sum()
            };
            self.in_flight.push((head, sum(false), sum(true)));
        }
    }

    /// The used ring up to its index: heads and lengths.
    fn used_ring(&self) -> (u16, Vec<u64>) {
        let idx = self.memory.read_obj(GuestAddress(self.used + 2)).expect("in memory");
        let element = |n| self.memory.read_obj(GuestAddress(self.used + 4 + 8 * n)).expect("in memory");
        (idx, (0..u64::from(SIZE)).map(element).collect())
    }
}

fn our_used_ring(world: &World) -> (u16, Vec<u64>) {
    let used = world.driver.ring.used;
    let element = |n| u64::from_le_bytes(world.ram.read(used + 4 + 8 * n, 8).try_into().expect("eight bytes"));
    (world.ram.u16(used + 2), (0..u64::from(SIZE)).map(element).collect())
}

#[test]
fn the_library_agrees() {
    let seed =
        std::env::var("EVENKEEL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("EVENKEEL_SEED={seed}");
    for event_idx in [true, false] {
        agree(&mut fastrand::Rng::with_seed(seed), event_idx);
    }
}

fn agree(random: &mut fastrand::Rng, event_idx: bool) {
    let features = if event_idx { u64::MAX } else { !EVENT_IDX };
    let mut world = World::new(config(), SIZE, features);
    let mut library = Library::new(&world, event_idx);
    let (mut interrupts, mut requests) = (0, 0);
    for round in 0..30_000_u32 {
        for _ in 0..random.u8(0..6) {
            requests += u32::from(offer(&mut world, random));
        }
        ask_for_interrupts(&world, random, event_idx);
        world.fetch();
        library.fetch();
        compare_requests(&world, &library, round);
        let completed = complete_some(&mut world, &mut library, random);
        world.queues.notify();
        assert_eq!(our_used_ring(&world), library.used_ring(), "round {round}");
        // The library does not look at the flag, so the flag is looked at here.
        let wanted = match event_idx {
            true => library.queue.needs_notification(&library.memory).expect("a ring"),
            false => completed > 0 && world.ram.u16(world.driver.ring.avail) == 0,
        };
        let interrupted = world.interrupted();
        assert_eq!(interrupted, wanted, "round {round}");
        interrupts += u32::from(interrupted);
        // What the driver is asked for before a sleep: the event index or the flag.
        world.queues.set_wakeup(true);
        assert!(!library.queue.enable_notification(&library.memory).expect("a ring"));
        let asked = if event_idx { 4 + 8 * u64::from(SIZE) } else { 0 };
        let theirs: u16 = library.memory.read_obj(GuestAddress(library.used + asked)).expect("in memory");
        assert_eq!(world.ram.u16(world.driver.ring.used + asked), theirs, "round {round}");
        world.driver.completions(&world.ram);
    }
    world.complete();
    assert!(requests > 10_000 && interrupts > 1000, "{requests} requests, {interrupts} interrupts");
}

/// A read or write that our device passes on to the drive, in any framing.
fn offer(world: &mut World, random: &mut fastrand::Rng) -> bool {
    let len_bytes = 512 * random.u32(1..16);
    let request = match random.bool() {
        true => Request::read(random.u64(0..1000), len_bytes),
        false => Request::write(random.u64(0..1000), &vec![0; len_bytes as usize]),
    };
    let framing = [Framing::Direct, Framing::Indirect, Framing::Odd][random.usize(0..3)];
    world.driver.submit(&world.ram, &request, framing).is_some()
}

fn ask_for_interrupts(world: &World, random: &mut fastrand::Rng, event_idx: bool) {
    if event_idx {
        let event = world.driver.ring.used_idx.wrapping_add(random.u16(0..6));
        world.ram.put_u16(world.driver.ring.avail + 4 + 2 * u64::from(SIZE), event);
    } else {
        world.ram.put_u16(world.driver.ring.avail, u16::from(random.bool()));
    }
}

/// What both have in flight is the same: heads, in order, and lengths.
fn compare_requests(world: &World, library: &Library, round: u32) {
    assert_eq!(world.in_flight.len(), library.in_flight.len(), "round {round}");
    for ((_, command, _), (_, read_bytes, write_bytes)) in world.in_flight.iter().zip(&library.in_flight) {
        let (read, write) = match command.op {
            Op::Read => (16, command.len_bytes + 1),
            _ => (16 + command.len_bytes, 1),
        };
        assert_eq!((read, write), (*read_bytes, *write_bytes), "round {round}");
    }
}

/// Some of them come back, in any order. Returns how many.
fn complete_some(world: &mut World, library: &mut Library, random: &mut fastrand::Rng) -> usize {
    let count = random.usize(0..=world.in_flight.len());
    for _ in 0..count {
        let at = random.usize(0..world.in_flight.len());
        let (token, command, buf) = world.in_flight.remove(at);
        let (head, _, write_bytes) = library.in_flight.remove(at);
        let outcome = world.drive.execute(&command, &buf);
        world.queues.complete(token, outcome, buf);
        library.queue.add_used(&library.memory, head, write_bytes as u32).expect("a place");
    }
    count
}
