//! Format NVM (NVMe Base 2.0, 5.14; NVM Command Set 1.0, 4.1.2): zeroes the namespace step by step, as
//! device commands of VQ 0, then takes the new block size.
//!
//! Whoever wires the controller records durably that it begins, before the first step, and that it has
//! ended, before it completes ([`FormatRecord`]). One that was cut short in between, by a reset, a device
//! error or the process's end, leaves a namespace whose commands fail with Namespace Not Ready until a
//! Format succeeds.

use std::sync::Arc;

use guest_memory::{IoBuf, Mapping};
use io_model::{Fetch, Op, Outcome, Token};
use nvme_spec::opcode::format;
use nvme_spec::{NSID_ALL, Sqe, Status};

use super::Reply;
use crate::Controller;
use crate::controller::{Event, FormatRecord, FormatStep};
use crate::msix::Interrupts;
use crate::namespace::NSID;
use crate::queue::Kind;

/// One step where the device can write zeroes: long enough to be done soon, short enough not to hold up
/// other tenants.
const ZEROES_STEP_BYTES: u64 = 64 << 20;

/// One step where zeroes are written as data.
const WRITE_STEP_BYTES: u64 = 1 << 20;

/// A running Format.
#[derive(Debug)]
pub(crate) struct Format {
    record: FormatRecord,
    cid: u16,
    /// The record is on its way.
    recording: bool,
    done_bytes: u64,
    in_flight: bool,
    /// Zeroes to write, where the device has no command for it.
    zeroes: Option<Arc<Mapping>>,
}

impl Format {
    /// Whether its next step can be fetched.
    pub fn is_ready(&self) -> bool {
        !self.in_flight && !self.recording
    }
}

impl<I: Interrupts> Controller<I> {
    pub(super) fn start_format(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        match sqe.nsid {
            NSID | NSID_ALL => {}
            _ => return Err(Status::INVALID_NAMESPACE),
        }
        if self.format.is_some() {
            return Err(Status::FORMAT_IN_PROGRESS);
        }
        let erase = sqe.cdw10 >> format::SES_SHIFT & 7;
        if erase != format::SES_NONE && erase != format::SES_USER_DATA {
            return Err(Status::INVALID_FIELD);
        }
        let index = (sqe.cdw10 & format::LBAF) as usize;
        let size = self.namespace.config.lba_sizes.get(index).copied();
        let lba_bytes = size.ok_or(Status::INVALID_FORMAT)?;
        // Neither metadata nor protection information, nor more than 16 formats.
        if sqe.cdw10 & (format::PI | format::MSET | format::LBAFU) != 0 {
            return Err(Status::INVALID_FORMAT);
        }
        let zeroes = if self.namespace.config.write_zeroes {
            None
        } else {
            let zeroes = Mapping::anonymous(WRITE_STEP_BYTES as usize);
            Some(zeroes.map_err(|_| Status::INTERNAL_ERROR)?)
        };
        self.formats = self.formats.wrapping_add(1);
        let record = FormatRecord { format: self.formats, step: FormatStep::Begins, lba_bytes };
        self.format = Some(Format { record, cid: sqe.cid, recording: true, done_bytes: 0, in_flight: false, zeroes });
        self.wiring_events.push_back(Event::Format(record));
        Ok(Reply::Later)
    }

    /// What [`Event::Format`] asked for was done. `is_durable`: it succeeded. Records are answered in their order, also
    /// those of Formats that went with a reset.
    pub fn format_recorded(&mut self, record: FormatRecord, is_durable: bool) {
        let FormatRecord { step, lba_bytes, .. } = record;
        let changed = lba_bytes != self.namespace.config.lba_bytes;
        match step {
            _ if !is_durable => {}
            FormatStep::Begins => self.namespace.config.format_cut_short = true,
            FormatStep::Ends => {
                self.namespace.config.format_cut_short = false;
                self.namespace.set_lba_bytes(lba_bytes);
            }
        }
        let Some(format) = self.format.as_mut().filter(|format| format.record == record) else { return };
        match step {
            _ if !is_durable => self.end_format(Status::INTERNAL_ERROR),
            FormatStep::Begins => format.recording = false,
            FormatStep::Ends => {
                self.end_format(Status::SUCCESS);
                if changed {
                    self.namespace_changed();
                }
            }
        }
    }

    /// FPI (NVM Command Set 1.0, 4.1.5.1): bit 7, supported; below it, how much is still to be formatted, in percent.
    pub(super) fn format_progress(&self) -> u8 {
        const SUPPORTED: u8 = 1 << 7;
        let config = &self.namespace.config;
        let left_bytes = match &self.format {
            Some(format) => config.size_bytes - format.done_bytes,
            None if config.format_cut_short => config.size_bytes,
            None => 0,
        };
        let percent = (u128::from(left_bytes) * 100).div_ceil(config.size_bytes.into()) as u8;
        // While it is not recorded yet it is not done either.
        SUPPORTED | percent.max(u8::from(self.format.is_some()))
    }

    /// The next step of a running Format, unless one is in flight.
    pub(super) fn next_format_chunk(&mut self) -> Option<Fetch> {
        let generation = self.queues.sq(0)?.generation;
        let format = self.format.as_mut().filter(|format| format.is_ready())?;
        let left = self.namespace.config.size_bytes - format.done_bytes;
        let mut buf = IoBuf::default();
        let (op, len_bytes) = match &format.zeroes {
            None => (Op::WriteZeroes, left.min(ZEROES_STEP_BYTES)),
            Some(zeroes) => {
                let len_bytes = left.min(WRITE_STEP_BYTES);
                buf.push(zeroes, 0, len_bytes);
                (Op::Write, len_bytes)
            }
        };
        let command = self.namespace.config.place.command(op, format.done_bytes, len_bytes);
        format.done_bytes += len_bytes;
        format.in_flight = true;
        self.in_flight += 1;
        let command = command.with_fua(self.namespace.config.volatile_write_cache);
        Some(Fetch::Command(command, buf, Token::new(0, generation, 0)))
    }

    /// A step ended.
    pub(crate) fn end_format_chunk(&mut self, generation: u16, outcome: Outcome) {
        // A step of a Format that went with a reset has an older generation.
        if self.queues.sq(0).is_none_or(|sq| sq.generation != generation) {
            return;
        }
        let Some(format) = &mut self.format else { return };
        format.in_flight = false;
        if let Err(error) = outcome {
            let status = self.device_status(Kind::WriteZeroes, error);
            self.end_format(status);
        } else if format.done_bytes == self.namespace.config.size_bytes {
            format.record.step = FormatStep::Ends;
            format.recording = true;
            self.wiring_events.push_back(Event::Format(format.record));
        }
    }

    fn end_format(&mut self, status: Status) {
        let Some(Format { cid, .. }) = self.format.take() else { return };
        if !status.is_success() {
            self.log_error(0, cid, status, 0, NSID);
        }
        self.queues.post(0, cid, 0, status);
    }
}
