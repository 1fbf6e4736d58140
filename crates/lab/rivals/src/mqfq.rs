//! MQFQ: fair queueing over many queues with a bounded gap ("Multi-Queue Fair Queueing", Hedayati et al.,
//! ATC '19).
//!
//! Every flow (a tenant) has a start tag: the virtual time at which its next command may start, moved on by cost/weight
//! with each command. Virtual time is the lowest start tag of all backlogged flows. A flow more than T ahead of it is
//! held; all others may go, in whatever order they come: here in turns. At most D commands are with the drive. So two
//! backlogged flows never drift apart by more than T and one command, and the drive is kept busy meanwhile.
//!
//! A guaranteed tenant counts as one of weight [`guaranteed_weight`](MqfqConfig::guaranteed_weight): MQFQ knows
//! shares, not latencies. The lag of a flow whose HWQs are full still holds virtual time back. A flow stops
//! counting as soon as it has no commands.
//!
//! Each of several pollers has a virtual time of its own, and its part of D (see `split`), which is corrected until all
//! virtual times go on as fast. So T is kept between flows of one poller, and shares between all.

use io_model::{Nanos, Op};
use policy::parts::{ByFlow, Claim, Flows, Links, List, Lowest, Share, Standing, TICKS_PER_COMMAND, Turns};
use policy::{COST_UNIT, ConfigError, Cost, Next, PollerShape, Terms};

/// Settings of [`Mqfq`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MqfqConfig {
    /// T: how far a flow may run ahead of the slowest, in reference commands (4 KiB) at weight 1; 1 to 16384.
    pub gap_commands: u32,
    /// D: commands that all tenants may have with the drive together, 1 or more.
    pub max_in_flight: u32,
    /// Weight of a guaranteed tenant, 1 to 10000; best-effort tenants have their own. 2 is what the highest `ionice`
    /// level is worth beside the default one in D2FQ; LPNS compares the policies with such a tenant.
    pub guaranteed_weight: u32,
    /// What commands cost in reference commands.
    pub cost: Cost,
}

impl Default for MqfqConfig {
    /// A gap of a dozen commands and enough in flight to fill a fast drive; neither is taken from the paper.
    fn default() -> Self {
        Self { gap_commands: 12, max_in_flight: 64, guaranteed_weight: 2, cost: Cost::default() }
    }
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    /// Start tag of its next command.
    start: u64,
    share: Share,
    standing: Standing,
    held: bool,
}

const NEW: Flow = Flow { start: 0, share: Share::ONE, standing: Standing::Idle, held: false };

/// All flows in virtual time.
#[derive(Debug)]
pub struct VirtualTime {
    gap: u64,
    guaranteed_weight: u32,
    /// Virtual time: the lowest start tag.
    now: u64,
    /// Backlogged flows, blocked ones too, from `now` on.
    starts: Lowest,
    /// Flows beyond the gap.
    held: Lowest,
    /// Flows that may go.
    ring: List,
    links: Links,
    flows: Vec<Flow>,
}

impl VirtualTime {
    fn new(config: &MqfqConfig) -> Self {
        let gap = u64::from(config.gap_commands) * TICKS_PER_COMMAND;
        Self {
            gap,
            guaranteed_weight: config.guaranteed_weight,
            now: 0,
            starts: Lowest::default(),
            held: Lowest::default(),
            ring: List::default(),
            links: Links::default(),
            flows: Vec::new(),
        }
    }

    /// Puts a ready flow where its start tag belongs.
    fn place(&mut self, flow: u16) {
        let state = &mut self.flows[usize::from(flow)];
        state.held = state.start > self.now + self.gap;
        if state.held {
            self.held.insert(flow, state.start);
        } else {
            self.ring.push_back(&mut self.links, flow);
        }
    }

    fn unplace(&mut self, flow: u16) {
        if std::mem::replace(&mut self.flows[usize::from(flow)].held, false) {
            self.held.remove(flow);
        } else {
            self.ring.remove(&mut self.links, flow);
        }
    }

    /// A command of this cost went: the next one's start tag.
    fn charge(&mut self, flow: u16, cost: u32) {
        let Flow { standing, .. } = self.flows[usize::from(flow)];
        if standing == Standing::Ready {
            self.unplace(flow);
        }
        let state = &mut self.flows[usize::from(flow)];
        state.start = state.start.max(self.now) + state.share.ticks(cost);
        let start = state.start;
        if standing != Standing::Idle {
            self.starts.insert(flow, start);
        }
        if standing == Standing::Ready {
            self.place(flow);
        }
    }

    /// The next flow, if one may send.
    fn front(&mut self) -> Option<u16> {
        let Self { starts, held, flows, .. } = self;
        if let Some((start, _)) = starts.first() {
            self.now = self.now.max(start);
        }
        let limit = self.now + self.gap;
        while let Some((_, flow)) = held.first().filter(|(start, _)| *start <= limit) {
            held.remove(flow);
            flows[usize::from(flow)].held = false;
            self.ring.push_back(&mut self.links, flow);
        }
        self.ring.front()
    }
}

impl Turns for VirtualTime {
    fn attach(&mut self, flow: u16, terms: &Terms) {
        if self.flows.len() <= usize::from(flow) {
            self.flows.resize(usize::from(flow) + 1, NEW);
            self.links.grow(self.flows.len());
            self.starts.grow(self.flows.len());
            self.held.grow(self.flows.len());
        }
        self.flows[usize::from(flow)].share = Share::new(terms.class.weight_or(self.guaranteed_weight));
    }

    fn forget(&mut self, flow: u16) {
        if let Some(flow) = self.flows.get_mut(usize::from(flow)) {
            *flow = NEW;
        }
    }

    fn moved(&mut self, flow: u16, from: Standing, to: Standing) {
        if from == Standing::Ready {
            self.unplace(flow);
        }
        let state = &mut self.flows[usize::from(flow)];
        state.standing = to;
        if from == Standing::Idle {
            state.start = state.start.max(self.now);
            self.starts.insert(flow, state.start);
        } else if to == Standing::Idle {
            self.starts.remove(flow);
        }
        if to == Standing::Ready {
            self.place(flow);
        }
    }

    fn claim(&self, flow: u16) -> Claim {
        Claim::Weight(self.flows[usize::from(flow)].share.weight().into())
    }

    fn holds(&self, flow: u16) -> bool {
        self.flows[usize::from(flow)].held
    }
}

/// The MQFQ policy of one poller.
#[derive(Debug)]
pub struct Mqfq {
    cost: Cost,
    flows: Flows<VirtualTime>,
}

impl Mqfq {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(config: &MqfqConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        let MqfqConfig { gap_commands, max_in_flight, guaranteed_weight, cost } = config;
        ConfigError::check((1..=16_384).contains(gap_commands), "gap_commands", "must be from 1 to 16384")?;
        ConfigError::check(*max_in_flight >= 1, "max_in_flight", "must be at least 1")?;
        ConfigError::check((1..=10_000).contains(guaranteed_weight), "guaranteed_weight", "must be from 1 to 10000")?;
        let flows = Flows::new(VirtualTime::new(config), shape.hwqs, shape.hwq_depth);
        Ok(Self { cost: *cost, flows: flows.within((*max_in_flight).into()) })
    }
}

impl ByFlow for Mqfq {
    type Turns = VirtualTime;

    fn flows(&self) -> &Flows<VirtualTime> {
        &self.flows
    }

    fn flows_mut(&mut self) -> &mut Flows<VirtualTime> {
        &mut self.flows
    }

    #[inline]
    fn pick(&mut self, now: Nanos) -> Next {
        // Where it waits, commands are with the drive: D of them, or the slowest flow's HWQs are full, or it could go.
        self.flows.next_within(now, |turns| turns.front())
    }

    #[inline]
    fn sending(&mut self, flow: u16, op: Op, len_bytes: u64) {
        let cost = self.cost.of(op, len_bytes);
        self.flows.turns.charge(flow, cost);
        self.flows.serve(flow, cost);
    }

    fn refusing(&mut self, flow: u16, consumed: bool) {
        if consumed {
            // It took a turn and the poller's time, if not the drive's.
            self.flows.turns.charge(flow, COST_UNIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use io_model::{HwqId, TenantId, VqId};

    use policy::{Policy, TenantSlot, VqSlot};

    use super::*;

    const T0: Nanos = Nanos(0);

    fn policy(config: &MqfqConfig, weights: &[u32]) -> Mqfq {
        let shape = PollerShape { hwqs: 4, hwq_depth: 1024, guaranteed_vqs: 0, weighted: false };
        let mut policy = Mqfq::new(config, &shape).unwrap();
        for (slot, weight) in weights.iter().enumerate() {
            let vq = VqId { tenant: TenantId(slot as u32), index: 1 };
            let tenant = TenantSlot(slot as u16);
            policy.attach(VqSlot(slot as u16), vq, tenant, &Terms::best_effort(*weight), T0);
            policy.arrived(VqSlot(slot as u16), u32::MAX, T0);
        }
        policy
    }

    /// Sends one command of the VQ's length and completes it.
    fn turn(policy: &mut Mqfq, lengths: &[u64]) -> usize {
        let Next::Send { vq, hwq } = policy.next(T0) else { panic!("somebody may always go") };
        let at = usize::from(vq.0);
        policy.sent(vq, hwq, Op::Read, lengths[at], T0);
        policy.completed(vq, hwq, TenantSlot(vq.0), Op::Read, lengths[at], T0, T0);
        at
    }

    #[test]
    fn the_gap_between_backlogged_flows_is_bounded() {
        let config = MqfqConfig { gap_commands: 10, ..MqfqConfig::default() };
        let (weights, lengths) = ([1, 4, 2], [4096, 65_536, 12_288]);
        let mut policy = policy(&config, &weights);
        let mut work = [0_f64; 3];
        for _ in 0..20_000 {
            let at = turn(&mut policy, &lengths);
            work[at] += lengths[at] as f64 / 4096.0 / f64::from(weights[at]);
            let (least, most) = work.iter().fold((f64::MAX, 0_f64), |(low, high), x| (low.min(*x), high.max(*x)));
            // T, and one command of the fastest: 16 reference commands at weight 4.
            assert!(most - least <= 10.0 + 4.0 + 0.01, "{work:?}");
        }
    }

    #[test]
    fn within_the_gap_flows_take_turns() {
        let config = MqfqConfig { gap_commands: 100, ..MqfqConfig::default() };
        let mut policy = policy(&config, &[1, 10]);
        let order: Vec<_> = (0..6).map(|_| turn(&mut policy, &[4096, 4096])).collect();
        assert_eq!(order, [0, 1, 0, 1, 0, 1], "the weight shows only once the gap is used up");
    }

    #[test]
    fn idle_flows_earn_nothing_and_hold_nobody_back() {
        let mut policy = policy(&MqfqConfig::default(), &[1, 1]);
        policy.arrived(VqSlot(0), 0, T0);
        (0..1000).for_each(|_| assert_eq!(turn(&mut policy, &[4096, 4096]), 1));
        policy.arrived(VqSlot(0), u32::MAX, T0);
        let first = (0..100).filter(|_| turn(&mut policy, &[4096, 4096]) == 0).count();
        assert!((44..=56).contains(&first), "{first}");
    }

    #[test]
    fn no_more_than_d_commands_are_with_the_drive() {
        let mut policy = policy(&MqfqConfig { max_in_flight: 3, ..MqfqConfig::default() }, &[1, 1]);
        for _ in 0..3 {
            let Next::Send { vq, hwq } = policy.next(T0) else { panic!("there is room") };
            policy.sent(vq, hwq, Op::Read, 4096, T0);
        }
        assert_eq!(policy.next(T0), Next::WaitUntil(Nanos::MAX));
        policy.completed(VqSlot(0), HwqId(0), TenantSlot(0), Op::Read, 4096, T0, T0);
        assert!(matches!(policy.next(T0), Next::Send { .. }));
    }
}
