//! Which pollers a configuration gives, whom each serves, on which CPU and how eagerly.

use std::path::Path;

use config::{Config, ConfigErrors, Mode, Threads};

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(Path::new("ek.toml"), &format!("[device]\nbackend = \"memory\"\nsize = \"1GiB\"\n{text}"))
}

fn tenant(name: &str, keys: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\nsize = \"4MiB\"\nqueues = 2\n{}\n", keys.replace("; ", "\n"))
}

const GUARANTEED: &str = "class = \"guaranteed\"; latency_target = \"50us\"; ";
const VHOST: &str = "frontend = \"vhost-user-blk\"; ";
const PASSTHROUGH: &str = "[policy]\nname = \"passthrough\"\n";

/// A line for each poller: tenant and queues, mode, CPU.
fn plan(text: &str) -> Vec<String> {
    let config = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let serves = |serves: &config::Serves| format!("{}[{:?}]", config.tenants[serves.tenant].name, serves.queues);
    let line = |poller: &config::Poller| {
        let serves: Vec<String> = poller.serves.iter().map(serves).collect();
        let cpu = poller.cpu.map_or(String::new(), |cpu| format!(" on {cpu}"));
        format!("{} {}{cpu}", serves.join("+"), poller.mode.name())
    };
    config.poller_plan().iter().map(line).collect()
}

#[test]
fn defaults_of_a_virtio_disk() {
    let config = parse(&tenant("a", VHOST)).expect("good");
    let vhost = config.tenants[0].frontend.serving();
    assert_eq!((vhost.threads, vhost.mode), (None, Mode::Adaptive));
    assert!(vhost.cpus.is_empty() && !vhost.read_only);
    assert_eq!(config.reached_at(&config.tenants[0]), Path::new("/run/evenkeel/a/vhost.sock"));
    let config = parse("[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\nfrontend = \"vhost-user-blk\"\n").expect("good");
    assert_eq!((config.tenants[0].queues, config.tenants[0].lba_bytes), (64, 512));
}

#[test]
fn every_key_of_a_virtio_disk_is_read() {
    let keys = "lba_size = 4096; threads = \"dedicated\"; mode = \"polling\"; cpus = [3]; read_only = true";
    let config = parse(&(PASSTHROUGH.to_owned() + &tenant("a", &(VHOST.to_owned() + keys)))).expect("good");
    let vhost = config.tenants[0].frontend.serving();
    assert_eq!((vhost.threads, vhost.mode, &vhost.cpus[..]), (Some(Threads::Dedicated), Mode::Polling, &[3][..]));
    assert!(vhost.read_only && config.tenants[0].lba_bytes == 4096);
}

#[test]
fn shared_threads_serve_both_front_ends() {
    let tenants = [
        tenant("nvme", ""),
        tenant("db", &format!("{GUARANTEED}{VHOST}mode = \"event\"")),
        tenant("web", VHOST),
        tenant("old", GUARANTEED),
    ]
    .concat();
    let pollers = "[pollers]\ncpus = [5, 6]\n";
    let expected = ["db[0..2] event on 5", "old[0..2] adaptive on 6", "nvme[0..2]+web[0..2] adaptive on 5"];
    assert_eq!(plan(&format!("{pollers}{tenants}")), expected);
    let expected = ["nvme[0..2]+db[0..2]+web[0..2]+old[0..2] adaptive"];
    assert_eq!(plan(&tenants.replace("\"50us\"\n", "\"50us\"\nthreads = \"shared\"\n")), expected);
    assert_eq!(plan(&format!("[policy]\nname = \"fair\"\n{tenants}")), expected);
}

#[test]
fn own_threads_come_behind_the_shared_ones() {
    let text = [
        "[pollers]\ncpus = [7]\n".to_owned(),
        tenant("each", &format!("{GUARANTEED}{VHOST}threads = \"per-queue\"; mode = \"event\"; cpus = [2, 3]")),
        tenant("batch", ""),
        tenant("one", &format!("{GUARANTEED}{VHOST}threads = \"dedicated\"; mode = \"polling\"")),
    ]
    .concat();
    let expected = ["batch[0..2] adaptive on 7", "each[0..1] event on 2", "each[1..2] event on 3", "one[0..2] polling"];
    assert_eq!(plan(&text), expected);
    let alone = tenant("a", &format!("{VHOST}threads = \"per-queue\"; cpus = [4]; mode = \"event\""));
    assert_eq!(plan(&(PASSTHROUGH.to_owned() + &alone)), ["a[0..1] event on 4", "a[1..2] event on 4"]);
}

#[test]
fn an_nvme_tenant_has_threads_of_its_own_too() {
    let each = |policy: &str| {
        let keys = format!("{GUARANTEED}threads = \"per-queue\"; cpus = [2, 3]");
        format!("[policy]\n{policy}\n{}{}", tenant("batch", ""), tenant("each", &keys))
    };
    for policy in ["passthrough", "lpns", "evenkeel", "fair", "wrr", "drr"] {
        let expected = ["batch[0..2] adaptive", "each[0..1] adaptive on 2", "each[1..2] adaptive on 3"];
        assert_eq!(plan(&each(&format!("name = \"{policy}\""))), expected, "{policy}");
    }
    let one = tenant("one", "threads = \"dedicated\"") + &tenant("a", "threads = \"shared\"");
    assert_eq!(plan(&one), ["a[0..2] adaptive", "one[0..2] adaptive"]);
    for text in
        [format!("[pollers]\ncpus = []\n{}", tenant("a", "")), tenant("a", "threads = \"dedicated\"; cpus = []")]
    {
        let told = parse(&text).expect_err("no CPU").to_string();
        assert!(told.contains("names none; name at least one, such as [2, 3], or leave the key out"), "{told}");
    }
    let told = parse(&tenant("a", "cpus = [2]")).expect_err("no threads of its own").to_string();
    assert!(told.contains("with threads = \"shared\" the tenant has no threads of its own"), "{told}");
}

#[test]
fn the_most_eager_tenant_decides_how_a_poller_waits() {
    let disk = |name, mode| tenant(name, &format!("{VHOST}mode = \"{mode}\""));
    for (text, mode) in [
        (disk("a", "event") + &disk("b", "event"), "event"),
        (disk("a", "event") + &tenant("b", ""), "adaptive"),
        (disk("a", "event") + &disk("b", "polling"), "polling"),
        (disk("a", "polling") + &tenant("b", ""), "polling"),
    ] {
        assert_eq!(plan(&text), [format!("a[0..2]+b[0..2] {mode}")]);
    }
}

#[test]
fn threads_of_a_file_have_an_end() {
    let keys = format!("{VHOST}threads = \"per-queue\"").replace("; ", "\n");
    let many = |count: usize| {
        let tenant = |n| format!("[[tenant]]\nname = \"t{n}\"\nsize = \"4MiB\"\n{keys}\n");
        PASSTHROUGH.to_owned() + &(0..count).map(tenant).collect::<String>()
    };
    assert_eq!(plan(&many(16)).len(), 1024);
    let told = parse(&many(17)).expect_err("too many").to_string();
    assert!(told.contains("the tenants' threads add up to 1088, 1024 is the most"), "{told}");
}

#[test]
fn a_client_has_memory_for_a_virtual_machine_and_many_clients_share_what_there_is() {
    let limits = |tenants: usize| config::MemoryLimits::default_among(tenants);
    assert_eq!((limits(1).max_memory.0, limits(1).max_maps), (256 << 30, 128));
    let many = limits(config::TENANTS_MAX);
    assert!(many.max_memory.0 >= 64 << 30 && many.max_maps >= 32, "{many:?}");
    let all = many.max_memory.0 * config::TENANTS_MAX as u64;
    assert!(all <= 96 << 40, "{all} bytes of address space");
}

#[test]
fn best_effort_tenants_are_spread_over_as_many_pollers_as_are_asked_for() {
    let tenants = [
        tenant("db", GUARANTEED),
        tenant("a", ""),
        tenant("b", ""),
        tenant("c", VHOST),
        tenant("alone", "threads = \"dedicated\""),
        tenant("wide", &format!("{VHOST}threads = \"per-queue\"")),
    ]
    .concat();
    let policy = |name: &str| format!("[policy]\nname = \"{name}\"\n[pollers]\ncpus = [1, 2, 3, 4]\n");
    let spread = |policy: String| plan(&(policy + "best_effort = 2\n" + &tenants));
    let wanted = [
        "db[0..2] adaptive on 1",
        "a[0..2]+c[0..2] adaptive on 2",
        "b[0..2] adaptive on 3",
        "alone[0..2] adaptive",
        "wide[0..1] adaptive",
        "wide[1..2] adaptive",
    ];
    for name in ["evenkeel", "lpns", "passthrough"] {
        assert_eq!(spread(policy(name)), wanted, "{name}");
    }
    // Where all are in one order, a guaranteed tenant is among them.
    let together = [
        "db[0..2]+b[0..2] adaptive on 1",
        "a[0..2]+c[0..2] adaptive on 2",
        "alone[0..2] adaptive",
        "wide[0..1] adaptive",
        "wide[1..2] adaptive",
    ];
    for name in ["fair", "wrr", "drr"] {
        assert_eq!(spread(policy(name)), together, "{name}");
    }
    // Those that there are none of are not there.
    assert_eq!(plan(&(policy("evenkeel") + "best_effort = 64\n" + &tenant("a", ""))), ["a[0..2] adaptive on 1"]);
}
