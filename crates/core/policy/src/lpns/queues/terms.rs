//! What tenants were promised, or weigh, and what of that is here.

use super::{Place, Queues, VqState};
use crate::Class;
use crate::fair::{PARTS_OF_WEIGHT, TICKS_PER_COMMAND};
use crate::split::Seen;

impl Queues {
    pub(super) fn set_class(&mut self, tenant: u16, class: Class) {
        let queued = self.tenants[usize::from(tenant)].place != Place::Nowhere;
        self.dequeue(tenant);
        let state = &mut self.tenants[usize::from(tenant)];
        let was_guaranteed = std::mem::replace(&mut state.guaranteed, class.is_guaranteed());
        // What it has in flight counts under its new class.
        match (was_guaranteed, state.guaranteed) {
            (true, false) => self.best_effort_in_flight += state.in_flight,
            (false, true) => self.best_effort_in_flight -= state.in_flight,
            _ => {}
        }
        state.latency_target = class.latency_target();
        state.weight = class.weight().map_or(0, |weight| if self.weighted { weight } else { 1 });
        self.set_weight(tenant);
        if queued {
            self.enqueue(tenant);
        }
    }

    /// A tenant has another class; whether any of its commands wait. Its VQs are bound anew if it begins or ceases to
    /// be guaranteed.
    pub(in super::super) fn change_class(&mut self, tenant: u16, class: Class) -> bool {
        let Some(before) = self.tenants.get(usize::from(tenant)).filter(|tenant| tenant.vqs > 0).copied() else {
            return false;
        };
        self.set_class(tenant, class);
        if before.guaranteed != class.is_guaranteed() {
            for slot in 0..self.vqs.len() as u16 {
                if self.is_attached(slot) && self.vqs[usize::from(slot)].tenant == tenant {
                    self.rebind(slot, class.is_guaranteed());
                }
            }
        }
        before.backlogged > 0
    }

    /// Gives a VQ the queue that it would have if it had come under its present class. Its commands stay where they
    /// are.
    fn rebind(&mut self, slot: u16, guaranteed: bool) {
        let from = self.pool.at(slot);
        if self.vqs[usize::from(slot)].state == VqState::Parked {
            self.unpark(slot);
            self.ready(slot, false);
        }
        self.vqs[usize::from(slot)].woken = false;
        self.pool.attach(slot, guaranteed, &mut self.moved);
        self.settle();
        // It may have been woken for room that it leaves to the next now.
        self.wake_parked(from);
    }

    fn set_weight(&mut self, tenant: u16) {
        let state = &self.tenants[usize::from(tenant)];
        if state.weight > 0 {
            let weight = f64::from(state.weight * self.weight_unit) * state.part;
            self.best_effort.set_weight(tenant, weight.round() as u32);
        }
    }

    /// Of what a tenant asks for, that part is asked for here.
    pub(in super::super) fn set_part(&mut self, tenant: u16, part: f64) {
        let Some(state) = self.tenants.get_mut(usize::from(tenant)) else { return };
        (state.part, state.counts_as) = (part, (1.0 / part).round() as u64);
        if self.weight_unit == 1 {
            self.weight_unit = PARTS_OF_WEIGHT;
            (0..self.tenants.len() as u16).for_each(|tenant| self.set_weight(tenant));
        }
        self.set_weight(tenant);
    }

    /// Best effort here since the last interval; `None`: there is none.
    pub(in super::super) fn seen(&self, is_held: bool) -> Option<Seen> {
        let weighted = self.tenants.iter().filter(|tenant| tenant.weight > 0 && tenant.vqs > 0);
        let weight = weighted.map(|tenant| {
            let asks = tenant.sent > 0 || tenant.backlogged > 0 || tenant.in_flight > 0;
            if asks { f64::from(tenant.weight) * tenant.part } else { 0.0 }
        });
        let weight = weight.reduce(|sum, weight| sum + weight)?;
        Some(Seen { weight, is_held, clock: self.best_effort.clock(), scale: self.weight_unit })
    }

    /// What a best-effort command was in the mean, in reference commands, since this was last asked: of those who
    /// waited then and wait now, whose virtual time tells it. `None`: of nobody.
    pub(in super::super) fn mean_cost(&mut self) -> Option<f64> {
        let (mut work, mut commands) = (0.0, 0);
        for (at, tenant) in self.tenants.iter_mut().enumerate().filter(|(_, tenant)| tenant.weight > 0) {
            let tag = self.best_effort.tag_of(at as u16);
            let before = std::mem::replace(&mut tenant.waited, (tenant.backlogged > 0).then_some(tag));
            if let (Some(before), Some(tag)) = (before, tenant.waited) {
                let weight = f64::from(tenant.weight * self.weight_unit) * tenant.part;
                work += tag.saturating_sub(before) as f64 * weight.round().max(1.0);
                commands += tenant.sent / tenant.counts_as;
            }
        }
        (commands > 0 && work > 0.0).then(|| work / TICKS_PER_COMMAND as f64 / commands as f64)
    }
}
