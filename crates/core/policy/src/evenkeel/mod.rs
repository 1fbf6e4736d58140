//! The policy `evenkeel`: keeps latency promises, and gives the rest of the drive to best-effort tenants by weight.
//!
//! It caps the best-effort work in flight. The cap is as high as possible while each guaranteed tenant's latency
//! percentile stays just below its target. In this module "others" are the best-effort tenants.
//!
//! | module | what |
//! | --- | --- |
//! | `config` | what the policy knows of the drive, and the highest cap |
//! | `promises` | the cap that the latency promises allow |
//! | `bound` | the latency that the cap guarantees |
//! | `floors` | the minimum throughput ("floor") of best-effort tenants |
//! | `stalls` | late commands that count against nobody, because their poller stalled |
//! | `tail` | measured latencies beside others' work, from which the cap is learned |
//! | `work` | others' work in flight, by kind of command |
//! | `owed` | the 1/64 of all work that tenants without any promise always get |
//! | `pacing` | oversized commands, each larger than the whole cap |
//!
//! [`K2`](crate::K2) and [`Lpns`](crate::Lpns) cap the work in flight too. What is new is how the cap is found. A
//! command waits longer the more work it finds in the drive. So each measured latency, with the work in flight beside
//! it, shows how much work a target allows. This holds whatever the cap was at the time. The policy learns it from the
//! guaranteed tenant's own commands over about a second. A looser target therefore always gives a larger cap.
//!
//! Reads and other commands, each short, medium and long, have caps of their own. Work of each kind counts as a
//! fraction of its cap, so a new mix meets the right cap at once. `docs/decisions/0023` has what was tried.
//!
//! The order is: tenants below their minimum, then guaranteed tenants, then best-effort tenants within the cap. Tenants
//! without any promise always get 1/64 of the work.
//!
//! After a second without an active guaranteed tenant, the cap only keeps the drive busy. With several pollers, those
//! that serve only guaranteed tenants need no information. The pollers of best-effort tenants all learn from the work
//! of all, and [split](crate::split) the cap. A tenant with queues at several pollers has its weight and its minimum
//! split among them.
//!
//! A guaranteed tenant without a target goes first, and nobody is throttled for it.
//!
//! Not implemented: a minimum for a tenant with queue depth 1 beside a busy drive. How much less it would have to wait
//! is not known.

mod bound;
mod config;
mod floors;
mod owed;
mod pacing;
mod promises;
mod stalls;
mod tail;
mod work;

use io_model::{HwqId, Nanos, Op, TenantId};

use self::bound::Found;
pub use self::config::EvenkeelConfig;
use self::floors::Floors;
pub use self::floors::{HOPELESS, LEAST_LEFT};
pub use self::owed::{LEAST_PART, MOST_OWED};
use self::owed::{Owed, Sender};
pub use self::pacing::LEAST_PART as PACED_LEAST_PART;
use self::pacing::{Large, Pacing};
use self::promises::Promises;
pub use self::promises::{
    LARGE, MANY, PACED_FOR, SLOWEST, aim_changes, aim_ns, aims_ns, late_from_ns, long_units, pace_changes,
};
use self::work::{ByKind, KINDS, Peak, Work, kind_of};
use crate::by_flow::ByFlow;
use crate::cost::COST_UNIT;
use crate::fair::{Fair, PARTS_OF_WEIGHT};
use crate::flows::{Flows, Standing, Turns};
use crate::ready::{Links, List};
use crate::split::{Part, Seen, Split};
use crate::{
    Bound, ConfigError, Demand, Floor, Next, PolicyFigure, PollerShape, TenantFigure, TenantReport, TenantSlot, Terms,
};

/// The order among tenants that could send: guaranteed tenants take turns, best-effort tenants go by weight.
#[derive(Debug)]
pub struct Order {
    guaranteed: List,
    links: Links,
    others: Fair,
    floors: Floors,
    tenants: Vec<Tenant>,
    /// Best-effort work in flight.
    work: Work,
    pacing: Pacing,
    /// Tenants below their minimum go first only while less than this is in flight. Where the minimums don't fit, they
    /// share it.
    most_for_floors: u64,
    owed: Owed,
    /// A VQ that gets room at an HWQ that guaranteed tenants keep full, and whether this is in addition to the owed
    /// 1/64.
    due: Option<(u16, bool)>,
    /// How the next best-effort command is accounted for.
    goes_as: Sender,
    /// The time of the last pick.
    now: Nanos,
    /// What a weight of 1 counts as. It is larger if a tenant has only a fraction of its weight at this poller.
    weight_unit: u32,
}

/// Commands to an HWQ full of guaranteed commands between two offers of room to best-effort VQs there.
const OFFERED_AFTER: u32 = LEAST_PART / 4;
/// The offer that a VQ always accepts. Before it, VQs accept only what is owed, which others may use up at other HWQs.
/// This gives 2/64 of the HWQ's work, so VQs that wait only there get their 1/64 of all work.
const OFFERS: u32 = 2;
/// The length of a turn at such an HWQ for a weight of 1, and the least weight at this poller that counts.
const TURN: f64 = 65_536.0;
const LEAST_WEIGHT: f64 = 0.001;
/// How quickly the estimate of what the minimums need follows the measurement, per interval.
const FOLLOWS: f64 = 0.25;

#[derive(Debug, Clone, Copy)]
struct Tenant {
    is_guaranteed: bool,
    /// 0: guaranteed, or no tenant.
    weight: u32,
    /// The fraction of its load that it has at this poller.
    part: f64,
    /// Its virtual time when the last interval ended.
    tag: u64,
    /// Its work in flight.
    in_flight: ByKind<u64>,
    /// Its last command was oversized: larger than the whole cap.
    is_large: bool,
}

impl Default for Tenant {
    fn default() -> Self {
        Self { is_guaranteed: false, weight: 0, part: 1.0, tag: 0, in_flight: [0; KINDS], is_large: false }
    }
}

impl Tenant {
    fn has_nothing_in_flight(&self) -> bool {
        self.in_flight == [0; KINDS]
    }
}

impl Order {
    fn new() -> Self {
        Self {
            guaranteed: List::default(),
            links: Links::default(),
            others: Fair::default(),
            floors: Floors::new(),
            tenants: Vec::new(),
            work: Work::new(),
            pacing: Pacing::new(),
            most_for_floors: 0,
            owed: Owed::new(),
            due: None,
            goes_as: Sender::Unpromised,
            now: Nanos(0),
            weight_unit: 1,
        }
    }

    fn is_guaranteed(&self, tenant: u16) -> bool {
        self.tenants.get(usize::from(tenant)).is_some_and(|it| it.is_guaranteed)
    }

    #[inline]
    fn front(&mut self) -> Option<u16> {
        self.goes_as = Sender::Promised;
        if let Some(tenant) = self.floors.front(self.now)
            && self.work.in_flight() < self.most_for_floors
        {
            return Some(self.owed_beside_floors().unwrap_or(tenant));
        }
        if let Some((tenant, is_beside)) = self.due.take_if(|_| self.work.has_room(self.now))
            && self.others.waits(tenant)
        {
            if !is_beside && !self.floors.has(tenant) {
                self.goes_as = Sender::Unpromised;
            }
            return Some(tenant);
        }
        let guaranteed = self.guaranteed.front();
        let is_behind = self.owed.is_behind();
        self.admit_paced(is_behind);
        if self.others.is_empty() || guaranteed.is_some() && !is_behind {
            return guaranteed;
        }
        let Some(other) = self.other(is_behind) else { return guaranteed };
        if is_behind || !self.floors.has(other) {
            self.goes_as = Sender::Unpromised;
        }
        let Self { work, owed, now, .. } = self;
        // A tenant above its minimum counts as one without a minimum: those may wait behind it.
        let goes = work.may_start()
            || is_behind && (owed.has_room() || work.has_room(*now))
            || guaranteed.is_none() && work.has_room(*now);
        if goes { Some(other) } else { guaranteed }
    }

    /// The tenant that goes before those below their minimum, because it is owed its 1/64: the minimums may be more
    /// than the drive can give.
    #[inline]
    fn owed_beside_floors(&mut self) -> Option<u16> {
        if !self.owed.is_behind() || !self.owed.has_room() {
            return None;
        }
        self.admit_paced(true);
        let other = self.other(true).filter(|other| !self.floors.has(*other))?;
        self.goes_as = Sender::Unpromised;
        Some(other)
    }

    /// Readmits a tenant that waits for the pause between oversized commands, once the pause is over or the tenant is
    /// owed work.
    #[inline]
    fn admit_paced(&mut self, is_behind: bool) {
        if self.pacing.has_waiting()
            && (is_behind || self.pacing.is_open(self.now))
            && let Some(tenant) = self.pacing.admit()
        {
            self.others.insert(tenant);
        }
    }

    /// The best-effort tenant whose turn it is.
    #[inline]
    fn other(&mut self, is_behind: bool) -> Option<u16> {
        loop {
            let other = self.others.front()?;
            if !self.tenants[usize::from(other)].is_large || is_behind || self.pacing.is_open(self.now) {
                return Some(other);
            }
            self.others.remove(other);
            self.pacing.wait(other);
        }
    }

    fn set_weight(&mut self, tenant: u16) {
        let Tenant { weight, part, .. } = self.tenants[usize::from(tenant)];
        let weight = (f64::from(weight * self.weight_unit) * part).round() as u32;
        self.others.set_weight(tenant, weight);
        self.pacing.set_weight(tenant, weight);
    }

    /// Sets the fraction of the tenant's load that it has at this poller.
    fn set_part(&mut self, tenant: u16, part: f64) {
        if usize::from(tenant) >= self.tenants.len() {
            return;
        }
        self.tenants[usize::from(tenant)].part = part;
        self.floors.set_part(tenant, part);
        if self.weight_unit == 1 {
            self.weight_unit = PARTS_OF_WEIGHT;
            (0..self.tenants.len() as u16).for_each(|tenant| self.set_weight(tenant));
        }
        self.set_weight(tenant);
    }

    /// The combined weight of the best-effort tenants that sent a command since the last call or want to, and whether
    /// there is more than one. `None`: there are no best-effort tenants.
    fn active_weight(&mut self) -> Option<(f64, bool)> {
        let Self { tenants, others, pacing, .. } = self;
        let weighted = tenants.iter_mut().enumerate().filter(|(_, tenant)| tenant.weight > 0);
        let asked = weighted.map(|(at, tenant)| {
            let tag = others.tag_of(at as u16);
            let waits = others.waits(at as u16) || pacing.has(at as u16);
            let asks = std::mem::replace(&mut tenant.tag, tag) != tag || waits;
            if asks { (f64::from(tenant.weight) * tenant.part, 1) } else { (0.0, 0) }
        });
        let (weight, count) = asked.reduce(|sum, one| (sum.0 + one.0, sum.1 + one.1))?;
        Some((weight, count > 1))
    }

    /// Counts work of a tenant that goes to the drive (`goes`) or comes back.
    #[inline]
    fn count(&mut self, tenant: u16, kind: usize, cost: u64, goes: bool) {
        let Some(it) = self.tenants.get_mut(usize::from(tenant)) else { return };
        let sum = &mut it.in_flight[kind];
        *sum = if goes { *sum + cost } else { sum.saturating_sub(cost) };
        if !it.is_guaranteed {
            self.work.count(kind, cost, goes);
            if !self.floors.has(tenant) {
                self.owed.count(cost, goes);
            }
        }
    }
}

impl Turns for Order {
    const SOME_GO_FIRST: bool = true;

    fn attach(&mut self, tenant: u16, terms: &Terms) {
        let len = usize::from(tenant) + 1;
        if self.tenants.len() < len {
            self.tenants.resize(len, Tenant::default());
            self.links.grow(len);
            self.others.grow(len);
            self.floors.grow(len);
            self.pacing.grow(len);
        }
        // Commands in flight count under the new terms from now on.
        let in_flight = self.tenants[usize::from(tenant)].in_flight;
        (0..KINDS).for_each(|kind| self.count(tenant, kind, in_flight[kind], false));
        self.tenants[usize::from(tenant)].is_guaranteed = terms.class.is_guaranteed();
        self.floors.set(tenant, if terms.class.is_guaranteed() { Floor::default() } else { terms.floor });
        (0..KINDS).for_each(|kind| self.count(tenant, kind, in_flight[kind], true));
        self.tenants[usize::from(tenant)].weight = terms.class.weight().unwrap_or_default();
        self.set_weight(tenant);
    }

    fn forget(&mut self, tenant: u16) {
        self.others.forget(tenant);
        self.pacing.forget(tenant);
        if let Some(it) = self.tenants.get_mut(usize::from(tenant)) {
            (it.weight, it.part, it.tag, it.is_large) = (0, 1.0, 0, false);
            self.floors.set(tenant, Floor::default());
        }
    }

    fn moved(&mut self, tenant: u16, from: Standing, to: Standing) {
        match (self.is_guaranteed(tenant), from == Standing::Ready, to == Standing::Ready) {
            (true, true, _) => self.guaranteed.remove(&mut self.links, tenant),
            (true, _, true) => self.guaranteed.push_back(&mut self.links, tenant),
            (false, true, _) => {
                self.others.remove(tenant);
                self.pacing.left(tenant);
                self.floors.remove(tenant);
            }
            (false, _, true) => {
                self.others.insert(tenant);
                self.floors.insert(tenant, self.tenants[usize::from(tenant)].has_nothing_in_flight(), self.now);
            }
            _ => {}
        }
    }

    fn goes_first(&self, tenant: u16) -> bool {
        self.is_guaranteed(tenant)
    }

    fn goes_first_times(&self) -> u32 {
        OFFERED_AFTER
    }

    fn turn(&self, tenant: u16) -> u64 {
        let Tenant { weight, part, .. } = self.tenants[usize::from(tenant)];
        (TURN / (f64::from(weight) * part).max(LEAST_WEIGHT)).ceil() as u64
    }

    fn is_due(&mut self, tenant: u16, offers: u32) -> bool {
        let is_beside = offers >= OFFERS;
        let is_due = is_beside || self.owed.is_behind();
        if is_due {
            self.due = Some((tenant, is_beside));
        }
        is_due
    }
}

/// The policy of one poller.
#[derive(Debug)]
pub struct Evenkeel {
    config: EvenkeelConfig,
    promises: Promises,
    found: Found,
    flows: Flows<Order>,
    split: Split,
    /// This poller's share of the best-effort cap.
    part: Part,
    /// The most that others had in flight at all pollers in the interval that ends, and the cap that minimums leave.
    peak: Peak,
    level: f64,
    /// The number of pollers with best-effort tenants.
    pollers: f64,
    /// Several best-effort tenants are active, as far as this poller knows.
    is_shared: bool,
    /// The fraction of the best-effort cap that the minimums need at this poller.
    first: f64,
}

impl Evenkeel {
    /// Creates a policy without VQs.
    ///
    /// # Errors
    /// A setting is out of its range.
    pub fn new(config: EvenkeelConfig, shape: &PollerShape) -> Result<Self, ConfigError> {
        shape.validate()?;
        config.validate()?;
        let flows = Flows::new(Order::new(), shape.hwqs, shape.hwq_depth);
        let (promises, found, split, part) = (Promises::new(), Found::new(), Split::new(), Part::WHOLE);
        let mut policy = Self {
            config,
            promises,
            found,
            flows,
            split,
            part,
            peak: Peak::NONE,
            level: f64::INFINITY,
            pollers: 1.0,
            is_shared: false,
            first: 0.0,
        };
        policy.allow(Nanos(0));
        Ok(policy)
    }

    /// The cap on best-effort work in flight per kind, in reference commands.
    fn caps(&self) -> ByKind<f64> {
        // At least one command per poller, whatever the minimums need.
        let level = self.flows.turns.floors.level().min(self.level).max(self.pollers);
        let most = level.min(self.found.told());
        self.beside_promises().map(|cap| cap.min(most))
    }

    fn beside_promises(&self) -> ByKind<f64> {
        self.promises.caps(&self.config, self.is_shared)
    }

    /// The most best-effort work that may be in flight, if it is capped.
    fn most(&self) -> Option<f64> {
        let caps = self.beside_promises().into_iter().fold(self.flows.turns.owed.most_units(), f64::max);
        let floors = if self.flows.turns.floors.is_empty() { 0.0 } else { self.config.lent() };
        self.promises.is_active().then_some(caps.max(floors))
    }

    fn allow(&mut self, now: Nanos) {
        let caps = self.caps();
        let of_part = |units: f64| ((units * f64::from(COST_UNIT) * self.part.size()) as u64).max(1);
        let order = &mut self.flows.turns;
        order.most_for_floors = of_part(self.config.lent());
        order.owed.allow(order.owed.most_units().min(self.found.told()) * self.part.size());
        order.work.allow(caps, self.part, now);
        let (pace, part) = (self.promises.pace(), self.part.size().min(1.0));
        let pace = if pace < 1.0 { pace * part } else { 1.0 };
        order.pacing.set(pace, self.config.rate_iops * part, self.promises.long_units(&self.config));
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
        self.flows.turns.now = now;
        match self.flows.next_by(Order::front) {
            Next::WaitUntil(_) => {
                // Tenants below their minimum already wait for room, which a completion makes.
                let order = &self.flows.turns;
                let next = Some(order.floors.next()).filter(|next| *next > now).unwrap_or(Nanos::MAX);
                Next::WaitUntil(next.min(order.work.has_turn_after(now)).min(order.pacing.opens_after(now)))
            }
            next => next,
        }
    }

    #[inline]
    fn sending(&mut self, tenant: u16, op: Op, len_bytes: u64) {
        let (cost, kind) = (self.config.cost.of(op, len_bytes), kind_of(op, len_bytes));
        let order = &mut self.flows.turns;
        order.count(tenant, kind, cost.into(), true);
        if order.is_guaranteed(tenant) {
            return order.owed.sent(cost, Sender::Guaranteed);
        }
        self.found.sent(cost);
        let has_floor = order.floors.has(tenant);
        order.owed.sent(cost, order.goes_as);
        order.others.charge(tenant, cost);
        if has_floor {
            order.floors.charge(tenant, len_bytes, order.now);
        }
        // A minimum is a promise too, so these commands are never paced.
        let is_large =
            !has_floor && cost >= order.pacing.least_cost() && order.work.is_more_than_all(kind, cost.into());
        order.tenants[usize::from(tenant)].is_large = is_large;
        order.pacing.used(tenant);
        // An oversized command that is rarely in flight is not part of the usual mix.
        if !(is_large && order.pacing.sent(Large { tenant, kind, cost }, order.now)) {
            order.work.sent(kind, cost.into());
        }
    }

    #[inline]
    fn turn_over(&mut self, tenant: u16, _: Option<HwqId>) {
        if self.flows.turns.is_guaranteed(tenant) && self.flows.is_ready(tenant) {
            let order = &mut self.flows.turns;
            order.guaranteed.rotate(&mut order.links, tenant);
        }
    }

    #[inline]
    fn completing(&mut self, _: HwqId, tenant: TenantSlot, op: Op, len_bytes: u64, now: Nanos) {
        let cost = self.config.cost.of(op, len_bytes);
        let order = &mut self.flows.turns;
        order.count(tenant.0, kind_of(op, len_bytes), cost.into(), false);
        order.pacing.completed(tenant.0, cost, now);
        if !order.is_guaranteed(tenant.0) {
            order.floors.worked(cost);
        }
        if self.flows.turns.floors.has(tenant.0) {
            let is_ready = self.flows.is_ready(tenant.0);
            let order = &mut self.flows.turns;
            let has_nothing = !is_ready && order.tenants[usize::from(tenant.0)].has_nothing_in_flight();
            order.floors.completed(tenant.0, len_bytes, cost, has_nothing.then_some(order.now));
        }
    }

    fn has_awoken(&mut self, tenant: TenantId) {
        self.promises.awoken(&self.config, tenant);
        self.allow(self.flows.turns.now);
    }

    fn tell_demand(&mut self) -> Option<Demand> {
        let order = &mut self.flows.turns;
        let large = order.pacing.with_drive().map(|large| (large.kind, u64::from(large.cost)));
        self.peak = Peak { large: order.pacing.turn_over(order.now), ..order.work.turn_over(large) };
        if self.peak.is_held {
            self.peak.lower_to(self.part.mean(self.peak.part));
        }
        let Peak { units, part: used, is_held, .. } = self.peak;
        (self.level, self.pollers, self.is_shared) = (f64::INFINITY, 1.0, false);
        // Work is proportional to the share of the cap, whichever tenant does it.
        self.first += (self.part.size().min(used) * order.floors.need() - self.first) * FOLLOWS;
        // Without best-effort tenants this poller hears of no shares.
        self.part = Part::WHOLE;
        let weight;
        (weight, self.is_shared) = order.active_weight()?;
        let scale = order.weight_unit;
        let (claim, pace) = self.split.tell(Seen { weight, is_held, clock: order.others.clock(), scale });
        let (grain, level) = (order.work.grain(), order.floors.level());
        Some(Demand { used, claim, is_held, pace, grain, first: self.first, level, units })
    }

    fn hear_demands(&mut self, all: &[Demand], own: usize, _: Nanos) {
        self.part = self.split.part(all, own);
        self.pollers = all.len().max(1) as f64;
        self.is_shared |= all.len() > 1;
        for demand in all.iter().enumerate().filter(|(at, _)| *at != own).map(|(_, demand)| demand) {
            self.peak.units.iter_mut().zip(demand.units).for_each(|(units, others)| *units += others);
            self.peak.part += demand.used;
            self.level = self.level.min(demand.level);
        }
    }

    fn set_part(&mut self, tenant: TenantSlot, part: f64) {
        self.flows.turns.set_part(tenant.0, part);
    }

    fn end_interval(&mut self, reports: &[TenantReport], now: Nanos) {
        self.promises.learn(&self.config, reports, &self.peak);
        self.flows.turns.floors.learn(now, self.peak.units.iter().sum());
        self.flows.turns.owed.learn(&self.config.cost, reports, self.part.size().min(1.0));
        self.found.observe(reports, self.most());
        self.allow(now);
    }

    fn bound_of_all(&self, guaranteed: bool) -> Option<Bound> {
        Some(if guaranteed { self.found.bound(&self.config) } else { self.found.told_bound(&self.config) })
    }

    fn inside(&self, tell: &mut dyn FnMut(PolicyFigure, f64)) {
        tell(PolicyFigure::Window, self.flows.turns.work.window(self.caps()));
    }

    fn inside_of(&self, tenant: TenantSlot, tell: &mut dyn FnMut(TenantFigure, f64)) {
        if let Some(got) = self.flows.turns.floors.got(tenant.0) {
            tell(TenantFigure::Floor, got);
        }
    }
}
