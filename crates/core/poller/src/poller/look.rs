//! Looking at doorbells. VQs that do something are asked in each iteration. Those that do nothing rest: a patrol looks
//! at all of a tenant's doorbells, one tenant after the other, at a pace that costs the busy ones a small share of the
//! time, however many rest.

use io_model::{Backend, Nanos, Source, VqId};
use policy::{Policy, TenantSlot, VqSlot};

use super::{MOST, Poller, WORK_PER_LOOK};
use crate::poller::vq::Vq;

/// What did nothing for so long rests, a VQ or a tenant. Guaranteed ones never do.
pub const REST_AFTER: Nanos = Nanos::from_micros(500);

/// How often the patrol looks at a tenant: one look in this time, and so much more for each VQ that it looked at. What
/// looks cost is a tenth of that, so 64 tenants with 16 queues each wait for theirs 32 µs, whatever the others do.
const PACE: Nanos = Nanos(160);
const PACE_PER_VQ: Nanos = Nanos(20);
/// With more tenants than `NEAR`, their data no longer fit into a cache, so looks take longer. They become rarer with
/// the number of tenants, by up to a factor of `RAREST`.
const NEAR: u64 = 64;
const RAREST: u64 = 2;

/// The round over all tenants.
#[derive(Debug, Default)]
pub(super) struct Patrol {
    /// In this order.
    pub(super) round: Vec<TenantSlot>,
    /// The next tenant to look at, as a place in `round`.
    place: usize,
    /// When that one is due.
    due: Nanos,
    /// All are due, at the next look.
    pub(super) everybody: bool,
}

impl Patrol {
    /// In order, so that nobody else's turn comes later for it.
    pub(super) fn forget(&mut self, slot: TenantSlot) {
        let Some(place) = self.round.iter().position(|other| *other == slot) else { return };
        self.round.remove(place);
        self.place -= usize::from(place < self.place);
    }

    /// The time until the next look at a tenant with this many VQs.
    fn pace(&self, vqs: u32) -> Nanos {
        let rarer = (self.round.len() as u64).clamp(NEAR, RAREST * NEAR);
        Nanos((PACE.0 + PACE_PER_VQ.0 * u64::from(vqs)) * rarer / NEAR)
    }

    fn next(&mut self) -> TenantSlot {
        if self.place >= self.round.len() {
            self.place = 0;
        }
        self.place += 1;
        self.round[self.place - 1]
    }
}

/// What a look at a tenant found.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    /// Steps that needed no device.
    serviced: u32,
    /// Whether there was anything.
    any: bool,
}

impl<S: Source, B: Backend, P: Policy> Poller<S, B, P> {
    /// Looks at the doorbells of all busy tenants, and at all doorbells of the tenants whose turn it is. Returns the
    /// number of commands that needed no device.
    pub(super) fn look(&mut self, now: Nanos, has_reaped: bool) -> u32 {
        let (mut serviced, mut is_idle) = (0, !has_reaped);
        let mut at = 0;
        while let Some(slot) = self.busy.get(at).copied() {
            let found = self.look_at(slot, now, false);
            serviced += found.serviced;
            is_idle &= !found.any;
            if !found.any && self.rests(slot, now) {
                self.busy.swap_remove(at);
            } else {
                at += 1;
            }
        }
        // Not while a busy tenant's next command may come at any moment: it would wait for this look.
        is_idle &= self.flights.live() > 0 || self.busy.is_empty();
        serviced + self.patrol(now, is_idle)
    }

    /// Looks at the tenants whose turn it is. Only time counts, not iterations: after a long iteration more are due. An
    /// iteration that only waits for the drive, or waits for no tenant, looks at one in any case.
    fn patrol(&mut self, now: Nanos, mut is_idle: bool) -> u32 {
        let mut serviced = 0;
        // At nobody twice.
        for _ in 0..self.patrol.round.len() {
            if !(self.patrol.everybody || self.patrol.due <= now || is_idle) {
                break;
            }
            is_idle = false;
            let slot = self.patrol.next();
            let Some(tenant) = &self.tenants[usize::from(slot.0)] else { continue };
            self.patrol.due = self.patrol.due.min(now) + self.patrol.pace(tenant.vqs);
            if !tenant.is_busy {
                let found = self.look_at(slot, now, true);
                serviced += found.serviced;
                if found.any {
                    self.stir(slot);
                }
            } else if tenant.live & !tenant.active != 0 && !tenant.terms.class.is_guaranteed() {
                // Those that do something were asked just before.
                self.ask(slot, now, true);
            }
        }
        self.patrol.everybody = false;
        self.patrol.due = self.patrol.due.max(now);
        serviced
    }

    /// When the patrol goes on. [`Nanos::MAX`]: there is nobody.
    pub fn next_patrol(&self) -> Nanos {
        if self.patrol.round.is_empty() { Nanos::MAX } else { self.patrol.due }
    }

    /// Looks at a tenant's doorbells, and at which VQs there are. `all`: also at those of VQs that do nothing.
    fn look_at(&mut self, slot: TenantSlot, now: Nanos, all: bool) -> Found {
        let at = usize::from(slot.0);
        let Some(tenant) = &mut self.tenants[at] else { return Found::default() };
        tenant.work = tenant.work.saturating_sub(WORK_PER_LOOK);
        let serviced = tenant.source.service();
        if serviced > 0 {
            tenant.touch(slot, &mut self.touched);
            tenant.stirred_at = now;
        }
        let live = tenant.source.live_vqs();
        let has_changed = live != tenant.live;
        let all = all || tenant.terms.class.is_guaranteed();
        if has_changed {
            tenant.stirred_at = now;
            self.set_live(at, live, now);
        }
        let has_arrived = self.ask(slot, now, all);
        Found { serviced, any: serviced > 0 || has_changed || has_arrived }
    }

    /// Asks VQs for their backlog: those that do something, or of all those that rang. Whether any has another one.
    fn ask(&mut self, slot: TenantSlot, now: Nanos, all: bool) -> bool {
        let Some(tenant) = &mut self.tenants[usize::from(slot.0)] else { return false };
        let rung = if all { tenant.source.rung() } else { tenant.active };
        let mut asked = (rung | std::mem::take(&mut tenant.ask)) & tenant.live;
        let mut any = false;
        while asked != 0 {
            let index = asked.trailing_zeros() as u16;
            asked &= asked - 1;
            let slot = tenant.slots[usize::from(index)];
            let vq = &mut self.vqs[usize::from(slot.0)];
            let backlog = tenant.source.backlog(index);
            if backlog != vq.backlog {
                any = true;
                vq.saw(backlog, now);
                vq.stirred_at = now;
                tenant.active |= vq.bit;
                self.policy.arrived(slot, backlog, now);
            } else if backlog == 0 && now - vq.stirred_at > REST_AFTER {
                tenant.active &= !vq.bit;
            }
        }
        if any {
            tenant.stirred_at = now;
        }
        any
    }

    /// Whether a tenant has had nothing to do for long enough: it is no longer busy then.
    fn rests(&mut self, slot: TenantSlot, now: Nanos) -> bool {
        let Some(tenant) = &mut self.tenants[usize::from(slot.0)] else { return false };
        let does_nothing = tenant.inflight == 0 && (tenant.active | tenant.ask) & tenant.live == 0;
        let is_quiet = does_nothing && now - tenant.stirred_at > REST_AFTER;
        tenant.is_busy = !is_quiet || tenant.terms.class.is_guaranteed();
        !tenant.is_busy
    }

    /// A tenant is looked at in each iteration from now on.
    fn stir(&mut self, slot: TenantSlot) {
        if let Some(tenant) = self.tenants[usize::from(slot.0)].as_mut().filter(|tenant| !tenant.is_busy) {
            tenant.is_busy = true;
            self.busy.push(slot);
        }
    }

    /// The next iteration looks at a tenant, and asks all of its VQs: something that is no doorbell may have changed.
    pub(super) fn wake(&mut self, slot: TenantSlot) {
        let Some(Some(tenant)) = self.tenants.get_mut(usize::from(slot.0)) else { return };
        tenant.ask = u128::MAX;
        self.stir(slot);
    }

    /// Attaches and detaches VQs so that the policy knows exactly those in `live`, as far as there are slots.
    pub(super) fn set_live(&mut self, at: usize, live: u128, now: Nanos) {
        let Some(tenant) = &mut self.tenants[at] else { return };
        let changed = tenant.live ^ live;
        let waited = if live & changed == 0 { Nanos(0) } else { tenant.source.take_waited_before() };
        tenant.probe.went_on(waited);
        let tenant_slot = TenantSlot(at as u16);
        for index in (0..128_u16).filter(|index| changed & (1 << index) != 0) {
            let place = &mut tenant.slots[usize::from(index)];
            tenant.live ^= 1 << index;
            if live & (1 << index) == 0 {
                self.policy.detach(*place, now);
                self.free_vqs.push(*place);
                continue;
            }
            tenant.ask |= 1 << index;
            let vq = Vq::new(tenant_slot, index, (now, waited));
            if let Some(free) = self.free_vqs.pop() {
                self.vqs[usize::from(free.0)] = vq;
                *place = free;
            } else if self.vqs.len() < MOST {
                *place = VqSlot(self.vqs.len() as u16);
                self.vqs.push(vq);
            } else {
                tenant.live ^= 1 << index;
                continue;
            }
            let id = VqId { tenant: tenant.probe.tenant(), index };
            self.policy.attach(*place, id, tenant_slot, &tenant.terms, now);
            self.policy.asked_priority(*place, tenant.source.priority(index));
        }
        tenant.vqs = tenant.live.count_ones();
    }
}
