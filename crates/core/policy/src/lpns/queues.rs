//! Waiting VQs: VQs with work, by tenant; tenants by class; VQs whose HWQ is full.
//!
//! A VQ is idle, ready (in its tenant's list) or parked (at its full HWQ). A tenant with ready VQs is queued
//! (guaranteed ones in a ring, best-effort ones in virtual time) or held back by the throttle. Every
//! move is O(1), and a command causes a bounded number of them.

mod parked;
mod terms;

use io_model::{HwqId, Nanos, TenantId};

use self::parked::Parked;
use super::detector::Own;
use crate::fair::Fair;
use crate::hwq_pool::{HwqPool, Moved, Want};
use crate::ready::{Links, List, NONE};
use crate::roster::Roster;
use crate::{Class, TenantReport, VqSlot};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VqState {
    Detached,
    Idle,
    Ready,
    Parked,
}

#[derive(Debug, Clone, Copy)]
struct Vq {
    state: VqState,
    /// Had a command since the last period's end.
    used: bool,
    tenant: u16,
    /// Where it is parked.
    parked_at: u16,
    /// In which of the lists there.
    parked_first: bool,
    /// Ready, since room came up where it was parked.
    woken: bool,
    backlog: u32,
}

const NO_VQ: Vq = Vq {
    state: VqState::Detached,
    used: false,
    tenant: NONE,
    parked_at: NONE,
    parked_first: false,
    woken: false,
    backlog: 0,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// No VQ of it is ready.
    Nowhere,
    Queued,
    Held,
}

#[derive(Debug, Clone, Copy)]
struct Tenant {
    place: Place,
    guaranteed: bool,
    /// VQs attached here.
    vqs: u16,
    ready: List,
    /// VQs with a backlog, ready or parked.
    backlogged: u16,
    latency_target: Option<Nanos>,
    /// Cost ticks with the drive.
    in_flight: u64,
    /// Pollers that it is busy at.
    parts: u64,
    /// Commands sent since the last interval's end; more where other pollers have some of its allowance.
    sent: u64,
    /// What one counts as there.
    counts_as: u64,
    /// 0: it is guaranteed, or not there.
    weight: u32,
    /// Of what it asks for, the part that it asks for here.
    part: f64,
    /// Its tag by the last interval, if it waited then.
    waited: Option<u64>,
}

impl Default for Tenant {
    fn default() -> Self {
        Self {
            place: Place::Nowhere,
            guaranteed: false,
            vqs: 0,
            ready: List::default(),
            backlogged: 0,
            latency_target: None,
            in_flight: 0,
            parts: 1,
            sent: 0,
            counts_as: 1,
            weight: 0,
            part: 1.0,
            waited: None,
        }
    }
}

#[derive(Debug)]
pub(super) struct Queues {
    pub(super) pool: HwqPool,
    vqs: Vec<Vq>,
    vq_links: Links,
    /// Whether weights count; else every best-effort tenant has the same.
    weighted: bool,
    tenants: Vec<Tenant>,
    roster: Roster,
    tenant_links: Links,
    guaranteed: List,
    best_effort: Fair,
    /// What a weight of 1 counts as here. It is larger if a tenant has only a fraction of its weight at this poller.
    weight_unit: u32,
    held: List,
    /// By HWQ.
    parked: Vec<Parked>,
    /// HWQs where room came up while a best-effort VQ was due.
    owing: List,
    hwq_links: Links,
    /// VQs with a backlog.
    backlogged: u32,
    /// Cost ticks of best-effort commands with the drive.
    best_effort_in_flight: u64,
    /// Scratch: VQs that the pool has just bound anew.
    moved: Vec<Moved>,
}

impl Queues {
    pub(super) fn new(pool: HwqPool, weighted: bool) -> Self {
        let parked = vec![Parked::default(); usize::from(pool.len())];
        let mut hwq_links = Links::default();
        hwq_links.grow(parked.len());
        Self {
            pool,
            vqs: Vec::new(),
            vq_links: Links::default(),
            weighted,
            tenants: Vec::new(),
            roster: Roster::default(),
            tenant_links: Links::default(),
            guaranteed: List::default(),
            best_effort: Fair::default(),
            weight_unit: 1,
            held: List::default(),
            parked,
            owing: List::default(),
            hwq_links,
            backlogged: 0,
            best_effort_in_flight: 0,
            moved: Vec::new(),
        }
    }

    pub(super) fn attach(&mut self, slot: u16, id: TenantId, tenant: u16, class: Class) {
        if slot == NONE || tenant == NONE {
            return;
        }
        self.detach(slot);
        if self.vqs.len() <= usize::from(slot) {
            self.vqs.resize(usize::from(slot) + 1, NO_VQ);
            self.vq_links.grow(self.vqs.len());
            self.moved.reserve(2 * self.vqs.len());
        }
        if self.tenants.len() <= usize::from(tenant) {
            self.tenants.resize(usize::from(tenant) + 1, Tenant::default());
            self.tenant_links.grow(self.tenants.len());
            self.best_effort.grow(self.tenants.len());
        }
        self.roster.enter(id, tenant);
        self.set_class(tenant, class);
        self.vqs[usize::from(slot)] = Vq { state: VqState::Idle, tenant, ..NO_VQ };
        self.tenants[usize::from(tenant)].vqs += 1;
        self.pool.attach(slot, class.is_guaranteed(), &mut self.moved);
        self.settle();
    }

    /// The tenant has no VQ and no command in flight here any more.
    pub(super) fn forget(&mut self, tenant: u16) {
        self.roster.leave(tenant);
        self.best_effort.forget(tenant);
        if let Some(state) = self.tenants.get_mut(usize::from(tenant)) {
            *state = Tenant::default();
        }
    }

    pub(super) fn detach(&mut self, slot: u16) {
        if !self.is_attached(slot) {
            return;
        }
        self.set_backlog(slot, 0);
        let tenant = std::mem::replace(&mut self.vqs[usize::from(slot)], NO_VQ).tenant;
        self.tenants[usize::from(tenant)].vqs -= 1;
        self.pool.detach(slot);
    }

    #[inline]
    pub(super) fn is_attached(&self, slot: u16) -> bool {
        self.vqs.get(usize::from(slot)).is_some_and(|vq| vq.state != VqState::Detached)
    }

    /// The promise of a VQ's tenant; `None` if it has no class with one. The VQ is attached.
    #[inline]
    pub(super) fn promise(&self, slot: u16) -> Option<Option<Nanos>> {
        let tenant = &self.tenants[usize::from(self.vqs[usize::from(slot)].tenant)];
        tenant.guaranteed.then_some(tenant.latency_target)
    }

    /// Commands wait somewhere.
    pub(super) fn any_backlog(&self) -> bool {
        self.backlogged > 0
    }

    pub(super) fn best_effort_in_flight(&self) -> u64 {
        self.best_effort_in_flight
    }

    /// A best-effort tenant is queued.
    pub(super) fn best_effort_waits(&self) -> bool {
        !self.best_effort.is_empty()
    }

    /// Hears of a tenant that several pollers share. Returns its data here, if it has VQs at this poller.
    pub(super) fn hear(&mut self, report: &TenantReport) -> Option<Own> {
        let tenant = self.tenants.get_mut(usize::from(self.roster.slot_of(report.tenant)))?;
        tenant.parts = u64::from(report.busy_pollers.max(1));
        (tenant.vqs > 0).then_some(Own { backlogged: tenant.backlogged > 0 })
    }

    /// Whether a tenant of this poller has a promise, with or without a number.
    pub(super) fn is_guaranteed(&self, tenant: TenantId) -> bool {
        self.tenants.get(usize::from(self.roster.slot_of(tenant))).is_some_and(|tenant| tenant.guaranteed)
    }

    /// Whether a guaranteed VQ has an HWQ from this one on.
    pub(super) fn any_guaranteed_from(&self, hwq: u16) -> bool {
        let is_there = |slot| self.is_attached(slot) && self.promise(slot).is_some() && self.pool.at(slot) >= hwq;
        (0..self.vqs.len() as u16).any(is_there)
    }

    pub(super) fn front_guaranteed(&self) -> Option<u16> {
        self.guaranteed.front()
    }

    #[inline]
    pub(super) fn front_best_effort(&mut self) -> Option<u16> {
        self.best_effort.front()
    }

    /// Whether a tenant has its part of `limit` cost ticks in flight here.
    #[inline]
    pub(super) fn is_at(&self, limit: u64, tenant: u16) -> bool {
        let Tenant { in_flight, parts, .. } = self.tenants[usize::from(tenant)];
        in_flight.saturating_mul(parts) >= limit
    }

    #[inline]
    pub(super) fn sent_by(&self, tenant: u16) -> u64 {
        self.tenants[usize::from(tenant)].sent
    }

    /// A queued tenant's next VQ whose HWQ has room. VQs without are parked; a tenant without any is queued no more.
    #[inline]
    pub(super) fn next_vq(&mut self, tenant: u16) -> Option<(VqSlot, HwqId)> {
        let guaranteed = self.tenants[usize::from(tenant)].guaranteed;
        while let Some(slot) = self.tenants[usize::from(tenant)].ready.front() {
            let hwq = self.pool.at(slot);
            if self.pool.has_room(hwq, guaranteed) {
                return Some((VqSlot(slot), HwqId(hwq)));
            }
            self.park(slot, hwq, guaranteed);
        }
        None
    }

    /// A best-effort VQ whose turn at a full HWQ it is, guaranteed ones having gone there many times in a row, and its
    /// tenant. It may use all of the room that is left there, and stays parked.
    #[inline]
    pub(super) fn next_due(&mut self) -> Option<(u16, VqSlot, HwqId)> {
        while let Some(hwq) = self.owing.front() {
            let parked = &mut self.parked[usize::from(hwq)];
            if let Some(slot) = parked.best_effort.front().filter(|_| parked.is_due())
                && self.pool.has_room(hwq, true)
            {
                return Some((self.vqs[usize::from(slot)].tenant, VqSlot(slot), HwqId(hwq)));
            }
            parked.owes = false;
            self.owing.remove(&mut self.hwq_links, hwq);
        }
        None
    }

    /// First in, first out within each class.
    #[inline(never)] // Seldom, and none of its callers' business.
    fn park(&mut self, slot: u16, hwq: u16, guaranteed: bool) {
        self.unready(slot);
        let vq = &mut self.vqs[usize::from(slot)];
        (vq.state, vq.parked_at, vq.parked_first) = (VqState::Parked, hwq, guaranteed);
        let list = self.parked[usize::from(hwq)].list(guaranteed);
        // Another took the room that it was woken for: it keeps its place.
        if vq.woken { list.push_front(&mut self.vq_links, slot) } else { list.push_back(&mut self.vq_links, slot) }
    }

    fn unpark(&mut self, slot: u16) {
        let Vq { parked_at, parked_first, .. } = self.vqs[usize::from(slot)];
        self.parked[usize::from(parked_at)].list(parked_first).remove(&mut self.vq_links, slot);
    }

    /// The commands that a VQ is known to have.
    pub(super) fn backlog_of(&self, slot: u16) -> u32 {
        self.vqs.get(usize::from(slot)).map_or(0, |vq| vq.backlog)
    }

    /// The VQ has `backlog` commands now. Returns its tenant's promise, if it has one and commands wait.
    #[inline]
    pub(super) fn arrived(&mut self, slot: u16, backlog: u32) -> Option<Option<Nanos>> {
        let vq = self.vqs.get_mut(usize::from(slot))?;
        match (vq.state, backlog) {
            (VqState::Detached, _) => return None,
            (VqState::Ready | VqState::Parked, 1..) => vq.backlog = backlog,
            _ => self.set_backlog(slot, backlog),
        }
        if backlog > 0 { self.promise(slot) } else { None }
    }

    /// The VQ's backlog is this now.
    pub(super) fn set_backlog(&mut self, slot: u16, backlog: u32) {
        let vq = &mut self.vqs[usize::from(slot)];
        vq.backlog = backlog;
        match (vq.state, backlog) {
            (VqState::Idle, 1..) => self.wake_up(slot),
            (VqState::Ready | VqState::Parked, 0) => self.rest(slot),
            _ => {}
        }
    }

    fn wake_up(&mut self, slot: u16) {
        let vq = &mut self.vqs[usize::from(slot)];
        vq.used = true;
        let tenant = vq.tenant;
        self.backlogged += 1;
        self.tenants[usize::from(tenant)].backlogged += 1;
        self.ready(slot, false);
        if self.tenants[usize::from(tenant)].guaranteed {
            self.pool.claim(slot, &mut self.moved);
            self.settle();
        }
    }

    fn rest(&mut self, slot: u16) {
        let Vq { state, tenant, .. } = self.vqs[usize::from(slot)];
        self.backlogged -= 1;
        self.tenants[usize::from(tenant)].backlogged -= 1;
        if state == VqState::Parked {
            self.unpark(slot);
        } else {
            self.unready(slot);
            // It may have been woken for room that it leaves to the next now.
            self.wake_parked(self.pool.at(slot));
        }
        self.vqs[usize::from(slot)].state = VqState::Idle;
    }

    /// Puts a VQ with backlog into its tenant's list.
    fn ready(&mut self, slot: u16, woken: bool) {
        let vq = &mut self.vqs[usize::from(slot)];
        (vq.state, vq.woken) = (VqState::Ready, woken);
        let tenant = vq.tenant;
        self.tenants[usize::from(tenant)].ready.push_back(&mut self.vq_links, slot);
        if self.tenants[usize::from(tenant)].place == Place::Nowhere {
            self.enqueue(tenant);
        }
    }

    /// Takes a ready VQ out of its tenant's list.
    fn unready(&mut self, slot: u16) {
        let tenant = self.vqs[usize::from(slot)].tenant;
        let ready = &mut self.tenants[usize::from(tenant)].ready;
        ready.remove(&mut self.vq_links, slot);
        if ready.is_empty() {
            self.dequeue(tenant);
        }
    }

    fn enqueue(&mut self, tenant: u16) {
        let state = &mut self.tenants[usize::from(tenant)];
        state.place = Place::Queued;
        if state.guaranteed {
            self.guaranteed.push_back(&mut self.tenant_links, tenant);
        } else {
            self.best_effort.insert(tenant);
        }
    }

    fn dequeue(&mut self, tenant: u16) {
        let state = &mut self.tenants[usize::from(tenant)];
        match std::mem::replace(&mut state.place, Place::Nowhere) {
            Place::Queued if state.guaranteed => self.guaranteed.remove(&mut self.tenant_links, tenant),
            Place::Queued => self.best_effort.remove(tenant),
            Place::Held => self.held.remove(&mut self.tenant_links, tenant),
            Place::Nowhere => {}
        }
    }

    /// Takes a queued tenant out until it is released.
    pub(super) fn hold(&mut self, tenant: u16) {
        self.dequeue(tenant);
        self.tenants[usize::from(tenant)].place = Place::Held;
        self.held.push_back(&mut self.tenant_links, tenant);
    }

    /// An interval ended: everyone may try again.
    pub(super) fn release_all(&mut self) {
        while let Some(tenant) = self.held.pop_front(&mut self.tenant_links) {
            self.enqueue(tenant);
        }
        self.tenants.iter_mut().for_each(|tenant| tenant.sent = 0);
    }

    /// Lets one VQ that waits for this HWQ try again. Called whenever room came up, or a VQ with room stopped to
    /// want it, so that room and a waiting VQ never stay apart.
    #[inline]
    fn wake_parked(&mut self, hwq: u16) {
        let Some(parked) = self.parked.get(usize::from(hwq)) else { return };
        // Guaranteed VQs go first here too; they also have room that the others don't.
        if let Some(slot) = parked.guaranteed.front().or(parked.best_effort.front()) {
            self.wake_if_room(slot, hwq);
        }
    }

    #[inline(never)] // Seldom, and none of its callers' business.
    fn wake_if_room(&mut self, slot: u16, hwq: u16) {
        let tenant = self.vqs[usize::from(slot)].tenant;
        if self.pool.has_room(hwq, self.tenants[usize::from(tenant)].guaranteed) {
            self.unpark(slot);
            self.ready(slot, true);
        }
    }

    /// VQs that the pool bound anew leave the HWQ that they were parked at; what room they were woken for there
    /// goes to the next.
    fn settle(&mut self) {
        while let Some(Moved { slot, from }) = self.moved.pop() {
            match self.vqs[usize::from(slot)].state {
                VqState::Parked => {
                    self.unpark(slot);
                    self.ready(slot, false);
                }
                VqState::Ready => {
                    self.vqs[usize::from(slot)].woken = false;
                    self.wake_parked(from);
                }
                VqState::Idle | VqState::Detached => {}
            }
        }
    }

    /// A command went to the drive. Whether its tenant is guaranteed; `None`: there is no such VQ.
    #[inline]
    pub(super) fn sent(&mut self, slot: u16, hwq: HwqId, cost: u32) -> Option<bool> {
        let vq = self.vqs.get(usize::from(slot)).filter(|vq| vq.state != VqState::Detached)?;
        let state = &mut self.tenants[usize::from(vq.tenant)];
        state.sent += state.counts_as;
        state.in_flight += u64::from(cost);
        let guaranteed = state.guaranteed;
        if !guaranteed {
            self.best_effort_in_flight += u64::from(cost);
        }
        self.pool.sent(hwq);
        self.took(slot, cost);
        if let Some(parked) = self.parked.get_mut(usize::from(hwq.0)) {
            parked.run = if guaranteed { parked.run.saturating_add(1) } else { 0 };
            if !parked.is_empty() {
                self.wake_parked(hwq.0);
            }
        }
        Some(guaranteed)
    }

    /// A command left the VQ: the VQ's and the tenant's turn is over.
    #[inline]
    pub(super) fn took(&mut self, slot: u16, cost: u32) {
        let vq = &mut self.vqs[usize::from(slot)];
        (vq.woken, vq.backlog) = (false, vq.backlog.saturating_sub(1));
        let Vq { state, tenant, parked_at, parked_first, backlog, .. } = *vq;
        let owner = &mut self.tenants[usize::from(tenant)];
        match state {
            VqState::Ready => owner.ready.rotate(&mut self.vq_links, slot),
            VqState::Parked => {
                self.parked[usize::from(parked_at)].list(parked_first).rotate(&mut self.vq_links, slot);
            }
            VqState::Idle | VqState::Detached => {}
        }
        if !owner.guaranteed {
            self.best_effort.charge(tenant, cost);
        } else if owner.place == Place::Queued {
            self.guaranteed.rotate(&mut self.tenant_links, tenant);
        }
        if backlog == 0 {
            self.set_backlog(slot, 0);
        }
    }

    /// A command came back from the drive.
    #[inline]
    pub(super) fn completed(&mut self, hwq: HwqId, tenant: u16, cost: u32) {
        if let Some(state) = self.tenants.get_mut(usize::from(tenant)) {
            let ended = u64::from(cost).min(state.in_flight);
            state.in_flight -= ended;
            if !state.guaranteed {
                self.best_effort_in_flight -= ended;
            } else if state.place == Place::Held {
                self.held.remove(&mut self.tenant_links, tenant);
                self.enqueue(tenant);
            }
        }
        if let Some(moved) = self.pool.completed(hwq) {
            self.moved.push(moved);
            self.settle();
        }
        let Some(parked) = self.parked.get_mut(usize::from(hwq.0)).filter(|parked| !parked.is_empty()) else { return };
        if parked.is_due() && !parked.owes {
            parked.owes = true;
            self.owing.push_back(&mut self.hwq_links, hwq.0);
        }
        self.wake_parked(hwq.0);
    }

    /// The switch at a period's end.
    pub(super) fn schedule(&mut self) {
        let Self { pool, vqs, tenants, moved, .. } = self;
        let want = |slot: u16| {
            let Some(vq) = vqs.get(usize::from(slot)).filter(|vq| vq.state != VqState::Detached) else {
                return Want::Backlog(0);
            };
            match tenants[usize::from(vq.tenant)].guaranteed {
                true if vq.used || vq.backlog > 0 => Want::Home,
                true => Want::Idle,
                false => Want::Backlog(vq.backlog),
            }
        };
        pool.schedule(want, moved);
        self.vqs.iter_mut().for_each(|vq| vq.used = false);
        self.settle();
    }
}

#[cfg(test)]
mod tests;
