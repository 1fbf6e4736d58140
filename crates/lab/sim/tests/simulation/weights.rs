//! Policies that use the drive's own weighted round robin, on drives that fetch few commands at a time.

use crate::common::{BEST_EFFORT, GUARANTEED, clean, reader, scenario};
use arbitration::Arbitration;
use io_model::{QueuePriority, WrrWeights};
use policy::{ArbitratedConfig, LpnsConfig, PolicyConfig, TenantPriority};
use sim::{Report, Scenario, Tenant};
use ssd_model::Profile;

/// Alike: what a policy wants must be set.
const WEIGHTS: WrrWeights = WrrWeights { high: 1, medium: 1, low: 1 };

/// These tenants on a drive that works on six commands, whatever waits in its queues.
fn run(policy: PolicyConfig, tenants: Vec<Tenant>, arbitration: Arbitration) -> Report {
    let profile = Profile { window: 6, arbitration, ..Profile::p5800x() };
    clean(&Scenario { policy: policy.into(), profile, ..scenario(tenants) })
}

/// The mean latencies of the first tenant on a drive that takes turns, and on one with weights.
fn means(policy: &PolicyConfig, tenants: &[Tenant]) -> (f64, f64) {
    let mean = |arbitration| run(policy.clone(), tenants.to_vec(), arbitration).tenants[0].latency.mean_ns;
    (mean(Arbitration::RoundRobin { burst: 1 }), mean(Arbitration::WeightedRoundRobin { burst: 1, weights: WEIGHTS }))
}

#[test]
fn a_drive_with_weights_serves_high_tenants_of_wrr_first_among_what_it_has() {
    let with = |priority| {
        let mut tenant = reader(BEST_EFFORT, 4, 32);
        tenant.terms.priority = TenantPriority::Fixed(priority);
        tenant
    };
    let wrr = PolicyConfig::Wrr(ArbitratedConfig { max_in_flight: 128, ..ArbitratedConfig::wrr() });
    let (turns, weights) = means(&wrr, &[with(QueuePriority::High), with(QueuePriority::Low)]);
    assert!(weights < turns * 0.95, "{weights} ns with weights, {turns} ns without");
}

#[test]
fn a_drive_with_weights_serves_guaranteed_tenants_of_lpns_first() {
    let tenants = [reader(GUARANTEED, 4, 4), reader(BEST_EFFORT, 4, 32), reader(BEST_EFFORT, 4, 32)];
    let (turns, weights) = means(&PolicyConfig::Lpns(LpnsConfig::p5800x()), &tenants);
    assert!(weights < turns * 0.95, "{weights} ns with weights, {turns} ns without");
}
