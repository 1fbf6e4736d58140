//! The smallest changes that make promises hold, each played before it is told.

use io_model::{Nanos, QueuePriority};
use policy::{Class, PolicyConfig};

use crate::{Obstacle, Outcome, Planner, Promise, Setting, Tenant, Verdict};

/// One change to a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Another value of a setting of the policy.
    Setting {
        /// Which.
        setting: Setting,
        /// The present value.
        from: u32,
        /// The value that helps.
        to: u32,
    },
    /// Another priority for a tenant.
    Priority {
        /// Index of the tenant.
        tenant: usize,
        /// The present one.
        from: QueuePriority,
        /// The one that helps.
        to: QueuePriority,
    },
    /// A tenant goes to another drive.
    Elsewhere {
        /// Index of the tenant.
        tenant: usize,
    },
    /// A tenant is promised less.
    Target {
        /// Index of the tenant.
        tenant: usize,
        /// The present target.
        from: Nanos,
        /// The lowest round one that holds.
        to: Nanos,
    },
}

/// A change, and what comes of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// What to do.
    pub change: Change,
    /// What tenants then get, in the order of the tenants that are left.
    pub outcome: Outcome,
}

/// The number of tenants for which a change of their own is tried: those with the heaviest loads.
const TENANTS_TRIED: usize = 4;

/// Single changes after which every promise holds that the drive can keep at all: the best of each kind, the smallest
/// first: a setting, a tenant's priority, one tenant elsewhere, a higher target. Empty where all promises hold already,
/// and where no single change is enough. `outcome` is that of `policy` and `tenants`.
///
/// Each is searched for as the iterator gets to it.
pub fn advise<'a>(
    planner: &'a Planner<'_>,
    policy: &'a PolicyConfig,
    tenants: &'a [Tenant],
    outcome: &'a Outcome,
) -> impl Iterator<Item = Advice> + 'a {
    let kinds: [Kind; 4] = [setting, priority, elsewhere, target];
    let is_needed = !outcome.keeps_what_it_can();
    let wanted = kinds.into_iter().filter(move |_| is_needed);
    wanted.filter_map(move |kind| kind(planner, policy, tenants, outcome)?.advice(planner, policy, tenants))
}

/// Searches for one kind of change, by short plays.
type Kind = fn(&Planner<'_>, &PolicyConfig, &[Tenant], &Outcome) -> Option<Change>;

impl Change {
    /// The policy and the tenants after it.
    pub fn apply(&self, policy: &PolicyConfig, tenants: &[Tenant]) -> (PolicyConfig, Vec<Tenant>) {
        let (mut policy, mut tenants) = (policy.clone(), tenants.to_vec());
        match *self {
            Self::Setting { setting, to, .. } => policy = setting.with(&policy, to),
            Self::Priority { tenant, to, .. } => {
                if let Some(tenant) = tenants.get_mut(tenant) {
                    tenant.priority = to;
                }
            }
            Self::Elsewhere { tenant } => {
                if tenant < tenants.len() {
                    tenants.remove(tenant);
                }
            }
            Self::Target { tenant, to, .. } => {
                if let Some(tenant) = tenants.get_mut(tenant) {
                    tenant.class = Class::Guaranteed { latency_target: Some(to), percentile: tenant.percentile() };
                }
            }
        }
        (policy, tenants)
    }

    /// What comes of it, if every promise holds then that can.
    fn advice(self, planner: &Planner<'_>, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<Advice> {
        let (policy, tenants) = self.apply(policy, tenants);
        planner.if_kept(&policy, &tenants).map(|outcome| Advice { change: self, outcome })
    }

    /// Whether a short play says so.
    fn seems_enough(&self, planner: &Planner<'_>, policy: &PolicyConfig, tenants: &[Tenant]) -> bool {
        let (policy, tenants) = self.apply(policy, tenants);
        planner.seems_kept(&policy, &tenants)
    }
}

/// The setting whose value moves least.
fn setting(planner: &Planner<'_>, policy: &PolicyConfig, tenants: &[Tenant], _: &Outcome) -> Option<Change> {
    let all = Setting::of(policy).iter().filter_map(|setting| {
        let from = setting.get(policy)?;
        let to = setting.nearest_kept(planner, policy, tenants)?;
        let moved = (f64::from(to.max(1)) / f64::from(from.max(1))).ln().abs();
        Some((moved, Change::Setting { setting: *setting, from, to }))
    });
    all.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, change)| change)
}

/// A tenant whose promise fails goes up, or a neighbour goes down, as few classes as possible.
fn priority(planner: &Planner<'_>, policy: &PolicyConfig, tenants: &[Tenant], outcome: &Outcome) -> Option<Change> {
    use QueuePriority::{High, Low, Medium, Urgent};
    if !matches!(policy, PolicyConfig::Wrr(_) | PolicyConfig::Drr(_)) {
        return None;
    }
    // One tenant's rise helps where one promise fails.
    let one = the_one_failing(outcome).map(|promise| promise.tenant);
    let candidates: Vec<usize> = one.into_iter().chain(heaviest(tenants, outcome)).collect();
    // Urgent last: it may starve everyone else.
    let changes =
        [High, Medium, Low, Urgent].into_iter().flat_map(|to| candidates.iter().map(move |tenant| (*tenant, to)));
    let sensible = |(tenant, to): (usize, QueuePriority)| {
        let one = tenants.get(tenant)?;
        let (from, up) = (one.priority, to < one.priority);
        (up == one.target().is_some() && from != to).then_some(Change::Priority { tenant, from, to })
    };
    changes.filter_map(sensible).find(|change| change.seems_enough(planner, policy, tenants))
}

/// The lightest tenant without a promise that suffices, else one with a promise. Removing more load never hurts, so the
/// search halves.
fn elsewhere(planner: &Planner<'_>, policy: &PolicyConfig, tenants: &[Tenant], outcome: &Outcome) -> Option<Change> {
    if tenants.len() < 2 {
        return None;
    }
    let helps = |tenant: usize| Change::Elsewhere { tenant }.seems_enough(planner, policy, tenants);
    let mut order: Vec<usize> = by_load(tenants, outcome).filter(|index| tenants[*index].target().is_none()).collect();
    order.reverse();
    if order.last().is_some_and(|heaviest| helps(*heaviest)) {
        let least = order[..order.len() - 1].partition_point(|tenant| !helps(*tenant));
        return Some(Change::Elsewhere { tenant: order[least] });
    }
    let one = the_one_failing(outcome).map(|promise| promise.tenant);
    let promised = by_load(tenants, outcome).filter(|index| tenants[*index].target().is_some()).take(TENANTS_TRIED);
    one.into_iter().chain(promised).find(|tenant| helps(*tenant)).map(|tenant| Change::Elsewhere { tenant })
}

/// The one promise that fails although it could be kept; `None` if there are several.
fn the_one_failing(outcome: &Outcome) -> Option<&Promise> {
    let mut failing = outcome.broken().filter(|promise| promise.verdict == Verdict::NotKept);
    failing.next().filter(|_| failing.next().is_none())
}

/// The target that the one tenant whose promise fails could be given.
fn target(planner: &Planner<'_>, policy: &PolicyConfig, tenants: &[Tenant], outcome: &Outcome) -> Option<Change> {
    let one = the_one_failing(outcome)?;
    // What a tenant gets may depend on its target (a throttle follows it): a few steps up, until it meets itself.
    let mut to = outcome.forecast.tenants.get(one.tenant)?.at_percentile;
    for _ in 0..TENANTS_TRIED {
        to = round_up(to.max(one.target));
        let change = Change::Target { tenant: one.tenant, from: one.target, to };
        let (policy, tenants) = change.apply(policy, tenants);
        let outcome = planner.guess(&policy, &tenants)?;
        if outcome.keeps_what_it_can() {
            return Some(change);
        }
        to = outcome.forecast.tenants.get(one.tenant)?.at_percentile.max(Nanos(to.0.saturating_add(to.0 / 8)));
    }
    None
}

/// The neighbours that the broken promises name, then others by their loads.
fn heaviest(tenants: &[Tenant], outcome: &Outcome) -> Vec<usize> {
    let named = outcome.promises.iter().filter_map(|promise| match promise.obstacle {
        Obstacle::Neighbour { tenant, .. } => Some(tenant),
        _ => None,
    });
    let mut found: Vec<usize> = Vec::new();
    for index in named.chain(by_load(tenants, outcome)) {
        if !found.contains(&index) {
            found.push(index);
        }
        if found.len() == TENANTS_TRIED {
            break;
        }
    }
    found
}

/// All tenants, those that move most first; a command counts for at least 4 KiB.
fn by_load(tenants: &[Tenant], outcome: &Outcome) -> impl Iterator<Item = usize> {
    let load = |index: &usize| {
        outcome.forecast.tenants.get(*index).map_or(0.0, |own| own.bandwidth_bytes_s.max(own.iops * 4096.0))
    };
    let mut order: Vec<usize> = (0..tenants.len()).collect();
    order.sort_by(|a, b| load(b).total_cmp(&load(a)));
    order.into_iter()
}

/// To two digits, as a person would promise it.
pub fn round_up(time: Nanos) -> Nanos {
    let unit = 10u64.pow(time.0.max(1).ilog10().saturating_sub(1));
    Nanos(time.0.div_ceil(unit).saturating_mul(unit))
}

#[cfg(test)]
mod tests {
    use policy::{ArbitratedConfig, LpnsConfig};

    use super::*;
    use crate::fake;

    /// The advice for a fake drive, and the number of questions that it took.
    fn advice(policy: &PolicyConfig, tenants: &[Tenant]) -> (Vec<Advice>, usize) {
        let site = fake::site();
        let planner = fake::planner(&site);
        let outcome = planner.outcome(policy, tenants).expect("modelled");
        let all: Vec<Advice> = advise(&planner, policy, tenants, &outcome).collect();
        for one in &all {
            let (policy, tenants) = one.change.apply(policy, tenants);
            let again = planner.outcome(&policy, &tenants).expect("modelled");
            assert!(again.keeps_what_it_can() && again == one.outcome, "{:?}", one.change);
        }
        (all, planner.questions())
    }

    fn wrr() -> PolicyConfig {
        PolicyConfig::Wrr(ArbitratedConfig { max_in_flight: 256, ..ArbitratedConfig::wrr() })
    }

    #[test]
    fn promises_that_hold_need_no_advice() {
        assert_eq!(advice(&wrr(), &[fake::guaranteed("db", 10_000), fake::best_effort("a", 8)]).0, []);
    }

    #[test]
    fn the_smallest_change_of_each_kind_comes_in_order() {
        let tenants = [fake::guaranteed("db", 100), fake::best_effort("a", 64), fake::best_effort("b", 200)];
        let (all, _) = advice(&wrr(), &tenants);
        let changes: Vec<Change> = all.iter().map(|one| one.change).collect();
        // The fake drive: 1 µs for each command that may wait before.
        let to = Nanos::from_micros(260);
        assert_eq!(
            changes,
            [
                Change::Setting { setting: Setting::MaxInFlight, from: 256, to: 90 },
                Change::Priority { tenant: 0, from: QueuePriority::Medium, to: QueuePriority::High },
                Change::Elsewhere { tenant: 2 },
                Change::Target { tenant: 0, from: Nanos::from_micros(100), to },
            ]
        );
    }

    #[test]
    fn what_the_drive_sustains_is_a_setting_of_lpns() {
        let tenants = [fake::guaranteed("db", 100), fake::best_effort("a", 500)];
        let (all, _) = advice(&PolicyConfig::Lpns(LpnsConfig::p5800x()), &tenants);
        assert_eq!(all[0].change, Change::Setting { setting: Setting::RateIops, from: 800_000, to: 390_000 });
    }

    #[test]
    fn a_promise_that_no_drive_keeps_does_not_hide_what_helps_the_others() {
        let tenants = [fake::guaranteed("no", 5), fake::guaranteed("db", 100), fake::best_effort("a", 200)];
        let (all, _) = advice(&PolicyConfig::Passthrough, &tenants);
        assert_eq!(all[0].change, Change::Elsewhere { tenant: 2 });
    }

    #[test]
    fn advice_for_256_tenants_takes_few_questions() {
        let mut tenants: Vec<Tenant> = (0..128).map(|i| fake::guaranteed(&format!("db{i}"), 100)).collect();
        tenants.extend((0..128).map(|i| fake::best_effort(&format!("n{i}"), 32)));
        for policy in [wrr(), PolicyConfig::Passthrough, PolicyConfig::Lpns(LpnsConfig::p5800x())] {
            let (_, questions) = advice(&policy, &tenants);
            assert!(questions <= 60, "{}: {questions}", policy.name());
        }
    }
}
