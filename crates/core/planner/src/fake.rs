//! Tenants and a model for tests: simple enough to know the answers.

use io_model::{Nanos, QueuePriority};
use policy::{Class, Floor, Limits, PolicyConfig};
use ssd_model::Profile;

use engine::HostCosts;

use crate::{Forecast, LimitedBy, Load, Planner, Site, Size, Tenant, TenantForecast};

/// A P5800X whose host costs nothing.
pub fn site() -> Site {
    Site { profile: Profile::p5800x(), costs: HostCosts::FREE }
}

/// A 4 KiB random read at a time, promised a latency.
pub fn guaranteed(name: &str, target_us: u64) -> Tenant {
    let class = Class::guaranteed(Some(Nanos::from_micros(target_us)));
    Tenant { class, ..best_effort(name, 1) }
}

/// 4 KiB random reads, `depth` at a time.
pub fn best_effort(name: &str, depth: u32) -> Tenant {
    Tenant {
        name: name.to_owned(),
        class: Class::BestEffort { weight: 1 },
        floor: Floor::default(),
        limits: Limits::default(),
        priority: QueuePriority::Medium,
        load: Load::Closed { depth },
        read_share: 1.0,
        sizes: vec![Size { len_bytes: 4096, part: 1.0 }],
        encrypted_sector_bytes: None,
        first_writes: None,
        vcpus: 1,
    }
}

/// What a tenant gets that is limited by the drive and has no bound.
pub fn forecast(iops: f64, p99_us: u64) -> TenantForecast {
    TenantForecast {
        iops,
        bandwidth_bytes_s: iops * 4096.0,
        mean: Nanos::from_micros(p99_us / 2),
        p99: Nanos::from_micros(p99_us),
        at_percentile: Nanos::from_micros(p99_us),
        bound: None,
        alone: Nanos::from_micros(10),
        alone_p99: Nanos::from_micros(10),
        lowest: Nanos::from_micros(10),
        limited_by: LimitedBy::Drive,
    }
}

/// A forecast for one tenant.
pub fn one(p99_us: u64) -> Forecast {
    Forecast {
        tenants: vec![forecast(1_000.0, p99_us)],
        drive_utilization: 0.5,
        poller_utilization: 0.1,
        played_ios: 0,
    }
}

/// A drive that serves a command in 1 µs and in the order they come. A tenant in the class high waits for those of its
/// own class alone; what the others may have with the drive is held to what R of `lpns` does in 250 µs and to the cap
/// of `wrr`, but never below 32.
pub fn planner(site: &Site) -> Planner<'_> {
    Planner::with_model(site, |policy, tenants| {
        let depth = |tenant: &Tenant| match tenant.load {
            Load::Closed { depth } => f64::from(depth),
            Load::Open { rate_iops } => rate_iops / 1e6,
        };
        let has_classes = matches!(policy, PolicyConfig::Wrr(_));
        let most = match policy {
            PolicyConfig::Lpns(lpns) => lpns.r_iops / 4_000.0,
            PolicyConfig::Wrr(config) => f64::from(config.max_in_flight.max(32)),
            _ => f64::INFINITY,
        };
        let each = |tenant: &Tenant| {
            let before = |other: &&Tenant| !has_classes || other.priority <= tenant.priority;
            let waiting: f64 = tenants.iter().filter(before).map(depth).sum();
            let wait_us = waiting.min(most).max(depth(tenant));
            // The time of its own command on top of the others'.
            forecast(1e6 * depth(tenant) / waiting.max(1.0), wait_us as u64 + 1)
        };
        let tenants = tenants.iter().map(each).collect();
        Ok(Forecast { tenants, drive_utilization: 1.0, poller_utilization: 0.1, played_ios: 0 })
    })
}
