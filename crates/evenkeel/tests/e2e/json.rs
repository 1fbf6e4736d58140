//! What `--json` prints: each command's documents have a version, lists under `items`, and units in names of numbers.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::encryption::host_key;
use crate::harness::{Home, errors, evenkeel};

const CONFIG: &str = r#"
[device]
backend = "model"
profile = "p5800x"
size = "96MiB"

[policy]
name = "evenkeel"

[[tenant]]
name = "db"
size = "16MiB"
class = "guaranteed"
latency_target = "200us"

[[tenant]]
name = "batch"
size = "16MiB"
rw_iops = 20000
"#;

const SCENARIO: &str = r#"
policies = ["passthrough"]

[drive]
profile = "p5800x"

[run]
warmup = "10ms"
duration = "50ms"

[[tenant]]
name = "db"
class = "guaranteed"
latency_target = "50us"

[tenant.workload]
kind = "fio"
rw = "randread"
"#;

/// Ends of names.
const UNITS: &[&str] = &["_ns", "_us", "_ms", "_bytes", "_bytes_s", "iops", "_percent", "_celsius"];

/// Names of the API that say their unit in another way.
const UNITS_OF_THE_API: &[&str] = &["bytes_per_second", "seconds_left"];

/// Counts, ratios and identifiers; and, of an estimated parameter, figures in the unit that the parameter's name has.
const PURE: &str = "best_effort_cap commands count cpus day_broken day_kept depth disks errors fairness_index \
                    guaranteed_in_flight held high \
                    hwqs late latency_percentile left_over loads long_iterations lost low max_slowdown more_load \
                    nsid number omega outstanding over over_bound over_target overdraft overdrawn overdue pid \
                    played_ios poller poller_utilization pollers queues schema_version seed simulated_ios slow_drive \
                    slowdown stalled status summaries summaries_asked summaries_usual value violations weight";

/// What a command prints.
#[derive(Clone, Copy, PartialEq)]
pub enum Prints {
    /// One document about one thing. Its lists have names.
    Thing,
    /// One document with `items`.
    Items,
    /// A document on each line.
    Lines,
    /// A document with fio's names.
    Foreign,
    /// An error: this host has no drive for it.
    Refusal,
}

/// Each command with `--json`, in an order in which one daemon can be asked. `HOST` stands for the host's directory.
const COMMANDS: &[(&str, &str, Prints)] = &[
    ("load", "HOST/run/db --rw randrw --bs 4k --runtime 300ms --yield always", Prints::Foreign),
    ("stats", "--once --interval 0", Prints::Thing),
    ("why", "db", Prints::Thing),
    ("trace", "batch --seconds 1 --output HOST/batch.csv", Prints::Thing),
    ("disk create", "web --size 4MiB --rw-bandwidth 8MiB/s --burst 1s --wait", Prints::Thing),
    ("disk set", "web --weight 5", Prints::Thing),
    ("disk grow", "web --size 8MiB", Prints::Thing),
    ("disk show", "web", Prints::Thing),
    ("disk create", "logs --size 4MiB --attach batch --wait", Prints::Thing),
    ("disk detach", "logs --from batch", Prints::Thing),
    ("disk attach", "logs --to batch", Prints::Thing),
    ("disk list", "", Prints::Items),
    ("disk create", "own --size 4MiB --encryption tenant", Prints::Thing),
    ("disk unlock", "own --key-file HOST/own.key", Prints::Thing),
    ("disk erase", "web --yes", Prints::Refusal),
    ("disk reencrypt", "web", Prints::Refusal),
    ("disk snapshot", "web@now", Prints::Refusal),
    ("disk clone", "web@now --to other", Prints::Refusal),
    ("disk rollback", "web@now --yes", Prints::Refusal),
    ("disk export", "web -o HOST/web.qcow2", Prints::Thing),
    ("disk rewrap", "--host-key HOST/host.key", Prints::Thing),
    ("disk delete", "web --yes", Prints::Items),
    ("operations", "", Prints::Items),
    ("drive add", "spare --backend memory --size 16MiB", Prints::Thing),
    ("drive show", "spare", Prints::Thing),
    ("drive list", "", Prints::Items),
    ("drive remove", "spare", Prints::Items),
    ("drive assign", "ffff:ff:1f.7", Prints::Refusal),
    ("events", "", Prints::Lines),
    ("export", "", Prints::Thing),
    ("apply", "HOST/../next.toml --dry-run", Prints::Thing),
    ("upgrade", "--dry-run --config HOST/../next.toml", Prints::Thing),
    ("check", "HOST/../next.toml", Prints::Items),
    ("plan", "HOST/../next.toml --policy evenkeel --add name=more", Prints::Items),
    ("sim", "HOST/../scenario.toml", Prints::Items),
];

/// Commands that other tests run anyway and check; for `reproduce`, those of its crate.
const ELSEWHERE: &[&str] = &["calibrate", "demo", "reproduce", "serve"];

/// The commands with that option, from the manual pages, which are made from the definition of the command line.
fn commands_with_json(home: &Home) -> BTreeSet<String> {
    let pages = home.path("man");
    assert!(evenkeel().arg("man").arg("--out").arg(&pages).status().unwrap().success());
    let pages = fs::read_dir(pages).unwrap().map(|page| page.unwrap().path());
    let with_json = pages.filter(|page| fs::read_to_string(page).unwrap().contains("\\fB\\-\\-json\\fR"));
    let name = |page: PathBuf| page.file_stem().unwrap().to_str().unwrap().replacen("evenkeel-", "", 1);
    with_json.map(|page| name(page).replace('-', " ")).collect()
}

/// Reads a document, and checks it with all that it contains.
pub fn read(prints: Prints, line: &str) -> Value {
    let document: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let fields = document.as_object().unwrap_or_else(|| panic!("no object: {line}"));
    assert_eq!(fields.get("schema_version"), Some(&1.into()), "{line}");
    assert_eq!(fields.get("items").is_some_and(Value::is_array), prints == Prints::Items, "{line}");
    if prints != Prints::Foreign {
        let unnamed: BTreeSet<&str> = fields.iter().flat_map(|(name, value)| without_unit(name, value)).collect();
        assert!(unnamed.is_empty(), "numbers without a unit in their names: {unnamed:?} in {line}");
    }
    document
}

/// Names of numbers within a value that say no unit.
fn without_unit<'a>(name: &'a str, value: &'a Value) -> Vec<&'a str> {
    let is_named = || {
        let ends_in = |units: &[&str]| units.iter().any(|unit| name.ends_with(unit));
        ends_in(UNITS) || ends_in(UNITS_OF_THE_API) || PURE.split(' ').any(|pure| name == pure)
    };
    match value {
        Value::Number(_) if !is_named() => vec![name],
        Value::Array(all) => all.iter().flat_map(|value| without_unit(name, value)).collect(),
        Value::Object(fields) => fields.iter().flat_map(|(name, value)| without_unit(name, value)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn each_command_prints_documents_that_scripts_can_read() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    home.write_config(
        "next.toml",
        &format!("runtime_dir = \"HOST/run\"\nstate_dir = \"HOST/state\"\n{CONFIG}weight = 3\n"),
    );
    home.write_config("scenario.toml", SCENARIO);
    host_key(&home);
    std::fs::write(home.path("own.key"), format!("{}{}", "3a".repeat(32), "77".repeat(32))).unwrap();
    read(Prints::Thing, &daemon.ready.to_string());
    for (command, arguments, prints) in COMMANDS {
        let mut asked = evenkeel();
        asked.args(command.split(' ')).arg("--json").env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock"));
        asked.args(arguments.replace("HOST/", home.path("").to_str().unwrap()).split_whitespace());
        let output = asked.output().unwrap();
        let is_refusal = *prints == Prints::Refusal;
        assert_eq!(output.status.success(), !is_refusal, "{command}: {}", errors(&output));
        let printed = String::from_utf8(if is_refusal { output.stderr } else { output.stdout }).unwrap();
        let lines: Vec<Value> = printed.lines().map(|line| read(*prints, line)).collect();
        assert!(!lines.is_empty() && (lines.len() == 1 || *prints == Prints::Lines), "{command}: {printed}");
    }
    let seen = COMMANDS.iter().map(|(command, ..)| *command).chain(ELSEWHERE.iter().copied());
    assert_eq!(commands_with_json(&home), seen.map(str::to_owned).collect(), "each command is checked");
    daemon.stop();
}

#[test]
fn a_document_that_breaks_a_rule_is_found() {
    for (prints, line) in [
        (Prints::Items, "[]"),
        (Prints::Items, "{\"items\":[]}"),
        (Prints::Items, "{\"schema_version\":1,\"disks\":[]}"),
        (Prints::Thing, "{\"schema_version\":1,\"items\":[]}"),
        (Prints::Thing, "{\"schema_version\":1,\"drive\":{\"sizes\":[4096]}}"),
    ] {
        assert!(std::panic::catch_unwind(|| read(prints, line)).is_err(), "{line}");
    }
}
