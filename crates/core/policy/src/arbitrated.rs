//! Arbitration among tenants as NVMe knows it among queues: weighted round robin with an urgent class, and deficit
//! round robin ("QoS for NVMe SSDs" takes both into the drive; here the host does it, for drives that can't).
//!
//! A tenant's commands in one class are a flow, and a flow is a queue of an [`Arbiter`]. Its VQs take turns, so many
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
//! A VQ has an HWQ, but sends over another one while that is full: the arbiter alone decides who goes, not the room
//! that somebody else left somewhere.
//!
//! Where the drive itself has weighted round robin, `wrr` has it go on with the same order among what is with it: each
//! class has HWQs of its own, of that class and with its weight. This takes an HWQ for each class, and each must hold
//! the whole window, so that none is ever full and the arbiter decides alone, as before. `drr` does without: the drive
//! would count commands.
//!
//! Each poller has an arbiter of its own: for one drive give it one poller. A tenant whose VQs have several classes has
//! a flow, and under `drr` a quantum, in each. Classes of tenants and their weights for best effort play no part.

use arbitration::{Arbiter, Arbitration, MAX_QUEUES, QuantaKib};
use io_model::{HwqId, Nanos, Op, QueuePriority, WrrWeights};

use crate::by_flow::ByFlow;
use crate::cost::{COST_UNIT, Cost};
use crate::flows::{Flows, Standing, Turns};
use crate::ready::{Links, List};
use crate::{ConfigError, Next, PolicyFigure, PollerShape, TenantPriority, TenantSlot, Terms, VqSlot};

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
    /// The same for the class medium.
    pub medium_weight: u16,
    /// The same for the class low.
    pub low_weight: u16,
    /// `wrr`: commands of a flow before the next flow of its class has its turn, 1 to 256. `drr` takes no notice.
    pub arbitration_burst: u16,
    /// Reference commands (4 KiB) that all tenants may have with the drive together, 1 or more.
    pub max_in_flight: M,
}

impl<M> ArbitratedConfig<M> {
    /// The same weights with another limit.
    pub fn with_max_in_flight<N>(self, max_in_flight: N) -> ArbitratedConfig<N> {
        let Self { high_weight, medium_weight, low_weight, arbitration_burst, .. } = self;
        ArbitratedConfig { high_weight, medium_weight, low_weight, arbitration_burst, max_in_flight }
    }
}

impl ArbitratedConfig {
    /// Weighted round robin, 32 : 16 : 8 commands, as in the paper.
    pub fn wrr() -> Self {
        Self { high_weight: 32, medium_weight: 16, low_weight: 8, arbitration_burst: 1, max_in_flight: 64 }
    }

    /// Deficit round robin, 128 : 64 : 32 KiB, as in the paper.
    pub fn drr() -> Self {
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
pub(crate) struct Order(Arbiter);

impl Turns for Order {
    // A flow's class is in its number.
    fn attach(&mut self, _: u16, _: &Terms) {}

    fn forget(&mut self, flow: u16) {
        self.0.forgive(flow);
    }

    fn moved(&mut self, flow: u16, _: Standing, to: Standing) {
        self.0.set_backlogged(flow, to == Standing::Ready);
    }
}

/// A tenant's flow in a class: a number of its own, whether or not it has VQs there. Tenants in slots from 1024 on
/// share those of the tenants so many below.
fn flow_of(tenant: TenantSlot, class: QueuePriority) -> u16 {
    let place = CLASSES.iter().position(|one| *one == class).unwrap_or(0) as u16;
    tenant.0 % MAX_TENANTS * CLASSES.len() as u16 + place
}

/// The class of a flow; and of one of a poller's HWQs, where the drive goes on with the order. Both take the classes in
/// turn.
pub(crate) fn class_of(flow_or_hwq: u16) -> QueuePriority {
    CLASSES[usize::from(flow_or_hwq) % CLASSES.len()]
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
    max_in_flight: u64,
    hwqs: u16,
    /// What the drive's classes have, if it goes on with the order.
    in_drive: Option<WrrWeights>,
    /// Cost of what is with the drive.
    in_flight: u64,
    cost: Cost,
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
        let mut arbiter = Arbiter::new(config.arbitration(kind), MAX_QUEUES);
        for flow in 0..MAX_QUEUES {
            arbiter.set_class(flow, class_of(flow));
        }
        Ok(Self {
            kind,
            max_in_flight: u64::from(config.max_in_flight) * u64::from(COST_UNIT),
            hwqs: shape.hwqs,
            in_drive: (kind == Kind::Wrr && goes_on_in_drive(config, shape)).then(|| config.weights()),
            in_flight: 0,
            cost: Cost::default(),
            priorities: Vec::new(),
            flows: Flows::new(Order(arbiter), shape.hwqs, shape.hwq_depth),
            roomy,
            hwq_links,
        })
    }

    /// The name that a configuration uses.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Wrr => "wrr",
            Kind::Drr => "drr",
        }
    }

    fn charge(&mut self, flow: u16, cost: u32) {
        let len_bytes = u64::from(cost) * REFERENCE_BYTES / u64::from(COST_UNIT);
        self.flows.turns.0.charge(flow, len_bytes);
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
    fn pick(&mut self, _: Nanos) -> Next {
        if !self.flows.any_backlog() {
            return Next::Idle;
        }
        // The window counts what commands cost: the last one may overdraw it.
        let spare = self.roomy.front().filter(|_| self.in_flight < self.max_in_flight);
        let send = spare.and_then(|spare| {
            let flow = self.flows.turns.0.pick()?;
            let (by_class, hwqs) = (self.in_drive.is_some(), self.hwqs);
            self.flows.pick_at(flow, |flows, slot| match flows.bound_to(slot) {
                _ if by_class => hwq_in_class(flow, slot, hwqs),
                bound if flows.has_room(bound) => bound,
                _ => spare,
            })
        });
        // Where nothing may go, commands are with the drive, and one will complete.
        send.unwrap_or(Next::WaitUntil(Nanos::MAX))
    }

    #[inline]
    fn sending(&mut self, flow: u16, op: Op, len_bytes: u64) {
        let cost = self.cost.of(op, len_bytes);
        self.in_flight += u64::from(cost);
        // Before its VQ counts it: if this was its last one, what is left of its credit is lost, and no more than that.
        self.charge(flow, cost);
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
    }

    fn inside(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        tell(PolicyFigure::Window, self.max_in_flight as f64 / f64::from(COST_UNIT));
    }
}

#[cfg(test)]
mod tests;
