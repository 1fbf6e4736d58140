//! Nanoseconds of processor time per request in our ring and in the `virtio-queue` crate over `vm-memory`, in one
//! process and by turns, on the same memory: pop a head, walk its three descriptors, return it, and decide about an
//! interrupt once per batch. The last columns are what our ring is a part of: a whole 4 KiB read, fetched and
//! completed.
//!
//! `cargo bench -p vhost-blk`

// The parts of the crate that are compared; they are nobody else's business.
#[path = "../src/chain.rs"]
#[allow(dead_code)]
mod chain;
#[path = "../src/config.rs"]
#[allow(dead_code)]
mod config;
#[path = "../src/fault.rs"]
#[allow(dead_code)]
mod fault;
#[path = "../src/inflight.rs"]
#[allow(dead_code)]
mod inflight;
#[path = "../src/kill.rs"]
#[allow(dead_code, unused_imports)]
mod kill;
#[path = "../src/lanes.rs"]
#[allow(dead_code, unused_imports)]
mod lanes;
#[path = "../src/ring.rs"]
#[allow(dead_code)]
mod ring;
#[path = "../src/spec.rs"]
#[allow(dead_code)]
mod spec;

use std::fs::File;
use std::hint::black_box;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use guest_memory::{GuestMemory, Mapping};
use io_model::{Fetch, Source};
use rustix::time::{ClockId, clock_gettime};
use test_clients::rings::{Desc, Virtqueue};
use vhost_blk::{Disk, DiskConfig, Queues, RingSetup, inflight_bytes, inflight_region};
use virtio_queue::{Queue, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

const SIZE: u16 = 256;
/// Requests offered at a time, at most.
const CHAINS: u16 = SIZE / 3;
const REGION_BYTES: u64 = 4 << 20;
const TURNS: usize = 21;
const REQUESTS: u32 = 100_000;

/// A request's three parts.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Direct,
    Indirect,
}

/// A ring in guest memory, and the driver that offers the same requests again and again.
struct Offer {
    ram: Arc<Mapping>,
    ring: Virtqueue,
}

impl Offer {
    fn write(&self, address: u64, data: &[u8]) {
        self.ram.write_at(address, data).expect("in memory");
    }

    fn put(&self, at: u64, address: u64, len_bytes: u32, flags: u16, next: u16) {
        self.write(at, &Desc { address, len_bytes, flags, next }.bytes());
    }

    fn new(ram: &Arc<Mapping>, base: u64, shape: Shape) -> Self {
        let (avail, used) = (base + 0x2000, base + 0x3000);
        let ring = Virtqueue { size: SIZE, desc: base, avail, used, avail_idx: 0, used_idx: 0 };
        let this = Self { ram: Arc::clone(ram), ring };
        for n in 0..CHAINS {
            let head = 3 * n;
            let buffers = base + 0x1_0000 + u64::from(n) * 8192;
            // A read of sector 0.
            this.write(buffers, &[0; 16]);
            let (table, first) = if shape == Shape::Direct { (this.ring.desc, head) } else { (buffers + 64, 0) };
            let at = |n: u16| table + 16 * u64::from(first + n);
            this.put(at(0), buffers, 16, 1, first + 1);
            this.put(at(1), buffers + 4096, 4096, 3, first + 2);
            this.put(at(2), buffers + 16, 1, 2, 0);
            if shape == Shape::Indirect {
                this.put(this.ring.desc_at(head), table, 48, 4, 0);
            }
        }
        this
    }

    /// Offers the next `count` requests, and asks for an interrupt at the last.
    fn offer(&mut self, count: u16) {
        for n in 0..count {
            let at = self.ring.avail_idx.wrapping_add(n);
            let head = 3 * (at % CHAINS);
            self.write(self.ring.avail + 4 + 2 * u64::from(at % SIZE), &head.to_le_bytes());
        }
        self.ring.avail_idx = self.ring.avail_idx.wrapping_add(count);
        self.write(self.ring.avail + 2, &self.ring.avail_idx.to_le_bytes());
        self.write(self.ring.avail + 4 + 2 * u64::from(SIZE), &self.ring.avail_idx.wrapping_sub(1).to_le_bytes());
    }
}

fn library(queue: &mut Queue, memory: &GuestMemoryMmap, pieces: &mut Vec<(u64, u32, bool)>, batch: u16) -> bool {
    for _ in 0..batch {
        let chain = queue.pop_descriptor_chain(memory).expect("a request");
        let head = chain.head_index();
        pieces.clear();
        pieces.extend(chain.map(|desc| (desc.addr().0, desc.len(), desc.is_write_only())));
        assert_eq!(black_box(&*pieces).len(), 3);
        queue.add_used(memory, head, 1).expect("a place");
    }
    queue.needs_notification(memory).expect("a ring")
}

fn ours(ring: &mut ring::Ring, chain: &mut chain::Chain, memory: &mut GuestMemory, batch: u16) -> bool {
    for ahead in 0..batch {
        let head = ring.peek().expect("a good ring").expect("a request");
        let view = ring.view.as_ref().expect("a ring");
        chain.walk(&view.desc, SIZE, head, true, memory).expect("a good chain");
        assert_eq!(black_box(&*chain).write_bytes, 4097);
        ring.advance();
        ring.put_used(ahead, head, 1);
    }
    ring.publish(batch);
    ring.wants_interrupt()
}

fn whole(queues: &mut Queues, batch: u16, in_flight: &mut Vec<(io_model::Token, io_model::IoBuf)>) {
    for _ in 0..batch {
        if queues.backlog(1) > 0
            && let Fetch::Command(_, buf, token) = queues.fetch(1)
        {
            in_flight.push((token, buf));
        }
    }
    assert_eq!(in_flight.len(), usize::from(batch));
    in_flight.drain(..).for_each(|(token, buf)| queues.complete(token, Ok(()), buf));
    queues.notify();
}

/// Processor time of this thread so far: other work on the machine counts less than with a clock on the wall.
fn thread_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds per request: the lowest of all turns, and the median.
fn summary(mut turns: Vec<f64>) -> String {
    turns.sort_unstable_by(f64::total_cmp);
    format!("{:>7.1} {:>7.1}", turns[0], turns[turns.len() / 2])
}

fn start(disk: &Arc<Disk>, memory: GuestMemory, offer: &Offer, log: Option<&Arc<Mapping>>) -> Queues {
    let mut queues = Queues::new(Arc::clone(disk), 0..1);
    queues.set_memory(memory, &mut ()).expect("nobody refuses");
    let setup = RingSetup {
        size: SIZE,
        desc: offer.ring.desc,
        avail: offer.ring.avail,
        used: offer.ring.used,
        next_avail: 0,
        features: u64::MAX,
        call: None,
        err: None,
        inflight: log.and_then(|log| inflight_region(log, 0, SIZE)),
        log_is_own: false,
    };
    queues.start(0, setup).expect("a good ring");
    queues.enable(0, true);
    queues
}

fn measure(regions: u64, shape: Shape, batch: u16) {
    // Every contender has a ring of its own, all in the last region; an address is its own offset in the file.
    let (ram, fd) = Mapping::memfd("ram", (regions * REGION_BYTES) as usize).expect("memfd");
    let last = (regions - 1) * REGION_BYTES;
    let mut offers: Vec<Offer> = (0..4).map(|n| Offer::new(&ram, last + n * 0x10_0000, shape)).collect();
    let theirs = library_memory(&fd, regions);
    let memory = || our_memory(&fd, regions);

    let mut queue = Queue::new(SIZE).expect("a good size");
    queue.try_set_desc_table_address(GuestAddress(offers[0].ring.desc)).expect("aligned");
    queue.try_set_avail_ring_address(GuestAddress(offers[0].ring.avail)).expect("aligned");
    queue.try_set_used_ring_address(GuestAddress(offers[0].ring.used)).expect("aligned");
    queue.set_event_idx(true);
    queue.set_ready(true);
    assert!(queue.is_valid(&theirs));
    let mut pieces = Vec::new();

    let (mut own_memory, mut chain) = (memory(), chain::Chain::default());
    let (desc, avail, used) = (offers[1].ring.desc, offers[1].ring.avail, offers[1].ring.used);
    let place = ring::Place { size: SIZE, desc, avail, used, event_idx: true };
    let view = place.view(&mut own_memory).expect("in memory");
    let mut own = ring::Ring::new(place, view, 0);

    let config = DiskConfig {
        place: io_model::Place::whole_drive(io_model::TenantId(0)),
        size_bytes: 1 << 30,
        block_bytes: 512,
        serial: "bench".into(),
        queues: 1,
        read_only: false,
        discard: false,
        write_cache: true,
        by_priority: false,
    };
    let disk = Arc::new(Disk::new(config).expect("a good configuration"));
    let log = Mapping::anonymous(inflight_bytes(1, SIZE) as usize).expect("memory");
    let mut plain = start(&disk, memory(), &offers[2], None);
    let mut logged = start(&disk, memory(), &offers[3], Some(&log));
    let mut in_flight = Vec::with_capacity(usize::from(batch));

    let mut times = [const { Vec::new() }; 4];
    for _ in 0..TURNS {
        for (contender, (offer, times)) in offers.iter_mut().zip(&mut times).enumerate() {
            let rounds = REQUESTS / u32::from(batch);
            let started = thread_ns();
            for _ in 0..rounds {
                offer.offer(batch);
                match contender {
                    0 => assert!(library(&mut queue, &theirs, &mut pieces, batch)),
                    1 => assert!(ours(&mut own, &mut chain, &mut own_memory, batch)),
                    2 => whole(&mut plain, batch, &mut in_flight),
                    _ => whole(&mut logged, batch, &mut in_flight),
                }
            }
            times.push((thread_ns() - started) as f64 / f64::from(rounds * u32::from(batch)));
        }
    }
    let name = if shape == Shape::Direct { "3 direct" } else { "3 indirect" };
    let [library, ours, plain, logged] = times.map(summary);
    println!("{name:<12} {regions:>7} {batch:>5}  {library}  {ours}  {plain}  {logged}");
}

fn library_memory(fd: &OwnedFd, regions: u64) -> GuestMemoryMmap {
    let region = |n: u64| {
        let file = File::from(fd.try_clone().expect("a descriptor"));
        let at = n * REGION_BYTES;
        (GuestAddress(at), REGION_BYTES as usize, Some(FileOffset::new(file, at)))
    };
    let memory = GuestMemoryMmap::from_ranges_with_files((0..regions).map(region).collect::<Vec<_>>());
    memory.expect("mappable")
}

fn our_memory(fd: &OwnedFd, regions: u64) -> GuestMemory {
    let mut memory = GuestMemory::default();
    for n in 0..regions {
        let at = n * REGION_BYTES;
        let mapping = Mapping::shared(fd.as_fd(), at, REGION_BYTES, true).expect("mappable");
        memory.map(at, REGION_BYTES, Some(mapping), &mut ()).expect("nothing else there");
    }
    memory
}

fn main() {
    println!(
        "ns of processor time per request, the driver's stores included: lowest and median of {TURNS} turns of \
         {REQUESTS}"
    );
    println!(
        "{:<12} {:>7} {:>5}  {:>15}  {:>15}  {:>15}  {:>15}",
        "request", "regions", "batch", "virtio-queue", "our ring", "whole read", "with the log"
    );
    for shape in [Shape::Direct, Shape::Indirect] {
        for regions in [1, 4] {
            for batch in [1, 32] {
                measure(regions, shape, batch);
            }
        }
    }
}
