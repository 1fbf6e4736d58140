//! What holds for every policy of ours holds for those of others. Replay with `POLICY=<name> POLICY_SEED=<seed> cargo
//! test -p rivals --test rivals`.

#[path = "../../../../core/policy/tests/policies/calls.rs"]
mod calls;

use calls::{SEEDS, World, each};
use engine::Contestant;
use fastrand::Rng;
use io_model::{Nanos, QueuePriority};
use policy::{Cost, Policy, PollerShape, Terms};
use rivals::{D2fqConfig, GimbalConfig, IoCostConfig, K2Config, LabConfig, LabPolicy, MqfqConfig, ReflexConfig};

const NAMES: [&str; 7] = ["k2", "mqfq", "d2fq", "caps", "iocost", "gimbal", "reflex"];

/// A random configuration of the named policy.
fn config(name: &str, random: &mut Rng) -> LabConfig {
    let cost = Cost::default();
    match name {
        "k2" => LabConfig::K2(K2Config { max_in_flight: random.u32(1..=40) }),
        "mqfq" => LabConfig::Mqfq(MqfqConfig {
            gap_commands: random.u32(1..=64),
            max_in_flight: random.u32(1..=40),
            guaranteed_weight: random.u32(1..=20),
            cost,
        }),
        "d2fq" => {
            let medium_gap_commands = random.u32(0..=10);
            let low_gap_commands = medium_gap_commands + random.u32(0..=20);
            LabConfig::D2fq(D2fqConfig { medium_gap_commands, low_gap_commands, ..D2fqConfig::default() })
        }
        "caps" => LabConfig::Caps,
        "iocost" => LabConfig::IoCost(IoCostConfig { rate_iops: rate(random), cost }),
        "gimbal" => {
            let least = Nanos::from_micros(random.u32(10..=250).into());
            let (highest, dearest_write) = (Nanos(least.0 * 6), f64::from(random.u32(1..=9)));
            LabConfig::Gimbal(GimbalConfig { least, highest, dearest_write, first_rate: rate(random) * 4096.0 })
        }
        "reflex" => {
            let alone = Nanos::from_micros(random.u32(5..=100).into());
            LabConfig::Reflex(ReflexConfig { rate_iops: rate(random), alone, cost })
        }
        _ => unreachable!("no such policy: {name}"),
    }
}

fn rate(random: &mut Rng) -> f64 {
    random.u32(10_000..=2_000_000).into()
}

/// A poller under the named policy, with this number of guaranteed tenants.
fn world(name: &str, seed: u64, guaranteed: u64) -> World<LabPolicy> {
    World::new(seed, guaranteed, |random, shape| {
        let config = config(name, random);
        let most_in_flight = match &config {
            LabConfig::K2(config) => config.max_in_flight as usize,
            LabConfig::Mqfq(config) => config.max_in_flight as usize,
            _ => usize::MAX,
        };
        assert_eq!(config.name(), name);
        (config.build(shape).expect("valid settings"), most_in_flight)
    })
}

#[test]
fn invariants_hold_under_random_calls() {
    each(&NAMES, SEEDS, |name, seed| calls::random_calls(world(name, seed, 2)));
}

#[test]
fn nothing_is_lost_while_terms_change_and_tenants_come_and_go() {
    each(&NAMES, SEEDS, |name, seed| calls::changing_tenants(world(name, seed, 2)));
}

#[test]
fn nobody_starves_while_everybody_wants() {
    each(&NAMES, 6, |name, seed| calls::saturation(world(name, seed, 0)));
}

#[test]
fn weights_that_change_count_within_200_completions() {
    let config = LabConfig::Mqfq(MqfqConfig { max_in_flight: 24, ..MqfqConfig::default() });
    let build = |shape: &PollerShape| config.build(shape).expect("valid settings");
    let terms = [Terms::best_effort(1), Terms::best_effort(4)];
    let [light, heavy] = calls::served_after_change(build, terms, 200, 2_000);
    assert!((3.6..4.4).contains(&(heavy as f64 / light as f64)), "{light} and {heavy}");
}

#[test]
fn a_poller_without_queues_is_refused() {
    for name in NAMES {
        let config = config(name, &mut Rng::with_seed(1));
        for (hwqs, hwq_depth, field) in [(0, 8, "hwqs"), (8, 0, "hwq_depth")] {
            let shape = PollerShape { hwqs, hwq_depth, guaranteed_vqs: 1, weighted: false };
            assert_eq!(config.build(&shape).map(|_| ()).unwrap_err().field, field, "{name}");
        }
    }
}

#[test]
fn d2fq_says_with_classes_and_weights_that_it_uses_the_drives_weighted_round_robin() {
    use QueuePriority::{High, Low, Medium};
    for name in NAMES {
        let config = config(name, &mut Rng::with_seed(2));
        let shape = PollerShape { hwqs: 5, hwq_depth: 64, guaranteed_vqs: 2, weighted: true };
        let classes = (name == "d2fq").then(|| vec![High, Medium, Low, High, Medium]);
        assert_eq!(config.hwq_classes(&shape), classes, "{name}");
        assert_eq!(config.build(&shape).unwrap().wrr_weights().is_some(), classes.is_some(), "{name}");
    }
}
