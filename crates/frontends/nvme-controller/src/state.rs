//! Everything that a guest can see of its controller as one block of plain data, but for its I/O commands: what
//! [`journal`](crate::journal) keeps of it, from which a fresh controller goes on.
//!
//! Not in it: guest memory (the VMM, or the process that kept it, maps it again; queues are halted until then), and the
//! contents of the doorbell page (it must be the same memory).

use bytemuck::{Pod, Zeroable};
use nvme_spec::Status;

use crate::admin::{ErrorLog, Events, Features, FormatRecord, FormatStep};
use crate::config::{ConfigError, ControllerConfig, MAX_NAMESPACES};
use crate::controller::Controller;
use crate::msix::{Interrupts, TABLE_BYTES};
use crate::parts::{CqSpec, FarSq, SqSpec};
use crate::pci::HEADER_BYTES;
use crate::queue::{Entry, Geometry};
use crate::queues::QIDS;
use crate::stats::Health;

/// Changes with the layout below, and with that of the journal. The version before is read too.
pub const STATE_VERSION: u8 = 5;

/// "evenkeel", and the version.
pub(crate) const fn magic(version: u8) -> u64 {
    u64::from_be_bytes([b'e', b'v', b'n', b'k', b'e', b'e', b'l', version])
}

/// Completions of admin commands that are posted at a time at most: one command's, and those of held event requests.
const OUTBOX: usize = 8;

/// Why a saved state was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Not such a state, or of another version.
    #[error("not a controller state of this version")]
    Magic,
    /// The controller is to have another number of queues.
    #[error("that has {were} queues, and `queues` is {are} now")]
    Queues {
        /// I/O queues at most of the one that is saved.
        were: u16,
        /// The most I/O queues of the new controller.
        are: u16,
    },
    /// It contradicts itself or the configuration.
    #[error("the saved controller state does not fit: {0}")]
    Invalid(&'static str),
    /// The configuration is refused by itself.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub(crate) struct SqState {
    pub(crate) iova: u64,
    /// 0: no such queue.
    pub(crate) entries: u16,
    pub(crate) cqid: u16,
    pub(crate) head: u16,
    pub(crate) reserved: u16,
    pub(crate) priority: u8,
    /// 1: a Delete command waits for what is in flight.
    pub(crate) is_deleting: u8,
    pub(crate) deleting_cid: u16,
    pub(crate) more_reserved: [u8; 4],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub(crate) struct CqState {
    pub(crate) iova: u64,
    /// 0: no such queue.
    pub(crate) entries: u16,
    pub(crate) vector: u16,
    pub(crate) tail: u16,
    pub(crate) interrupts: u8,
    pub(crate) phase: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub(crate) struct NamespaceState {
    /// 0: nothing is attached.
    pub(crate) lba_bytes: u32,
    pub(crate) error_recovery: u32,
}

/// See [`FormatState`].
const FORMAT_BY_KEY: u32 = 1 << 31;

/// A running Format of a namespace, which a successor begins anew.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub(crate) struct FormatState {
    /// Its number, from 1. 0: none runs.
    pub(crate) format: u32,
    /// With [`FORMAT_BY_KEY`] if it erases by another key.
    pub(crate) lba_bytes: u32,
    pub(crate) cid: u16,
    pub(crate) status: u16,
}

impl FormatState {
    fn of((record, cid, status): (FormatRecord, u16, Status)) -> Self {
        let by_key = if record.by_key { FORMAT_BY_KEY } else { 0 };
        Self { format: record.format, lba_bytes: record.lba_bytes | by_key, cid, status: status.0 }
    }

    /// The first step of that Format, of this namespace.
    pub(crate) fn begins(&self, nsid: u32) -> FormatRecord {
        FormatRecord {
            format: self.format,
            nsid,
            step: FormatStep::Begins,
            lba_bytes: self.lba_bytes & !FORMAT_BY_KEY,
            by_key: self.lba_bytes & FORMAT_BY_KEY != 0,
        }
    }
}

/// A controller's guest-visible state; plain old data, so that it can live in shared memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct ControllerState {
    pub(crate) magic: u64,
    /// Serial number of the controller that it belongs to.
    pub(crate) serial: [u8; 20],
    /// What the journal's tables are laid out for.
    pub(crate) max_io_queues: u16,
    pub(crate) max_depth: u16,
    pub(crate) asq: u64,
    pub(crate) acq: u64,
    pub(crate) shadow: u64,
    pub(crate) shadow_events: u64,
    pub(crate) cc: u32,
    pub(crate) csts: u32,
    pub(crate) aqa: u32,
    pub(crate) int_mask: u32,
    pub(crate) has_shadow: u32,
    /// 1: a reset waits for what is in flight.
    pub(crate) is_resetting: u32,
    /// I/O commands that were fetched and not completed.
    pub(crate) in_tables: u32,
    pub(crate) reserved: u32,
    pub(crate) formats: u32,
    pub(crate) outbox_len: u32,
    pub(crate) outbox: [Entry; OUTBOX],
    /// 1: an admin command was fetched whose answer is not written yet.
    pub(crate) is_in_hand: u64,
    pub(crate) in_hand: [u8; 64],
    pub(crate) features: Features,
    pub(crate) health: Health,
    pub(crate) irq_written: [u64; 2],
    pub(crate) irq_wire_masked: [u64; 2],
    pub(crate) irq_pending: [u64; 2],
    pub(crate) irq_armed: u64,
    pub(crate) events: Events,
    pub(crate) namespaces: [NamespaceState; MAX_NAMESPACES as usize],
    pub(crate) running: [FormatState; MAX_NAMESPACES as usize],
    pub(crate) irq_table: [u8; TABLE_BYTES],
    pub(crate) pci: [u8; HEADER_BYTES],
    pub(crate) sqs: [SqState; QIDS],
    pub(crate) cqs: [CqState; QIDS],
    pub(crate) errors: ErrorLog,
}

impl ControllerState {
    /// Nothing was begun that is not done.
    pub fn is_at_rest(&self) -> bool {
        let is_quiet = self.in_tables == 0 && self.outbox_len == 0 && self.is_in_hand == 0 && self.is_resetting == 0;
        is_quiet && self.running.iter().all(|it| it.format == 0) && self.sqs.iter().all(|sq| sq.is_deleting == 0)
    }
}

/// As its field has it (NVMe Base 2.0, 5.17.2.1): padded.
pub(crate) fn serial_of(config: &ControllerConfig) -> [u8; 20] {
    let mut serial = [b' '; 20];
    serial.iter_mut().zip(config.serial.bytes()).for_each(|(place, byte)| *place = byte);
    serial
}

fn split(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

pub(crate) fn join([low, high]: [u64; 2]) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

impl<I: Interrupts> Controller<I> {
    /// The state as it is. What I/O queues have in flight, and how far their completions are, the journal has besides.
    pub fn snapshot(&self) -> ControllerState {
        let mut state = ControllerState {
            magic: magic(STATE_VERSION),
            serial: serial_of(&self.config),
            max_io_queues: self.config.max_io_queues,
            max_depth: self.config.max_depth,
            in_tables: self.queues.sqs().filter(|sq| sq.at.qid > 0).map(|sq| sq.in_flight() as u32).sum(),
            asq: self.regs.asq,
            acq: self.regs.acq,
            cc: self.regs.cc.0,
            csts: self.regs.csts.0,
            aqa: self.regs.aqa.0,
            int_mask: self.regs.int_mask,
            is_resetting: self.is_resetting().into(),
            formats: self.formats,
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
        for (place, entry) in state.outbox.iter_mut().zip(&self.queues.outbox) {
            *place = *entry;
            state.outbox_len += 1;
        }
        let again = self.queues.sqs().find(|sq| sq.at.qid == 0).and_then(|sq| Some(&sq.again.front()?.sqe));
        if let Some(sqe) = self.work.in_hand().or(self.parts.in_hand()).or(self.sanitizing.in_hand()).or(again) {
            (state.is_in_hand, state.in_hand) = (1, bytemuck::must_cast(*sqe));
        }
        for (nsid, namespace) in self.namespaces.iter() {
            let at = nsid as usize - 1;
            let (lba_bytes, error_recovery) = (namespace.config().lba_bytes, namespace.error_recovery);
            state.namespaces[at] = NamespaceState { lba_bytes, error_recovery };
            // A Sanitize goes on without it.
            if let Some(format) = namespace.format.as_ref().and_then(|format| format.to_begin_anew()) {
                state.running[at] = FormatState::of(format);
            }
        }
        for sq in self.queues.sqs() {
            let Geometry { qid, entries, iova } = sq.at;
            let (cqid, head, priority) = (sq.cqid, sq.head, sq.priority);
            let (is_deleting, deleting_cid) = (sq.deleting.is_some().into(), sq.deleting.unwrap_or(0));
            let queue = SqState { iova, entries, cqid, head, priority, is_deleting, deleting_cid, ..SqState::zeroed() };
            state.sqs[usize::from(qid)] = queue;
        }
        for cq in self.queues.cqs() {
            let Geometry { qid, entries, iova } = cq.at;
            let (vector, tail) = (cq.vector, cq.tail);
            let (interrupts, phase) = (cq.interrupts.into(), cq.phase.into());
            state.cqs[usize::from(qid)] = CqState { iova, entries, vector, tail, interrupts, phase };
        }
        self.snapshot_far(&mut state);
        state
    }

    /// Queues of other parts. What is in them, the journal alone has.
    fn snapshot_far(&self, state: &mut ControllerState) {
        for FarSq { spec: SqSpec { at, cqid, priority }, deleting } in self.parts.sqs.values().copied() {
            let (is_deleting, deleting_cid) = (deleting.is_some().into(), deleting.unwrap_or(0));
            let Geometry { qid, entries, iova } = at;
            let queue = SqState { iova, entries, cqid, priority, is_deleting, deleting_cid, ..SqState::zeroed() };
            state.sqs[usize::from(qid)] = queue;
        }
        for CqSpec { at: Geometry { qid, entries, iova }, vector, interrupts } in self.parts.cqs.values().copied() {
            let interrupts = interrupts.into();
            state.cqs[usize::from(qid)] = CqState { iova, entries, vector, interrupts, ..CqState::zeroed() };
        }
    }
}
