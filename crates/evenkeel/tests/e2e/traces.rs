//! `evenkeel trace`: what it records is what was done, `evenkeel sim` replays it, and nothing it meets holds the daemon
//! up.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::harness::{Home, errors, evenkeel, run, wait_for};

const CONFIG: &str = r#"
[device]
backend = "model"
profile = "p3520"
size = "96MiB"
memory_backed = false

[policy]
name = "passthrough"

[[tenant]]
name = "db"
size = "16MiB"

[[tenant]]
name = "web"
size = "16MiB"
frontend = "vhost-user-blk"
"#;

fn trace(home: &Home, tenant: &str, output: &str, arguments: &str) -> Command {
    let mut command = evenkeel();
    command.args(["trace", tenant, "--json", "--output"]).arg(home.path(output)).args(arguments.split_whitespace());
    command.env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock"));
    command
}

fn refused(mut command: Command, code: i32, wanted: &str) {
    let output = command.output().unwrap();
    let told = errors(&output);
    assert_eq!(output.status.code(), Some(code), "{told}");
    assert!(told.contains(wanted), "{wanted}: {told}");
}

fn begin(home: &Home, output: &str, arguments: &str) -> Child {
    let mut command = trace(home, "db", output, arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for("its first lines", || fs::metadata(home.path(output)).ok().filter(|it| it.len() > 0));
    child
}

#[test]
fn what_is_recorded_is_what_was_done_and_is_replayed() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    // Exactly the commands that were sent, and each of them.
    let mut recorded = begin(&home, "db.csv", "--seconds 5");
    home.load("db", "--rw randrw --bs 8k --iodepth 4 --size 4m").expect_clean();
    let told: Value = serde_json::from_reader(recorded.stdout.take().unwrap()).unwrap();
    assert!(recorded.wait().unwrap().success());
    assert_eq!((&told["lost"], &told["reached_max_size"]), (&0.into(), &false.into()), "{told}");
    let text = fs::read_to_string(home.path("db.csv")).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some("time_ns,disk,op,lba,len_bytes,waited_ns,served_ns,status"));
    let commands: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(told["commands"], commands.len(), "{told}");
    let moved: Vec<&Vec<&str>> = commands.iter().filter(|it| matches!(it[2], "read" | "write")).collect();
    assert_eq!(moved.len(), 512, "4 MiB in pieces of 8 KiB");
    for command in moved {
        let number = |at: usize| command[at].parse::<u64>().unwrap();
        assert_eq!((command[1], number(4), command[7]), ("0", 8192, "ok"));
        assert!(number(3) % 16 == 0 && number(3) < 8192, "a block of the first 4 MiB: {command:?}");
        // The drive takes 3.6 µs for a write at least, and 95 for a read.
        assert!(number(6) >= if command[2] == "read" { 90_000 } else { 3_000 }, "{command:?}");
    }

    let scenario = home.write_config(
        "scenario.toml",
        "policies = [\"passthrough\"]\n[drive]\nprofile = \"p3520\"\n[run]\nwarmup = \"0s\"\nduration = \"6s\"\n\
         [[tenant]]\nname = \"db\"\nsize = \"16MiB\"\n\
         [tenant.workload]\nkind = \"trace\"\npath = \"HOST/db.csv\"\nformat = \"evenkeel\"\nloop = false\n",
    );
    let output = run(&["sim", "--json", scenario.to_str().unwrap()]);
    assert!(output.status.success(), "{}", errors(&output));
    let played: Value = serde_json::from_slice(&output.stdout).unwrap();
    let tenant = &played["items"][0]["tenants"][0];
    assert_eq!(tenant["latency"]["count"].as_u64().unwrap(), commands.len() as u64, "{tenant:#}");
    daemon.stop();
}

#[test]
fn a_trace_past_its_limit_ends_there_and_the_tenant_goes_on() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let db = home.load("db", "--rw randread --bs 4k --iodepth 4 --runtime 300s");
    let output = trace(&home, "db", "short.csv", "--seconds 300 --max-size 20KiB").output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["reached_max_size"], &told["commands"]), (&true.into(), &Value::Null));
    let text = fs::read_to_string(home.path("short.csv")).unwrap();
    assert!(text.len() <= 20 << 10 && text.len() > 19 << 10 && text.ends_with(",ok\n"), "{}", text.len());
    // Its place is free again, as soon as the daemon finds that nobody reads.
    let again = wait_for("a free place", || {
        let output = trace(&home, "db", "again.csv", "--seconds 1").output().unwrap();
        output.status.success().then_some(output)
    });
    assert!(serde_json::from_slice::<Value>(&again.stdout).unwrap()["commands"].as_u64().unwrap() > 0);
    db.stop();
    daemon.stop();
}

#[test]
fn who_asks_for_a_trace_and_never_reads_it_holds_nobody_up() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let mut silent = UnixStream::connect(home.runtime_dir().join("api.sock")).unwrap();
    silent.write_all(b"POST /v1/disks/db/trace?seconds=2 HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    // More than its socket and the daemon's buffers hold: what finds no room there is dropped.
    home.load("db", "--rw randread --bs 4k --iodepth 16 --runtime 4s").expect_clean();
    let again = wait_for("the end of that trace", || {
        let output = trace(&home, "db", "again.csv", "--seconds 1").output().unwrap();
        output.status.success().then_some(output)
    });
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap()["lost"], 0);
    drop(silent);
    daemon.stop();
}

#[test]
fn what_cannot_be_traced_is_told_and_leaves_no_file() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    refused(trace(&home, "nobody", "a.csv", ""), 2, "there is no disk \"nobody\"");
    refused(trace(&home, "db", "a.csv", "--seconds 0"), 2, "0 is not in 1..=86400");
    refused(trace(&home, "db", "a.csv", "--seconds 86401"), 2, "is not in 1..=86400");
    assert!(!home.path("a.csv").exists());
    fs::write(home.path("mine"), "precious").unwrap();
    refused(trace(&home, "web", "mine", "--seconds 1"), 1, "can't make");
    assert_eq!(fs::read_to_string(home.path("mine")).unwrap(), "precious");
    // One at a time of each tenant.
    let mut first = begin(&home, "first.csv", "--seconds 300");
    refused(trace(&home, "db", "b.csv", "--seconds 1"), 2, "\"db\" is being traced");
    // A killed daemon leaves the part of the trace that it had sent.
    first.try_wait().unwrap().ok_or(()).unwrap_err();
    drop(daemon);
    let output = first.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(errors(&output).contains("was cut off"), "{}", errors(&output));
    assert!(fs::read_to_string(home.path("first.csv")).unwrap().starts_with("# evenkeel trace, version 1\n"));
}
