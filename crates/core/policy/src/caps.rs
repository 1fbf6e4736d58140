//! A limit for each tenant, as SPDK's bdev QoS has (`bdev_set_qos_limit`): commands and bytes per second.
//!
//! Time is cut into slices of 1 ms, like SPDK's: at each slice's start a tenant may send one slice's quota, and what it
//! did not use is gone. A slice rather than a bucket that fills all the time, since then all held tenants go on at the
//! same few moments, which a sleeping poller and a simulator can wait for. A command's size and kind are known only
//! after it was fetched, so the last one of a slice may overdraw; later slices pay that back. Hence a backlogged tenant
//! gets its limit exactly in the long run, and in no span more than the limit, one slice's quota and one command.
//!
//! Otherwise than SPDK's: fractions of a quota are kept, so any rate is exact; flushes, discards and zeroing count as
//! commands, and zeroing as written bytes too, or a tenant could get around its limits with them; and one exhausted
//! limit holds all commands of the tenant, since nobody knows what its next command is. Classes and weights play no
//! part: tenants take turns. A tenant on several pollers has its limits at each.

use io_model::{Nanos, Op};

use crate::by_flow::ByFlow;
use crate::calendar::{Calendar, FARTHEST};
use crate::flows::{Flows, Standing, Turns};
use crate::ready::{Links, List};
use crate::{ConfigError, Limits, Next, PollerShape, TenantSlot, Terms};

const SLICE: Nanos = Nanos::from_millis(1);
/// Quotas and tokens are in thousandths of a command or byte: a slice's quota is the rate per second.
const MILLI: u64 = 1_000;
/// No command counts more bytes than this.
const MAX_LEN_BYTES: u64 = 1 << 40;

/// One limit.
#[derive(Debug, Clone, Copy)]
struct Quota {
    /// Per slice; 0: no limit.
    per_slice: i64,
    /// Left in `slice`; at or below 0: nothing may go.
    tokens: i64,
}

impl Quota {
    fn new(per_sec: u64) -> Self {
        // At most 2^20 × 10^6.
        Self { per_slice: per_sec as i64, tokens: per_sec as i64 }
    }

    /// Another limit from now on. Debts are kept, so that none is shed by a change; what is left is at most the new
    /// quota.
    fn set(&mut self, per_sec: u64) {
        let new = Self::new(per_sec);
        let tokens = if self.per_slice == 0 { new.tokens } else { self.tokens.min(new.tokens) };
        *self = Self { tokens, ..new };
    }

    fn refill(&mut self, slices: u64) {
        let added = self.per_slice.saturating_mul(i64::try_from(slices).unwrap_or(i64::MAX));
        self.tokens = self.tokens.saturating_add(added).min(self.per_slice);
    }

    /// Slices until something may go; 0: now.
    fn slices_to_wait(&self) -> u64 {
        if self.per_slice == 0 || self.tokens > 0 {
            return 0;
        }
        (self.tokens.saturating_neg() / self.per_slice) as u64 + 1
    }

    fn charge(&mut self, units: u64) {
        if self.per_slice > 0 {
            self.tokens = self.tokens.saturating_sub((units * MILLI) as i64);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Tenant {
    limits: Limits,
    ios: Quota,
    bytes: Quota,
    read_bytes: Quota,
    written_bytes: Quota,
    /// That the tokens are of.
    slice: u64,
    ready: bool,
    /// It may go from this slice on.
    held_until: Option<u64>,
}

const UNLIMITED: Quota = Quota { per_slice: 0, tokens: 0 };

const NEW: Tenant = Tenant {
    limits: Limits { rw_ios_per_sec: 0, rw_mbytes_per_sec: 0, r_mbytes_per_sec: 0, w_mbytes_per_sec: 0 },
    ios: UNLIMITED,
    bytes: UNLIMITED,
    read_bytes: UNLIMITED,
    written_bytes: UNLIMITED,
    slice: 0,
    ready: false,
    held_until: None,
};

impl Tenant {
    /// Said again, limits change nothing: a tenant gets no new quota by attaching anew.
    fn set_limits(&mut self, limits: Limits, slice: u64) {
        if limits == self.limits {
            return;
        }
        // What was earned under the old limits.
        self.slices_to_wait(slice);
        self.slice = self.slice.max(slice);
        self.limits = limits;
        let bytes = |mbytes: u64| mbytes.min(Limits::MOST_MBYTES_PER_SEC) << 20;
        self.ios.set(limits.rw_ios_per_sec.min(Limits::MOST_IOS_PER_SEC));
        self.bytes.set(bytes(limits.rw_mbytes_per_sec));
        self.read_bytes.set(bytes(limits.r_mbytes_per_sec));
        self.written_bytes.set(bytes(limits.w_mbytes_per_sec));
    }

    fn quotas(&mut self) -> [&mut Quota; 4] {
        [&mut self.ios, &mut self.bytes, &mut self.read_bytes, &mut self.written_bytes]
    }

    /// Slices until it may send; 0: in this one.
    fn slices_to_wait(&mut self, slice: u64) -> u64 {
        if self.limits == NEW.limits {
            return 0;
        }
        let elapsed = slice.saturating_sub(self.slice);
        self.slice += elapsed;
        let quotas = self.quotas();
        let wait = quotas.into_iter().map(|quota| {
            quota.refill(elapsed);
            quota.slices_to_wait()
        });
        wait.max().unwrap_or(0)
    }

    fn charge(&mut self, op: Op, len_bytes: u64) {
        let len_bytes = len_bytes.min(MAX_LEN_BYTES);
        self.ios.charge(1);
        match op {
            Op::Read => {
                self.bytes.charge(len_bytes);
                self.read_bytes.charge(len_bytes);
            }
            Op::Write | Op::WriteZeroes => {
                self.bytes.charge(len_bytes);
                self.written_bytes.charge(len_bytes);
            }
            Op::Flush | Op::Discard => {}
        }
    }
}

/// Tenants with work: in turns, or held.
#[derive(Debug)]
pub(crate) struct Tenants {
    tenants: Vec<Tenant>,
    ring: List,
    links: Links,
    /// By the slice in which they may go.
    held: Calendar,
    /// Nobody is held in this slice.
    slice: u64,
}

impl Tenants {
    fn release(&mut self, slice: u64) {
        let Self { tenants, held, .. } = self;
        while let Some(tenant) =
            held.lowest(&mut self.slice, slice, |tenant| tenants[usize::from(tenant)].held_until.unwrap_or(slice))
        {
            held.remove(tenant);
            tenants[usize::from(tenant)].held_until = None;
            self.ring.push_back(&mut self.links, tenant);
        }
        self.slice = self.slice.max(slice);
    }

    /// Holds the front of the ring if its quota is used up.
    fn hold(&mut self, tenant: u16) -> bool {
        let state = &mut self.tenants[usize::from(tenant)];
        let wait = state.slices_to_wait(self.slice);
        if wait == 0 {
            return false;
        }
        let until = self.slice + wait.min(FARTHEST);
        state.held_until = Some(until);
        self.ring.remove(&mut self.links, tenant);
        self.held.insert(tenant, until, self.slice);
        true
    }

    /// A command of the tenant went: the next one's turn.
    fn rotate(&mut self, tenant: u16) {
        let Tenant { ready, held_until, .. } = self.tenants[usize::from(tenant)];
        if ready && held_until.is_none() {
            self.ring.rotate(&mut self.links, tenant);
        }
    }

    /// When the first held tenant may go. Exact up to 64 slices from now, beyond that up to an eighth early.
    fn next_release(&self) -> Nanos {
        let (slice, _) = self.held.first(self.slice).unwrap_or((u64::MAX, 0));
        Nanos(slice.saturating_mul(SLICE.0))
    }
}

impl Turns for Tenants {
    fn attach(&mut self, tenant: u16, terms: &Terms) {
        if self.tenants.len() <= usize::from(tenant) {
            self.tenants.resize(usize::from(tenant) + 1, NEW);
            self.links.grow(self.tenants.len());
            self.held.grow(self.tenants.len());
        }
        self.tenants[usize::from(tenant)].set_limits(terms.limits, self.slice);
    }

    fn forget(&mut self, tenant: u16) {
        if let Some(tenant) = self.tenants.get_mut(usize::from(tenant)) {
            *tenant = NEW;
        }
    }

    fn moved(&mut self, tenant: u16, from: Standing, to: Standing) {
        let state = &mut self.tenants[usize::from(tenant)];
        state.ready = to == Standing::Ready;
        if from == Standing::Ready {
            match state.held_until.take() {
                Some(_) => _ = self.held.remove(tenant),
                None => self.ring.remove(&mut self.links, tenant),
            }
        }
        if to == Standing::Ready {
            self.ring.push_back(&mut self.links, tenant);
        }
    }

    fn holds(&self, tenant: u16) -> bool {
        self.tenants[usize::from(tenant)].held_until.is_some()
    }
}

/// The caps policy of one poller.
#[derive(Debug)]
pub struct Caps {
    flows: Flows<Tenants>,
}

impl Caps {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A shape without HWQs or depth.
    pub fn new(shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        let tenants = Tenants {
            tenants: Vec::new(),
            ring: List::default(),
            links: Links::default(),
            held: Calendar::new(),
            slice: 0,
        };
        Ok(Self { flows: Flows::new(tenants, shape.hwqs, shape.hwq_depth) })
    }
}

impl ByFlow for Caps {
    type Turns = Tenants;

    fn flows(&self) -> &Flows<Tenants> {
        &self.flows
    }

    fn flows_mut(&mut self) -> &mut Flows<Tenants> {
        &mut self.flows
    }

    fn heed(&mut self, _: TenantSlot, _: &Terms, now: Nanos) {
        self.flows.turns.release(now.0 / SLICE.0);
    }

    #[inline]
    fn pick(&mut self, now: Nanos) -> Next {
        if !self.flows.any_backlog() {
            return Next::Idle;
        }
        self.flows.turns.release(now.0 / SLICE.0);
        while let Some(tenant) = self.flows.turns.ring.front() {
            if self.flows.turns.hold(tenant) {
                self.flows.pass_on(tenant);
            } else if let Some(send) = self.flows.pick(tenant) {
                return send;
            }
        }
        Next::WaitUntil(self.flows.turns.next_release())
    }

    #[inline]
    fn sending(&mut self, tenant: u16, op: Op, len_bytes: u64) {
        self.flows.turns.tenants[usize::from(tenant)].charge(op, len_bytes);
        self.flows.turns.rotate(tenant);
    }

    fn refusing(&mut self, tenant: u16, consumed: bool) {
        if consumed {
            // A command all the same, if not one for the drive.
            self.sending(tenant, Op::Flush, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use io_model::{HwqId, TenantId, VqId};

    use super::*;
    use crate::{Policy, VqSlot};

    const SECOND: Nanos = Nanos::from_millis(1_000);

    fn attach(policy: &mut Caps, slot: u16, tenant: u16, limits: Limits, backlog: u32) {
        let vq = VqId { tenant: TenantId(tenant.into()), index: slot + 1 };
        policy.attach(VqSlot(slot), vq, TenantSlot(tenant), &Terms { limits, ..Terms::default() }, Nanos(0));
        policy.arrived(VqSlot(slot), backlog, Nanos(0));
    }

    fn policy(limits: &[Limits]) -> Caps {
        let shape = PollerShape { hwqs: 2, hwq_depth: 1024, guaranteed_vqs: 0 };
        let mut policy = Caps::new(&shape).unwrap();
        for (tenant, limits) in (0..).zip(limits) {
            attach(&mut policy, tenant, tenant, *limits, u32::MAX);
        }
        policy
    }

    /// Runs for a span with instant completions: when each command of each tenant went, and how often it was asked in
    /// vain.
    fn run(
        policy: &mut Caps,
        tenants: usize,
        end: Nanos,
        command: impl Fn(usize) -> (Op, u64),
    ) -> (Vec<Vec<Nanos>>, u32) {
        let (mut sent, mut waits) = (vec![Vec::new(); tenants], 0);
        let mut now = Nanos(0);
        while now < end {
            match policy.next(now) {
                Next::Send { vq, hwq } => {
                    let (op, len_bytes) = command(sent[usize::from(vq.0)].len());
                    policy.sent(vq, hwq, op, len_bytes, now);
                    policy.completed(vq, hwq, TenantSlot(vq.0), op, len_bytes, Nanos(0), now);
                    sent[usize::from(vq.0)].push(now);
                }
                Next::WaitUntil(at) => {
                    assert!(at > now && at < Nanos::MAX);
                    (now, waits) = (at, waits + 1);
                }
                Next::Idle => panic!("everyone has a backlog"),
            }
        }
        (sent, waits)
    }

    #[test]
    fn commands_per_second_are_exact_and_never_burst() {
        let rates = [1_u64, 500, 1_500, 33_333, 250_000];
        let limits = rates.map(|rw_ios_per_sec| Limits { rw_ios_per_sec, ..Limits::default() });
        let mut policy = policy(&limits);
        let (sent, waits) = run(&mut policy, rates.len(), Nanos(10 * SECOND.0), |_| (Op::Write, 4096));
        assert!(waits <= 10_000, "not more than one wait per slice: {waits}");
        for (sent, rate) in sent.iter().zip(rates) {
            let wanted = rate as f64 * 10.0;
            assert!((sent.len() as f64 - wanted).abs() <= (wanted * 0.01).max(1.0), "{rate}: {}", sent.len());
            // Any span of 20 slices: the limit, one slice's quota and one command.
            let most = (rate as f64 * 0.021) as usize + 1;
            let spans = sent.iter().zip(sent.iter().skip(most));
            assert!(spans.into_iter().all(|(first, beyond)| *beyond - *first >= Nanos(20 * SLICE.0)), "{rate}");
        }
    }

    #[test]
    fn bytes_per_second_hold_for_large_commands_and_each_direction() {
        let limits = [
            Limits { rw_mbytes_per_sec: 100, ..Limits::default() },
            Limits { r_mbytes_per_sec: 10, ..Limits::default() },
            Limits { w_mbytes_per_sec: 10, ..Limits::default() },
        ];
        let mut policy = policy(&limits);
        let command = |count: usize| (if count.is_multiple_of(4) { Op::Write } else { Op::Read }, 1 << 20);
        let (sent, _) = run(&mut policy, 3, Nanos(10 * SECOND.0), command);
        let totals = [1_000.0, 133.3, 400.0];
        for (sent, wanted) in sent.iter().zip(totals) {
            assert!((sent.len() as f64 - wanted).abs() <= wanted * 0.01 + 2.0, "{} of {wanted}", sent.len());
        }
    }

    #[test]
    fn a_held_tenant_stops_nobody_and_rest_earns_one_slice() {
        let limits = [Limits { rw_ios_per_sec: 1_000, ..Limits::default() }, Limits::default()];
        let mut policy = policy(&limits);
        policy.arrived(VqSlot(1), 3, Nanos(0));
        let mut order = Vec::new();
        let later = Nanos(5 * SECOND.0);
        while let Next::Send { vq, hwq } = policy.next(later) {
            policy.sent(vq, hwq, Op::Read, 4096, later);
            order.push(vq.0);
        }
        assert_eq!(order, [0, 1, 1, 1]);
        assert_eq!(policy.next(later), Next::WaitUntil(later + SLICE));
    }

    #[test]
    fn room_that_a_held_tenant_was_woken_for_goes_to_others() {
        let shape = PollerShape { hwqs: 2, hwq_depth: 1, guaranteed_vqs: 0 };
        let limits = [Limits { rw_ios_per_sec: 3_000, ..Limits::default() }, Limits::default()];
        let mut policy = Caps::new(&shape).unwrap();
        let send = |policy: &mut Caps| {
            let Next::Send { vq, hwq } = policy.next(Nanos(0)) else { return None };
            policy.sent(vq, hwq, Op::Read, 4096, Nanos(0));
            Some((vq.0, hwq.0))
        };
        // VQs 0 and 1 of the limited tenant fill both HWQs and wait for them, 2 and 3 of another come after.
        let mut order = Vec::new();
        for slots in [[0, 1], [2, 3]] {
            for slot in slots {
                attach(&mut policy, slot, slot / 2, limits[usize::from(slot / 2)], 9);
            }
            order.extend(std::iter::from_fn(|| send(&mut policy)));
        }
        assert_eq!(order, [(0, 0), (1, 1)]);
        for hwq in [0, 1] {
            policy.completed(VqSlot(hwq), HwqId(hwq), TenantSlot(0), Op::Read, 4096, Nanos(0), Nanos(0));
        }
        // Both were woken, but one command is all that is left of the slice.
        order = std::iter::from_fn(|| send(&mut policy)).collect();
        assert_eq!(order, [(0, 0), (3, 1)]);
    }

    #[test]
    fn vqs_of_a_held_tenant_take_turns_at_full_hwqs() {
        let shape = PollerShape { hwqs: 1, hwq_depth: 2, guaranteed_vqs: 0 };
        let limits = [Limits { rw_ios_per_sec: 3_000, ..Limits::default() }, Limits::default()];
        let mut policy = Caps::new(&shape).unwrap();
        for slot in 0..5 {
            attach(&mut policy, slot, 0, limits[0], u32::MAX);
        }
        let mut sent = [0; 5];
        for slice in 0..100 {
            let now = Nanos(slice * SLICE.0);
            for _ in 0..2 {
                let mut flying = 0;
                while let Next::Send { vq, hwq } = policy.next(now) {
                    policy.sent(vq, hwq, Op::Read, 4096, now);
                    sent[usize::from(vq.0)] += 1;
                    flying += 1;
                }
                for _ in 0..flying {
                    policy.completed(VqSlot(0), HwqId(0), TenantSlot(0), Op::Read, 4096, Nanos(0), now);
                }
            }
        }
        assert!(sent.iter().all(|count| (59..=61).contains(count)), "{sent:?}");
    }

    #[test]
    fn limits_that_change_hold_from_then_on_and_shed_no_debt() {
        let ios = |rw_ios_per_sec| Terms { limits: Limits { rw_ios_per_sec, ..Limits::default() }, ..Terms::default() };
        let mut policy = policy(&[Limits { rw_mbytes_per_sec: 1, ..Limits::default() }]);
        // 1 MiB at once is paid for in a second.
        let (sent, _) = run(&mut policy, 1, SLICE, |_| (Op::Read, 1 << 20));
        assert_eq!(sent[0].len(), 1);
        let ten = Terms { limits: Limits { rw_mbytes_per_sec: 10, ..Limits::default() }, ..Terms::default() };
        policy.change_terms(TenantSlot(0), &ten, SLICE);
        let Next::WaitUntil(at) = policy.next(SLICE) else { panic!("the debt is kept") };
        assert!((95..=101).contains(&(at.0 / SLICE.0)), "paid back at the new rate: {at:?}");
        // Raised, lowered and said again within a slice: never more than a quota.
        policy.change_terms(TenantSlot(0), &ios(5_000), at);
        let mut count = 0;
        for _ in 0..10 {
            for limit in [50_000, 5_000, 5_000] {
                policy.change_terms(TenantSlot(0), &ios(limit), at);
            }
            while let Next::Send { vq, hwq } = policy.next(at) {
                policy.sent(vq, hwq, Op::Read, 512, at);
                count += 1;
            }
        }
        assert_eq!(count, 5);
        policy.change_terms(TenantSlot(0), &Terms::default(), at);
        assert!(matches!(policy.next(at), Next::Send { .. }), "without limits it is not held");
    }

    #[test]
    fn the_next_tenant_in_a_slot_owes_nothing() {
        let limits = Limits { rw_mbytes_per_sec: 1, ..Limits::default() };
        let mut policy = policy(&[limits]);
        run(&mut policy, 1, SLICE, |_| (Op::Read, 1 << 20));
        policy.detach(VqSlot(0), SLICE);
        attach(&mut policy, 0, 0, limits, 1);
        assert!(matches!(policy.next(SLICE), Next::WaitUntil(_)), "the same tenant does");
        policy.detach(VqSlot(0), SLICE);
        policy.forget(TenantSlot(0));
        attach(&mut policy, 0, 0, limits, 1);
        assert!(matches!(policy.next(SLICE), Next::Send { .. }));
    }
}
