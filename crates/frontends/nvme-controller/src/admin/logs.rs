//! Get Log Page (NVMe Base 2.0, 5.16), and the error log.

use std::fmt::Debug;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable, bytes_of, cast_slice};
use guest_memory::Access;
use nvme_spec::log::{CommandsEffectsLog, ErrorEntry, FirmwareSlotLog, SmartLog, effect, event_type, get_log, lid};
use nvme_spec::opcode::{admin, nvm};
use nvme_spec::vendor::{LID_PROMISE, PromiseLog};
use nvme_spec::{NSID_ALL, Sqe, Status};

use super::Reply;
use crate::msix::Interrupts;
use crate::namespace::not_attached;
use crate::{Controller, prp};

/// Entries that the error log keeps.
pub(crate) const ERROR_ENTRIES: usize = 64;

/// The temperature that a drive made of software reports, in kelvin (25 °C).
const TEMPERATURE_K: u16 = 298;

/// No page is longer.
const PAGE_MAX_BYTES: usize = 4096;

const CHANGED_LIST_BYTES: usize = 4096;

const SUPPORTED_PAGES_BYTES: usize = 1024;

/// What a [`PromiseSource`] reads for each part of the controller: a histogram, twice.
const PROMISE_BYTES: u64 = 36 << 10;

/// The figures of the controller's tenant for its [`PromiseLog`].
pub trait PromiseSource: Debug + Send + Sync {
    /// Fills in what is known, over what [`PromiseLog::blank`] has. Called for admin commands alone; it must not wait.
    fn fill(&self, log: &mut PromiseLog);
}

/// The last [`ERROR_ENTRIES`] commands that failed.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub(crate) struct ErrorLog {
    /// Failures since the controller was made.
    pub count: u64,
    /// A ring: the entry of failure `n` (from 1) is at `n % ERROR_ENTRIES`.
    entries: [ErrorEntry; ERROR_ENTRIES],
}

impl ErrorLog {
    fn push(&mut self, entry: ErrorEntry) {
        self.count += 1;
        self.entries[(self.count % ERROR_ENTRIES as u64) as usize] = ErrorEntry { error_count: self.count, ..entry };
    }

    /// Adds what another one has.
    pub fn absorb(&mut self, other: &Self) {
        let kept = other.count.min(ERROR_ENTRIES as u64);
        self.count += other.count - kept;
        for number in other.count - kept + 1..=other.count {
            self.push(other.entries[(number % ERROR_ENTRIES as u64) as usize]);
        }
    }

    /// Newest first, as the log page has them; while a Sanitize forbids it, without LBAs.
    fn page(&self, has_lbas: bool) -> [ErrorEntry; ERROR_ENTRIES] {
        let newest = (self.count % ERROR_ENTRIES as u64) as usize;
        std::array::from_fn(|back| {
            let entry = self.entries[(newest + ERROR_ENTRIES - back) % ERROR_ENTRIES];
            ErrorEntry { lba: if has_lbas { entry.lba } else { 0 }, ..entry }
        })
    }
}

impl<I: Interrupts> Controller<I> {
    /// Notes a failed command.
    #[cold]
    pub(crate) fn log_error(&mut self, sqid: u16, cid: u16, status: Status, lba: u64, nsid: u32) {
        let parameter_location = 0xffff;
        let status = status.0 << 1;
        self.errors.push(ErrorEntry { sqid, cid, status, parameter_location, lba, nsid, ..Zeroable::zeroed() });
    }

    /// Refuses a command whose completion entry is reserved.
    #[cold]
    pub(crate) fn reject(&mut self, sqid: u16, sqe: &Sqe, status: Status) {
        self.stats.rejected += 1;
        // These may succeed when tried again; everything else would fail the same way.
        let passing =
            matches!(status, Status::FORMAT_IN_PROGRESS | Status::SANITIZE_IN_PROGRESS | Status::DATA_TRANSFER_ERROR);
        let status = if passing { status } else { status.dnr() };
        let lba = if sqid > 0 && sqe.opc != nvm::DATASET_MANAGEMENT { sqe.slba() } else { 0 };
        self.log_error(sqid, sqe.cid, status, lba, sqe.nsid);
        if sqid == 0 { self.queues.complete_admin(sqe.cid, 0, status) } else { self.handled(sqid, sqe, status) }
    }

    /// Offers the guest a [`PromiseLog`] of these figures. The part with the admin queue needs them.
    pub fn show_promise(&mut self, source: Option<Arc<dyn PromiseSource>>) {
        self.promise = source;
    }

    /// The source of the [`PromiseLog`], if there is one.
    pub fn promise(&self) -> Option<&Arc<dyn PromiseSource>> {
        self.promise.as_ref()
    }

    pub(crate) fn get_log_page(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        let id = sqe.cdw10 as u8;
        let dwords = u64::from(sqe.cdw10 >> 16) | u64::from(sqe.cdw11 & 0xffff) << 16;
        let (len_bytes, offset) = ((dwords + 1) * 4, u64::from(sqe.cdw12) | u64::from(sqe.cdw13) << 32);
        // Dword 14 bit 23: the offset counts entries, which no page here offers.
        let by_index = sqe.cdw14 & 1 << 23 != 0;
        if len_bytes > self.config.max_transfer_bytes.into() || offset & 3 != 0 || by_index {
            return Err(Status::INVALID_FIELD);
        }
        let mut room = [0; PAGE_MAX_BYTES];
        let page = self.log_page(id, sqe.nsid, &mut room)?;
        let rest = usize::try_from(offset).ok().and_then(|offset| page.get(offset..)).ok_or(Status::INVALID_FIELD)?;
        let mut buf = self.pool.pop().unwrap_or_default();
        if let Err(status) = prp::translate(&mut self.memory, sqe.dptr, len_bytes, Access::Write, &mut buf) {
            self.recycle(buf);
            return Err(status);
        }
        if sqe.cdw10 & get_log::RAE == 0 {
            self.log_was_read(id);
        }
        self.begin_answer(sqe, buf, rest);
        Ok(Reply::Later)
    }

    /// A log page, in `room`.
    fn log_page<'a>(&mut self, id: u8, nsid: u32, room: &'a mut [u8; PAGE_MAX_BYTES]) -> Result<&'a [u8], Status> {
        let mut put = |page: &[u8]| {
            room[..page.len()].copy_from_slice(page);
            page.len()
        };
        let len_bytes = match id {
            lid::SUPPORTED_PAGES => put(&self.supported_pages()),
            lid::ERROR => put(cast_slice(&self.errors.page(self.sanitize_refusal().is_none()))),
            // Kept for the controller, not per namespace (LPA bit 0): as if there were none.
            lid::SMART if nsid != 0 && nsid != NSID_ALL => {
                return Err(not_attached(nsid));
            }
            lid::SMART => put(bytes_of(&self.smart())),
            lid::FIRMWARE_SLOT => put(bytes_of(&self.firmware_slots())),
            lid::CHANGED_NAMESPACES => {
                let changed: Vec<u32> = self.events.changed().collect();
                put(cast_slice(&changed));
                CHANGED_LIST_BYTES
            }
            lid::COMMANDS_EFFECTS => put(bytes_of(&self.commands_effects())),
            lid::SANITIZE_STATUS if self.config.has_format() => put(bytes_of(&self.sanitize_log())),
            LID_PROMISE => put(bytes_of(&self.promise_log()?)),
            _ => return Err(Status::INVALID_LOG_PAGE),
        };
        Ok(&room[..len_bytes])
    }

    fn promise_log(&mut self) -> Result<PromiseLog, Status> {
        let source = self.promise.as_ref().ok_or(Status::INVALID_LOG_PAGE)?;
        let mut log = PromiseLog::blank();
        source.fill(&mut log);
        self.work.charge(PROMISE_BYTES * u64::from(self.config.part.of));
        Ok(log)
    }

    /// Supported Log Pages (5.16.1.1): a dword per page, bit 0 set for those that there are.
    fn supported_pages(&self) -> [u8; SUPPORTED_PAGES_BYTES] {
        let mut page = [0; SUPPORTED_PAGES_BYTES];
        let promise = self.promise.is_some().then_some(LID_PROMISE);
        let sanitize = self.config.has_format().then_some(lid::SANITIZE_STATUS);
        for id in (lid::SUPPORTED_PAGES..=lid::COMMANDS_EFFECTS).chain(sanitize).chain(promise) {
            page[4 * usize::from(id)] = 1;
        }
        page
    }

    /// Reading a page without RAE lets the next event of its type be reported.
    fn log_was_read(&mut self, id: u8) {
        match id {
            lid::ERROR => self.events.log_was_read(event_type::ERROR),
            lid::SMART => self.events.log_was_read(event_type::SMART),
            lid::CHANGED_NAMESPACES => self.events.changes_were_read(),
            lid::SANITIZE_STATUS => self.events.log_was_read(event_type::IO_COMMAND),
            _ => {}
        }
        self.deliver_events();
    }

    fn smart(&self) -> SmartLog {
        let health = &self.health;
        let units = |bytes: u64| [bytes.div_ceil(512_000), 0];
        SmartLog {
            temperature_k: TEMPERATURE_K.to_le_bytes(),
            available_spare: 100,
            available_spare_threshold: 10,
            data_units_read: units(health.read_bytes),
            data_units_written: units(health.written_bytes),
            host_reads: [health.host_reads, 0],
            host_writes: [health.host_writes, 0],
            power_cycles: [health.power_cycles, 0],
            unsafe_shutdowns: [health.unsafe_shutdowns, 0],
            media_errors: [health.media_errors, 0],
            error_entries: [self.errors.count, 0],
            ..Zeroable::zeroed()
        }
    }

    fn firmware_slots(&self) -> FirmwareSlotLog {
        let mut log = FirmwareSlotLog { afi: 1, ..Zeroable::zeroed() };
        log.frs[0] = [b' '; 8];
        for (byte, from) in log.frs[0].iter_mut().zip(self.config.firmware.bytes()) {
            *byte = from;
        }
        log
    }

    fn commands_effects(&self) -> CommandsEffectsLog {
        let mut log = CommandsEffectsLog::zeroed();
        for opcode in [
            admin::DELETE_SQ,
            admin::CREATE_SQ,
            admin::GET_LOG_PAGE,
            admin::DELETE_CQ,
            admin::CREATE_CQ,
            admin::IDENTIFY,
            admin::ABORT,
            admin::SET_FEATURES,
            admin::GET_FEATURES,
            admin::ASYNC_EVENT_REQUEST,
            admin::KEEP_ALIVE,
        ] {
            log.acs[usize::from(opcode)] = effect::SUPPORTED;
        }
        if self.takes_shadow_doorbells() {
            log.acs[usize::from(admin::DOORBELL_BUFFER_CONFIG)] = effect::SUPPORTED;
        }
        let config = &self.config;
        if config.has_format() {
            log.acs[usize::from(admin::FORMAT_NVM)] =
                effect::SUPPORTED | effect::LBCC | effect::NCC | effect::CSE_NAMESPACE;
            log.acs[usize::from(admin::SANITIZE)] = effect::SUPPORTED | effect::LBCC | effect::CSE_ALL;
        }
        for (opcode, has, effects) in [
            (nvm::FLUSH, true, 0),
            (nvm::WRITE, true, effect::LBCC),
            (nvm::READ, true, 0),
            (nvm::COMPARE, true, 0),
            (nvm::WRITE_ZEROES, config.write_zeroes, effect::LBCC),
            (nvm::DATASET_MANAGEMENT, config.discard, effect::LBCC),
            (nvm::VERIFY, true, 0),
        ] {
            log.iocs[usize::from(opcode)] = if has { effect::SUPPORTED | effects } else { 0 };
        }
        log
    }
}
