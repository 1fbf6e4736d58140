//! The three parts of a split ring (2.7) in guest memory, and notifications both ways (2.7.7 and 2.7.10).

use std::sync::atomic::{Ordering, fence};

use guest_memory::{Access, GuestMemory, MappedRange};

use crate::fault::{FaultKind, StartError};
use crate::kill;
use crate::spec::ring::{
    AVAIL_BYTES, AVAIL_FLAGS, AVAIL_IDX, AVAIL_RING, DESC_BYTES, EVENT_BYTES, NO_INTERRUPT, NO_NOTIFY, USED_BYTES,
    USED_FLAGS, USED_IDX, USED_RING,
};

/// Where a ring lies, by guest address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub size: u16,
    pub desc: u64,
    pub avail: u64,
    pub used: u64,
    pub event_idx: bool,
}

/// The parts of a ring, pinned.
#[derive(Debug)]
pub(crate) struct View {
    pub desc: MappedRange,
    avail: MappedRange,
    used: MappedRange,
}

impl Place {
    /// Pins the parts of the ring. Each must lie in one mapping, so that nothing is looked up per request.
    pub fn view(&self, memory: &mut GuestMemory) -> Result<View, StartError> {
        let size = u64::from(self.size);
        let event_bytes = if self.event_idx { EVENT_BYTES } else { 0 };
        let mut part = |part, address: u64, align: u64, len_bytes, access| {
            let bad = StartError::Ring { part, address };
            let view = memory.view(address, len_bytes, access).map_err(|_| bad)?;
            if address.is_multiple_of(align) { Ok(view) } else { Err(bad) }
        };
        let avail_bytes = AVAIL_RING + AVAIL_BYTES * size + event_bytes;
        let used_bytes = USED_RING + USED_BYTES * size + event_bytes;
        let view = View {
            desc: part("descriptor table", self.desc, 16, DESC_BYTES * size, Access::Read)?,
            avail: part("available ring", self.avail, 2, avail_bytes, Access::Read)?,
            used: part("used ring", self.used, 4, used_bytes, Access::Write)?,
        };
        // The guest's alignment is worth nothing if the VMM mapped the memory at an odd place.
        let used_address = StartError::Ring { part: "used ring", address: self.used };
        let avail_address = StartError::Ring { part: "available ring", address: self.avail };
        view.avail.load_u16(AVAIL_IDX).ok_or(avail_address)?;
        view.used.load_u16(USED_IDX).ok_or(used_address)?;
        Ok(view)
    }
}

impl View {
    #[inline]
    pub fn avail_idx(&self) -> u16 {
        self.avail.load_u16(AVAIL_IDX).unwrap_or(0)
    }

    pub fn used_idx(&self) -> u16 {
        self.used.load_u16(USED_IDX).unwrap_or(0)
    }
}

/// A ring and our indexes into it; all indexes count modulo 2^16.
#[derive(Debug)]
pub(crate) struct Ring {
    pub place: Place,
    /// `None`: its memory is gone.
    pub view: Option<View>,
    /// The next available entry to fetch.
    pub next_avail: u16,
    /// The available index when last read.
    seen: u16,
    /// The next used element to write.
    pub used: u16,
    /// The used index when an interrupt was last decided on.
    signalled: u16,
}

impl Ring {
    pub fn new(place: Place, view: View, next_avail: u16) -> Self {
        let used = view.used_idx();
        Self { place, view: Some(view), next_avail, seen: next_avail, used, signalled: used }
    }

    /// Entries that can be fetched, from the available index read anew.
    #[inline]
    pub fn waiting(&mut self) -> Result<u16, FaultKind> {
        let Some(view) = &self.view else { return Ok(0) };
        let avail = view.avail_idx();
        let waiting = avail.wrapping_sub(self.next_avail);
        if waiting > self.place.size {
            let (fetched, size) = (self.next_avail, self.place.size);
            return Err(FaultKind::AvailIndex { avail, fetched, size });
        }
        self.seen = avail;
        Ok(waiting)
    }

    /// Whether the available index is another one than when it was last read.
    #[inline]
    pub fn is_rung(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.avail_idx() != self.seen)
    }

    /// The head of the next request, which stays where it is. The index is read only when all that was seen is
    /// fetched.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<u16>, FaultKind> {
        if self.seen == self.next_avail && self.waiting()? == 0 {
            return Ok(None);
        }
        let Some(view) = &self.view else { return Ok(None) };
        let size = self.place.size;
        let at = u64::from(self.next_avail & (size - 1));
        let Some(head) = view.avail.load_u16(AVAIL_RING + AVAIL_BYTES * at) else { return Ok(None) };
        if head >= size { Err(FaultKind::Head { head, size }) } else { Ok(Some(head)) }
    }

    #[inline]
    pub fn advance(&mut self) {
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// Writes the used element `ahead` places behind the last one that is published.
    #[inline]
    pub fn put_used(&self, ahead: u16, head: u16, len_bytes: u32) {
        let Some(view) = &self.view else { return };
        let at = u64::from(self.used.wrapping_add(ahead) & (self.place.size - 1));
        let element = u64::from(head) | u64::from(len_bytes) << 32;
        if kill::is_alive() {
            view.used.write_8(USED_RING + USED_BYTES * at, element.to_le_bytes());
        }
    }

    /// Publishes the next `count` used elements.
    #[inline]
    pub fn publish(&mut self, count: u16) {
        self.used = self.used.wrapping_add(count);
        if let Some(view) = &self.view
            && kill::is_alive()
        {
            view.used.store_u16(USED_IDX, self.used);
        }
    }

    /// Whether the driver wants an interrupt for what was published since the last time.
    #[inline]
    pub fn wants_interrupt(&mut self) -> bool {
        let Some(view) = &self.view else { return false };
        if self.signalled == self.used {
            return false;
        }
        let old = std::mem::replace(&mut self.signalled, self.used);
        // The used index must be visible before we look whether the driver still waits for it.
        fence(Ordering::SeqCst);
        if !self.place.event_idx {
            return view.avail.load_u16(AVAIL_FLAGS).is_some_and(|flags| flags & NO_INTERRUPT == 0);
        }
        let offset = AVAIL_RING + AVAIL_BYTES * u64::from(self.place.size);
        view.avail.load_u16(offset).is_some_and(|event| passes(event, old, self.used))
    }

    /// Asks the driver to notify from the next entry on that we have not seen (`true`), or that it need not.
    pub fn set_wakeup(&self, wanted: bool) {
        let Some(view) = self.view.as_ref().filter(|_| kill::is_alive()) else { return };
        if self.place.event_idx {
            // An index that was passed already is met again only after 65,535 requests.
            let event = if wanted { self.seen } else { self.seen.wrapping_sub(1) };
            view.used.store_u16(USED_RING + USED_BYTES * u64::from(self.place.size), event);
        } else {
            view.used.store_u16(USED_FLAGS, if wanted { 0 } else { NO_NOTIFY });
        }
    }
}

/// Whether an index that went from `old` to `new` passed `event` (2.7.10).
#[inline]
fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
