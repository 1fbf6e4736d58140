//! All promises of a question, judged at once; and the targets that would be accepted instead of one that is not.

use std::collections::BTreeSet;

use io_model::Nanos;
use planner::{
    Change, FloorForecast, FloorsForecast, Outcome, Planner, Promise, Tenant, Unmodelled, Verdict, advise,
    judge_floors, round_up,
};
use policy::{Class, PolicyConfig};

use crate::planning::Question;

/// What becomes of the promises that a question is about.
pub(crate) struct Judged {
    /// What all get, and the targets beside one another; or why there is no telling.
    pub(crate) outcome: Result<Outcome, Unmodelled>,
    /// Where there is no telling: targets that the drive can't keep even for a tenant that has it alone.
    pub(crate) impossible: Vec<Promise>,
    /// All floors at once, and the targets beside nothing but them.
    pub(crate) floors: FloorsForecast,
}

impl Judged {
    pub(crate) fn new(question: &Question) -> Self {
        let Question { site, policy, tenants, .. } = question;
        let planner = Planner::new(site);
        let outcome = planner.outcome(policy, tenants);
        let impossible = if outcome.is_ok() { Vec::new() } else { impossible(&planner, tenants) };
        // A demand that is not known is told of with the targets.
        let floors = judge_floors(site, policy, tenants).unwrap_or_default();
        Self { outcome, impossible, floors }
    }

    /// Those of the targets.
    pub(crate) fn promises(&self) -> &[Promise] {
        self.outcome.as_ref().map_or(&self.impossible[..], |outcome| &outcome.promises)
    }

    /// What the commands of a tenant take that its promise is about, where there is telling.
    pub(crate) fn latency(&self, tenants: &[Tenant], at: usize) -> Option<Nanos> {
        let percentile = tenants.get(at)?.percentile();
        Some(self.outcome.as_ref().ok()?.forecast.tenants.get(at)?.at(percentile))
    }

    /// What becomes of a tenant's floor.
    pub(crate) fn floor(&self, at: usize) -> Option<&FloorForecast> {
        self.floors.floors.iter().find(|floor| floor.tenant == at)
    }

    /// Tenants that can't have what they are to be promised.
    fn broken<'t>(&self, tenants: &'t [Tenant]) -> BTreeSet<&'t str> {
        let targets = self.promises().iter().filter(|promise| !promise.verdict.is_kept()).map(|it| it.tenant);
        let floors = self.floors.floors.iter().filter(|floor| !floor.is_kept()).map(|it| it.tenant);
        let all = targets.chain(floors).chain(self.floors.late.iter().copied());
        all.filter_map(|at| tenants.get(at)).map(|tenant| tenant.name.as_str()).collect()
    }
}

/// Where there is no model of the policy, what the drive can't do for a tenant that has it alone is known still.
fn impossible(planner: &Planner<'_>, tenants: &[Tenant]) -> Vec<Promise> {
    let alone = |(index, tenant): (usize, &Tenant)| {
        let outcome = planner.outcome(&PolicyConfig::Passthrough, std::slice::from_ref(tenant)).ok()?;
        let promise = outcome.promises.into_iter().next()?;
        matches!(promise.verdict, Verdict::Impossible { .. }).then_some(Promise { tenant: index, ..promise })
    };
    tenants.iter().enumerate().filter_map(alone).collect()
}

/// The smallest change after which all targets hold that the drive can keep at all, and nobody else misses its floor or
/// its target for floors. `judged`: the question as it is.
pub(crate) fn change_that_helps(question: &Question, judged: &Judged) -> Option<Change> {
    let Question { site, policy, tenants, .. } = question;
    let outcome = judged.outcome.as_ref().ok()?;
    let broken = judged.broken(tenants);
    let helps = |change: &Change| {
        // A target that is told must be one that is accepted.
        let told = match *change {
            Change::Target { tenant, .. } => tenants.get(tenant).map(|tenant| tenant.name.as_str()),
            _ => None,
        };
        let (policy, tenants) = change.apply(policy, tenants);
        let changed = Question { policy, tenants, ..question.clone() };
        let left = Judged::new(&changed);
        left.broken(&changed.tenants).iter().all(|name| broken.contains(name) && Some(*name) != told)
    };
    advise(&Planner::new(site), policy, tenants, outcome).into_iter().map(|advice| advice.change).find(helps)
}

/// Steps up, each at least twice as high as the one before.
const STEPS: usize = 10;

/// The lowest target of two digits, from `from` on, that a tenant can be promised so that nobody misses a promise who
/// does not now: tried, not reckoned. `None`: none was found, however high.
fn acceptable_target(question: &Question, at: usize, from: Nanos) -> Option<Nanos> {
    let now = Judged::new(question);
    let name = question.tenants.get(at)?.name.as_str();
    let percentile = question.tenants[at].percentile();
    let mut left = now.broken(&question.tenants);
    left.remove(name);
    let with = |target: Nanos| {
        let mut tenants = question.tenants.clone();
        tenants[at].class = Class::Guaranteed { latency_target: Some(target), percentile };
        let changed = Question { tenants, ..question.clone() };
        let judged = Judged::new(&changed);
        let is_accepted = judged.broken(&changed.tenants).is_subset(&left);
        (is_accepted, judged.latency(&changed.tenants, at))
    };
    let (mut below, mut target) = (Nanos(0), round_up(from.max(Nanos(1))));
    let mut steps = STEPS;
    loop {
        let (is_accepted, latency) = with(target);
        if is_accepted {
            break;
        }
        steps = steps.checked_sub(1)?;
        below = target;
        // What it gets may depend on its target: a throttle follows that.
        target = round_up(latency.unwrap_or(target).max(Nanos(target.0.checked_mul(2)?)));
    }
    // The last step may have been a long one.
    while below > Nanos(0) {
        let middle = round_up(Nanos(below.0 + (target.0 - below.0) / 2));
        if middle >= target || middle <= below {
            break;
        }
        if with(middle).0 { target = middle } else { below = middle }
    }
    Some(target)
}

/// What to do about a target that the drive can't keep even alone: `lowest` is the first that it could.
pub fn instead_of_impossible(question: &Question, at: usize, lowest: Nanos) -> String {
    match acceptable_target(question, at, lowest) {
        Some(target) => format!("write latency_target = \"{target}\" or more"),
        None => "no latency_target can be promised beside these neighbours: put it on another drive".to_owned(),
    }
}
