//! Whatever is done to a good file, reading it never panics, and what is accepted holds together. Nor does any
//! change take a recorded tenant's range away.

mod common;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use common::{Random, for_each_seed};
use config::scenario::FaultKind;
use config::{Config, POLLERS_MAX, RANGE_STEP_BYTES, Scenario, TENANTS_MAX};
use layout::DeviceIdentity;
use policy::Class;

const GOOD: &str = include_str!("../../../../examples/two-tenants.toml");

const GOOD_VHOST: &str = r#"
[device]
backend = "file"
path = "/srv/evenkeel/drive.img"
[policy]
name = "passthrough"
[pollers]
cpus = [0]
[[tenant]]
name = "db"
size = "16GiB"
frontend = "vhost-user-blk"
queues = 4
threads = "per-queue"
mode = "polling"
cpus = [1, 2, 3, 4]
[[tenant]]
name = "batch"
size = "16GiB"
frontend = "vhost-user-blk"
threads = "dedicated"
mode = "event"
lba_size = 4096
read_only = true
"#;

const SCENARIOS: [&str; 4] = [
    include_str!("../../../../examples/scenarios/six-noisy-neighbours.toml"),
    include_str!("../../../../examples/scenarios/mixed-tenants.toml"),
    include_str!("../../../../examples/scenarios/faults.toml"),
    include_str!("../../../../examples/scenarios/trace-beside-noise.toml"),
];

/// Pieces that mean something in a configuration, so that mutations reach beyond the TOML parser.
const PIECES: &[&str] = &[
    "\"",
    "[[tenant]]\n",
    "[device]\n",
    "=",
    "\n",
    "0",
    "-",
    "18446744073709551615",
    "\"9EiB\"",
    "16GiB",
    "4096",
    "µ",
    "name = \"db\"\n",
    "offset = \"1MiB\"\n",
    "weight = 3\n",
    "frontend = \"vhost-user-blk\"\n",
    "threads = \"per-queue\"\n",
    "mode = \"polling\"\n",
    "read_only = true\n",
    "class = \"guaranteed\"\n",
    "{",
    "[",
    ",",
    "\\u0000",
    "true",
    "1e309",
    "1979-05-27",
    "cpus = [0, 0]\n",
    "\u{1b}[0m",
    "\t",
    "'''",
    "#",
    "size = \"8GiB\"\n",
    "0x7f",
    "nan",
    "name = \"d2fq\"\n",
    "max_in_flight = 8\n",
    "rw_iops = \"1k\"\n",
    "kind = \"open\"\n",
    "count = 1024\n",
    "bssplit = \"4k/10:8k/90\"\n",
    "[[fault]]\nkind = \"reset\"\nat = \"1ms\"\ntenant = \"db\"\n",
    "[tenant.workload]\n",
    "policies = [\"k2\"]\n",
    "4k/",
];

fn mutate(random: &mut Random, text: &str) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(6) {
        let at = random.below(chars.len() + 1);
        let len = random.below(24).min(chars.len() - at);
        match random.below(4) {
            0 => drop(chars.drain(at..at + len)),
            1 => {
                let piece = PIECES[random.below(PIECES.len())];
                drop(chars.splice(at..at + len, piece.chars()));
            }
            2 => {
                let piece = PIECES[random.below(PIECES.len())];
                drop(chars.splice(at..at, piece.chars()));
            }
            _ => {
                let copy: Vec<char> = chars[at..at + len].to_vec();
                let to = random.below(chars.len() + 1);
                drop(chars.splice(to..to, copy));
            }
        }
    }
    chars.into_iter().collect()
}

fn mutate_lines(random: &mut Random, text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for _ in 0..=random.below(4) {
        let (from, to) = (random.below(lines.len()), random.below(lines.len()));
        match random.below(3) {
            0 => lines.swap(from, to),
            1 => drop(lines.remove(from)),
            _ => lines.insert(to, lines[from]),
        }
    }
    lines.join("\n")
}

fn holds_together(config: &Config) {
    assert!((1..=TENANTS_MAX).contains(&config.tenants.len()));
    let names: HashSet<&str> = config.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names.len(), config.tenants.len());
    let plan = config.poller_plan();
    assert!(plan.len() <= POLLERS_MAX && plan.iter().all(|poller| !poller.serves.is_empty()));
    let polled: Vec<(usize, u16)> = plan
        .iter()
        .flat_map(|poller| &poller.serves)
        .flat_map(|serves| serves.queues.clone().map(|queue| (serves.tenant, queue)))
        .collect();
    let queues: usize = config.tenants.iter().map(|tenant| usize::from(tenant.queues)).sum();
    assert_eq!((polled.len(), polled.iter().collect::<HashSet<_>>().len()), (queues, queues), "each queue once");
    for tenant in &config.tenants {
        assert!(tenant.size.0 > 0 && tenant.size.0.is_multiple_of(RANGE_STEP_BYTES));
        assert!((1..=64).contains(&tenant.queues));
        assert!(config.socket_path(tenant).as_os_str().len() <= config::SOCKET_PATH_MAX_BYTES);
        match tenant.terms.class {
            Class::Guaranteed { latency_target } => assert!(latency_target.is_some_and(|target| target.0 > 0)),
            Class::BestEffort { weight } => assert!((1..=10_000).contains(&weight)),
        }
    }
}

#[test]
fn no_mutation_panics_or_loses_a_range() {
    let device = DeviceIdentity { path: "/srv/evenkeel/drive.img".into(), id: None, size_bytes: 64 << 30 };
    let good = Config::parse(Path::new("good.toml"), GOOD).expect("the example is good");
    let (recorded, _) = good.plan_layout(&device, None).expect("room for both");
    let planned = AtomicUsize::new(0);
    for_each_seed(6_000, |random| {
        let good = [GOOD, GOOD_VHOST][random.below(2)];
        let text = if random.below(2) == 0 { mutate(random, good) } else { mutate_lines(random, good) };
        match Config::parse(Path::new("mutated.toml"), &text) {
            Err(errors) => {
                assert!(!errors.problems.is_empty());
                let shown = errors.to_string();
                assert!(!shown.contains('\u{1b}') && !shown.contains("no check says why"), "{shown:?}");
            }
            Ok(config) => {
                holds_together(&config);
                if let Ok((layout, _)) = config.plan_layout(&device, Some(&recorded)) {
                    planned.fetch_add(1, Relaxed);
                    for old in recorded.placements() {
                        assert_eq!(layout.find(&old.name), Some(old));
                    }
                }
            }
        }
    });
    let planned = planned.into_inner();
    assert!(planned > 500 || std::env::var_os("EVENKEEL_SEED").is_some(), "only {planned} mutations were accepted");
}

fn scenario_holds_together(scenario: &Scenario) {
    assert!((1..=TENANTS_MAX).contains(&scenario.tenants.len()));
    let names: HashSet<&str> = scenario.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    assert_eq!(names.len(), scenario.tenants.len());
    assert!(!scenario.policies.is_empty() && scenario.run.duration.0 > 0);
    let asked: u64 = scenario.tenants.iter().map(|tenant| tenant.size.0).sum();
    assert!(asked <= scenario.drive.size.0);
    for tenant in &scenario.tenants {
        assert!(tenant.vcpus > 0 && (1..=127).contains(&tenant.queues));
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
        let good = SCENARIOS[random.below(SCENARIOS.len())];
        let text = if random.below(2) == 0 { mutate(random, good) } else { mutate_lines(random, good) };
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

#[test]
fn a_hostile_file_costs_neither_time_nor_memory() {
    let many: String = (0..20_000).map(|n| format!("unknown{n} = 1\n")).collect();
    let errors = Config::parse(Path::new("many.toml"), &many).expect_err("unknown keys");
    assert!(errors.problems.len() <= 110, "{} problems told", errors.problems.len());

    let one_line: String = (0..5_000).map(|n| format!("{{u{n} = 1}}, ")).collect();
    let text = format!("tenant = [{one_line}]\n[device]\nbackend = \"memory\"\nsize = \"1GiB\"\n");
    let errors = Config::parse(Path::new("long.toml"), &text).expect_err("too many tenants");
    assert!(errors.to_string().len() < 10_000, "the long line is not shown");

    let deep = format!("x = {}1{}", "[".repeat(50_000), "]".repeat(50_000));
    Config::parse(Path::new("deep.toml"), &deep).expect_err("too deep");
}
