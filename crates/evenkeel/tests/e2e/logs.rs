//! What the daemon's log says to programs, and how much of it one tenant may cause.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use serde_json::Value;

use crate::disks::done;
use crate::harness::{Home, errors, evenkeel, run, wait_for};

const FILE: &str = "[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n\
                    [[tenant]]\nname = \"db\"\nsize = \"16MiB\"\n";

#[test]
fn as_json_each_line_is_an_object_that_names_whom_it_is_about() {
    let home = Home::new();
    let config = home.configure(FILE);
    let log = home.path("log");
    let mut daemon = evenkeel();
    daemon.arg("serve").arg(config).args(["--log-format", "json"]).stdout(Stdio::null());
    let mut daemon = daemon.stderr(File::create(&log).unwrap()).spawn().unwrap();
    wait_for("the API", || UnixStream::connect(home.runtime_dir().join("api.sock")).ok());
    done(&home, "create web --size 8MiB --wait");
    done(&home, "delete web --yes --wait");
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    };
    let wiped = wait_for("the wiped disk's line", || {
        lines().into_iter().find(|line| line["message"].as_str().unwrap().contains("are wiped and free"))
    });
    assert_eq!((&wiped["tenant"], &wiped["level"]), (&Value::from("web"), &Value::from("info")));
    assert_eq!(wiped["drive"], "device");
    let time = wiped["time"].as_str().unwrap();
    assert!(time.len() == "2026-11-24T03:12:00.000Z".len() && time.ends_with('Z'), "{time}");
    let listening = lines().into_iter().find(|line| line["message"].as_str().unwrap().starts_with("db: listening on"));
    let listening = listening.unwrap();
    assert_eq!((&listening["tenant"], &listening["drive"]), (&Value::from("db"), &Value::from("device")));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn a_tenant_that_causes_many_lines_is_cut_off_and_counted_and_others_are_not() {
    let home = Home::new();
    home.configure(&format!("{FILE}[[tenant]]\nname = \"web\"\nsize = \"16MiB\"\n"));
    let daemon = home.serve();
    // Each attaches and leaves: two lines.
    for _ in 0..100 {
        drop(UnixStream::connect(home.runtime_dir().join("db/cntrl")).unwrap());
    }
    drop(UnixStream::connect(home.runtime_dir().join("web/cntrl")).unwrap());
    daemon.wait_log("web: a client attached", 1);
    daemon.wait_log("more lines about it were left out: there are 30 in 10s at most", 1);
    let log = daemon.log();
    let of_db = log.lines().filter(|line| line.contains(" db: ")).count();
    // More than one period's only if a hundred connections take longer than that.
    assert!((30..=62).contains(&of_db), "{of_db} lines\n{log}");
    daemon.stop();
}

#[test]
fn what_keeps_it_from_starting_is_told_in_the_same_format() {
    let output = run(&["serve", "--log-format", "json", "/nowhere/ek.toml"]);
    let told: Value = serde_json::from_str(&errors(&output)).unwrap();
    assert_eq!(told["level"], "error");
    assert!(told["message"].as_str().unwrap().contains("/nowhere/ek.toml"), "{told}");
}

#[test]
fn a_format_that_there_is_not_is_refused() {
    let home = Home::new();
    let config = home.configure(FILE);
    let output = evenkeel().arg("serve").arg(config).args(["--log-format", "xml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("text, json"), "{}", errors(&output));
}
