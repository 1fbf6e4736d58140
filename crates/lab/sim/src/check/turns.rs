//! How much everybody is served between two turns of one VQ.

use io_model::{QueuePriority, TenantId};
use policy::{ArbitratedConfig, Class, PolicyConfig, TenantPriority};

use crate::scenario::{Scenario, Tenant};

const CLASSES: [QueuePriority; 4] =
    [QueuePriority::Urgent, QueuePriority::High, QueuePriority::Medium, QueuePriority::Low];

/// For each tenant, the commands that everybody has fetched in one turn of a VQ of it: never fewer than the policy's rule
/// says, often more.
pub(crate) fn turns(scenario: &Scenario) -> Vec<u64> {
    let Scenario { policy, tenants, .. } = scenario;
    match policy {
        PolicyConfig::Wrr(config) => (0..tenants.len()).map(|at| by_class(config, tenants, at)).collect(),
        PolicyConfig::Drr(config) => {
            let own = |at| u64::from(config.weight(least_class(config, at)));
            let most = |at| match config.priority(id(at)) {
                TenantPriority::Fixed(class) => u64::from(config.weight(class)),
                TenantPriority::OfQueue => CLASSES[1..].iter().map(|class| u64::from(config.weight(*class))).sum(),
            };
            by_weight(tenants, own, most)
        }
        _ => {
            let weight = |at: usize| match tenants[at].class {
                Class::Guaranteed { .. } => 1,
                Class::BestEffort { weight } => u64::from(weight.max(1)),
            };
            by_weight(tenants, weight, weight)
        }
    }
}

/// Weighted by tenant or by queue, whichever takes longer. `most`: what a tenant has at most, if that is not certain.
fn by_weight(tenants: &[Tenant], own: impl Fn(usize) -> u64, most: impl Fn(usize) -> u64) -> Vec<u64> {
    let turn = |(at, tenant): (usize, &Tenant)| {
        let others = tenants.iter().enumerate();
        let all: u64 = others.map(|(other, tenant)| most(other).div_ceil(own(at)) * u64::from(tenant.vqs)).sum();
        all * u64::from(tenant.vqs)
    };
    tenants.iter().enumerate().map(turn).collect()
}

/// A round serves each class its weight in commands, and the flows of a class share that, a burst after another.
fn by_class(config: &ArbitratedConfig, tenants: &[Tenant], at: usize) -> u64 {
    let class = least_class(config, at);
    let flows = (0..tenants.len()).filter(|other| match config.priority(id(*other)) {
        TenantPriority::Fixed(other) => other == class,
        TenantPriority::OfQueue => true,
    });
    let round: u64 = CLASSES[1..].iter().map(|class| u64::from(config.weight(*class))).sum();
    let before = flows.count() as u64 * u64::from(config.arbitration_burst);
    before.div_ceil(config.weight(class).into()) * round * u64::from(tenants[at].vqs)
}

/// The class that serves a tenant's VQs least.
fn least_class(config: &ArbitratedConfig, at: usize) -> QueuePriority {
    match config.priority(id(at)) {
        TenantPriority::Fixed(class) => class,
        TenantPriority::OfQueue => {
            let served = |class: &&QueuePriority| config.weight(**class);
            CLASSES[1..].iter().min_by_key(served).copied().unwrap_or(QueuePriority::Low)
        }
    }
}

fn id(at: usize) -> TenantId {
    TenantId(at as u16)
}
