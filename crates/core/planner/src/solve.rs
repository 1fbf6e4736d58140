//! Weights, priorities, caps and rates at which every promise holds.

use io_model::{Nanos, QueuePriority};
use policy::PolicyConfig;

use crate::{Outcome, Planner, Promise, Setting, Tenant, Verdict};

/// Settings at which every promise holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// The policy with its settings.
    pub policy: PolicyConfig,
    /// The tenants with their priorities.
    pub tenants: Vec<Tenant>,
    /// What they get.
    pub outcome: Outcome,
}

/// Why there is no solution.
#[derive(Debug, Clone, PartialEq)]
pub enum Unsolved {
    /// Promises that this drive can't keep for anyone.
    Impossible(Vec<Promise>),
    /// None of the settings that were tried is enough. This one broke the fewest promises.
    Closest {
        /// Its policy and settings.
        policy: Box<PolicyConfig>,
        /// The promises that it breaks.
        broken: Vec<Promise>,
    },
    /// Nothing can be said under any of the policies.
    Unmodelled,
}

/// Looks for settings of each of these policies at which every promise holds. The first policy that has a solution with
/// its present settings wins; then the first with others wins, if it is the first of all; else the one that leaves most
/// to tenants without a promise.
///
/// For `wrr` and `drr`: priorities by class and by target, weights, and the widest cap that will do; for `lpns` R, the
/// largest that will do. The other policies have nothing to set.
///
/// # Errors
/// There is no solution among those tried.
pub fn solve(planner: &Planner<'_>, policies: &[PolicyConfig], tenants: &[Tenant]) -> Result<Solution, Unsolved> {
    let mut search = Search { planner, closest: None };
    let mut found: Vec<Solution> = Vec::new();
    for (index, policy) in policies.iter().enumerate() {
        if let Some(solution) = search.with(policy, tenants) {
            if index == 0 {
                return Ok(solution);
            }
            found.push(solution);
        }
    }
    let left = |solution: &Solution| solution.outcome.best_effort_bytes_s(&solution.tenants);
    // Of several that are alike the first.
    if let Some(best) = found.into_iter().rev().max_by(|a, b| left(a).total_cmp(&left(b))) {
        return Ok(best);
    }
    Err(search.closest.map_or(Unsolved::Unmodelled, |(policy, outcome)| {
        let broken: Vec<Promise> = outcome.broken().cloned().collect();
        let impossible = |promise: &Promise| matches!(promise.verdict, Verdict::Impossible { .. });
        match broken.iter().any(impossible) {
            true => Unsolved::Impossible(broken.into_iter().filter(impossible).collect()),
            false => Unsolved::Closest { policy: Box::new(policy), broken },
        }
    }))
}

struct Search<'a> {
    planner: &'a Planner<'a>,
    /// The attempt that broke the fewest promises.
    closest: Option<(PolicyConfig, Outcome)>,
}

impl Search<'_> {
    /// A solution under this policy that a whole play confirms.
    fn with(&mut self, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<Solution> {
        let found = self.search(policy, tenants)?;
        let outcome = self.planner.outcome(&found.policy, &found.tenants).ok()?;
        if outcome.keeps_all() {
            return Some(Solution { outcome, ..found });
        }
        self.closest.get_or_insert((found.policy, outcome));
        None
    }

    /// By short plays. Nothing is tried where a promise is impossible under any policy.
    fn search(&mut self, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<Solution> {
        if let Some(solution) = self.attempt(policy, tenants) {
            return Some(solution);
        }
        let (_, outcome) = self.closest.as_ref()?;
        if outcome.promises.iter().any(|promise| matches!(promise.verdict, Verdict::Impossible { .. })) {
            return None;
        }
        match policy {
            PolicyConfig::Wrr(_) | PolicyConfig::Drr(_) => self.classes(policy, tenants),
            _ => Setting::of(policy).iter().find_map(|setting| self.nearest(*setting, policy, tenants)),
        }
    }

    fn attempt(&mut self, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<Solution> {
        let outcome = self.planner.guess(policy, tenants)?;
        if outcome.keeps_all() {
            return Some(Solution { policy: policy.clone(), tenants: tenants.to_vec(), outcome });
        }
        let broken = outcome.broken().count();
        if self.closest.as_ref().is_none_or(|(_, closest)| broken < closest.broken().count()) {
            self.closest = Some((policy.clone(), outcome));
        }
        None
    }

    /// The strictest priorities and weights with any cap first: if they won't do, nothing will. Then as mild as will
    /// still do: priorities, weights, and last the cap.
    fn classes(&mut self, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<Solution> {
        let (assignments, ladder) = (assignments(tenants), ladder(policy));
        let strict = self.widest(Setting::MaxInFlight, ladder.last()?, assignments.last()?)?;
        let cap = Setting::MaxInFlight.get(&strict.policy)?;
        let milder = assignments.iter().find_map(|tenants| self.attempt(&strict.policy, tenants)).unwrap_or(strict);
        let capped = ladder.iter().map(|policy| Setting::MaxInFlight.with(policy, cap));
        let milder = capped.into_iter().find_map(|policy| self.attempt(&policy, &milder.tenants)).unwrap_or(milder);
        let wide = Setting::MaxInFlight.with(&milder.policy, Setting::MaxInFlight.get(policy)?);
        let found = self.attempt(&wide, &milder.tenants);
        Some(found.or_else(|| self.nearest(Setting::MaxInFlight, &wide, &milder.tenants)).unwrap_or(milder))
    }

    /// With the present value of a setting if that will do, else with the nearest that will.
    fn widest(&mut self, setting: Setting, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<Solution> {
        self.attempt(policy, tenants).or_else(|| self.nearest(setting, policy, tenants))
    }

    /// The value of a setting nearest to the present one that will do.
    fn nearest(&mut self, setting: Setting, policy: &PolicyConfig, tenants: &[Tenant]) -> Option<Solution> {
        let value = setting.nearest_kept(self.planner, policy, tenants)?;
        self.attempt(&setting.with(policy, value), tenants)
    }
}

/// The present priorities; those with a promise high and the others as they are, or low; the tightest target urgent.
fn assignments(tenants: &[Tenant]) -> Vec<Vec<Tenant>> {
    use QueuePriority::{High, Low, Medium, Urgent};
    let tightest = tenants.iter().filter_map(Tenant::target).min().unwrap_or(Nanos::MAX);
    let assign = |priority: &dyn Fn(&Tenant) -> QueuePriority| -> Vec<Tenant> {
        tenants.iter().map(|tenant| Tenant { priority: priority(tenant), ..tenant.clone() }).collect()
    };
    let mut all = vec![
        tenants.to_vec(),
        assign(&|tenant| if tenant.target().is_some() { High } else { tenant.priority.max(Medium) }),
        assign(&|tenant| if tenant.target().is_some() { High } else { Low }),
        assign(&|tenant| match tenant.target() {
            // Within half as much again a target is as tight.
            Some(target) if target.0 <= tightest.0.saturating_add(tightest.0 / 2) => Urgent,
            Some(_) => High,
            None => Low,
        }),
    ];
    all.dedup();
    all
}

/// The policy with its present weights, and with steeper ones up to the steepest.
fn ladder(policy: &PolicyConfig) -> Vec<PolicyConfig> {
    let most = if matches!(policy, PolicyConfig::Wrr(_)) { 256 } else { 1024 };
    let rung = |[high, medium, low]: [u32; 3]| {
        let weights = [(Setting::HighWeight, high), (Setting::MediumWeight, medium), (Setting::LowWeight, low)];
        weights.iter().fold(policy.clone(), |policy, (setting, weight)| setting.with(&policy, *weight))
    };
    vec![policy.clone(), rung([most / 2, most / 8, most / 32]), rung([most, most / 32, most / 256])]
}

#[cfg(test)]
mod tests {
    use policy::{ArbitratedConfig, FairConfig, LpnsConfig};

    use super::*;
    use crate::fake;

    fn wrr(max_in_flight: u32) -> PolicyConfig {
        PolicyConfig::Wrr(ArbitratedConfig { max_in_flight, ..ArbitratedConfig::wrr() })
    }

    fn lpns() -> PolicyConfig {
        PolicyConfig::Lpns(LpnsConfig::p5800x())
    }

    /// What is found holds when it is asked for anew.
    fn solved(policies: &[PolicyConfig], tenants: &[Tenant]) -> Result<Solution, Unsolved> {
        let site = fake::site();
        let planner = fake::planner(&site);
        let found = solve(&planner, policies, tenants);
        if let Ok(solution) = &found {
            let again = planner.outcome(&solution.policy, &solution.tenants).expect("modelled");
            assert!(again.keeps_all() && again == solution.outcome);
        }
        assert!(planner.questions() <= 60 * policies.len(), "{} questions", planner.questions());
        found
    }

    #[test]
    fn what_holds_already_is_left_as_it_is() {
        let tenants = [fake::guaranteed("db", 1_000), fake::best_effort("a", 64)];
        let solution = solved(&[wrr(64), lpns()], &tenants).expect("it holds");
        assert_eq!((solution.policy, &solution.tenants[..]), (wrr(64), &tenants[..]));
    }

    #[test]
    fn the_configured_policy_is_kept_if_it_can_be() {
        let tenants = [fake::guaranteed("db", 100), fake::best_effort("a", 200)];
        let solution = solved(&[lpns(), wrr(256)], &tenants).expect("there is one");
        assert_eq!(Setting::RateIops.get(&solution.policy), Some(390_000));
        let solution = solved(&[wrr(256), lpns()], &tenants).expect("there is one");
        // A priority is enough: the cap stays as wide as it is.
        assert_eq!((solution.policy, solution.tenants[0].priority), (wrr(256), QueuePriority::High));
        let solution = solved(&[PolicyConfig::Passthrough, lpns()], &tenants).expect("there is one");
        assert_eq!(solution.policy.name(), "lpns");
    }

    #[test]
    fn tenants_with_a_promise_rise_where_a_cap_is_not_enough() {
        // With everybody in one class, as many commands wait before one as the drive holds at the least.
        let tenants = [fake::guaranteed("db", 20), fake::guaranteed("log", 15), fake::best_effort("a", 200)];
        let tenants = tenants.map(|tenant| Tenant { priority: QueuePriority::Low, ..tenant });
        let solution = solved(&[wrr(256)], &tenants).expect("there is one");
        let priorities: Vec<QueuePriority> = solution.tenants.iter().map(|tenant| tenant.priority).collect();
        assert_eq!(priorities, [QueuePriority::High, QueuePriority::High, QueuePriority::Low]);
    }

    #[test]
    fn where_there_is_none_it_says_why() {
        let own = Tenant { load: crate::Load::Closed { depth: 500 }, ..fake::guaranteed("db", 100) };
        let tenants = [own, fake::best_effort("a", 8)];
        match solved(&[PolicyConfig::Passthrough, wrr(64)], &tenants) {
            Err(Unsolved::Closest { broken, .. }) => assert_eq!(broken[0].tenant, 0),
            other => panic!("{other:?}"),
        }
        let tenants = [fake::guaranteed("db", 5), fake::guaranteed("log", 100), fake::best_effort("a", 200)];
        match solved(&[wrr(64)], &tenants) {
            Err(Unsolved::Impossible(promises)) => {
                assert_eq!(promises.len(), 1);
                assert_eq!(promises[0].verdict, Verdict::Impossible { lowest: Nanos::from_micros(10) });
            }
            other => panic!("{other:?}"),
        }
        let site = fake::site();
        let planner = Planner::with_model(&site, |_, _| Err(crate::Unmodelled::Drive));
        assert_eq!(solve(&planner, &[PolicyConfig::Fair(FairConfig::p5800x())], &tenants), Err(Unsolved::Unmodelled));
    }

    #[test]
    fn priorities_are_tried_from_the_mildest() {
        let tenants = [fake::guaranteed("db", 100), fake::guaranteed("log", 1_000), fake::best_effort("a", 8)];
        let classes = |tenants: &Vec<Tenant>| tenants.iter().map(|tenant| tenant.priority).collect::<Vec<_>>();
        use QueuePriority::{High, Low, Medium, Urgent};
        let expected = [[Medium; 3], [High, High, Medium], [High, High, Low], [Urgent, High, Low]];
        assert_eq!(assignments(&tenants).iter().map(classes).collect::<Vec<_>>(), expected);
    }
}
