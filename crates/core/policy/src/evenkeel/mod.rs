//! A promise at the least price: others may have as much work with the drive as leaves each guaranteed tenant's
//! percentile just below its target, and share that by their weights.
//!
//! | module | what |
//! | --- | --- |
//! | `promises` | how much others may have with the drive |
//! | `floors` | what best-effort tenants get at least |
//! | `tail` | what is learned for that: how long a command waits for each unit of others' work |
//!
//! A cap on the work in flight is the lever, as in [`K2`](crate::K2) and [`Lpns`](crate::Lpns); what is ours is where
//! it stands. The wait of a command grows with the work that it finds, so the wait for a unit of work says something of
//! the drive and of the mix, whatever the cap was when it was seen: its percentile, learned from the guaranteed
//! tenant's own commands over about a second, gives the cap for a target at once. A target that is looser gives a cap
//! that is larger, by construction. `docs/decisions/0023` has what was tried.
//!
//! Tenants that are behind a floor of theirs go first. Guaranteed tenants are next and are not held, but for the
//! 64th part that others may always have of the work with the drive.
//! Where none was active for a second, others may have what keeps the drive busy. Several pollers: those that serve
//! guaranteed tenants alone need to know nothing; all best-effort tenants of a drive must have one poller.
//!
//! A guaranteed tenant without a target goes first, and nobody is held back for it.
//!
//! Not implemented: a bound; a floor of who has one command at a time, beside a drive that is busy with others: what it
//! would have to wait less is not known.

mod floors;
mod promises;
mod tail;

use io_model::{HwqId, Nanos, Op, TenantId};

use self::floors::Floors;
use self::promises::Promises;
pub use self::promises::{AIM, LENT, MANY};
use crate::by_flow::ByFlow;
use crate::cost::{COST_UNIT, Cost};
use crate::fair::Fair;
use crate::flows::{Flows, Standing, Turns};
use crate::ready::{Links, List};
use crate::{
    ConfigError, DriveFigures, Floor, LpnsConfig, Next, PolicyFigure, PollerShape, TenantFigure, TenantReport,
    TenantSlot, Terms,
};

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
    floors: Floors,
    tenants: Vec<Tenant>,
    /// Work of best-effort tenants with the drive.
    in_flight: u64,
    /// Of that, the work of those without a floor.
    without_floor: u64,
    /// Everybody's.
    all_in_flight: u64,
}

/// Whatever others were promised and ask for, those who were promised nothing may have this part of the work with the
/// drive, and a command at a time at least.
const LEAST_PART: u64 = 64;

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
            floors: Floors::new(),
            tenants: Vec::new(),
            in_flight: 0,
            without_floor: 0,
            all_in_flight: 0,
        }
    }

    fn is_guaranteed(&self, tenant: u16) -> bool {
        self.tenants.get(usize::from(tenant)).is_some_and(|it| it.is_guaranteed)
    }

    /// `cap`: work that best-effort tenants may have with the drive.
    #[inline]
    fn front(&mut self, cap: u64, now: Nanos) -> Option<u16> {
        if let Some(tenant) = self.floors.front(now) {
            return Some(tenant);
        }
        let guaranteed = self.guaranteed.front();
        let is_behind = self.without_floor * LEAST_PART <= self.all_in_flight;
        if self.others.is_empty() || guaranteed.is_some() && !is_behind {
            return guaranteed;
        }
        let other = self.others.front();
        let goes = |tenant: &u16| self.in_flight == 0 || is_behind && !self.floors.has(*tenant);
        match guaranteed {
            Some(tenant) => other.filter(goes).or(Some(tenant)),
            None => other.filter(|tenant| self.in_flight < cap || goes(tenant)),
        }
    }

    /// Work of a tenant that goes to the drive (`true`) or comes back.
    #[inline]
    fn count(&mut self, tenant: u16, cost: u64, goes: bool) {
        let has_floor = self.floors.has(tenant);
        let Some(it) = self.tenants.get_mut(usize::from(tenant)) else { return };
        let add = |sum: &mut u64| *sum = if goes { *sum + cost } else { sum.saturating_sub(cost) };
        add(&mut it.in_flight);
        add(&mut self.all_in_flight);
        if !it.is_guaranteed {
            add(&mut self.in_flight);
            if !has_floor {
                add(&mut self.without_floor);
            }
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
            self.floors.grow(len);
        }
        // What it has in flight counts under its new terms.
        let in_flight = self.tenants[usize::from(tenant)].in_flight;
        self.count(tenant, in_flight, false);
        self.tenants[usize::from(tenant)].is_guaranteed = terms.class.is_guaranteed();
        self.floors.set(tenant, if terms.class.is_guaranteed() { Floor::default() } else { terms.floor });
        self.count(tenant, in_flight, true);
        self.others.set_weight(tenant, terms.class.weight_or(1));
    }

    fn forget(&mut self, tenant: u16) {
        self.others.forget(tenant);
        if usize::from(tenant) < self.tenants.len() {
            self.floors.set(tenant, Floor::default());
        }
    }

    fn moved(&mut self, tenant: u16, from: Standing, to: Standing) {
        match (self.is_guaranteed(tenant), from == Standing::Ready, to == Standing::Ready) {
            (true, true, _) => self.guaranteed.remove(&mut self.links, tenant),
            (true, _, true) => self.guaranteed.push_back(&mut self.links, tenant),
            (false, true, _) => {
                self.others.remove(tenant);
                self.floors.remove(tenant);
            }
            (false, _, true) => {
                self.others.insert(tenant);
                self.floors.insert(tenant, self.tenants[usize::from(tenant)].in_flight == 0);
            }
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
    /// When somebody was picked last.
    now: Nanos,
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
        let mut policy = Self {
            config,
            promises: Promises::new(),
            cap: 0,
            peak: 0,
            sent: 0,
            commands: 0,
            mean: 0,
            now: Nanos(0),
            flows,
        };
        policy.set_cap();
        Ok(policy)
    }

    /// Reference commands that best-effort tenants may have with the drive.
    fn window(&self) -> f64 {
        self.promises.cap(&self.config).min(self.flows.turns.floors.level())
    }

    fn set_cap(&mut self) {
        let cap = (self.window() * f64::from(COST_UNIT)) as u64;
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
    fn pick(&mut self, now: Nanos) -> Next {
        self.now = now;
        let cap = self.cap;
        match self.flows.next_within(u32::MAX, |order| order.front(cap, now)) {
            Next::WaitUntil(_) => Next::WaitUntil(self.flows.turns.floors.next()),
            next => next,
        }
    }

    #[inline]
    fn sending(&mut self, tenant: u16, op: Op, len_bytes: u64) {
        let cost = self.config.cost.of(op, len_bytes);
        let order = &mut self.flows.turns;
        order.count(tenant, cost.into(), true);
        if !order.is_guaranteed(tenant) {
            order.others.charge(tenant, cost);
            order.floors.charge(tenant, len_bytes, self.now);
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
        self.flows.turns.count(tenant.0, cost, false);
        if self.flows.turns.floors.has(tenant.0) {
            let is_ready = self.flows.is_ready(tenant.0);
            let order = &mut self.flows.turns;
            let has_nothing = !is_ready && order.tenants[usize::from(tenant.0)].in_flight == 0;
            order.floors.completed(tenant.0, len_bytes, has_nothing);
        }
    }

    fn has_awoken(&mut self, tenant: TenantId) {
        self.promises.awoken(&self.config, tenant);
        self.set_cap();
    }

    fn end_interval(&mut self, reports: &[TenantReport], now: Nanos) {
        let peak = std::mem::replace(&mut self.peak, self.flows.turns.in_flight) as f64 / f64::from(COST_UNIT);
        self.promises.learn(&self.config, reports, peak);
        self.flows.turns.floors.learn(now, peak);
        self.mean = self.sent.checked_div(self.commands).unwrap_or(self.mean);
        (self.sent, self.commands) = (0, 0);
        self.set_cap();
    }

    fn inside(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        tell(PolicyFigure::Window, self.window());
    }

    fn inside_of(&self, tenant: TenantSlot, tell: &mut dyn FnMut(TenantFigure, f64)) {
        if let Some(got) = self.flows.turns.floors.got(tenant.0) {
            tell(TenantFigure::Floor, got);
        }
    }
}
