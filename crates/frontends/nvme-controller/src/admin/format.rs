//! Format NVM (NVMe Base 2.0, 5.14; NVM Command Set 1.0, 4.1.2): zeroes a namespace step by step, as
//! device commands of VQ 0, then takes the new block size. Others go on meanwhile, and can be formatted too. With
//! SES = 2 nothing is zeroed: the controller's user gives the namespace another key before the Format completes.
//! `sanitize` erases namespaces in this way too.
//!
//! The controller's user records durably that a format begins, before the first step, and that it has ended, before it
//! completes ([`FormatRecord`]). A format that was cut short in between, by a reset, a device error or the process's
//! end, leaves a namespace whose commands fail with Namespace Not Ready until a Format succeeds.

use std::sync::Arc;

use guest_memory::{IoBuf, Mapping};
use io_model::{Fetch, Op, Outcome, Token};
use nvme_spec::opcode::format;
use nvme_spec::{NSID_ALL, Sqe, Status};

use super::Reply;
use super::sanitize::{SanitizeRecord, SanitizeState};
use crate::Controller;
use crate::controller::Event;
use crate::msix::Interrupts;
use crate::namespace::Namespace;
use crate::queue::Kind;

/// One step where the device can write zeroes: long enough to be done soon, short enough not to hold up
/// other tenants.
const ZEROES_STEP_BYTES: u64 = 64 << 20;

/// One step where data is written: as long as the longest command where tenants take turns.
pub(super) const WRITE_STEP_BYTES: u64 = 128 << 10;

/// What must be durable before an erasure goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EraseRecord {
    /// Of one namespace.
    Format(FormatRecord),
    /// Of the whole controller.
    Sanitize(SanitizeRecord),
}

/// What must be durable before a namespace's erasure goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormatRecord {
    /// Which Format of this controller.
    pub format: u32,
    /// Of which namespace. One Format may be of all of them, and has records of each.
    pub nsid: u32,
    /// How far it is.
    pub step: FormatStep,
    /// Its logical block size.
    pub lba_bytes: u32,
    /// Nothing is zeroed: with [`FormatStep::Ends`] the namespace gets another key.
    pub by_key: bool,
}

/// See [`FormatRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormatStep {
    /// The namespace will be erased from now on: if nothing else is recorded, its Format was cut short.
    Begins,
    /// It is erased, and has the new block size.
    Ends,
}

/// A running Format of one namespace.
#[derive(Debug)]
pub(crate) struct Format {
    record: FormatRecord,
    /// Of its command. `None`: a Sanitize erases the namespace.
    cid: Option<u16>,
    /// How it ended for others that the same command formats.
    status: Status,
    /// The record is on its way.
    recording: bool,
    /// Of the present pass.
    done_bytes: u64,
    in_flight: bool,
    /// What is written, where the device does not write zeroes by itself.
    data: Option<Arc<Mapping>>,
    /// Passes that are over.
    pass: u8,
    passes: u8,
    /// Every other pass writes what follows in `data`.
    inverts: bool,
}

impl Format {
    fn new(record: FormatRecord, cid: Option<u16>, data: Option<Arc<Mapping>>) -> Self {
        let (status, passes) = (Status::SUCCESS, 1);
        let (recording, done_bytes, in_flight, pass, inverts) = (true, 0, false, 0, false);
        Self { record, cid, status, recording, done_bytes, in_flight, data, pass, passes, inverts }
    }

    /// Of a namespace whose erasure is recorded. Without `data`, another key is still to be recorded.
    pub fn of_sanitize(record: FormatRecord, data: Option<Arc<Mapping>>, passes: u8, inverts: bool) -> Self {
        Self { recording: data.is_none(), passes, inverts, ..Self::new(record, None, data) }
    }

    /// Whether no command waits for it.
    pub fn is_of_sanitize(&self) -> bool {
        self.cid.is_none()
    }

    /// Bytes of a namespace of `size_bytes` that it has erased, as a share of all passes, and passes that are over.
    pub fn done(&self, size_bytes: u64) -> (u64, u8) {
        let written_bytes = u128::from(self.pass) * u128::from(size_bytes) + u128::from(self.done_bytes);
        ((written_bytes / u128::from(self.passes.max(1))) as u64, self.pass)
    }

    /// Whether its next step can be fetched.
    pub fn is_ready(&self) -> bool {
        !self.in_flight && !self.recording
    }

    /// What it takes to begin it once more, with the command's identifier, and how it ended for others.
    pub fn to_begin_anew(&self) -> Option<(FormatRecord, u16, Status)> {
        Some((self.record, self.cid?, self.status))
    }

    /// Whether a step of it is with the drive.
    pub fn is_in_flight(&self) -> bool {
        self.in_flight
    }
}

impl<I: Interrupts> Controller<I> {
    pub(super) fn start_format(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        let named = if sqe.nsid == NSID_ALL { None } else { Some((sqe.nsid, self.namespaces.named(sqe.nsid)?)) };
        let all = self.namespaces.iter().filter(|_| named.is_none());
        let sizes = named.into_iter().chain(all).map(|(nsid, namespace)| Ok((nsid, new_lba_bytes(namespace, sqe)?)));
        let sizes = sizes.collect::<Result<Vec<_>, Status>>()?;
        if sizes.is_empty() {
            return Ok(Reply::Now(0));
        }
        let by_key = erase(sqe) == format::SES_CRYPTO;
        let zeroes = if by_key || self.config.write_zeroes {
            None
        } else {
            let zeroes = Mapping::anonymous(WRITE_STEP_BYTES as usize);
            Some(zeroes.map_err(|_| Status::INTERNAL_ERROR)?)
        };
        self.formats = self.formats.wrapping_add(1);
        for (nsid, lba_bytes) in sizes {
            let record = FormatRecord { format: self.formats, nsid, step: FormatStep::Begins, lba_bytes, by_key };
            self.namespaces.begin_format(nsid, Format::new(record, Some(sqe.cid), zeroes.clone()));
            self.wiring_events.push_back(Event::Erase(EraseRecord::Format(record)));
        }
        Ok(Reply::Later)
    }

    /// A Format that another process had begun begins once more, from the namespace's start.
    pub(crate) fn begin_format_anew(&mut self, record: FormatRecord, cid: u16, status: Status) {
        let FormatRecord { nsid, lba_bytes, by_key, .. } = record;
        let may_erase = |it: &Namespace| !by_key || it.config().erases_by_key;
        let fits = |it: &Namespace| it.format.is_none() && it.config().lba_sizes.contains(&lba_bytes) && may_erase(it);
        if !self.namespaces.get(nsid).is_some_and(fits) {
            return;
        }
        let zeroes = (!self.config.write_zeroes).then(|| Mapping::anonymous(WRITE_STEP_BYTES as usize).ok()).flatten();
        self.namespaces.begin_format(nsid, Format { status, ..Format::new(record, Some(cid), zeroes) });
        self.wiring_events.push_back(Event::Erase(EraseRecord::Format(record)));
    }

    /// What [`Event::Erase`] asked for was done. `is_durable`: it succeeded. Records are answered in their order, also
    /// those of Formats that went with a reset.
    pub fn recorded(&mut self, record: EraseRecord, is_durable: bool) {
        match record {
            EraseRecord::Format(record) => self.format_recorded(record, is_durable),
            EraseRecord::Sanitize(record) => self.sanitize_recorded(record, is_durable),
        }
        self.go_on_sanitizing();
    }

    fn format_recorded(&mut self, record: FormatRecord, is_durable: bool) {
        let FormatRecord { nsid, step, lba_bytes, .. } = record;
        let namespace = self.namespaces.get_mut(nsid).filter(|namespace| record.format > namespace.formats_before);
        let Some(namespace) = namespace else { return };
        let changed = lba_bytes != namespace.config().lba_bytes;
        let size_bytes = namespace.config().size_bytes;
        match step {
            _ if !is_durable => {}
            FormatStep::Begins => namespace.set_cut_short(true),
            FormatStep::Ends => {
                namespace.set_cut_short(false);
                namespace.set_lba_bytes(lba_bytes);
            }
        }
        let Some(format) = namespace.format.as_mut().filter(|format| format.record == record) else { return };
        match step {
            _ if !is_durable => self.end_format(nsid, Status::INTERNAL_ERROR),
            FormatStep::Begins if record.by_key => {
                format.done_bytes = size_bytes;
                format.record.step = FormatStep::Ends;
                self.wiring_events.push_back(Event::Erase(EraseRecord::Format(format.record)));
            }
            FormatStep::Begins => format.recording = false,
            FormatStep::Ends => {
                self.end_format(nsid, Status::SUCCESS);
                if changed {
                    self.namespace_changed(nsid);
                }
            }
        }
    }

    /// How many steps of Formats can be fetched.
    pub(crate) fn format_backlog(&self) -> u32 {
        if !self.namespaces.is_any_formatting() {
            return 0;
        }
        let ready = self.namespaces.formats().filter(|format| format.is_ready()).count() as u32;
        if self.sanitizes() { ready.min(u32::from(self.in_flight == 0)) } else { ready }
    }

    /// The next step of a running Format that has none in flight.
    pub(super) fn next_format_chunk(&mut self) -> Option<Fetch> {
        if !self.namespaces.is_any_formatting() {
            return None;
        }
        let mut running = self.namespaces.iter_mut().filter_map(|(nsid, namespace)| {
            let (place, size_bytes) = (namespace.blocks.place, namespace.config().size_bytes);
            let format = namespace.format.as_mut().filter(|format| format.is_ready())?;
            Some((nsid, place, size_bytes, format))
        });
        let (nsid, place, size_bytes, format) = running.next()?;
        let left = size_bytes - format.done_bytes;
        let mut buf = IoBuf::default();
        let (op, len_bytes) = match &format.data {
            None => (Op::WriteZeroes, left.min(ZEROES_STEP_BYTES)),
            Some(data) => {
                let len_bytes = left.min(WRITE_STEP_BYTES);
                let is_inverted = format.inverts && format.pass % 2 == 1;
                buf.push(data, if is_inverted { WRITE_STEP_BYTES } else { 0 }, len_bytes);
                (Op::Write, len_bytes)
            }
        };
        let command = place.command(op, format.done_bytes, len_bytes);
        format.done_bytes += len_bytes;
        format.in_flight = true;
        self.in_flight += 1;
        let command = command.with_fua(self.config.volatile_write_cache);
        Some(Fetch::Command(command, buf, Token::new(0, 0, nsid)))
    }

    /// A step ended.
    pub(crate) fn end_format_chunk(&mut self, nsid: u32, outcome: Outcome) {
        let Some(namespace) = self.namespaces.get_mut(nsid) else { return self.ended_of_leaving(nsid) };
        let size_bytes = namespace.config().size_bytes;
        // That of a Format that went with a reset: no other begins before the step has ended.
        let Some(format) = &mut namespace.format else { return };
        format.in_flight = false;
        if let Err(error) = outcome {
            let status = self.device_status(Kind::WriteZeroes, error);
            self.end_format(nsid, status);
        } else if format.done_bytes == size_bytes {
            format.pass += 1;
            if format.pass < format.passes {
                format.done_bytes = 0;
                return;
            }
            format.record.step = FormatStep::Ends;
            format.recording = true;
            self.wiring_events.push_back(Event::Erase(EraseRecord::Format(format.record)));
        }
    }

    /// A namespace's Format ended. The command completes with the last one that it formats.
    pub(crate) fn end_format(&mut self, nsid: u32, status: Status) {
        let Some(Format { cid, record, status: of_others, .. }) = self.namespaces.end_format(nsid) else { return };
        let Some(cid) = cid else {
            // A detached namespace is no part of what a Sanitize erases.
            if !status.is_success() && status != Status::INVALID_NAMESPACE {
                self.end_sanitize(SanitizeState::Failed);
            }
            return;
        };
        let status = if of_others.is_success() { status } else { of_others };
        if let Some(other) = self.namespaces.formats_mut().find(|other| other.record.format == record.format) {
            if !status.is_success() {
                other.status = status;
            }
            return;
        }
        if !status.is_success() {
            self.log_error(0, cid, status, 0, nsid);
        }
        self.queues.complete_admin(cid, 0, status);
        // At once: who takes over would erase it once more, and with it what is written there from now on.
        self.record();
        self.post_admin();
    }
}

/// Secure Erase Settings.
fn erase(sqe: &Sqe) -> u32 {
    sqe.cdw10 >> format::SES_SHIFT & 7
}

/// What the command makes of a namespace's block size, or why it can't.
fn new_lba_bytes(namespace: &Namespace, sqe: &Sqe) -> Result<u32, Status> {
    if namespace.format.is_some() {
        return Err(Status::FORMAT_IN_PROGRESS);
    }
    namespace.blocks.check_writable()?;
    if namespace.config().elsewhere {
        return Err(Status::OPERATION_DENIED);
    }
    match erase(sqe) {
        format::SES_NONE | format::SES_USER_DATA => {}
        format::SES_CRYPTO if namespace.config().erases_by_key => {}
        _ => return Err(Status::INVALID_FIELD),
    }
    let index = (sqe.cdw10 & format::LBAF) as usize;
    let lba_bytes = namespace.config().lba_sizes.get(index).copied().ok_or(Status::INVALID_FORMAT)?;
    // Neither metadata nor protection information, nor more than 16 formats.
    if sqe.cdw10 & (format::PI | format::MSET | format::LBAFU) != 0 {
        return Err(Status::INVALID_FORMAT);
    }
    Ok(lba_bytes)
}

impl Namespace {
    /// FPI (NVM Command Set 1.0, 4.1.5.1): bit 7, supported; below it, how much is still to be formatted, in percent.
    pub(super) fn format_progress(&self) -> u8 {
        const SUPPORTED: u8 = 1 << 7;
        let size_bytes = self.config().size_bytes;
        let left_bytes = match &self.format {
            Some(format) => size_bytes - format.done_bytes,
            None if self.config().format_cut_short => size_bytes,
            None => 0,
        };
        let percent = (u128::from(left_bytes) * 100).div_ceil(size_bytes.into()) as u8;
        // While it is not recorded yet it is not done either.
        SUPPORTED | percent.max(u8::from(self.format.is_some()))
    }
}
