//! What every policy must hold to, whatever it is asked: random legal calls over each variant of [`PolicyConfig`].
//! Replay one with `POLICY=<name> POLICY_SEED=<seed> cargo test -p policy every_policy`.

use crate::calls::{self, SEEDS, World, each};
use fastrand::Rng;
use io_model::QueuePriority;
use policy::{
    AnyPolicy, ArbitratedConfig, EvenkeelConfig, FairConfig, LpnsConfig, Policy, PolicyConfig, PolicyKind, PollerShape,
    TenantPriority, Terms, Variant,
};

/// A random configuration of the named policy.
fn config(name: &str, random: &mut Rng) -> PolicyConfig {
    match name {
        "passthrough" => PolicyConfig::Passthrough,
        "lpns" => {
            let variant = if random.u64(..2) == 0 { Variant::Published } else { Variant::Corrected };
            PolicyConfig::Lpns(LpnsConfig { variant, ..LpnsConfig::p5800x() })
        }
        "fair" => {
            let variant = if random.u64(..2) == 0 { Variant::Published } else { Variant::Corrected };
            PolicyConfig::Fair(FairConfig { variant, ..FairConfig::p3520() })
        }
        "evenkeel" => PolicyConfig::Evenkeel(EvenkeelConfig {
            max_in_flight: random.u32(1..=40),
            floor_in_flight: random.u32(1..=4),
            ..EvenkeelConfig::p5800x()
        }),
        "wrr" => PolicyConfig::Wrr(arbitrated(256, random)),
        "drr" => PolicyConfig::Drr(arbitrated(1_024, random)),
        _ => unreachable!("no such policy: {name}"),
    }
}

fn arbitrated(most_weight: u32, random: &mut Rng) -> ArbitratedConfig {
    let mut weight = || random.u32(1..=most_weight) as u16;
    let (high_weight, medium_weight, low_weight) = (weight(), weight(), weight());
    let (arbitration_burst, max_in_flight) = (random.u32(1..=256) as u16, random.u32(1..=40));
    ArbitratedConfig { high_weight, medium_weight, low_weight, arbitration_burst, max_in_flight }
}

/// A poller under the named policy, with this number of guaranteed tenants.
fn world(name: &str, seed: u64, guaranteed: u64) -> World<AnyPolicy> {
    World::new(seed, guaranteed, |random, shape| {
        let config = config(name, random);
        let most_in_flight = match &config {
            PolicyConfig::Wrr(config) | PolicyConfig::Drr(config) => config.max_in_flight as usize,
            _ => usize::MAX,
        };
        let policy = config.build(shape).expect("valid settings");
        let built = format!("{:?}", policy.policy()).to_lowercase();
        let is_named =
            [name, &format!("arbitrated(arbitrated {{ kind: {name}")].iter().any(|it| built.starts_with(*it));
        assert!(is_named && config.name() == name, "{name}: {built}");
        (policy, most_in_flight)
    })
}

#[test]
fn invariants_hold_under_random_calls() {
    each(&PolicyKind::NAMES, SEEDS, |name, seed| calls::random_calls(world(name, seed, 2)));
}

#[test]
fn nothing_is_lost_while_terms_change_and_tenants_come_and_go() {
    each(&PolicyKind::NAMES, SEEDS, |name, seed| calls::changing_tenants(world(name, seed, 2)));
}

#[test]
fn weights_and_priorities_that_change_count_within_200_completions() {
    let heavy = [Terms::best_effort(1), Terms::best_effort(4)];
    let fixed = |class| Terms { priority: TenantPriority::Fixed(class), ..Terms::default() };
    let high = [fixed(QueuePriority::Low), fixed(QueuePriority::High)];
    let cases = [
        (PolicyConfig::Lpns(LpnsConfig { saturation_factor: 4, ..LpnsConfig::p5800x() }), heavy),
        (PolicyConfig::Fair(FairConfig { parallel_units: 2, ..FairConfig::p5800x() }), heavy),
        (PolicyConfig::Wrr(ArbitratedConfig { max_in_flight: 24, ..ArbitratedConfig::wrr() }), high),
        (PolicyConfig::Drr(ArbitratedConfig { max_in_flight: 24, ..ArbitratedConfig::drr() }), high),
    ];
    for (config, terms) in cases {
        let build = |shape: &PollerShape| config.build(shape).expect("valid settings");
        let [light, heavy] = calls::served_after_change(build, terms, 200, 2_000);
        let ratio = heavy as f64 / light as f64;
        // `fair` moves weights itself, by what latencies show.
        let within = if config.name() == "fair" { 2.4..6.4 } else { 3.6..4.4 };
        assert!(within.contains(&ratio), "{}: {light} and {heavy}", config.name());
    }
}

#[test]
fn nobody_starves_while_everybody_wants() {
    each(&PolicyKind::NAMES, 6, |name, seed| calls::saturation(world(name, seed, 0)));
}

#[test]
fn names_are_those_of_the_configurations() {
    let names = PolicyKind::NAMES.map(|name| config(name, &mut Rng::with_seed(0)).name());
    assert_eq!(names, PolicyKind::NAMES);
}

#[test]
fn a_poller_without_queues_is_refused() {
    for name in PolicyKind::NAMES {
        let config = config(name, &mut Rng::with_seed(1));
        for (hwqs, hwq_depth, field) in [(0, 8, "hwqs"), (8, 0, "hwq_depth")] {
            let shape = PollerShape { hwqs, hwq_depth, guaranteed_vqs: 1, weighted: false };
            assert_eq!(config.build(&shape).map(|_| ()).unwrap_err().field, field, "{name}");
        }
    }
}

#[test]
fn who_uses_the_drives_weighted_round_robin_says_so_with_classes_and_weights() {
    use QueuePriority::{High, Low, Medium, Urgent};
    for (name, weighted) in PolicyKind::NAMES.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let config = config(name, &mut Rng::with_seed(2));
        let shape = PollerShape { hwqs: 5, hwq_depth: 1 << 20, guaranteed_vqs: 2, weighted };
        let classes = match (name, weighted) {
            ("lpns", true) => Some(vec![High, High, Medium, Medium, Medium]),
            ("wrr", true) => Some(vec![Urgent, High, Medium, Low, Urgent]),
            _ => None,
        };
        assert_eq!(config.hwq_classes(&shape), classes, "{name}");
        assert_eq!(config.wrr_weights(&shape).is_some(), classes.is_some(), "{name}");
        assert_eq!(config.wrr_weights(&shape), config.build(&shape).unwrap().wrr_weights(), "{name}");
    }
}
