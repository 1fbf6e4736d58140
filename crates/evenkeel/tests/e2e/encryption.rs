//! Encryption at rest: what lies on the drive, in the state and in memory, what a lost key does, and what people see.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use keys::{HostKeys, StoredKey};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;

use crate::disks::{done, refused};
use crate::guest::pattern;
use crate::harness::{Home, evenkeel, run, wait_for};
use crate::keeper::kept_with;
use crate::metrics::{body, on_socket, scrape};
use crate::privileges::is_root;

pub(crate) fn config(keys: &str) -> String {
    format!(
        "{keys}[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
         [[tenant]]\nname = \"secret\"\nsize = \"8MiB\"\nencryption = \"host\"\n\
         [[tenant]]\nname = \"plain\"\nsize = \"8MiB\"\n"
    )
}

/// How often 64 bytes that no encryption makes by chance are in a file or below a directory.
fn count(path: &Path, pattern: &[u8]) -> usize {
    if path.is_dir() {
        return fs::read_dir(path).unwrap().map(|entry| count(&entry.unwrap().path(), pattern)).sum();
    }
    if !path.is_file() {
        return 0;
    }
    count_in(&fs::read(path).unwrap(), pattern)
}

fn count_in(bytes: &[u8], pattern: &[u8]) -> usize {
    bytes.windows(pattern.len()).filter(|at| *at == pattern).count()
}

pub(crate) fn host_key(home: &Home) {
    let key = home.path("host.key");
    fs::write(&key, "5a".repeat(32)).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o400)).unwrap();
}

/// Plain text on the drive, a key in the state, or garbage where the key is missing.
#[test]
fn a_drive_without_its_host_tells_nothing() {
    let home = Home::new();
    host_key(&home);
    home.configure(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
    let daemon = home.serve();
    let secret: Vec<u8> = (0..64).map(|at| 0xc3 ^ at).collect();
    let data = secret.repeat(1024);
    // Blocks of 4 KiB and of 512 bytes.
    for (disk, blocks) in [("secret", 16), ("plain", 128)] {
        let mut guest = home.attach(disk);
        guest.write(16, &data).unwrap();
        assert!(guest.read(16, blocks).unwrap() == data);
    }
    assert_eq!(done(&home, "show secret")["encryption"], "host");
    assert_eq!(done(&home, "create part --size 4MiB --encryption host --attach secret")["encryption"], "host");
    // Beside encrypted disks, what another one left is overwritten.
    done(&home, "create gone --size 4MiB --wait");
    done(&home, "delete gone --yes --wait");
    daemon.stop();
    let image = home.path("drive.img");
    assert_eq!(count(&image, &secret), 1024, "those of the other disk, so the search finds what there is");

    // The key is lost: its disk is locked, and the other one is served.
    fs::rename(home.path("host.key"), home.path("kept.key")).unwrap();
    let daemon = home.serve();
    daemon.wait_log("no host key: ", 1);
    let shown = done(&home, "show secret");
    let why = shown["locked_why"].as_str().unwrap();
    assert!(shown["state"] == "locked" && why.contains("and this daemon has no host key"), "{shown}");
    daemon.wait_log("secret: locked: ", 1);
    let told = refused(&home, "reencrypt secret");
    assert!(told.contains(why), "{told}");
    assert!(home.attach("plain").read(16, 128).unwrap() == data);
    let refused_there = UnixStream::connect(home.runtime_dir().join("secret/cntrl")).unwrap_err();
    assert_eq!(refused_there.kind(), ErrorKind::ConnectionRefused);
    let told = refused(&home, "create more --size 4MiB --encryption host");
    assert!(told.contains("disk \"more\" is to be encrypted, and this daemon has no host key"), "{told}");
    assert!(told.contains("host.key: No such file"), "{told}");
    assert_eq!(daemon.log().matches("secret: locked: ").count(), 1);
    daemon.stop();
    fs::rename(home.path("kept.key"), home.path("host.key")).unwrap();

    home.configure(&config("[keys]\nkey_command = [\"/bin/cat\", \"HOST/host.key\"]\n"));
    let daemon = home.serve();
    assert!(home.attach("secret").read(16, 16).unwrap() == data);
    // An encrypted disk leaves noise, which the next one has at once.
    done(&home, "create more --size 40MiB --encryption host");
    done(&home, "delete more --yes --wait");
    done(&home, "create other --size 40MiB --encryption host");
    daemon.stop();
}

/// Waits until the daemon knows that a disk's last client has left.
pub(crate) fn detached(home: &Home, name: &str) {
    wait_for("the client to leave", || (done(home, &format!("show {name}"))["attached"] == false).then_some(()));
}

/// An erased disk whose data comes back after a restart, or an erasure that leaves the former key in use.
#[test]
fn an_erased_disk_never_reads_as_before() {
    let home = Home::new();
    host_key(&home);
    home.configure(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
    let daemon = home.serve();
    let (first, second) = (pattern(1, 64 << 10), pattern(2, 64 << 10));
    let mut guest = home.attach("secret");
    guest.write(16, &first).unwrap();
    let told = refused(&home, "erase secret --yes");
    assert!(told.contains("\"secret\" is attached to a client"), "{told}");
    done(&home, "erase secret --yes --force");
    let noise = guest.read(16, 16).unwrap();
    assert!(noise != first && noise.iter().any(|byte| *byte != 0));
    guest.write(16, &second).unwrap();
    // Format with SES = 2.
    guest.format(2 << 9 | u32::from(guest.ns.block_bytes == 4096)).unwrap();
    let noise = guest.read(16, 16).unwrap();
    assert!(noise != second && noise.iter().any(|byte| *byte != 0));
    guest.write(16, &second).unwrap();
    drop(guest);
    // Killed.
    drop(daemon);
    let daemon = home.serve();
    assert!(home.attach("secret").read(16, 16).unwrap() == second);
    detached(&home, "secret");
    done(&home, "erase secret --yes");
    done(&home, "erase secret --yes");
    assert!(home.attach("secret").read(16, 16).unwrap() != second);
    let told = refused(&home, "erase plain --yes");
    assert!(told.contains("\"plain\" is not encrypted"), "{told}");
    let told = refused(&home, "reencrypt plain");
    assert!(told.contains("create another disk with encryption = \"host\""), "{told}");
    let told = home.attach("plain").format(2 << 9).unwrap_err().to_string();
    assert!(told.contains("INVALID_FIELD"), "{told}");
    daemon.stop();
}

/// A tenant's key on the drive, a disk that opens with another key, or one that is served without any.
#[test]
fn a_tenants_own_key_is_in_memory_alone() {
    let home = Home::new();
    home.configure(&config("").replace("\"host\"", "\"tenant\""));
    for (name, byte) in [("own", "3a"), ("other", "3b")] {
        fs::write(home.path(name), format!("{}{}\n", byte.repeat(32), "77".repeat(32))).unwrap();
    }
    fs::write(home.path("bytes"), [[0x3a; 32], [0x77; 32]].concat()).unwrap();
    let unlock = |name: &str| format!("unlock secret --key-file {}", home.path(name).display());
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["state"], "locked");
    assert_eq!(done(&home, &unlock("own"))["state"], "served");
    let data = pattern(1, 64 << 10);
    let mut guest = home.attach("secret");
    guest.write(16, &data).unwrap();
    let shown = done(&home, "show secret");
    let lost = "its tenant's key is in the daemon's memory alone";
    assert!(shown["survives_restart"] == false && shown["lost_on_restart"] == lost, "{shown}");
    drop(guest);
    wait_for("the disk to be locked", || (done(&home, "show secret")["state"] == "locked").then_some(()));
    let told = refused(&home, &unlock("other"));
    assert!(told.contains("the key is not that of disk \"secret\""), "{told}");
    let told = refused(&home, "erase secret --yes");
    assert!(told.contains("`evenkeel disk unlock secret --key-file FILE --erase`"), "{told}");
    assert_no_text_in_memory(daemon.id(), &["3a".repeat(32), "3b".repeat(32)]);
    done(&home, &unlock("own"));
    assert_no_text_in_memory(daemon.id(), &["3a".repeat(32)]);
    done(&home, &unlock("bytes"));
    assert!(home.attach("secret").read(16, 16).unwrap() == data);
    // Killed.
    drop(daemon);
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["state"], "locked");
    done(&home, &unlock("own"));
    assert!(home.attach("secret").read(16, 16).unwrap() == data);
    wait_for("the disk to be locked", || (done(&home, "show secret")["state"] == "locked").then_some(()));
    let told = refused(&home, &format!("{} --erase", unlock("own")));
    assert!(told.contains("and erases nothing"), "{told}");
    let erased = done(&home, &format!("{} --erase", unlock("other")));
    assert_eq!(erased["state"], "served");
    assert!(home.attach("secret").read(16, 16).unwrap() != data);
    wait_for("the disk to be locked", || (done(&home, "show secret")["state"] == "locked").then_some(()));
    let told = happened(&home, "secret");
    assert_eq!(told, ["locked", "unlocked", "locked", "erased", "unlocked", "locked"]);
    daemon.stop();
    for name in ["own", "other", "bytes"] {
        fs::remove_file(home.path(name)).unwrap();
    }
    assert_eq!(count(&home.path(""), &[0x3a; 32]) + count(&home.path(""), "3a".repeat(32).as_bytes()), 0);
}

/// A key that is lost with the former host key, or that the former one still opens.
#[test]
fn another_host_key_takes_over_while_a_client_goes_on() {
    let home = Home::new();
    let keys = |digits: &[&str]| {
        let _ = fs::remove_file(home.path("host.key"));
        let lines: Vec<String> = digits.iter().map(|digits| digits.repeat(32)).collect();
        fs::write(home.path("host.key"), lines.join("\n") + "\n").unwrap();
        fs::set_permissions(home.path("host.key"), Permissions::from_mode(0o400)).unwrap();
    };
    let rewrap = format!("rewrap --host-key {}", home.path("host.key").display());
    keys(&["5a"]);
    home.configure(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
    let daemon = home.serve();
    let data = pattern(1, 64 << 10);
    let mut guest = home.attach("secret");
    guest.write(16, &data).unwrap();
    keys(&["5b"]);
    let told = refused(&home, &rewrap);
    assert!(told.contains("the key of disk \"secret\" was wrapped by host key "), "{told}");
    keys(&["5b", "5a"]);
    assert_eq!([done(&home, &rewrap)["disks"].clone(), done(&home, &rewrap)["disks"].clone()], [1, 0]);
    assert_no_text_in_memory(daemon.id(), &["5b".repeat(32), "5a".repeat(32)]);
    assert!(guest.read(16, 16).unwrap() == data);
    drop(guest);
    // Killed.
    drop(daemon);
    let state_after = |digits: &[&str]| {
        keys(digits);
        let daemon = home.serve();
        let state = done(&home, "show secret")["state"].as_str().unwrap().to_owned();
        let is_data = state == "served" && home.attach("secret").read(16, 16).unwrap() == data;
        daemon.stop();
        (state, is_data)
    };
    assert_eq!(state_after(&["5a"]), ("locked".to_owned(), false));
    assert_eq!(state_after(&["5b"]), ("served".to_owned(), true));
    // A start wraps anew, too.
    assert_eq!(state_after(&["5c", "5b"]), ("served".to_owned(), true));
    assert_eq!(state_after(&["5c"]), ("served".to_owned(), true));

    // Handed over to a daemon that started without it, and with another key at once.
    home.configure(&config(""));
    let daemon = home.serve();
    assert_eq!(done(&home, "show secret")["state"], "locked");
    keys(&["5d"]);
    let told = refused(&home, &rewrap);
    assert!(told.contains("which is none of these"), "{told}");
    keys(&["5d", "5c"]);
    done(&home, &rewrap);
    assert!(home.attach("secret").read(16, 16).unwrap() == data);
    fs::write(home.path("bytes"), [0x5d; 32]).unwrap();
    let rewrap = format!("rewrap --host-key {}", home.path("bytes").display());
    fs::set_permissions(home.path("bytes"), Permissions::from_mode(0o644)).unwrap();
    let told = refused(&home, &rewrap);
    assert!(told.contains("other users may read it (mode 0644"), "{told}");
    fs::set_permissions(home.path("bytes"), Permissions::from_mode(0o400)).unwrap();
    done(&home, &rewrap);
    assert!(home.attach("secret").read(16, 16).unwrap() == data);
    daemon.stop();
}

/// What the present daemon's events tell of a disk's key.
fn happened(home: &Home, disk: &str) -> Vec<String> {
    let output =
        evenkeel().args(["events", "--json"]).env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock")).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_disk = events.filter(|event| event["tenant"] == disk);
    let kinds = of_disk.map(|event| event["kind"].as_str().unwrap().to_owned());
    kinds.filter(|kind| ["locked", "unlocked", "erased", "deleted"].contains(&kind.as_str())).collect()
}

/// A locked disk that looks like an idle one, or an encrypted one like any other, in one place where people look.
#[test]
fn encrypted_and_locked_disks_are_seen_wherever_disks_are() {
    let home = Home::new();
    home.configure(&config("").replace("\"host\"", "\"tenant\""));
    fs::write(home.path("own"), format!("{}{}\n", "3a".repeat(32), "77".repeat(32))).unwrap();
    let daemon = home.serve();
    done(&home, "create part --size 4MiB --encryption tenant --attach plain");
    let seen = |is_locked: bool| {
        let runtime_dir = home.runtime_dir();
        let stats = |more: &[&str]| {
            let arguments = ["stats", "--once", "--interval", "0", "--runtime-dir", runtime_dir.to_str().unwrap()];
            String::from_utf8(run(&[&arguments, more].concat()).stdout).unwrap()
        };
        let rows: Value = serde_json::from_str(&stats(&["--json"])).unwrap();
        let row = |name: &str| rows["tenants"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        assert_eq!((&row("secret")["encryption"], row("secret")["locked"] == true), (&"tenant".into(), is_locked));
        assert_eq!((&row("plain")["encryption"], &row("plain")["locked"]), (&Value::Null, &Value::Null));
        let table = stats(&[]);
        let line = table.lines().find(|line| line.starts_with("secret")).unwrap();
        assert!(line.contains(if is_locked { " locked " } else { " tenant " }), "{table}");
        // The daemon repeats these answers for a second.
        wait_for("the page's figures", || {
            let live: Value = serde_json::from_str(body(&on_socket(&home, "GET /live", ""))).unwrap();
            let disks = live["drives"][0]["disks"].as_array().unwrap();
            let disk = disks.iter().find(|disk| disk["name"] == "secret").unwrap();
            assert_eq!(disk["encryption"], "tenant");
            ((disk["locked"] == true) == is_locked).then_some(())
        });
        let locked = format!("evenkeel_disk_locked{{drive=\"device\",disk=\"secret\"}} {}.0\n", u8::from(is_locked));
        let metrics = wait_for("the metrics", || Some(scrape(&home)).filter(|metrics| metrics.contains(&locked)));
        for (disk, encrypted, locked) in [("secret", 1, Some(is_locked)), ("plain", 0, None), ("part", 1, Some(true))] {
            let labels = format!("{{drive=\"device\",disk=\"{disk}\"}}");
            assert!(metrics.contains(&format!("evenkeel_disk_encrypted{labels} {encrypted}.0\n")), "{metrics}");
            let locked = locked.map(|is_locked| format!("evenkeel_disk_locked{labels} {}.0\n", u8::from(is_locked)));
            assert!(locked.is_none_or(|line| metrics.contains(&line)), "{disk}: {metrics}");
        }
        assert!(!metrics.contains("evenkeel_disk_locked{drive=\"device\",disk=\"plain\""), "{metrics}");
    };
    seen(true);
    done(&home, &format!("unlock secret --key-file {}", home.path("own").display()));
    seen(false);
    assert_eq!(happened(&home, "part"), ["locked"], "of a namespace, too");
    done(&home, "delete part --yes --force");
    assert_eq!(happened(&home, "part"), ["locked", "deleted"]);
    daemon.stop();
}

/// A file that makes other disks out of those that are there.
#[test]
fn an_exported_file_says_how_disks_are_encrypted() {
    let home = Home::new();
    host_key(&home);
    let file = |encryption: &str, more: &str| {
        let device = format!("[device]\nencryption = \"{encryption}\"\nbackend");
        let keys = "[keys]\nhost_key = \"HOST/host.key\"\n";
        config(keys).replace("[device]\nbackend", &device).replace("encryption = \"host\"\n[[", "[[") + more
    };
    home.configure(&file("host", ""));
    let daemon = home.serve();
    done(&home, "create made --size 4MiB");
    daemon.stop();
    home.configure(&file("none", "[[tenant]]\nname = \"late\"\nsize = \"4MiB\"\n"));
    let daemon = home.serve();
    let output = evenkeel().arg("export").env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    daemon.stop();
    let written: toml::Table = toml::from_str(&text).unwrap();
    let of = |name: &str| {
        let mut tenants = written["tenant"].as_array().unwrap().iter();
        let tenant = tenants.find(|tenant| tenant["name"].as_str() == Some(name)).unwrap();
        tenant.get("encryption").and_then(toml::Value::as_str)
    };
    assert_eq!(["secret", "plain", "made", "late"].map(of), [Some("host"), Some("host"), Some("host"), None], "{text}");
}

/// Waits until no such text is in a process's memory: a connection's buffers go some time after its answer.
fn assert_no_text_in_memory(pid: u32, texts: &[String]) {
    if !is_root() {
        return;
    }
    for text in texts {
        wait_for("the key's text to go", || (count_in(&memory_of(pid), text.as_bytes()) == 0).then_some(()));
    }
}

/// Memory of a process, as root reads it.
fn memory_of(pid: u32) -> Vec<u8> {
    let mut memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut all = Vec::new();
    for map in maps.lines().filter(|map| map.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw"))) {
        let (start, end) = map.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap());
        memory.seek(SeekFrom::Start(start)).unwrap();
        // What a file no longer backs can't be read.
        let _ = memory.by_ref().take(end - start).read_to_end(&mut all);
    }
    all
}

/// Data or keys in the keeper's memory, which outlives the daemon, or a daemon that dumps its own into a file.
#[test]
fn neither_the_keeper_nor_a_core_dump_has_data_or_keys() {
    if !is_root() {
        return;
    }
    let (home, keeper) = kept_with(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
    host_key(&home);
    let daemon = home.serve();
    let secret: Vec<u8> = (0..64).map(|at| 0xc3 ^ at).collect();
    let mut guest = home.attach("secret");
    guest.write(16, &secret.repeat(1024)).unwrap();
    let layout: toml::Table = toml::from_str(&fs::read_to_string(home.path("drive.img.layout.toml")).unwrap()).unwrap();
    let tenants = layout["tenant"].as_array().unwrap();
    let record = tenants.iter().find(|tenant| tenant["name"].as_str() == Some("secret")).unwrap();
    let Ok(StoredKey::Host(wrapped)) = record["key"].clone().try_into() else { panic!("{record}") };
    let hosts = HostKeys::parse("5a".repeat(32).as_bytes()).unwrap();
    let data_key = wrapped.unwrap(&hosts, record["serial"].as_str().unwrap()).unwrap();
    let [one, other] = [&data_key.bytes()[..32], &data_key.bytes()[32..]];
    let of_keeper = memory_of(keeper.id());
    let path = home.runtime_dir().join("keeper");
    assert!(count_in(&of_keeper, path.to_str().unwrap().as_bytes()) > 0, "so the search finds what there is");
    for (what, bytes) in [("data", &secret[..]), ("host key", &[0x5a; 32]), ("data key", one), ("data key", other)] {
        assert_eq!(count_in(&of_keeper, bytes), 0, "{what}");
    }
    assert!(count_in(&memory_of(daemon.id()), &[0x5a; 32]) > 0, "where there is a key, the search finds it");
    // The kernel says of each process that it kills whether it dumped its memory.
    let mut other = Command::new("sleep").arg("1000").current_dir(home.path("")).spawn().unwrap();
    assert!(aborts_with_core(other.id(), || other.wait().unwrap()), "cores are dumped here");
    assert!(!aborts_with_core(daemon.id(), || daemon.end()));
}

/// Whether a process without a limit of its core's size dumps one when it aborts.
fn aborts_with_core(pid: u32, wait: impl FnOnce() -> ExitStatus) -> bool {
    let pid = Pid::from_raw(pid as i32).unwrap();
    prlimit(Some(pid), Resource::Core, Rlimit { current: None, maximum: None }).unwrap();
    kill_process(pid, Signal::ABORT).unwrap();
    let status = wait();
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()));
    status.core_dumped()
}
