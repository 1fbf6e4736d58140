//! What one poller tells of all its tenants at once, so that those who do nothing cost it nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use policy::{Bound, DEMAND_FIGURES, Demand, TenantSlot};

use crate::count::Figures;

const PER_CHUNK: usize = 1024;
const CHUNKS: usize = (u16::MAX as usize + 1) / PER_CHUNK;

/// No cap, as bits: NaN.
const NO_CAP: u64 = u64::MAX;

/// One poller's part of a board. It writes, anyone reads.
#[derive(Debug)]
pub(crate) struct Shared {
    /// By tenant slot, side by side: another number whenever there is something new to read in the tenant's probe, and
    /// an odd one for as long as that goes on.
    stirs: [OnceLock<Box<[AtomicU32]>>; CHUNKS],
    /// The bits of [`TenantReport::best_effort_cap`](policy::TenantReport::best_effort_cap). Apart from the bound,
    /// which other pollers must not lock.
    best_effort_cap: AtomicU64,
    /// What best effort asks for here. Who reads it while it is written has some figures of the interval before.
    demand: Figures<DEMAND_FIGURES>,
    /// Of guaranteed tenants that do nothing. Written only if nobody reads it just then: the poller never waits.
    idle_bound: Mutex<Option<Bound>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            stirs: [const { OnceLock::new() }; CHUNKS],
            best_effort_cap: AtomicU64::new(NO_CAP),
            demand: Figures::default(),
            idle_bound: Mutex::new(None),
        }
    }
}

impl Shared {
    /// Makes room for a slot, so that nothing is allocated when its tenant starts.
    pub(crate) fn make_room(&self, slot: TenantSlot) {
        self.stirs[usize::from(slot.0) / PER_CHUNK].get_or_init(|| (0..PER_CHUNK).map(|_| AtomicU32::new(0)).collect());
    }

    fn place(&self, slot: TenantSlot) -> Option<&AtomicU32> {
        self.stirs[usize::from(slot.0) / PER_CHUNK].get().map(|chunk| &chunk[usize::from(slot.0) % PER_CHUNK])
    }

    /// Odd: the tenant's probe is to be read each time.
    #[inline]
    pub(crate) fn stirs(&self, slot: TenantSlot) -> u32 {
        self.place(slot).map_or(1, |place| place.load(Ordering::Acquire))
    }

    fn advance(&self, slot: TenantSlot, by: u32) {
        if let Some(place) = self.place(slot) {
            place.store(place.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
        }
    }

    /// The tenant begins to do something, or did the last that is to be read: each in turn.
    pub(crate) fn turn(&self, slot: TenantSlot) {
        self.advance(slot, 1);
    }

    /// Something else about the tenant changed.
    pub(crate) fn changed(&self, slot: TenantSlot) {
        self.advance(slot, 2);
    }

    /// What the policy promises idle guaranteed tenants from now on, and lets best effort have in flight.
    pub(crate) fn publish(&self, idle_bound: Option<Bound>, best_effort_cap: Option<f64>) {
        if let Ok(mut published) = self.idle_bound.try_lock() {
            *published = idle_bound;
        }
        self.best_effort_cap.store(best_effort_cap.map_or(NO_CAP, f64::to_bits), Ordering::Relaxed);
    }

    pub(crate) fn best_effort_cap(&self) -> Option<f64> {
        Some(f64::from_bits(self.best_effort_cap.load(Ordering::Relaxed))).filter(|cap| !cap.is_nan())
    }

    pub(crate) fn publish_demand(&self, demand: Option<Demand>) {
        let figures = demand.map(|demand| demand.to_figures().map(Some));
        self.demand.set(figures.unwrap_or([None; DEMAND_FIGURES]));
    }

    pub(crate) fn demand(&self) -> Option<Demand> {
        let mut figures = [0.0; DEMAND_FIGURES];
        for (at, figure) in figures.iter_mut().enumerate() {
            *figure = self.demand.get(at)?;
        }
        Some(Demand::from_figures(&figures))
    }

    pub(crate) fn idle_bound(&self) -> Option<Bound> {
        *self.idle_bound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_is_read_as_it_was_published() {
        let shared = Shared::default();
        assert_eq!(shared.demand(), None);
        let mut figures = [0.0; DEMAND_FIGURES];
        figures.iter_mut().zip(1..).for_each(|(figure, at)| *figure = f64::from(at) / 8.0);
        let demand = Demand::from_figures(&figures);
        shared.publish_demand(Some(demand));
        assert_eq!(shared.demand(), Some(demand));
        shared.publish_demand(None);
        assert_eq!(shared.demand(), None);
    }

    #[test]
    fn each_slot_stirs_for_itself() {
        let shared = Shared::default();
        let slots = [TenantSlot(0), TenantSlot(1), TenantSlot(u16::MAX)];
        slots.iter().for_each(|slot| shared.make_room(*slot));
        shared.turn(slots[2]);
        shared.changed(slots[1]);
        assert_eq!(slots.map(|slot| shared.stirs(slot)), [0, 2, 1]);
        shared.turn(slots[2]);
        assert_eq!(shared.stirs(slots[2]), 2);
    }
}
