//! How much everybody is served between two turns of one VQ.

use io_model::QueuePriority;
use policy::{ArbitratedConfig, Class, PolicyConfig, TenantPriority, Terms};

use crate::contestant::Contestant;
use crate::scenario::Scenario;

const CLASSES: [QueuePriority; 4] =
    [QueuePriority::Urgent, QueuePriority::High, QueuePriority::Medium, QueuePriority::Low];

/// For each tenant, the commands that all tenants fetch in one turn of one of its VQs: never fewer than the policy's
/// rule says, often more. A tenant whose terms change is taken to have the least of them itself, and the others the
/// most.
pub(crate) fn turns<C: Contestant>(scenario: &Scenario<C>) -> Vec<u64> {
    let Scenario { policy, tenants, .. } = scenario;
    let terms = scenario.terms();
    let vqs: Vec<u64> = tenants.iter().map(|tenant| tenant.vqs.into()).collect();
    let each = |of: &dyn Fn(&[Terms]) -> Option<u64>| -> Vec<u64> {
        terms.iter().map(|all| of(all).unwrap_or(1).max(1)).collect()
    };
    let least = |of: &dyn Fn(&Terms) -> u64| each(&|all| all.iter().map(of).min());
    let most = |of: &dyn Fn(&Terms) -> u64| each(&|all| all.iter().map(of).max());
    match policy.product() {
        Some(PolicyConfig::Wrr(config)) => {
            (0..tenants.len()).map(|at| by_class(config, &terms, at) * vqs[at]).collect()
        }
        Some(PolicyConfig::Drr(config)) => {
            let own = least(&|terms| config.weight(least_class(config, terms.priority)).into());
            let others = most(&|terms| match terms.priority {
                TenantPriority::Fixed(class) => config.weight(class).into(),
                TenantPriority::OfQueue => CLASSES[1..].iter().map(|class| u64::from(config.weight(*class))).sum(),
            });
            by_weight(&own, &others, &vqs)
        }
        _ => {
            let weight = |terms: &Terms| match terms.class {
                Class::Guaranteed { .. } => 1,
                Class::BestEffort { weight } => u64::from(weight.max(1)),
            };
            by_weight(&least(&weight), &most(&weight), &vqs)
        }
    }
}

/// Weighted by tenant or by queue, whichever takes longer. `most`: what a tenant has at most, if that is not certain.
fn by_weight(own: &[u64], most: &[u64], vqs: &[u64]) -> Vec<u64> {
    let turn = |(own, own_vqs): (&u64, &u64)| {
        let all: u64 = most.iter().zip(vqs).map(|(most, vqs)| most.div_ceil(*own) * vqs).sum();
        all * own_vqs
    };
    own.iter().zip(vqs).map(turn).collect()
}

/// A round serves each class its weight in commands, and the flows of a class share that, a burst after another.
fn by_class(config: &ArbitratedConfig, terms: &[Vec<Terms>], at: usize) -> u64 {
    let round: u64 = CLASSES[1..].iter().map(|class| u64::from(config.weight(*class))).sum();
    let turn = |own: &Terms| {
        let class = least_class(config, own.priority);
        let may_be_there = |other: &Terms| match other.priority {
            TenantPriority::Fixed(other) => other == class,
            TenantPriority::OfQueue => true,
        };
        let flows = terms.iter().filter(|all| all.iter().any(may_be_there));
        let before = flows.count() as u64 * u64::from(config.arbitration_burst);
        before.div_ceil(config.weight(class).into()) * round
    };
    terms[at].iter().map(turn).max().unwrap_or(0)
}

/// The class that serves a tenant's VQs least.
fn least_class(config: &ArbitratedConfig, priority: TenantPriority) -> QueuePriority {
    match priority {
        TenantPriority::Fixed(class) => class,
        TenantPriority::OfQueue => {
            let served = |class: &&QueuePriority| config.weight(**class);
            CLASSES[1..].iter().min_by_key(served).copied().unwrap_or(QueuePriority::Low)
        }
    }
}
