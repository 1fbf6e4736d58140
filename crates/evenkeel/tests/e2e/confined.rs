//! The walls around the daemon's threads: a call that a filter forbids ends the process, and says which. Debug builds
//! of the daemon make one where EVENKEELD_FORBIDDEN_IN says.

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use nvme_driver::VfioUserDevice;

use hostile::fuse::Stuck;
use test_clients::nvme::Nvme;

use crate::harness::{Home, evenkeel, wait_for};

const FILE: &str = "[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n\
                    [[tenant]]\nname = \"db\"\nsize = \"16MiB\"\n\
                    [[tenant]]\nname = \"web\"\nsize = \"16MiB\"\nfrontend = \"vhost-user-blk\"\n";

/// Starts a daemon in which `thread` does what `variable` stands for, has every thread work, and gives its last words.
fn last_words(variable: &str, thread: &str) -> String {
    let home = Home::new();
    let config = home.configure(FILE);
    let mut daemon = evenkeel();
    daemon.arg("serve").arg(config).env(variable, thread).env("RUST_BACKTRACE", "1");
    let mut daemon = daemon.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let status = wait_for("the daemon's end", || {
        drop(VfioUserDevice::connect(&home.runtime_dir().join("db")));
        drop(UnixStream::connect(home.runtime_dir().join("api.sock")));
        daemon.try_wait().unwrap()
    });
    assert_eq!(status.signal(), Some(6), "{thread}: {status}");
    std::io::read_to_string(daemon.stderr.take().unwrap()).unwrap()
}

#[test]
fn a_forbidden_call_in_any_thread_ends_the_daemon() {
    for (thread, kind) in [
        ("main", "main"),
        ("owner", "owner"),
        ("poller-", "poller"),
        ("vfio-db", "client"),
        ("vhost-web", "client"),
        ("api", "api"),
        ("observer", "metrics"),
        ("forecasts", "forecasts"),
        ("doorbells", "doorbells"),
        ("log", "log"),
        ("announce", "announce"),
        ("history", "history"),
        ("why", "why"),
        ("trace", "trace"),
    ] {
        let words = last_words("EVENKEELD_FORBIDDEN_IN", thread);
        let told = words.lines().find(|line| line.contains("forbids")).unwrap_or_else(|| panic!("{thread}: {words}"));
        assert!(told.contains(&format!("evenkeeld: the thread {kind} made the system call ")), "{told}");
    }
}

#[test]
fn a_confined_thread_that_panics_says_so() {
    for thread in ["poller-", "vfio-db", "log"] {
        let words = last_words("EVENKEELD_PANIC_IN", thread);
        assert!(words.contains("as EVENKEELD_PANIC_IN asked") && !words.contains("forbids"), "{words}");
    }
}

/// Which filters each thread of a daemon has (Seccomp of proc_pid_status(5)), by the thread's name.
fn filtered(home: &Home, arguments: &[&str]) -> Vec<(String, bool)> {
    let config = home.configure(FILE);
    let log = home.path("log");
    let mut daemon = evenkeel();
    daemon.arg("serve").args(arguments).arg(config);
    let mut daemon = daemon.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    let threads = wait_for("all threads", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", daemon.id())).ok()?;
        let threads = tasks.map(|task| {
            let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            Some((field("Name:")?.to_owned(), field("Seccomp:")? == "2"))
        });
        let threads: Vec<(String, bool)> = threads.collect::<Option<_>>()?;
        let is_announced = !threads.iter().any(|(name, _)| name == "announce");
        let told = fs::read_to_string(&log).unwrap();
        (is_announced && threads.len() > 6 && told.contains("listening on") && is_settled(&threads)).then_some(threads)
    });
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    threads
}

/// Each thread filters itself, a moment after it began.
fn is_settled(threads: &[(String, bool)]) -> bool {
    threads.iter().all(|(_, is_filtered)| *is_filtered == threads[0].1)
}

#[test]
fn every_thread_is_filtered_unless_asked_not_to() {
    let home = Home::new();
    let threads = filtered(&home, &[]);
    assert!(threads.iter().all(|(_, is_filtered)| *is_filtered), "{threads:?}");
    for begins in [
        "evenkeeld",
        "owner",
        "poller-0",
        "vfio-db",
        "vhost-web",
        "api",
        "observer",
        "forecasts",
        "doorbells",
        "log",
        "history",
        "why",
        "trace",
    ] {
        assert!(threads.iter().any(|(name, _)| name.starts_with(begins)), "{begins}: {threads:?}");
    }
    assert!(!fs::read_to_string(home.path("log")).unwrap().contains("--unconfined"));

    let home = Home::new();
    let threads = filtered(&home, &["--unconfined"]);
    assert!(threads.iter().all(|(_, is_filtered)| !is_filtered), "{threads:?}");
    let log = fs::read_to_string(home.path("log")).unwrap();
    assert!(log.contains("--unconfined: no system call filters, no Landlock"), "{log}");
}

/// The processes that another one started, by their parents' numbers (proc_pid_stat(5)).
fn children(of: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parent = |process: u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    processes.filter(|process| parent(*process) == Some(of)).collect()
}

fn only_child(of: u32) -> u32 {
    wait_for("a child", || <[u32; 1]>::try_from(children(of)).ok())[0]
}

/// The daemon's child that is its gate, of all that it has.
fn gate_of(daemon: u32) -> u32 {
    let is_gate = |child: &u32| {
        fs::read(format!("/proc/{child}/cmdline")).is_ok_and(|words| words.starts_with(b"evenkeeld-gate\0"))
    };
    wait_for("the gate", || children(daemon).into_iter().find(is_gate))
}

#[test]
fn a_gate_that_is_killed_is_there_again() {
    let home = Home::new();
    home.configure(FILE);
    let daemon = home.serve();
    let keeper = gate_of(daemon.id());
    let mut attached = home.attach("db");
    for _ in 0..5 {
        let gate = only_child(keeper);
        let killed = std::process::Command::new("kill").args(["-9", &gate.to_string()]).status().unwrap();
        assert!(killed.success());
        wait_for("its end", || (only_child(keeper) != gate).then_some(()));
        // Attached clients stay, and new ones are served.
        attached.write(0, &[7; 512]).unwrap();
        drop(attached);
        attached = home.attach("db");
        assert_eq!(attached.read(0, 1).unwrap(), [7; 512]);
    }
    drop(attached);
    daemon.stop();
    wait_for("the keeper's end", || children(keeper).is_empty().then_some(()));
}

/// A thread that hangs in a client's file keeps the killed process from ending; nobody could attach any more.
#[test]
fn a_gate_that_is_killed_while_a_file_hangs_in_it_is_there_again() {
    let home = Home::new();
    let Ok(stuck) = Stuck::mount(&home.path("fuse")) else {
        println!("skipped: no FUSE file system can be mounted here");
        return;
    };
    home.configure(&format!("{FILE}[[tenant]]\nname = \"evil\"\nsize = \"4MiB\"\n"));
    let daemon = home.serve();
    let keeper = gate_of(daemon.id());
    let evil = Nvme::greet_patiently(&home.runtime_dir().join("evil")).unwrap();
    stuck.leave_with(&evil).unwrap();
    daemon.wait_log("evil: client disconnected", 1);
    let killed = children(keeper);
    let [gate] = killed[..] else { panic!("{killed:?}") };
    let kill = std::process::Command::new("kill").args(["-9", &gate.to_string()]).status().unwrap();
    assert!(kill.success());
    wait_for("another gate", || children(keeper).into_iter().any(|child| child != gate).then_some(()));
    let mut guest = home.attach("db");
    guest.write(0, &[7; 512]).unwrap();
    drop(guest);
    drop(stuck);
    daemon.stop();
}
