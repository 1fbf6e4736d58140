//! A small NVMe controller in memory, for tests.
//!
//! It executes commands when a doorbell is rung, in the ringing thread. It can be told to fail, stall, corrupt and
//! vanish.
//!
//! It is written from the specification and independent of the driver's queue code, so that the two
//! check each other. One namespace.

// In `host_memory`, which reaches memory by address.
#![deny(unsafe_code)]

mod commands;
mod host_memory;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{Zeroable, bytes_of, bytes_of_mut};
use guest_memory::{GuestMemory, MappedU32, Mapping};
use host_memory::Lent;
use nvme_driver::{DmaMemory, DmaSpace, Doorbell, Error, PciDevice, Ring};
use nvme_spec::entry::{CQE_BYTES, SQE_BYTES};
use nvme_spec::identify::oncs;
use nvme_spec::log::SmartLog;
use nvme_spec::opcode::admin;
use nvme_spec::regs::{Aqa, Cap, Cc, Csts, DOORBELL_BASE, Reg};
use nvme_spec::{Cqe, PAGE_BYTES, Sqe, Status};

/// Bytes of a block of the fake's namespace, unless it was told otherwise.
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
    vector: Option<u16>,
}

/// What the fake does not do although it is asked to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Refusals {
    /// Aborts end, and nothing is aborted.
    pub abort: bool,
    /// Queues are not deleted.
    pub delete: bool,
    /// CSTS.RDY stays 1 when CC.EN goes to 0.
    pub controller_reset: bool,
    /// The function is not reset.
    pub function_reset: bool,
    /// The SMART / Health log page is not told.
    pub health: bool,
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
    /// While set, I/O commands are fetched and not executed, until [`Fake::execute_held`].
    pub holds: bool,
    /// While set, admin commands are fetched and not executed.
    pub holds_admin: bool,
    /// Those, with their queue.
    pub held: Vec<(u16, Sqe)>,
    /// What it does not do.
    pub refuses: Refusals,
    /// Registers read as ones, and doorbells go nowhere.
    pub unplugged: bool,
    /// I/O queue pairs that it grants.
    pub queues: u16,
    /// What the SMART / Health log page says.
    pub smart: SmartLog,
    /// ONCS.
    pub oncs: u16,
    /// VWC.
    pub vwc: u8,
    /// SGLS.
    pub sgls: u32,
    /// SANICAP.
    pub sanicap: u32,
    /// Bits of OACS beside those that it has anyway.
    pub oacs: u16,
    /// FNA.
    pub fna: u8,
    /// CMIC.
    pub cmic: u8,
    /// How often its Sanitize Status log is yet read before a Sanitize is over; `None`: there was none.
    pub sanitizing: Option<u32>,
    /// MDTS.
    pub mdts: u8,
    /// Resets so far: of the controller, of the function.
    pub resets: (u32, u32),
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
    /// A test between the driver and the fake lies to the driver, which may then do what would otherwise be an error.
    driver_is_deceived: bool,
    block_bytes: u64,
    offers_shadow: bool,
    offers_arbitration: bool,
    mapped_doorbells: bool,
    has_interrupts: bool,
    vectors: BTreeMap<u16, File>,
    event_request: Option<u16>,
    lent: Option<Lent>,
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
            holds: false,
            holds_admin: false,
            held: Vec::new(),
            refuses: Refusals::default(),
            unplugged: false,
            queues: 8,
            smart: SmartLog::zeroed(),
            oncs: oncs::DATASET_MANAGEMENT | oncs::WRITE_ZEROES,
            vwc: 0,
            sgls: 0,
            sanicap: 0,
            oacs: 0,
            fna: 0,
            cmic: 0,
            sanitizing: None,
            mdts: 8,
            resets: (0, 0),
            driver_is_deceived: false,
            block_bytes: BLOCK_BYTES,
            has_interrupts: false,
            vectors: BTreeMap::new(),
            event_request: None,
            lent: None,
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

    /// Sets the block size, a power of two.
    pub fn with_blocks_of(self, block_bytes: u64) -> Self {
        self.state().block_bytes = block_bytes;
        self
    }

    /// Ends commands that no correct driver sends with an error, instead of failing the test: the driver is lied to.
    pub fn with_deceived_driver(self) -> Self {
        self.state().driver_is_deceived = true;
        self
    }

    /// Reaches memory that is lent to it ([`PciDevice::dma_space`]).
    pub fn with_dma_space(self) -> Self {
        self.state().lent = Some(Lent::default());
        self
    }

    /// Signals interrupts.
    pub fn with_interrupts(self) -> Self {
        self.state().has_interrupts = true;
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

    /// Executes the commands that are held.
    pub fn execute_held(&self) {
        let mut state = self.state();
        for (qid, sqe) in std::mem::take(&mut state.held) {
            let (status, dw0) = if qid == 0 { state.admin(&sqe) } else { state.io(&sqe) };
            state.answer(qid, sqe.cid, status, dw0);
        }
    }

    /// Ends the Asynchronous Event Request that waits, with this dword 0. `false`: none waits.
    pub fn tell_event(&self, dw0: u32) -> bool {
        let mut state = self.state();
        let Some(cid) = state.event_request.take() else { return false };
        state.answer(0, cid, Status::SUCCESS, dw0);
        true
    }

    /// Mappings that are lent to it.
    pub fn lent_mappings(&self) -> usize {
        self.state().lent.as_ref().map_or(0, Lent::len)
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

    /// What a driver keeps to that nobody deceives; a command that doesn't ends with an error.
    ///
    /// # Panics
    /// When it isn't so and nobody deceives the driver.
    fn expect(&self, is_so: bool, what: &str) -> Result<(), Status> {
        assert!(is_so || self.driver_is_deceived, "not so: {what}");
        if is_so { Ok(()) } else { Err(Status::DATA_TRANSFER_ERROR) }
    }

    /// Whether it may write to a byte of the host's memory.
    pub fn reaches(&mut self, iova: u64) -> bool {
        self.memory.read(iova, &mut [0]).is_ok()
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
        if index.is_multiple_of(2) && !self.gone && !self.unplugged {
            self.advance((index / 2) as u16, value as u16);
        }
    }

    /// Executes queue `qid` up to `tail`.
    fn advance(&mut self, qid: u16, tail: u16) {
        // What lies outside of the queue is no tail (Invalid Doorbell Write Value).
        let Some(sq) = self.sqs.get_mut(&qid).filter(|sq| tail < sq.entries) else { return };
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
            let is_mapped = self.memory.read(at, bytes_of_mut(&mut sqe)).is_ok();
            if self.expect(is_mapped, "the queue is mapped").is_err() {
                return;
            }
            if qid == 0 && sqe.opc == admin::ASYNC_EVENT_REQUEST {
                self.event_request = Some(sqe.cid);
                continue;
            }
            let is_held = if qid == 0 { self.holds_admin } else { self.holds };
            if is_held {
                self.held.push((qid, sqe));
                continue;
            }
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
            let is_mapped = self.memory.write(at, &u32::from(tail).to_le_bytes()).is_ok();
            let _ = self.expect(is_mapped, "the event indexes are mapped");
        }
    }

    fn load(&mut self, iova: u64) -> u32 {
        let mut value = [0; 4];
        let is_mapped = self.memory.read(iova, &mut value).is_ok();
        let _ = self.expect(is_mapped, "the shadow doorbells are mapped");
        u32::from_le_bytes(value)
    }

    /// Ends a command of queue `qid` at another time than it was fetched.
    fn answer(&mut self, qid: u16, cid: u16, status: Status, dw0: u32) {
        let Some(sq) = self.sqs.get(&qid) else { return };
        let cqe = Cqe { dw0, dw1: 0, sqhd: sq.head, sqid: qid, cid, phase_status: status.0 << 1 };
        self.complete(sq.cqid, cqe);
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
        let is_mapped = self.memory.write(at, bytes_of(&cqe)).is_ok();
        let _ = self.expect(is_mapped, "the completion queue is mapped");
        if let Some(mut event) = self.cqs[&cqid].vector.and_then(|vector| self.vectors.get(&vector)) {
            event.write_all(&1_u64.to_ne_bytes()).expect("an eventfd that is read now and then");
        }
    }

    fn halt(&mut self) {
        self.cc = 0;
        self.csts = 0;
        self.sqs.clear();
        self.cqs.clear();
        self.held.clear();
        self.shadow = None;
        self.event_request = None;
    }

    fn set_cc(&mut self, value: u32) {
        self.cc = value;
        let cc = Cc(value);
        if !cc.en() {
            self.resets.0 += 1;
            if !self.refuses.controller_reset {
                self.halt();
            }
        } else if !Csts(self.csts).rdy() && !self.never_ready {
            let aqa = Aqa(self.aqa);
            self.sqs.insert(0, Sq { base: self.asq, entries: aqa.asqs() + 1, cqid: 0, head: 0, tail: 0 });
            self.cqs.insert(0, Cq { base: self.acq, entries: aqa.acqs() + 1, tail: 0, phase: true, vector: Some(0) });
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
            _ if state.unplugged => u32::MAX,
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

    fn set_interrupt(&mut self, vector: u16, event: BorrowedFd<'_>) -> Result<(), Error> {
        let mut state = self.present()?;
        if !state.has_interrupts {
            return Err(Error::Unsuitable("the fake has no interrupts"));
        }
        let event = event.try_clone_to_owned().map_err(|error| Error::Memory(error.to_string()))?;
        state.vectors.insert(vector, event.into());
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Error> {
        let mut state = self.present()?;
        if state.refuses.function_reset {
            return Err(Error::Unsuitable("the fake does not reset its function"));
        }
        state.resets.1 += 1;
        state.halt();
        Ok(())
    }

    fn dma_space(&self) -> Option<Arc<dyn DmaSpace>> {
        let space = self.0.clone();
        self.0.state().lent.is_some().then(|| Arc::new(space) as Arc<dyn DmaSpace>)
    }
}

impl DmaSpace for Fake {
    fn map(&self, mapping: &Mapping) -> Result<u64, Error> {
        let mut state = self.state();
        let iova = state.next_iova;
        state.next_iova += mapping.len_bytes() + PAGE_BYTES;
        let lent = state.lent.as_mut().ok_or(Error::Unsuitable("the fake reaches no memory of others"))?;
        lent.add(iova, mapping)?;
        Ok(iova)
    }

    fn unmap(&self, iova: u64, len_bytes: u64) -> Result<(), Error> {
        let mut state = self.state();
        let lent = state.lent.as_mut().ok_or(Error::Unsuitable("the fake reaches no memory of others"))?;
        lent.remove(iova, len_bytes)
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
