//! The policies that a plan compares.

use config::{Arbitrated, Config, Fair, Lpns, Policy, Variant};
use io_model::QueuePriority;
use planner::Tenant;
use policy::{ArbitratedConfig, PolicyConfig};
use promises::policies;
use ssd_model::Profile;

/// Those that there is a model of.
pub const MODELLED: [&str; 5] = ["passthrough", "wrr", "drr", "lpns", "fair"];

/// A policy, and the tenants as they would be under it.
pub struct Choice {
    /// As it would run on the drive.
    pub policy: PolicyConfig,
    /// Whether the configuration names it.
    pub configured: bool,
    /// The tenants with the priorities that they would have.
    pub tenants: Vec<Tenant>,
    /// Priorities were chosen that the configuration does not have.
    pub priorities_assumed: bool,
}

/// The configured policy first, then the others that there is a model of, with their defaults; `only` one where it is named.
pub fn choices(config: &Config, profile: &Profile, tenants: &[Tenant], only: Option<&str>) -> Vec<Choice> {
    let configured = config.policy.name();
    let names = std::iter::once(configured).chain(MODELLED.into_iter().filter(|name| *name != configured));
    let wanted = names.filter(|name| only.is_none_or(|only| only == *name));
    wanted.map(|name| choice(config, profile, tenants, name)).collect()
}

fn choice(config: &Config, profile: &Profile, tenants: &[Tenant], name: &str) -> Choice {
    let configured = config.policy.name() == name;
    let policy = if configured { config.policy } else { with_defaults(name) };
    // A configuration without classes has no priorities to go by.
    let priorities_assumed = policy.has_priorities() && !config.policy.has_priorities();
    let promised_first = |tenant: &Tenant| {
        let priority = if tenant.target().is_some() { QueuePriority::High } else { QueuePriority::Medium };
        Tenant { priority, ..tenant.clone() }
    };
    Choice {
        policy: policies::configure(&policy, profile),
        configured,
        tenants: if priorities_assumed { tenants.iter().map(promised_first).collect() } else { tenants.to_vec() },
        priorities_assumed,
    }
}

/// One of [`MODELLED`] as it is where a configuration says no more than its name. The drive fills in what is missing.
fn with_defaults(name: &str) -> Policy {
    let arbitrated = |settings: ArbitratedConfig| Arbitrated {
        high_weight: settings.high_weight.into(),
        medium_weight: settings.medium_weight.into(),
        low_weight: settings.low_weight.into(),
        arbitration_burst: settings.arbitration_burst.into(),
        max_in_flight: None,
    };
    let variant = Variant::Corrected;
    match name {
        "wrr" => Policy::Wrr(arbitrated(ArbitratedConfig::wrr())),
        "drr" => Policy::Drr(arbitrated(ArbitratedConfig::drr())),
        "fair" => Policy::Fair(Fair { variant, min_latency: None, max_latency: None, epoch: None }),
        "lpns" => Policy::Lpns(Lpns {
            variant,
            omega: None,
            rate_iops: None,
            min_latency: None,
            exclusive_queues: None,
            shared_queues: None,
        }),
        _ => Policy::Passthrough,
    }
}
