//! Asynchronous events (NVMe Base 2.0, 5.2): requests that the host leaves with us, and events that
//! complete them. An event of a type is reported once; the next of that type waits until the host has
//! read the log page that belongs to it.

use bytemuck::{Pod, Zeroable};
use nvme_spec::log::{AsyncEvent, event_type};
use nvme_spec::{Sqe, Status};

use super::Reply;
use crate::Controller;
use crate::config::MAX_NAMESPACES;
use crate::msix::Interrupts;

/// Requests that a host may leave with us: AERL + 1.
pub(crate) const MAX_HELD: usize = 4;

/// Event types: error, SMART, notice.
const TYPES: usize = 3;

/// As for each type of [`Events`].
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
struct Further {
    reported: u8,
    waiting: u8,
}

/// Held requests and waiting events. Reset by a controller reset.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Pod, Zeroable)]
pub(crate) struct Events {
    /// CIDs of held requests, oldest first.
    cids: [u16; MAX_HELD],
    held: u16,
    /// Per type: 1 while one was reported and its log page not read.
    reported: [u8; TYPES],
    /// Per type: 1 while an event waits.
    waiting: [u8; TYPES],
    /// Per type: information and log page of the waiting event.
    info: [u8; TYPES],
    log_page: [u8; TYPES],
    /// Of a further type, with one event: that a sanitize operation has ended.
    sanitized: Further,
    reserved: [u8; 4],
    /// What the Changed Namespace List names: NSID `n` by bit `n - 1`.
    changed: u32,
}

impl Events {
    /// Notes an event; a second one of its type is dropped while one waits.
    pub fn note(&mut self, event: AsyncEvent) {
        let kind = usize::from(event.kind);
        if event == AsyncEvent::SANITIZED {
            self.sanitized.waiting = 1;
        }
        if let Some(waiting) = self.waiting.get_mut(kind).filter(|waiting| **waiting == 0) {
            *waiting = 1;
            self.info[kind] = event.info;
            self.log_page[kind] = event.log_page;
        }
    }

    /// The host read the log page that belongs to a type.
    pub fn log_was_read(&mut self, kind: u8) {
        if kind == event_type::IO_COMMAND {
            self.sanitized.reported = 0;
        }
        if let Some(reported) = self.reported.get_mut(usize::from(kind)) {
            *reported = 0;
        }
    }

    /// The host read which namespaces changed, those of a notice that waits included.
    pub fn changes_were_read(&mut self) {
        self.changed = 0;
        self.waiting[usize::from(event_type::NOTICE)] = 0;
        self.log_was_read(event_type::NOTICE);
    }

    /// Another sanitize operation begins.
    pub fn forget_sanitized(&mut self) {
        self.sanitized = Further::default();
    }

    /// A namespace comes to the Changed Namespace List.
    pub fn change(&mut self, nsid: u32) {
        self.changed |= 1 << (nsid.wrapping_sub(1) % MAX_NAMESPACES);
    }

    /// What that list names, in its order.
    pub fn changed(&self) -> impl Iterator<Item = u32> {
        (1..=MAX_NAMESPACES).filter(|nsid| self.changed >> (nsid - 1) & 1 != 0)
    }

    fn hold(&mut self, cid: u16) -> Result<(), Status> {
        let place = self.cids.get_mut(usize::from(self.held)).ok_or(Status::AER_LIMIT_EXCEEDED)?;
        *place = cid;
        self.held += 1;
        Ok(())
    }

    /// Gives up the held request with this CID. Returns whether there was one.
    pub fn release(&mut self, cid: u16) -> bool {
        let held = usize::from(self.held).min(MAX_HELD);
        let Some(at) = self.cids[..held].iter().position(|held| *held == cid) else { return false };
        self.cids.copy_within(at + 1..held, at);
        self.held -= 1;
        true
    }

    /// An event that can be reported now, if a request is held.
    fn due(&self) -> Option<AsyncEvent> {
        let is_due = |reported: u8, waiting: u8| self.held > 0 && waiting != 0 && reported == 0;
        let kind = (0..TYPES).find(|kind| is_due(self.reported[*kind], self.waiting[*kind]));
        let event = |kind| AsyncEvent { kind: kind as u8, info: self.info[kind], log_page: self.log_page[kind] };
        let Further { reported, waiting } = self.sanitized;
        kind.map(event).or_else(|| is_due(reported, waiting).then_some(AsyncEvent::SANITIZED))
    }

    /// An event and the request to complete with it.
    fn take(&mut self) -> Option<(u16, AsyncEvent)> {
        let event = self.due()?;
        let cid = self.cids[0];
        self.release(cid);
        match usize::from(event.kind) {
            kind if kind < TYPES => (self.waiting[kind], self.reported[kind]) = (0, 1),
            _ => self.sanitized = Further { reported: 1, waiting: 0 },
        }
        Some((cid, event))
    }

    /// Whether a saved state makes sense.
    pub fn is_sane(&self) -> bool {
        usize::from(self.held) <= MAX_HELD
    }
}

impl<I: Interrupts> Controller<I> {
    pub(super) fn hold_event_request(&mut self, sqe: &Sqe) -> Result<Reply, Status> {
        self.events.hold(sqe.cid)?;
        Ok(Reply::Held)
    }

    /// The host wrote a doorbell value that its queue can't have.
    #[cold]
    pub(crate) fn invalid_doorbell(&mut self) {
        if !self.tells_doorbell() {
            self.note_event(AsyncEvent::INVALID_DOORBELL_VALUE);
        }
    }

    pub(crate) fn note_event(&mut self, event: AsyncEvent) {
        self.events.note(event);
        self.deliver_events();
    }

    /// Completes held requests with waiting events, as long as there is room for completions.
    pub(crate) fn deliver_events(&mut self) {
        while self.events.due().is_some() {
            let Some(cq) = self.queues.cq(0) else { break };
            if cq.free == 0 {
                // An impossible head goes unreported here: there is no room to report it.
                cq.refresh(true).ok();
            }
            if cq.free == 0 {
                break;
            }
            cq.reserve();
            let Some((cid, event)) = self.events.take() else { break };
            self.queues.complete_admin(cid, event.dw0(), Status::SUCCESS);
        }
        self.post_admin();
    }
}
