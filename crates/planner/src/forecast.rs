//! What tenants will get.

use io_model::Nanos;
use policy::PolicyConfig;

use crate::{Site, Tenant};

/// What keeps a tenant from getting more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitedBy {
    /// It asks for no more.
    Demand,
    /// Its share under the policy.
    Share,
    /// The policy's throttle, for a neighbour's promise.
    Throttle,
    /// Its own limits (`caps`).
    Limits,
    /// The poller's CPU.
    Poller,
    /// The guest's own CPUs.
    Guest,
    /// The drive.
    Drive,
}

/// What one tenant will get.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantForecast {
    /// Commands per second.
    pub iops: f64,
    /// Bytes per second.
    pub bandwidth_bytes_s: f64,
    /// Mean latency, from the command's submission to its completion, waiting included.
    pub mean: Nanos,
    /// 99th percentile of the same.
    pub p99: Nanos,
    /// No command takes longer, with what it rests on in the documentation; `None` where none can be given.
    pub bound: Option<Nanos>,
    /// Mean latency of its commands alone on the drive, one at a time: no target below it can be kept.
    pub alone: Nanos,
    /// What keeps it from getting more.
    pub limited_by: LimitedBy,
}

/// What all tenants will get under one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// In the order of the tenants.
    pub tenants: Vec<TenantForecast>,
    /// How busy the drive's busiest part is, 0 to 1.
    pub drive_utilization: f64,
    /// How busy the busiest poller is, 0 to 1.
    pub poller_utilization: f64,
}

/// Nothing can be said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unmodelled {
    /// There is no model of this policy.
    #[error("there is no model of the policy {policy:?}; there is one of passthrough, wrr, drr, lpns and fair")]
    Policy {
        /// Its name.
        policy: &'static str,
    },
    /// A tenant's demand makes no sense.
    #[error("tenant {tenant:?}: {field} {remedy}")]
    Demand {
        /// Whose.
        tenant: String,
        /// Which field.
        field: &'static str,
        /// What it must be.
        remedy: &'static str,
    },
}

/// What each tenant will get from the drive under a policy. Pure; O(tenants) with a factor for the iterations.
///
/// # Errors
/// No model, or a demand that makes no sense.
pub fn predict(_site: &Site, policy: &PolicyConfig, _tenants: &[Tenant]) -> Result<Forecast, Unmodelled> {
    Err(Unmodelled::Policy { policy: policy.name() })
}
