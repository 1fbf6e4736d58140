//! What is planned with the recovered profile is what is planned with the original.

use engine::HostCosts;
use io_model::{Nanos, QueuePriority};
use planner::{Load, Site, Size, Tenant, predict};
use policy::{ArbitratedConfig, Class, Floor, Limits, PolicyConfig};
use ssd_model::Profile;

use crate::common::{WRITABLE, calibrate};

/// One forecast over the other, less 1: two plays of a drive differ by as much themselves.
const TOLERANCE: f64 = 0.08;

fn tenant(name: &str, class: Class, load: Load, read_share: f64, len_bytes: u64) -> Tenant {
    Tenant {
        name: name.to_owned(),
        class,
        floor: Floor::default(),
        limits: Limits::default(),
        priority: QueuePriority::Medium,
        load,
        read_share,
        sizes: vec![Size { len_bytes, part: 1.0 }],
        encrypted_sector_bytes: None,
        first_writes: None,
        vcpus: 8,
    }
}

/// A guaranteed tenant alone; beside greedy ones; beside one that writes at a rate.
fn mixes() -> Vec<Vec<Tenant>> {
    let guaranteed = Class::guaranteed(Some(Nanos::from_micros(500)));
    let best_effort = Class::BestEffort { weight: 1 };
    let db = || tenant("db", guaranteed, Load::Closed { depth: 1 }, 1.0, 4096);
    let greedy =
        |name, read_share, len_bytes| tenant(name, best_effort, Load::Closed { depth: 64 }, read_share, len_bytes);
    let logs = tenant("logs", best_effort, Load::Open { rate_iops: 5_000.0 }, 0.0, 16 << 10);
    vec![
        vec![db()],
        vec![db(), greedy("scan", 1.0, 64 << 10), greedy("batch", 0.5, 4096)],
        vec![greedy("a", 0.7, 16 << 10), greedy("b", 1.0, 4096), logs],
    ]
}

fn policies() -> [PolicyConfig; 2] {
    [PolicyConfig::Passthrough, PolicyConfig::Wrr(ArbitratedConfig::wrr())]
}

#[test]
fn plans_with_the_recovered_profile_agree_with_plans_with_the_original() {
    for truth in Profile::built_in() {
        let found = calibrate(truth, WRITABLE).profile;
        let [original, recovered] = [truth.clone(), found].map(|profile| Site { profile, costs: HostCosts::default() });
        for policy in policies() {
            for tenants in mixes() {
                let plans =
                    [&original, &recovered].map(|site| predict(site, &policy, &tenants).expect("a model of it"));
                let [planned, again] = plans;
                for ((tenant, planned), again) in tenants.iter().zip(&planned.tenants).zip(&again.tenants) {
                    let figures = [
                        ("iops", planned.iops, again.iops),
                        ("mean", planned.mean.0 as f64, again.mean.0 as f64),
                        ("p99", planned.p99.0 as f64, again.p99.0 as f64),
                        ("alone", planned.alone.0 as f64, again.alone.0 as f64),
                    ];
                    for (figure, planned, again) in figures {
                        let is_close = (again - planned).abs() <= TOLERANCE * planned.abs();
                        let place = format!("{} under {}, {}", truth.name, policy.name(), tenant.name);
                        assert!(is_close, "{place}: {figure} {planned} and {again}");
                    }
                }
            }
        }
    }
}
