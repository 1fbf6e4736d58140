//! A limit for each tenant, as SPDK's bdev QoS has (`bdev_set_qos_limit`): commands and bytes per second.
//!
//! Time is cut into slices of 1 ms, like SPDK's: at each slice's start a tenant may send one slice's quota, and what it did
//! not use is gone. A slice rather than a bucket that fills all the time, since then all held tenants go on at the same
//! few moments, which a sleeping poller and a simulator can wait for. A command's size and kind are known only
//! after it was fetched, so the last one of a slice may overdraw; later slices pay that back. Hence a backlogged tenant
//! gets its limit exactly in the long run, and in no span more than the limit, one slice's quota and one command.
//!
//! Otherwise than SPDK's: fractions of a quota are kept, so any rate is exact; flushes, discards and zeroing count as
//! commands, and zeroing as written bytes too, or a tenant could get around its limits with them; and one exhausted limit holds
//! all commands of the tenant, since nobody knows what its next command is. Classes and weights play no part: tenants take
//! turns. A tenant on several pollers has its limits at each.

use io_model::{HwqId, Nanos, Op, TenantId, VqId};

use crate::calendar::{Calendar, FARTHEST};
use crate::flows::{Flows, Standing, Turns};
use crate::ready::{Links, List};
use crate::{Class, ConfigError, Next, Policy, PollerShape, TenantReport, VqSlot};

const SLICE: Nanos = Nanos::from_millis(1);
/// Quotas and tokens are in thousandths of a command or byte: a slice's quota is the rate per second.
const MILLI: u64 = 1_000;
/// No command counts more bytes than this.
const MAX_LEN_BYTES: u64 = 1 << 40;

/// What one tenant may do at most; 0: no limit. Names and units are SPDK's: a MB is 2^20 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Commands per second, up to 10^9.
    pub rw_ios_per_sec: u64,
    /// MiB per second, both ways, up to 10^6.
    pub rw_mbytes_per_sec: u64,
    /// MiB per second read, up to 10^6.
    pub r_mbytes_per_sec: u64,
    /// MiB per second written, up to 10^6.
    pub w_mbytes_per_sec: u64,
}

/// Settings of [`Caps`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapsConfig {
    /// By [`TenantId`]; tenants beyond the end have no limit.
    pub limits: Vec<Limits>,
}

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
        // At most 2^20 × 10^6: validated.
        Self { per_slice: per_sec as i64, tokens: per_sec as i64 }
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
    /// Any limit at all.
    limited: bool,
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

impl Tenant {
    fn new(limits: Limits) -> Self {
        let bytes = |mbytes: u64| Quota::new(mbytes << 20);
        Self {
            limited: limits != Limits::default(),
            ios: Quota::new(limits.rw_ios_per_sec),
            bytes: bytes(limits.rw_mbytes_per_sec),
            read_bytes: bytes(limits.r_mbytes_per_sec),
            written_bytes: bytes(limits.w_mbytes_per_sec),
            slice: 0,
            ready: false,
            held_until: None,
        }
    }

    fn quotas(&mut self) -> [&mut Quota; 4] {
        [&mut self.ios, &mut self.bytes, &mut self.read_bytes, &mut self.written_bytes]
    }

    /// Slices until it may send; 0: in this one.
    fn slices_to_wait(&mut self, slice: u64) -> u64 {
        if !self.limited {
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
struct Tenants {
    limits: Vec<Limits>,
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
    fn attach(&mut self, tenant: u16, _: Class) {
        let Self { limits, tenants, .. } = self;
        // Once and for all, or a tenant could get new quotas by attaching anew.
        while tenants.len() <= usize::from(tenant) {
            tenants.push(Tenant::new(limits.get(tenants.len()).copied().unwrap_or_default()));
        }
        self.links.grow(tenants.len());
        self.held.grow(tenants.len());
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
    /// A setting out of its range.
    pub fn new(config: &CapsConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        for limits in &config.limits {
            let most_mbytes = 1_000_000;
            let ios_remedy = "must be at most 1000000000";
            let mbytes_remedy = "must be at most 1000000";
            ConfigError::check(limits.rw_ios_per_sec <= 1_000_000_000, "rw_ios_per_sec", ios_remedy)?;
            ConfigError::check(limits.rw_mbytes_per_sec <= most_mbytes, "rw_mbytes_per_sec", mbytes_remedy)?;
            ConfigError::check(limits.r_mbytes_per_sec <= most_mbytes, "r_mbytes_per_sec", mbytes_remedy)?;
            ConfigError::check(limits.w_mbytes_per_sec <= most_mbytes, "w_mbytes_per_sec", mbytes_remedy)?;
        }
        let tenants = Tenants {
            limits: config.limits.clone(),
            tenants: Vec::new(),
            ring: List::default(),
            links: Links::default(),
            held: Calendar::new(),
            slice: 0,
        };
        Ok(Self { flows: Flows::new(tenants, shape.hwqs, shape.hwq_depth) })
    }

    /// The HWQ of a VQ.
    pub fn hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        self.flows.hwq_of(slot)
    }

    fn charge(&mut self, slot: VqSlot, op: Op, len_bytes: u64) {
        if let Some(tenant) = self.flows.flow_of(slot) {
            self.flows.turns.tenants[usize::from(tenant)].charge(op, len_bytes);
            self.flows.turns.rotate(tenant);
        }
    }
}

impl Policy for Caps {
    fn attach(&mut self, slot: VqSlot, vq: VqId, class: Class, _: Nanos) {
        self.flows.attach(slot, vq.tenant.0, class);
    }

    fn detach(&mut self, slot: VqSlot, _: Nanos) {
        self.flows.detach(slot);
    }

    #[inline]
    fn arrived(&mut self, slot: VqSlot, backlog: u32, _: Nanos) {
        self.flows.arrived(slot, backlog);
    }

    #[inline]
    fn next(&mut self, now: Nanos) -> Next {
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
    fn sent(&mut self, slot: VqSlot, hwq: HwqId, op: Op, len_bytes: u64, _: Nanos) {
        self.charge(slot, op, len_bytes);
        self.flows.sent(slot, hwq);
    }

    fn refused(&mut self, slot: VqSlot, consumed: bool, _: Nanos) {
        if consumed {
            // A command all the same, if not one for the drive.
            self.charge(slot, Op::Flush, 0);
        }
        self.flows.refused(slot, consumed);
    }

    #[inline]
    fn completed(&mut self, _: VqSlot, hwq: HwqId, _: TenantId, _: Op, _: u64, _: Nanos, _: Nanos) {
        self.flows.completed(hwq);
    }

    fn interval(&mut self, _: &[TenantReport], _: Nanos) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_millis(1_000);

    fn policy(limits: &[Limits]) -> Caps {
        let shape = PollerShape { hwqs: 2, hwq_depth: 1024, guaranteed_vqs: 0 };
        let mut policy = Caps::new(&CapsConfig { limits: limits.to_vec() }, &shape).unwrap();
        for tenant in 0..limits.len() as u16 {
            let vq = VqId { tenant: TenantId(tenant), index: 1 };
            policy.attach(VqSlot(tenant), vq, Class::BestEffort { weight: 1 }, Nanos(0));
            policy.arrived(VqSlot(tenant), u32::MAX, Nanos(0));
        }
        policy
    }

    /// Runs for a span with instant completions: when each command of each tenant went, and how often it was asked in vain.
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
                    policy.completed(vq, hwq, TenantId(vq.0), op, len_bytes, Nanos(0), now);
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
        let limits = vec![Limits { rw_ios_per_sec: 3_000, ..Limits::default() }];
        let mut policy = Caps::new(&CapsConfig { limits }, &shape).unwrap();
        let send = |policy: &mut Caps| {
            let Next::Send { vq, hwq } = policy.next(Nanos(0)) else { return None };
            policy.sent(vq, hwq, Op::Read, 4096, Nanos(0));
            Some((vq.0, hwq.0))
        };
        // VQs 0 and 1 of the limited tenant fill both HWQs and wait for them, 2 and 3 of another come after.
        let mut order = Vec::new();
        for slots in [[0, 1], [2, 3]] {
            for slot in slots {
                let vq = VqId { tenant: TenantId(slot / 2), index: slot + 1 };
                policy.attach(VqSlot(slot), vq, Class::BestEffort { weight: 1 }, Nanos(0));
                policy.arrived(VqSlot(slot), 9, Nanos(0));
            }
            order.extend(std::iter::from_fn(|| send(&mut policy)));
        }
        assert_eq!(order, [(0, 0), (1, 1)]);
        for hwq in [0, 1] {
            policy.completed(VqSlot(hwq), HwqId(hwq), TenantId(0), Op::Read, 4096, Nanos(0), Nanos(0));
        }
        // Both were woken, but one command is all that is left of the slice.
        order = std::iter::from_fn(|| send(&mut policy)).collect();
        assert_eq!(order, [(0, 0), (3, 1)]);
    }

    #[test]
    fn vqs_of_a_held_tenant_take_turns_at_full_hwqs() {
        let shape = PollerShape { hwqs: 1, hwq_depth: 2, guaranteed_vqs: 0 };
        let limits = vec![Limits { rw_ios_per_sec: 3_000, ..Limits::default() }];
        let mut policy = Caps::new(&CapsConfig { limits }, &shape).unwrap();
        for slot in 0..5 {
            let vq = VqId { tenant: TenantId(0), index: slot + 1 };
            policy.attach(VqSlot(slot), vq, Class::BestEffort { weight: 1 }, Nanos(0));
            policy.arrived(VqSlot(slot), u32::MAX, Nanos(0));
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
                    policy.completed(VqSlot(0), HwqId(0), TenantId(0), Op::Read, 4096, Nanos(0), now);
                }
            }
        }
        assert!(sent.iter().all(|count| (59..=61).contains(count)), "{sent:?}");
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let shape = PollerShape { hwqs: 1, hwq_depth: 1, guaranteed_vqs: 0 };
        let limits = vec![Limits::default(), Limits { w_mbytes_per_sec: 1_000_001, ..Limits::default() }];
        assert_eq!(Caps::new(&CapsConfig { limits }, &shape).unwrap_err().field, "w_mbytes_per_sec");
    }
}
