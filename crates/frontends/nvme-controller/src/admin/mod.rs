//! Admin commands (NVMe Base 2.0, 5): queue 0.

mod events;
mod features;
mod format;
mod identify;
mod logs;
mod queues;
mod sanitize;
mod work;

pub(crate) use events::Events;
pub(crate) use features::{ERROR_RECOVERY, Features};
pub(crate) use format::Format;
pub use format::{EraseRecord, FormatRecord, FormatStep};
pub use identify::nguid;
pub(crate) use logs::ErrorLog;
pub use logs::PromiseSource;
pub(crate) use sanitize::Sanitizing;
pub use sanitize::{Sanitize, SanitizeRecord, SanitizeState};
pub(crate) use work::{LOOK_BYTES, Work};

use io_model::Fetch;
use nvme_spec::identify::IDENTIFY_BYTES;
use nvme_spec::log::lid;
use nvme_spec::opcode::admin;
use nvme_spec::{Sqe, Status};

use crate::data;
use crate::dbbuf::ShadowPages;
use crate::msix::Interrupts;
use crate::parts::Ask;
use crate::{Controller, Event, Fatal};

/// How an admin command was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// It succeeded with this dword 0.
    Now(u32),
    /// It completes later and keeps its completion entry reserved.
    Later,
    /// It waits for an event, and will find a completion entry then.
    Held,
}

impl<I: Interrupts> Controller<I> {
    /// The next device command of our own.
    pub(crate) fn fetch_own(&mut self) -> Fetch {
        let flush = self.next_parting_flush();
        let next = flush.or_else(|| if self.erases() { self.next_format_chunk() } else { None });
        next.unwrap_or(Fetch::Empty)
    }

    /// Executes the next admin command, unless there is none or no room for its completion. Returns whether it did.
    fn execute_next(&mut self) -> bool {
        if self.waits_for_parts() || self.waits_for_sanitize() || self.admin_waiting() == 0 {
            return false;
        }
        self.deliver_events();
        // An event may have taken the last completion entry.
        let Some((sq, cq)) = self.queues.pair(0) else { return false };
        if cq.free == 0 && sq.again.is_empty() {
            return false;
        }
        let again = sq.take_again();
        let is_new = again.is_none();
        let Some(sqe) = again.or_else(|| sq.peek()) else { return false };
        if is_new {
            cq.reserve();
            if sq.head == 0 && bytemuck::bytes_of(&sqe).iter().all(|byte| *byte == 0) {
                self.wiring_events.push_back(Event::Fatal(Fatal::Blank));
            }
            sq.advance();
        }
        // The table is for what the drive has.
        sq.unclaim();
        self.stats.commands += 1;
        self.work.is_executing = true;
        let result = self.execute(&sqe, is_new);
        self.conclude(&sqe, result);
        self.work.is_executing = false;
        true
    }

    /// Completes a command that was executed, unless that is for later.
    pub(crate) fn conclude(&mut self, sqe: &Sqe, result: Result<Reply, Status>) {
        match result {
            Ok(Reply::Now(dw0)) => self.queues.complete_admin(sqe.cid, dw0, Status::SUCCESS),
            Ok(Reply::Later) => {}
            Ok(Reply::Held) => {
                if let Some(cq) = self.queues.cq(0) {
                    cq.unreserve();
                }
                self.deliver_events();
            }
            Err(status) => self.reject(0, sqe, status),
        }
    }

    /// Admin commands that can be fetched now; reads both doorbells.
    fn admin_waiting(&mut self) -> u32 {
        let Some((sq, cq)) = self.queues.pair(0) else { return 0 };
        let bad_tail = sq.refresh(true).is_err();
        let bad_head = cq.refresh(true).is_err();
        if bad_tail || bad_head {
            // May take the last completion entry: look for room only then.
            self.invalid_doorbell();
        }
        let Some((sq, cq)) = self.queues.pair(0) else { return 0 };
        let reachable = sq.view().is_some() && cq.view().is_some();
        if reachable && !sq.again.is_empty() {
            return sq.again.len() as u32;
        }
        if reachable && cq.free > 0 { sq.waiting() } else { 0 }
    }

    fn execute(&mut self, sqe: &Sqe, is_new: bool) -> Result<Reply, Status> {
        // Admin commands use PRPs, and none is fused.
        if sqe.fuse() != 0 || sqe.psdt() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if let Some(status) = self.admin_refusal(sqe) {
            return Err(status);
        }
        match sqe.opc {
            admin::DELETE_SQ => self.delete_sq(sqe),
            admin::CREATE_SQ => self.create_sq(sqe),
            admin::GET_LOG_PAGE if matches!(sqe.cdw10 as u8, lid::ERROR | lid::SMART) => {
                self.ask_others(sqe, Ask::Counts)
            }
            admin::GET_LOG_PAGE => self.get_log_page(sqe),
            admin::DELETE_CQ => self.delete_cq(sqe),
            admin::CREATE_CQ => self.create_cq(sqe),
            admin::IDENTIFY => {
                let mut answer = [0; IDENTIFY_BYTES];
                self.identify(sqe, &mut answer)?;
                data::give(&mut self.memory, sqe, &answer)?;
                Ok(Reply::Now(0))
            }
            admin::ABORT => self.abort(sqe),
            admin::SET_FEATURES => self.set_features(sqe),
            admin::GET_FEATURES => self.get_features(sqe),
            admin::ASYNC_EVENT_REQUEST => self.hold_event_request(sqe),
            // KAS is 0, so no timer runs and a conforming host does not ask; one that asks all the
            // same is told that we are alive.
            admin::KEEP_ALIVE => Ok(Reply::Now(0)),
            admin::DOORBELL_BUFFER_CONFIG if self.takes_shadow_doorbells() => self.configure_doorbell_buffers(sqe),
            admin::FORMAT_NVM if self.config.has_format() => self.start_format(sqe),
            admin::SANITIZE if self.config.has_format() => self.start_sanitize(sqe, is_new),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Doorbell Buffer Config (5.8): from now on I/O queues are driven through these pages.
    fn configure_doorbell_buffers(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        let [shadow, events] = sqe.dptr;
        if (shadow | events) & 0xfff != 0 || shadow == events {
            return Err(Status::INVALID_FIELD);
        }
        let previous = self.queues.doorbells.pages.replace(ShadowPages { shadow, events });
        let reachable = |page| self.memory.view(page, nvme_spec::PAGE_BYTES, guest_memory::Access::Write).is_ok();
        if ![shadow, events].into_iter().all(reachable) {
            self.queues.doorbells.pages = previous;
            return Err(Status::DATA_TRANSFER_ERROR);
        }
        self.queues.move_doorbells(&mut self.memory);
        // Each queue's doorbells are looked up anew.
        self.work.charge(2 * LOOK_BYTES);
        self.ask_others(sqe, Ask::MoveDoorbells(ShadowPages { shadow, events }))
    }

    /// Aborts a command before it ran (5.1). Commands wait in the guest's queue until the device can
    /// take them and are then beyond recall, so that only a held Asynchronous Event Request is aborted.
    fn abort(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        const NOT_ABORTED: u32 = 1;
        let (sqid, cid) = (sqe.cdw10 as u16, (sqe.cdw10 >> 16) as u16);
        if !self.has_sq(sqid) {
            return Err(Status::INVALID_FIELD);
        }
        let room = self.queues.cq(0).is_some_and(|cq| cq.free > 0);
        if sqid != 0 || !room || !self.events.release(cid) {
            return Ok(Reply::Now(NOT_ABORTED));
        }
        if let Some(cq) = self.queues.cq(0) {
            cq.reserve();
        }
        self.queues.complete_admin(cid, 0, Status::ABORT_REQUESTED);
        Ok(Reply::Now(0))
    }
}
