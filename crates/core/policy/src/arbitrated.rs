//! Arbitration among tenants as NVMe knows it among queues: weighted round robin with an urgent class, and deficit
//! round robin ("QoS for NVMe SSDs" takes both into the drive; here the host does it, for drives that can't).
//!
//! A tenant's commands in one class are a flow, and a flow is a queue of an [`Arbiter`]. Its VQs take turns: many
//! VQs give no more than one. Under `wrr` a round gives each class its weight in commands, whatever their sizes, and
//! the flows of a class share that. Under `drr` a round gives each *flow* the quantum of its class in bytes, as the
//! drive reckons them: [`cost`](ArbitratedConfig::cost) counts a command for at least 4 KiB, or tiny ones would buy the
//! drive's time at an eighth of its price. Urgent flows go before all others, without limit: only a configuration can
//! make one.
//!
//! What a flow owes stays with its tenant until that leaves, so that nobody sheds a debt by creating its queues anew.
//!
//! Only commands that wait here can be put in order; those with the drive are served as the drive likes.
//! `max_in_flight` says how many 4 KiB commands that may be: as few as keep the drive's units busy. Larger commands
//! count for what they cost, or a tenant could fill the drive with them. Wider, the classes wait inside the drive, side
//! by side, and weights show less; narrower, the drive idles. A single command larger than the whole window is still
//! sent, alone in its excess.
//!
//! A VQ has an HWQ, but sends over another one while that is full: only the arbiter decides the order, not the
//! room that another tenant happened to leave.
//!
//! Where the drive itself has weighted round robin, `wrr` has it go on with the same order among what is with it: each
//! class has HWQs of its own, of that class and with its weight. This takes an HWQ for each class, and each must hold
//! the whole window, so that none is ever full and the arbiter decides alone, as before. `drr` does without: the drive
//! would count commands.
//!
//! Each of several pollers has an arbiter of its own, and its part of the window (see `split`): by the quanta of the
//! flows that ask there, or of each class's weight what its flows there are of all that ask. Under `wrr` its arbiter
//! has its classes' weights in the same proportion. What urgent flows used goes before that. A tenant whose VQs have
//! several classes has a flow, and under `drr` a quantum, in each. Classes of tenants and their weights for best effort
//! play no part.

use arbitration::{Arbiter, Arbitration, MAX_QUEUES, QuantaKib};
use io_model::{HwqId, Nanos, Op, QueuePriority, WrrWeights};

use crate::by_flow::ByFlow;
use crate::cost::{COST_UNIT, Cost};
use crate::flows::{Flows, Standing, Turns};
use crate::ready::{Links, List};
use crate::window::Claim;
use crate::{ConfigError, Demand, Next, PolicyFigure, PollerShape, TenantPriority, TenantSlot, Terms, VqSlot};

/// Bytes of a reference command, which costs [`COST_UNIT`].
const REFERENCE_BYTES: u64 = 4096;

const CLASSES: [QueuePriority; 4] =
    [QueuePriority::Urgent, QueuePriority::High, QueuePriority::Medium, QueuePriority::Low];
const MAX_TENANTS: u16 = MAX_QUEUES / CLASSES.len() as u16;

/// Which arbitration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In commands, by class.
    Wrr,
    /// In bytes, by flow.
    Drr,
}

/// Settings of `wrr` and of `drr`. `M`: `u32`, or `Option<u32>` where an operator may leave it to the drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArbitratedConfig<M = u32> {
    /// What the class high gets in a round: under `wrr` commands, 1 to 256; under `drr` KiB for each of its flows, 1 to
    /// 1024.
    pub high_weight: u16,
    /// Weight of the class medium, like that of the class high.
    pub medium_weight: u16,
    /// Weight of the class low, like that of the class high.
    pub low_weight: u16,
    /// `wrr`: commands of a flow before the next flow of its class has its turn, 1 to 256. `drr` takes no notice.
    pub arbitration_burst: u16,
    /// Reference commands (4 KiB) that all tenants may have with the drive together, 1 or more.
    pub max_in_flight: M,
}

impl<M> ArbitratedConfig<M> {
    /// These weights with another limit.
    pub fn with_max_in_flight<N>(self, max_in_flight: N) -> ArbitratedConfig<N> {
        let Self { high_weight, medium_weight, low_weight, arbitration_burst, .. } = self;
        ArbitratedConfig { high_weight, medium_weight, low_weight, arbitration_burst, max_in_flight }
    }
}

impl ArbitratedConfig {
    /// Weighted round robin, 32 : 16 : 8 commands, as in the paper.
    pub const fn wrr() -> Self {
        Self { high_weight: 32, medium_weight: 16, low_weight: 8, arbitration_burst: 1, max_in_flight: 64 }
    }

    /// Deficit round robin, 128 : 64 : 32 KiB, as in the paper.
    pub const fn drr() -> Self {
        Self { high_weight: 128, medium_weight: 64, low_weight: 32, ..Self::wrr() }
    }

    /// A class's weight; that of high for urgent, which needs none.
    pub fn weight(&self, class: QueuePriority) -> u16 {
        match class {
            QueuePriority::Urgent | QueuePriority::High => self.high_weight,
            QueuePriority::Medium => self.medium_weight,
            QueuePriority::Low => self.low_weight,
        }
    }

    /// The weights of `wrr` as a drive takes them.
    pub(crate) fn weights(&self) -> WrrWeights {
        WrrWeights { high: self.high_weight, medium: self.medium_weight, low: self.low_weight }
    }

    /// How much a flow of each class counts, with this many flows asking per class at all pollers: its class's weight,
    /// or a fraction of it. Under `drr` each flow has a quantum of its own, so this is for one flow per class.
    fn claims(&self, flows: [f64; CLASSES.len()]) -> [Claim; CLASSES.len()] {
        std::array::from_fn(|place| match CLASSES[place] {
            QueuePriority::Urgent => Claim::First,
            class => Claim::Weight(f64::from(self.weight(class)) / flows[place].max(1.0)),
        })
    }

    fn validate(&self, kind: Kind) -> Result<(), ConfigError> {
        let (most, remedy) = match kind {
            Kind::Wrr => (256, "must be from 1 to 256 commands"),
            Kind::Drr => (1_024, "must be from 1 to 1024 KiB"),
        };
        let weights =
            [("high_weight", self.high_weight), ("medium_weight", self.medium_weight), ("low_weight", self.low_weight)];
        for (field, weight) in weights {
            ConfigError::check((1..=most).contains(&weight), field, remedy)?;
        }
        let burst_remedy = "must be from 1 to 256";
        ConfigError::check((1..=256).contains(&self.arbitration_burst), "arbitration_burst", burst_remedy)?;
        ConfigError::check(self.max_in_flight >= 1, "max_in_flight", "must be at least 1")
    }

    fn arbitration(&self, kind: Kind) -> Arbitration {
        let Self { high_weight: high, medium_weight: medium, low_weight: low, .. } = *self;
        match kind {
            Kind::Wrr => {
                Arbitration::WeightedRoundRobin { burst: self.arbitration_burst.into(), weights: self.weights() }
            }
            Kind::Drr => Arbitration::DeficitRoundRobin {
                quanta: QuantaKib { high: high.into(), medium: medium.into(), low: low.into() },
            },
        }
    }
}

/// Flows in the arbiter's order.
#[derive(Debug)]
pub struct Order {
    arbiter: Arbiter,
    /// What a flow counts for among all pollers', by class.
    claims: [Claim; CLASSES.len()],
}

impl Turns for Order {
    // A flow's class is in its number.
    fn attach(&mut self, _: u16, _: &Terms) {}

    fn forget(&mut self, flow: u16) {
        self.arbiter.forgive(flow);
    }

    fn moved(&mut self, flow: u16, _: Standing, to: Standing) {
        self.arbiter.set_backlogged(flow, to == Standing::Ready);
    }

    fn claim(&self, flow: u16) -> Claim {
        self.claims[place_of(flow)]
    }
}

/// A tenant's flow in a class: a number of its own, whether or not it has VQs there. A tenant in a slot from 1024 on
/// shares the flows of the tenant 1024 slots below, and so on.
fn flow_of(tenant: TenantSlot, class: QueuePriority) -> u16 {
    let place = CLASSES.iter().position(|one| *one == class).unwrap_or(0) as u16;
    tenant.0 % MAX_TENANTS * CLASSES.len() as u16 + place
}

/// The place among the classes of a flow; and of one of a poller's HWQs, where the drive goes on with the order. Both
/// take the classes in turn.
fn place_of(flow_or_hwq: u16) -> usize {
    usize::from(flow_or_hwq) % CLASSES.len()
}

/// The class of a flow, or of such an HWQ.
pub(crate) fn class_of(flow_or_hwq: u16) -> QueuePriority {
    CLASSES[place_of(flow_or_hwq)]
}

/// Whether the drive goes on with the order of `wrr`.
pub(crate) fn goes_on_in_drive(config: &ArbitratedConfig, shape: &PollerShape) -> bool {
    // No command counts for less than one.
    shape.weighted && usize::from(shape.hwqs) >= CLASSES.len() && shape.hwq_depth >= config.max_in_flight
}

/// A VQ's HWQ of its flow's class: VQs are spread over the class's HWQs by their slots.
fn hwq_in_class(flow: u16, slot: u16, hwqs: u16) -> u16 {
    let classes = CLASSES.len() as u16;
    let first = flow % classes;
    let count = (hwqs - first).div_ceil(classes);
    first + classes * (slot % count)
}

/// The `wrr` or `drr` policy of one poller.
#[derive(Debug)]
pub struct Arbitrated {
    kind: Kind,
    config: ArbitratedConfig,
    hwqs: u16,
    /// What the drive's classes have, if it goes on with the order.
    in_drive: Option<WrrWeights>,
    /// Cost of what is with the drive.
    in_flight: u64,
    cost: Cost,
    /// `wrr` on several pollers: what of each class's weight here is not yet given, so that its fractions are.
    owed: [f64; CLASSES.len()],
    /// By tenant.
    priorities: Vec<TenantPriority>,
    flows: Flows<Order>,
    /// HWQs that have room.
    roomy: List,
    hwq_links: Links,
}

impl Arbitrated {
    /// The policy `wrr` without VQs.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn wrr(config: &ArbitratedConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        Self::new(Kind::Wrr, config, shape)
    }

    /// The policy `drr` without VQs.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn drr(config: &ArbitratedConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        Self::new(Kind::Drr, config, shape)
    }

    fn new(kind: Kind, config: &ArbitratedConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        config.validate(kind)?;
        let (mut roomy, mut hwq_links) = (List::default(), Links::default());
        hwq_links.grow(shape.hwqs.into());
        (0..shape.hwqs).for_each(|hwq| roomy.push_back(&mut hwq_links, hwq));
        let max_in_flight = u64::from(config.max_in_flight) * u64::from(COST_UNIT);
        let mut arbiter = Arbiter::new(config.arbitration(kind), MAX_QUEUES);
        for flow in 0..MAX_QUEUES {
            arbiter.set_class(flow, class_of(flow));
        }
        let order = Order { arbiter, claims: config.claims([1.0; CLASSES.len()]) };
        Ok(Self {
            kind,
            hwqs: shape.hwqs,
            in_drive: (kind == Kind::Wrr && goes_on_in_drive(config, shape)).then(|| config.weights()),
            in_flight: 0,
            cost: Cost::default(),
            owed: [0.0; CLASSES.len()],
            priorities: Vec::new(),
            flows: Flows::new(order, shape.hwqs, shape.hwq_depth).within(max_in_flight),
            roomy,
            hwq_links,
            config: config.clone(),
        })
    }

    fn charge(&mut self, flow: u16, cost: u32) {
        let len_bytes = u64::from(cost) * REFERENCE_BYTES / u64::from(COST_UNIT);
        self.flows.turns.arbiter.charge(flow, len_bytes);
    }

    /// `wrr`: sets the weights, with this many flows asking per class here, and at all pollers.
    fn set_weights(&mut self, here: [f64; CLASSES.len()], all: [f64; CLASSES.len()]) {
        self.flows.turns.claims = self.config.claims(all);
        let weight = |place: usize| f64::from(self.config.weight(CLASSES[place])) * here[place] / all[place].max(1.0);
        let weights: [f64; CLASSES.len()] = std::array::from_fn(weight);
        // None below 1, which is the least that an arbiter knows.
        let least = weights.iter().filter(|weight| **weight > 0.0).fold(1.0, |least: f64, weight| least.min(*weight));
        let mut whole = |place: usize| {
            if here[place] == 0.0 {
                return self.config.weight(CLASSES[place]);
            }
            let exact = weights[place] / least + self.owed[place];
            let whole = exact.floor().clamp(1.0, u16::MAX.into());
            self.owed[place] = (exact - whole).clamp(-1.0, 1.0);
            whole as u16
        };
        let weights = WrrWeights { high: whole(1), medium: whole(2), low: whole(3) };
        self.flows.turns.arbiter.set_weights(weights);
    }
}

impl ByFlow for Arbitrated {
    type Turns = Order;

    fn flows(&self) -> &Flows<Order> {
        &self.flows
    }

    fn flows_mut(&mut self) -> &mut Flows<Order> {
        &mut self.flows
    }

    fn flow_for(&self, _: VqSlot, tenant: TenantSlot, asked: QueuePriority) -> u16 {
        let class = match self.priorities.get(usize::from(tenant.0)).copied().unwrap_or_default() {
            TenantPriority::Fixed(class) => class,
            TenantPriority::OfQueue if asked == QueuePriority::Urgent => QueuePriority::High,
            TenantPriority::OfQueue => asked,
        };
        flow_of(tenant, class)
    }

    fn heed(&mut self, tenant: TenantSlot, terms: &Terms, _: Nanos) {
        let at = usize::from(tenant.0);
        if self.priorities.len() <= at {
            self.priorities.resize(at + 1, TenantPriority::default());
        }
        self.priorities[at] = terms.priority;
    }

    fn next_hwq_of(&self, slot: VqSlot) -> Option<HwqId> {
        let flow = self.flows.flow_of(slot)?;
        let of_class = self.in_drive.map(|_| HwqId(hwq_in_class(flow, slot.0, self.hwqs)));
        of_class.or_else(|| self.flows.hwq_of(slot))
    }

    fn weights(&self) -> Option<WrrWeights> {
        self.in_drive
    }

    #[inline]
    fn pick(&mut self, now: Nanos) -> Next {
        if !self.flows.any_backlog() {
            return Next::Idle;
        }
        // The window counts what commands cost: the last one may overdraw it.
        if !self.flows.window.has_room(self.in_flight, now) {
            return self.flows.window.wait();
        }
        let send = self.roomy.front().and_then(|spare| {
            let flow = self.flows.turns.arbiter.pick()?;
            let (by_class, hwqs) = (self.in_drive.is_some(), self.hwqs);
            self.flows.pick_at(flow, |flows, slot| match flows.bound_to(slot) {
                _ if by_class => hwq_in_class(flow, slot, hwqs),
                bound if flows.has_room(bound) => bound,
                _ => spare,
            })
        });
        // Where all HWQs are full, commands are with the drive, and one will complete.
        send.unwrap_or(Next::WaitUntil(Nanos::MAX))
    }

    #[inline]
    fn sending(&mut self, flow: u16, op: Op, len_bytes: u64) {
        let cost = self.cost.of(op, len_bytes);
        self.in_flight += u64::from(cost);
        // Before its VQ counts it: if this was its last one, what is left of its credit is lost, and no more than that.
        self.charge(flow, cost);
        self.flows.serve(flow, if self.kind == Kind::Wrr { 1 } else { cost });
    }

    fn taken(&self) -> u64 {
        self.in_flight
    }

    fn tell_demand(&mut self) -> Option<Demand> {
        let mut demand = self.flows.demand(self.in_flight, Turns::claim)?;
        self.flows.asked().for_each(|(flow, part)| demand.units[place_of(flow)] += part);
        Some(demand)
    }

    fn hear_demands(&mut self, all: &[Demand], own: usize, now: Nanos) {
        self.flows.window.hear(all, own, now);
        if self.kind == Kind::Wrr {
            let asked = |demand: &Demand| std::array::from_fn(|place| demand.units[place]);
            let sum = |place: usize| all.iter().map(|demand| demand.units[place]).sum();
            self.set_weights(asked(&all[own]), std::array::from_fn(sum));
        }
    }

    fn set_part(&mut self, tenant: TenantSlot, part: f64) {
        CLASSES.into_iter().for_each(|class| self.flows.set_part(flow_of(tenant, class), part));
    }

    fn refusing(&mut self, flow: u16, consumed: bool) {
        if consumed {
            // It took a turn and the poller's time, if not the drive's.
            self.charge(flow, COST_UNIT);
        }
    }

    #[inline]
    fn turn_over(&mut self, _: u16, hwq: Option<HwqId>) {
        if let Some(hwq) = hwq.filter(|hwq| !self.flows.has_room(hwq.0)) {
            self.roomy.remove(&mut self.hwq_links, hwq.0);
        }
    }

    #[inline]
    fn completing(&mut self, hwq: HwqId, _: TenantSlot, op: Op, len_bytes: u64, _: Nanos) {
        self.in_flight = self.in_flight.saturating_sub(self.cost.of(op, len_bytes).into());
        if !self.flows.has_room(hwq.0) {
            self.roomy.push_back(&mut self.hwq_links, hwq.0);
        }
    }

    fn forget_flows(&mut self, tenant: TenantSlot) {
        CLASSES.into_iter().for_each(|class| self.flows.turns.forget(flow_of(tenant, class)));
        self.set_part(tenant, 1.0);
    }

    fn inside(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        tell(PolicyFigure::Window, self.flows.window.size() / f64::from(COST_UNIT));
    }
}

#[cfg(test)]
mod tests;
