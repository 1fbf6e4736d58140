//! A promise at the least price: others may have as much work with the drive as leaves each guaranteed tenant's
//! percentile just below its target, and share that by their weights.
//!
//! | module | what |
//! | --- | --- |
//! | `config` | what it is told of the drive, and how much others may have there at most |
//! | `promises` | how much others may have with the drive |
//! | `bound` | what that makes certain |
//! | `floors` | what best-effort tenants get at least |
//! | `stalls` | what is not laid to others: a poller that stood still |
//! | `tail` | what is learned for that: how long commands take beside others' work |
//! | `work` | what others have with the drive, by kinds of command |
//! | `owed` | what those who were promised nothing get in any case |
//! | `pacing` | commands that are more than others may have |
//!
//! A cap on the work in flight is the lever, as in [`K2`](crate::K2) and [`Lpns`](crate::Lpns); what is ours is where
//! it stands. The wait of a command grows with the work that it finds, so what commands took, and beside how much work,
//! tells how much may be there for a target, whatever the cap was when it was seen: learned from the guaranteed
//! tenant's own commands over about a second. A target that is looser gives a cap that is larger, by construction.
//! Short, medium and long reads, and the rest, have caps of their own, and what others have of each counts as that part
//! of its cap: so a mix that changes finds the right cap at once. `docs/decisions/0023` has what was tried.
//!
//! Tenants that are behind a floor of theirs go first. Guaranteed tenants are next and are not held, but for the
//! 64th part of the work that others may always send.
//! Where none was active for a second, others may have what keeps the drive busy. Several pollers: those that serve
//! guaranteed tenants alone need to know nothing. Those of best-effort tenants each learn the same of the work of all,
//! and [part](crate::split) what it allows: a tenant that asks at several has its weight and its floor there in parts.
//!
//! A guaranteed tenant without a target goes first, and nobody is held back for it.
//!
//! Not implemented: a floor of who has one command at a time, beside a drive that is busy with others: what it
//! would have to wait less is not known.

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

/// Who could send: guaranteed tenants in turns, others by weight.
#[derive(Debug)]
pub struct Order {
    guaranteed: List,
    links: Links,
    others: Fair,
    floors: Floors,
    tenants: Vec<Tenant>,
    /// Work of best-effort tenants with the drive.
    work: Work,
    pacing: Pacing,
    /// Who is behind a floor waits with us while there is so much of all: where floors don't fit, it is to be shared.
    most_for_floors: u64,
    owed: Owed,
    /// Whose VQ has room at an HWQ that guaranteed tenants keep full, and whether that goes beside what is owed.
    due: Option<(u16, bool)>,
    /// As what the command of a best-effort tenant goes whose turn it is.
    goes_as: Sender,
    /// When somebody was picked last.
    now: Nanos,
    /// What a weight of 1 counts as: more where somebody's is here in part.
    weight_unit: u32,
}

/// Commands to an HWQ that guaranteed tenants keep full, from one offer of room there to others to the next.
const OFFERED_AFTER: u32 = LEAST_PART / 4;
/// Offers up to the one that is due in any case, for what is owed may all be had at other HWQs. That is twice the part
/// of all work that is owed: who waits at such HWQs alone has its part of all from them.
const OFFERS: u32 = 2;
/// What a turn there counts for a weight of 1, and for whom most of a weight is at other pollers.
const TURN: f64 = 65_536.0;
const LEAST_WEIGHT: f64 = 0.001;
/// How fast what floors need is followed, from one interval to the next.
const FOLLOWS: f64 = 0.25;

#[derive(Debug, Clone, Copy)]
struct Tenant {
    is_guaranteed: bool,
    /// 0: it is guaranteed, or not there.
    weight: u32,
    /// Of what it asks for, the part that it asks for here.
    part: f64,
    /// Its tag by the last interval.
    tag: u64,
    /// Its work with the drive.
    in_flight: ByKind<u64>,
    /// Its last command was more than others may have.
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
        // Who is ahead of a floor goes as those who have none: they may wait behind it.
        let goes = work.may_start()
            || is_behind && (owed.has_room() || work.has_room(*now))
            || guaranteed.is_none() && work.has_room(*now);
        if goes { Some(other) } else { guaranteed }
    }

    /// Who goes although somebody is behind a floor, which may be more than there is to have.
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

    /// Who waits for the pause between commands that are more than others may have comes back when it is over, or where
    /// something is owed.
    #[inline]
    fn admit_paced(&mut self, is_behind: bool) {
        if self.pacing.has_waiting()
            && (is_behind || self.pacing.is_open(self.now))
            && let Some(tenant) = self.pacing.admit()
        {
            self.others.insert(tenant);
        }
    }

    /// Whose turn it is among those who were promised no latency.
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

    /// Of what a tenant asks for, that part is asked for here.
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

    /// The weight of those who sent something since this was last asked, or want to, and whether they are several.
    /// `None`: all are guaranteed.
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

    /// Work of a tenant that goes to the drive (`true`) or comes back.
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
        // What it has in flight counts under its new terms.
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
    /// What this poller may have of what best effort may.
    part: Part,
    /// What best effort had at all pollers in the interval that ends, and may have for the sake of floors.
    peak: Peak,
    level: f64,
    /// How many pollers have best-effort tenants.
    pollers: f64,
    /// Several best-effort tenants are active, as far as this poller knows.
    is_shared: bool,
    /// What floors need here of what best effort may have.
    first: f64,
}

impl Evenkeel {
    /// A policy without VQs.
    ///
    /// # Errors
    /// A setting out of its range.
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

    /// Reference commands of each kind that best-effort tenants may have with the drive.
    fn caps(&self) -> ByKind<f64> {
        // A command at least for each poller, whatever floors are short.
        let level = self.flows.turns.floors.level().min(self.level).max(self.pollers);
        let most = level.min(self.found.told());
        self.beside_promises().map(|cap| cap.min(most))
    }

    fn beside_promises(&self) -> ByKind<f64> {
        self.promises.caps(&self.config, self.is_shared)
    }

    /// What best-effort tenants may have with the drive at most, if they are held.
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
                // Who is behind already waits for room, which a completion makes.
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
        // A floor is a promise too.
        let is_large =
            !has_floor && cost >= order.pacing.least_cost() && order.work.is_more_than_all(kind, cost.into());
        order.tenants[usize::from(tenant)].is_large = is_large;
        order.pacing.used(tenant);
        // One that is seldom there is no part of what is there all along.
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
        // The part that it has does work in proportion, whose ever that is.
        self.first += (self.part.size().min(used) * order.floors.need() - self.first) * FOLLOWS;
        // Where it has no best effort it is not to be told of parts either.
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
