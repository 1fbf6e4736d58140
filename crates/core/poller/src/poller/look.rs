//! Looking at doorbells. A tenant that does something is looked at in each iteration. One that does nothing rests: a
//! patrol looks at those who rest in turn, at a pace that costs the others a small share of the time, however many rest.

use io_model::{Backend, Nanos, Source, VqId};
use policy::{Policy, TenantSlot, VqSlot};

use super::{MOST, Poller, WORK_PER_LOOK};
use crate::poller::vq::Vq;

/// A tenant that did nothing for so long rests. Guaranteed ones never do.
pub const REST_AFTER: Nanos = Nanos::from_micros(500);

/// How often the patrol looks at a tenant: one look in this time, and so much more for each VQ that it looked at. What
/// looks cost is a tenth of that, so 64 tenants with 16 queues each wait for theirs 32 µs, whatever the others do.
const PACE: Nanos = Nanos(160);
const PACE_PER_VQ: Nanos = Nanos(20);

/// How far the patrol is.
#[derive(Debug, Default)]
pub(super) struct Patrol {
    /// Who is next, as a place in [`Poller::resting`].
    place: usize,
    /// When that one is due.
    due: Nanos,
    /// All are due, at the next look.
    pub(super) everybody: bool,
}

/// What a look at a tenant found.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    /// Steps that needed no device.
    serviced: u32,
    /// Whether there was anything.
    any: bool,
    vqs: u32,
}

impl<S: Source, B: Backend, P: Policy> Poller<S, B, P> {
    /// Looks at the doorbells of all that are busy, and of who is due among those at rest. Returns the commands that
    /// needed no device.
    pub(super) fn look(&mut self, now: Nanos, has_reaped: bool) -> u32 {
        let (mut serviced, mut is_idle) = (0, !has_reaped);
        let mut at = 0;
        while let Some(slot) = self.busy.get(at).copied() {
            let found = self.look_at(slot, now);
            serviced += found.serviced;
            is_idle &= !found.any;
            if !found.any && self.may_rest(slot, now) {
                self.busy.swap_remove(at);
                self.resting.push(slot);
            } else {
                at += 1;
            }
        }
        // Not while somebody's next command may come any moment: that one would wait for the look.
        is_idle &= self.flights.live() > 0 || self.busy.is_empty();
        serviced + self.patrol(now, is_idle)
    }

    /// Looks at who is due. Time is all that counts, not iterations: after a long one more are due. An iteration that
    /// does nothing but wait for the drive, or has nobody to wait for, looks at one in any case.
    fn patrol(&mut self, now: Nanos, mut is_idle: bool) -> u32 {
        let mut serviced = 0;
        // At nobody twice.
        for _ in 0..self.resting.len() {
            if !(self.patrol.everybody || self.patrol.due <= now || is_idle) {
                break;
            }
            is_idle = false;
            if self.patrol.place >= self.resting.len() {
                self.patrol.place = 0;
            }
            let slot = self.resting[self.patrol.place];
            let Found { serviced: count, any, vqs } = self.look_at(slot, now);
            serviced += count;
            self.patrol.due = self.patrol.due.min(now) + PACE + Nanos(PACE_PER_VQ.0 * u64::from(vqs));
            if any {
                self.stir(self.patrol.place);
            } else {
                self.patrol.place += 1;
            }
        }
        self.patrol.everybody = false;
        self.patrol.due = self.patrol.due.max(now);
        serviced
    }

    /// When the patrol goes on. [`Nanos::MAX`]: nobody rests.
    pub fn next_patrol(&self) -> Nanos {
        if self.resting.is_empty() { Nanos::MAX } else { self.patrol.due }
    }

    /// Looks at all of a tenant's doorbells, and at which VQs there are.
    fn look_at(&mut self, slot: TenantSlot, now: Nanos) -> Found {
        let at = usize::from(slot.0);
        let Some(tenant) = &mut self.tenants[at] else { return Found::default() };
        tenant.work = tenant.work.saturating_sub(WORK_PER_LOOK);
        let serviced = tenant.source.service();
        let mut any = serviced > 0;
        if any {
            tenant.touch(slot, &mut self.touched);
        }
        let live = tenant.source.live_vqs();
        if live != tenant.live {
            any = true;
            self.set_live(at, live, now);
        }
        let Some(tenant) = &mut self.tenants[at] else { return Found::default() };
        let mut rung = (tenant.source.rung() | std::mem::take(&mut tenant.ask)) & tenant.live;
        while rung != 0 {
            let index = rung.trailing_zeros() as u16;
            rung &= rung - 1;
            let slot = tenant.slots[usize::from(index)];
            let vq = &mut self.vqs[usize::from(slot.0)];
            let backlog = tenant.source.backlog(index);
            if backlog != vq.backlog {
                any = true;
                vq.saw(backlog, now);
                self.policy.arrived(slot, backlog, now);
            }
        }
        if any {
            tenant.stirred_at = now;
        }
        Found { serviced, any, vqs: tenant.live.count_ones() }
    }

    /// Whether a tenant has had nothing to do for long enough, and nothing waits.
    fn may_rest(&mut self, slot: TenantSlot, now: Nanos) -> bool {
        let Some(tenant) = &mut self.tenants[usize::from(slot.0)] else { return false };
        let is_quiet = tenant.inflight == 0 && tenant.ask == 0 && now - tenant.stirred_at > REST_AFTER;
        if !is_quiet || tenant.terms.class.is_guaranteed() {
            return false;
        }
        let slots = tenant.slots.iter().enumerate().filter(|(index, _)| tenant.live & (1 << index) != 0);
        let waits = slots.map(|(_, slot)| self.vqs[usize::from(slot.0)].backlog).any(|backlog| backlog > 0);
        if waits {
            // Not to be counted again in each iteration.
            tenant.stirred_at = now;
        }
        tenant.is_busy = waits;
        !waits
    }

    /// Who is at this place among those at rest is looked at in each iteration from now on.
    fn stir(&mut self, place: usize) {
        // In order, so that nobody else's turn comes later for it.
        let slot = self.resting.remove(place);
        self.patrol.place -= usize::from(place < self.patrol.place);
        self.busy.push(slot);
        if let Some(tenant) = &mut self.tenants[usize::from(slot.0)] {
            tenant.is_busy = true;
        }
    }

    /// The next iteration looks at a tenant, and asks all of its VQs: something that is no doorbell may have changed.
    pub(super) fn wake(&mut self, slot: TenantSlot) {
        let Some(Some(tenant)) = self.tenants.get_mut(usize::from(slot.0)) else { return };
        tenant.ask = u128::MAX;
        if !tenant.is_busy
            && let Some(place) = self.resting.iter().position(|other| *other == slot)
        {
            self.stir(place);
        }
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
    }
}
