//! Where doorbells live: the doorbell page, and the shadow page and event indexes that a guest may set
//! up in its own memory (Doorbell Buffer Config, NVMe Base 2.0, 5.8 and B.5).
//!
//! An I/O queue reads the shadow once there is one; the admin queue stays on the doorbell page. An
//! event index tells the guest at which value it has to write the register too. It matters only where that is
//! trapped: awake, we keep it just behind, so that the guest does not reach it; before sleeping we set
//! it to where we stand, so that the very next entry rings.

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
    /// Where we write the index at which the host must ring. `None`: nobody looks.
    pub event: Option<MappedU32>,
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
        let Some(pages) = self.pages.filter(|_| qid > 0) else {
            return Some(View { ring, doorbell: MappedU32::new(&self.page, at)?, event: None });
        };
        let shadow = memory.view(pages.shadow, PAGE_BYTES, Access::Write).ok()?;
        let events = memory.view(pages.events, PAGE_BYTES, Access::Write).ok()?;
        let event = match self.mode {
            Doorbells::Trapped => Some(events.cell(at)?),
            Doorbells::Mapped => None,
        };
        Some(View { ring, doorbell: shadow.cell(at)?, event })
    }

    /// The value on the doorbell page.
    pub fn load(&self, qid: u16, doorbell: Doorbell) -> u32 {
        MappedU32::new(&self.page, offset(qid, doorbell)).map_or(0, |cell| cell.load())
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
