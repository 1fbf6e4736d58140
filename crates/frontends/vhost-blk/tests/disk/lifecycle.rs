//! Rings that start and stop, memory that changes, clients that go.

use std::sync::Arc;

use guest_memory::{GuestMemory, Mapping, MemoryListener, Refused};
use io_model::{DeviceError, Source};
use rustix::event::{EventfdFlags, eventfd};
use vhost_blk::{Disk, Fault, FaultKind, Queues, RingSetup, StartError, Started};

use crate::guest::*;

#[test]
fn a_ring_is_live_while_it_is_enabled() {
    let mut world = World::unstarted(config(), 64);
    assert_eq!(world.queues.live_vqs(), 0);
    let setup = world.setup();
    let started = world.queues.start(QUEUE, setup).expect("a good ring");
    assert_eq!(started, Started { used_idx: 0, resumed: false, resubmitted: 0 });
    world.submit(&Request::read(0, 512), Framing::Direct);
    assert_eq!((world.queues.live_vqs(), world.queues.backlog(VQ)), (0, 0));
    world.queues.enable(QUEUE, true);
    assert_eq!((world.queues.live_vqs(), world.queues.backlog(VQ)), (1 << VQ, 1));
    world.queues.enable(QUEUE, false);
    assert_eq!(world.run().len(), 0);
    world.queues.enable(QUEUE, true);
    assert_eq!(world.run().len(), 1);
}

#[test]
fn a_stopped_ring_completes_what_it_fetched() {
    let mut world = World::ready();
    let ranges = Request::ranges(DISCARD, &[(0, 1, 0), (1, 1, 0), (2, 1, 0)]);
    world.submit(&ranges, Framing::Direct);
    world.submit(&Request::read(0, 512), Framing::Direct);
    let io_model::Fetch::Command(command, buf, token) = world.queues.fetch(VQ) else { panic!("a command") };
    world.in_flight.push((token, command, buf));
    world.queues.stop(QUEUE);
    assert!(!world.queues.is_quiet(QUEUE));
    let setup = world.setup();
    assert_eq!(world.queues.start(QUEUE, setup), Err(StartError::Busy));
    // The ranges that are left belong to a request that was fetched; the read was not.
    assert_eq!(world.queues.live_vqs(), 1 << VQ);
    assert_eq!(world.fetch(), 2);
    assert_eq!(world.queues.live_vqs(), 0);
    world.complete();
    assert!(!world.queues.is_quiet(QUEUE), "not published yet");
    world.queues.notify();
    assert!(world.queues.is_quiet(QUEUE));
    assert_eq!(world.driver.completions(&world.ram).len(), 1);
    assert_eq!(world.queues.next_avail(QUEUE), Some(1));

    let setup = RingSetup { next_avail: 1, ..world.setup() };
    world.queues.start(QUEUE, setup).expect("the ring is quiet");
    world.queues.enable(QUEUE, true);
    assert_eq!(world.run().len(), 1);
}

#[test]
fn the_memory_of_a_stopped_ring_is_the_guests_again() {
    for features in [0, EVENT_IDX] {
        let mut world = World::unstarted(config(), 64);
        let setup = RingSetup { features, ..world.setup() };
        let used = setup.used;
        world.queues.start(QUEUE, setup).expect("a good ring");
        world.queues.enable(QUEUE, true);
        world.submit(&Request::read(0, 512), Framing::Direct);
        assert_eq!(world.run().len(), 1);
        world.queues.set_wakeup(true);
        world.queues.stop(QUEUE);
        assert!(world.queues.is_quiet(QUEUE));

        // A guest that reboots has something else there.
        let other = [0xc3; 6 + 8 * 64];
        world.ram.write(used, &other);
        for asleep in [false, true, false] {
            world.queues.set_wakeup(asleep);
            world.queues.set_memory(world.ram.memory(), &mut ()).expect("the same again");
            world.queues.notify();
        }
        assert_eq!(world.ram.read(used, other.len()), other, "features {features:#x}");
    }
}

#[test]
fn a_running_ring_is_not_started_again() {
    let mut world = World::ready();
    let setup = world.setup();
    assert_eq!(world.queues.start(QUEUE, setup), Err(StartError::Busy));
    assert_eq!(world.one(&Request::read(0, 512), Framing::Direct).status, OK);
}

#[test]
fn memory_is_replaced_while_the_ring_runs() {
    let mut world = World::ready();
    world.submit(&Request::write(0, &pattern(1, 4096)), Framing::Direct);
    world.submit(&Request::read(8, 512), Framing::Direct);
    assert_eq!(world.fetch(), 2);
    world.queues.set_memory(world.ram.memory(), &mut ()).expect("nobody refuses");
    // What was fetched before pins the old mapping, and is completed through the new one.
    assert_eq!(world.run().len(), 0);
    world.complete();
    assert_eq!(world.run().len(), 2);
    assert_eq!(world.one(&Request::read(0, 4096), Framing::Direct).data, pattern(1, 4096));
    assert_eq!(world.queues.take_fault(), None);
}

/// How many more mappings it knows than at first.
struct Known(i32);

impl MemoryListener for Known {
    fn map(&mut self, _mapping: &Mapping) -> Result<(), Refused> {
        self.0 += 1;
        Ok(())
    }

    fn unmap(&mut self, _mapping: &Mapping) {
        self.0 -= 1;
    }
}

#[test]
fn a_ring_without_memory_waits_for_it() {
    let mut world = World::ready();
    let err = eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
    world.queues.set_err(QUEUE, Some(err.try_clone().expect("a descriptor")));
    world.submit(&Request::read(0, 512), Framing::Direct);
    world.submit(&Request::read(0, 512), Framing::Direct);
    let io_model::Fetch::Command(command, buf, token) = world.queues.fetch(VQ) else { panic!("a command") };
    // The ring is gone, the buffers are not.
    let mut memory = GuestMemory::default();
    let buffers = world.driver.buffers(0) & !4095;
    let mapping =
        Mapping::shared(std::os::fd::AsFd::as_fd(&world.ram.fd), buffers - RAM, 1 << 20, true).expect("mappable");
    memory.map(buffers, 1 << 20, Some(mapping), &mut ()).expect("nothing else there");
    let mut known = Known(0);
    world.queues.set_memory(memory, &mut known).expect("nobody refuses");
    assert_eq!((world.queues.take_unmapped(&mut known), known.0), (None, 1), "the command uses the old memory");
    assert_eq!(world.queues.take_fault(), Some(Fault { queue: QUEUE, kind: FaultKind::RingMemory }));
    assert!(drain(&err));
    assert_eq!(world.queues.live_vqs(), 0);
    assert!(!world.queues.disk().is_broken(), "other rings go on");
    world.queues.complete(token, world.drive.execute(&command, &buf), buf);
    assert_eq!((world.queues.take_unmapped(&mut known), known.0), (Some((RAM, RAM_BYTES)), 0));
    world.queues.notify();
    assert!(world.driver.completions(&world.ram).is_empty());
    assert!(world.queues.is_quiet(QUEUE), "nothing that could still happen");
    world.interrupted();
    // It comes back, and with it what was completed meanwhile.
    world.queues.set_memory(world.ram.memory(), &mut ()).expect("nobody refuses");
    assert!(world.interrupted());
    assert_eq!(world.driver.completions(&world.ram).len(), 1);
    assert_eq!(world.run().len(), 1);
    assert_eq!(world.queues.take_fault(), None);
}

#[test]
fn a_status_byte_that_goes_away_stops_the_device() {
    let mut world = World::ready();
    world.submit(&Request::read(0, 512), Framing::Direct);
    world.fetch();
    let mut memory = GuestMemory::default();
    let rings = Mapping::shared(std::os::fd::AsFd::as_fd(&world.ram.fd), 0, 1 << 20, true).expect("mappable");
    memory.map(RAM, 1 << 20, Some(rings), &mut ()).expect("nothing else there");
    world.queues.set_memory(memory, &mut ()).expect("nobody refuses");
    world.complete();
    world.queues.notify();
    let address = world.driver.buffers(0) + 16;
    let kind = FaultKind::StatusMemory { head: 0, address };
    assert_eq!(world.queues.take_fault(), Some(Fault { queue: QUEUE, kind }));
    assert!(world.driver.completions(&world.ram).is_empty());
}

#[test]
fn a_client_that_goes_leaves_its_commands_behind() {
    let mut world = World::ready();
    world.submit(&Request::write(0, &pattern(1, 4096)), Framing::Direct);
    world.fetch();
    world.queues.client_gone();
    assert_eq!(world.queues.live_vqs(), 0);
    assert!(!world.queues.is_idle() && world.queues.is_quiet(QUEUE));
    // A new client has to wait, or an old write could overtake a new one.
    world.queues.set_memory(world.ram.memory(), &mut ()).expect("nobody refuses");
    let setup = world.setup();
    assert_eq!(world.queues.start(QUEUE, setup), Err(StartError::Busy));
    world.complete();
    assert!(world.queues.is_idle());
    assert!(world.driver.completions(&world.ram).is_empty(), "nobody to complete to");
    let setup = world.setup();
    world.queues.start(QUEUE, setup).expect("nothing is in flight");
    world.queues.enable(QUEUE, true);
    assert_eq!(world.run().len(), 1, "without a log, it starts from where the VMM says");
}

#[test]
fn a_fault_stops_every_ring_of_the_disk() {
    let disk = Arc::new(Disk::new(config()).expect("a good configuration"));
    let ram = Ram::new();
    let mut drivers: Vec<Driver> = (0..2).map(|queue| Driver::new(&ram, queue, 16)).collect();
    let mut pollers: Vec<Queues> = (0..2).map(|n| Queues::new(Arc::clone(&disk), n..n + 1)).collect();
    let memory = ram.memory();
    for (n, poller) in (0..).zip(&mut pollers) {
        poller.set_memory(memory.replica(), &mut ()).expect("nobody refuses");
        poller.start(n, drivers[usize::from(n)].setup()).expect("a good ring");
        poller.enable(n, true);
        assert_eq!((poller.range(), poller.live_vqs()), (n..n + 1, 2 << n));
    }
    drivers[0].offer(&ram, 99);
    assert!(matches!(pollers[0].fetch(1), io_model::Fetch::Empty));
    assert_eq!(pollers[0].take_fault().map(|fault| fault.queue), Some(0));
    assert_eq!(pollers[1].live_vqs(), 0);
    assert_eq!(pollers[1].take_fault(), None);
    // The next client finds it whole.
    pollers.iter_mut().for_each(Queues::client_gone);
    assert!(!disk.is_broken());
}

#[test]
fn a_client_that_goes_leaves_nothing_in_the_cache() {
    let mut world = World::ready();
    assert!(world.queues.is_flushed(), "nothing was written");
    world.one(&Request::write(0, &[7; 512]), Framing::Direct);
    world.one(&Request::other(FLUSH, 0), Framing::Direct);
    assert!(world.queues.is_flushed(), "its driver flushed");
    for fail in [None, Some(DeviceError::Medium)] {
        world.drive.fail = None;
        world.one(&Request::write(0, &[7; 512]), Framing::Direct);
        world.drive.seen.clear();
        world.drive.fail = fail;
        assert!(!world.queues.is_flushed());
        assert_eq!((world.queues.live_vqs() & 1, world.fetch()), (1, 1));
        assert!(!world.queues.is_flushed() && !world.queues.is_idle(), "the flush is with the drive");
        world.complete();
        assert!(world.queues.is_flushed());
        assert_eq!((&world.drive.seen[..], world.queues.take_flush_error()), (&[PLACE.flush()][..], fail));
    }
}
