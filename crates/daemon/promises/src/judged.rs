//! All promises of a question, judged at once; and what would help those that are broken.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use io_model::Nanos;
use planner::{
    Change, FloorForecast, FloorsForecast, Outcome, Planner, Promise, Tenant, Unmodelled, Verdict, advise,
    judge_floors, round_up,
};
use policy::{Class, PolicyConfig};

use crate::planning::Question;

/// What a question's plays take at most, before it is given up: some ten times what they should.
const LIMIT: Duration = Duration::from_secs(10);

/// Whether that much time has passed from now on.
#[allow(clippy::disallowed_methods, reason = "the brake is for the person who waits: no forecast follows from it")]
pub(crate) fn limited() -> impl Fn() -> bool {
    let deadline = Instant::now() + LIMIT;
    move || Instant::now() >= deadline
}

/// What becomes of the promises that a question is about.
#[derive(Debug)]
pub(crate) struct Judged {
    /// What all get, and the targets beside one another; or why there is no telling.
    pub(crate) outcome: Result<Outcome, Unmodelled>,
    /// Where there is no telling: targets that the drive can't keep even for a tenant that has it alone.
    pub(crate) impossible: Vec<Promise>,
    /// All floors, and the targets that are missed for them.
    pub(crate) floors: FloorsForecast,
}

impl Judged {
    pub(crate) fn new(question: &Question) -> Self {
        let is_over = limited();
        Self::with(&Planner::within(&question.site, &is_over), question)
    }

    fn with(planner: &Planner<'_>, question: &Question) -> Self {
        let outcome = planner.outcome(&question.policy, &question.tenants);
        Self::of(planner, question, outcome)
    }

    /// As a short play says, for searches.
    fn guessed(planner: &Planner<'_>, question: &Question) -> Option<Self> {
        let outcome = planner.guess(&question.policy, &question.tenants)?;
        Some(Self::of(planner, question, Ok(outcome)))
    }

    fn of(planner: &Planner<'_>, question: &Question, outcome: Result<Outcome, Unmodelled>) -> Self {
        let Question { policy, tenants, .. } = question;
        let impossible = if outcome.is_ok() { Vec::new() } else { impossible(planner, tenants) };
        let judge = |outcome: &Outcome| judge_floors(planner, policy, tenants, outcome);
        let floors = outcome.as_ref().map(judge).unwrap_or_default();
        Self { outcome, impossible, floors }
    }

    /// Those of the targets.
    pub(crate) fn promises(&self) -> &[Promise] {
        self.outcome.as_ref().map_or(&self.impossible[..], |outcome| &outcome.promises)
    }

    /// What the commands of a tenant take that its promise is about, where there is telling.
    pub(crate) fn latency(&self, at: usize) -> Option<Nanos> {
        Some(self.outcome.as_ref().ok()?.forecast.tenants.get(at)?.at_percentile)
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

/// Where it can't be played, what the drive can't do for a tenant that has it alone is known still: one short play for
/// all tenants that are alike.
fn impossible(planner: &Planner<'_>, tenants: &[Tenant]) -> Vec<Promise> {
    let mut known: Vec<(Tenant, Option<Promise>)> = Vec::new();
    let mut alone = |tenant: &Tenant| {
        let kind = Tenant { name: String::new(), ..tenant.clone() };
        if let Some((_, promise)) = known.iter().find(|(known, _)| *known == kind) {
            return promise.clone();
        }
        let outcome = planner.guess(&PolicyConfig::Passthrough, std::slice::from_ref(&kind));
        let promise = outcome.and_then(|outcome| outcome.promises.into_iter().next());
        known.push((kind, promise.clone()));
        promise
    };
    let promises = tenants.iter().enumerate().filter(|(_, tenant)| tenant.target().is_some());
    let promises = promises.filter_map(|(at, tenant)| Some(Promise { tenant: at, ..alone(tenant)? }));
    promises.filter(|promise| matches!(promise.verdict, Verdict::Impossible { .. })).collect()
}

/// The number of broken promises for which an acceptable target is searched.
const TARGETS_TRIED: usize = 4;

/// What would help the broken promises of a question.
#[derive(Debug)]
pub(crate) struct Remedies {
    /// The smallest change after which all targets hold that the drive can keep at all, and nobody else misses its
    /// floor or its target for floors.
    pub(crate) change: Option<Change>,
    /// For the first tenants whose targets are impossible: the lowest target that would be accepted, if any was found.
    pub(crate) acceptable: Vec<(usize, Option<Nanos>)>,
}

impl Remedies {
    pub(crate) fn new(question: &Question) -> Self {
        let is_over = limited();
        let planner = Planner::within(&question.site, &is_over);
        let judged = Judged::with(&planner, question);
        let lowest = |promise: &Promise| match promise.verdict {
            Verdict::Impossible { lowest } => Some((promise.tenant, lowest)),
            _ => None,
        };
        let impossible = judged.promises().iter().filter_map(lowest).take(TARGETS_TRIED);
        let acceptable =
            impossible.map(|(at, lowest)| (at, acceptable_target(&planner, question, &judged, at, lowest)));
        Self { acceptable: acceptable.collect(), change: change_that_helps(&planner, question, &judged) }
    }

    /// What to do about a target that the drive can't keep even alone.
    pub(crate) fn instead_of_impossible(&self, at: usize) -> String {
        match self.acceptable.iter().find(|(tenant, _)| *tenant == at) {
            Some((_, Some(target))) => format!("write latency_target = \"{target}\" or more"),
            Some((_, None)) => {
                "no latency_target can be promised beside these neighbours: put it on another drive".to_owned()
            }
            None => "write a larger latency_target".to_owned(),
        }
    }
}

fn change_that_helps(planner: &Planner<'_>, question: &Question, judged: &Judged) -> Option<Change> {
    let Question { policy, tenants, .. } = question;
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
        let left = Judged::with(planner, &changed);
        left.broken(&changed.tenants).iter().all(|name| broken.contains(name) && Some(*name) != told)
    };
    advise(planner, policy, tenants, outcome).map(|advice| advice.change).find(helps)
}

/// Steps up, each at least twice as high as the one before.
const STEPS: usize = 10;

/// The lowest target of two digits, from `from` on, that a tenant can be promised so that nobody misses a promise who
/// does not now: searched by short plays, and confirmed by a whole one. `None`: none was found, however high.
fn acceptable_target(
    planner: &Planner<'_>,
    question: &Question,
    now: &Judged,
    at: usize,
    from: Nanos,
) -> Option<Nanos> {
    let name = question.tenants.get(at)?.name.as_str();
    let percentile = question.tenants[at].percentile();
    let mut left = now.broken(&question.tenants);
    left.remove(name);
    let with = |target: Nanos| {
        let mut tenants = question.tenants.clone();
        tenants[at].class = Class::Guaranteed { latency_target: Some(target), percentile };
        Question { tenants, ..question.clone() }
    };
    let is_accepted = |judged: &Judged| judged.broken(&question.tenants).is_subset(&left);
    let (mut below, mut target) = (Nanos(0), round_up(from.max(Nanos(1))));
    let mut steps = STEPS;
    loop {
        let judged = Judged::guessed(planner, &with(target))?;
        if is_accepted(&judged) {
            break;
        }
        steps = steps.checked_sub(1)?;
        below = target;
        // What it gets may depend on its target: a throttle follows that.
        target = round_up(judged.latency(at).unwrap_or(target).max(Nanos(target.0.checked_mul(2)?)));
    }
    // The last step may have been a long one.
    while below > Nanos(0) {
        let middle = round_up(Nanos(below.0 + (target.0 - below.0) / 2));
        if middle >= target || middle <= below {
            break;
        }
        if Judged::guessed(planner, &with(middle)).is_some_and(|it| is_accepted(&it)) {
            target = middle;
        } else {
            below = middle;
        }
    }
    confirmed(target, |target| {
        let judged = Judged::with(planner, &with(target));
        if is_accepted(&judged) { Ok(()) } else { Err(judged.latency(at)) }
    })
}

/// Whole plays of a target that short ones found: what these show above it is tried too.
fn confirmed(mut target: Nanos, is_accepted: impl Fn(Nanos) -> Result<(), Option<Nanos>>) -> Option<Nanos> {
    for _ in 0..TARGETS_TRIED {
        let Err(latency) = is_accepted(target) else { return Some(target) };
        target = round_up(latency?.max(Nanos(target.0.saturating_add(target.0 / 50))));
    }
    None
}
