//! Namespaces that come, grow and go: where their commands end up on the drive, and when their place is free.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use io_model::TenantId;
use nvme_controller::{ControllerConfig, Doorbells, FormatRecord, Part, Sanitize, SanitizeState};
use nvme_spec::opcode::admin;
use nvme_spec::regs::{Aqa, Cc, Reg};

use super::making::MAX_TRANSFER_BYTES;
use super::*;

const RAM_BYTES: u64 = 64 << 10;
const ACQ: u64 = 0x1000;
const MIB: u64 = 1 << 20;

/// A device whose guest has brought up the admin queue and formats namespaces: each is erased by one command.
struct Guest {
    device: NvmeDevice,
    ram: Arc<Mapping>,
    records: Receiver<FormatRecord>,
    lines: Arc<Mutex<Vec<String>>>,
    tail: u32,
}

fn namespace(size_bytes: u64) -> NamespaceConfig {
    NamespaceConfig {
        base_bytes: 0,
        size_bytes,
        lba_bytes: 512,
        lba_sizes: vec![512, 4096],
        read_only: false,
        shared: false,
        elsewhere: false,
        nguid: None,
        format_cut_short: false,
        erases_by_key: false,
    }
}

impl Guest {
    fn new() -> Self {
        Self::with(None)
    }

    /// A Sanitize that goes on is at its start.
    fn with(sanitize: Option<Sanitize>) -> Self {
        let own = NamespaceConfig { format_cut_short: sanitize.is_some(), ..namespace(MIB) };
        let config = ControllerConfig {
            serial: "1".into(),
            model: "test".into(),
            firmware: "1".into(),
            subnqn: "nqn.2026-11.evenkeel:test".into(),
            tenant: TenantId(3),
            namespaces: vec![(NSID, own)],
            sanitize,
            discard: true,
            write_zeroes: true,
            volatile_write_cache: false,
            max_io_queues: 1,
            max_depth: 16,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            doorbells: Doorbells::Trapped,
            queues_singly: false,
            part: Part::WHOLE,
        };
        let (page, _) = Mapping::memfd("doorbells", 4096).unwrap();
        let controller = Controller::new(config, page, EventFds::default()).unwrap();
        let (told, records) = channel();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let controller = Placed::new(controller, vec![Extents::one(100 * MIB, MIB)]);
        let log = Log::new(Arc::new(move |_, line| sink.lock().unwrap().push(line.to_owned())), "a");
        let on_erase = Box::new(move |record| match record {
            EraseRecord::Format(record) => told.send(record).unwrap(),
            EraseRecord::Sanitize(_) => {}
        });
        let mut device = NvmeDevice::new("a".into(), controller, None, log, on_erase);
        let (ram, fd) = Mapping::memfd("ram", RAM_BYTES as usize).unwrap();
        let mapped = Mapping::shared(fd.as_fd(), 0, RAM_BYTES, true).unwrap();
        device.controller.dma_map(0, RAM_BYTES, Some(mapped), &mut ()).unwrap();
        for (reg, value) in [(Reg::Aqa, u64::from(Aqa::new(15, 15).0)), (Reg::Asq, 0), (Reg::Acq, ACQ)] {
            let bytes = value.to_le_bytes();
            device.write(BAR0, reg.offset(), if reg == Reg::Aqa { &bytes[..4] } else { &bytes });
        }
        device.write(BAR0, Reg::Cc.offset(), &Cc::enable_nvm().0.to_le_bytes());
        Self { device, ram, records, lines, tail: 0 }
    }

    /// Formats a namespace, up to where the drive has what erases it: where on the drive that is.
    fn erase(&mut self, nsid: u32) -> Vec<((u64, u64), Token, IoBuf)> {
        // Opcode, NSID, and zeros.
        let mut entry = [0; 64];
        entry[0] = admin::FORMAT_NVM;
        entry[4..8].copy_from_slice(&nsid.to_le_bytes());
        self.ram.write_at(u64::from(self.tail) * 64, &entry).unwrap();
        self.tail += 1;
        self.device.write(BAR0, DOORBELLS_START, &self.tail.to_le_bytes());
        assert_eq!(self.device.service(), 1);
        self.device.notify();
        let record = self.records.try_recv().unwrap();
        assert_eq!(record.nsid, nsid);
        self.device.order(Order::Recorded(EraseRecord::Format(record), true), &mut ());
        let mut fetched = Vec::new();
        while self.device.backlog(0) > 0 {
            let Fetch::Command(command, buf, token) = self.device.fetch(0) else { panic!("a step of the Format") };
            fetched.push(((command.offset_bytes, command.len_bytes), token, buf));
        }
        fetched
    }

    /// A step of a Sanitize.
    fn step(&mut self) -> (Token, IoBuf) {
        self.device.service();
        assert_eq!(self.device.backlog(0), 1);
        let Fetch::Command(_, buf, token) = self.device.fetch(0) else { panic!("a step of the Sanitize") };
        (token, buf)
    }

    /// Formats, to the end.
    fn format(&mut self, nsid: u32) -> Vec<(u64, u64)> {
        let parts = self.erase(nsid);
        let places = parts.iter().map(|(place, ..)| *place).collect();
        parts.into_iter().for_each(|(_, token, buf)| self.device.complete(token, Ok(()), buf));
        self.device.notify();
        let record = self.records.try_recv().unwrap();
        self.device.order(Order::Recorded(EraseRecord::Format(record), true), &mut ());
        places
    }
}

#[test]
fn commands_follow_a_namespace_that_comes_or_grows() {
    let mut guest = Guest::new();
    assert_eq!(guest.format(1), [(100 * MIB, MIB)]);
    guest.device.order(Order::Grow(1, 2 * MIB, Extents::new([(100 * MIB, MIB), (7 * MIB, MIB)])), &mut ());
    assert_eq!(guest.format(1), [(100 * MIB, MIB), (7 * MIB, MIB)]);
    guest.device.order(Order::Attach(2, namespace(MIB), Extents::one(30 * MIB, MIB)), &mut ());
    assert_eq!(guest.format(2), [(30 * MIB, MIB)]);
    assert!(guest.lines.lock().unwrap().is_empty());
}

#[test]
fn an_order_that_is_refused_moves_nothing_and_is_logged() {
    let mut guest = Guest::new();
    for order in [
        Order::Grow(1, MIB / 2, Extents::one(0, MIB)),
        Order::Attach(1, namespace(MIB), Extents::one(0, MIB)),
        Order::Attach(0, namespace(MIB), Extents::one(0, MIB)),
        Order::Grow(9, MIB, Extents::one(0, MIB)),
    ] {
        guest.device.order(order, &mut ());
        assert!(guest.lines.lock().unwrap().pop().is_some_and(|line| line.starts_with("a: namespace ")));
    }
    assert_eq!(guest.format(1), [(100 * MIB, MIB)]);
}

#[test]
fn a_detached_namespace_is_free_when_the_drive_has_nothing_of_it() {
    let mut guest = Guest::new();
    guest.device.order(Order::Attach(2, namespace(MIB), Extents::one(30 * MIB, MIB)), &mut ());
    let mut parts = guest.erase(2);
    let (done, is_done) = channel();
    let tell = || -> OnDetached {
        let done = done.clone();
        Box::new(move || done.send(()).unwrap())
    };
    guest.device.order(Order::Detach(2, tell()), &mut ());
    guest.device.order(Order::Detach(2, tell()), &mut ());
    assert!(guest.device.settle(&mut ()));
    assert_eq!(is_done.try_recv(), Err(TryRecvError::Empty));
    let (_, token, buf) = parts.remove(0);
    guest.device.complete(token, Ok(()), buf);
    assert!(!guest.device.settle(&mut ()));
    assert_eq!((is_done.try_recv(), is_done.try_recv()), (Ok(()), Ok(())), "both who asked");
    // What is not there is free; 0 is no namespace.
    for nsid in [2, 0, 33] {
        guest.device.order(Order::Detach(nsid, tell()), &mut ());
        assert_eq!(is_done.try_recv(), Ok(()));
    }
    assert_eq!(guest.format(1), [(100 * MIB, MIB)], "the other one is where it was");
}

/// Only here: a VMM that waits for ever, as the drive always has a step.
#[test]
fn a_client_is_answered_while_a_sanitize_goes_on() {
    let running = Sanitize { cdw10: 3 | 1 << 4, pattern: 0, state: SanitizeState::Running };
    let mut guest = Guest::with(Some(running));
    let mut step = guest.step();
    for round in 0..2 {
        let (done, is_done) = channel();
        let (gone, is_gone) = channel();
        match round {
            0 => guest.device.order(Order::Request(Request::Reset, done), &mut ()),
            _ => guest.device.order(Order::Gone(gone), &mut ()),
        }
        assert!(guest.device.settle(&mut ()), "it waits for the drive");
        guest.device.complete(step.0, Ok(()), step.1);
        step = guest.step();
        assert!(!guest.device.settle(&mut ()));
        assert!(is_done.try_recv().is_ok() || is_gone.try_recv().is_ok(), "round {round}");
    }
    guest.device.complete(step.0, Ok(()), step.1);
}

/// What the first of two parts does with an order, before and after the other one has carried it out.
fn in_turn(order: Order, other_does: fn(Order), size_bytes: [Option<u64>; 2]) {
    let mut guest = Guest::new();
    let size = |guest: &Guest| guest.device.controller.config().namespaces.first().map(|(_, it)| it.size_bytes);
    let mut orders = for_parts(order, 2).into_iter();
    guest.device.order(orders.next().unwrap(), &mut ());
    assert!(guest.device.settle(&mut ()), "it waits");
    assert_eq!(size(&guest), size_bytes[0]);
    other_does(orders.next().unwrap());
    assert!(orders.next().is_none() && !guest.device.settle(&mut ()));
    assert_eq!(size(&guest), size_bytes[1]);
}

#[test]
fn the_first_part_tells_the_guest_when_the_other_knows() {
    let grow = Order::Grow(1, 2 * MIB, Extents::new([(100 * MIB, MIB), (7 * MIB, MIB)]));
    in_turn(grow, drop, [Some(MIB), Some(2 * MIB)]);
    let (told, gone) = channel();
    let detached = |order: Order| match order {
        Order::Detach(1, done) => done(),
        _ => panic!("another order"),
    };
    in_turn(Order::Detach(1, Box::new(move || told.send(()).unwrap())), detached, [Some(MIB), None]);
    assert_eq!(gone.try_recv(), Ok(()));
}
