//! Everything that a guest can see of its controller as one block of plain data, from which a fresh
//! controller goes on: a restarted daemon takes its tenants over with it.
//!
//! Not in it: guest memory (the VMM maps it again; the restored queues are halted until then), the
//! contents of the doorbell page (it must be the same memory), and commands in flight (there must be
//! none).

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use guest_memory::Mapping;
use nvme_spec::opcode::create;
use nvme_spec::regs::{Aqa, Cc, Csts};

use crate::admin::{ERROR_RECOVERY, ErrorLog, Events, Features};
use crate::config::{ConfigError, ControllerConfig, MAX_NAMESPACES};
use crate::controller::Controller;
use crate::dbbuf::ShadowPages;
use crate::msix::{Interrupts, TABLE_BYTES, VECTORS};
use crate::pci::HEADER_BYTES;
use crate::queue::{Cq, Geometry, Sq};
use crate::queues::QIDS;
use crate::stats::Health;

/// "evenkeel", and a version in the last byte: changes with the layout below.
const MAGIC: u64 = u64::from_be_bytes(*b"evnkeel\x03");

/// The state can't be saved now: a command is in flight, or a completion waits for unmapped memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("commands are in flight")]
pub struct Busy;

/// Why a saved state was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Not such a state, or of another version.
    #[error("not a controller state of this version")]
    Magic,
    /// It contradicts itself or the configuration.
    #[error("the saved controller state does not fit: {0}")]
    Invalid(&'static str),
    /// The configuration is refused by itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
struct SqState {
    iova: u64,
    /// 0: no such queue.
    entries: u16,
    cqid: u16,
    head: u16,
    tail: u16,
    priority: u8,
    reserved: [u8; 7],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
struct CqState {
    iova: u64,
    /// 0: no such queue.
    entries: u16,
    vector: u16,
    head: u16,
    tail: u16,
    interrupts: u8,
    phase: u8,
    reserved: [u8; 6],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
struct NamespaceState {
    /// 0: nothing is attached.
    lba_bytes: u32,
    error_recovery: u32,
}

/// A controller's guest-visible state; plain old data, so that it can live in shared memory or a file.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct ControllerState {
    magic: u64,
    asq: u64,
    acq: u64,
    shadow: u64,
    shadow_events: u64,
    cc: u32,
    csts: u32,
    aqa: u32,
    int_mask: u32,
    has_shadow: u32,
    reserved: u32,
    features: Features,
    health: Health,
    irq_written: [u64; 2],
    irq_wire_masked: [u64; 2],
    irq_pending: [u64; 2],
    irq_armed: u64,
    events: Events,
    namespaces: [NamespaceState; MAX_NAMESPACES as usize],
    irq_table: [u8; TABLE_BYTES],
    pci: [u8; HEADER_BYTES],
    sqs: [SqState; QIDS],
    cqs: [CqState; QIDS],
    errors: ErrorLog,
}

fn split(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

fn join([low, high]: [u64; 2]) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

impl<I: Interrupts> Controller<I> {
    /// Saves the guest-visible state. Stop fetching first, and wait until [`Controller::is_idle`].
    pub fn export(&self) -> Result<ControllerState, Busy> {
        let streams = self.queues.sqs().any(|sq| sq.stream.is_some() || sq.deleting.is_some());
        let parked = self.queues.cqs().any(Cq::has_parked);
        if !self.is_idle() || streams || parked || self.namespaces.is_any_formatting() || self.work.is_answering() {
            return Err(Busy);
        }
        let mut state = ControllerState {
            magic: MAGIC,
            asq: self.regs.asq,
            acq: self.regs.acq,
            cc: self.regs.cc.0,
            csts: self.regs.csts.0,
            aqa: self.regs.aqa.0,
            int_mask: self.regs.int_mask,
            features: self.features,
            health: self.health,
            irq_written: split(self.irq.written),
            irq_wire_masked: split(self.irq.wire_masked),
            irq_pending: split(self.irq.pending),
            irq_armed: self.irq.armed.into(),
            events: self.events,
            irq_table: self.irq.table,
            pci: self.pci.save(),
            errors: self.errors,
            ..ControllerState::zeroed()
        };
        if let Some(pages) = self.queues.doorbells.pages {
            (state.has_shadow, state.shadow, state.shadow_events) = (1, pages.shadow, pages.events);
        }
        for (nsid, namespace) in self.namespaces.iter() {
            let (lba_bytes, error_recovery) = (namespace.config().lba_bytes, namespace.error_recovery);
            state.namespaces[nsid as usize - 1] = NamespaceState { lba_bytes, error_recovery };
        }
        for sq in self.queues.sqs() {
            let Geometry { qid, entries, iova } = sq.at;
            let (cqid, head, tail, priority) = (sq.cqid, sq.head, sq.tail, sq.priority);
            state.sqs[usize::from(qid)] = SqState { iova, entries, cqid, head, tail, priority, reserved: [0; 7] };
        }
        for cq in self.queues.cqs() {
            let Geometry { qid, entries, iova } = cq.at;
            let (vector, head, tail) = (cq.vector, cq.head, cq.tail);
            let (interrupts, phase) = (cq.interrupts.into(), cq.phase.into());
            state.cqs[usize::from(qid)] =
                CqState { iova, entries, vector, head, tail, interrupts, phase, reserved: [0; 6] };
        }
        Ok(state)
    }

    /// A controller that goes on where the saved one was. `doorbells` must be the same page. Map guest
    /// memory next; then its queues run. One interrupt per queue with unread completions is raised at
    /// the first `notify`, as one may have been lost.
    pub fn restore(
        config: ControllerConfig,
        doorbells: Arc<Mapping>,
        interrupts: I,
        state: &ControllerState,
    ) -> Result<Self, StateError> {
        if state.magic != MAGIC {
            return Err(StateError::Magic);
        }
        let mut this = Self::new(config, doorbells, interrupts)?;
        this.restore_registers(state)?;
        this.restore_namespaces(state)?;
        for (qid, saved) in (0..).zip(&state.cqs).filter(|(_, saved)| saved.entries > 0) {
            this.restore_cq(qid, saved)?;
        }
        for (qid, saved) in (0..).zip(&state.sqs).filter(|(_, saved)| saved.entries > 0) {
            this.restore_sq(qid, saved)?;
        }
        let (enabled, admin) = (this.regs.csts.rdy(), this.queues.sq(0).is_some());
        if enabled != admin {
            return Err(StateError::Invalid("the admin queue"));
        }
        Ok(this)
    }

    fn restore_registers(&mut self, state: &ControllerState) -> Result<(), StateError> {
        if !state.events.is_sane() {
            return Err(StateError::Invalid("the held event requests"));
        }
        (self.regs.asq, self.regs.acq) = (state.asq, state.acq);
        (self.regs.cc, self.regs.csts, self.regs.aqa) = (Cc(state.cc), Csts(state.csts), Aqa(state.aqa));
        self.regs.int_mask = state.int_mask;
        self.stopped = self.regs.csts.shst() != Csts::SHST_NONE;
        self.cache.assume_unflushed();
        if self.regs.csts.rdy() && !self.regs.cap.offers_ams(self.regs.cc.ams()) {
            return Err(StateError::Invalid("the arbitration mechanism"));
        }
        if !state.features.is_sane() {
            return Err(StateError::Invalid("the weights of queues"));
        }
        (self.features, self.health) = (state.features, state.health);
        self.start_arbitration();
        (self.events, self.errors) = (state.events, state.errors);
        self.pci.load(&state.pci);
        self.irq.control = self.pci.msix_control();
        self.irq.armed = state.irq_armed != 0;
        self.irq.table = state.irq_table;
        self.irq.written = join(state.irq_written);
        self.irq.wire_masked = join(state.irq_wire_masked);
        self.irq.pending = join(state.irq_pending) & ((1 << VECTORS) - 1);
        let pages = ShadowPages { shadow: state.shadow, events: state.shadow_events };
        self.queues.doorbells.pages = (state.has_shadow != 0).then_some(pages);
        Ok(())
    }

    /// What came or went meanwhile, the guest is told.
    fn restore_namespaces(&mut self, state: &ControllerState) -> Result<(), StateError> {
        for (nsid, saved) in (1..).zip(&state.namespaces) {
            let was_there = saved.lba_bytes > 0;
            match self.namespaces.get_mut(nsid) {
                Some(namespace) if was_there => {
                    if !namespace.config().lba_sizes.contains(&saved.lba_bytes) {
                        return Err(StateError::Invalid("a block size"));
                    }
                    namespace.set_lba_bytes(saved.lba_bytes);
                    namespace.error_recovery = saved.error_recovery & ERROR_RECOVERY;
                }
                None if !was_there => {}
                _ => self.namespace_changed(nsid),
            }
        }
        Ok(())
    }

    /// Whether a saved queue is one that this controller could have.
    fn fits(&self, qid: u16, entries: u16, indexes: [u16; 2]) -> Result<(), StateError> {
        let most = if qid == 0 { 4096 } else { self.config.max_depth };
        let sized = (2..=most).contains(&entries) && qid <= self.config.max_io_queues;
        if sized && indexes.iter().all(|index| *index < entries) {
            Ok(())
        } else {
            Err(StateError::Invalid("a queue's size or indexes"))
        }
    }

    fn restore_cq(&mut self, qid: u16, saved: &CqState) -> Result<(), StateError> {
        let CqState { iova, entries, vector, head, tail, interrupts, phase, .. } = *saved;
        self.fits(qid, entries, [head, tail])?;
        if vector >= VECTORS {
            return Err(StateError::Invalid("an interrupt vector"));
        }
        let mut cq = Cq::new(Geometry { qid, entries, iova }, vector, interrupts != 0, None);
        (cq.head, cq.tail, cq.phase) = (head, tail, phase != 0);
        cq.free -= cq.occupied();
        if cq.occupied() > 0 {
            self.queues.dirty |= 1 << qid;
        }
        self.queues.insert_cq(cq);
        Ok(())
    }

    fn restore_sq(&mut self, qid: u16, saved: &SqState) -> Result<(), StateError> {
        let SqState { iova, entries, cqid, head, tail, priority, .. } = *saved;
        self.fits(qid, entries, [head, tail])?;
        if self.queues.cq(cqid).is_none() || (qid == 0) != (cqid == 0) {
            return Err(StateError::Invalid("a submission queue's completion queue"));
        }
        if priority > create::QPRIO_LOW {
            return Err(StateError::Invalid("a submission queue's priority"));
        }
        let generation = self.next_generation();
        let mut sq = Sq::new(Geometry { qid, entries, iova }, cqid, priority, generation, None);
        (sq.head, sq.tail) = (head, tail);
        self.queues.insert_sq(sq);
        Ok(())
    }
}
