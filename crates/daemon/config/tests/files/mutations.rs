//! Whatever is done to a good file, reading it never panics, and what is accepted holds together. Nor does any
//! change take a recorded tenant's range away.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use config::{Config, POLLERS_MAX, RANGE_STEP_BYTES, TENANTS_MAX};
use layout::DeviceIdentity;
use policy::Class;

use crate::mutate::{mutate, mutate_lines};
use crate::seeds::for_each_seed;

const GOOD: &str = include_str!("../../../../../examples/two-tenants.toml");

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
        let len = config.socket_path(tenant).map_or(0, |path| path.as_os_str().len());
        assert!(len <= config::SOCKET_PATH_MAX_BYTES);
        match tenant.terms.class {
            Class::Guaranteed { latency_target, .. } => assert!(latency_target.is_some_and(|target| target.0 > 0)),
            Class::BestEffort { weight } => assert!((1..=10_000).contains(&weight)),
        }
    }
}

#[test]
fn no_mutation_panics_or_loses_a_range() {
    let device = DeviceIdentity { path: "/srv/evenkeel/drive.img".into(), size_bytes: 64 << 30, ..Default::default() };
    let good = Config::parse(Path::new("good.toml"), GOOD).expect("the example is good");
    let (recorded, _) = good.plan_layout(&device, None).expect("room for both");
    let planned = AtomicUsize::new(0);
    for_each_seed(6_000, |random| {
        let good = [GOOD, GOOD_VHOST][random.usize(..2)];
        let text = if random.usize(..2) == 0 { mutate(random, good) } else { mutate_lines(random, good) };
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
