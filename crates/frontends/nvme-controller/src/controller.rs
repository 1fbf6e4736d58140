//! The controller as its wiring sees it: BARs, configuration space, DMA maps, resets.

use std::collections::VecDeque;
use std::sync::Arc;

use guest_memory::{GuestMemory, IoBuf, MappedU32, Mapping, MemoryListener, SpaceError};
use io_model::{CacheDebt, DeviceError};
use nvme_spec::log::AsyncEvent;
use nvme_spec::pci::CONFIG_BYTES;
use nvme_spec::regs::{Csts, DOORBELL_BASE, REGS_BYTES};

use crate::admin::{EraseRecord, ErrorLog, Events, Features, PromiseSource, Sanitizing, Work};
use crate::attach::Leaving;
use crate::config::{ConfigError, ControllerConfig, Doorbells};
use crate::dbbuf::{Doorbell, DoorbellPages};
use crate::journal::Journal;
use crate::msix::{Interrupts, Msix};
use crate::namespace::{Namespace, Namespaces};
use crate::parts::Parts;
use crate::pci::{BAR0_BYTES, BAR4_BYTES, PciFunction};
use crate::queue::{Cq, Geometry, Sq};
use crate::queues::Queues;
use crate::registers::{Effect, Registers};
use crate::state::StateError;
use crate::stats::{Health, Stats};
use crate::strikes::GivenUp;

/// Bytes of the doorbell page.
const DOORBELL_BYTES: u64 = 4096;

/// Something that the wiring has to act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The guest's driver enabled the controller, in vain.
    Fatal(Fatal),
    /// To be recorded where it outlives us; answered by [`Controller::recorded`].
    Erase(EraseRecord),
    /// The drive failed the flush for a guest that shut down or left: what it wrote last may be lost.
    FlushFailed(DeviceError),
    /// After a takeover: a command ended the processes that executed it, and gets an error.
    GivenUp(GivenUp),
}

/// Why a controller reports a fatal status (CSTS.CFS), or will never be of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fatal {
    /// Its admin queues are not in memory that the client shares.
    #[error(
        "its admin queues, at {asq:#x} and {acq:#x}, are not in memory that the VMM shares: give the VM memory from a \
         memfd (QEMU: -object memory-backend-memfd,id=mem,size=…,share=on -machine memory-backend=mem)"
    )]
    Unreachable {
        /// The admin submission queue's address.
        asq: u64,
        /// The admin completion queue's.
        acq: u64,
    },
    /// The guest writes its commands to other memory than the client shares: a private copy. What it waits for never
    /// comes.
    #[error(
        "its driver's first command is blank: the VMM's memory is private, as it seems; give the VM shared memory \
         (QEMU: share=on)"
    )]
    Blank,
    /// CC or AQA ask for something that it can't be.
    #[error("its driver asks for another controller than this one (CC {cc:#x}, AQA {aqa:#x})")]
    Settings {
        /// Controller Configuration.
        cc: u32,
        /// Admin Queue Attributes.
        aqa: u32,
    },
}

/// A virtual NVMe controller. See the crate's documentation.
#[derive(Debug)]
pub struct Controller<I: Interrupts> {
    /// But for its namespaces.
    pub(crate) config: ControllerConfig,
    pub(crate) namespaces: Namespaces,
    pub(crate) leaving: Vec<Leaving>,
    pub(crate) regs: Registers,
    pub(crate) pci: PciFunction,
    pub(crate) irq: Msix<I>,
    pub(crate) memory: GuestMemory,
    pub(crate) queues: Queues,
    pub(crate) features: Features,
    pub(crate) events: Events,
    pub(crate) errors: ErrorLog,
    pub(crate) health: Health,
    pub(crate) promise: Option<Arc<dyn PromiseSource>>,
    /// Formats that were begun.
    pub(crate) formats: u32,
    pub(crate) sanitizing: Sanitizing,
    pub(crate) work: Work,
    pub(crate) wiring_events: VecDeque<Event>,
    pub(crate) stats: Stats,
    /// Device commands that have not come back, those of vanished queues included.
    pub(crate) in_flight: u32,
    pub(crate) cache: CacheDebt,
    /// A reset waits for what is in flight.
    pub(crate) resetting: bool,
    /// The client is gone.
    client_leaves: bool,
    /// A shutdown was asked for: nothing more is fetched.
    pub(crate) stopped: bool,
    generation: u16,
    /// Memory of our own that commands in flight hold.
    pub(crate) bounce_bytes: u64,
    pub(crate) pool: Vec<IoBuf>,
    /// See [`io_model::Source::take_work`].
    pub(crate) extra_work: u32,
    /// Those at other pollers.
    pub(crate) parts: Parts,
}

impl<I: Interrupts> Controller<I> {
    /// A controller as after power on, with no guest memory. `doorbells` is the 4 KiB page that the guest, or the
    /// thread that traps its accesses, writes: the part of BAR0 from 0x1000, 4 bytes per doorbell.
    pub fn new(mut config: ControllerConfig, doorbells: Arc<Mapping>, interrupts: I) -> Result<Self, ConfigError> {
        config.check()?;
        if doorbells.len_bytes() != DOORBELL_BYTES || !doorbells.is_writable() {
            return Err(ConfigError::DoorbellPage);
        }
        let mut namespaces = Namespaces::default();
        for (nsid, namespace) in std::mem::take(&mut config.namespaces) {
            namespaces.insert(nsid, Namespace::new(config.tenant, nsid, namespace, 0));
        }
        Ok(Self {
            namespaces,
            leaving: Vec::new(),
            regs: Registers::new(&config),
            pci: PciFunction::new(),
            irq: Msix::new(interrupts),
            memory: GuestMemory::default(),
            queues: Queues::new(DoorbellPages::new(doorbells, config.doorbells)),
            features: Features::new(config.volatile_write_cache),
            events: Events::default(),
            errors: bytemuck::Zeroable::zeroed(),
            health: Health { power_cycles: 1, ..Health::default() },
            promise: None,
            formats: 0,
            sanitizing: Sanitizing::default(),
            work: Work::default(),
            wiring_events: VecDeque::new(),
            stats: Stats::default(),
            in_flight: 0,
            cache: CacheDebt::new(config.volatile_write_cache),
            resetting: false,
            client_leaves: false,
            stopped: false,
            generation: 0,
            bounce_bytes: 0,
            pool: Vec::new(),
            extra_work: 0,
            parts: Parts::new(config.part),
            config,
        })
    }

    /// Reads configuration space. Any offset and length; what does not exist reads as zero.
    pub fn config_read(&self, offset: u64, out: &mut [u8]) {
        out.fill(0);
        if offset < CONFIG_BYTES as u64 {
            self.pci.read(offset, out);
        }
    }

    /// Writes configuration space. Read-only bits keep their value.
    pub fn config_write(&mut self, offset: u64, data: &[u8]) {
        if offset >= CONFIG_BYTES as u64 {
            return;
        }
        let effect = self.pci.write(offset, data);
        if let Some(control) = effect.msix_control {
            self.irq.set_control(control);
        }
        if effect.command {
            self.check_pin();
        }
        if effect.reset {
            self.reset();
        }
    }

    /// Reads a BAR (0 or 4). Any offset and length; what does not exist reads as zero.
    pub fn bar_read(&self, bar: u8, offset: u64, out: &mut [u8]) {
        out.fill(0);
        match bar {
            0 if offset < REGS_BYTES => {
                let n = out.len().min((REGS_BYTES - offset) as usize);
                self.regs.read(offset, &mut out[..n]);
            }
            4 if offset < BAR4_BYTES => self.irq.read(offset, out),
            // Doorbells have no defined value to read, and nothing follows them.
            _ => {}
        }
    }

    /// Writes a BAR (0 or 4). Registers and doorbells take aligned dwords, and runs of them; anything
    /// else is ignored there.
    pub fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        match bar {
            0 if offset.is_multiple_of(4) && data.len().is_multiple_of(4) && offset < BAR0_BYTES => {
                for (at, dword) in (offset..BAR0_BYTES).step_by(4).zip(data.chunks_exact(4)) {
                    let value = u32::from_le_bytes([dword[0], dword[1], dword[2], dword[3]]);
                    self.write_dword(at, value);
                }
            }
            4 if offset < BAR4_BYTES => self.irq.write(offset, data),
            _ => {}
        }
    }

    fn write_dword(&mut self, offset: u64, value: u32) {
        match offset.checked_sub(DOORBELL_BASE) {
            None => {
                let effect = self.regs.write(offset, value);
                self.apply(effect);
            }
            Some(at) if at < DOORBELL_BYTES && self.config.part.is_first() => self.ring(at, value),
            Some(_) => {}
        }
    }

    fn ring(&mut self, at: u64, value: u32) {
        self.queues.doorbells.store_at(at, value);
        let qid = (at / 8) as u16;
        let exists = if at.is_multiple_of(8) { self.has_sq(qid) } else { self.has_cq(qid) };
        if !exists {
            self.note_event(AsyncEvent::INVALID_DOORBELL_REGISTER);
        }
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Enable if self.resetting => {}
            Effect::Enable => self.enable(),
            Effect::Disable => {
                self.drop_queues();
                self.settle();
            }
            Effect::Shutdown => {
                self.regs.csts = self.regs.csts.with_shst(Csts::SHST_BUSY);
                self.stopped = true;
                self.parts.halt();
                self.settle();
            }
            Effect::SubsystemReset => {
                self.reset_registers();
                self.regs.csts.0 |= Csts::NSSRO;
            }
            Effect::Unmasked => self.check_pin(),
        }
    }

    /// CC.EN went to 1: the admin queues start, which are the first part's, or the controller reports a fatal status.
    fn enable(&mut self) {
        if !self.config.part.is_first() {
            self.regs.csts.0 |= Csts::RDY;
            return;
        }
        let (asq, acq) = (self.regs.asq, self.regs.acq);
        let queues = match self.regs.can_enable() {
            true => self.admin_queues().ok_or(Fatal::Unreachable { asq, acq }),
            false => Err(Fatal::Settings { cc: self.regs.cc.0, aqa: self.regs.aqa.0 }),
        };
        let (sq, cq) = match queues {
            Ok(queues) => queues,
            Err(fatal) => {
                self.regs.csts.0 |= Csts::CFS;
                self.wiring_events.push_back(Event::Fatal(fatal));
                return;
            }
        };
        self.start_arbitration();
        self.queues.insert_cq(cq);
        self.queues.insert_sq(sq);
        self.regs.csts.0 |= Csts::RDY;
    }

    fn admin_queues(&mut self) -> Option<(Sq, Cq)> {
        let aqa = self.regs.aqa;
        let sq_at = Geometry { qid: 0, entries: aqa.asqs() + 1, iova: self.regs.asq };
        let cq_at = Geometry { qid: 0, entries: aqa.acqs() + 1, iova: self.regs.acq };
        let doorbells = &self.queues.doorbells;
        let sq_bytes = Sq::ring_bytes(sq_at.entries);
        let sq_view = doorbells.view(&mut self.memory, 0, Doorbell::SqTail, sq_at.iova, sq_bytes)?;
        let cq_bytes = Cq::ring_bytes(cq_at.entries);
        let cq_view = doorbells.view(&mut self.memory, 0, Doorbell::CqHead, cq_at.iova, cq_bytes)?;
        doorbells.clear(&sq_view, 0, Doorbell::SqTail);
        doorbells.clear(&cq_view, 0, Doorbell::CqHead);
        let generation = self.next_generation();
        Some((Sq::new(sq_at, 0, 0, generation, Some(sq_view)), Cq::new(cq_at, 0, true, Some(cq_view))))
    }

    /// A number that no queue with commands in flight has: queues start only while none of an earlier
    /// life is in flight, and a deleted queue has none.
    pub(crate) fn next_generation(&mut self) -> u16 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    /// What every reset does at once: queues and everything that a reset clears are gone; commands in
    /// flight have nowhere to complete to.
    fn drop_queues(&mut self) {
        self.queues.clear();
        self.parts.reset();
        self.irq.pending = 0;
        self.regs.int_mask = 0;
        self.events = Events::default();
        self.features = Features::new(self.config.volatile_write_cache);
        self.namespaces.reset();
        self.sanitizing.drop_command();
        self.lose_count();
        self.work.drop_answer();
        self.bounce_bytes = 0;
        self.stopped = false;
        self.regs.csts = self.regs.csts.with_shst(Csts::SHST_NONE);
        self.resetting = true;
    }

    /// Ends what waited for nothing to be in flight: resets and shutdowns. A guest that ends waits for a flush too.
    pub(crate) fn settle(&mut self) {
        if self.in_flight > 0 {
            return;
        }
        self.leaving.clear();
        let ends = self.client_leaves || self.regs.csts.shst() == Csts::SHST_BUSY;
        if ends && self.cache.must_flush() {
            return;
        }
        let halts = self.resetting || self.regs.csts.shst() == Csts::SHST_BUSY;
        if halts && !self.parts.is_quiet() {
            return;
        }
        self.client_leaves = false;
        if self.resetting {
            self.resetting = false;
            // A shutdown may have been asked for since the reset.
            let shst = self.regs.csts.shst();
            self.regs.csts = Csts(self.regs.csts.0 & Csts::NSSRO).with_shst(shst);
            if self.regs.cc.en() {
                self.enable();
            }
            // Once the guest sees that it is ready it rings doorbells, which who begins to enable it clears.
            self.record();
        }
        if self.regs.csts.shst() == Csts::SHST_BUSY {
            self.regs.csts = self.regs.csts.with_shst(Csts::SHST_DONE);
        }
    }

    fn reset_registers(&mut self) {
        if self.regs.cc.en() && self.regs.csts.shst() != Csts::SHST_DONE {
            self.health.unsafe_shutdowns += 1;
        }
        self.regs = Registers::new(&self.config);
        self.drop_queues();
        self.settle();
    }

    /// Function level reset, or the VMM's device reset: everything but guest memory is as after power
    /// on. Until [`Controller::is_idle`], commands of before are still in flight, and a guest that
    /// enables the controller sees it become ready only then.
    pub fn reset(&mut self) {
        self.reset_registers();
        self.pci = PciFunction::new();
        self.irq.reset();
    }

    /// The VMM went away: resets everything and takes all guest memory out, to be reported by
    /// [`Controller::take_unmapped`] like any other. What it wrote is flushed if the drive has a cache, as VQ 0.
    pub fn client_gone(&mut self) {
        self.client_leaves = true;
        self.reset();
        self.irq.forget_wiring();
        self.health.power_cycles += 1;
        self.memory.unmap_all();
    }

    /// Whether no device command is in flight, nor one to come for a guest that ended.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && !self.cache.is_parting()
    }

    /// Whether nothing of before a reset is in flight, and no flush is to come. A Sanitize goes on after it.
    pub fn is_reset(&self) -> bool {
        self.is_idle() || self.sanitizes() && !self.resetting && !self.client_leaves && !self.cache.is_parting()
    }

    /// Adds guest memory, after telling `listener` of it. `None`: a range that is known but can't be reached. Queues
    /// that were halted for want of it go on.
    ///
    /// # Errors
    /// See [`GuestMemory::map`].
    pub fn dma_map(
        &mut self,
        iova: u64,
        len_bytes: u64,
        mapping: Option<Arc<Mapping>>,
        listener: &mut dyn MemoryListener,
    ) -> Result<(), SpaceError> {
        self.memory.map(iova, len_bytes, mapping, listener)?;
        self.queues.attach(&mut self.memory, false);
        self.post_admin();
        Ok(())
    }

    /// Takes guest memory out: all ranges in there. Queues in them halt, new commands to them fail with Data Transfer
    /// Error; commands in flight may use them until they are not [`in use`](Controller::is_in_use) any more. The caller
    /// must not keep a mapping's `Arc`: it would always be.
    pub fn dma_unmap(&mut self, iova: u64, len_bytes: u64) -> Result<(), SpaceError> {
        self.memory.unmap(iova, len_bytes)?;
        self.queues.detach(iova, len_bytes);
        Ok(())
    }

    /// As [`Controller::dma_unmap`], for all of it.
    pub fn dma_unmap_all(&mut self) {
        for (iova, len_bytes) in self.memory.unmap_all() {
            self.queues.detach(iova, len_bytes);
        }
    }

    /// Whether the client took memory away without unmapping it. The controller is in a fatal state then: nothing is
    /// fetched, and nothing succeeds, until it has other memory and was reset.
    #[inline]
    pub fn memory_is_lost(&mut self) -> bool {
        let is_lost = self.memory.is_lost();
        if is_lost && !self.stopped {
            self.stopped = true;
            self.regs.csts.0 |= Csts::CFS;
        }
        is_lost
    }

    /// A range taken out that nothing uses any more, `listener` included: its address and length in bytes, each once.
    pub fn take_unmapped(&mut self, listener: &mut dyn MemoryListener) -> Option<(u64, u64)> {
        self.memory.take_unmapped(listener)
    }

    /// Whether something may still use a range that was taken out of `len_bytes` at `iova`.
    pub fn is_in_use(&self, iova: u64, len_bytes: u64) -> bool {
        self.memory.is_in_use(iova, len_bytes)
    }

    /// Ranges taken out that something may still use.
    pub fn unmaps_pending(&self) -> usize {
        self.memory.unmaps_pending()
    }

    /// Masks or unmasks a vector on behalf of a VMM that does so by message (vfio-user SET_IRQS), apart
    /// from the masks in the function. Unmasking delivers what is pending, once.
    pub fn set_vector_masked(&mut self, vector: u16, masked: bool) {
        self.irq.set_wire_mask(vector, masked);
        if !masked {
            self.check_pin();
        }
    }

    /// Whether completions wait that raise the pin only once [`Controller::release_pin`] says so.
    pub fn pin_is_held(&self) -> bool {
        self.irq.pin_is_held()
    }

    /// Raises the pin again for completions that the guest has not read within the time that an interrupt takes.
    pub fn release_pin(&mut self) {
        self.irq.release_pin();
        self.check_pin();
    }

    /// The VMM wants MSI-X vectors although it did not enable MSI-X in configuration space: some clients
    /// only ask by message.
    pub fn set_msix_armed(&mut self, armed: bool) {
        self.irq.set_armed(armed);
    }

    /// Raises the pin if a completion waits for the host: it is level triggered.
    pub(crate) fn check_pin(&mut self) {
        if !self.pin_is_open() {
            return;
        }
        let mut invalid = false;
        let mut level = false;
        let mut heads = 0_u64;
        let awake = self.queues.awake;
        for cq in self.queues.cqs_mut() {
            invalid |= cq.refresh(awake).is_err();
            level |= cq.interrupts && cq.occupied() > 0;
            heads = heads.rotate_left(7) ^ u64::from(cq.head);
        }
        self.irq.set_pin(level, heads);
        if invalid {
            self.invalid_doorbell();
        }
    }

    /// Whether the guest may keep its doorbells in its own memory. Not while it takes interrupts by the pin: what
    /// lowers that is a register write, which such a guest omits.
    pub(crate) fn takes_shadow_doorbells(&self) -> bool {
        !self.irq.has_pin_alone() || self.pci.pin_disabled()
    }

    /// Whether pin interrupts are in use and not masked in the function.
    fn pin_is_open(&self) -> bool {
        !self.irq.is_on() && self.regs.int_mask & 1 == 0 && !self.pci.pin_disabled()
    }

    /// Doorbells that can bring work without a message, each with the value that was last acted on. A thread watches
    /// them while the poller sleeps. All are on the doorbell page, never in guest memory, and show what was rung since
    /// the last [`set_wakeup`](io_model::Source::set_wakeup). None if doorbells are trapped.
    pub fn doorbells(&self, out: &mut Vec<(MappedU32, u32)>) {
        if self.config.doorbells == Doorbells::Mapped && !self.stopped {
            self.queues.doorbells(out);
        }
    }

    /// Where interrupts go, for the wiring to change.
    pub fn interrupts_mut(&mut self) -> &mut I {
        self.irq.out_mut()
    }

    /// Something for the wiring to act on, oldest first.
    pub fn take_event(&mut self) -> Option<Event> {
        self.wiring_events.pop_front()
    }

    /// Records from now on what a successor needs to go on, in `memory`, which is to outlive this process and to be
    /// [`journal_bytes`](crate::journal_bytes) long.
    ///
    /// # Errors
    /// It is shorter, or can't be written.
    pub fn keep_journal(&mut self, memory: &Arc<Mapping>) -> Result<(), StateError> {
        let open = if self.config.part.is_first() { Journal::begin } else { Journal::over };
        self.queues.journal = Some(open(memory, &self.config)?);
        self.record();
        Ok(())
    }

    /// Records what changed but for I/O commands. To be called before anybody outside hears of it: before a register
    /// write is answered, say. The first part has what there is to record.
    pub fn record(&mut self) {
        if !self.config.part.is_first() {
            return;
        }
        if let Some(mut journal) = self.queues.journal.take() {
            journal.record(&self.snapshot());
            self.queues.journal = Some(journal);
        }
    }

    /// What was counted so far.
    pub fn stats(&self) -> Stats {
        Stats { interrupts: self.irq.raised, ..self.stats }
    }

    /// The configuration, with the namespaces that there are and what became of them.
    pub fn config(&self) -> ControllerConfig {
        let namespaces = self.namespaces.iter().map(|(nsid, namespace)| (nsid, namespace.config().clone())).collect();
        ControllerConfig { namespaces, ..self.config.clone() }
    }

    /// Whether commands of before a reset are in flight.
    pub(crate) fn is_resetting(&self) -> bool {
        self.resetting
    }
}
