//! Requests that go by the priority that each carries.

use io_model::{Fetch, QueuePriority, Source};
use vhost_blk::{DiskConfig, MAX_QUEUES_BY_PRIORITY, RingSetup, Started};

use crate::guest::*;

const SIZE: u16 = 32;
/// `ionice -c1`, `-c2` and `-c3`, each with a level.
const REALTIME: u32 = 1 << 13 | 4;
const BEST_EFFORT: u32 = 2 << 13 | 4;
const IDLE: u32 = 3 << 13;
/// The VQs of the world's virtqueue.
const HIGH: u16 = VQ;
const MEDIUM: u16 = VQ + MAX_QUEUES_BY_PRIORITY;
const LOW: u16 = VQ + 2 * MAX_QUEUES_BY_PRIORITY;

fn by_priority() -> DiskConfig {
    DiskConfig { by_priority: true, ..config() }
}

fn logged() -> World {
    let mut world = World::unstarted(by_priority(), SIZE);
    assert_eq!(world.restart(), Started { used_idx: 0, resumed: false, resubmitted: 0 });
    world
}

fn read(sector: u64, ioprio: u32) -> Request {
    Request { ioprio, ..Request::read(sector, 512) }
}

/// Fetches all of one VQ; the sectors.
fn fetch(world: &mut World, vq: u16) -> Vec<u64> {
    let mut sectors = Vec::new();
    while world.queues.backlog(vq) > 0 {
        let Fetch::Command(command, buf, token) = world.queues.fetch(vq) else { panic!("VQ {vq} has a command") };
        sectors.push(command.tenant_offset_bytes / 512);
        world.in_flight.push((token, command, buf));
    }
    sectors
}

#[test]
fn each_priority_waits_in_a_vq_of_its_own() {
    let mut world = logged();
    for (vq, priority) in [(HIGH, QueuePriority::High), (MEDIUM, QueuePriority::Medium), (LOW, QueuePriority::Low)] {
        assert!(world.queues.live_vqs() >> vq & 1 == 1);
        assert_eq!(world.queues.priority(vq), priority);
    }
    let order = [(0, IDLE), (1, 0), (2, REALTIME), (3, IDLE), (4, BEST_EFFORT), (5, REALTIME)];
    for (sector, ioprio) in order {
        let framing = if sector % 2 == 0 { Framing::Direct } else { Framing::Indirect };
        world.submit(&read(sector, ioprio), framing);
    }
    // The priority is not searched for in a header that is in pieces.
    world.submit(&read(6, REALTIME), Framing::Odd);
    assert_eq!([HIGH, MEDIUM, LOW].map(|vq| world.queues.backlog(vq)), [2, 3, 2]);
    assert_eq!(fetch(&mut world, HIGH), [2, 5]);
    world.complete();
    world.queues.notify();
    assert_eq!(world.driver.completions(&world.ram).len(), 2, "those before them in the ring wait");
    assert_eq!(fetch(&mut world, LOW), [0, 3]);
    assert_eq!(fetch(&mut world, MEDIUM), [1, 4, 6]);
    world.complete();
    assert_eq!(world.run().len(), 5);
}

#[test]
fn what_waits_in_lanes_is_done_by_the_next_process() {
    let mut world = logged();
    for sector in 0..4 {
        world.submit(&read(sector, IDLE), Framing::Direct);
    }
    for sector in 4..6 {
        world.submit(&read(sector, REALTIME), Framing::Indirect);
    }
    assert_eq!(world.queues.backlog(HIGH), 2);
    assert_eq!(fetch(&mut world, HIGH), [4, 5]);
    world.submit(&read(6, IDLE), Framing::Direct);
    // Two with the drive and four in a lane; the last was not looked at.
    assert_eq!(world.restart(), Started { used_idx: 0, resumed: true, resubmitted: 6 });
    assert_eq!([HIGH, MEDIUM, LOW].map(|vq| world.queues.backlog(vq)), [2, 0, 5]);
    assert_eq!(fetch(&mut world, HIGH), [4, 5]);
    assert_eq!(fetch(&mut world, LOW), [0, 1, 2, 3, 6]);
    world.complete();
    assert_eq!(world.run().len(), 7);
    assert_eq!(world.restart(), Started { used_idx: 7, resumed: true, resubmitted: 0 });
}

#[test]
fn a_ring_that_stops_drains_its_lanes() {
    let mut world = logged();
    world.submit(&read(0, IDLE), Framing::Direct);
    world.submit(&read(1, 0), Framing::Direct);
    assert_eq!(world.queues.backlog(LOW), 1);
    world.queues.stop(QUEUE);
    world.submit(&read(2, 0), Framing::Direct);
    assert!(!world.queues.is_quiet(QUEUE));
    assert_eq!(world.run().len(), 2);
    assert!(world.queues.is_quiet(QUEUE));
    assert_eq!((world.queues.live_vqs(), world.queues.next_avail(QUEUE)), (0, Some(2)));
}

#[test]
fn a_driver_that_offers_a_head_for_ever_fills_no_memory_of_ours() {
    let mut world = World::new(by_priority(), SIZE, u64::MAX);
    let head = world.submit(&read(0, 0), Framing::Direct);
    for _ in 0..20 {
        for _ in 0..SIZE - 1 {
            world.driver.offer(&world.ram, head);
        }
        assert!(world.queues.backlog(MEDIUM) <= SIZE.into());
        assert_eq!(world.queues.take_fault(), None);
        if world.queues.next_avail(QUEUE) != Some(world.driver.ring.avail_idx) {
            break;
        }
    }
    // The second of one head in flight stops the disk, as without priorities.
    let Fetch::Command(command, buf, token) = world.queues.fetch(MEDIUM) else { panic!("the first one is good") };
    world.in_flight.push((token, command, buf));
    assert!(matches!(world.queues.fetch(MEDIUM), Fetch::Empty));
    assert!(world.queues.take_fault().is_some());
    world.complete();
}

#[test]
fn ranges_are_handed_out_whichever_lane_is_asked() {
    let mut world = logged();
    let zeroes = Request::ranges(WRITE_ZEROES, &[(0, 1, 0), (2, 1, 0), (4, 1, 0)]);
    world.submit(&Request { ioprio: IDLE, ..zeroes }, Framing::Direct);
    world.submit(&read(9, REALTIME), Framing::Direct);
    assert_eq!([HIGH, LOW].map(|vq| world.queues.backlog(vq)), [1, 1]);
    let mut next = |vq| match world.queues.fetch(vq) {
        Fetch::Command(command, buf, token) => {
            world.in_flight.push((token, command, buf));
            command.tenant_offset_bytes / 512
        }
        other => panic!("{other:?}"),
    };
    assert_eq!([next(LOW), next(HIGH), next(LOW), next(HIGH)], [0, 2, 4, 9]);
    world.complete();
    assert_eq!(world.run().len(), 2);
}

#[test]
fn taking_requests_into_lanes_allocates_nothing() {
    let mut world = World::unstarted(by_priority(), SIZE);
    let setup = RingSetup { inflight: Some(world.log_region()), ..world.setup() };
    world.queues.start(QUEUE, setup).expect("a good ring");
    world.queues.enable(QUEUE, true);
    for round in 0..100 {
        for (sector, ioprio) in [(0, IDLE), (1, 0), (2, REALTIME)] {
            world.submit(&read(sector, ioprio), Framing::Direct);
        }
        let queues = &mut world.queues;
        let mut backlogs = [0; 3];
        let counted = allocation_counter::measure(|| backlogs = [HIGH, MEDIUM, LOW].map(|vq| queues.backlog(vq)));
        assert_eq!((backlogs, counted.count_total), ([1; 3], 0), "{round}");
        assert_eq!(world.run().len(), 3);
    }
}
