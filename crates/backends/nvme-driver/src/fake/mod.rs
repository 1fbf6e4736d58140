//! A small controller in memory, for tests: it executes commands when a doorbell is rung, in the ringing
//! thread, and can be told to fail, to stall, to corrupt and to vanish.
//!
//! It is written from the specification and independent of the driver's queue code, so that the two
//! check each other. One namespace of 512-byte blocks.

mod commands;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{Zeroable, bytes_of, bytes_of_mut};
use guest_memory::{GuestMemory, MappedU32, Mapping};
use nvme_spec::entry::{CQE_BYTES, SQE_BYTES};
use nvme_spec::regs::{Aqa, Cap, Cc, Csts, DOORBELL_BASE, Reg};
use nvme_spec::{Cqe, PAGE_BYTES, Sqe, Status};

use crate::device::{DmaMemory, Doorbell, PciDevice, Ring};
use crate::error::Error;

/// Bytes of a block of the fake's namespace.
pub const BLOCK_BYTES: u64 = 512;

struct Sq {
    base: u64,
    entries: u16,
    cqid: u16,
    head: u16,
    tail: u16,
}

struct Cq {
    base: u64,
    entries: u16,
    tail: u16,
    phase: bool,
}

/// What a test can see and steer.
pub struct State {
    /// Content of the namespace.
    pub disk: Vec<u8>,
    /// Statuses that the next I/O commands end with, without being executed.
    pub failures: VecDeque<Status>,
    /// XORed into the first byte of the data of the next read, and of no other.
    pub corrupt_next_read: u8,
    /// While set, I/O commands stay in their queues (until [`Fake::scan_doorbells`] after it was cleared).
    pub stalled: bool,
    /// While set, every register access fails and doorbells go nowhere.
    pub gone: bool,
    /// While set, CSTS.RDY stays 0.
    pub never_ready: bool,
    /// While set, the controller polls shadow doorbells and asks for no doorbell writes.
    pub awake: bool,
    /// Doorbell registers written so far.
    pub doorbell_writes: u64,
    /// I/O commands executed so far, in order.
    pub log: Vec<Sqe>,
    /// QPRIO of the submission queues created so far, by identifier.
    pub qprios: BTreeMap<u16, u8>,
    /// Features as they were set.
    pub features: BTreeMap<u8, u32>,
    offers_shadow: bool,
    offers_arbitration: bool,
    mapped_doorbells: bool,
    doorbell_page: Arc<Mapping>,
    shadow: Option<(u64, u64)>,
    memory: GuestMemory,
    next_iova: u64,
    cc: u32,
    csts: u32,
    aqa: u32,
    asq: u64,
    acq: u64,
    sqs: BTreeMap<u16, Sq>,
    cqs: BTreeMap<u16, Cq>,
}

/// A handle to the fake controller; clones are the same controller.
#[derive(Clone)]
pub struct Fake(Arc<Mutex<State>>);

/// The fake as the driver sees it.
pub struct FakeDevice(Fake);

impl Fake {
    /// A controller with a namespace of `blocks` blocks, whose doorbells are sent.
    pub fn new(blocks: u64) -> Self {
        let doorbell_page = Mapping::anonymous(PAGE_BYTES as usize).expect("a page of memory");
        Self(Arc::new(Mutex::new(State {
            disk: vec![0; (blocks * BLOCK_BYTES) as usize],
            failures: VecDeque::new(),
            corrupt_next_read: 0,
            stalled: false,
            gone: false,
            never_ready: false,
            awake: false,
            doorbell_writes: 0,
            log: Vec::new(),
            qprios: BTreeMap::new(),
            features: BTreeMap::new(),
            offers_shadow: false,
            offers_arbitration: false,
            mapped_doorbells: false,
            doorbell_page,
            shadow: None,
            memory: GuestMemory::default(),
            next_iova: 0x10_0000,
            cc: 0,
            csts: 0,
            aqa: 0,
            asq: 0,
            acq: 0,
            sqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
        })))
    }

    /// Offers Doorbell Buffer Config.
    pub fn with_shadow_doorbells(self) -> Self {
        self.state().offers_shadow = true;
        self
    }

    /// Offers weighted and deficit round robin. All that it does with them is to remember.
    pub fn with_arbitration(self) -> Self {
        self.state().offers_arbitration = true;
        self
    }

    /// Offers mapped doorbells; they are looked at by [`Fake::scan_doorbells`] alone.
    pub fn with_mapped_doorbells(self) -> Self {
        self.state().mapped_doorbells = true;
        self
    }

    /// The device to give to the driver.
    pub fn device(&self) -> FakeDevice {
        FakeDevice(self.clone())
    }

    /// The controller's inside.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a completion of command `cid` to queue `qid` that nobody asked for.
    pub fn forge_completion(&self, qid: u16, cid: u16) {
        self.state().complete(qid, Cqe { sqid: qid, cid, ..Cqe::default() });
    }

    /// Executes what waits in every queue, as far as doorbells or shadow doorbells tell.
    pub fn scan_doorbells(&self) {
        self.state().scan_doorbells();
    }
}

impl State {
    /// CC.AMS as it was set last.
    pub fn ams(&self) -> u8 {
        Cc(self.cc).ams()
    }

    fn cell(&self, offset: u64) -> Option<MappedU32> {
        MappedU32::new(&self.doorbell_page, offset)
    }

    fn scan_doorbells(&mut self) {
        let qids: Vec<u16> = self.sqs.keys().copied().collect();
        for qid in qids {
            let at = u64::from(qid) * 8;
            let tail = match self.shadow {
                Some((values, _)) if qid > 0 => self.load(values + at),
                _ if self.mapped_doorbells => self.cell(at).map_or(0, |cell| cell.load()),
                _ => self.sqs[&qid].tail.into(),
            };
            self.advance(qid, tail as u16);
        }
    }

    /// A doorbell register was written.
    fn rung(&mut self, offset: u64, value: u32) {
        self.doorbell_writes += 1;
        let index = (offset - DOORBELL_BASE) / 4;
        if index.is_multiple_of(2) && !self.gone {
            self.advance((index / 2) as u16, value as u16);
        }
    }

    /// Executes queue `qid` up to `tail`.
    fn advance(&mut self, qid: u16, tail: u16) {
        let Some(sq) = self.sqs.get_mut(&qid) else { return };
        sq.tail = tail;
        while self.sqs.get(&qid).is_some_and(|sq| sq.head != sq.tail) {
            if self.stalled && qid > 0 {
                return;
            }
            let Some(sq) = self.sqs.get_mut(&qid) else { return };
            let at = sq.base + u64::from(sq.head) * SQE_BYTES;
            sq.head = (sq.head + 1) % sq.entries;
            let (sqhd, cqid) = (sq.head, sq.cqid);
            let mut sqe = Sqe::zeroed();
            self.memory.read(at, bytes_of_mut(&mut sqe)).expect("the queue is mapped");
            let (status, dw0) = if qid == 0 { self.admin(&sqe) } else { self.io(&sqe) };
            let cqe = Cqe { dw0, dw1: 0, sqhd, sqid: qid, cid: sqe.cid, phase_status: status.0 << 1 };
            self.complete(cqid, cqe);
        }
        self.want_doorbell(qid, tail);
    }

    /// Asks for a doorbell write at the next command, unless awake.
    fn want_doorbell(&mut self, qid: u16, tail: u16) {
        if let Some((_, event_indexes)) = self.shadow.filter(|_| qid > 0 && !self.awake) {
            let at = event_indexes + u64::from(qid) * 8;
            self.memory.write(at, &u32::from(tail).to_le_bytes()).expect("the event indexes are mapped");
        }
    }

    fn load(&mut self, iova: u64) -> u32 {
        let mut value = [0; 4];
        self.memory.read(iova, &mut value).expect("the shadow doorbells are mapped");
        u32::from_le_bytes(value)
    }

    fn complete(&mut self, cqid: u16, mut cqe: Cqe) {
        let cq = self.cqs.get_mut(&cqid).expect("the queue was created");
        cqe.phase_status |= u16::from(cq.phase);
        let at = cq.base + u64::from(cq.tail) * CQE_BYTES;
        cq.tail += 1;
        if cq.tail == cq.entries {
            cq.tail = 0;
            cq.phase = !cq.phase;
        }
        self.memory.write(at, bytes_of(&cqe)).expect("the queue is mapped");
    }

    fn set_cc(&mut self, value: u32) {
        self.cc = value;
        let cc = Cc(value);
        if !cc.en() {
            self.csts = 0;
            self.sqs.clear();
            self.cqs.clear();
            self.shadow = None;
        } else if !Csts(self.csts).rdy() && !self.never_ready {
            let aqa = Aqa(self.aqa);
            self.sqs.insert(0, Sq { base: self.asq, entries: aqa.asqs() + 1, cqid: 0, head: 0, tail: 0 });
            self.cqs.insert(0, Cq { base: self.acq, entries: aqa.acqs() + 1, tail: 0, phase: true });
            self.csts = Csts::RDY;
        }
        if cc.shn() != Cc::SHN_NONE {
            self.csts = Csts(self.csts).with_shst(Csts::SHST_DONE).0;
        }
    }
}

impl FakeDevice {
    fn present(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.0.state();
        if state.gone {
            return Err(Error::Gone { peer: "the fake".into(), reason: "the test took it away".into() });
        }
        Ok(state)
    }
}

const CC: u64 = Reg::Cc as u64;
const CSTS: u64 = Reg::Csts as u64;
const AQA: u64 = Reg::Aqa as u64;
const ASQ: u64 = Reg::Asq as u64;
const ACQ: u64 = Reg::Acq as u64;
const CAP: u64 = Reg::Cap as u64;

impl PciDevice for FakeDevice {
    fn read_u32(&mut self, offset: u64) -> Result<u32, Error> {
        let state = self.present()?;
        Ok(match offset {
            CC => state.cc,
            CSTS => state.csts,
            _ => 0,
        })
    }

    fn read_u64(&mut self, offset: u64) -> Result<u64, Error> {
        let weighted = if self.present()?.offers_arbitration { Cap::AMS_WEIGHTED | Cap::AMS_VENDOR } else { 0 };
        Ok(if offset == CAP { Cap::new(1023, 1, Cap::CQR | Cap::CSS_NVM | weighted).0 } else { 0 })
    }

    fn write_u32(&mut self, offset: u64, value: u32) -> Result<(), Error> {
        let mut state = self.present()?;
        match offset {
            CC => state.set_cc(value),
            AQA => state.aqa = value,
            _ => {}
        }
        Ok(())
    }

    fn write_u64(&mut self, offset: u64, value: u64) -> Result<(), Error> {
        let mut state = self.present()?;
        match offset {
            ASQ => state.asq = value,
            ACQ => state.acq = value,
            _ => {}
        }
        Ok(())
    }

    fn doorbell(&mut self, offset: u64) -> Result<Doorbell, Error> {
        let state = self.present()?;
        // The admin queue is served at once in every mode.
        let io_queue = offset >= DOORBELL_BASE + 8;
        let cell = state.cell(offset - DOORBELL_BASE).filter(|_| state.mapped_doorbells && io_queue);
        Ok(match cell {
            Some(cell) => Doorbell::Mapped(cell),
            None => Doorbell::Sent(Box::new(FakeRing { fake: self.0.clone(), offset })),
        })
    }

    fn allocate_dma(&mut self, len_bytes: usize) -> Result<DmaMemory, Error> {
        let mut state = self.present()?;
        let mapping = Mapping::anonymous(len_bytes.next_multiple_of(PAGE_BYTES as usize))?;
        let iova = state.next_iova;
        let len = mapping.len_bytes();
        // A hole after each range: running over an end is a fault, not the neighbour's memory.
        state.next_iova += len + PAGE_BYTES;
        state
            .memory
            .map(iova, len, Some(Arc::clone(&mapping)), &mut ())
            .map_err(|error| Error::Memory(error.to_string()))?;
        Ok(DmaMemory::new(mapping, iova))
    }

    fn release_dma(&mut self, memory: DmaMemory) -> Result<(), Error> {
        let guest = &mut self.present()?.memory;
        guest.unmap(memory.iova(), memory.len_bytes()).map_err(|error| Error::Memory(error.to_string()))?;
        drop(memory);
        while guest.take_unmapped(&mut ()).is_some() {}
        Ok(())
    }

    fn set_interrupt(&mut self, _vector: u16, _event: BorrowedFd<'_>) -> Result<(), Error> {
        Err(Error::Unsuitable("the fake has no interrupts"))
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.present()?.set_cc(0);
        Ok(())
    }
}

struct FakeRing {
    fake: Fake,
    offset: u64,
}

impl Ring for FakeRing {
    fn ring(&mut self, value: u32) -> Result<(), Error> {
        self.fake.state().rung(self.offset, value);
        Ok(())
    }
}
