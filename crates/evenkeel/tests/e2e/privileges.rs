//! A daemon that is started as root and does not stay it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::harness::{Daemon, Home, errors, evenkeel, run};

const USER: u32 = 4001;
const CONFIG: &str = "[daemon]\nuser = \"4001\"\n\
                      [device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"16MiB\"\ncreate = true\n\
                      [policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"4MiB\"\nsocket_user = \"4002\"\n\
                      [[tenant]]\nname = \"web\"\nsize = \"4MiB\"\nfrontend = \"vhost-user-blk\"\n";

pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can become somebody else");
    }
    is_root
}

/// Directories that the user may use.
fn home_of_user() -> Home {
    let home = Home::new();
    fs::set_permissions(home.config().parent().unwrap(), Permissions::from_mode(0o711)).unwrap();
    chown(home.path(""), Some(USER), None).unwrap();
    home
}

/// What `/proc` says of every thread of the daemon, by the field's name.
fn of_all_threads(daemon: &Daemon, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.ready["pid"])).unwrap();
    let mut found: Vec<String> = tasks
        .filter_map(|task| {
            // A thread may end meanwhile.
            let status = fs::read_to_string(task.unwrap().path().join("status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            Some(line.unwrap().split_whitespace().collect::<Vec<_>>().join(" "))
        })
        .collect();
    assert!(!found.is_empty(), "threads");
    found.dedup();
    found
}

fn owner(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid())
}

#[test]
fn every_thread_of_a_daemon_that_dropped_root_has_nothing_left_of_it() {
    if !is_root() {
        return;
    }
    let home = home_of_user();
    home.configure(CONFIG);
    // Killed in between: the next one has the rights to what this one left.
    for _ in 0..2 {
        let daemon = home.serve();
        home.load("db", "--rw randrw --bs 4k --iodepth 8 --runtime 1s").expect_clean();
        home.load("web", "--rw randread --bs 4k --iodepth 8 --runtime 1s").expect_clean();
        assert_eq!(of_all_threads(&daemon, "Uid"), ["4001 4001 4001 4001"]);
        assert_eq!(of_all_threads(&daemon, "Gid"), ["4001 4001 4001 4001"]);
        assert_eq!(of_all_threads(&daemon, "Groups"), ["4001"]);
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(of_all_threads(&daemon, set), ["0000000000000000"], "{set}");
        }
        assert_eq!(of_all_threads(&daemon, "NoNewPrivs"), ["1"]);
        // A process that is not dumpable has its files in /proc owned by root (proc(5)).
        assert_eq!(owner(Path::new(&format!("/proc/{}/mem", daemon.ready["pid"]))), (0, 0));
        let stats = run(&["stats", "--once", "--runtime-dir", home.runtime_dir().to_str().unwrap()]);
        assert!(stats.status.success(), "{}", errors(&stats));

        for (path, wanted) in [
            ("run", (USER, USER)),
            ("run/db", (USER, USER)),
            ("run/api.sock", (USER, USER)),
            ("run/db/cntrl", (4002, USER)),
            ("run/web/vhost.sock", (USER, USER)),
            ("drive.img", (USER, USER)),
            ("drive.img.layout.toml", (USER, USER)),
        ] {
            assert_eq!(owner(&home.path(path)), wanted, "{path}");
        }
        drop(daemon);
    }
    // A Format is recorded as who the daemon is then.
    let daemon = home.serve();
    let mut guest = home.attach("db");
    guest.format(1).unwrap();
    daemon.wait_log("formatted with LBAs of 4096 bytes", 1);
    assert_eq!(owner(&home.path("drive.img.layout.toml")), (USER, USER));
    drop(guest);
    daemon.stop();
    assert!(!home.path("run/db/cntrl").exists() && !home.path("run/api.sock").exists(), "it leaves no sockets");
}

/// Only here: root opens what the account's link leads to, and tenants have a file of root's for a disk.
#[test]
fn a_link_of_the_accounts_in_place_of_an_image_leads_root_nowhere() {
    if !is_root() {
        return;
    }
    let home = home_of_user();
    let config = home.configure(CONFIG);
    home.serve().stop();
    let (secret, image) = (home.path("of-root/secret"), home.path("drive.img"));
    fs::create_dir(home.path("of-root")).unwrap();
    fs::set_permissions(home.path("of-root"), Permissions::from_mode(0o700)).unwrap();
    fs::write(&secret, vec![7; 16 << 20]).unwrap();
    fs::remove_file(&image).unwrap();
    std::os::unix::fs::symlink(&secret, &image).unwrap();
    // The account may write what it likes there.
    let layout = home.path("drive.img.layout.toml");
    let text = fs::read_to_string(&layout).unwrap();
    let forged = text.lines().filter(|line| !line.starts_with("id =") && !line.starts_with("start ="));
    let forged = forged.map(|line| format!("{line}\n")).collect::<String>();
    for left in [Some(forged.replace(image.to_str().unwrap(), secret.to_str().unwrap())), Some(forged), None] {
        left.map_or_else(|| fs::remove_file(&layout).unwrap(), |text| fs::write(&layout, text).unwrap());
        for command in ["check", "serve"] {
            let output = run(&[command, config.to_str().unwrap()]);
            let told = errors(&output);
            assert!(
                !output.status.success() && told.contains("root does not follow other users' links"),
                "{command}: {told}"
            );
        }
        assert_eq!(fs::read_dir(home.path("of-root")).unwrap().count(), 1, "nothing is made there");
    }
    assert!(fs::read(&secret).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn a_user_who_could_not_write_the_layout_is_told_before_anybody_is_served() {
    if !is_root() {
        return;
    }
    let home = Home::new();
    fs::set_permissions(home.config().parent().unwrap(), Permissions::from_mode(0o711)).unwrap();
    let config = home.configure(CONFIG);
    let output = run(&["serve", config.to_str().unwrap()]);
    assert!(!output.status.success());
    let told = errors(&output);
    assert!(told.contains("can't write to") && told.contains(": chown 4001 "), "{told}");
    assert!(!home.path("run/api.sock").exists());
}

#[test]
fn a_daemon_that_stays_root_says_so() {
    let home = Home::new();
    home.configure(&CONFIG[CONFIG.find("[device]").unwrap()..].replace("socket_user = \"4002\"\n", ""));
    let daemon = home.serve();
    assert_eq!(daemon.log().contains("the daemon runs as root: write user"), rustix::process::geteuid().is_root());
    assert_eq!(of_all_threads(&daemon, "NoNewPrivs"), ["1"]);
    daemon.stop();
}

/// Only here: `check` promises what `serve` can't have, and what `serve` made stays behind.
#[test]
fn a_user_who_may_lock_too_little_memory_for_rings_is_told_before_anything_is_made() {
    if !is_root() {
        return;
    }
    let home = home_of_user();
    home.configure(&CONFIG.replace("[daemon]\nuser = \"4001\"\n", "").replace("socket_user = \"4002\"\n", ""));
    let program = evenkeel();
    let as_user = |command: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -l 64 && exec \"$0\" {command} \"$1\"")]);
        let output = shell.arg(program.get_program()).arg(home.config()).uid(USER).gid(USER).output().unwrap();
        (output.status.success(), errors(&output))
    };
    for command in ["check", "serve"] {
        let (is_ready, told) = as_user(command);
        assert!(
            !is_ready && told.contains("this user may have 64 KiB of locked memory: raise that"),
            "{command}: {told}"
        );
        let left: Vec<_> =
            ["drive.img", "drive.img.layout.toml", "run/db", "run/totals.json"].map(|name| home.path(name)).into();
        assert!(!left.iter().any(|path| path.exists()), "{command}: {left:?}");
    }
}
