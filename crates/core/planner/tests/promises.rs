//! Verdicts, advice and solutions on the model itself, over random tenants.

use io_model::{Nanos, QueuePriority};
use planner::{Host, Load, Planner, Site, Size, Tenant, advise, solve};
use policy::{ArbitratedConfig, Class, FairConfig, LpnsConfig, PolicyConfig, Variant};
use proptest::prelude::*;
use ssd_model::Profile;

fn site(profile: Profile) -> Site {
    Site { profile, host: Host::default() }
}

fn policies() -> [PolicyConfig; 6] {
    let lpns = LpnsConfig::p5800x();
    [
        PolicyConfig::Passthrough,
        PolicyConfig::Wrr(ArbitratedConfig::wrr()),
        PolicyConfig::Drr(ArbitratedConfig::drr()),
        PolicyConfig::Lpns(LpnsConfig { variant: Variant::Published, ..lpns.clone() }),
        PolicyConfig::Lpns(lpns),
        PolicyConfig::Fair(FairConfig::p5800x()),
    ]
}

fn tenant() -> impl Strategy<Value = Tenant> {
    let class = prop_oneof![
        (20u64..5_000).prop_map(|us| Class::Guaranteed { latency_target: Some(Nanos::from_micros(us)) }),
        (1u32..=100).prop_map(|weight| Class::BestEffort { weight }),
    ];
    let priority = prop::sample::select(vec![QueuePriority::High, QueuePriority::Medium, QueuePriority::Low]);
    let load = prop_oneof![
        (1u32..=256).prop_map(|depth| Load::Closed { depth }),
        (10f64..200_000.0).prop_map(|rate_iops| Load::Open { rate_iops }),
    ];
    let size = prop::sample::select(vec![512u64, 4096, 16 << 10, 128 << 10]);
    (class, priority, load, 0u32..=10, size).prop_map(|(class, priority, load, reads, len_bytes)| Tenant {
        name: "t".to_owned(),
        class,
        priority,
        load,
        read_share: f64::from(reads) / 10.0,
        sizes: vec![Size { len_bytes, part: 1.0 }],
        vcpus: 4,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is advised was tried: applied, it keeps every promise that the drive can keep.
    #[test]
    fn advice_holds(tenants in prop::collection::vec(tenant(), 1..8), which in 0usize..6) {
        let site = site(Profile::p5800x());
        let planner = Planner::new(&site);
        let policy = &policies()[which];
        let outcome = planner.outcome(policy, &tenants).expect("modelled");
        for advice in advise(&planner, policy, &tenants, &outcome) {
            let (policy, tenants) = advice.change.apply(policy, &tenants);
            let applied = planner.outcome(&policy, &tenants).expect("modelled");
            prop_assert!(applied.keeps_what_it_can(), "{:?}", advice.change);
            prop_assert_eq!(applied, advice.outcome);
        }
    }

    /// Whatever is found as a solution keeps every promise.
    #[test]
    fn solutions_hold(tenants in prop::collection::vec(tenant(), 1..8), first in 0usize..6) {
        let site = site(Profile::pm1735());
        let planner = Planner::new(&site);
        let mut choices = policies().to_vec();
        choices.rotate_left(first);
        if let Ok(found) = solve(&planner, &choices, &tenants) {
            let again = planner.outcome(&found.policy, &found.tenants).expect("modelled");
            prop_assert!(again.keeps_all() && again == found.outcome);
        }
    }
}

/// 256 tenants of as many kinds: a comparison of all policies, advice and a solution ask the model so seldom that all of
/// it takes less than a second.
#[test]
fn a_plan_for_256_tenants_takes_few_questions() {
    let kind = |index: u64| Tenant {
        name: format!("t{index}"),
        class: match index % 4 {
            0 => Class::Guaranteed { latency_target: Some(Nanos::from_micros(300 + index)) },
            _ => Class::BestEffort { weight: 1 },
        },
        priority: QueuePriority::Medium,
        load: Load::Closed { depth: 1 + index as u32 % 33 },
        read_share: (index % 11) as f64 / 10.0,
        sizes: vec![Size { len_bytes: 512 << (index % 9), part: 1.0 }],
        vcpus: 4,
    };
    let tenants: Vec<Tenant> = (0..256).map(kind).collect();
    let site = site(Profile::pm1735());
    let planner = Planner::new(&site);
    for policy in &policies() {
        let outcome = planner.outcome(policy, &tenants).expect("modelled");
        assert_eq!(outcome.promises.len(), 64);
    }
    let policy = &policies()[1];
    let outcome = planner.outcome(policy, &tenants).expect("modelled");
    let before = planner.questions();
    let _ = advise(&planner, policy, &tenants, &outcome);
    assert!(planner.questions() - before <= 50, "{} for advice", planner.questions() - before);
    let before = planner.questions();
    let _ = solve(&planner, &policies(), &tenants);
    assert!(planner.questions() - before <= 50, "{} for a solution", planner.questions() - before);
}
