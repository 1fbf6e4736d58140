//! How a disk is reached changes while its daemon runs, and the pollers follow what a tenant is promised.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::disks::{done, is_served, refused};
use crate::guest::pattern;
use crate::harness::{Daemon, Home, errors, evenkeel, wait_for};

const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                      [policy]\nname = \"passthrough\"\n";
const DB: &str = "[[tenant]]\nname = \"db\"\nsize = \"8MiB\"\n";

fn apply(home: &Home, file: &Path) -> Value {
    let output = evenkeel()
        .args(["apply", "--yes", "--json"])
        .arg(file)
        .env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Threads that poll.
fn pollers(daemon: &Daemon) -> usize {
    let tasks = PathBuf::from(format!("/proc/{}/task", daemon.id())).read_dir().unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("poller")).count()
}

fn is_detached(home: &Home, name: &str) -> Option<()> {
    (done(home, &format!("show {name}"))["attached"] == false).then_some(())
}

fn sockets(home: &Home, name: &str) -> Vec<String> {
    let found = home.runtime_dir().join(name).read_dir().unwrap();
    found.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_disk_is_reached_another_way_once_its_client_has_left() {
    let home = Home::new();
    home.configure(&format!("{CONFIG}{DB}"));
    let daemon = home.serve();
    let load = home.load("db", "--rw randrw --bs 4k --iodepth 8 --verify --runtime 600s");
    assert_eq!(done(&home, "create web --size 8MiB --queues 2 --wait")["state"], "served");
    done(&home, "create logs --size 4MiB --attach web");
    let mut guest = home.attach("web");
    guest.write(0, &pattern(1, 4096)).unwrap();
    let told = refused(&home, "set web --queues 4");
    assert!(told.contains("\"web\" is attached to a client") && told.contains("shut its guest down"), "{told}");
    // What it is promised changes all the same.
    assert_eq!(done(&home, "set web --weight 9")["weight"], 9);
    drop(guest);
    wait_for("the client is gone", || is_detached(&home, "web"));
    done(&home, "set web --queues 4 --doorbells trapped --max-memory 64MiB --socket-mode 0660");
    let mut guest = home.attach("web");
    assert_eq!(guest.read(0, 8).unwrap(), pattern(1, 4096));
    assert_eq!(done(&home, "show logs")["attachments"][0]["tenant"], "web");
    drop(guest);
    wait_for("the client is gone", || is_detached(&home, "web"));
    let told = refused(&home, "set web --frontend vhost-user-blk");
    assert!(told.contains("namespace \"logs\""), "{told}");
    done(&home, "detach logs --from web");
    assert_eq!(sockets(&home, "web"), ["cntrl"]);
    let shown = done(&home, "set web --frontend vhost-user-blk --threads dedicated --read-only");
    assert_eq!((&shown["frontend"], &shown["weight"]), (&"vhost-user-blk".into(), &9.into()));
    let [queues, threads, mode, cpus] = ["queues", "threads", "mode", "cpus"].map(|key| shown[key].clone());
    assert_eq!((queues, threads), (4.into(), "dedicated".into()));
    assert_eq!((mode, cpus), ("adaptive".into(), Value::Null), "those are not pinned");
    assert_eq!((sockets(&home, "web"), pollers(&daemon)), (vec!["vhost.sock".to_owned()], 2));
    let told = refused(&home, "set web --cpus 8000");
    assert!(told.contains("CPU 8000 is not one that this process may use; choose from 0"), "{told}");
    home.load("web", "--rw read --bs 64k").expect_clean();
    // SIGKILL.
    load.kill();
    drop(daemon);
    let daemon = home.serve();
    assert_eq!(done(&home, "show web")["frontend"], "vhost-user-blk");
    let shown = done(&home, "set web --frontend vfio-user");
    let told = "read_only = true went with its front end: vfio-user has no such setting";
    assert!(shown["warnings"].as_array().is_some_and(|all| all.contains(&told.into())), "{shown}");
    assert_eq!(
        (sockets(&home, "web"), pollers(&daemon)),
        (vec!["cntrl".to_owned()], 2),
        "its threads are its own still"
    );
    done(&home, "set web --threads shared");
    assert_eq!(pollers(&daemon), 1);
    assert_eq!(home.attach("web").read(0, 8).unwrap(), pattern(1, 4096));
    daemon.stop();
}

#[test]
fn a_file_changes_how_its_disks_are_reached() {
    let home = Home::new();
    home.configure(&format!("{CONFIG}{DB}"));
    let daemon = home.serve();
    let mut guest = home.attach("db");
    guest.write(0, &pattern(1, 4096)).unwrap();
    let file = home.configure(&format!("{CONFIG}{DB}queues = 3\nfrontend = \"vhost-user-blk\"\nweight = 2\n"));
    let applied = apply(&home, &file);
    let actions: Vec<_> = applied["steps"].as_array().unwrap().iter().map(|step| step["action"].clone()).collect();
    assert_eq!(actions, ["change", "later"], "{applied}");
    let remedy = applied["steps"][1]["keys"][0]["remedy"].as_str().unwrap_or_default();
    assert!(remedy.starts_with("detach its client"), "{applied}");
    assert_eq!(guest.read(0, 8).unwrap(), pattern(1, 4096));
    drop(guest);
    wait_for("the client is gone", || is_detached(&home, "db"));
    let applied = apply(&home, &file);
    assert_eq!(applied["steps"][0]["keys"].as_array().map(Vec::len), Some(2), "{applied}");
    assert_eq!(sockets(&home, "db"), ["vhost.sock"]);
    home.load("db", "--rw read --bs 64k").expect_clean();
    assert_eq!(apply(&home, &file)["steps"].as_array().map(Vec::len), Some(0));
    daemon.stop();
}

#[test]
fn pollers_follow_what_a_tenant_is_promised() {
    let home = Home::new();
    home.configure(&format!("{CONFIG}{DB}"));
    let daemon = home.serve();
    done(&home, "create web --size 8MiB");
    wait_for("the disk", || is_served(&home, "web"));
    assert_eq!(pollers(&daemon), 1);
    done(&home, "set web --class guaranteed --latency-target 10ms");
    assert_eq!(pollers(&daemon), 2);
    // Back, while it is in use: it stays where it is until its client leaves.
    let mut guest = home.attach("web");
    guest.write(0, &pattern(1, 4096)).unwrap();
    assert_eq!(done(&home, "set web --class best-effort")["class"], "best-effort");
    assert_eq!((pollers(&daemon), guest.read(0, 8).unwrap()), (2, pattern(1, 4096)));
    drop(guest);
    wait_for("its poller is gone", || (pollers(&daemon) == 1).then_some(()));
    assert_eq!(home.attach("web").read(0, 8).unwrap(), pattern(1, 4096));
    daemon.stop();
}
