//! Doorbells in memory: the doorbell page, and the shadow page and event indexes that a guest may set
//! up in its own memory (Doorbell Buffer Config, NVMe Base 2.0, 5.8 and B.5).
//!
//! An I/O queue reads the shadow once there is one; the admin queue stays on the doorbell page. An event index tells
//! the guest at which value it must write the register too. Before it sleeps, the controller sets it to the current
//! value, so that the very next entry rings. The watching thread then looks only at the doorbell page, which is the
//! daemon's, and never at guest memory, which could block it. While awake, and where register writes are trapped, the
//! index stays just behind, so that the guest does not reach it. A store to a mapped page costs the guest nothing.

use std::sync::Arc;

use guest_memory::{Access, GuestMemory, MappedRange, MappedU32, Mapping};
use nvme_spec::PAGE_BYTES;

use crate::config::Doorbells;

/// Shadow doorbell page and event index page, by address in guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShadowPages {
    pub shadow: u64,
    pub events: u64,
}

/// Which doorbell of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doorbell {
    SqTail,
    CqHead,
}

/// Everything of a queue that lies in memory shared with the guest.
#[derive(Debug)]
pub(crate) struct View {
    pub ring: MappedRange,
    /// Where the host writes its index.
    pub doorbell: MappedU32,
    /// Where we write the index at which the host must ring too, if the doorbell is a shadow.
    pub event: Option<MappedU32>,
    /// Where it then rings, if that is a store which costs the host nothing and us nobody's attention.
    pub register: Option<MappedU32>,
}

/// What a doorbell on the page says until it is rung: no index, since the host may well ring with the one that it
/// rang with before.
const NOT_RUNG: u32 = u32::MAX;

impl View {
    /// Tells the host to ring at once after the index `at`, which ends a sleep; or as late as it can be told.
    pub fn set_wakeup(&self, wanted: bool, at: u16, entries: u16) {
        let Some(event) = &self.event else { return };
        if !wanted {
            return self.follow(at, entries);
        }
        if let Some(register) = &self.register {
            // First: who rings because of our index does it after reading that. Who rang because of an earlier one
            // moved the shadow before we set this one, and we look at the shadow once more.
            register.store(NOT_RUNG);
        }
        event.store(at.into());
    }

    /// What rings while we sleep, and what it reads until then, `acted_on` being the doorbell's last value for us.
    pub fn rings(&self, acted_on: u32) -> (MappedU32, u32) {
        match &self.register {
            Some(register) => (register.clone(), NOT_RUNG),
            None => (self.doorbell.clone(), acted_on),
        }
    }

    /// The index has moved on to `at` while nobody sleeps.
    #[inline]
    pub fn follow(&self, at: u16, entries: u16) {
        if self.register.is_none()
            && let Some(event) = &self.event
        {
            event.store(behind(at, entries));
        }
    }
}

#[derive(Debug)]
pub(crate) struct DoorbellPages {
    page: Arc<Mapping>,
    mode: Doorbells,
    pub pages: Option<ShadowPages>,
}

/// Offset of a doorbell in its page: stride 4 bytes (CAP.DSTRD = 0).
fn offset(qid: u16, doorbell: Doorbell) -> u64 {
    8 * u64::from(qid) + if doorbell == Doorbell::SqTail { 0 } else { 4 }
}

impl DoorbellPages {
    pub fn new(page: Arc<Mapping>, mode: Doorbells) -> Self {
        Self { page, mode, pages: None }
    }

    /// Maps a queue's ring, doorbell and event index. `None` while any of them can't be reached.
    pub fn view(
        &self,
        memory: &mut GuestMemory,
        qid: u16,
        doorbell: Doorbell,
        ring_iova: u64,
        ring_bytes: u64,
    ) -> Option<View> {
        let access = if doorbell == Doorbell::SqTail { Access::Read } else { Access::Write };
        let ring = memory.view(ring_iova, ring_bytes, access).ok()?;
        let at = offset(qid, doorbell);
        let register = MappedU32::new(&self.page, at)?;
        let Some(pages) = self.pages.filter(|_| qid > 0) else {
            return Some(View { ring, doorbell: register, event: None, register: None });
        };
        let shadow = memory.view(pages.shadow, PAGE_BYTES, Access::Write).ok()?;
        let events = memory.view(pages.events, PAGE_BYTES, Access::Write).ok()?;
        let register = (self.mode == Doorbells::Mapped).then_some(register);
        Some(View { ring, doorbell: shadow.cell(at)?, event: Some(events.cell(at)?), register })
    }

    /// Stores into the doorbell page, at a byte offset from its start.
    pub fn store_at(&self, at: u64, value: u32) {
        if let Some(cell) = MappedU32::new(&self.page, at) {
            cell.store(value);
        }
    }

    /// A queue starts: both of its doorbells read 0, wherever they are.
    pub fn clear(&self, view: &View, qid: u16, doorbell: Doorbell) {
        self.store_at(offset(qid, doorbell), 0);
        view.doorbell.store(0);
    }

    /// Whether a queue's doorbells depend on guest memory in this range.
    pub fn touches(&self, qid: u16, iova: u64, len_bytes: u64) -> bool {
        let pages = self.pages.filter(|_| qid > 0);
        pages.is_some_and(|pages| {
            overlaps(pages.shadow, PAGE_BYTES, iova, len_bytes) || overlaps(pages.events, PAGE_BYTES, iova, len_bytes)
        })
    }
}

/// Whether two ranges share a byte. Neither may be empty; ends may wrap.
pub(crate) fn overlaps(a: u64, a_bytes: u64, b: u64, b_bytes: u64) -> bool {
    b.wrapping_sub(a) < a_bytes || a.wrapping_sub(b) < b_bytes
}

/// The index before `index` in a ring.
pub(crate) fn behind(index: u16, entries: u16) -> u32 {
    u32::from(if index == 0 { entries - 1 } else { index - 1 })
}
