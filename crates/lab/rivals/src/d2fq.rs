//! D2FQ: fair queueing by the drive's own weighted round robin ("D2FQ: Device-Direct Fair Queueing for NVMe SSDs",
//! Woo et al., FAST '21; thresholds, tracking and adaptation behave as the kernel published with it does).
//!
//! Nothing is held back: every command goes to the drive at once, and only *which class of HWQ* carries it is chosen.
//! Each tenant has a virtual time, moved on by cost/weight as its commands complete. One that is ahead of the slowest
//! by more than τ_l sends over a low-class HWQ, by more than τ_m over a medium one, else over a high one, and the drive
//! fetches from these in the ratio √R·√R : √R : 1. A tenant that is active alone uses the medium class.
//!
//! The lowest virtual time is tracked sloppily, as published: it belongs to one tenant, and follows that tenant until
//! another one's completion shows a lower one. So it may stand too high for a moment, but costs O(1).
//!
//! R, the speed of the high class against the low one, adapts every 200 ms: up while a tenant sends mostly at low speed
//! and yet runs away, down to the slowdown that is really in use. [`wrr_weights`](policy::Policy::wrr_weights) tells
//! the weights for R; the caller has to set them at the drive. On a drive without weighted round robin, or
//! with HWQs whose classes were never set, commands flow freely, but *no shares are kept*.
//!
//! A guaranteed tenant is one of weight [`guaranteed_weight`](D2fqConfig::guaranteed_weight): D2FQ knows shares, not
//! latencies. The HWQs of a poller take the classes in turn: high, medium, low, high, …

use io_model::{HwqId, Nanos, Op, QueuePriority, WrrWeights};
use policy::parts::{ByFlow, Flows, Links, List, NONE, Share, Standing, TICKS_PER_COMMAND, Turns};
use policy::{ConfigError, Cost, Next, PollerShape, TenantReport, TenantSlot, Terms, VqSlot};

/// A tenant without commands for so long is not active any more, and starts anew without credit or debt.
const GRACE: Nanos = Nanos::from_millis(200);
/// How often R adapts.
const PERIOD: Nanos = Nanos::from_millis(200);
/// R is never below this …
const LEAST_RATIO: u32 = 3;
/// … nor above the range of one weight.
const MOST_RATIO: u32 = 256;

/// Settings of [`D2fq`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct D2fqConfig {
    /// τ_m: a tenant further ahead of the slowest than this sends at medium speed; in reference commands (4 KiB) at
    /// weight 1.
    pub medium_gap_commands: u32,
    /// τ_l: further ahead than this, at low speed; `medium_gap_commands` or more, up to 16384.
    pub low_gap_commands: u32,
    /// R at the start: high class to low class, 3 to 256.
    pub ratio: u32,
    /// Whether R adapts. The published kernel has it off unless asked.
    pub adaptive: bool,
    /// Weight of a guaranteed tenant, 1 to 10000; best-effort tenants have their own. 2 is what the highest `ionice`
    /// level is worth beside the default one; LPNS compares the policies with such a tenant.
    pub guaranteed_weight: u32,
    /// What commands cost in reference commands.
    pub cost: Cost,
}

impl Default for D2fqConfig {
    /// Thresholds and ratio of the published kernel for a process of the default priority: 8192 units at 210 per KiB,
    /// and 30 % of them.
    fn default() -> Self {
        Self {
            medium_gap_commands: 3,
            low_gap_commands: 10,
            ratio: 6,
            adaptive: true,
            guaranteed_weight: 2,
            cost: Cost::default(),
        }
    }
}

/// The class of one of a poller's HWQs.
pub(crate) fn class_of(hwq: u16) -> QueuePriority {
    match hwq % 3 {
        0 => QueuePriority::High,
        1 => QueuePriority::Medium,
        _ => QueuePriority::Low,
    }
}

/// Weights in the ratio √R·√R : √R : 1, as large as one byte holds.
pub(crate) fn weights_of(ratio: u32) -> WrrWeights {
    let ratio = ratio.clamp(LEAST_RATIO, MOST_RATIO);
    let root = (1..=16).find(|root| root * root >= ratio).unwrap_or(16);
    let low = 256 / ratio;
    // None above 256.
    let weight = |weight: u32| weight as u16;
    WrrWeights { high: weight(low * ratio), medium: weight(low * root), low: weight(low) }
}

#[derive(Debug, Clone, Copy)]
struct Tenant {
    share: Share,
    standing: Standing,
    active: bool,
    in_flight: u32,
    /// When its last command completed.
    last: Nanos,
    /// Its virtual time, in ticks.
    virtual_time: u64,
    /// Its virtual time at the last period's end.
    before: u64,
    /// Ticks in this period by class: high, medium, low.
    used: [u64; 3],
}

const NOBODY: Tenant = Tenant {
    share: Share::ONE,
    standing: Standing::Idle,
    active: false,
    in_flight: 0,
    last: Nanos(0),
    virtual_time: 0,
    before: 0,
    used: [0; 3],
};

/// All tenants and their virtual times.
#[derive(Debug)]
pub struct Tenants {
    guaranteed_weight: u32,
    tenants: Vec<Tenant>,
    ring: List,
    links: Links,
    /// Tenants that are active.
    active: u32,
    /// The tenant that holds the lowest virtual time, as far as known.
    holder: u16,
    lowest: u64,
}

impl Tenants {
    fn activate(&mut self, tenant: u16) {
        let state = &mut self.tenants[usize::from(tenant)];
        if !state.active {
            state.active = true;
            (state.virtual_time, state.before) = (self.lowest, self.lowest);
            self.active += 1;
        }
    }

    /// Lets go of tenants that had nothing to do for the time of grace.
    fn expire(&mut self, now: Nanos) {
        for (id, tenant) in self.tenants.iter_mut().enumerate() {
            let idle = tenant.in_flight == 0 && tenant.standing == Standing::Idle && now - tenant.last >= GRACE;
            if tenant.active && idle {
                tenant.active = false;
                self.active -= 1;
                if usize::from(self.holder) == id {
                    self.holder = NONE;
                }
            }
        }
    }

    fn completed(&mut self, id: u16, class: QueuePriority, cost: u32, now: Nanos) {
        let Some(tenant) = self.tenants.get_mut(usize::from(id)) else { return };
        let ticks = tenant.share.ticks(cost);
        tenant.in_flight = tenant.in_flight.saturating_sub(1);
        tenant.last = now;
        tenant.virtual_time += ticks;
        tenant.used[speed(class)] += ticks;
        if self.holder == id || self.holder == NONE || tenant.virtual_time < self.lowest {
            (self.holder, self.lowest) = (id, tenant.virtual_time);
        }
    }
}

fn speed(class: QueuePriority) -> usize {
    match class {
        QueuePriority::Urgent | QueuePriority::High => 0,
        QueuePriority::Medium => 1,
        QueuePriority::Low => 2,
    }
}

impl Turns for Tenants {
    fn attach(&mut self, tenant: u16, terms: &Terms) {
        if self.tenants.len() <= usize::from(tenant) {
            self.tenants.resize(usize::from(tenant) + 1, NOBODY);
            self.links.grow(self.tenants.len());
        }
        self.tenants[usize::from(tenant)].share = Share::new(terms.class.weight_or(self.guaranteed_weight));
    }

    fn forget(&mut self, tenant: u16) {
        let Some(state) = self.tenants.get_mut(usize::from(tenant)) else { return };
        self.active -= u32::from(std::mem::replace(state, NOBODY).active);
        if self.holder == tenant {
            self.holder = NONE;
        }
    }

    fn moved(&mut self, tenant: u16, from: Standing, to: Standing) {
        self.tenants[usize::from(tenant)].standing = to;
        if from == Standing::Idle {
            self.activate(tenant);
        }
        if from == Standing::Ready {
            self.ring.remove(&mut self.links, tenant);
        }
        if to == Standing::Ready {
            self.ring.push_back(&mut self.links, tenant);
        }
    }
}

/// The D2FQ policy of one poller.
#[derive(Debug)]
pub struct D2fq {
    config: D2fqConfig,
    hwqs: u16,
    medium_gap: u64,
    low_gap: u64,
    ratio: u32,
    period_end: Nanos,
    flows: Flows<Tenants>,
}

impl D2fq {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A setting out of its range, or fewer than three HWQs, one for each class.
    pub fn new(config: &D2fqConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        let D2fqConfig { medium_gap_commands, low_gap_commands, ratio, guaranteed_weight, .. } = config;
        ConfigError::check(shape.hwqs >= 3, "hwqs", "must be at least 3, one for each class")?;
        let gaps = *medium_gap_commands..=16_384;
        let gap_remedy = "must be from medium_gap_commands to 16384";
        ConfigError::check(gaps.contains(low_gap_commands), "low_gap_commands", gap_remedy)?;
        ConfigError::check((LEAST_RATIO..=MOST_RATIO).contains(ratio), "ratio", "must be from 3 to 256")?;
        ConfigError::check((1..=10_000).contains(guaranteed_weight), "guaranteed_weight", "must be from 1 to 10000")?;
        let tenants = Tenants {
            guaranteed_weight: *guaranteed_weight,
            tenants: Vec::new(),
            ring: List::default(),
            links: Links::default(),
            active: 0,
            holder: NONE,
            lowest: 0,
        };
        Ok(Self {
            hwqs: shape.hwqs,
            medium_gap: u64::from(*medium_gap_commands) * TICKS_PER_COMMAND,
            low_gap: u64::from(*low_gap_commands) * TICKS_PER_COMMAND,
            ratio: *ratio,
            period_end: Nanos(0),
            flows: Flows::new(tenants, shape.hwqs, shape.hwq_depth),
            config: config.clone(),
        })
    }

    /// The class of a tenant's next command.
    fn class(&self, tenant: u16) -> QueuePriority {
        let Tenants { tenants, active, lowest, .. } = &self.flows.turns;
        let ahead = tenants[usize::from(tenant)].virtual_time.saturating_sub(*lowest);
        match ahead {
            _ if *active <= 1 => QueuePriority::Medium,
            _ if ahead > self.low_gap => QueuePriority::Low,
            _ if ahead > self.medium_gap => QueuePriority::Medium,
            _ => QueuePriority::High,
        }
    }

    /// Adapts R to what the last period showed.
    fn adapt(&mut self) {
        let Tenants { tenants, active, .. } = &mut self.flows.turns;
        let weights = weights_of(self.ratio);
        let mut slowest = (0, false);
        let mut first: Option<(u64, u64)> = None;
        let mut last: Option<(u64, u64)> = None;
        for tenant in tenants.iter_mut() {
            let used = std::mem::take(&mut tenant.used);
            let total: u64 = used.iter().sum();
            let progress =
                (tenant.virtual_time, tenant.virtual_time - std::mem::replace(&mut tenant.before, tenant.virtual_time));
            if total == 0 {
                continue;
            }
            if first.is_none_or(|first| progress.0 > first.0) {
                first = Some(progress);
            }
            if last.is_none_or(|last| progress.0 < last.0) && tenant.active {
                last = Some(progress);
            }
            let slowdown = slowdown(used, weights);
            if slowdown > slowest.0 {
                slowest = (slowdown, 2 * used[2] >= total);
            }
        }
        let (Some(first), Some(last), 2..) = (first, last, *active) else { return };
        let (slowdown, mostly_low) = slowest;
        if slowdown < u64::from(self.ratio) {
            self.ratio = (slowdown as u32).max(LEAST_RATIO);
        } else if first.0 - last.0 > 2 * self.low_gap && mostly_low && first.1 > last.1 {
            let wanted = u128::from(first.1) * u128::from(self.ratio);
            self.ratio = wanted.div_ceil(u128::from(last.1.max(1))).min(u128::from(MOST_RATIO)) as u32;
        }
    }
}

/// How much slower than the high class a tenant was served, on average over its work; rounded up.
fn slowdown(used: [u64; 3], weights: WrrWeights) -> u64 {
    let high = u64::from(weights.high);
    let total: u64 = used.iter().sum();
    let at = |ticks: u64, weight: u16| ticks.saturating_mul(high) / u64::from(weight);
    let slowed = used[0] + at(used[1], weights.medium) + at(used[2], weights.low);
    slowed.div_ceil(total.max(1))
}

/// A VQ's HWQ in a class: VQs are spread over the class's HWQs by their slots.
fn hwq_in(class: QueuePriority, slot: u16, hwqs: u16) -> u16 {
    let first = speed(class) as u16;
    let count = (hwqs - first).div_ceil(3);
    first + 3 * (slot % count)
}

impl ByFlow for D2fq {
    type Turns = Tenants;

    fn flows(&self) -> &Flows<Tenants> {
        &self.flows
    }

    fn flows_mut(&mut self) -> &mut Flows<Tenants> {
        &mut self.flows
    }

    fn next_hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        let tenant = self.flows.flow_of(slot)?;
        Some(HwqId(hwq_in(self.class(tenant), slot.0, self.hwqs)))
    }

    #[inline]
    fn pick(&mut self, _: Nanos) -> Next {
        while let Some(tenant) = self.flows.turns.ring.front() {
            let (class, hwqs) = (self.class(tenant), self.hwqs);
            if let Some(send) = self.flows.pick_at(tenant, |_, slot| hwq_in(class, slot, hwqs)) {
                return send;
            }
        }
        // Only full HWQs hold anybody up.
        if self.flows.any_backlog() { Next::WaitUntil(Nanos::MAX) } else { Next::Idle }
    }

    #[inline]
    fn sending(&mut self, tenant: u16, _: Op, _: u64) {
        let Tenants { tenants, ring, links, .. } = &mut self.flows.turns;
        tenants[usize::from(tenant)].in_flight += 1;
        ring.rotate(links, tenant);
    }

    fn refusing(&mut self, tenant: u16, _: bool) {
        if self.flows.is_ready(tenant) {
            let Tenants { ring, links, .. } = &mut self.flows.turns;
            ring.rotate(links, tenant);
        }
    }

    #[inline]
    fn completing(&mut self, hwq: HwqId, tenant: TenantSlot, op: Op, len_bytes: u64, now: Nanos) {
        let cost = self.config.cost.of(op, len_bytes);
        self.flows.turns.completed(tenant.0, class_of(hwq.0), cost, now);
    }

    fn end_interval(&mut self, _: &[TenantReport], now: Nanos) {
        self.flows.turns.expire(now);
        if now >= self.period_end {
            self.period_end = now + PERIOD;
            if self.config.adaptive {
                self.adapt();
            }
        }
    }

    fn weights(&self) -> Option<WrrWeights> {
        Some(weights_of(self.ratio))
    }
}

#[cfg(test)]
mod tests {
    use io_model::{TenantId, VqId};

    use super::*;
    use policy::Policy;

    const T0: Nanos = Nanos(0);

    fn policy(config: &D2fqConfig, weights: &[u32]) -> D2fq {
        let shape = PollerShape { hwqs: 3, hwq_depth: 64, guaranteed_vqs: 0, weighted: false };
        let mut policy = D2fq::new(config, &shape).unwrap();
        for (slot, weight) in weights.iter().enumerate() {
            let vq = VqId { tenant: TenantId(slot as u32), index: 1 };
            let tenant = TenantSlot(slot as u16);
            policy.attach(VqSlot(slot as u16), vq, tenant, &Terms::best_effort(*weight), T0);
        }
        policy
    }

    fn complete(policy: &mut D2fq, tenant: u16, hwq: u16, count: u32) {
        (0..count)
            .for_each(|_| policy.completed(VqSlot(tenant), HwqId(hwq), TenantSlot(tenant), Op::Read, 4096, T0, T0));
    }

    fn sends_over(policy: &mut D2fq, slot: u16) -> u16 {
        policy.hwq_of(VqSlot(slot)).unwrap().0
    }

    #[test]
    fn the_further_ahead_the_slower_the_class() {
        let mut policy = policy(&D2fqConfig::default(), &[1, 1, 10]);
        policy.arrived(VqSlot(0), 100, T0);
        assert_eq!(sends_over(&mut policy, 0), 1, "alone: medium");
        policy.arrived(VqSlot(1), 100, T0);
        policy.arrived(VqSlot(2), 100, T0);
        complete(&mut policy, 0, 0, 1);
        complete(&mut policy, 1, 0, 1);
        assert_eq!([sends_over(&mut policy, 0), sends_over(&mut policy, 1)], [0, 0]);
        complete(&mut policy, 1, 0, 4);
        assert_eq!([sends_over(&mut policy, 0), sends_over(&mut policy, 1)], [0, 1], "4 ahead");
        complete(&mut policy, 1, 1, 8);
        assert_eq!([sends_over(&mut policy, 0), sends_over(&mut policy, 1)], [0, 2], "12 ahead");
        complete(&mut policy, 2, 0, 24);
        assert_eq!(sends_over(&mut policy, 2), 0, "a tenth of that each");
    }

    #[test]
    fn the_lowest_virtual_time_is_taken_over_by_whoever_shows_a_lower_one() {
        let mut policy = policy(&D2fqConfig::default(), &[1, 1]);
        policy.arrived(VqSlot(0), 100, T0);
        policy.arrived(VqSlot(1), 100, T0);
        complete(&mut policy, 0, 0, 20);
        assert_eq!(policy.flows.turns.holder, 0);
        assert_eq!(sends_over(&mut policy, 0), 0, "nobody else has shown a lower one yet");
        complete(&mut policy, 1, 0, 1);
        assert_eq!(policy.flows.turns.holder, 1);
        assert_eq!(sends_over(&mut policy, 0), 2);
    }

    #[test]
    fn an_idle_tenant_is_let_go_and_comes_back_without_credit() {
        let mut policy = policy(&D2fqConfig::default(), &[1, 1]);
        policy.arrived(VqSlot(0), 1, T0);
        policy.arrived(VqSlot(1), 100, T0);
        complete(&mut policy, 0, 0, 1);
        policy.arrived(VqSlot(0), 0, T0);
        complete(&mut policy, 1, 0, 50);
        assert_eq!(sends_over(&mut policy, 1), 2, "within the time of grace it counts");
        policy.interval(&[], GRACE);
        assert_eq!(sends_over(&mut policy, 1), 1);
        complete(&mut policy, 1, 1, 1);
        policy.arrived(VqSlot(0), 1, GRACE);
        assert_eq!([sends_over(&mut policy, 0), sends_over(&mut policy, 1)], [0, 0]);
    }

    #[test]
    fn the_ratio_follows_what_is_needed() {
        let weights = |ratio| {
            let WrrWeights { high, medium, low } = weights_of(ratio);
            (high, medium, low)
        };
        assert_eq!(weights(3), (255, 170, 85));
        assert_eq!(weights(6), (252, 126, 42));
        assert_eq!(weights(256), (256, 16, 1));
        let mut policy = policy(&D2fqConfig::default(), &[1, 1]);
        policy.arrived(VqSlot(0), 1000, T0);
        policy.arrived(VqSlot(1), 1000, T0);
        policy.interval(&[], T0);
        complete(&mut policy, 0, 0, 10);
        complete(&mut policy, 1, 2, 90);
        policy.interval(&[], PERIOD);
        assert_eq!(policy.ratio, 54, "nine times too fast at low speed");
        complete(&mut policy, 0, 0, 100);
        complete(&mut policy, 1, 1, 20);
        policy.interval(&[], PERIOD + PERIOD);
        assert_eq!(policy.ratio, 7, "medium speed is all that is used, 32 : 4 on this scale");
    }

    #[test]
    fn three_classes_need_three_queues() {
        let shape = PollerShape { hwqs: 2, hwq_depth: 64, guaranteed_vqs: 0, weighted: false };
        assert_eq!(D2fq::new(&D2fqConfig::default(), &shape).unwrap_err().field, "hwqs");
        let config = D2fqConfig { low_gap_commands: 2, ..D2fqConfig::default() };
        let shape = PollerShape { hwqs: 3, ..shape };
        assert_eq!(D2fq::new(&config, &shape).unwrap_err().field, "low_gap_commands");
    }
}
