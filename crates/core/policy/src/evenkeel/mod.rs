//! A promise at the least price: others may have as much work with the drive as leaves each guaranteed tenant's 99th
//! percentile just below its target, and share that by their weights.
//!
//! | module | what |
//! | --- | --- |
//! | `promises` | how much others may have with the drive |
//! | `tail` | what is learned for that: how long a command waits for each unit of others' work |
//!
//! A cap on the work in flight is the lever, as in [`K2`](crate::K2) and [`Lpns`](crate::Lpns); what is ours is where
//! it stands. The wait of a command grows with the work that it finds, so the wait for a unit of work says something of
//! the drive and of the mix, whatever the cap was when it was seen: its 99th percentile, learned from the guaranteed
//! tenant's own commands over about a second, gives the cap for a target at once. A target that is looser gives a cap
//! that is larger, by construction. `docs/decisions/0023` has what was tried.
//!
//! Guaranteed tenants go first and are not held, but for one command that others may always have with the drive.
//! Where none was active for a second, others may have what keeps the drive busy. Several pollers: those that serve
//! guaranteed tenants alone need to know nothing; all best-effort tenants of a drive must have one poller.
//!
//! A guaranteed tenant without a target goes first, and nobody is held back for it.
//!
//! Not implemented: other percentiles than the 99th, floors of IOPS or bandwidth, a bound.

mod promises;
mod tail;

use io_model::{HwqId, Nanos, Op};

use self::promises::Promises;
pub use self::promises::{AIM, LENT};
use crate::by_flow::ByFlow;
use crate::cost::{COST_UNIT, Cost};
use crate::fair::Fair;
use crate::flows::{Flows, Standing, Turns};
use crate::ready::{Links, List};
use crate::{ConfigError, DriveFigures, LpnsConfig, Next, PolicyFigure, PollerShape, TenantReport, TenantSlot, Terms};

/// Settings of [`Evenkeel`]: what it expects of a drive, until it has seen more.
#[derive(Debug, Clone, PartialEq)]
pub struct EvenkeelConfig {
    /// Reference commands (4 KiB random writes) that the drive completes per second under full load.
    pub rate_iops: f64,
    /// What a command takes that finds the drive idle; of the slowest kind in use.
    pub alone: Nanos,
    /// Reference commands in flight that keep the drive busy: nobody needs more, and weights would have no say.
    pub max_in_flight: u32,
    /// Reference commands that best-effort tenants may always have in flight together, whatever is missed.
    pub floor_in_flight: u32,
    /// What commands cost in reference commands.
    pub cost: Cost,
}

impl EvenkeelConfig {
    /// Intel Optane P5800X, 400 GB.
    pub fn p5800x() -> Self {
        let LpnsConfig { r_iops, l_h, floor_in_flight, cost, .. } = LpnsConfig::p5800x();
        Self { rate_iops: r_iops, alone: l_h, max_in_flight: 48, floor_in_flight, cost }
    }

    /// On a drive.
    pub fn on(drive: &DriveFigures) -> Self {
        let DriveFigures { lpns, max_in_flight, .. } = drive;
        Self {
            rate_iops: lpns.r_iops,
            alone: lpns.l_h,
            max_in_flight: *max_in_flight,
            floor_in_flight: lpns.floor_in_flight,
            cost: lpns.cost,
        }
    }
}

/// Who could send: guaranteed tenants in turns, others by weight.
#[derive(Debug)]
pub(crate) struct Order {
    guaranteed: List,
    links: Links,
    others: Fair,
    tenants: Vec<Tenant>,
    /// Work of best-effort tenants with the drive.
    in_flight: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    is_guaranteed: bool,
    /// Its work with the drive.
    in_flight: u64,
}

impl Order {
    fn new() -> Self {
        Self {
            guaranteed: List::default(),
            links: Links::default(),
            others: Fair::new(),
            tenants: Vec::new(),
            in_flight: 0,
        }
    }

    fn is_guaranteed(&self, tenant: u16) -> bool {
        self.tenants.get(usize::from(tenant)).is_some_and(|it| it.is_guaranteed)
    }

    /// `cap`: work that best-effort tenants may have with the drive.
    #[inline]
    fn front(&mut self, cap: u64) -> Option<u16> {
        // Guaranteed tenants that ask for all there is leave others a command at a time.
        match self.guaranteed.front() {
            Some(tenant) if self.in_flight > 0 || self.others.is_empty() => Some(tenant),
            _ if self.in_flight < cap => self.others.front(),
            none => none,
        }
    }
}

impl Turns for Order {
    fn attach(&mut self, tenant: u16, terms: &Terms) {
        let len = usize::from(tenant) + 1;
        if self.tenants.len() < len {
            self.tenants.resize(len, Tenant::default());
            self.links.grow(len);
            self.others.grow(len);
        }
        let it = &mut self.tenants[usize::from(tenant)];
        let is_guaranteed = terms.class.is_guaranteed();
        match (std::mem::replace(&mut it.is_guaranteed, is_guaranteed), is_guaranteed) {
            (true, false) => self.in_flight += it.in_flight,
            (false, true) => self.in_flight = self.in_flight.saturating_sub(it.in_flight),
            _ => {}
        }
        self.others.set_weight(tenant, terms.class.weight_or(1));
    }

    fn forget(&mut self, tenant: u16) {
        self.others.forget(tenant);
    }

    fn moved(&mut self, tenant: u16, from: Standing, to: Standing) {
        match (self.is_guaranteed(tenant), from == Standing::Ready, to == Standing::Ready) {
            (true, true, _) => self.guaranteed.remove(&mut self.links, tenant),
            (true, _, true) => self.guaranteed.push_back(&mut self.links, tenant),
            (false, true, _) => self.others.remove(tenant),
            (false, _, true) => self.others.insert(tenant),
            _ => {}
        }
    }

    fn goes_first(&self, tenant: u16) -> bool {
        self.is_guaranteed(tenant)
    }
}

/// The policy of one poller.
#[derive(Debug)]
pub struct Evenkeel {
    config: EvenkeelConfig,
    promises: Promises,
    /// Best-effort tenants send while they have less work with the drive.
    cap: u64,
    /// The most that they had since the last interval; what they sent, and how many commands that was.
    peak: u64,
    sent: u64,
    commands: u64,
    /// The mean cost of their commands, when there were some last.
    mean: u64,
    flows: Flows<Order>,
}

impl Evenkeel {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn new(config: EvenkeelConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        let rate_is_one = config.rate_iops >= 1.0 && config.rate_iops <= 1e9;
        ConfigError::check(rate_is_one, "rate_iops", "must be from 1 to 1000000000 per second")?;
        let alone_is_one = config.alone > Nanos(0) && config.alone <= Nanos::from_millis(1000);
        ConfigError::check(alone_is_one, "alone", "must be above 0 and at most 1 s")?;
        ConfigError::check(config.max_in_flight >= 1, "max_in_flight", "must be at least 1")?;
        ConfigError::check(config.floor_in_flight >= 1, "floor_in_flight", "must be at least 1")?;
        let flows = Flows::new(Order::new(), shape.hwqs, shape.hwq_depth);
        let mut policy =
            Self { config, promises: Promises::new(), cap: 0, peak: 0, sent: 0, commands: 0, mean: 0, flows };
        policy.set_cap();
        Ok(policy)
    }

    fn set_cap(&mut self) {
        let cap = (self.promises.cap(&self.config) * f64::from(COST_UNIT)) as u64;
        // What a command costs is known once it is fetched: so the last one goes beyond the cap as often as not.
        self.cap = cap.saturating_sub(self.mean / 2).max(1);
    }
}

impl ByFlow for Evenkeel {
    type Turns = Order;

    fn flows(&self) -> &Flows<Order> {
        &self.flows
    }

    fn flows_mut(&mut self) -> &mut Flows<Order> {
        &mut self.flows
    }

    #[inline]
    fn pick(&mut self, _: Nanos) -> Next {
        let cap = self.cap;
        self.flows.next_within(u32::MAX, |order| order.front(cap))
    }

    #[inline]
    fn sending(&mut self, tenant: u16, op: Op, len_bytes: u64) {
        let cost = self.config.cost.of(op, len_bytes);
        let order = &mut self.flows.turns;
        let it = &mut order.tenants[usize::from(tenant)];
        it.in_flight += u64::from(cost);
        if !it.is_guaranteed {
            order.in_flight += u64::from(cost);
            order.others.charge(tenant, cost);
            self.peak = self.peak.max(order.in_flight);
            self.sent += u64::from(cost);
            self.commands += 1;
        }
    }

    #[inline]
    fn turn_over(&mut self, tenant: u16, _: Option<HwqId>) {
        let is_ready = self.flows.is_ready(tenant);
        let order = &mut self.flows.turns;
        if is_ready && order.is_guaranteed(tenant) {
            order.guaranteed.rotate(&mut order.links, tenant);
        }
    }

    #[inline]
    fn completing(&mut self, _: HwqId, tenant: TenantSlot, op: Op, len_bytes: u64, _: Nanos) {
        let cost = u64::from(self.config.cost.of(op, len_bytes));
        let order = &mut self.flows.turns;
        let Some(it) = order.tenants.get_mut(usize::from(tenant.0)) else { return };
        it.in_flight = it.in_flight.saturating_sub(cost);
        if !it.is_guaranteed {
            order.in_flight = order.in_flight.saturating_sub(cost);
        }
    }

    fn end_interval(&mut self, reports: &[TenantReport], _: Nanos) {
        let peak = std::mem::replace(&mut self.peak, self.flows.turns.in_flight);
        self.promises.learn(&self.config, reports, peak as f64 / f64::from(COST_UNIT));
        self.mean = self.sent.checked_div(self.commands).unwrap_or(self.mean);
        (self.sent, self.commands) = (0, 0);
        self.set_cap();
    }

    fn inside(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        tell(PolicyFigure::Window, self.promises.cap(&self.config));
    }
}
