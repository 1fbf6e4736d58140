//! The log of requests in flight: resumed where it is good, refused where it is not.

use guest_memory::Mapping;
use io_model::{Fetch, Source};
use vhost_blk::{LogError, RingSetup, StartError, Started, clear_inflight, inflight_bytes, inflight_region};

use crate::guest::*;

const SIZE: u16 = 16;

/// Offsets in the log, as the protocol has them.
const FEATURES: u64 = 0;
const VERSION: u64 = 8;
const DESC_NUM: u64 = 10;
const LAST_BATCH_HEAD: u64 = 12;
const USED_IDX: u64 = 14;

fn inflight_at(head: u16) -> u64 {
    16 + 16 * u64::from(head)
}

fn next_at(head: u16) -> u64 {
    inflight_at(head) + 6
}

fn counter_at(head: u16) -> u64 {
    inflight_at(head) + 8
}

/// A guest whose ring is logged.
fn logged() -> World {
    let mut world = World::unstarted(config(), SIZE);
    assert_eq!(world.restart(), Started { used_idx: 0, resumed: false, resubmitted: 0 });
    world
}

/// Three requests completed, three in flight, two waiting.
fn interrupted() -> World {
    let mut world = logged();
    for sector in 0..3 {
        world.one(&Request::write(sector, &pattern(sector, 512)), Framing::Direct);
    }
    for sector in 3..6 {
        world.submit(&Request::write(sector, &pattern(sector, 512)), Framing::Indirect);
    }
    assert_eq!(world.fetch(), 3);
    for sector in 6..8 {
        world.submit(&Request::write(sector, &pattern(sector, 512)), Framing::Indirect);
    }
    world
}

#[test]
fn its_size_is_a_region_for_each_queue() {
    assert_eq!(inflight_bytes(1, 128), 2112);
    assert_eq!(inflight_bytes(64, 1024), 64 * 16448);
    let mapping = Mapping::anonymous(inflight_bytes(2, 128) as usize).expect("memory");
    let region = inflight_region(&mapping, 1, 128).expect("long enough");
    assert_eq!(region.len_bytes(), 2112);
    assert!(inflight_region(&mapping, 2, 128).is_none());
}

#[test]
fn the_write_cache_stays_as_the_driver_left_it() {
    let mut world = logged();
    assert!(world.queues.disk().writeback());
    world.restart();
    assert!(world.queues.disk().writeback());
    world.queues.disk().write_config(32, &[0], FEATURE_CONFIG_WCE).expect("writable");
    world.queues.note_write_cache();
    world.restart();
    assert!(!world.queues.disk().writeback(), "a driver that sends no flushes must not lose writes");
}

#[test]
fn what_was_in_flight_is_done_again_in_order() {
    let mut world = interrupted();
    world.drive.seen.clear();
    assert_eq!(world.restart(), Started { used_idx: 3, resumed: true, resubmitted: 3 });
    assert!(world.interrupted(), "an interrupt may have been lost");
    // The policy sees what is to be done again.
    assert_eq!(world.queues.backlog(VQ), 5);
    let done = world.run();
    assert_eq!(done.len(), 5);
    assert!(done.iter().all(|done| done.status == OK && done.written == 1));
    let sectors: Vec<u64> = world.drive.seen.iter().map(|c| (c.offset_bytes - BASE_BYTES) / 512).collect();
    assert_eq!(sectors, [3, 4, 5, 6, 7]);
    assert_eq!(world.queues.next_avail(QUEUE), Some(8));
    // And once more, with nothing left.
    assert_eq!(world.restart(), Started { used_idx: 8, resumed: true, resubmitted: 0 });
    assert_eq!(world.one(&Request::read(7, 512), Framing::Direct).data, pattern(7, 512));
}

#[test]
fn a_stale_base_is_ignored() {
    let mut world = interrupted();
    world.restart();
    for next_avail in [0, 3, 6, 8] {
        for (token, ..) in world.in_flight.drain(..) {
            token.spend();
        }
        world.queues = vhost_blk::Queues::new(std::sync::Arc::clone(world.queues.disk()), 0..4);
        world.queues.set_memory(world.ram.memory(), &mut ()).expect("nobody refuses");
        let setup = RingSetup { next_avail, inflight: Some(world.log_region()), ..world.setup() };
        let started = world.queues.start(QUEUE, setup).expect("the log is good");
        assert_eq!(started.resubmitted, 3);
        assert_eq!(world.queues.next_avail(QUEUE), Some(6));
    }
}

/// A client goes and comes back while we live: what was in flight is in the log.
#[test]
fn a_client_that_comes_back_finds_its_requests() {
    let mut world = interrupted();
    world.queues.client_gone();
    world.complete();
    assert!(world.queues.is_idle());
    world.queues.set_memory(world.ram.memory(), &mut ()).expect("nobody refuses");
    let setup = RingSetup { inflight: Some(world.log_region()), ..world.setup() };
    assert_eq!(world.queues.start(QUEUE, setup).map(|started| started.resubmitted), Ok(3));
    world.queues.enable(QUEUE, true);
    assert_eq!(world.run().len(), 5);
}

/// What was fetched in an earlier life leaves although the ring is stopped, or not enabled yet.
#[test]
fn a_stopped_ring_drains_what_is_to_be_done_again() {
    let mut world = interrupted();
    world.restart();
    world.queues.stop(QUEUE);
    assert!(!world.queues.is_quiet(QUEUE));
    assert_eq!(world.queues.backlog(VQ), 3);
    assert_eq!(world.run().len(), 3);
    assert!(world.queues.is_quiet(QUEUE));
    assert_eq!(world.queues.next_avail(QUEUE), Some(6));
}

/// A guest spoils a request that was fetched already: its ring can be stopped all the same, and used again.
#[test]
fn a_request_that_went_bad_stops_the_device_again() {
    let mut world = interrupted();
    let bad = Desc { address: 0, len_bytes: 0, flags: INDIRECT, next: 0 };
    (0..SIZE).for_each(|n| world.ram.put_desc(world.driver.ring.desc_at(n), bad));
    world.restart();
    for _ in 0..2 {
        assert_eq!(world.fetch(), 0);
        assert!(world.queues.disk().is_broken() && world.queues.take_fault().is_some());
        world.queues.stop(QUEUE);
    }
    assert!(world.queues.is_quiet(QUEUE), "what is left can't leave");
    let setup = world.setup();
    world.queues.start(QUEUE, setup).expect("the ring is quiet");
    assert!(!world.queues.disk().is_broken());
}

#[test]
fn a_range_request_is_done_again_as_a_whole() {
    let mut world = logged();
    world.submit(&Request::ranges(WRITE_ZEROES, &[(0, 1, 0), (2, 1, 0), (4, 1, 0)]), Framing::Direct);
    for _ in 0..2 {
        let Fetch::Command(command, buf, token) = world.queues.fetch(VQ) else { panic!("a command") };
        world.in_flight.push((token, command, buf));
    }
    world.complete();
    assert_eq!(world.restart().resubmitted, 1);
    world.drive.seen.clear();
    assert_eq!(world.run().len(), 1);
    assert_eq!(world.drive.seen.len(), 3);
}

/// A log that was changed by `corrupt`, and what is said of it.
fn refused(error: LogError, corrupt: impl Fn(&World)) {
    let mut world = interrupted();
    corrupt(&world);
    let before = world.log_region();
    let bytes = |region: &guest_memory::MappedRange| -> Vec<u8> {
        (0..region.len_bytes()).map(|at| region.load_u8(at).expect("inside")).collect()
    };
    let before = bytes(&before);
    for (token, ..) in world.in_flight.drain(..) {
        token.spend();
    }
    world.queues = vhost_blk::Queues::new(std::sync::Arc::clone(world.queues.disk()), 0..4);
    world.queues.set_memory(world.ram.memory(), &mut ()).expect("nobody refuses");
    let setup = RingSetup { inflight: Some(world.log_region()), ..world.setup() };
    assert_eq!(world.queues.start(QUEUE, setup), Err(StartError::Log(error)));
    assert_eq!(bytes(&world.log_region()), before, "a log that is refused is left as it is");
    assert!(!error.to_string().is_empty());
}

#[test]
fn a_corrupt_log_is_refused() {
    let log = |world: &World| world.log_region();
    refused(LogError::Version { version: 2, features: 0 }, |world| log(world).store_u16(VERSION, 2).expect("inside"));
    refused(LogError::Version { version: 1, features: 1 }, |world| log(world).store_u64(FEATURES, 1).expect("inside"));
    refused(LogError::Size { desc_num: 8, size: SIZE }, |world| log(world).store_u16(DESC_NUM, 8).expect("inside"));
    // The ring's used index is 3.
    refused(LogError::UsedIndex { ring: 3, log: 4 }, |world| log(world).store_u16(USED_IDX, 4).expect("inside"));
    refused(LogError::UsedIndex { ring: 3, log: 65_522 }, |world| {
        log(world).store_u16(USED_IDX, 65_522).expect("inside");
    });
    refused(LogError::UsedIndex { ring: 2, log: 3 }, |world| world.ram.put_u16(world.driver.ring.used + 2, 2));
    // One request was published last; its head does not exist.
    refused(LogError::Batch { batch: 1 }, |world| {
        log(world).store_u16(USED_IDX, 2).expect("inside");
        log(world).store_u16(LAST_BATCH_HEAD, SIZE).expect("inside");
    });
    // Two were, but they are one.
    refused(LogError::Batch { batch: 2 }, |world| {
        log(world).store_u16(USED_IDX, 1).expect("inside");
        log(world).store_u16(LAST_BATCH_HEAD, 7).expect("inside");
        log(world).store_u16(next_at(7), 7).expect("inside");
    });
    refused(LogError::Flag { head: 5, flag: 2 }, |world| log(world).store_u8(inflight_at(5), 2).expect("inside"));
    // More than the driver offered.
    refused(LogError::Avail { inflight: 9, available: 5 }, |world| {
        let others = (0..SIZE).filter(|head| log(world).load_u8(inflight_at(*head)) == Some(0));
        for (n, head) in (0..6).zip(others) {
            log(world).store_u64(counter_at(head), 100 + n).expect("inside");
            log(world).store_u8(inflight_at(head), 1).expect("inside");
        }
    });
    refused(LogError::Avail { inflight: 3, available: 0 }, |world| world.ram.put_u16(world.driver.ring.avail + 2, 3));
    refused(LogError::Avail { inflight: 3, available: 65_535 }, |world| {
        world.ram.put_u16(world.driver.ring.avail + 2, 2)
    });
    let in_flight =
        |world: &World| (0..SIZE).filter(|n| log(world).load_u8(inflight_at(*n)) == Some(1)).collect::<Vec<_>>();
    refused(LogError::Counter { counter: 4 }, |world| {
        in_flight(world).iter().for_each(|head| log(world).store_u64(counter_at(*head), 4).expect("inside"));
    });
    refused(LogError::Counter { counter: u64::MAX }, |world| {
        log(world).store_u64(counter_at(in_flight(world)[0]), u64::MAX).expect("inside");
    });
}

#[test]
fn a_log_that_can_not_be_used_is_refused() {
    let mut world = World::unstarted(config(), SIZE);
    let short = inflight_region(&world.log, 0, SIZE / 2).expect("long enough");
    let odd = guest_memory::MappedRange::new(&world.log, 1, 600).expect("inside");
    for region in [short, odd] {
        let setup = RingSetup { inflight: Some(region), ..world.setup() };
        assert_eq!(world.queues.start(QUEUE, setup), Err(StartError::Log(LogError::Memory)));
    }
    // New, but the ring is not: what lies between its indexes can't be told.
    world.ram.put_u16(world.driver.ring.avail + 2, 5);
    let setup = RingSetup { next_avail: 2, inflight: Some(world.log_region()), ..world.setup() };
    let error = StartError::Log(LogError::NotAtUsed { next_avail: 2, used: 0 });
    assert_eq!(world.queues.start(QUEUE, setup), Err(error));
}

/// A log of our own is not the client's: a ring that it can't describe is served, and not gone on with.
#[test]
fn a_ring_is_served_without_a_log_of_our_own_that_can_not_describe_it() {
    let mut world = World::unstarted(config(), SIZE);
    world.ram.put_u16(world.driver.ring.avail + 2, 5);
    let setup = |world: &World, next_avail| RingSetup {
        next_avail,
        inflight: Some(world.log_region()),
        log_is_own: true,
        ..world.setup()
    };
    let fresh = Started { used_idx: 0, resumed: false, resubmitted: 0 };
    let first = setup(&world, 2);
    assert_eq!(world.queues.start(QUEUE, first), Ok(fresh));
    world.queues.stop(QUEUE);
    for next_avail in [0, 2] {
        let again = setup(&world, next_avail);
        assert_eq!(world.queues.start(QUEUE, again), Err(StartError::Log(LogError::NotLogged)));
    }
    // It was stopped: the next time it begins anew, and what a log tells counts.
    clear_inflight(&world.log_region());
    let anew = setup(&world, 0);
    assert_eq!(world.queues.start(QUEUE, anew), Ok(fresh));
    world.queues.stop(QUEUE);
    let resumed = setup(&world, 2);
    assert_eq!(world.queues.start(QUEUE, resumed), Ok(Started { resumed: true, ..fresh }));
}
