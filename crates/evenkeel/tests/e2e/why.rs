//! `evenkeel why`: a staged incident, after a restart too; files that are not as they should be; a disk that is full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use jiff::Timestamp;
use serde_json::Value;

use crate::harness::{Home, errors, evenkeel, wait_for};

/// A modelled drive that takes 95 µs for a read, however slow this host is.
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
name = "steady"
size = "16MiB"

[[tenant]]
name = "batch"
size = "16MiB"
"#;

fn ask(home: &Home, arguments: &[&str]) -> Output {
    let socket = home.runtime_dir().join("api.sock");
    evenkeel().arg("why").args(arguments).env("EVENKEEL_SOCKET", socket).output().unwrap()
}

/// Of what `when` says, or of the last ten minutes. `None`: there is nothing to say yet.
fn why(home: &Home, tenant: &str, when: &[&str]) -> Option<Value> {
    let output = ask(home, &[&[tenant, "--json"], when].concat());
    assert!(matches!(output.status.code(), Some(0 | 2)), "{}", errors(&output));
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// Waits until this many summaries of that time know of a tenant, including the current one.
fn wait_summaries(home: &Home, tenant: &str, when: &[&str], count: u64) -> Value {
    wait_for("summaries", || {
        std::thread::sleep(std::time::Duration::from_millis(200));
        why(home, tenant, when).filter(|it| it["summaries_asked"].as_u64().unwrap() >= count)
    })
}

fn refused(home: &Home, arguments: &[&str], wanted: &str) {
    let output = ask(home, arguments);
    let told = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
    assert!(told.contains(wanted), "{arguments:?}: {told}");
}

fn names(why: &Value) -> Vec<&str> {
    why["neighbours"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect()
}

fn notes(why: &Value) -> String {
    why["notes"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned() + "\n").collect()
}

fn history(home: &Home) -> PathBuf {
    home.path("state/history")
}

#[test]
fn the_neighbour_that_made_a_tenant_slow_is_named_and_still_after_a_restart() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    refused(&home, &["db"], "did nothing at that time");
    refused(&home, &["nobody"], "there is no disk \"nobody\"");
    refused(&home, &["db", "--at", "noon"], "--at \"noon\": expected a time such as 03:12");
    refused(&home, &["db", "--at", "2020-01-01T03:12"], "no summaries are kept of that time");
    refused(&home, &["db", "--last", "2h"], "an hour at most");

    // One neighbour does much all the time, and is not what is different.
    let db = home.load("db", "--rw randread --bs 4k --iodepth 1 --runtime 300s");
    let steady = home.load("steady", "--rw randread --bs 64k --iodepth 4 --runtime 300s");
    wait_summaries(&home, "db", &[], 3);
    let at = Timestamp::now().to_string();
    let since = ["--at", at.as_str()];
    let batch = home.load("batch", "--rw randread --bs 128k --iodepth 256 --runtime 300s");
    // What was before it ends in the first of these.
    let told = wait_summaries(&home, "db", &since, 3);
    [batch, steady, db].into_iter().for_each(|load| drop(load.stop()));

    let check = |told: &Value| {
        assert_eq!(told["slow"], true, "{told:#}");
        let blame = &told["blame"];
        assert_eq!((&blame["culprit"], &blame["neighbour"]), (&"neighbour".into(), &"batch".into()), "{told:#}");
        assert_eq!(names(told)[0], "batch", "{told:#}");
        let [grew, steady] = ["batch", "steady"].map(|name| {
            let found = told["neighbours"].as_array().unwrap().iter().find(|it| it["name"] == name);
            found.unwrap_or_else(|| panic!("{name} is not told of: {told:#}"))["grew"] == true
        });
        assert!(grew && !steady, "{told:#}");
        let mean = |when: &str| told[when]["mean_us"].as_f64().unwrap();
        assert!(mean("then") > mean("usual"), "{told:#}");
        // Less than a minute is no baseline for a limit.
        let remedies = told["remedies"].as_array().unwrap();
        assert!(!remedies.iter().any(|it| it["what"].as_str().unwrap().contains("hold \"batch\"")), "{told:#}");
    };
    check(&told);
    daemon.stop();

    // What it says then comes from files alone. They may be in bad company.
    let written = fs::read_dir(history(&home)).unwrap().map(|entry| entry.unwrap().path());
    let newest = written.filter(|path| path.extension().is_some_and(|it| it == "summaries")).max().unwrap();
    let mut ahead = fs::read(&newest).unwrap();
    // An hour ahead, and cut off amid its first frame.
    let at = u64::from_le_bytes(ahead[16..24].try_into().unwrap());
    ahead[16..24].copy_from_slice(&(at + 3_600_000).to_le_bytes());
    fs::write(history(&home).join("00000050.summaries"), &ahead[..40]).unwrap();
    let mut other = fs::read(&newest).unwrap();
    other[8] = 99;
    fs::write(history(&home).join("00000051.summaries"), &other).unwrap();
    // Not the last: that one the daemon would go on with.
    fs::write(history(&home).join("00000052.summaries"), "not ours").unwrap();

    let daemon = home.serve();
    let told = why(&home, "db", &since).unwrap();
    check(&told);
    let notes = notes(&told);
    for part in
        ["50.summaries is cut off or damaged", "51.summaries is of version 99", "52.summaries holds no summaries"]
    {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let text = String::from_utf8(ask(&home, &["db", since[0], since[1]]).stdout).unwrap();
    for part in [
        "slow, by neighbour \"batch\": it did",
        "usually",
        "what would have helped:",
        "what happened:",
        "attached batch",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    daemon.stop();
}

#[test]
fn a_full_disk_stops_summaries_with_one_warning_and_nothing_else() {
    let home = Home::new();
    home.configure(CONFIG);
    let state = home.path("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let Some(_mount) = Mount::small(&state) else {
        eprintln!("skipped: a small tmpfs can't be mounted without root");
        return;
    };
    // The directories are there, and not a byte is left.
    fs::create_dir(history(&home)).unwrap();
    fs::write(history(&home).join("lock"), "").unwrap();
    let filler = state.join("filler");
    let mut left = 1 << 20;
    while left > 0 {
        let more = vec![1; left];
        let mut file = fs::OpenOptions::new().create(true).append(true).open(&filler).unwrap();
        left = if std::io::Write::write_all(&mut file, &more).is_ok() { left } else { left / 2 };
    }
    let daemon = home.serve();
    let db = home.load("db", "--rw randread --bs 4k --iodepth 1 --runtime 300s");
    daemon.wait_log("no summaries of the last day are kept in", 1);
    assert!(daemon.log().contains("No space left on device"), "{}", daemon.log());
    // The interval that goes on needs no room.
    let told = wait_summaries(&home, "db", &[], 1);
    assert!(notes(&told).contains("no summaries are written now: No space left on device"), "{told:#}");
    fs::remove_file(&filler).unwrap();
    daemon.wait_log("summaries are kept again in", 1);
    db.stop();
    let warnings = daemon.log().lines().filter(|line| line.contains("no summaries of the last day")).count();
    assert_eq!(warnings, 1, "{}", daemon.log());
    daemon.stop();
    assert!(history(&home).join("00000001.summaries").exists());
}

/// A file system of 64 KiB.
struct Mount(PathBuf);

impl Mount {
    fn small(at: &Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        let status = mount.args(["-t", "tmpfs", "-o", "size=64k,mode=0700", "none"]).arg(at).status().ok()?;
        status.success().then(|| Self(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
