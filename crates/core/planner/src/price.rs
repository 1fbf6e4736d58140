//! What a promise costs tenants without a promise, and what a looser one would cost.

use io_model::Nanos;
use policy::{Class, PolicyConfig};

use crate::advice::round_up;
use crate::{Outcome, Planner, Tenant};

/// The number of promises whose price is computed; each takes two short plays.
const PRICED: usize = 8;

/// What is tried as a looser target, in percent of the target.
const LOOSER_PERCENT: u64 = 150;

/// What tenants without a promise get together, in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// Index of the tenant that was promised a latency.
    pub tenant: usize,
    /// Beside the promise.
    pub others_bytes_s: f64,
    /// If it had a share of weight 1 instead.
    pub without_bytes_s: f64,
    /// A looser target, half as long again.
    pub looser: Nanos,
    /// What they get beside that.
    pub looser_bytes_s: f64,
}

/// What each of the first promises costs, under a policy that holds others back for them. `outcome` is that of `policy`
/// and `tenants`.
pub fn prices(planner: &Planner<'_>, policy: &PolicyConfig, tenants: &[Tenant], outcome: &Outcome) -> Vec<Price> {
    (0..tenants.len()).filter_map(|tenant| price(planner, policy, tenants, outcome, tenant)).take(PRICED).collect()
}

/// What the promise to the tenant of that index costs: two short plays. `None` where it was promised no latency.
fn price(
    planner: &Planner<'_>,
    policy: &PolicyConfig,
    tenants: &[Tenant],
    outcome: &Outcome,
    tenant: usize,
) -> Option<Price> {
    let (target, percentile) = tenants.get(tenant)?.class.promise()?;
    if !policy.kind().throttles_best_effort() {
        return None;
    }
    let others = |class: Class| {
        let mut changed = tenants.to_vec();
        changed[tenant].class = class;
        let outcome = planner.guess(policy, &changed)?;
        // This tenant is not counted, whichever class it has.
        Some(outcome.best_effort_bytes_s(tenants))
    };
    let looser = round_up(Nanos(target.0.saturating_mul(LOOSER_PERCENT) / 100));
    // A policy lets others have no less beside a looser promise or none: where short plays say so they are off.
    let others_bytes_s = outcome.best_effort_bytes_s(tenants);
    let looser_class = Class::Guaranteed { latency_target: Some(looser), percentile };
    let looser_bytes_s = others(looser_class)?.max(others_bytes_s);
    let without_bytes_s = others(Class::BestEffort { weight: 1 })?.max(looser_bytes_s);
    Some(Price { tenant, others_bytes_s, without_bytes_s, looser, looser_bytes_s })
}

#[cfg(test)]
mod tests {
    use policy::{EvenkeelConfig, FairConfig};
    use ssd_model::Profile;

    use super::*;
    use crate::{Site, fake};

    #[test]
    fn a_promise_never_leaves_others_more_than_a_looser_one_or_none() {
        let site = fake::site();
        // A model that says the contrary.
        let planner = Planner::with_model(&site, |_, tenants| {
            let target = tenants[0].target().map_or(1.0, |target| 1e9 / target.0 as f64);
            let tenants = tenants.iter().map(|_| fake::forecast(target, 10)).collect();
            Ok(crate::Forecast { tenants, drive_utilization: 0.5, poller_utilization: 0.1, played_ios: 0 })
        });
        let (policy, tenants) =
            (PolicyConfig::Evenkeel(EvenkeelConfig::p5800x()), [fake::guaranteed("db", 40), fake::best_effort("a", 8)]);
        let outcome = planner.outcome(&policy, &tenants).unwrap();
        let price = price(&planner, &policy, &tenants, &outcome, 0).unwrap();
        assert!(
            price.others_bytes_s > 0.0
                && price.looser_bytes_s >= price.others_bytes_s
                && price.without_bytes_s >= price.looser_bytes_s,
            "{price:?}"
        );
    }

    #[test]
    fn a_looser_promise_costs_less_and_none_nothing() {
        let site = Site { profile: Profile::p5800x(), costs: engine::HostCosts::FREE };
        let planner = Planner::new(&site);
        let noisy = Tenant { vcpus: 8, ..fake::best_effort("noisy", 128) };
        let tenants = [fake::guaranteed("db", 40), noisy];
        let priced = |policy: PolicyConfig| {
            let outcome = planner.outcome(&policy, &tenants).unwrap();
            prices(&planner, &policy, &tenants, &outcome)
        };
        let [price] = priced(PolicyConfig::Evenkeel(EvenkeelConfig::p5800x()))[..] else { panic!("one promise") };
        assert_eq!((price.tenant, price.looser), (0, Nanos::from_micros(60)));
        assert!(
            price.others_bytes_s < price.looser_bytes_s && price.looser_bytes_s < price.without_bytes_s,
            "{price:?}"
        );
        assert_eq!(priced(PolicyConfig::Fair(FairConfig::p5800x())), []);
    }
}
