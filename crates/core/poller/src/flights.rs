//! The commands that are with the device.

use io_model::{HwqId, Nanos, Op, Token};
use policy::{TenantSlot, VqSlot};

/// One command in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub token: Token,
    pub tenant: TenantSlot,
    pub slot: VqSlot,
    pub hwq: HwqId,
    pub op: Op,
    pub len_bytes: u64,
    /// Where, in which of the tenant's disks.
    pub offset_bytes: u64,
    pub disk: u16,
    /// When the poller first saw the doorbell that announced it.
    pub arrived: Nanos,
    /// When it was fetched and submitted.
    pub fetched: Nanos,
}

/// A table of flights with a free list: no allocation once it has grown to the deepest use.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    entries: Vec<Option<Flight>>,
    free: Vec<u32>,
    live: u32,
}

impl Flights {
    #[inline]
    pub fn insert(&mut self, flight: Flight) -> u32 {
        self.live += 1;
        if let Some(tag) = self.free.pop() {
            self.entries[tag as usize] = Some(flight);
            return tag;
        }
        self.entries.push(Some(flight));
        (self.entries.len() - 1) as u32
    }

    /// Takes a flight out. `None`: no such tag, or it ended before; a back end that completes twice.
    #[inline]
    pub fn remove(&mut self, tag: u32) -> Option<Flight> {
        let flight = self.entries.get_mut(tag as usize)?.take()?;
        self.free.push(tag);
        self.live -= 1;
        Some(flight)
    }

    pub fn live(&self) -> u32 {
        self.live
    }
}
