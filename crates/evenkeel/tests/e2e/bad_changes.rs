//! Changes that can't be made, or come all at once: one clear answer each, nothing lost, nobody else affected.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::disks::{done, is_served};
use crate::drive_errors::SmallDisk;
use crate::guest::pattern;
use crate::harness::{Home, errors, evenkeel, run, wait_for};

const CONFIG: &str = "[[drive]]\nname = \"one\"\nbackend = \"file\"\npath = \"HOST/one.img\"\nsize = \"64MiB\"\n\
                      create = true\nlayout_file = \"HOST/mount/layout.toml\"\n\
                      [[drive]]\nname = \"two\"\nbackend = \"file\"\npath = \"HOST/two.img\"\nsize = \"64MiB\"\n\
                      create = true\n[policy]\nname = \"passthrough\"\n";

fn tried(home: &Home, arguments: &str) -> Result<Value, String> {
    let mut command = evenkeel();
    let socket = home.runtime_dir().join("api.sock");
    command.arg("disk").args(arguments.split_whitespace()).arg("--json").env("EVENKEEL_SOCKET", socket);
    let output = command.output().unwrap();
    if output.status.success() { Ok(serde_json::from_slice(&output.stdout).unwrap()) } else { Err(errors(&output)) }
}

#[test]
fn a_full_state_directory() {
    let home = Home::new();
    let Some(_mount) = SmallDisk::mount(&home.path("mount")) else { return };
    home.configure(CONFIG);
    let daemon = home.serve();
    done(&home, "create kept --size 8MiB --drive one --weight 2");
    wait_for("the disk", || is_served(&home, "kept"));
    let mut kept = home.attach("kept");
    kept.write(0, &pattern(1, 4096)).unwrap();
    let mut filler = fs::File::create(home.path("mount/filler")).unwrap();
    while filler.write(&[1; 4096]).is_ok() {}
    let before = done(&home, "list");
    let changes = ["create more --size 8MiB --drive one", "set kept --weight 9", "grow kept --size 16MiB"];
    for change in changes.into_iter().chain(["delete kept --yes --force"]) {
        let told = tried(&home, change).unwrap_err();
        assert!(told.contains("can't write the layout file") && told.contains("free space"), "{change}: {told}");
        assert_eq!(done(&home, "list"), before, "{change}");
    }
    // The other drive's layout lies elsewhere; and its guest has noticed nothing.
    done(&home, "create other --size 8MiB --drive two");
    assert_eq!(kept.read(0, 8).unwrap(), pattern(1, 4096));
    // A start has nothing to record either.
    drop((daemon, kept));
    let told = errors(&run(&["check", home.config().to_str().unwrap()]));
    assert_eq!(told, "");
    let daemon = home.serve();
    assert!(daemon.log().contains("mount is full, and the drive's layout file belongs there"), "{}", daemon.log());
    let mut kept = home.attach("kept");
    assert_eq!(kept.read(0, 8).unwrap(), pattern(1, 4096));
    drop(filler);
    fs::remove_file(home.path("mount/filler")).unwrap();
    done(&home, "set kept --weight 9");
    done(&home, "grow kept --size 16MiB");
    // SIGKILL.
    drop((daemon, kept));
    let daemon = home.serve();
    assert_eq!(done(&home, "show kept")["weight"], 9);
    assert_eq!(home.attach("kept").read(0, 8).unwrap(), pattern(1, 4096));
    daemon.stop();
}

#[test]
fn many_changes_of_one_disk_at_once() {
    let home = Home::new();
    home.configure(&CONFIG.replace("layout_file = \"HOST/mount/layout.toml\"\n", ""));
    let daemon = home.serve();
    done(&home, "create web --size 4MiB --drive one");
    std::thread::scope(|scope| {
        for weight in 1..=8_u32 {
            let home = &home;
            scope.spawn(move || {
                for size in [8 + weight, 24 + weight] {
                    // A later request with a smaller size is told that a disk can't shrink.
                    match tried(home, &format!("grow web --size {size}MiB")) {
                        Ok(disk) => assert!(disk["size_bytes"].as_u64().is_some(), "{disk}"),
                        Err(told) => assert!(told.contains("can't shrink"), "{told}"),
                    }
                    // One answer is one change, whole: both keys are this thread's.
                    let iops = weight * 1000;
                    let disk = tried(home, &format!("set web --weight {weight} --rw-iops {iops}")).unwrap();
                    assert_eq!((&disk["weight"], &disk["ceilings"]["rw_iops"]), (&json!(weight), &json!(iops)));
                }
            });
        }
    });
    let last = done(&home, "show web");
    assert_eq!(last["ceilings"]["rw_iops"], last["weight"].as_u64().unwrap() * 1000, "{last}");
    wait_for("the disk", || is_served(&home, "web"));
    wait_for("its growth", || (done(&home, "show web")["size_bytes"] == 32 << 20).then_some(()));
    let last = done(&home, "show web");
    drop(daemon);
    let daemon = home.serve();
    wait_for("the disk", || is_served(&home, "web"));
    assert_eq!(done(&home, "show web"), last, "what was answered is what is kept");
    daemon.stop();
}

/// Resident memory of the daemon.
fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_hundred_thousand_requests_leave_nothing_behind() {
    const PIPELINED: usize = 1000;
    let home = Home::new();
    home.configure(&CONFIG.replace("layout_file = \"HOST/mount/layout.toml\"\n", ""));
    let daemon = home.serve();
    done(&home, "create web --size 8MiB --drive one");
    wait_for("the disk", || is_served(&home, "web"));
    let mut web = home.attach("web");
    web.write(0, &pattern(1, 4096)).unwrap();
    let ask = |times: usize| {
        let request = "GET /v1/operations HTTP/1.1\r\nhost: x\r\n\r\n".repeat(PIPELINED - 1)
            + "GET /v1/operations HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        for _ in 0..times {
            let mut stream = UnixStream::connect(home.runtime_dir().join("api.sock")).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut answers = String::new();
            let mut asking = stream.try_clone().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| asking.write_all(request.as_bytes()).unwrap());
                stream.read_to_string(&mut answers).unwrap();
            });
            assert_eq!(answers.matches("HTTP/1.1 200").count(), PIPELINED);
        }
    };
    ask(10);
    let before = resident_kib(daemon.id());
    ask(90);
    let after = resident_kib(daemon.id());
    assert!(after < before + 8192, "{before} KiB before 90,000 requests, {after} KiB after");
    assert_eq!(web.read(0, 8).unwrap(), pattern(1, 4096));
    drop(web);
    daemon.stop();
}

#[test]
fn a_list_of_added_drives_that_was_cut_off() {
    let home = Home::new();
    home.configure(&CONFIG.replace("layout_file = \"HOST/mount/layout.toml\"\n", ""));
    let daemon = home.serve();
    let socket = home.runtime_dir().join("api.sock");
    let add = ["drive", "add", "three", "--backend", "memory", "--size", "1MiB"];
    assert!(evenkeel().args(add).env("EVENKEEL_SOCKET", socket).output().unwrap().status.success());
    daemon.stop();
    let list = home.path("state/drives.toml");
    let whole = fs::read_to_string(&list).unwrap();
    fs::write(&list, &whole[..whole.len() / 2]).unwrap();
    let output = evenkeel().arg("check").arg(home.config()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(errors(&output).contains("drives.toml: its last line is not"), "{output:?}");
    fs::write(&list, whole).unwrap();
    home.serve().stop();
}
