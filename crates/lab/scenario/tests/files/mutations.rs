//! Whatever is done to a good scenario, reading it never panics, and what is accepted holds together.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use config::TENANTS_MAX;
use scenario::Scenario;
use sim::FaultKind;

use crate::mutate::{mutate, mutate_lines};
use crate::seeds::for_each_seed;

const SCENARIOS: [&str; 4] = [
    include_str!("../../../../../examples/scenarios/six-noisy-neighbours.toml"),
    include_str!("../../../../../examples/scenarios/mixed-tenants.toml"),
    include_str!("../../../../../examples/scenarios/faults.toml"),
    include_str!("../../../../../examples/scenarios/trace-beside-noise.toml"),
];

fn scenario_holds_together(scenario: &Scenario) {
    assert!((1..=TENANTS_MAX).contains(&scenario.tenants.len()));
    let names: HashSet<&str> = scenario.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names.len(), scenario.tenants.len());
    assert!(!scenario.policies.is_empty() && scenario.run.duration.0 > 0);
    let asked: u64 = scenario.tenants.iter().map(|tenant| tenant.size_bytes).sum();
    assert!(asked <= scenario.drive.size.0);
    for tenant in &scenario.tenants {
        assert!(tenant.vcpus > 0 && (1..=127).contains(&tenant.vqs));
    }
    for fault in &scenario.faults {
        if let FaultKind::Reset { tenant } | FaultKind::Leave { tenant } | FaultKind::Rogue { tenant } = fault.kind {
            assert!(tenant < scenario.tenants.len());
        }
    }
}

#[test]
fn no_mutation_of_a_scenario_panics() {
    let accepted = AtomicUsize::new(0);
    for_each_seed(6_000, |random| {
        let good = SCENARIOS[random.usize(..SCENARIOS.len())];
        let text = if random.usize(..2) == 0 { mutate(random, good) } else { mutate_lines(random, good) };
        match Scenario::parse(Path::new("mutated.toml"), &text) {
            Err(errors) => {
                assert!(!errors.problems.is_empty());
                let shown = errors.to_string();
                assert!(!shown.contains('\u{1b}') && !shown.contains("no check says why"), "{shown:?}");
            }
            Ok(scenario) => {
                scenario_holds_together(&scenario);
                accepted.fetch_add(1, Relaxed);
            }
        }
    });
    let accepted = accepted.into_inner();
    assert!(accepted > 500 || std::env::var_os("EVENKEEL_SEED").is_some(), "only {accepted} mutations were accepted");
}
