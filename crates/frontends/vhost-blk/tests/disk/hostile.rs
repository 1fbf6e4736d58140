//! Drivers and VMMs that break the rules: a request fails alone where its status can be told, else the device stops
//! and says why. Nothing panics, nothing loops.

use io_model::Source;
use vhost_blk::{Fault, FaultKind, RingSetup, StartError};

use crate::guest::*;

/// Nobody's memory.
const NOWHERE: u64 = 0xdead_0000_0000;

/// A head at `buffers(0)` whose chain `build` writes, by descriptor index and address of its buffers.
fn offered(build: impl FnOnce(&World, u64)) -> World {
    let mut world = World::ready();
    let at = world.driver.buffers(0);
    world.ram.write(at, &[0; 16]);
    world.ram.write(at + 16, &[PENDING]);
    build(&world, at);
    world.driver.offer(&world.ram, 0);
    world
}

fn put(world: &World, index: u16, address: u64, len_bytes: u32, flags: u16, next: u16) {
    world.ram.put_desc(world.driver.ring.desc_at(index), Desc { address, len_bytes, flags, next });
}

/// The device stopped for this, and neither fetched nor completed anything.
fn stopped(mut world: World, kind: FaultKind) {
    assert_eq!(world.fetch(), 0, "{kind}");
    assert_eq!(world.queues.take_fault(), Some(Fault { queue: QUEUE, kind }));
    assert_eq!(world.queues.take_fault(), None, "told once");
    assert_eq!(world.queues.live_vqs(), 0);
    assert!(world.queues.disk().is_broken());
    assert!(world.in_flight.is_empty() && world.drive.seen.is_empty());
    assert_eq!(world.ram.u16(world.driver.ring.used + 2), 0);
    // It is over when every ring was stopped.
    world.queues.stop(QUEUE);
    assert!(world.queues.is_quiet(QUEUE) && !world.queues.disk().is_broken());
    assert_eq!(world.queues.next_avail(QUEUE), Some(0), "the request was not consumed");
}

/// The request failed with its status, and the device goes on.
fn failed(mut world: World, status: u8, written: u32) {
    assert_eq!(world.run_raw(), vec![(0, written)]);
    let at = world.driver.buffers(0);
    assert_eq!(world.ram.read(at + 16, 1)[0], status);
    assert_eq!(world.queues.take_fault(), None);
    assert!(world.drive.seen.is_empty());
    assert_ne!(world.queues.live_vqs(), 0);
}

#[test]
fn a_chain_that_loops() {
    for back_to in [0, 1, 2] {
        let world = offered(|world, at| {
            put(world, 0, at, 16, NEXT, 1);
            put(world, 1, at, 1, NEXT, 2);
            put(world, 2, at, 1, NEXT | WRITE, back_to);
        });
        stopped(world, FaultKind::Loop { head: 0, size: 64 });
    }
}

#[test]
fn a_chain_that_leaves_its_table() {
    let world = offered(|world, at| put(world, 0, at, 16, NEXT, 64));
    stopped(world, FaultKind::Next { head: 0, next: 64, size: 64 });
}

#[test]
fn indirect_tables_that_are_none() {
    for (len_bytes, kind) in [
        (0, FaultKind::TableLength { head: 0, len_bytes: 0 }),
        (17, FaultKind::TableLength { head: 0, len_bytes: 17 }),
        (16 * 1025, FaultKind::TableLength { head: 0, len_bytes: 16 * 1025 }),
        (u32::MAX, FaultKind::TableLength { head: 0, len_bytes: u32::MAX }),
    ] {
        stopped(offered(|world, at| put(world, 0, at, len_bytes, INDIRECT, 0)), kind);
    }
    for address in [NOWHERE, u64::MAX, u64::MAX - 15, RAM + RAM_BYTES - 16] {
        let world = offered(|world, _| put(world, 0, address, 48, INDIRECT, 0));
        stopped(world, FaultKind::TableMemory { head: 0, address });
    }
    let world = offered(|world, at| put(world, 0, at, 16, INDIRECT | NEXT, 1));
    stopped(world, FaultKind::Indirect { head: 0 });
}

#[test]
fn indirect_tables_that_lead_nowhere() {
    let table = |entries: &[(u64, u32, u16, u16)]| {
        offered(|world, at| {
            for (n, (address, len_bytes, flags, next)) in (0..).zip(entries) {
                let desc = Desc { address: *address, len_bytes: *len_bytes, flags: *flags, next: *next };
                world.ram.put_desc(at + 64 + 16 * n, desc);
            }
            put(world, 0, at + 64, 16 * entries.len() as u32, INDIRECT, 0);
        })
    };
    stopped(table(&[(RAM, 16, NEXT, 1), (RAM, 16, NEXT, 0)]), FaultKind::Loop { head: 0, size: 2 });
    stopped(table(&[(RAM, 16, NEXT, 7)]), FaultKind::Next { head: 0, next: 7, size: 1 });
    stopped(table(&[(RAM, 16, INDIRECT, 0)]), FaultKind::Indirect { head: 0 });
}

#[test]
fn an_indirect_table_nobody_agreed_on() {
    let mut world = World::new(config(), 64, !(1 << 28));
    let at = world.driver.buffers(0);
    put(&world, 0, at, 48, INDIRECT, 0);
    world.driver.offer(&world.ram, 0);
    stopped(world, FaultKind::Indirect { head: 0 });
}

/// An indirect table may be as long as the largest ring, whatever the order of its entries.
#[test]
fn the_longest_chain_is_served() {
    let mut world = offered(|world, at| {
        // Backwards from the end, so that no two entries that follow each other are read together.
        let table = RAM + (40 << 20);
        let entry = |n: u16, desc| world.ram.put_desc(table + 16 * u64::from(n), desc);
        entry(0, Desc { address: at, len_bytes: 16, flags: NEXT, next: 1023 });
        for n in 2..1024 {
            entry(n, Desc { address: at + DATA_AT, len_bytes: 0, flags: NEXT | WRITE, next: n - 1 });
        }
        entry(1, Desc { address: at + 16, len_bytes: 1, flags: WRITE, next: 0 });
        put(world, 1, table, 16 * 1024, INDIRECT, 0);
        // Other descriptors may come before the table.
        put(world, 0, at, 0, NEXT, 1);
    });
    assert_eq!(world.run_raw(), [(0, 1)]);
    assert_eq!(world.queues.take_fault(), None);
}

#[test]
fn heads_that_are_none() {
    for head in [64, 65, u16::MAX] {
        let mut world = World::ready();
        world.driver.offer(&world.ram, head);
        stopped(world, FaultKind::Head { head, size: 64 });
    }
}

#[test]
fn an_index_that_runs_ahead() {
    for avail in [65, 1000, u16::MAX] {
        let world = World::ready();
        world.ram.put_u16(world.driver.ring.avail + 2, avail);
        stopped(world, FaultKind::AvailIndex { avail, fetched: 0, size: 64 });
    }
}

#[test]
fn a_request_without_room_for_a_status() {
    stopped(offered(|world, at| put(world, 0, at, 16, 0, 0)), FaultKind::NoStatus { head: 0 });
    stopped(offered(|world, at| put(world, 0, at, 0, WRITE, 0)), FaultKind::NoStatus { head: 0 });
    for (address, len_bytes, status) in
        [(NOWHERE, 1, NOWHERE), (u64::MAX, 2, u64::MAX), (RAM + RAM_BYTES - 1, 2, RAM + RAM_BYTES)]
    {
        let world = offered(|world, at| {
            put(world, 0, at, 16, NEXT, 1);
            put(world, 1, address, len_bytes, WRITE, 0);
        });
        stopped(world, FaultKind::StatusMemory { head: 0, address: status });
    }
}

#[test]
fn a_head_that_is_in_flight() {
    let mut world = World::ready();
    let head = world.submit(&Request::read(0, 512), Framing::Direct);
    world.driver.offer(&world.ram, head);
    assert_eq!(world.fetch(), 1);
    assert_eq!(world.queues.take_fault(), Some(Fault { queue: QUEUE, kind: FaultKind::HeadTwice { head } }));
    // What was fetched before still completes.
    world.complete();
    world.queues.notify();
    assert_eq!(world.driver.completions(&world.ram).len(), 1);
}

#[test]
fn no_header_or_a_short_one() {
    for len_bytes in [0, 1, 15] {
        let world = offered(|world, at| {
            put(world, 0, at, len_bytes, NEXT, 1);
            put(world, 1, at + 16, 1, WRITE, 0);
        });
        failed(world, IOERR, 1);
    }
    for address in [NOWHERE, u64::MAX - 3, RAM + RAM_BYTES - 8] {
        let world = offered(|world, at| {
            put(world, 0, address, 16, NEXT, 1);
            put(world, 1, at + 16, 1, WRITE, 0);
        });
        failed(world, IOERR, 1);
    }
}

#[test]
fn something_to_read_after_something_to_write() {
    let world = offered(|world, at| {
        put(world, 0, at + 16, 1, WRITE | NEXT, 1);
        put(world, 1, at, 16, 0, 0);
    });
    failed(world, IOERR, 1);
}

#[test]
fn data_that_is_not_guest_memory() {
    for address in [NOWHERE, u64::MAX - 255, RAM + RAM_BYTES - 256, RAM - 256] {
        for flags in [NEXT, NEXT | WRITE] {
            let world = offered(|world, at| {
                world.ram.write(at, &u32::from(flags & WRITE == 0).to_le_bytes());
                put(world, 0, at, 16, NEXT, 1);
                put(world, 1, address, 512, flags, 2);
                put(world, 2, at + 16, 1, WRITE, 0);
            });
            failed(world, IOERR, if flags & WRITE == 0 { 1 } else { 0 });
        }
    }
}

#[test]
fn lengths_that_add_up_to_too_much() {
    for (kind, flags) in [(IN, WRITE), (OUT, 0)] {
        let world = offered(|world, at| {
            world.ram.write(at, &kind.to_le_bytes());
            put(world, 0, at, 16, NEXT, 1);
            for n in 1..40 {
                put(world, n, RAM, u32::MAX, flags | NEXT, n + 1);
            }
            put(world, 40, at + 16, 1, WRITE, 0);
        });
        failed(world, IOERR, if kind == IN { 0 } else { 1 });
    }
}

#[test]
fn rings_that_are_none() {
    let mut world = World::unstarted(config(), 64);
    let good = || world.driver.setup();
    let ring = |part, address| StartError::Ring { part, address };
    let cases = [
        (RingSetup { size: 0, ..good() }, StartError::Size { size: 0 }),
        (RingSetup { size: 3, ..good() }, StartError::Size { size: 3 }),
        (RingSetup { size: 2048, ..good() }, StartError::Size { size: 2048 }),
        (RingSetup { desc: RAM + 8, ..good() }, ring("descriptor table", RAM + 8)),
        (RingSetup { desc: NOWHERE, ..good() }, ring("descriptor table", NOWHERE)),
        (RingSetup { avail: RAM + 1, ..good() }, ring("available ring", RAM + 1)),
        (RingSetup { avail: RAM + RAM_BYTES - 128, ..good() }, ring("available ring", RAM + RAM_BYTES - 128)),
        (RingSetup { used: RAM + 2, ..good() }, ring("used ring", RAM + 2)),
        (RingSetup { used: u64::MAX - 3, ..good() }, ring("used ring", u64::MAX - 3)),
        (RingSetup { next_avail: 1, ..good() }, StartError::Avail { avail: 0, next_avail: 1, size: 64 }),
    ];
    for (setup, error) in cases {
        let shown = format!("{setup:?}");
        assert_eq!(world.queues.start(QUEUE, setup), Err(error), "{shown}");
    }
    let setup = good();
    assert_eq!(world.queues.start(4, setup), Err(StartError::NoQueue));
    assert_eq!(world.queues.live_vqs(), 0);
}

/// Requests with every field wrong now and then: it ends, and nothing outside of the disk is touched.
#[test]
fn garbage() {
    let seed =
        std::env::var("EVENKEEL_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("EVENKEEL_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut faults, mut commands) = (0, 0);
    for _ in 0..800 {
        let mut world = World::new(config(), 32, if random.u8(0..4) > 0 { u64::MAX } else { 0 });
        for head in (0..32).step_by(4) {
            spoil(&world, &mut random, head);
            let head = if random.u8(0..60) == 0 { random.u16(0..40) } else { head };
            world.driver.offer(&world.ram, head);
        }
        while world.fetch() > 0 {
            world.complete();
            world.queues.notify();
        }
        assert!(world.queues.is_idle() && world.drive.guards_are_whole());
        faults += usize::from(world.queues.take_fault().is_some());
        commands += world.drive.seen.len();
    }
    // The garbage is good enough to get through, and bad enough not to.
    assert!(faults > 100 && commands > 500, "{faults} faults, {commands} commands");
}

/// A request at `head`, of four descriptors or a table of them, with some fields wrong.
fn spoil(world: &World, random: &mut fastrand::Rng, head: u16) {
    let at = world.driver.buffers(head);
    let kind = [IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES, 77][random.usize(0..7)];
    world.ram.write(at, &kind.to_le_bytes());
    world.ram.write(at + 8, &random.u64(0..SIZE_BYTES / 400).to_le_bytes());
    let data = if kind == IN || kind == GET_ID { WRITE } else { 0 };
    let indirect = random.bool();
    let (table, base) = if indirect { (at + 64, 0) } else { (world.driver.ring.desc_at(head), head) };
    let pieces = [(at, 16, 0), (at + DATA_AT, 512, data), (at + 2 * DATA_AT, 512, data), (at + 16, 1, WRITE)];
    for (n, (address, len_bytes, flags)) in (0..).zip(pieces) {
        let next = if n < 3 { NEXT } else { 0 };
        let mut desc = Desc { address, len_bytes, flags: flags | next, next: base + n + 1 };
        match random.u8(0..40) {
            0 => desc.address = random.u64(..),
            1 => desc.address = RAM + RAM_BYTES - random.u64(0..600),
            2 => desc.address = world.driver.ring.desc_at(random.u16(0..32)),
            3 => desc.len_bytes = [0, 1, 15, 513, 4096, u32::MAX][random.usize(0..6)],
            4 => desc.flags = [0, NEXT, WRITE, INDIRECT, 0xffff][random.usize(0..5)],
            5 => desc.next = random.u16(0..40),
            _ => {}
        }
        world.ram.put_desc(table + 16 * u64::from(n), desc);
    }
    if indirect {
        let len_bytes = if random.u8(0..20) == 0 { random.u32(..100) } else { 64 };
        put(world, head, table, len_bytes, INDIRECT, 0);
    }
}

/// Descriptors cost the poller time whatever they hold: the tenant is charged for those above the usual.
#[test]
fn long_chains_are_charged() {
    let mut world = World::ready();
    for (empty, work) in [(0, 0), (29, 0), (1021, 1024 - 32)] {
        let at = world.driver.buffers(0);
        let (header, status, table) = (at, at + 16, RAM + 0x200_0000);
        world.ram.write(header, &[0; 16]);
        let entry = |n: u16, desc| world.ram.put_desc(table + 16 * u64::from(n), desc);
        let next = |n| Desc { address: 0, len_bytes: 0, flags: NEXT, next: n + 1 };
        entry(0, Desc { address: header, len_bytes: 16, ..next(0) });
        (1..=empty).for_each(|n| entry(n, next(n)));
        entry(empty + 1, Desc { address: at + DATA_AT, len_bytes: 512, flags: NEXT | WRITE, next: empty + 2 });
        entry(empty + 2, Desc { address: status, len_bytes: 1, flags: WRITE, next: 0 });
        put(&world, 0, table, 16 * (u32::from(empty) + 3), INDIRECT, 0);
        world.driver.offer(&world.ram, 0);
        assert_eq!(world.fetch(), 1, "{empty} empty descriptors");
        assert_eq!((world.queues.take_work(), world.queues.take_work()), (work, 0), "{empty} empty descriptors");
        world.complete();
        world.queues.notify();
        assert_eq!(world.ram.read(status, 1), [OK]);
    }
}
