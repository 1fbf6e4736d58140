//! A host for the controller under test: guest memory, rings, doorbells, and a disk behind it.

#[path = "rig.rs"]
mod rig;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytemuck::Zeroable;
use guest_memory::{IoBuf, Mapping};
use io_model::{Command, DeviceError, Fetch, Op, Outcome, Place, Source, TenantId, Token};
use nvme_controller::{
    ControllerConfig, Doorbells, EraseRecord, Event, FormatRecord, Interrupts, NamespaceConfig, Part, StateError,
    journal_bytes,
};
use nvme_spec::opcode::{create, nvm};
use nvme_spec::regs::{Aqa, Cc, Csts, Reg};
use nvme_spec::{Cqe, Sqe, Status};
use test_clients::rings::{Cq, Memory, Sq, create_cq, create_sq};

use self::rig::Rig;

/// Where guest memory is mapped for DMA.
pub const RAM_IOVA: u64 = 0x10_0000;
pub const RAM_BYTES: u64 = 64 << 20;
/// The tenant's part of the disk, with a guard on both sides.
pub const BASE_BYTES: u64 = 1 << 20;
pub const SIZE_BYTES: u64 = 8 << 20;
/// From one namespace's start to the next one's, but for the first. None is longer than half of it.
pub const OTHERS_BYTES: u64 = 1 << 20;
pub const PLACE: Place = Place { tenant: TenantId(3), disk: 0, base_bytes: BASE_BYTES };
pub const GUARD: u8 = 0xa5;

/// Records which vectors were raised, and says whether there is a pin.
#[derive(Debug, Clone, Default)]
pub struct Vectors(pub Arc<Mutex<Vec<u16>>>, pub Arc<AtomicBool>);

impl Interrupts for Vectors {
    fn raise(&mut self, vector: u16) {
        self.0.lock().expect("not poisoned").push(vector);
    }

    fn has_pin(&self) -> bool {
        self.1.load(Ordering::Relaxed)
    }
}

impl Vectors {
    pub fn take(&self) -> Vec<u16> {
        std::mem::take(&mut self.0.lock().expect("not poisoned"))
    }
}

/// Where a namespace lies on the disk: the first one, a guard, and then the others with one behind each.
pub fn base_of(nsid: u32) -> u64 {
    if nsid == 1 { BASE_BYTES } else { 2 * BASE_BYTES + SIZE_BYTES + u64::from(nsid - 2) * OTHERS_BYTES }
}

/// A namespace where it belongs, of blocks of 512 bytes or 4 KiB.
pub fn namespace(nsid: u32, size_bytes: u64, lba_bytes: u32) -> NamespaceConfig {
    NamespaceConfig {
        base_bytes: base_of(nsid),
        size_bytes,
        lba_bytes,
        lba_sizes: vec![512, 4096],
        read_only: false,
        shared: false,
        elsewhere: false,
        nguid: None,
        format_cut_short: false,
        erases_by_key: false,
    }
}

pub fn config() -> ControllerConfig {
    ControllerConfig {
        serial: "EK0001".into(),
        model: "Evenkeel virtual drive".into(),
        firmware: "1.0".into(),
        subnqn: "nqn.2026-01.io.evenkeel:test".into(),
        tenant: PLACE.tenant,
        namespaces: vec![(1, namespace(1, SIZE_BYTES, 512))],
        sanitize: None,
        discard: true,
        write_zeroes: true,
        volatile_write_cache: true,
        max_io_queues: 64,
        max_depth: 1024,
        max_transfer_bytes: 1 << 20,
        doorbells: Doorbells::Mapped,
        queues_singly: false,
        part: Part::WHOLE,
    }
}

/// Guest memory by its addresses.
struct Ram<'a>(&'a Mapping);

impl Memory for Ram<'_> {
    fn read(&self, address: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(address - RAM_IOVA, out)
    }

    fn write(&self, address: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(address - RAM_IOVA, data)
    }
}

pub struct Host {
    pub controller: Rig,
    pub vectors: Vectors,
    /// The host's own view of its memory; the controller has another of the same file.
    pub ram: Arc<Mapping>,
    pub ram_fd: OwnedFd,
    pub doorbells: Arc<Mapping>,
    /// What outlives the controller.
    pub journal: Option<Arc<Mapping>>,
    pub sqs: HashMap<u16, Sq>,
    pub cqs: HashMap<u16, Cq>,
    pub in_flight: Vec<(Token, Command, IoBuf)>,
    pub disk: Vec<u8>,
    /// Device commands in the order they were fetched.
    pub seen: Vec<Command>,
    /// What the device answers instead of doing the next commands.
    pub fail: Option<DeviceError>,
    /// Shadow doorbell page, once configured.
    pub shadow: Option<u64>,
    /// What the wiring was told, oldest first.
    pub events: Vec<Event>,
    /// How the wiring answers records of Formats. `None`: not by itself.
    pub records: Option<bool>,
    next_page: u64,
    next_cid: u16,
}

impl Host {
    pub fn new(config: ControllerConfig) -> Self {
        let (journal, _) = Mapping::memfd("journal", journal_bytes(&config) as usize).expect("memfd");
        let mut host = Self::without_journal(config);
        host.controller.keep_journal(&journal).expect("long enough");
        host.journal = Some(journal);
        host
    }

    pub fn without_journal(config: ControllerConfig) -> Self {
        let (ram, ram_fd) = Mapping::memfd("ram", RAM_BYTES as usize).expect("memfd");
        let (doorbells, _) = Mapping::memfd("doorbells", 4096).expect("memfd");
        let vectors = Vectors::default();
        let last = config.namespaces.iter().map(|(nsid, _)| *nsid).max().unwrap_or(1);
        let end = base_of(last + 1) as usize;
        let controller = Rig::new(&config, &doorbells, &vectors);
        let mut host = Self {
            controller,
            vectors,
            ram,
            ram_fd,
            doorbells,
            journal: None,
            sqs: HashMap::new(),
            cqs: HashMap::new(),
            in_flight: Vec::new(),
            disk: vec![GUARD; end],
            seen: Vec::new(),
            fail: None,
            shadow: None,
            events: Vec::new(),
            records: Some(true),
            next_page: RAM_IOVA,
            next_cid: 0,
        };
        host.map_ram();
        host
    }

    /// Replaces this controller by one that knows only what outlives it. The drive may have executed its commands or
    /// not, and answers none.
    pub fn take_over(&mut self, config: ControllerConfig) -> Result<(), StateError> {
        let journal = self.journal.as_ref().expect("one that keeps a journal");
        self.controller.forget_tokens();
        self.controller = Rig::take_over(&config, &self.doorbells, &self.vectors, journal)?;
        self.in_flight.drain(..).for_each(|(token, ..)| _ = token.spend());
        self.map_ram();
        self.controller.resume();
        Ok(())
    }

    pub fn map_ram(&mut self) {
        let mapping = Mapping::shared(self.ram_fd.as_fd(), 0, RAM_BYTES, true).expect("mappable");
        self.controller.dma_map(RAM_IOVA, RAM_BYTES, Some(mapping), &mut ()).expect("nothing else there");
    }

    /// A host that brought its controller up, with one I/O queue pair of 64 entries.
    pub fn ready() -> Self {
        Self::ready_with(config())
    }

    pub fn ready_with(config: ControllerConfig) -> Self {
        let mut host = Self::new(config);
        host.enable(32);
        host.create_pair(1, 64);
        host
    }

    /// Fresh, zeroed, page-aligned guest memory.
    pub fn alloc(&mut self, bytes: u64) -> u64 {
        let at = self.next_page;
        self.next_page += bytes.next_multiple_of(4096);
        assert!(self.next_page <= RAM_IOVA + RAM_BYTES, "the test's guest is out of memory");
        self.write(at, &vec![0; bytes as usize]);
        at
    }

    /// Starts handing out guest memory from here again.
    pub fn set_next_page(&mut self, iova: u64) {
        self.next_page = iova;
    }

    pub fn write(&self, iova: u64, data: &[u8]) {
        self.ram.write_at(iova - RAM_IOVA, data).expect("in guest memory");
    }

    pub fn read(&self, iova: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.ram.read_at(iova - RAM_IOVA, &mut out).expect("in guest memory");
        out
    }

    pub fn reg32(&self, reg: Reg) -> u32 {
        let mut out = [0; 4];
        self.controller.bar_read(0, reg.offset(), &mut out);
        u32::from_le_bytes(out)
    }

    pub fn reg64(&self, reg: Reg) -> u64 {
        let mut out = [0; 8];
        self.controller.bar_read(0, reg.offset(), &mut out);
        u64::from_le_bytes(out)
    }

    pub fn set32(&mut self, reg: Reg, value: u32) {
        self.controller.bar_write(0, reg.offset(), &value.to_le_bytes());
    }

    pub fn set64(&mut self, reg: Reg, value: u64) {
        self.controller.bar_write(0, reg.offset(), &value.to_le_bytes());
    }

    pub fn csts(&self) -> Csts {
        Csts(self.reg32(Reg::Csts))
    }

    pub fn enable(&mut self, entries: u16) {
        self.enable_with(entries, Cc::enable_nvm());
    }

    pub fn enable_with(&mut self, entries: u16, cc: Cc) {
        let (sq, cq) = self.prepare_admin(entries);
        self.set32(Reg::Aqa, Aqa::new(entries - 1, entries - 1).0);
        self.set64(Reg::Asq, sq);
        self.set64(Reg::Acq, cq);
        self.set32(Reg::Cc, cc.0);
    }

    /// Rings for an admin queue, which is the only one then: of submissions and of completions.
    pub fn prepare_admin(&mut self, entries: u16) -> (u64, u64) {
        let (sq, cq) = (self.alloc(u64::from(entries) * 64), self.alloc(u64::from(entries) * 16));
        self.shadow = None;
        self.sqs.clear();
        self.cqs.clear();
        self.sqs.insert(0, Sq::new(sq, entries, 0));
        self.cqs.insert(0, Cq::new(cq, entries));
        (sq, cq)
    }

    /// The completion queue that a command made.
    pub fn track_cq(&mut self, sqe: &Sqe) {
        let (qid, entries) = (sqe.cdw10 as u16, (sqe.cdw10 >> 16) as u16 + 1);
        self.cqs.insert(qid, Cq::new(sqe.dptr[0], entries));
    }

    /// The submission queue that a command made.
    pub fn track_sq(&mut self, sqe: &Sqe) {
        let (qid, entries, cqid) = (sqe.cdw10 as u16, (sqe.cdw10 >> 16) as u16 + 1, (sqe.cdw11 >> 16) as u16);
        self.sqs.insert(qid, Sq::new(sqe.dptr[0], entries, cqid));
    }

    pub fn create_cq_sqe(&mut self, qid: u16, entries: u16, vector: u16) -> Sqe {
        let iova = self.alloc(u64::from(entries) * 16);
        create_cq(qid, entries, iova, create::PC | create::IEN | u32::from(vector) << 16)
    }

    pub fn create_sq_sqe(&mut self, qid: u16, entries: u16, cqid: u16) -> Sqe {
        let iova = self.alloc(u64::from(entries) * 64);
        create_sq(qid, entries, iova, cqid)
    }

    pub fn create_pair(&mut self, qid: u16, entries: u16) {
        self.create_pair_with(qid, entries, create::QPRIO_URGENT);
    }

    pub fn create_pair_with(&mut self, qid: u16, entries: u16, qprio: u8) {
        let cq = self.create_cq_sqe(qid, entries, qid);
        assert_eq!(self.admin(cq).status(), Status::SUCCESS);
        self.track_cq(&cq);
        self.create_sq_with(qid, entries, qid, qprio);
    }

    pub fn create_sq(&mut self, qid: u16, entries: u16, cqid: u16) {
        self.create_sq_with(qid, entries, cqid, create::QPRIO_URGENT);
    }

    pub fn create_sq_with(&mut self, qid: u16, entries: u16, cqid: u16, qprio: u8) {
        let mut sq = self.create_sq_sqe(qid, entries, cqid);
        sq.cdw11 |= u32::from(qprio) << create::QPRIO_SHIFT;
        assert_eq!(self.admin(sq).status(), Status::SUCCESS);
        self.track_sq(&sq);
    }

    pub fn store_bell(&self, qid: u16, head: bool, value: u32) {
        let at = 8 * u64::from(qid) + if head { 4 } else { 0 };
        match self.shadow.filter(|_| qid > 0) {
            Some(shadow) => self.write(shadow + at, &value.to_le_bytes()),
            None => self.doorbells.write_at(at, &value.to_le_bytes()).expect("in the page"),
        }
    }

    /// Puts a command into a ring, without ringing. Returns its CID.
    pub fn push(&mut self, qid: u16, mut sqe: Sqe) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        sqe.cid = self.next_cid;
        self.sqs.get_mut(&qid).expect("a queue").push(&Ram(&self.ram), &sqe).expect("in guest memory");
        sqe.cid
    }

    pub fn ring(&mut self, qid: u16) {
        let tail = self.sqs[&qid].tail;
        self.store_bell(qid, false, tail.into());
    }

    pub fn submit(&mut self, qid: u16, sqe: Sqe) -> u16 {
        let cid = self.push(qid, sqe);
        self.ring(qid);
        cid
    }

    /// Fetches everything that there is, and keeps it in flight. Returns how many commands left the rings
    /// or were yielded.
    pub fn fetch_all(&mut self) -> usize {
        let mut fetched = 0;
        while self.controller.service() > 0 {
            fetched += 1;
        }
        self.wire();
        let mut live = self.controller.live_vqs();
        while live != 0 {
            let vq = live.trailing_zeros() as u16;
            live &= live - 1;
            while self.controller.backlog(vq) > 0 {
                match self.controller.fetch(vq) {
                    Fetch::Command(command, buf, token) => {
                        check_place(&command);
                        self.seen.push(command);
                        self.in_flight.push((token, command, buf));
                    }
                    Fetch::Handled => {}
                    Fetch::Empty => break,
                }
                fetched += 1;
            }
        }
        fetched
    }

    /// Does the oldest command in flight.
    pub fn finish_one(&mut self) {
        let (token, command, buf) = self.in_flight.remove(0);
        let outcome = match self.fail {
            Some(error) => Err(error),
            None => execute(&mut self.disk, &command, &buf),
        };
        self.controller.complete(token, outcome, buf);
    }

    pub fn finish_all(&mut self) {
        while !self.in_flight.is_empty() {
            self.finish_one();
        }
        self.wire();
        self.controller.notify();
    }

    /// What the wiring does between the poller's calls.
    pub fn wire(&mut self) {
        while let Some(event) = self.controller.take_event() {
            self.events.push(event);
            if let (Event::Erase(record), Some(is_durable)) = (event, self.records) {
                self.controller.recorded(record, is_durable);
            }
        }
    }

    /// The records that the wiring was asked for.
    pub fn take_erase_records(&mut self) -> Vec<EraseRecord> {
        let record = |event| match event {
            Event::Erase(record) => Some(record),
            Event::FlushFailed(_) | Event::Fatal(_) | Event::GivenUp(_) => None,
        };
        std::mem::take(&mut self.events).into_iter().filter_map(record).collect()
    }

    /// Those of Formats alone.
    pub fn take_records(&mut self) -> Vec<FormatRecord> {
        let record = |record| match record {
            EraseRecord::Format(record) => Some(record),
            EraseRecord::Sanitize(_) => None,
        };
        self.take_erase_records().into_iter().filter_map(record).collect()
    }

    /// Fetches and does everything until nothing is left.
    pub fn run(&mut self) {
        loop {
            let fetched = self.fetch_all();
            let idle = self.in_flight.is_empty();
            self.finish_all();
            if fetched == 0 && idle {
                return;
            }
        }
    }

    /// The next completion of a queue, consumed.
    pub fn next_completion(&mut self, cqid: u16) -> Option<Cqe> {
        let cq = self.cqs.get_mut(&cqid).expect("a queue");
        let cqe = cq.take(&Ram(&self.ram)).expect("in guest memory")?;
        let head = cq.head;
        self.store_bell(cqid, true, head.into());
        Some(cqe)
    }

    pub fn peek_completion(&self, cqid: u16) -> Option<Cqe> {
        self.cqs[&cqid].peek(&Ram(&self.ram)).expect("in guest memory")
    }

    pub fn completions(&mut self, cqid: u16) -> Vec<Cqe> {
        std::iter::from_fn(|| self.next_completion(cqid)).collect()
    }

    /// One command, to its end.
    pub fn command(&mut self, qid: u16, sqe: Sqe) -> Cqe {
        let cid = self.submit(qid, sqe);
        self.run();
        let cqid = self.sqs[&qid].cqid;
        let cqe = self.next_completion(cqid).expect("a completion");
        assert_eq!((cqe.cid, cqe.sqid), (cid, qid));
        cqe
    }

    pub fn admin(&mut self, sqe: Sqe) -> Cqe {
        self.command(0, sqe)
    }

    pub fn io(&mut self, sqe: Sqe) -> Cqe {
        self.command(1, sqe)
    }

    /// A read or write of `blocks` from `slba`, its data in contiguous guest memory at `data`.
    pub fn rw(&mut self, opc: u8, slba: u64, blocks: u32, data: u64, len_bytes: u64) -> Sqe {
        Sqe { dptr: self.prps(data, len_bytes), ..rw(opc, slba, blocks) }
    }

    /// PRP entries for contiguous guest memory, with a list where it needs one.
    pub fn prps(&mut self, data: u64, len_bytes: u64) -> [u64; 2] {
        let first = (data & !4095) + 4096;
        let end = data + len_bytes;
        if end <= first {
            return [data, 0];
        }
        let pages: Vec<u64> = (first..end).step_by(4096).collect();
        match &pages[..] {
            [one] => [data, *one],
            pages => {
                let list = self.alloc(4096);
                assert!(pages.len() <= 512);
                self.write(list, bytemuck::cast_slice(pages));
                [data, list]
            }
        }
    }

    /// The tenant's part of the disk.
    pub fn tenant(&self) -> &[u8] {
        &self.disk[BASE_BYTES as usize..][..SIZE_BYTES as usize]
    }

    /// Panics if anything outside of the tenant's part was touched.
    pub fn check_guards(&self) {
        let (before, rest) = self.disk.split_at(BASE_BYTES as usize);
        let guards = before.iter().chain(&rest[SIZE_BYTES as usize..]);
        assert!(guards.into_iter().all(|byte| *byte == GUARD), "a byte outside of the tenant's range was touched");
    }
}

impl Drop for Host {
    /// Commands still in flight end like those of a daemon that stops: completed, so that no token is lost.
    fn drop(&mut self) {
        for (token, _, buf) in self.in_flight.drain(..) {
            self.controller.complete(token, Err(DeviceError::Gone), buf);
        }
    }
}

/// A command with a block range and no data.
pub fn rw(opc: u8, slba: u64, blocks: u32) -> Sqe {
    Sqe {
        opc,
        nsid: 1,
        cdw10: slba as u32,
        cdw11: (slba >> 32) as u32,
        cdw12: blocks.wrapping_sub(1) & 0xffff,
        ..Sqe::zeroed()
    }
}

pub fn flush() -> Sqe {
    Sqe { opc: nvm::FLUSH, nsid: 1, ..Sqe::zeroed() }
}

/// A command says whose it is and where it begins in the tenant's disk.
pub fn check_place(command: &Command) {
    let Command { op, offset_bytes, tenant_offset_bytes, len_bytes, .. } = *command;
    let (disk, base_bytes) = (command.disk, base_of(u32::from(command.disk) + 1));
    let place = Place { disk, base_bytes, ..PLACE };
    let again = if op == Op::Flush { place.flush() } else { place.command(op, tenant_offset_bytes, len_bytes) };
    assert_eq!(*command, again.with_fua(command.fua));
    // It may have grown into the guard.
    assert!(offset_bytes + len_bytes <= base_of(u32::from(disk) + 2), "{command:?}");
}

pub fn execute(disk: &mut [u8], command: &Command, buf: &IoBuf) -> Outcome {
    let from = command.offset_bytes as usize;
    let Some(range) = disk.get_mut(from..from + command.len_bytes as usize) else {
        return Err(DeviceError::OutOfRange);
    };
    let data = matches!(command.op, Op::Read | Op::Write);
    assert_eq!(buf.len_bytes(), if data { command.len_bytes } else { 0 });
    match command.op {
        Op::Read => assert_eq!(buf.copy_from(range), range.len()),
        Op::Write => assert_eq!(buf.copy_to(range), range.len()),
        Op::Flush => {}
        Op::WriteZeroes | Op::Discard => range.fill(0),
    }
    Ok(())
}
