//! Doorbell Buffer Config: shadow doorbells and event indexes in guest memory.

use bytemuck::Zeroable;
use guest_memory::MappedU32;
use io_model::Source;
use nvme_controller::{ControllerConfig, Doorbells};
use nvme_spec::opcode::admin;
use nvme_spec::{Sqe, Status};

use crate::host::{Host, config, flush};

/// Where queue 1's indexes are in both pages.
const SQ1: u64 = 8;
const CQ1: u64 = 12;

struct Shadowed {
    host: Host,
    events: u64,
}

impl Shadowed {
    fn new(doorbells: Doorbells) -> Self {
        let mut host = Host::ready_with(ControllerConfig { doorbells, ..config() });
        let (shadow, events) = (host.alloc(4096), host.alloc(4096));
        // Queue 1 was used before.
        assert_eq!(host.io(flush()).status(), Status::SUCCESS);
        let sqe = Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr: [shadow, events], ..Sqe::zeroed() };
        assert_eq!(host.admin(sqe).status(), Status::SUCCESS);
        host.shadow = Some(shadow);
        Self { host, events }
    }

    fn event(&self, at: u64) -> u32 {
        let raw = self.host.read(self.events + at, 4);
        u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]])
    }

    /// Whether a host that moves an index writes the register too: it passes the event index (Base B.5).
    fn rings(&self, at: u64, old: u16, new: u16) -> bool {
        let event = self.event(at) as u16;
        new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
    }
}

#[test]
fn queues_are_driven_through_the_shadow_page() {
    for mode in [Doorbells::Mapped, Doorbells::Trapped] {
        let mut it = Shadowed::new(mode);
        for _ in 0..300 {
            assert_eq!(it.host.io(flush()).status(), Status::SUCCESS);
        }
        // The doorbell page counts no more for I/O queues.
        it.host.controller.bar_write(0, 0x1000 + SQ1, &7u32.to_le_bytes());
        assert_eq!(it.host.controller.backlog(1), 0);
        // A queue created now starts at 0 although the page held something.
        let shadow = it.host.shadow.expect("configured");
        it.host.write(shadow + 16, &[9, 0, 0, 0, 9, 0, 0, 0]);
        it.host.create_pair(2, 16);
        assert_eq!(it.host.controller.backlog(2), 0);
        assert_eq!(it.host.command(2, flush()).status(), Status::SUCCESS);
        // After a reset doorbells are where they were.
        it.host.set32(nvme_spec::regs::Reg::Cc, 0);
        it.host.enable(32);
        it.host.create_pair(1, 64);
        assert_eq!(it.host.io(flush()).status(), Status::SUCCESS);
    }
}

#[test]
fn an_awake_poller_is_not_rung_and_a_sleeping_one_is() {
    let mut it = Shadowed::new(Doorbells::Trapped);
    let mut rung = 0;
    for _ in 0..200 {
        let tail = it.host.sqs[&1].tail;
        rung += usize::from(it.rings(SQ1, tail, (tail + 1) % 64));
        it.host.io(flush());
    }
    assert_eq!(rung, 0);
    for _ in 0..100 {
        it.host.controller.set_wakeup(true);
        let (tail, head) = (it.host.sqs[&1].tail, it.host.cqs[&1].head);
        assert!(it.rings(SQ1, tail, (tail + 1) % 64), "the first command must ring");
        // Completions are watched too: commands may wait for room only. The last known head may lag.
        assert!(it.rings(CQ1, it.event(CQ1) as u16, (head + 1) % 64));
        it.host.controller.set_wakeup(false);
        assert!(!it.rings(SQ1, tail, (tail + 1) % 64));
        it.host.io(flush());
    }
}

#[test]
fn a_command_that_slips_in_before_the_event_index_is_seen() {
    let mut it = Shadowed::new(Doorbells::Trapped);
    it.host.controller.set_wakeup(false);
    // The host looks at the event index, is told not to ring, and then we go to sleep.
    it.host.submit(1, flush());
    it.host.controller.set_wakeup(true);
    assert_eq!(it.host.controller.backlog(1), 1);
}

#[test]
fn with_mapped_doorbells_only_a_sleeping_poller_is_rung() {
    let mut it = Shadowed::new(Doorbells::Mapped);
    it.host.write(it.events, &[0x77; 64]);
    it.host.controller.set_wakeup(false);
    it.host.io(flush());
    // A store to a page costs the host nothing: awake, we spare ours.
    assert_eq!((it.event(SQ1), it.event(CQ1)), (0x7777_7777, 0x7777_7777));
    let in_guest_memory = it.host.shadow.expect("configured");
    for _ in 0..100 {
        it.host.controller.set_wakeup(true);
        let tail = it.host.sqs[&1].tail;
        assert!(it.rings(SQ1, tail, (tail + 1) % 64), "the first command must ring");
        let mut watched = Vec::new();
        it.host.controller.doorbells(&mut watched);
        let moved = |watched: &[(MappedU32, u32)]| watched.iter().filter(|(cell, seen)| cell.load() != *seen).count();
        assert_eq!(moved(&watched), 0, "nothing was rung");
        // What lies in guest memory is not watched: its owner could make the watcher wait.
        it.host.write(in_guest_memory + SQ1, &((u32::from(tail) + 1) % 64).to_le_bytes());
        assert_eq!(moved(&watched), 0);
        it.host.write(in_guest_memory + SQ1, &u32::from(tail).to_le_bytes());
        // The value that it was rung with before, as after 64 commands that nobody had to be told of.
        MappedU32::new(&it.host.doorbells, SQ1).expect("on the page").store(7);
        assert_eq!(moved(&watched), 1);
        // Rung once, it ends one sleep.
        it.host.controller.set_wakeup(true);
        watched.clear();
        it.host.controller.doorbells(&mut watched);
        assert_eq!(moved(&watched), 0);
        it.host.controller.set_wakeup(false);
        it.host.io(flush());
    }
}

#[test]
fn shadow_pages_that_replace_others_hold_what_those_held() {
    for mode in [Doorbells::Mapped, Doorbells::Trapped] {
        let mut it = Shadowed::new(mode);
        for _ in 0..10 {
            it.host.controller.set_wakeup(true);
            it.host.controller.set_wakeup(false);
            assert_eq!(it.host.io(flush()).status(), Status::SUCCESS);
        }
        let (shadow, events) = (it.host.alloc(4096), it.host.alloc(4096));
        let sqe = Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr: [shadow, events], ..Sqe::zeroed() };
        assert_eq!(it.host.admin(sqe).status(), Status::SUCCESS);
        assert_eq!(it.host.read(shadow + SQ1, 8), it.host.read(it.host.shadow.expect("configured") + SQ1, 8));
        it.host.shadow = Some(shadow);
        assert_eq!(it.host.controller.backlog(1), 0);
        assert_eq!(it.host.io(flush()).status(), Status::SUCCESS);
    }
}

#[test]
fn bad_shadow_values_are_ignored() {
    let mut it = Shadowed::new(Doorbells::Trapped);
    let shadow = it.host.shadow.expect("configured");
    for value in [64u32, 0x1_0001, u32::MAX] {
        it.host.write(shadow + SQ1, &value.to_le_bytes());
        assert_eq!(it.host.controller.backlog(1), 0);
    }
    it.host.ring(1);
    assert_eq!(it.host.io(flush()).status(), Status::SUCCESS);
}
