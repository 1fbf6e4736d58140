//! The evidence of a verdict: plain values, whether they come from probes or from the history.

use io_model::Nanos;
use planner::{Load, Planner, Tenant, TenantForecast};
use policy::{Class, Floor, PolicyConfig};

use super::Measured;
use crate::ceilings::Ceiling;

/// A tenant's span, with all tenants of its drive.
pub struct Situation<'a> {
    /// Forecasts. `None`: the drive's profile is not known.
    pub model: Option<Model<'a>>,
    /// The tenant that is judged.
    pub own: Party,
    /// All other tenants of the drive.
    pub neighbours: Vec<Party>,
    /// The pollers and their CPUs.
    pub host: Host,
    /// Length of the span.
    pub span: Nanos,
    /// Commands that were in the drive for longer than the span.
    pub overdue: u64,
    /// The time that the usual values cover.
    pub usual_time: Nanos,
}

/// The model of the drive, under the policy in force.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    /// Forecasts of the drive.
    pub planner: &'a Planner<'a>,
    /// The policy.
    pub policy: &'a PolicyConfig,
}

/// One tenant.
#[derive(Debug, Clone)]
pub struct Party {
    /// Class, floor and demand, as declared or assumed.
    pub asks: Tenant,
    /// The demand is an assumption: the configuration declares none.
    pub is_assumed: bool,
    /// The ceiling that the tenant reached, if any.
    pub held_to: Option<Ceiling>,
    /// Figures of the span.
    pub now: Measured,
    /// Figures of the time before, as far as promises were kept then. `None`: nothing is known of that time.
    pub usual: Option<Measured>,
}

/// What the host did over the span.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Host {
    /// Fraction of the span in which the tenant's pollers waited for a CPU, 0 to 1.
    pub cpu_waited: f64,
    /// The usual value, if known.
    pub cpu_waited_usually: Option<f64>,
    /// A restart of the daemon in the span: the evidence, in words.
    pub restart: Option<String>,
}

/// Up to this much more than declared is no excess: clients are not metronomes, and a span cuts bursts.
const TOLERANCE: f64 = 1.1;

/// A load that is higher than usual by this fraction is unusual.
const GROWN: f64 = 0.5;

/// Changes below this fraction of the drive's whole load delay no tenant.
const MATTERS: f64 = 0.1;

impl Model<'_> {
    /// The forecast for the first of `tenants`. `None`: there is none, or none yet.
    pub fn of_first(&self, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<TenantForecast> {
        self.planner.outcome(policy, tenants).ok()?.forecast.tenants.into_iter().next()
    }
}

impl Party {
    /// What the tenant does beyond its declared demand, in words.
    pub fn excess(&self) -> Option<String> {
        let (tenant, measured) = (&self.asks, &self.now);
        if self.is_assumed {
            return None;
        }
        let declared_bytes = tenant.mean_len_bytes();
        if measured.mean_len_bytes > TOLERANCE * declared_bytes {
            let [kib, declared] = [measured.mean_len_bytes, declared_bytes].map(|bytes| bytes / 1024.0);
            return Some(format!("its commands have {kib:.1} KiB in the mean, {declared:.1} are declared"));
        }
        match tenant.load {
            Load::Open { rate_iops } if measured.iops > TOLERANCE * rate_iops => {
                Some(format!("it asks {:.0} times a second, {rate_iops:.0} are declared", measured.iops))
            }
            // Half a command more than declared is rounding.
            Load::Closed { depth } if measured.outstanding() > TOLERANCE * f64::from(depth) + 0.5 => {
                Some(format!("it keeps {:.0} commands outstanding, {depth} are declared", measured.outstanding()))
            }
            _ => None,
        }
    }

    /// Whether the tenant does clearly more than usual. `false` without usual values.
    pub fn is_grown(&self) -> bool {
        self.usual.is_some_and(|usual| self.now.work() > (1.0 + GROWN) * usual.work())
    }

    /// Load above the usual one, in bytes per second; without usual values, all of the load.
    pub fn growth(&self) -> f64 {
        self.now.work() - self.usual.map_or(0.0, |usual| usual.work())
    }

    /// Whether a latency or a minimum is promised.
    pub fn is_promised(&self) -> bool {
        self.asks.class.is_guaranteed() || self.asks.floor != Floor::default()
    }

    /// Commands per second that a limit has to leave: the minimum, the declared rate, and what is usual.
    pub fn entitled_iops(&self) -> f64 {
        let floor = self.asks.floor.iops(self.now.mean_len_bytes.max(512.0));
        let declared = match self.asks.load {
            Load::Open { rate_iops } if !self.is_assumed => rate_iops,
            _ => 0.0,
        };
        let usual = self.usual.map_or(0.0, |usual| usual.iops);
        floor.max(declared).max(usual)
    }

    fn weight(&self) -> f64 {
        match self.asks.class {
            Class::Guaranteed { .. } => 1.0,
            Class::BestEffort { weight } => weight.into(),
        }
    }
}

/// The tenant whose load grew most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grown {
    /// The tenant that is judged.
    Own,
    /// The neighbour at this index.
    Neighbour(usize),
}

impl Situation<'_> {
    /// All tenants, the judged one first.
    pub fn parties(&self) -> impl Iterator<Item = &Party> {
        std::iter::once(&self.own).chain(&self.neighbours)
    }

    /// The tenant whose load grew most against the usual, if any did.
    pub fn grown(&self) -> Option<Grown> {
        let own_usual = self.own.usual?;
        let all: f64 = self.parties().map(|it| it.now.work()).sum();
        let is_grown = |growth: f64, usual: f64| growth > GROWN * usual && growth > MATTERS * all;
        let growth = |at: &usize| self.neighbours[*at].growth();
        let most = (0..self.neighbours.len()).max_by(|one, other| growth(one).total_cmp(&growth(other)));
        let usual = |at: usize| self.neighbours[at].usual.map_or(0.0, |usual| usual.work());
        let most = most.filter(|at| is_grown(growth(at), usual(*at)));
        let own = self.own.growth();
        // A tenant that only begins does not exceed what is usual.
        if !own_usual.is_idle() && is_grown(own, own_usual.work()) && most.is_none_or(|at| own >= growth(&at)) {
            return Some(Grown::Own);
        }
        most.map(Grown::Neighbour)
    }

    /// The neighbour furthest above its share or its declared demand; if none is above, the one that moves most bytes.
    /// With the evidence, in words.
    pub fn heaviest(&self) -> Option<(usize, String)> {
        let busy = || self.neighbours.iter().enumerate().filter(|(_, it)| !it.now.is_idle());
        let over = |times: f64| if times > TOLERANCE { times } else { 0.0 };
        let ranked = busy().map(|(at, it)| (at, it, self.times_over(it)));
        let (at, neighbour, times) = ranked.max_by(|(_, one, times), (_, other, others)| {
            over(*times).total_cmp(&over(*others)).then(one.now.bytes_s().total_cmp(&other.now.bytes_s()))
        })?;
        let (mb_s, depth) = (neighbour.now.bytes_s() / 1e6, neighbour.now.outstanding());
        let load = format!("{mb_s:.0} MB/s with {depth:.0} commands outstanding");
        let why = match neighbour.excess() {
            Some(excess) => excess,
            None if times > TOLERANCE => format!("it has {load}, {times:.1} times its share"),
            None => format!("it has {load}, which is allowed; the promise does not hold beside it"),
        };
        Some((at, why))
    }

    /// The heaviest neighbour with a promise of its own, if it moves much of what the drive moves.
    pub fn heaviest_promised(&self) -> Option<usize> {
        let all: f64 = self.parties().map(|it| it.now.bytes_s()).sum();
        let bytes_s = |at: &usize| self.neighbours[*at].now.bytes_s();
        let promised = (0..self.neighbours.len()).filter(|at| self.neighbours[*at].is_promised());
        let most = promised.max_by(|one, other| bytes_s(one).total_cmp(&bytes_s(other)));
        most.filter(|at| bytes_s(at) > all * super::A_LOT)
    }

    /// How many times its declared demand a tenant does; of an undeclared one, how many times its share by weight.
    fn times_over(&self, party: &Party) -> f64 {
        let Party { asks, now, is_assumed, .. } = party;
        if *is_assumed {
            let busy = || self.parties().filter(|it| !it.now.is_idle());
            let (bytes_s, weights) = (busy().map(|it| it.now.bytes_s()).sum::<f64>(), busy().map(Party::weight).sum());
            let share = bytes_s * party.weight() / f64::max(weights, 1.0);
            return now.bytes_s() / share.max(1.0);
        }
        let sizes = now.mean_len_bytes / asks.mean_len_bytes().max(1.0);
        let asked = match asks.load {
            Load::Open { rate_iops } => now.iops / rate_iops.max(1.0),
            Load::Closed { depth } => now.outstanding() / f64::from(depth.max(1)),
        };
        sizes.max(1.0) * asked.max(1.0)
    }
}
