//! What tenants will get.

use io_model::Nanos;
use policy::PolicyConfig;

use crate::bound::bounds_ns;
use crate::model::Model;
use crate::{Load, Site, Tenant};

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
pub fn predict(site: &Site, policy: &PolicyConfig, tenants: &[Tenant]) -> Result<Forecast, Unmodelled> {
    match policy {
        PolicyConfig::Passthrough
        | PolicyConfig::Wrr(_)
        | PolicyConfig::Drr(_)
        | PolicyConfig::Lpns(_)
        | PolicyConfig::Fair(_) => {}
        _ => return Err(Unmodelled::Policy { policy: policy.name() }),
    }
    tenants.iter().try_for_each(check)?;
    let mut model = Model::new(site, policy, tenants);
    model.solve();
    let bounds = bounds_ns(site, policy, tenants);
    let forecast = |(at, tenant): (usize, &Tenant)| {
        let means = model.means(at);
        let bytes: f64 = tenant.sizes.iter().map(|size| size.part * size.len_bytes as f64).sum();
        TenantForecast {
            iops: means.iops,
            bandwidth_bytes_s: means.iops * bytes,
            mean: Nanos(means.mean_ns as u64),
            p99: Nanos(model.percentile_ns(at, 0.01) as u64),
            bound: bounds[at].map(|ns| Nanos(ns.ceil() as u64)),
            alone: alone(site, tenant),
            limited_by: LimitedBy::Drive,
        }
    };
    Ok(Forecast {
        tenants: tenants.iter().enumerate().map(forecast).collect(),
        drive_utilization: model.drive_utilization(),
        poller_utilization: model.poller_utilization(),
    })
}

/// Mean latency of a tenant's commands one at a time on an idle drive.
fn alone(site: &Site, tenant: &Tenant) -> Nanos {
    let lone = Tenant { load: Load::Closed { depth: 1 }, ..tenant.clone() };
    let mut model = Model::new(site, &PolicyConfig::Passthrough, std::slice::from_ref(&lone));
    model.solve();
    Nanos(model.means(0).mean_ns as u64)
}

fn check(tenant: &Tenant) -> Result<(), Unmodelled> {
    let sizes = !tenant.sizes.is_empty()
        && tenant.sizes.iter().all(|size| size.len_bytes > 0 && size.part >= 0.0)
        && (tenant.sizes.iter().map(|size| size.part).sum::<f64>() - 1.0).abs() < 1e-6;
    let load = match tenant.load {
        Load::Closed { depth } => depth > 0,
        Load::Open { rate_iops } => rate_iops > 0.0 && rate_iops.is_finite(),
    };
    let rules = [
        (load, "load", "must be a depth of 1 or more, or a rate above 0"),
        ((0.0..=1.0).contains(&tenant.read_share), "read_share", "must be from 0 to 1"),
        (sizes, "sizes", "must be lengths above 0 whose parts sum to 1"),
        (tenant.vcpus > 0, "vcpus", "must be at least 1"),
    ];
    match rules.iter().find(|rule| !rule.0) {
        Some(&(_, field, remedy)) => Err(Unmodelled::Demand { tenant: tenant.name.clone(), field, remedy }),
        None => Ok(()),
    }
}
