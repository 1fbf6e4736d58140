//! Sanitize (NVMe Base 2.0, 5.24 and 8.21): erases all namespaces, by other keys or by a pattern that is written over
//! them. The command completes once it is durable that the operation runs. The rest goes on by itself: across resets,
//! without a client, and in the next process.
//!
//! Each namespace is erased as by a Format, which no command waits for. Those that are still to be erased are marked
//! as after a Format that was cut short, durably before the command completes. A namespace that is detached is no part
//! of it any more, and keeps its mark.

use std::sync::Arc;

use guest_memory::Mapping;
use nvme_spec::identify::sanicap;
use nvme_spec::log::{AsyncEvent, SanitizeLog, lid, sstat};
use nvme_spec::opcode::{admin, sanitize};
use nvme_spec::{Sqe, Status};

use super::Reply;
use super::format::{EraseRecord, Format, FormatRecord, FormatStep, WRITE_STEP_BYTES};
use crate::Controller;
use crate::controller::Event;
use crate::msix::Interrupts;
use crate::namespace::Namespace;

/// The bits of dword 10 that have a meaning.
const KNOWN: u32 = sanitize::ACTION | sanitize::UNRESTRICTED_EXIT | OWPASS | sanitize::INVERT | sanitize::NO_DEALLOCATE;

const OWPASS: u32 = 0xf << sanitize::OWPASS_SHIFT;

/// The latest Sanitize of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sanitize {
    /// Dword 10 of the command.
    pub cdw10: u32,
    /// Dword 11: what an overwrite writes.
    pub pattern: u32,
    /// How far it is.
    pub state: SanitizeState,
}

/// See [`Sanitize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SanitizeState {
    /// It goes on.
    Running,
    /// Everything is erased.
    Completed,
    /// Not everything is. Nothing is read or written until another one completes.
    Failed,
    /// It failed, and the guest left the failure mode. What is not erased needs a Format.
    Exited,
}

/// What must be durable before a Sanitize goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SanitizeRecord {
    /// With its present state.
    pub sanitize: Sanitize,
    /// The namespaces that are to be erased from now on: that of NSID `n` as bit `n - 1`.
    pub nsids: u32,
}

/// What a Sanitize is in the middle of.
#[derive(Debug, Default)]
pub(crate) struct Sanitizing {
    /// A record is on its way.
    recording: bool,
    /// The command that completes once it is recorded.
    command: Option<Sqe>,
    /// Namespaces with Formats from this number on came later.
    number: u32,
    /// Nothing more is begun: the controller goes.
    is_halted: bool,
    /// Writes that there were when it completed. Another process does not know.
    writes_before: Option<u64>,
}

impl Sanitizing {
    /// The command that is to be executed again by another process.
    pub fn in_hand(&self) -> Option<&Sqe> {
        self.command.as_ref()
    }

    /// A reset: the command completes to nobody.
    pub fn drop_command(&mut self) {
        self.command = None;
    }
}

impl Sanitize {
    fn by_key(self) -> bool {
        self.cdw10 & sanitize::ACTION == sanitize::CRYPTO_ERASE
    }

    /// How often an overwrite writes; 0 for others.
    fn passes(self) -> u8 {
        match (self.cdw10 & OWPASS) >> sanitize::OWPASS_SHIFT {
            _ if self.by_key() => 0,
            0 => 16,
            passes => passes as u8,
        }
    }

    fn inverts(self) -> bool {
        self.cdw10 & sanitize::INVERT != 0
    }

    /// The pattern of odd passes, then that of even ones.
    fn data(self) -> Option<Arc<Mapping>> {
        let data = Mapping::anonymous(2 * WRITE_STEP_BYTES as usize).ok()?;
        for (at, pattern) in [(0, self.pattern), (WRITE_STEP_BYTES, !self.pattern)] {
            data.write_at(at, &pattern.to_le_bytes().repeat(WRITE_STEP_BYTES as usize / 4))?;
        }
        Some(data)
    }

    /// What commands get that it forbids.
    #[inline]
    fn refusal(self) -> Option<Status> {
        match self.state {
            SanitizeState::Running => Some(Status::SANITIZE_IN_PROGRESS),
            SanitizeState::Failed => Some(Status::SANITIZE_FAILED),
            SanitizeState::Completed | SanitizeState::Exited => None,
        }
    }
}

impl<I: Interrupts> Controller<I> {
    /// What I/O commands get because of a Sanitize.
    #[inline]
    pub(crate) fn sanitize_refusal(&self) -> Option<Status> {
        self.config.sanitize.and_then(Sanitize::refusal)
    }

    /// What an admin command gets that a Sanitize forbids (8.21, "Admin Commands Allowed").
    pub(super) fn admin_refusal(&self, sqe: &Sqe) -> Option<Status> {
        let status = self.sanitize_refusal()?;
        let is_allowed = match sqe.opc {
            admin::GET_LOG_PAGE => {
                matches!(sqe.cdw10 as u8, lid::ERROR | lid::SMART | lid::CHANGED_NAMESPACES | lid::SANITIZE_STATUS)
            }
            admin::DELETE_SQ | admin::CREATE_SQ | admin::DELETE_CQ | admin::CREATE_CQ => true,
            admin::IDENTIFY | admin::ABORT | admin::SET_FEATURES | admin::GET_FEATURES => true,
            admin::ASYNC_EVENT_REQUEST | admin::KEEP_ALIVE | admin::SANITIZE => true,
            _ => false,
        };
        (!is_allowed).then_some(status)
    }

    /// SANICAP. Block erase is not offered: on a file it would only punch holes.
    pub(super) fn sanitize_capabilities(&self) -> u32 {
        if !self.config.has_format() {
            return 0;
        }
        let by_key = self.namespaces.iter().all(|(_, it)| it.config().erases_by_key);
        let crypto = if by_key { sanicap::CRYPTO_ERASE } else { 0 };
        sanicap::OVERWRITE | sanicap::NOT_MODIFIED_AFTER | crypto
    }

    /// Nothing else is executed until the record is there that an admin command waits for.
    pub(super) fn waits_for_sanitize(&self) -> bool {
        self.sanitizing.recording && !self.is_sanitizing()
    }

    fn is_sanitizing(&self) -> bool {
        self.config.sanitize.is_some_and(|it| it.state == SanitizeState::Running)
    }

    /// Whether a Sanitize goes on, which fetches commands as VQ 0.
    #[inline]
    pub(crate) fn sanitizes(&self) -> bool {
        self.is_sanitizing() && !self.sanitizing.is_halted
    }

    /// Begins nothing more by itself. To be called before its user lets go of the controller.
    pub fn halt(&mut self) {
        self.sanitizing.is_halted = true;
    }

    pub(super) fn start_sanitize(&mut self, sqe: &Sqe, is_new: bool) -> Result<Reply, Status> {
        let failed = self.config.sanitize.filter(|it| it.state == SanitizeState::Failed);
        let is_restricted = failed.is_some_and(|it| it.cdw10 & sanitize::UNRESTRICTED_EXIT == 0);
        let asked = Sanitize { cdw10: sqe.cdw10, pattern: sqe.cdw11, state: SanitizeState::Running };
        let next = match sqe.cdw10 & sanitize::ACTION {
            _ if self.is_sanitizing() && is_new => return Err(Status::SANITIZE_IN_PROGRESS),
            // The process that had recorded it could not tell.
            _ if self.is_sanitizing() => return Ok(Reply::Now(0)),
            _ if sqe.cdw10 & !KNOWN != 0 => return Err(Status::INVALID_FIELD),
            sanitize::EXIT_FAILURE if is_restricted => return Err(Status::SANITIZE_FAILED),
            sanitize::EXIT_FAILURE => match failed {
                Some(failed) => Sanitize { state: SanitizeState::Exited, ..failed },
                None => return Ok(Reply::Now(0)),
            },
            sanitize::OVERWRITE | sanitize::CRYPTO_ERASE => {
                if is_restricted && sqe.cdw10 & sanitize::UNRESTRICTED_EXIT != 0 {
                    return Err(Status::SANITIZE_FAILED);
                }
                self.check_erasable(asked)?;
                asked
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        let is_begun = next.state == SanitizeState::Running;
        let all = self.namespaces.iter().filter(|_| is_begun).fold(0, |all, (nsid, _)| all | 1 << (nsid - 1));
        self.formats = self.formats.wrapping_add(1);
        (self.sanitizing.command, self.sanitizing.number) = (Some(*sqe), self.formats);
        // The next process must know that this command may have begun it.
        self.record();
        self.record_sanitize(next, all);
        Ok(Reply::Later)
    }

    fn check_erasable(&self, asked: Sanitize) -> Result<(), Status> {
        if asked.by_key() && self.sanitize_capabilities() & sanicap::CRYPTO_ERASE == 0 {
            return Err(Status::INVALID_FIELD);
        }
        self.namespaces.iter().try_for_each(|(_, namespace)| match namespace {
            _ if namespace.format.is_some() => Err(Status::FORMAT_IN_PROGRESS),
            _ if namespace.config().elsewhere => Err(Status::OPERATION_DENIED),
            _ => namespace.blocks.check_writable(),
        })
    }

    fn record_sanitize(&mut self, sanitize: Sanitize, nsids: u32) {
        self.sanitizing.recording = true;
        self.wiring_events.push_back(Event::Erase(EraseRecord::Sanitize(SanitizeRecord { sanitize, nsids })));
    }

    /// See [`Controller::recorded`].
    pub(super) fn sanitize_recorded(&mut self, record: SanitizeRecord, is_durable: bool) {
        let SanitizeRecord { sanitize, nsids } = record;
        self.sanitizing.recording = false;
        if matches!(sanitize.state, SanitizeState::Completed | SanitizeState::Failed) {
            let state = if is_durable { sanitize.state } else { SanitizeState::Failed };
            self.config.sanitize = Some(Sanitize { state, ..sanitize });
            self.sanitizing.writes_before = (state == SanitizeState::Completed).then_some(self.health.host_writes);
            return self.note_event(AsyncEvent::SANITIZED);
        }
        if is_durable {
            self.config.sanitize = Some(sanitize);
            self.events.forget_sanitized();
            let number = self.sanitizing.number;
            let its = |(nsid, it): &(u32, &mut Namespace)| nsids >> (nsid - 1) & 1 != 0 && number > it.formats_before;
            self.namespaces.iter_mut().filter(its).for_each(|(_, it)| it.set_cut_short(true));
        }
        let Some(sqe) = self.sanitizing.command.take() else { return };
        let status = if is_durable { Status::SUCCESS } else { Status::INTERNAL_ERROR };
        if !is_durable {
            self.log_error(0, sqe.cid, status, 0, 0);
        }
        self.queues.complete_admin(sqe.cid, 0, status);
        self.post_admin();
    }

    /// Begins what a Sanitize that goes on has to do next. Returns whether there was anything.
    #[inline]
    pub(crate) fn go_on_sanitizing(&mut self) -> bool {
        let Some(running) = self.config.sanitize.filter(|_| self.sanitizes()) else { return false };
        // A write of before must not land on what is erased already.
        let may = self.erases() && self.in_flight == 0 && !self.sanitizing.recording;
        may && self.sanitize_next(running)
    }

    fn sanitize_next(&mut self, running: Sanitize) -> bool {
        let (by_key, mut data, mut any) = (running.by_key(), None, false);
        while let Some((nsid, lba_bytes)) = self.namespaces.next_to_sanitize() {
            if !by_key && data.is_none() {
                self.work.charge(2 * WRITE_STEP_BYTES);
                data = running.data();
                if data.is_none() {
                    self.end_sanitize(SanitizeState::Failed);
                    return true;
                }
            }
            self.formats = self.formats.wrapping_add(1);
            let record = FormatRecord { format: self.formats, nsid, step: FormatStep::Ends, lba_bytes, by_key };
            if by_key {
                self.wiring_events.push_back(Event::Erase(EraseRecord::Format(record)));
            }
            let format = Format::of_sanitize(record, data.clone(), running.passes(), running.inverts());
            self.namespaces.begin_format(nsid, format);
            any = true;
        }
        let is_over = !self.namespaces.is_any_formatting();
        if is_over {
            self.end_sanitize(SanitizeState::Completed);
        }
        any || is_over
    }

    /// It has ended, or failed.
    pub(super) fn end_sanitize(&mut self, state: SanitizeState) {
        self.namespaces.give_up_formats(false);
        if let Some(running) = self.config.sanitize {
            self.record_sanitize(Sanitize { state, ..running }, 0);
        }
    }

    /// Sanitize Status (5.16.1.25).
    pub(super) fn sanitize_log(&self) -> SanitizeLog {
        let mut log: SanitizeLog = bytemuck::Zeroable::zeroed();
        (log.sprog, log.eto, log.etbe, log.etce) = (u16::MAX, u32::MAX, u32::MAX, u32::MAX);
        log.no_deallocate = [u32::MAX; 3];
        let Some(latest) = self.config.sanitize else { return log };
        let (progress, passes_so_far) = self.sanitize_progress(latest.passes());
        let (status, passes) = match latest.state {
            SanitizeState::Running => (sstat::IN_PROGRESS, passes_so_far),
            SanitizeState::Completed if self.is_untouched() => {
                (sstat::COMPLETED | sstat::NOTHING_WRITTEN, latest.passes())
            }
            SanitizeState::Completed => (sstat::COMPLETED, latest.passes()),
            SanitizeState::Failed | SanitizeState::Exited => (sstat::FAILED, passes_so_far),
        };
        if latest.state == SanitizeState::Running {
            log.sprog = progress;
        }
        log.sstat = status | u16::from(passes) << sstat::PASSES_SHIFT;
        log.scdw10 = latest.cdw10;
        log
    }

    /// How much is erased, in 65536ths, and the passes that are over in all namespaces.
    fn sanitize_progress(&self, passes: u8) -> (u16, u8) {
        let (mut done_bytes, mut total_bytes, mut passes_over) = (0, 0, passes);
        for (_, namespace) in self.namespaces.iter() {
            let size_bytes = namespace.config().size_bytes;
            let (its_bytes, its_passes) = match &namespace.format {
                Some(format) => format.done(size_bytes),
                None if namespace.config().format_cut_short => (0, 0),
                None => (size_bytes, passes),
            };
            (total_bytes, done_bytes) = (total_bytes + u128::from(size_bytes), done_bytes + u128::from(its_bytes));
            passes_over = passes_over.min(its_passes);
        }
        (((done_bytes << 16) / total_bytes.max(1)).min(u16::MAX.into()) as u16, passes_over)
    }

    /// Whether nothing was written since a Sanitize completed, as far as this process knows.
    fn is_untouched(&self) -> bool {
        let others_write = self.namespaces.iter().any(|(_, it)| it.config().elsewhere);
        self.sanitizing.writes_before == Some(self.health.host_writes) && !others_write
    }
}
