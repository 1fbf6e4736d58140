//! The policies that a plan compares.

use config::Config;
use io_model::QueuePriority;
use planner::{Tenant, drive_figures};
use policy::{PolicyConfig, PolicyKind, Settings};
use ssd_model::Profile;

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

/// The configured policy first, then all others with their defaults; or only the policy `only`. If a tenant has a
/// floor, only policies that keep floors: the configuration is refused under others.
pub fn choices(config: &Config, profile: &Profile, tenants: &[Tenant], only: Option<&str>) -> Vec<Choice> {
    let configured = config.policy.kind();
    let kinds = std::iter::once(configured).chain(PolicyKind::ALL.into_iter().filter(|kind| *kind != configured));
    let has_floors = tenants.iter().any(|tenant| !tenant.floor.is_empty());
    let wanted = kinds.filter(|kind| match only {
        Some(only) => only == kind.name(),
        None => *kind == configured || kind.keeps_floors() || !has_floors,
    });
    wanted.map(|kind| choice(config, profile, tenants, kind)).collect()
}

fn choice(config: &Config, profile: &Profile, tenants: &[Tenant], kind: PolicyKind) -> Choice {
    let configured = config.policy.kind() == kind;
    let settings = if configured { config.policy.clone() } else { Settings::with_defaults(kind) };
    // A configuration without classes has no priorities to go by.
    let priorities_assumed = kind.has_priorities() && !config.policy.kind().has_priorities();
    let promised_first = |tenant: &Tenant| {
        let priority = if tenant.target().is_some() { QueuePriority::High } else { QueuePriority::Medium };
        Tenant { priority, ..tenant.clone() }
    };
    Choice {
        policy: settings.on(&drive_figures(profile)),
        configured,
        tenants: if priorities_assumed { tenants.iter().map(promised_first).collect() } else { tenants.to_vec() },
        priorities_assumed,
    }
}
