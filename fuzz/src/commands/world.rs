//! Guest, VMM, device and poller around one controller.

mod calls;
mod changes;

use std::collections::BTreeMap;
use std::sync::Arc;

use arbitrary::Arbitrary;
use guest_memory::Mapping;
use io_model::{Command, IoBuf, Source, TenantId, Token};
use nvme_controller::{Controller, ControllerConfig, Doorbells, Interrupts, VECTORS, journal_bytes};
use nvme_spec::regs::{Aqa, Cc, Csts, DOORBELL_BASE, NSSR_RESET, Reg};
use nvme_spec::{PAGE_BYTES, Sqe};

use super::disk::{Answer, Bug, Disk, ERRORS};
use super::meaning::Part;
use super::model::{Cq, Model, Open, Sq, State};
use super::namespaces::{self, Namespace};
use super::program::{Admin, Driver, Place, Reset, Step, Then};
use super::ram::{Ram, SLOTS};

/// Rounds that a program gets to end what it began.
const SETTLE_ROUNDS: usize = 400;

/// I/O queues offered.
const IO_QUEUES: u16 = 4;

/// What the tenant was given.
#[derive(Debug, Arbitrary)]
pub struct Choices {
    big_blocks: bool,
    trapped: bool,
    write_zeroes: bool,
    no_discard: bool,
    no_cache: bool,
    short_transfers: bool,
    /// Big enough for a Format in several steps. Odd: where the guest weights its queues, they are one VQ. A multiple
    /// of three: its second namespace can only be read.
    big: u8,
    /// The upper third of what it can be chooses the arbitration, see [`World::bring_up`].
    pairs: u8,
}

/// Checks that only vectors that exist are raised.
#[derive(Debug)]
pub struct Wires;

impl Interrupts for Wires {
    fn raise(&mut self, vector: u16) {
        assert!(vector < VECTORS, "vector {vector}");
    }
}

/// A device command that has not come back.
struct Flight {
    token: Token,
    command: Command,
    buf: IoBuf,
    part: Part,
    /// The guest command that it belongs to, unless that went with a reset.
    owner: Option<u64>,
    /// Slots and their incarnations whose memory it uses.
    pins: Vec<(usize, u32)>,
}

pub struct World {
    controller: Controller<Wires>,
    config: ControllerConfig,
    bells: Arc<Mapping>,
    journal: Arc<Mapping>,
    ram: Ram,
    disk: Disk,
    model: Model,
    flights: Vec<Flight>,
    namespaces: BTreeMap<u32, Namespace>,
    /// Slots and their incarnations that were unmapped and not reported as quiet.
    retired: Vec<(usize, u32)>,
    /// A reset waits for what is in flight.
    resetting: bool,
    shut_down: bool,
    next_cid: u16,
}

fn config(choices: &Choices) -> ControllerConfig {
    let size_bytes = if choices.big < 8 { 1600 << 10 } else { 192 << 10 };
    let first = namespaces::config(1, size_bytes, choices.big_blocks, false);
    let second = namespaces::config(2, 96 << 10, !choices.big_blocks, choices.big.is_multiple_of(3));
    ControllerConfig {
        serial: "1".into(),
        model: "fuzz".into(),
        firmware: "1".into(),
        subnqn: "nqn.2026-01.io.evenkeel:fuzz".into(),
        tenant: TenantId(0),
        namespaces: vec![(1, first), (2, second)],
        sanitize: None,
        discard: !choices.no_discard,
        write_zeroes: choices.write_zeroes,
        volatile_write_cache: !choices.no_cache,
        max_io_queues: IO_QUEUES,
        max_depth: 64,
        max_transfer_bytes: if choices.short_transfers { 8 << 10 } else { 64 << 10 },
        doorbells: if choices.trapped { Doorbells::Trapped } else { Doorbells::Mapped },
        queues_singly: choices.big & 1 == 0,
        part: nvme_controller::Part::WHOLE,
    }
}

impl World {
    /// A controller that the guest has brought up, and a drive with `bug`.
    pub fn new(choices: &Choices, bug: Option<Bug>) -> Self {
        let config = config(choices);
        let (bells, _) = Mapping::memfd("doorbells", PAGE_BYTES as usize).expect("a memfd");
        let made = Controller::new(config.clone(), Arc::clone(&bells), Wires);
        let mut controller = made.expect("a good configuration");
        let (journal, _) = Mapping::memfd("journal", journal_bytes(&config) as usize).expect("a memfd");
        controller.keep_journal(&journal).expect("long enough");
        let mut world = Self {
            controller,
            bells,
            journal,
            ram: Ram::new(),
            disk: Disk::new(namespaces::drive_bytes(config.namespaces[0].1.size_bytes), bug),
            model: Model::default(),
            flights: Vec::new(),
            namespaces: config.namespaces.iter().map(|(nsid, its)| (*nsid, Namespace::new(*nsid, its))).collect(),
            retired: Vec::new(),
            resetting: false,
            shut_down: false,
            next_cid: 0,
            config,
        };
        world.bring_up(16, choices.pairs);
        world
    }

    /// Panics if a byte of guest memory or of the drive is not what it must be.
    pub fn check(&self) {
        self.ram.check();
        self.disk.check();
    }

    pub fn step(&mut self, step: Step) {
        match step {
            Step::Io { queue, io, then } => {
                // A driver notices that its device was reset, if not at once.
                if self.model.sqs.is_empty() && queue & 1 == 0 {
                    self.bring_up(queue, queue / 2);
                }
                let Some(qid) = self.pick_sq(queue) else { return };
                let sqe = self.driver().io(&io);
                self.push(qid, sqe);
                self.go_on(qid, then);
            }
            Step::Admin { command, then } => {
                let sqe = self.driver().admin(&command);
                self.push(0, sqe);
                self.go_on(0, then);
            }
            Step::Raw { queue, sqe, then } => {
                let qid = if queue & 1 == 0 { self.pick_sq(queue).unwrap_or(0) } else { 0 };
                self.push(qid, bytemuck::pod_read_unaligned(&sqe));
                self.go_on(qid, then);
            }
            Step::Doorbell { queue, head, value, loudly } => {
                let value = if value & 0x8000 == 0 { u32::from(value % 70) } else { u32::from(value) << 4 };
                let qid = if queue < 192 { u16::from(queue % 6) } else { 0 };
                self.ring(qid, head, value, loudly);
            }
            Step::Poll { queue: Some(queue), budget } => self.poll(u16::from(queue % 6), budget),
            Step::Poll { queue: None, budget } => {
                self.poll_all(budget);
            }
            Step::FetchBlindly { queue } => {
                self.fetch_blindly(u16::from(queue % 6));
            }
            Step::Finish { which, answer } => self.finish_one(which.into(), answer_of(answer)),
            Step::Consume { queue } => self.consume(u16::from(queue) % (IO_QUEUES + 1)),
            Step::Scribble { at, words } => self.ram.poke_at(at.iova(), bytemuck::bytes_of(&words)),
            Step::Map { slot, elsewhere } => self.map(usize::from(slot) % SLOTS.len(), elsewhere),
            Step::Unmap { slot } => self.unmap(usize::from(slot) % SLOTS.len()),
            Step::UnmapAll => self.unmap_all(),
            Step::Reset(kind) => self.reset(&kind),
            Step::BringUp { entries, pairs } => self.bring_up(entries, pairs),
            Step::Shutdown => self.shut_down(),
            Step::Sleep(wanted) => self.call(|controller| controller.set_wakeup(wanted)),
            Step::TakeOver => self.take_over(),
            Step::Namespace { which, choice } => self.change_namespace(which, choice),
        }
    }

    fn driver(&mut self) -> Driver<'_> {
        Driver { ram: &mut self.ram, namespaces: &self.namespaces }
    }

    /// One of the I/O submission queues that there are.
    fn pick_sq(&self, choice: u8) -> Option<u16> {
        let qids: Vec<u16> = self.model.sqs.keys().copied().filter(|qid| *qid > 0).collect();
        qids.get(usize::from(choice) % qids.len().max(1)).copied()
    }

    fn go_on(&mut self, qid: u16, then: Then) {
        if matches!(then, Then::Nothing) {
            return;
        }
        self.poll(qid, 3);
        if matches!(then, Then::Fetch) {
            return;
        }
        while !self.flights.is_empty() {
            self.finish_one(0, Answer::OK);
            self.poll(qid, 3);
        }
        if matches!(then, Then::Consume) {
            self.consume(self.model.sqs.get(&qid).map_or(0, |sq| sq.cqid));
        }
    }

    /// Puts a command into a queue and rings.
    fn push(&mut self, qid: u16, mut sqe: Sqe) {
        let Some(sq) = self.model.sqs.get_mut(&qid) else { return };
        self.next_cid = (self.next_cid + 1) % 512;
        sqe.cid = self.next_cid;
        let at = sq.iova.wrapping_add(u64::from(sq.next) * 64);
        sq.next = (sq.next + 1) % sq.entries;
        let tail = sq.next;
        self.ram.poke_at(at, bytemuck::bytes_of(&sqe));
        self.ring(qid, false, tail.into(), self.next_cid & 1 == 0);
    }

    fn ring(&mut self, qid: u16, is_head: bool, value: u32, loudly: bool) {
        let at = 8 * u64::from(qid) + if is_head { 4 } else { 0 };
        if let Some(piece) = self.model.shadow_bell(&self.ram, qid, is_head) {
            self.ram.poke(&piece, &value.to_le_bytes());
        } else if loudly {
            self.call(|controller| controller.bar_write(0, DOORBELL_BASE + at, &value.to_le_bytes()));
        } else {
            self.bells.write_at(at, &value.to_le_bytes()).expect("in the page");
        }
    }

    /// The guest takes everything that was posted to a queue.
    fn consume(&mut self, cqid: u16) {
        if let Some(cq) = self.model.cqs.get(&cqid) {
            self.ring(cqid, true, cq.tail.into(), false);
        }
    }

    fn poll(&mut self, qid: u16, budget: u8) {
        for _ in 0..=budget {
            if !self.fetch(qid) {
                break;
            }
        }
        self.call(Source::notify);
    }

    /// Returns whether anything was fetched.
    fn poll_all(&mut self, budget: u8) -> bool {
        let mut any = false;
        let mut live = self.controller.live_vqs();
        while live != 0 {
            let qid = live.trailing_zeros() as u16;
            live &= live - 1;
            for _ in 0..=budget {
                if !self.fetch(qid) {
                    break;
                }
                any = true;
            }
        }
        self.call(Source::notify);
        any
    }

    fn reg32(&self, reg: Reg) -> u32 {
        let mut out = [0; 4];
        self.controller.bar_read(0, reg.offset(), &mut out);
        u32::from_le_bytes(out)
    }

    fn reg64(&self, reg: Reg) -> u64 {
        let mut out = [0; 8];
        self.controller.bar_read(0, reg.offset(), &mut out);
        u64::from_le_bytes(out)
    }

    fn set32(&mut self, reg: Reg, value: u32) {
        self.call(|controller| controller.bar_write(0, reg.offset(), &value.to_le_bytes()));
    }

    fn set64(&mut self, reg: Reg, value: u64) {
        self.call(|controller| controller.bar_write(0, reg.offset(), &value.to_le_bytes()));
    }

    fn csts(&self) -> Csts {
        Csts(self.reg32(Reg::Csts))
    }

    /// Everything of before is gone from here on.
    fn forget(&mut self) {
        self.model.clear();
        self.namespaces.values_mut().for_each(|namespace| namespace.formatting = None);
        self.resetting = true;
        self.shut_down = false;
        self.flights.iter_mut().for_each(|flight| flight.owner = None);
    }

    fn reset(&mut self, kind: &Reset) {
        match kind {
            Reset::Disable => return self.disable(),
            Reset::ClientGone => {
                let mapped = (0..SLOTS.len()).filter(|slot| self.ram.is_mapped(*slot));
                for slot in mapped.collect::<Vec<_>>() {
                    self.retire(slot);
                }
            }
            Reset::Subsystem | Reset::Function | Reset::Device => {}
        }
        self.forget();
        self.call(|controller| match kind {
            Reset::Subsystem => controller.bar_write(0, Reg::Nssr.offset(), &NSSR_RESET.to_le_bytes()),
            // Device Control of the PCI Express capability, Initiate FLR.
            Reset::Function => controller.config_write(0x58, &0x8000u16.to_le_bytes()),
            Reset::ClientGone => controller.client_gone(),
            _ => controller.reset(),
        });
        assert_eq!(self.reg32(Reg::Cc), 0, "{kind:?} is no reset");
    }

    fn disable(&mut self) {
        let cc = Cc(self.reg32(Reg::Cc));
        if cc.en() {
            self.forget();
            self.set32(Reg::Cc, cc.0 & !Cc::EN);
        }
    }

    fn shut_down(&mut self) {
        let cc = Cc(self.reg32(Reg::Cc));
        // What a shutdown of a disabled controller means, the specification leaves open.
        if cc.en() && !self.shut_down {
            self.shut_down = true;
            self.set32(Reg::Cc, cc.with_shn(Cc::SHN_NORMAL).0);
        }
    }

    /// What a driver does: reset, admin queues, enable, I/O queues.
    fn bring_up(&mut self, entries: u8, pairs: u8) {
        self.disable();
        for slot in (0..SLOTS.len()).filter(|slot| !self.ram.is_mapped(*slot)).collect::<Vec<_>>() {
            self.map(slot, false);
        }
        // Small ones fill up; 0's based.
        let entries = u16::from(if entries < 96 { entries % 3 } else { entries % 32 }) + 1;
        self.set32(Reg::Aqa, Aqa::new(entries, entries).0);
        self.set64(Reg::Asq, SLOTS[0].iova);
        self.set64(Reg::Acq, SLOTS[0].iova + PAGE_BYTES);
        let ams = [Cc::AMS_ROUND_ROBIN, Cc::AMS_WEIGHTED, Cc::AMS_VENDOR][usize::from(pairs / 96)];
        self.set32(Reg::Cc, Cc::enable_nvm().with_ams(ams).0);
        for pair in 0..=pairs % 3 {
            let (qid, size) = (pair + 1, u16::from(pairs / 3 % 32) + 2);
            let at = |page| Place::page(1, 2 * pair + page);
            for command in [
                Admin::CreateCq { qid, entries: size, at: at(0), vector: qid, flags: 0 },
                Admin::CreateSq { qid, cqid: qid, entries: size, at: at(1), flags: 0 },
            ] {
                self.step(Step::Admin { command, then: Then::Consume });
            }
        }
    }

    /// Leaves the state, and goes on from it in a new controller.
    fn take_over(&mut self) {
        self.controller.record();
        if !self.controller.is_idle() || !self.controller.snapshot().is_at_rest() {
            return;
        }
        // With what became of the last Format.
        let config = self.controller.config();
        let taken = Controller::take_over(config, Arc::clone(&self.bells), Wires, &self.journal);
        self.controller = taken.expect("what was recorded");
        self.retired.clear();
        for slot in (0..SLOTS.len()).filter(|slot| self.ram.is_mapped(*slot)) {
            let (slot_at, elsewhere) = (&SLOTS[slot], self.ram.is_elsewhere(slot));
            let mapping = self.ram.mapping(slot, elsewhere);
            let mapped = self.controller.dma_map(slot_at.iova, slot_at.len_bytes, mapping, &mut ());
            assert_eq!(mapped, Ok(()), "slot {slot} after a takeover");
        }
        self.controller.resume();
        self.after_call();
    }

    /// Ends everything that was begun, and checks that it ends.
    pub fn finish(&mut self) {
        while !self.flights.is_empty() {
            self.finish_one(0, Answer::OK);
        }
        for slot in (0..SLOTS.len()).filter(|slot| !self.ram.is_mapped(*slot)).collect::<Vec<_>>() {
            self.map(slot, false);
        }
        for _ in 0..SETTLE_ROUNDS {
            (0..=IO_QUEUES).for_each(|cqid| self.consume(cqid));
            let fetched = self.poll_all(16);
            let idle = self.flights.is_empty();
            while !self.flights.is_empty() {
                self.finish_one(0, Answer::OK);
            }
            if !fetched && idle {
                self.check_settled();
                break;
            }
        }
        self.check();
        assert!(self.controller.is_idle(), "nothing is in flight, and the controller waits for something");
        assert_eq!(self.controller.unmaps_pending(), 0, "an unmapped range is still in use");
    }

    fn check_settled(&self) {
        // A shutdown ends what is with the drive; who shuts down while there is more of a command gets no answer to it.
        let streams = self.model.sqs.values().filter_map(|sq| sq.stream.as_ref());
        let streams: Vec<_> = streams.map(|(serial, _)| *serial).collect();
        let is_cut = |open: &Open| open.state == State::Formatting || streams.contains(&open.serial);
        let open = self.model.open.iter().filter(|open| !(open.is_held() || self.shut_down && is_cut(open)));
        let waiting: Vec<_> = open.collect();
        assert!(waiting.is_empty(), "never completed: {waiting:?}");
        if self.shut_down || !self.csts().rdy() || self.model.cqs.values().any(|cq| cq.blurred) {
            return;
        }
        for (qid, sq) in &self.model.sqs {
            let reachable = self.model.sq_ring(&self.ram, *qid).is_some();
            assert!(!reachable || !sq.has_news(), "queue {qid} is not served: {sq:?}");
        }
    }

    /// The admin queues that an enabled controller has.
    fn add_admin_queues(&mut self) {
        let (aqa, asq, acq) = (Aqa(self.reg32(Reg::Aqa)), self.reg64(Reg::Asq), self.reg64(Reg::Acq));
        self.model.cqs.insert(0, Cq::new(aqa.acqs() + 1, acq));
        self.model.sqs.insert(0, Sq::new(0, aqa.asqs() + 1, asq));
        if let Some(ring) = self.model.cq_ring(&self.ram, 0) {
            Model::poison(&mut self.ram, &ring);
        }
    }
}

impl Drop for World {
    /// A harness that failed leaves commands in flight; they are not the controller's to lose.
    fn drop(&mut self) {
        self.flights.drain(..).for_each(|flight| {
            flight.token.spend();
        });
    }
}

fn answer_of(choice: u8) -> Answer {
    match choice {
        0..200 => Answer { outcome: Ok(()), works: choice & 1 == 0 },
        _ => Answer { outcome: Err(ERRORS[usize::from(choice) % ERRORS.len()]), works: choice & 8 == 0 },
    }
}
