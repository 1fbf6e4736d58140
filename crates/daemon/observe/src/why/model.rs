//! What short plays say of a slow spell: alone, and if something had been otherwise.

use history::{Comparison, Did, Promise};
use io_model::Nanos;
use planner::{Blame, Evidence, Lateness, Measured, Planner, Site, Tenant, Unmodelled};
use policy::{Class, Percentile, PolicyConfig};
use promises::planning::undeclared;

use crate::foresight::Foresight;

/// The tenants of a spell, for the model: the one asked about first, then its neighbours in their order.
pub struct Scene<'a> {
    site: &'a Site,
    policy: &'a PolicyConfig,
    tenants: Vec<Tenant>,
    assumed: Vec<bool>,
    then: Vec<Measured>,
    usual: Vec<Option<Measured>>,
    starved: f64,
}

impl<'a> Scene<'a> {
    /// `None`: there is no model of the drive, or another policy was in force then.
    pub fn of(tenant: &str, comparison: &Comparison, foresight: &'a Foresight) -> Option<Self> {
        let (site, policy) = foresight.model()?;
        if policy.name() != comparison.policy {
            return None;
        }
        let own = (tenant, comparison.promise, comparison.weight, comparison.then, comparison.usual);
        // A neighbour's weight is what it has now, or 1.
        let others = comparison.neighbours.iter().map(|it| (it.name.as_str(), it.promise, 0, it.then, it.usual));
        let mut scene = Self {
            site,
            policy,
            tenants: Vec::new(),
            assumed: Vec::new(),
            then: Vec::new(),
            usual: Vec::new(),
            starved: comparison.starved,
        };
        for (name, promise, weight, then, usual) in std::iter::once(own).chain(others) {
            let (tenant, assumed) = asks(name, promise, weight, foresight);
            scene.tenants.push(tenant);
            scene.assumed.push(assumed);
            scene.then.push(measured(&then));
            scene.usual.push(usual.as_ref().map(measured));
        }
        Some(scene)
    }

    /// What made the tenant miss its target, as `stats` would say.
    pub fn blame(&self) -> Option<Blame> {
        let Self { policy, tenants, assumed, then, starved, .. } = self;
        let evidence = Evidence { policy, tenants, assumed, measured: then, starved: *starved };
        planner::blame(&self.planner(), evidence, 0)
    }

    /// The mean latency of what the tenant asked for if nobody else had been there.
    pub fn alone(&self) -> Option<Nanos> {
        let own = self.then.first()?.as_demand(self.tenants.first()?)?;
        let outcome = self.planner().outcome(self.policy, std::slice::from_ref(&own)).ok()?;
        outcome.forecast.tenants.first().map(|own| own.mean)
    }

    /// How long the tenant's commands take, as many of them as were promised or 99 of 100, if `policy` had been in
    /// force, the neighbour at index `culprit` had asked for what it did, and all others for what they usually do: who
    /// waits has more outstanding, which is no wish of its own. `asks` changes what each asks for, given its index; the
    /// tenant itself is the first.
    pub fn takes_if(
        &self,
        policy: &PolicyConfig,
        culprit: usize,
        asks: impl Fn(usize, Tenant) -> Tenant,
    ) -> Option<Nanos> {
        let all = self.then.iter().zip(&self.usual).zip(&self.tenants).enumerate();
        let asked = all.filter_map(|(at, ((then, usual), tenant))| {
            let usual = usual.as_ref().filter(|usual| at > 0 || !usual.is_idle());
            let did = if at == culprit + 1 { then } else { usual.unwrap_or(then) };
            Some(asks(at, did.as_demand(tenant)?))
        });
        self.own_takes(policy, asked.collect())
    }

    /// The usual value.
    pub fn usually_takes(&self) -> Option<Nanos> {
        self.usual.first()?.as_ref().filter(|own| !own.is_idle())?;
        let all = self.usual.iter().zip(&self.tenants);
        self.own_takes(self.policy, all.filter_map(|(usual, tenant)| usual.as_ref()?.as_demand(tenant)).collect())
    }

    /// The policy in force.
    pub fn policy(&self) -> &PolicyConfig {
        self.policy
    }

    /// Another policy with its usual settings on this drive.
    pub fn other_policy(&self, kind: policy::PolicyKind) -> PolicyConfig {
        policy::Settings::with_defaults(kind).on(&planner::drive_figures(&self.site.profile))
    }

    fn own_takes(&self, policy: &PolicyConfig, asked: Vec<Tenant>) -> Option<Nanos> {
        let outcome = self.planner().outcome(policy, &asked).ok()?;
        outcome.forecast.tenants.first().map(|forecast| forecast.at_percentile)
    }

    /// Short plays: there are many questions, and an operator waits.
    fn planner(&self) -> Planner<'_> {
        let engine = Planner::new(self.site);
        Planner::with_model(self.site, move |policy, tenants| {
            let guess = engine.guess(policy, tenants).ok_or(Unmodelled::TooLong)?;
            Ok(guess.forecast)
        })
    }
}

/// What a tenant is taken to ask for. One that is gone is taken for one of which nobody said anything.
fn asks(name: &str, promise: Promise, weight: u32, foresight: &Foresight) -> (Tenant, bool) {
    let class = match promise {
        Promise::Target { ns, late_ppm } => {
            Class::Guaranteed { latency_target: Some(Nanos(ns)), percentile: Percentile::from_late_ppm(late_ppm) }
        }
        Promise::Unnamed => Class::guaranteed(None),
        Promise::None => Class::BestEffort { weight: weight.max(1) },
    };
    match foresight.asks(name) {
        Some((asks, assumed)) => {
            let is_weighed =
                weight == 0 && matches!((asks.class, class), (Class::BestEffort { .. }, Class::BestEffort { .. }));
            let class = if is_weighed { asks.class } else { class };
            (Tenant { class, ..asks.clone() }, assumed)
        }
        None => (Tenant { name: name.to_owned(), class, ..undeclared(class.is_guaranteed()) }, true),
    }
}

/// How many of a tenant's commands were late, and for what.
pub fn lateness(did: &Did) -> Lateness {
    Lateness { late: did.late_part, stalled: did.stalled }
}

fn measured(did: &Did) -> Measured {
    Measured {
        iops: did.iops,
        read_share: did.read_share,
        mean_len_bytes: did.mean_len_bytes(),
        mean: Nanos(did.mean_ns as u64),
        at_percentile: Nanos(did.at_percentile_ns),
        served: Nanos(did.served_ns as u64),
        lateness: lateness(did),
    }
}
