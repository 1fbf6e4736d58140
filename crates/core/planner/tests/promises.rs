//! Verdicts, advice and solutions on the model itself, over random tenants.

use std::cell::Cell;

use io_model::{Nanos, QueuePriority};
use planner::{Host, Load, Planner, Site, Size, Tenant, Unsolved, advise, solve};
use policy::{ArbitratedConfig, Class, EvenkeelConfig, FairConfig, Floor, Limits, LpnsConfig, PolicyConfig};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
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
        PolicyConfig::Lpns(lpns),
        PolicyConfig::Fair(FairConfig::p5800x()),
        PolicyConfig::Evenkeel(EvenkeelConfig::p5800x()),
    ]
}

fn tenant() -> impl Strategy<Value = Tenant> {
    let class = prop_oneof![
        (20u64..5_000).prop_map(|us| Class::guaranteed(Some(Nanos::from_micros(us)))),
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
        floor: Floor::default(),
        limits: Limits::default(),
        priority,
        load,
        read_share: f64::from(reads) / 10.0,
        sizes: vec![Size { len_bytes, part: 1.0 }],
        vcpus: 4,
    })
}

/// Draws equal cases each time. `PROPTEST_RNG_SEED` and `PROPTEST_CASES` draw others.
fn for_each_case<S: Strategy>(strategy: &S, body: impl Fn(S::Value)) {
    let from_environment = ProptestConfig::default();
    let rng_seed = match from_environment.rng_seed {
        RngSeed::Random => RngSeed::Fixed(0x9a7e),
        given => given,
    };
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { from_environment.cases } else { 48 };
    let config = ProptestConfig { rng_seed, cases, failure_persistence: None, ..from_environment };
    let run = |value| {
        body(value);
        Ok(())
    };
    TestRunner::new(config).run(strategy, run).unwrap_or_else(|failure| panic!("{failure}"));
}

/// Whatever is advised was tried: applied, it keeps every promise that the drive can keep. Where promises fail that the
/// drive can keep something is advised, as a rule.
#[test]
fn advice_holds() {
    let site = site(Profile::p5800x());
    let (failing, advised) = (Cell::new(0), Cell::new(0));
    for_each_case(&(vec(tenant(), 1..8), 0usize..6), |(tenants, which)| {
        let planner = Planner::new(&site);
        let policy = &policies()[which];
        let outcome = planner.outcome(policy, &tenants).expect("modelled");
        let all = advise(&planner, policy, &tenants, &outcome);
        assert!(all.is_empty() || !outcome.keeps_what_it_can(), "nothing is to be mended");
        for advice in &all {
            let (policy, tenants) = advice.change.apply(policy, &tenants);
            let applied = planner.outcome(&policy, &tenants).expect("modelled");
            assert!(applied.keeps_what_it_can(), "{:?}", advice.change);
            assert_eq!(applied, advice.outcome);
        }
        failing.set(failing.get() + u32::from(!outcome.keeps_what_it_can()));
        advised.set(advised.get() + u32::from(!all.is_empty()));
    });
    let (failing, advised) = (failing.get(), advised.get());
    assert!(failing >= 10 && advised * 2 >= failing, "advice for {advised} of {failing}");
}

/// Whatever is found as a solution keeps every promise; where none is found, promises are named that do not hold.
#[test]
fn solutions_hold() {
    let site = site(Profile::pm1735());
    let (as_it_is, changed, unsolved) = (Cell::new(0), Cell::new(0), Cell::new(0));
    for_each_case(&(vec(tenant(), 1..8), 0usize..6), |(tenants, first)| {
        let planner = Planner::new(&site);
        let mut choices = policies().to_vec();
        choices.rotate_left(first);
        let holds = planner.outcome(&choices[0], &tenants).expect("modelled").keeps_all();
        let kind = match solve(&planner, &choices, &tenants) {
            Ok(found) => {
                let again = planner.outcome(&found.policy, &found.tenants).expect("modelled");
                assert!(again.keeps_all() && again == found.outcome);
                let unchanged = found.policy == choices[0] && found.tenants == tenants;
                assert_eq!(unchanged, holds, "what holds is left as it is, and only that");
                if unchanged { &as_it_is } else { &changed }
            }
            Err(Unsolved::Impossible(broken) | Unsolved::Closest { broken, .. }) => {
                assert!(!holds && !broken.is_empty() && broken.iter().all(|promise| !promise.verdict.is_kept()));
                &unsolved
            }
            Err(Unsolved::Unmodelled) => panic!("every demand makes sense"),
        };
        kind.set(kind.get() + 1);
    });
    let kinds = [as_it_is, changed, unsolved].map(|kind| kind.get());
    assert!(kinds.iter().all(|count| *count >= 3), "unchanged, changed, unsolved: {kinds:?}");
}

/// 256 tenants of as many kinds: a comparison of all policies, advice and a solution ask the model so seldom that all
/// of it takes less than a second.
#[test]
fn a_plan_for_256_tenants_takes_few_questions() {
    let kind = |index: u64| Tenant {
        name: format!("t{index}"),
        class: match index % 4 {
            0 => Class::guaranteed(Some(Nanos::from_micros(300 + index))),
            _ => Class::BestEffort { weight: 1 },
        },
        floor: Floor::default(),
        limits: Limits::default(),
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
    let advised = advise(&planner, policy, &tenants, &outcome);
    let asked = planner.questions() - before;
    assert!((1..=50).contains(&asked), "{asked} for advice: {advised:?}");
    let before = planner.questions();
    let found = solve(&planner, &policies(), &tenants);
    let asked = planner.questions() - before;
    assert!((1..=50).contains(&asked), "{asked} for a solution");
    assert!(!matches!(found, Err(Unsolved::Unmodelled)));
}
