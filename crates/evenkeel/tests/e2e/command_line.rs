//! What an operator sees of each subcommand.

use std::process::Stdio;

use serde_json::Value;

use crate::harness::{Home, errors, evenkeel, run};

const MEMORY: &str = "[device]\nbackend = \"memory\"\nsize = \"8MiB\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"4MiB\"\nclass = \"guaranteed\"\nlatency_target = \"1ms\"\n\
                      [[tenant]]\nname = \"batch\"\nsize = \"4MiB\"\n";

#[test]
fn each_subcommand_has_help() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for command in ["calibrate", "serve", "check", "demo", "load", "plan", "sim", "stats"] {
        assert!(text.contains(&format!("\n  {command} ")), "{command} in {text}");
        let output = run(&[command, "--help"]);
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(&format!("Usage: evenkeel {command}")) && text.contains("--json"), "{text}");
    }
    let output = run(&["--version"]);
    assert_eq!(output.stdout, format!("evenkeel {}\n", env!("CARGO_PKG_VERSION")).into_bytes());
    let output = run(&["serv"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("'serve'"), "{}", errors(&output));
}

#[test]
fn serve_tells_how_to_attach_each_tenant() {
    let home = Home::new();
    home.configure(MEMORY);
    let daemon = home.serve();
    assert!(daemon.ready["pid"].is_number());
    for (index, name) in ["db", "batch"].into_iter().enumerate() {
        let qemu = &daemon.ready["qemu"][index];
        let socket = home.runtime_dir().join(name).join("cntrl");
        assert_eq!((qemu["tenant"].as_str(), qemu["arguments"][0].as_str()), (Some(name), Some("-device")));
        let device: serde_json::Value = serde_json::from_str(qemu["arguments"][1].as_str().unwrap()).unwrap();
        assert_eq!(device["driver"], "vfio-user-pci");
        assert_eq!(device["socket"], serde_json::json!({ "type": "unix", "path": socket }));
        assert_eq!(daemon.ready["drives"][0]["tenants"][index]["socket"], serde_json::json!(socket));
    }
    daemon.stop();
}

#[test]
fn serve_tells_it_in_words_too() {
    let home = Home::new();
    let config = home.configure(MEMORY);
    let mut child = evenkeel().arg("serve").arg(config).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut text = String::new();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    while !text.contains("serving; stop with SIGTERM") {
        let line = lines.next().unwrap_or_else(|| panic!("it ended: {text}")).unwrap();
        text += &(line + "\n");
    }
    for name in ["db", "batch"] {
        let device = serde_json::json!({
            "driver": "vfio-user-pci",
            "socket": { "type": "unix", "path": home.runtime_dir().join(name).join("cntrl") },
        });
        assert!(text.contains(&format!("  {name}: -device '{device}'\n")), "{device} in {text}");
    }
    assert!(text.contains("share=on"), "{text}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn drives_of_the_host_are_listed_without_a_daemon_and_nothing_else_is_claimed() {
    let output = run(&["drive", "list", "--socket", "/nowhere/api.sock"]);
    assert_eq!(output.status.code(), Some(2), "a certain daemon is missed");
    assert!(errors(&output).contains("no daemon answers"), "{}", errors(&output));
    for command in [&["claim"][..], &["release"], &["vfs", "--count", "1"]] {
        let output = run(&[&["drive"], command, &["ffff:ff:1f.7"]].concat());
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(errors(&output).contains("there is no PCI device ffff:ff:1f.7"), "{}", errors(&output));
        let output = run(&[&["drive"], command, &["/dev/nvme0"]].concat());
        assert_eq!(output.status.code(), Some(2), "{command:?}");
        assert!(errors(&output).contains("written as 0000:03:00.0"), "{}", errors(&output));
    }
}

/// Only here: a load that measured nothing says 0 I/Os and ends well.
#[test]
fn a_job_that_ends_in_its_ramp_time_is_no_measurement() {
    let home = Home::new();
    home.configure(MEMORY);
    let daemon = home.serve();
    let (code, report) = home.load("batch", "--rw read --bs 4k --size 64k --rate-iops 1k --ramp-time 60s").end();
    assert_eq!(code, Some(1), "{report:#}");
    daemon.stop();
}

/// Only here: scripts that ask for JSON get an error that they can't read.
#[test]
fn errors_are_json_where_json_is_asked_for() {
    let home = Home::new();
    let problem = |arguments: &[&str], code: i32| -> Value {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{}", errors(&output));
        serde_json::from_slice(&output.stderr).expect("one object of JSON")
    };
    let none = problem(&["disk", "list", "--json", "--socket", "/nowhere/api.sock"], 2);
    assert_eq!((&none["code"], &none["status"]), (&"no-daemon".into(), &503.into()));
    let config = home.configure("[device]\nbackend = \"tape\"\n");
    let bad = problem(&["check", "--json", config.to_str().unwrap()], 2);
    assert_eq!(bad["code"], "bad-configuration");
    assert!(bad["details"][0].as_str().unwrap().contains("`backend` in [device] is \"tape\""), "{bad}");
    home.configure(MEMORY);
    let daemon = home.serve();
    let socket = home.path("run/api.sock");
    let missing = problem(&["disk", "show", "nobody", "--json", "--socket", socket.to_str().unwrap()], 2);
    assert_eq!((&missing["status"], missing["remedy"].is_string()), (&404.into(), true), "{missing}");
    daemon.stop();
}
