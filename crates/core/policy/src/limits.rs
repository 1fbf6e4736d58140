//! What each tenant may do at most, under every policy: commands and bytes per second, as SPDK's bdev QoS has
//! (`bdev_set_qos_limit`), read and write apart too.
//!
//! Time is cut into slices of 1 ms, like SPDK's: with each slice a tenant gets one slice's quota, and what it did not
//! use is gone, but for what its burst lets it keep. A slice rather than a bucket that fills all the time, since then
//! all held tenants go on at the same few moments, which a sleeping poller and a simulator can wait for. A command's
//! size and kind are known only after it was fetched, so the last one of a slice may overdraw; later slices pay that
//! back. Hence a backlogged tenant gets its limit exactly in the long run, and in no span `T` more than
//! limit × (`T` + burst), the quotas of the slices in which the span begins and ends, and one command.
//!
//! A tenant that used its quota up is held: the policy is told that its VQs can't be fetched from, one by one as it
//! names them, and hears of their backlogs again at the slice at which the tenant may go on. So a policy sees a held
//! tenant as an idle one, and needs to know nothing of limits. Where its VQs are of several classes the first to be
//! named after each rest could always be the same one: a VQ that was named in vain too often goes first alone.
//!
//! Otherwise than SPDK's: fractions of a quota are kept, so any rate is exact; flushes, discards and zeroing count as
//! commands and as writes, and zeroing as written bytes too, or a tenant could get around its limits with them; and one
//! exhausted limit holds all commands of the tenant, since nobody knows what its next command is.

use std::sync::Arc;

use io_model::{Nanos, Op};

use crate::groups::{GroupId, Groups, Seat};
use crate::lowest::Lowest;
use crate::ready::{Links, List, NONE};
use crate::{Limits, Next, TenantSlot, Terms, VqSlot};

pub(crate) const SLICE: Nanos = Nanos::from_millis(1);
/// Rates are in hundredths of a command or byte per second, for a part of a limit may be less than one a second.
pub(crate) const PER_RATE: u64 = 100;
/// Quotas and tokens are in such parts of a command or byte: a slice's quota is the rate.
const PER_UNIT: u64 = 1_000 * PER_RATE;
/// Kinds of limit, in the order of [`Limits::rates`].
pub(crate) const KINDS: usize = 6;
/// No command counts more bytes than this.
const MAX_LEN_BYTES: u64 = 1 << 40;
/// A VQ that was named so often since its last command, and its tenant held each time, goes before its siblings.
const PATIENCE: u8 = 2;

/// One limit.
#[derive(Debug, Clone, Copy)]
struct Quota {
    /// 0: no limit.
    per_slice: i64,
    /// What is kept at most: a slice's, and the burst.
    most: i64,
    /// At or below 0: nothing may go.
    tokens: i64,
}

/// What a rate adds per slice, and what is kept of it at most: a slice's, and the burst.
pub(crate) fn slice_and_most(rate: u64, burst: Nanos) -> (i64, i64) {
    // At most 2^20 × 10^6 × 100, and that for 60 s: below 2^63.
    let per_slice = rate as i64;
    (per_slice, per_slice + (u128::from(rate) * u128::from(burst.0) / u128::from(SLICE.0)) as i64)
}

/// Slices until tokens at or below 0 are above.
pub(crate) fn slices_in_debt(tokens: i64, per_slice: i64) -> u64 {
    (tokens.saturating_neg() / per_slice) as u64 + 1
}

const UNLIMITED: Quota = Quota { per_slice: 0, most: 0, tokens: 0 };

impl Quota {
    /// Another limit from now on. Debts are kept, so that none is shed by a change; what is left is at most what the
    /// new one keeps. A burst has to be earned: a new limit begins with one slice's quota.
    fn set(&mut self, rate: u64, burst: Nanos) {
        let (per_slice, most) = slice_and_most(rate, burst);
        let tokens = if self.per_slice == 0 { per_slice } else { self.tokens.min(most) };
        *self = Self { per_slice, most, tokens };
    }

    fn refill(&mut self, slices: u64) {
        let added = self.per_slice.saturating_mul(i64::try_from(slices).unwrap_or(i64::MAX));
        self.tokens = self.tokens.saturating_add(added).min(self.most);
    }

    fn is_spent(&self) -> bool {
        self.per_slice > 0 && self.tokens <= 0
    }

    /// Slices until something may go; 0: now.
    fn slices_to_wait(&self) -> u64 {
        if self.is_spent() { slices_in_debt(self.tokens, self.per_slice) } else { 0 }
    }

    fn charge(&mut self, units: i64) {
        if self.per_slice > 0 {
            self.tokens = self.tokens.saturating_sub(units);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Tenant {
    limits: Limits,
    /// The part of these that holds here, and the one that may from the next time on, when the tenant's other pollers
    /// have heard of it.
    part: f64,
    part_told: f64,
    /// How many pollers the tenant has; 0: nothing is known yet.
    pollers: u16,
    is_limited: bool,
    /// The member's part of its group's ceiling.
    seat: Option<Seat>,
    /// In the order of [`Limits::rates`].
    quotas: [Quota; KINDS],
    /// One of the quotas is used up.
    is_spent: bool,
    /// That the tokens are of.
    slice: u64,
    /// VQs whose backlog the policy doesn't know of: those of a held tenant that it named.
    withheld: List,
    /// The VQ that goes before its siblings, or [`NONE`]: withheld now, or told of alone, until it had its turn.
    first: u16,
}

impl Default for Tenant {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            part: 1.0,
            part_told: 1.0,
            pollers: 0,
            is_limited: false,
            seat: None,
            quotas: [UNLIMITED; KINDS],
            is_spent: false,
            slice: 0,
            withheld: List::EMPTY,
            first: NONE,
        }
    }
}

impl Tenant {
    /// Said again, limits change nothing: a tenant gets no new quota by attaching anew.
    fn set_limits(&mut self, limits: Limits, part: f64, slice: u64) {
        if (limits, part) == (self.limits, self.part) {
            return;
        }
        // What was earned under the old limits.
        self.refill(slice);
        self.slice = slice;
        self.seat = self.seat.map(|seat| seat.with_part(part));
        (self.limits, self.part) = (limits, part);
        let burst = limits.burst.min(Limits::LONGEST_BURST);
        self.quotas.iter_mut().zip(limits.rates(part)).for_each(|(quota, rate)| quota.set(rate, burst));
        self.is_spent = self.quotas.iter().any(Quota::is_spent);
    }

    fn refill(&mut self, slice: u64) {
        let elapsed = slice.saturating_sub(self.slice);
        if elapsed > 0 && self.is_limited {
            self.slice = slice;
            self.quotas.iter_mut().for_each(|quota| quota.refill(elapsed));
            self.is_spent = self.quotas.iter().any(Quota::is_spent);
        }
    }

    /// Slices until it may send; 0: in this one.
    fn slices_to_wait(&mut self, groups: &Groups, slice: u64) -> u64 {
        self.refill(slice);
        let group = self.seat.as_ref().and_then(|seat| groups.get(seat.group));
        let of_group = self.seat.as_mut().zip(group).map_or(0, |(seat, group)| seat.slices_to_wait(group, slice));
        if !self.is_spent {
            return of_group;
        }
        self.quotas.iter().map(Quota::slices_to_wait).fold(of_group, u64::max)
    }

    /// Its group from now on. Told again, it changes nothing.
    fn set_group(&mut self, group: Option<GroupId>) {
        if self.seat.map(|seat| seat.group) != group {
            self.seat = group.map(|group| Seat::new(group, self.part));
        }
        self.is_limited = self.seat.is_some() || !self.limits.is_empty();
    }

    /// `op`: `None` for a command that is none for the drive, which counts as a command of neither kind.
    fn charge(&mut self, groups: &Groups, op: Option<Op>, len_bytes: u64) {
        let len_bytes = len_bytes.min(MAX_LEN_BYTES);
        let counts = match op {
            None => [1, 0, 0, 0, 0, 0],
            Some(Op::Read) => [1, 1, 0, len_bytes, len_bytes, 0],
            Some(Op::Write | Op::WriteZeroes) => [1, 0, 1, len_bytes, 0, len_bytes],
            Some(Op::Flush | Op::Discard) => [1, 0, 1, 0, 0, 0],
        };
        let units = counts.map(|count| (count * PER_UNIT) as i64);
        self.quotas.iter_mut().zip(units).for_each(|(quota, units)| quota.charge(units));
        self.is_spent = self.quotas.iter().any(Quota::is_spent);
        if let Some(seat) = &mut self.seat
            && let Some(group) = groups.get(seat.group)
        {
            seat.charge(group, units);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Vq {
    /// [`NONE`]: detached.
    tenant: u16,
    /// The backlog that the policy doesn't know of; 0: it knows.
    withheld: u32,
    /// How often it was named and withheld since its last command.
    in_vain: u8,
}

const NO_VQ: Vq = Vq { tenant: NONE, withheld: 0, in_vain: 0 };

/// The limits of one poller's tenants. All calls are those of [`Policy`](crate::Policy), in its order.
#[derive(Debug)]
pub(crate) struct Limiter {
    tenants: Vec<Tenant>,
    vqs: Vec<Vq>,
    /// Of withheld VQs.
    links: Links,
    /// Tenants with withheld VQs, by the slice from which they may go.
    held: Lowest,
    /// Nobody is held in this slice.
    slice: u64,
    /// How many tenants have limits.
    limited: u32,
    groups: Arc<Groups>,
}

impl Limiter {
    pub(crate) fn new(groups: Arc<Groups>) -> Self {
        let (tenants, vqs, links) = (Vec::new(), Vec::new(), Links::default());
        Self { tenants, vqs, links, held: Lowest::default(), slice: 0, limited: 0, groups }
    }

    /// Whether no tenant has limits: then nobody is held, and [`attach`](Self::attach), [`detach`](Self::detach) and
    /// [`forget`](Self::forget) are all that it must hear.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.limited == 0
    }

    pub(crate) fn attach(&mut self, slot: VqSlot, tenant: TenantSlot) {
        if slot.0 == NONE || tenant.0 == NONE {
            return;
        }
        self.detach(slot);
        if self.vqs.len() <= usize::from(slot.0) {
            self.vqs.resize(usize::from(slot.0) + 1, NO_VQ);
            self.links.grow(self.vqs.len());
        }
        if self.tenants.len() <= usize::from(tenant.0) {
            self.tenants.resize(usize::from(tenant.0) + 1, Tenant::default());
            self.held.grow(self.tenants.len());
        }
        self.vqs[usize::from(slot.0)] = Vq { tenant: tenant.0, ..NO_VQ };
    }

    /// Releases all that the tenant has withheld.
    pub(crate) fn set_limits(&mut self, tenant: TenantSlot, terms: &Terms) {
        let Terms { limits, pollers, group, .. } = *terms;
        let Some(state) = self.tenants.get_mut(usize::from(tenant.0)) else { return };
        self.limited -= u32::from(state.is_limited);
        if state.pollers != pollers {
            (state.pollers, state.part_told) = (pollers, 1.0 / f64::from(pollers.max(1)));
            state.set_limits(limits, state.part_told, self.slice);
        } else {
            state.set_limits(limits, state.part, self.slice);
        }
        state.set_group(group);
        self.limited += u32::from(state.is_limited);
        self.release_now(tenant.0);
    }

    /// That part of its limits may hold here: less at once, more from the next time on. Releases as
    /// [`set_limits`](Self::set_limits) does.
    pub(crate) fn set_part(&mut self, tenant: TenantSlot, part: f64) {
        let Some(state) = self.tenants.get_mut(usize::from(tenant.0)) else { return };
        let told = std::mem::replace(&mut state.part_told, part);
        state.set_limits(state.limits, part.min(told), self.slice);
        self.release_now(tenant.0);
    }

    /// Lets a tenant go on, whatever its time, with all of its VQs.
    fn release_now(&mut self, tenant: u16) {
        let state = &mut self.tenants[usize::from(tenant)];
        state.first = NONE;
        if !state.withheld.is_empty() {
            self.held.insert(tenant, 0);
        }
    }

    /// Whether a tenant waits for its limits; `None`: it has none.
    pub(crate) fn holds(&self, tenant: TenantSlot) -> Option<bool> {
        self.tenants.get(usize::from(tenant.0)).filter(|tenant| tenant.is_limited)?;
        Some(self.held.contains(tenant.0))
    }

    pub(crate) fn forget(&mut self, tenant: TenantSlot) {
        if let Some(tenant) = self.tenants.get_mut(usize::from(tenant.0)) {
            self.limited -= u32::from(tenant.is_limited);
            *tenant = Tenant::default();
        }
    }

    /// Call [`had_turn`](Self::had_turn) before.
    pub(crate) fn detach(&mut self, slot: VqSlot) {
        if let Some(vq) = self.vqs.get(usize::from(slot.0)) {
            if vq.withheld > 0 {
                self.unlist(slot);
            }
            self.vqs[usize::from(slot.0)] = NO_VQ;
        }
    }

    fn unlist(&mut self, slot: VqSlot) {
        let vq = &mut self.vqs[usize::from(slot.0)];
        vq.withheld = 0;
        let tenant = &mut self.tenants[usize::from(vq.tenant)];
        tenant.withheld.remove(&mut self.links, slot.0);
        if tenant.first == slot.0 {
            tenant.first = NONE;
        }
        if tenant.withheld.is_empty() {
            self.held.remove(vq.tenant);
        }
    }

    /// `true`: the VQ is withheld, and its backlog not the policy's business.
    #[inline]
    pub(crate) fn arrived(&mut self, slot: VqSlot, backlog: u32) -> bool {
        let Some(vq) = self.vqs.get_mut(usize::from(slot.0)).filter(|vq| vq.withheld > 0) else { return false };
        vq.withheld = backlog;
        if backlog == 0 {
            self.unlist(slot);
        }
        true
    }

    #[inline]
    pub(crate) fn charge(&mut self, slot: VqSlot, op: Option<Op>, len_bytes: u64) {
        let Some(vq) = self.vqs.get_mut(usize::from(slot.0)) else { return };
        if let Some(tenant) = self.tenants.get_mut(usize::from(vq.tenant)).filter(|tenant| tenant.is_limited) {
            vq.in_vain = 0;
            tenant.charge(&self.groups, op, len_bytes);
        }
    }

    /// A command left the VQ, or it has none any more. `true`: the tenant's other VQs waited for that and are released.
    #[inline]
    pub(crate) fn had_turn(&mut self, slot: VqSlot) -> bool {
        let Some(vq) = self.vqs.get(usize::from(slot.0)).filter(|vq| vq.withheld == 0) else { return false };
        let is_first = self.tenants.get(usize::from(vq.tenant)).is_some_and(|tenant| tenant.first == slot.0);
        if is_first {
            self.release_now(vq.tenant);
        }
        is_first
    }

    /// Time goes on. `true`: to another slice, which releases tenants whose time has come.
    #[inline]
    pub(crate) fn advance(&mut self, now: Nanos) -> bool {
        let before = self.slice;
        self.slice = before.max(now.0 / SLICE.0);
        self.slice > before
    }

    /// A VQ that was released, and its backlog, of which the policy must hear again. To be asked until there is none.
    pub(crate) fn next_released(&mut self) -> Option<(VqSlot, u32)> {
        let (_, tenant) = self.held.first().filter(|(until, _)| *until <= self.slice)?;
        let Tenant { withheld, first, .. } = &mut self.tenants[usize::from(tenant)];
        let is_alone = self.vqs.get(usize::from(*first)).is_some_and(|vq| vq.withheld > 0);
        let slot = if is_alone { *first } else { withheld.front()? };
        withheld.remove(&mut self.links, slot);
        if is_alone || withheld.is_empty() {
            self.held.remove(tenant);
        }
        Some((VqSlot(slot), std::mem::take(&mut self.vqs[usize::from(slot)].withheld)))
    }

    /// Slices that a VQ's tenant must wait; 0: it may send.
    #[inline]
    pub(crate) fn slices_to_wait(&mut self, slot: VqSlot) -> u64 {
        let Some(vq) = self.vqs.get(usize::from(slot.0)) else { return 0 };
        match self.tenants.get_mut(usize::from(vq.tenant)) {
            Some(tenant) if tenant.is_limited => tenant.slices_to_wait(&self.groups, self.slice),
            _ => 0,
        }
    }

    /// Keeps a VQ's backlog from the policy, which takes the VQ for empty, until its tenant waited this many slices.
    pub(crate) fn withhold(&mut self, slot: VqSlot, backlog: u32, slices: u64) {
        let Some(vq) = self.vqs.get_mut(usize::from(slot.0)).filter(|vq| vq.withheld == 0 && backlog > 0) else {
            return;
        };
        (vq.withheld, vq.in_vain) = (backlog, vq.in_vain.saturating_add(1));
        let tenant = &mut self.tenants[usize::from(vq.tenant)];
        if vq.in_vain > PATIENCE && tenant.first == NONE {
            tenant.first = slot.0;
        }
        tenant.withheld.push_back(&mut self.links, slot.0);
        if !self.held.contains(vq.tenant) {
            self.held.insert(vq.tenant, self.slice.saturating_add(slices));
        }
    }

    /// What the policy wants, or when the first held tenant may go.
    #[inline]
    pub(crate) fn or_release(&self, next: Next) -> Next {
        let Some((slice, _)) = self.held.first() else { return next };
        let release = Nanos(slice.saturating_mul(SLICE.0));
        match next {
            Next::Send { .. } => next,
            Next::WaitUntil(at) => Next::WaitUntil(at.min(release)),
            Next::Idle => Next::WaitUntil(release),
        }
    }
}

#[cfg(test)]
mod tests;
