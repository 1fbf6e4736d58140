//! `evenkeel stats`, of one daemon, of two, and of none.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStdout, Stdio};

use serde_json::Value;

use crate::harness::{Home, errors, evenkeel, run};

const TWO: &str = "[device]\nbackend = \"memory\"\nsize = \"8MiB\"\n[policy]\nname = \"lpns\"\n\
                   [[tenant]]\nname = \"db\"\nsize = \"4MiB\"\nclass = \"guaranteed\"\nlatency_target = \"1ms\"\n\
                   [[tenant]]\nname = \"batch\"\nsize = \"4MiB\"\nweight = 3\n";
const ONE: &str = "[device]\nbackend = \"null\"\nsize = \"8MiB\"\n[policy]\nname = \"passthrough\"\n\
                   [[tenant]]\nname = \"other\"\nsize = \"8MiB\"\n";

pub fn since_start(runtime_dir: &Path) -> Value {
    let output = run(&["stats", "--once", "--json", "--interval", "0", "--runtime-dir", runtime_dir.to_str().unwrap()]);
    assert!(output.status.success(), "{}", errors(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_daemon_is_found_as_other_commands_find_it() {
    let home = Home::new();
    home.configure(ONE);
    let daemon = home.serve();
    let mut command = evenkeel();
    command.args(["stats", "--once", "--json", "--interval", "0"]);
    let told = command.env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock")).output().unwrap();
    assert!(told.status.success(), "{}", errors(&told));
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(told["tenants"][0]["name"], "other");
    daemon.stop();
}

/// `evenkeel stats`, running on; killed when it is dropped.
struct Live(std::process::Child);

impl Live {
    fn start(runtime_dir: &Path, arguments: &[&str]) -> (Self, BufReader<ChildStdout>) {
        let mut command = evenkeel();
        command.args(["stats", "--runtime-dir"]).arg(runtime_dir).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        (Self(child), stdout)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn each_tenant_has_its_figures() {
    let home = Home::new();
    home.configure(TWO);
    let daemon = home.serve();
    home.load("db", "--rw write --bs 4k").expect_clean();
    let mut batch = home.attach("batch");
    assert!(batch.read(batch.ns.blocks, 1).is_err());
    let stats = since_start(&home.runtime_dir());
    assert_eq!(stats["drives"][0]["policy"], "lpns");
    assert!(stats["span_ms"].is_u64());
    let [db, batch_row] = [&stats["tenants"][0], &stats["tenants"][1]];
    assert_eq!((&db["name"], &db["class"]), (&"db".into(), &"guaranteed".into()));
    assert_eq!((&db["latency_target_us"], &db["weight"]), (&1000.0.into(), &Value::Null));
    assert_eq!((&batch_row["name"], &batch_row["class"]), (&"batch".into(), &"best-effort".into()));
    assert_eq!((&batch_row["latency_target_us"], &batch_row["weight"]), (&Value::Null, &3.into()));
    for field in ["iops", "bw_bytes", "mean_us", "p50_us", "p99_us", "p999_us", "p9999_us"] {
        assert!(db[field].as_f64().is_some_and(|figure| figure > 0.0), "{field} of {db}");
    }
    assert!(db["bound_us"].is_number(), "{db}");
    for row in [db, batch_row] {
        let [serves] = &row["pollers"].as_array().unwrap()[..] else { panic!("one poller: {row}") };
        let poller = stats["pollers"].as_array().unwrap().iter().find(|poller| poller["poller"] == *serves).unwrap();
        assert!(["busy_percent", "cpu_wait_percent"].iter().all(|field| poller[field].is_number()), "{poller}");
        assert!(row["violations"].is_u64() && row["errors"] == 0 && row["hwqs"].is_array(), "{row}");
    }
    // What never reached the drive is not counted.
    assert_eq!(batch_row["bw_bytes"], 0.0);
    drop(batch);
    daemon.stop();
}

#[test]
fn live_figures_come_until_nobody_reads_them() {
    let home = Home::new();
    home.configure(TWO);
    let daemon = home.serve();
    let (mut watcher, out) = Live::start(&home.runtime_dir(), &[]);
    let mut lines = out.lines().map(Result::unwrap);
    for _ in 0..2 {
        let block: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        assert!(block[0].starts_with("policy lpns, over ") && block[1].starts_with("tenant"), "{block:?}");
        assert!(block[2].starts_with("db ") && block[2].contains("guaranteed    -  ≤ 1.0 ms"), "{block:?}");
        assert!(block[3].starts_with("batch ") && block[3].contains("best-effort    -  weight 3"), "{block:?}");
    }
    let (mut live, mut out) = Live::start(&home.runtime_dir(), &["--json"]);
    for _ in 0..2 {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let stats: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(stats["tenants"].as_array().unwrap().len(), 2);
    }
    // As with `| head`: not an error.
    drop(out);
    assert!(live.0.wait().unwrap().success());
    daemon.stop();
    // A client that still watches is told.
    drop(lines);
    let mut told = String::new();
    watcher.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    // As it asks, or while it waits for an answer.
    let gone = format!("evenkeel: the daemon at {}: it went away\n", home.path("run/api.sock").display());
    assert!(told == gone || told == "evenkeel: the daemon is ending; try again once it runs\n", "{told}");
    assert_eq!(watcher.0.wait().unwrap().code(), Some(1));
}

#[test]
fn two_daemons_are_told_apart() {
    let home = Home::new();
    home.configure(TWO);
    let other = home.write_config("other.toml", &format!("runtime_dir = \"HOST/run2\"\n{ONE}"));
    let (first, second) = (home.serve(), home.serve_config(&other));
    let names = |dir: &str| {
        let stats = since_start(&home.path(dir));
        let names = stats["tenants"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!((names("run"), names("run2")), (vec!["db".into(), "batch".into()], vec!["other".into()]));
    first.stop();
    assert_eq!(names("run2"), ["other"]);
    second.stop();
}

#[test]
fn no_daemon_is_told_in_a_line() {
    let home = Home::new();
    let runtime_dir = home.runtime_dir();
    let stats = ["stats", "--once", "--runtime-dir", runtime_dir.to_str().unwrap()];
    let complains = || {
        let output = run(&stats);
        assert_eq!(output.status.code(), Some(2));
        let errors = errors(&output);
        assert!(errors.contains("no daemon answers at") && errors.contains("is `evenkeel serve` running"), "{errors}");
        assert_eq!(errors.lines().count(), 1);
    };
    complains();
    home.configure(TWO);
    home.serve().stop();
    complains();
}
