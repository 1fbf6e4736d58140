//! One guest, over as many lives of its controller as it takes.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bytemuck::Zeroable;
use io_model::Source;
use nvme_controller::{ControllerConfig, Crash, Doorbells, Part, crash_at};
use nvme_spec::data::DsmRange;
use nvme_spec::identify::cns;
use nvme_spec::log::lid;
use nvme_spec::opcode::{admin, dsm, nvm};
use nvme_spec::regs::{Cc, Reg};
use nvme_spec::{Cqe, Sqe, Status};

use crate::expect::Expect;
use crate::host::{BASE_BYTES, Host, SIZE_BYTES, config, execute, flush, rw};

/// I/O queues that are always there. The third completes to the first one's completion queue.
const QUEUES: u16 = 3;
/// Entries of the longest queues. Short ones, which are soon full, show what is miscounted.
const ENTRIES: u16 = 16;
/// A queue pair that comes and goes.
const EXTRA: u16 = 4;
const MAX_BYTES: u64 = 16 * 512;
/// Guest buffers: one per command in flight.
const BUFFERS: u64 = 64;
const BUFFER_BYTES: u64 = 8192;
/// Of a step's stores, the process dies before one of so many, in half of the steps.
const SPREAD: u64 = 24;
/// A step or a takeover is cut off so many times in a row at most.
const PATIENCE: u32 = 4;

/// So often a guest looks for what is to come, at most.
const LOOKS: u32 = 1000;

/// When the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deaths {
    Random,
    /// Before this store since the start, counted from 1, and never again.
    Once(u64),
}

struct Pending {
    expect: Expect,
    /// Its guest buffer, by index.
    buffer: Option<u64>,
    /// Bytes of the disk that it uses.
    range: Range<usize>,
}

/// What becomes of the queue pair that comes and goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extra {
    Absent,
    MakingCq,
    HasCq,
    MakingSq,
    There,
    DeletingSq,
    WithoutSq,
    DeletingCq,
}

/// An admin command in flight.
#[derive(Debug)]
enum Admin {
    Plain,
    Event,
    Queue { next: Extra, made: Option<Sqe> },
    Format,
}

pub struct Run {
    random: fastrand::Rng,
    /// Beside the other, so that where it dies changes nothing of what the guest does.
    chance: fastrand::Rng,
    host: Host,
    config: ControllerConfig,
    /// Of an I/O submission queue, and of a completion queue.
    entries: [u16; 2],
    model: Vec<u8>,
    buffers: u64,
    page: u64,
    free: Vec<u64>,
    pending: HashMap<(u16, u16), Pending>,
    admin: HashMap<u16, Admin>,
    extra: Extra,
    deaths: Deaths,
    died: u64,
    done: u64,
}

impl Run {
    pub fn new(seed: u64, deaths: Deaths) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let doorbells = if random.bool() { Doorbells::Mapped } else { Doorbells::Trapped };
        let write_zeroes = random.bool();
        let part = Part { index: 0, of: random.u16(1..=EXTRA) };
        let config = ControllerConfig { doorbells, write_zeroes, max_io_queues: 8, max_depth: 32, part, ..config() };
        let entries = [3 + random.u16(..ENTRIES - 2), 3 + random.u16(..2 * ENTRIES - 2)];
        let mut host = Host::new(config.clone());
        host.disk[BASE_BYTES as usize..][..SIZE_BYTES as usize].fill(0);
        let buffers = host.alloc(BUFFERS * BUFFER_BYTES);
        let page = host.alloc(64 << 10);
        let mut this = Self {
            chance: fastrand::Rng::with_seed(!seed),
            model: host.disk.clone(),
            random,
            host,
            config,
            entries,
            buffers,
            page,
            free: (0..BUFFERS).collect(),
            pending: HashMap::new(),
            admin: HashMap::new(),
            extra: Extra::Absent,
            deaths,
            died: 0,
            done: 0,
        };
        if let Deaths::Once(point) = deaths {
            crash_at(Some(point));
        }
        this.bring_up();
        this
    }

    /// Has the controller do something, in as many lives as it takes. What a message asked for is asked again, as
    /// long as it is not answered.
    fn live<T>(&mut self, act: impl Fn(&mut Host) -> T) -> T {
        let mut cut_off = 0;
        loop {
            if self.deaths == Deaths::Random {
                let dies = cut_off < PATIENCE && self.chance.bool();
                crash_at(dies.then(|| 1 + self.chance.u64(..SPREAD)));
            }
            let did = catch_unwind(AssertUnwindSafe(|| act(&mut self.host)));
            if self.deaths == Deaths::Random {
                crash_at(None);
            }
            match did {
                Ok(did) => return did,
                Err(died) if died.is::<Crash>() => {
                    self.died += 1;
                    self.succeed();
                }
                Err(other) => resume_unwind(other),
            }
            cut_off += 1;
        }
    }

    /// The process has ended. What the drive had it did, or not; then the next process takes over, which may die of it.
    fn succeed(&mut self) {
        let Host { in_flight, disk, .. } = &mut self.host;
        for (_, command, buf) in in_flight.iter() {
            if self.chance.bool() {
                execute(disk, command, buf).expect("on the disk");
            }
        }
        // The next one has as many parts as it likes, but for a Format, which takes one.
        if self.chance.u64(..4) == 0 && !self.admin.values().any(|admin| matches!(admin, Admin::Format)) {
            self.config.part.of = self.chance.u16(1..=EXTRA);
        }
        for tries in 0.. {
            if self.deaths == Deaths::Random {
                let dies = tries < PATIENCE && self.chance.u64(..4) == 0;
                crash_at(dies.then(|| 1 + self.chance.u64(..SPREAD)));
            }
            let (host, config) = (&mut self.host, &self.config);
            let did = catch_unwind(AssertUnwindSafe(|| {
                host.take_over(config.clone()).expect("what a process left");
                host.wire();
            }));
            if self.deaths == Deaths::Random {
                crash_at(None);
            }
            match did {
                Ok(()) => return,
                Err(died) if died.is::<Crash>() => self.died += 1,
                Err(other) => resume_unwind(other),
            }
        }
    }

    fn set(&mut self, reg: Reg, value: u64, bytes: usize) {
        self.live(|host| {
            host.controller.bar_write(0, reg.offset(), &value.to_le_bytes()[..bytes]);
            host.controller.record();
        });
    }

    fn bring_up(&mut self) {
        self.live(|host| {
            host.controller.set_msix_armed(true);
            host.controller.record();
        });
        let (sq, cq) = self.host.prepare_admin(ENTRIES);
        self.set(Reg::Aqa, u64::from(nvme_spec::regs::Aqa::new(ENTRIES - 1, ENTRIES - 1).0), 4);
        self.set(Reg::Asq, sq, 8);
        self.set(Reg::Acq, cq, 8);
        self.set(Reg::Cc, u64::from(Cc::enable_nvm().0), 4);
        while !self.host.csts().rdy() {
            self.live(Host::run);
        }
        let [sq_entries, cq_entries] = self.entries;
        for qid in 1..=QUEUES {
            let cqid = if qid == 3 { 1 } else { qid };
            if cqid == qid {
                let sqe = self.host.create_cq_sqe(qid, cq_entries, qid);
                self.admin_now(sqe);
                self.host.track_cq(&sqe);
            }
            let sqe = self.host.create_sq_sqe(qid, sq_entries, cqid);
            self.admin_now(sqe);
            self.host.track_sq(&sqe);
        }
        if self.random.bool() {
            let pages = [self.host.alloc(4096), self.host.alloc(4096)];
            self.admin_now(Sqe { opc: admin::DOORBELL_BUFFER_CONFIG, dptr: pages, ..Sqe::zeroed() });
            self.host.shadow = Some(pages[0]);
        }
    }

    /// An admin command, to its end.
    fn admin_now(&mut self, sqe: Sqe) {
        let cid = self.host.push(0, sqe);
        self.admin.insert(cid, Admin::Plain);
        self.ring(0);
        for _ in 0..LOOKS {
            self.live(Host::run);
            self.reap();
            if !self.admin.contains_key(&cid) {
                return;
            }
        }
        panic!("an admin command is not completed: {sqe:?}");
    }

    /// Rings as a guest does: into a page, or by a message where that is trapped.
    fn ring(&mut self, qid: u16) {
        let tail = self.host.sqs[&qid].tail;
        if self.config.doorbells == Doorbells::Trapped && (self.host.shadow.is_none() || qid == 0) {
            return self.live(|host| {
                host.controller.bar_write(0, 0x1000 + 8 * u64::from(qid), &u32::from(tail).to_le_bytes())
            });
        }
        self.host.ring(qid);
    }

    pub fn step(&mut self) {
        match self.random.u64(..24) {
            0..=9 => self.submit(),
            10..=12 => _ = self.live(Host::fetch_all),
            13..=16 => self.finish_some(),
            17..=19 => self.reap(),
            20..=21 => self.ask_admin(),
            22 if self.random.bool() => self.leave(),
            22 => self.sleep(),
            _ if self.random.u64(..8) == 0 => self.reset(),
            _ if self.random.u64(..6) == 0 => self.format(),
            _ => self.come_and_go(),
        }
    }

    /// Everything that is in flight ends. Returns how often the process died.
    pub fn end(mut self) -> u64 {
        self.drain();
        assert!(self.host.disk == self.model, "the disk differs from the model");
        assert!(self.done > 0, "the run did nothing");
        crash_at(None);
        self.died
    }

    fn drain(&mut self) {
        let is_event = |admin: &Admin| matches!(admin, Admin::Event);
        for _ in 0..LOOKS {
            if self.pending.is_empty() && self.admin.values().all(is_event) {
                return;
            }
            self.live(Host::run);
            self.reap();
        }
        let lost: Vec<_> = self.pending.keys().collect();
        panic!("commands are not completed: {lost:?}, and of the admin queue {:?}", self.admin);
    }

    fn finish_some(&mut self) {
        let many = self.random.usize(..6);
        self.live(|host| {
            for _ in 0..many.min(host.in_flight.len()) {
                host.finish_one();
            }
            host.wire();
            host.controller.notify();
        });
    }

    /// The process ends in order, once nothing is in flight: another one goes on.
    fn leave(&mut self) {
        self.live(|host| {
            host.finish_all();
            host.controller.record();
        });
        self.succeed();
    }

    /// The poller sleeps and wakes, and looks at what was rung meanwhile.
    fn sleep(&mut self) {
        self.live(|host| {
            host.controller.set_wakeup(true);
            host.controller.set_wakeup(false);
            host.fetch_all();
        });
    }

    fn submit(&mut self) {
        let queues = if self.extra == Extra::There { QUEUES + 1 } else { QUEUES };
        let qid = 1 + self.random.u16(..queues);
        let outstanding = self.pending.keys().filter(|(queue, _)| *queue == qid).count();
        let is_formatting = self.admin.values().any(|admin| matches!(admin, Admin::Format));
        if outstanding + 1 >= usize::from(self.entries[0]) || is_formatting {
            return;
        }
        let blocks = 1 + self.random.u64(..MAX_BYTES / 512);
        let slba = self.random.u64(..SIZE_BYTES / 512 - blocks + 1);
        let start = (BASE_BYTES + slba * 512) as usize;
        let range = start..start + (blocks * 512) as usize;
        let overlaps = |other: &Pending| range.start < other.range.end && other.range.start < range.end;
        if self.pending.values().any(overlaps) {
            return;
        }
        match self.random.u64(..12) {
            0..=6 => self.transfer(qid, slba, blocks, range),
            7 if self.config.write_zeroes => {
                self.model[range.clone()].fill(0);
                self.send(qid, rw(nvm::WRITE_ZEROES, slba, blocks as u32), Expect::Success, None, range);
            }
            7 | 8 => self.send(qid, flush(), Expect::Success, None, 0..0),
            9 | 10 => self.discard(qid, slba, blocks, range),
            _ => {
                let sqe = rw(nvm::READ, SIZE_BYTES / 512, 1);
                self.send(qid, sqe, Expect::Failure(Status::LBA_OUT_OF_RANGE), None, 0..0);
            }
        }
    }

    fn transfer(&mut self, qid: u16, slba: u64, blocks: u64, range: Range<usize>) {
        let Some(buffer) = self.free.pop() else { return };
        let (at, len) = (self.buffers + buffer * BUFFER_BYTES, range.len() as u64);
        let (opc, salt) = ([nvm::READ, nvm::WRITE, nvm::COMPARE][self.random.usize(..3)], self.random.u64(..));
        let expect = Expect::transfer(&self.host, &mut self.model, opc, at, range.clone(), salt);
        // Two pages at most, so that no list is needed.
        let dptr = [at, if len > 4096 { at + 4096 } else { 0 }];
        self.send(qid, Sqe { dptr, ..rw(opc, slba, blocks as u32) }, expect, Some(buffer), range);
    }

    /// In up to three ranges.
    fn discard(&mut self, qid: u16, slba: u64, blocks: u64, range: Range<usize>) {
        let Some(buffer) = self.free.pop() else { return };
        let at = self.buffers + buffer * BUFFER_BYTES;
        let parts = 1 + self.random.u64(..3).min(blocks - 1);
        let mut ranges = Vec::new();
        for part in 0..parts {
            let (from, to) = (blocks * part / parts, blocks * (part + 1) / parts);
            ranges.push(DsmRange { slba: slba + from, nlb: (to - from) as u32, ..DsmRange::default() });
        }
        self.host.write(at, bytemuck::cast_slice(&ranges));
        self.model[range.clone()].fill(0);
        let (cdw10, cdw11) = (parts as u32 - 1, dsm::AD);
        let sqe = Sqe { opc: nvm::DATASET_MANAGEMENT, nsid: 1, dptr: [at, 0], cdw10, cdw11, ..Sqe::zeroed() };
        self.send(qid, sqe, Expect::Success, Some(buffer), range);
    }

    fn send(&mut self, qid: u16, sqe: Sqe, expect: Expect, buffer: Option<u64>, range: Range<usize>) {
        let cid = self.host.push(qid, sqe);
        self.pending.insert((qid, cid), Pending { expect, buffer, range });
        self.ring(qid);
    }

    fn ask(&mut self, sqe: Sqe, what: Admin) {
        if self.admin.len() + 2 >= usize::from(ENTRIES) {
            return;
        }
        let cid = self.host.push(0, sqe);
        self.admin.insert(cid, what);
        self.ring(0);
    }

    fn ask_admin(&mut self) {
        let page = self.page;
        match self.random.u64(..5) {
            0 => self.ask(
                Sqe { opc: admin::IDENTIFY, cdw10: cns::CONTROLLER.into(), dptr: [page, 0], ..Sqe::zeroed() },
                Admin::Plain,
            ),
            1 => {
                // An answer of more than one look.
                let dptr = self.host.prps(page, 48 << 10);
                let cdw10 = u32::from(lid::ERROR) | ((48 << 10) / 4 - 1) << 16;
                self.ask(Sqe { opc: admin::GET_LOG_PAGE, cdw10, dptr, ..Sqe::zeroed() }, Admin::Plain);
            }
            2 if self.admin.values().filter(|it| matches!(it, Admin::Event)).count() < 2 => {
                self.ask(Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::zeroed() }, Admin::Event);
            }
            3 => self.live(|host| host.controller.bar_write(0, 0x1000 + 8 * 60, &1u32.to_le_bytes())),
            _ => self.ask(Sqe { opc: admin::KEEP_ALIVE, ..Sqe::zeroed() }, Admin::Plain),
        }
    }

    /// The extra queue pair's next step.
    fn come_and_go(&mut self) {
        let delete = |opc| Sqe { opc, cdw10: EXTRA.into(), ..Sqe::zeroed() };
        let [sq_entries, cq_entries] = self.entries;
        let (sqe, now, next, is_made) = match self.extra {
            Extra::Absent => (self.host.create_cq_sqe(EXTRA, cq_entries, EXTRA), Extra::MakingCq, Extra::HasCq, true),
            Extra::HasCq => (self.host.create_sq_sqe(EXTRA, sq_entries, EXTRA), Extra::MakingSq, Extra::There, true),
            // What is in flight ends first, as the deletion has it.
            Extra::There => (delete(admin::DELETE_SQ), Extra::DeletingSq, Extra::WithoutSq, false),
            Extra::WithoutSq if self.pending.keys().any(|(qid, _)| *qid == EXTRA) => return,
            Extra::WithoutSq => (delete(admin::DELETE_CQ), Extra::DeletingCq, Extra::Absent, false),
            _ => return,
        };
        if self.admin.len() + 2 < usize::from(ENTRIES) {
            self.extra = now;
            self.ask(sqe, Admin::Queue { next, made: is_made.then_some(sqe) });
        }
    }

    fn format(&mut self) {
        if !self.pending.is_empty() || !self.admin.is_empty() || self.config.part != Part::WHOLE {
            return;
        }
        self.model[BASE_BYTES as usize..][..SIZE_BYTES as usize].fill(0);
        self.ask(Sqe { opc: admin::FORMAT_NVM, nsid: 1, ..Sqe::zeroed() }, Admin::Format);
    }

    /// What was in flight is lost with a reset: its ranges hold anything.
    fn reset(&mut self) {
        if self.admin.values().any(|admin| matches!(admin, Admin::Format)) {
            return;
        }
        self.set(Reg::Cc, 0, 4);
        self.live(Host::finish_all);
        assert!(!self.host.csts().rdy(), "ready although nothing is in flight");
        for (_, Pending { buffer, range, .. }) in std::mem::take(&mut self.pending) {
            self.model[range.clone()].copy_from_slice(&self.host.disk[range]);
            self.free.extend(buffer);
        }
        self.admin.clear();
        self.extra = Extra::Absent;
        self.host.vectors.take();
        self.bring_up();
    }

    /// Looks at the completion queues that it was told of.
    fn reap(&mut self) {
        let mut told = self.host.vectors.take();
        told.sort_unstable();
        told.dedup();
        for cqid in told {
            if !self.host.cqs.contains_key(&cqid) {
                continue;
            }
            while let Some(cqe) = self.next_completion(cqid) {
                if cqe.sqid == 0 {
                    self.ended_admin(&cqe)
                } else {
                    self.ended(&cqe)
                }
                self.done += 1;
            }
        }
    }

    fn next_completion(&mut self, cqid: u16) -> Option<Cqe> {
        let is_trapped = self.config.doorbells == Doorbells::Trapped && (self.host.shadow.is_none() || cqid == 0);
        let cqe = self.host.next_completion(cqid)?;
        if is_trapped {
            let head = u32::from(self.host.cqs[&cqid].head);
            self.live(|host| host.controller.bar_write(0, 0x1000 + 8 * u64::from(cqid) + 4, &head.to_le_bytes()));
        }
        Some(cqe)
    }

    fn ended(&mut self, cqe: &Cqe) {
        let known = self.pending.remove(&(cqe.sqid, cqe.cid));
        let Pending { expect, buffer, range } = known.expect("a command that was sent, once");
        if cqe.status().code() == Status::ABORTED_SQ_DELETION {
            // Its queue was deleted before it was all done.
            self.model[range.clone()].copy_from_slice(&self.host.disk[range]);
        } else {
            expect.check(&self.host, cqe);
        }
        self.free.extend(buffer);
    }

    fn ended_admin(&mut self, cqe: &Cqe) {
        let what = self.admin.remove(&cqe.cid).expect("an admin command that was sent, once");
        assert_eq!(cqe.status(), Status::SUCCESS);
        let Admin::Queue { next, made } = what else { return };
        self.extra = next;
        match (next, made) {
            (Extra::HasCq, Some(sqe)) => self.host.track_cq(&sqe),
            (Extra::There, Some(sqe)) => self.host.track_sq(&sqe),
            // Commands that were in its ring, and not fetched, are forgotten with it.
            (Extra::WithoutSq, _) => self.forget_unfetched(),
            (Extra::Absent, _) => _ = self.host.cqs.remove(&EXTRA),
            _ => {}
        }
    }

    /// Of the extra queue: what has no completion by the time that its deletion has one never gets any.
    fn forget_unfetched(&mut self) {
        while let Some(cqe) = self.next_completion(EXTRA) {
            self.ended(&cqe);
        }
        let lost: Vec<_> = self.pending.keys().copied().filter(|(qid, _)| *qid == EXTRA).collect();
        for key in lost {
            let Some(Pending { buffer, range, .. }) = self.pending.remove(&key) else { continue };
            self.model[range.clone()].copy_from_slice(&self.host.disk[range]);
            self.free.extend(buffer);
        }
        self.host.sqs.remove(&EXTRA);
    }
}
