//! Notifications both ways: what wakes a poller, what interrupts a driver.

use io_model::Source;

use crate::guest::*;

const WITHOUT: u64 = !EVENT_IDX;

fn avail_event(world: &World) -> u16 {
    world.ram.u16(world.driver.ring.used + 4 + 8 * u64::from(world.driver.ring.size))
}

fn set_used_event(world: &World, event: u16) {
    world.ram.put_u16(world.driver.ring.avail + 4 + 2 * u64::from(world.driver.ring.size), event);
}

/// What a driver asks itself after it moved the index from `old` to `new`.
fn driver_notifies(world: &World, old: u16, new: u16) -> bool {
    new.wrapping_sub(avail_event(world)).wrapping_sub(1) < new.wrapping_sub(old)
}

#[test]
fn a_sleeping_poller_is_notified_and_an_awake_one_is_not() {
    let mut world = World::ready();
    let (mut notified, mut slept) = (0, 0);
    for round in 0..300_u16 {
        let asleep = round % 3 == 0;
        world.queues.set_wakeup(asleep);
        assert_eq!(world.queues.backlog(VQ), 0);
        let old = world.driver.ring.avail_idx;
        world.submit(&Request::read(0, 512), Framing::Indirect);
        let notifies = driver_notifies(&world, old, world.driver.ring.avail_idx);
        assert_eq!(notifies, asleep, "round {round}");
        notified += u32::from(notifies);
        slept += u32::from(asleep);
        world.run();
    }
    assert_eq!((notified, slept), (100, 100));
}

/// A policy holds commands back while the poller sleeps: the next one still wakes it.
#[test]
fn commands_held_back_do_not_hide_the_next() {
    let mut world = World::ready();
    world.submit(&Request::read(0, 512), Framing::Direct);
    assert_eq!(world.queues.backlog(VQ), 1);
    world.queues.set_wakeup(true);
    let old = world.driver.ring.avail_idx;
    world.submit(&Request::read(0, 512), Framing::Direct);
    assert!(driver_notifies(&world, old, world.driver.ring.avail_idx));
}

#[test]
fn without_event_indexes_a_flag_tells() {
    let mut world = World::new(config(), 64, WITHOUT);
    let flags = |world: &World| world.ram.u16(world.driver.ring.used);
    assert_eq!(flags(&world), 1);
    world.queues.set_wakeup(true);
    assert_eq!(flags(&world), 0);
    world.queues.set_wakeup(false);
    assert_eq!(flags(&world), 1);
}

#[test]
fn a_ring_that_starts_while_the_poller_sleeps_notifies() {
    let mut world = World::unstarted(config(), 64);
    world.queues.set_wakeup(true);
    let setup = world.setup();
    world.queues.start(QUEUE, setup).expect("a good ring");
    assert!(driver_notifies(&world, 0, 1));
}

#[test]
fn one_interrupt_for_a_batch() {
    let mut world = World::ready();
    for _ in 0..5 {
        world.submit(&Request::read(0, 512), Framing::Direct);
    }
    assert_eq!(world.run().len(), 5);
    assert!(world.interrupted());
    assert_eq!(world.queues.stats().interrupts, 1);
    world.queues.notify();
    assert!(!world.interrupted());
}

#[test]
fn the_used_event_is_honoured() {
    let mut world = World::ready();
    set_used_event(&world, 2);
    let interrupted: Vec<bool> = (0..5)
        .map(|_| {
            world.one(&Request::read(0, 512), Framing::Direct);
            world.interrupted()
        })
        .collect();
    assert_eq!(interrupted, [false, false, true, false, false]);
}

#[test]
fn without_event_indexes_a_flag_suppresses() {
    let mut world = World::new(config(), 64, WITHOUT);
    // An event index that nobody agreed on is not looked at.
    set_used_event(&world, 77);
    world.one(&Request::read(0, 512), Framing::Direct);
    assert!(world.interrupted());
    world.ram.put_u16(world.driver.ring.avail, 1);
    world.one(&Request::read(0, 512), Framing::Direct);
    assert!(!world.interrupted());
}

/// What is completed is there before the drive's next commands are fetched, not only after.
#[test]
fn a_look_at_the_backlog_publishes() {
    let mut world = World::ready();
    world.submit(&Request::read(0, 512), Framing::Direct);
    world.fetch();
    world.complete();
    assert!(world.driver.completions(&world.ram).is_empty());
    assert_eq!(world.queues.backlog(VQ), 0);
    assert_eq!(world.driver.completions(&world.ram).len(), 1);
    assert!(!world.interrupted());
    world.queues.notify();
    assert!(world.interrupted());
}

/// Indexes count modulo 2^16.
#[test]
fn indexes_wrap_around() {
    let mut world = World::new(config(), 8, u64::MAX);
    for round in 0..70_000_u32 {
        let event = world.driver.ring.used_idx;
        set_used_event(&world, event);
        let head = world.submit(&Request::read(0, 512), Framing::Indirect);
        let done = world.run();
        assert_eq!((done.len(), done[0].head), (1, head), "round {round}");
        assert!(world.interrupted());
    }
}

#[test]
fn an_event_descriptor_that_blocks_does_not_hold_the_poller() {
    eventfd::start_watchdog(|| {}).expect("a thread");
    eventfd::watch();
    let mut world = World::ready();
    let full = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("eventfd");
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("room");
    assert!(!world.queues.is_held_up());
    world.queues.set_call(QUEUE, Some(full.try_clone().expect("a descriptor")));
    assert!(world.queues.is_held_up());
    // Its requests still end; it hears of none, whatever it puts in the place of what it broke.
    assert_eq!(world.one(&Request::read(0, 512), Framing::Direct).status, OK);
    let call = world.call.try_clone().expect("a descriptor");
    world.queues.set_call(QUEUE, Some(call));
    assert_eq!(world.one(&Request::read(0, 512), Framing::Direct).status, OK);
    assert!(!world.interrupted());
    world.queues.client_gone();
    assert!(!world.queues.is_held_up(), "the next client is another");
}

#[test]
fn a_new_call_descriptor_is_raised_once() {
    let mut world = World::ready();
    assert!(!world.interrupted());
    let call = world.call.try_clone().expect("a descriptor");
    world.queues.set_call(QUEUE, Some(call));
    assert!(world.interrupted());
}
