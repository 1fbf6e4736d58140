//! Disks that come and change while the daemon runs, through the API and the command line.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};

use crate::guest::pattern;
use crate::harness::{Home, errors, evenkeel, wait_for};

const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                      [policy]\nname = \"passthrough\"\n";

fn socket(home: &Home) -> PathBuf {
    home.runtime_dir().join("api.sock")
}

pub fn disk(home: &Home, arguments: &str) -> Output {
    let mut command = evenkeel();
    command.arg("disk").args(arguments.split_whitespace()).arg("--json").env("EVENKEEL_SOCKET", socket(home));
    command.output().unwrap()
}

pub fn done(home: &Home, arguments: &str) -> Value {
    let output = disk(home, arguments);
    assert!(output.status.success(), "disk {arguments}: {}", errors(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn refused(home: &Home, arguments: &str) -> String {
    let output = disk(home, arguments);
    assert_eq!(output.status.code(), Some(2), "disk {arguments}: {output:?}");
    errors(&output)
}

fn names(home: &Home) -> Vec<String> {
    let all = done(home, "list");
    all["items"].as_array().unwrap().iter().map(|disk| disk["name"].as_str().unwrap().to_owned()).collect()
}

pub fn is_served(home: &Home, name: &str) -> Option<()> {
    (done(home, &format!("show {name}"))["state"] == "served").then_some(())
}

/// Sends bytes as they are, and reads to the end.
pub fn raw(home: &Home, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket(home)).unwrap();
    // The daemon may answer, and go, before it has read all.
    let _ = stream.write_all(request);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn disks_come_and_change_and_are_there_after_a_kill() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    assert_eq!(names(&home), [""; 0]);
    let made = done(&home, "create web --size 8MiB --weight 3");
    assert_eq!((&made["size_bytes"], &made["weight"], &made["declared"]), (&json!(8 << 20), &json!(3), &json!(false)));
    done(&home, "create vm --size 8MiB --frontend vhost-user-blk");
    wait_for("the disk", || is_served(&home, "web"));
    let mut guest = home.attach("web");
    guest.write(0, &pattern(1, 4096)).unwrap();
    guest.flush().unwrap();
    assert_eq!(done(&home, "show web")["attached"], true);
    // While it is in use.
    assert_eq!(done(&home, "set web --weight 9")["weight"], 9);
    assert_eq!(guest.read(0, 8).unwrap(), pattern(1, 4096));
    // SIGKILL.
    drop(daemon);
    drop(guest);

    let daemon = home.serve();
    assert_eq!(names(&home), ["web", "vm"]);
    assert_eq!(done(&home, "show web")["weight"], 9);
    assert_eq!(home.attach("web").read(0, 8).unwrap(), pattern(1, 4096));
    daemon.stop();
    // What the file names is the file's; it may have others beside.
    home.configure(&format!("{CONFIG}[[tenant]]\nname = \"web\"\nsize = \"8MiB\"\n"));
    let output = evenkeel().arg("check").arg(home.config()).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(
        shown.contains("disk \"web\", made by `evenkeel disk create`, is declared in the configuration now"),
        "{shown}"
    );
    home.configure(&format!("{CONFIG}[[tenant]]\nname = \"db\"\nsize = \"8MiB\"\n"));
    let daemon = home.serve();
    assert_eq!(names(&home), ["db", "web", "vm"]);
    let told = refused(&home, "set db --weight 2");
    assert!(told.contains("\"db\" is declared in") && told.contains("change it there"), "{told}");
    daemon.stop();
}

#[test]
fn labels_are_shown_wherever_the_disk_is_and_change_under_a_client() {
    let home = Home::new();
    let file = |labels: &str| format!("{CONFIG}[[tenant]]\nname = \"db\"\nsize = \"8MiB\"\nlabels = {labels}\n");
    home.configure(&file("{ pvc = \"data-0\" }"));
    let daemon = home.serve();
    let told = refused(&home, "create web --size 8MiB --label Pvc=x");
    assert!(told.contains("has the key \"Pvc\"; use 1 to 63 of a-z, 0-9 and _"), "{told}");
    done(&home, "create web --size 8MiB --label pvc=data-1 --label pod=web-0");
    wait_for("the disk", || is_served(&home, "web"));
    let guest = home.attach("web");
    let changed = done(&home, "set web --label pod=none --label tier=gold");
    let labels = json!({ "pvc": "data-1", "tier": "gold" });
    assert_eq!((&changed["labels"], &changed["attached"]), (&labels, &json!(true)));

    let api = |at: &str| raw(&home, format!("GET {at} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes());
    let told = api("/v1/events");
    let event = told.split("},{").find(|event| event.contains("\"kind\":\"changed\"")).unwrap_or_default();
    assert!(event.contains("\"pvc\":\"data-1\"") && event.contains("\"tier\":\"gold\""), "{told}");
    for (at, wanted) in [
        ("/metrics", "tenant=\"web\",class=\"best-effort\",label_pvc=\"data-1\",label_tier=\"gold\"} 1"),
        ("/metrics", "tenant=\"db\",class=\"best-effort\",label_pvc=\"data-0\"} 1"),
        ("/live", "\"name\":\"web\",\"labels\":{\"pvc\":\"data-1\",\"tier\":\"gold\"}"),
        ("/v1/stats?span_ms=0", "\"name\":\"db\",\"labels\":{\"pvc\":\"data-0\"}"),
    ] {
        let told = api(at);
        assert!(told.contains(wanted), "{at}: {told}");
    }

    let file = home.configure(&file("{ pvc = \"data-2\", pod = \"db-0\" }"));
    let mut apply = evenkeel();
    let output = apply.arg("apply").arg(file).arg("--yes").env("EVENKEEL_SOCKET", socket(&home)).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("change db: labels.pvc data-0 → data-2, labels.pod none → db-0\n"), "{shown}");
    assert_eq!(done(&home, "show db")["labels"], json!({ "pod": "db-0", "pvc": "data-2" }));
    drop(guest);
    // SIGKILL.
    drop(daemon);
    let daemon = home.serve();
    assert_eq!(done(&home, "show web")["labels"], labels);
    let exported = evenkeel().arg("export").env("EVENKEEL_SOCKET", socket(&home)).output().unwrap().stdout;
    let exported = String::from_utf8_lossy(&exported).into_owned();
    assert!(exported.contains("labels = { pvc = \"data-1\", tier = \"gold\" }\n"), "{exported}");
    daemon.stop();
}

#[test]
fn limits_are_those_of_the_configuration_file() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    done(&home, "create web --size 8MiB --r-iops 5k --w-iops 2k --rw-bandwidth 20MiB/s --burst 2s");
    let all = json!({ "r_iops": 5000, "w_iops": 2000, "rw_bytes_per_second": 20 << 20, "burst_ms": 2000.0 });
    assert_eq!(done(&home, "show web")["ceilings"], all);
    done(&home, "set web --rw-iops 6k --w-iops 1500 --r-iops none");
    // SIGKILL.
    drop(daemon);
    let daemon = home.serve();
    let shown = done(&home, "show web");
    let left = json!({ "rw_iops": 6000, "w_iops": 1500, "rw_bytes_per_second": 20 << 20, "burst_ms": 2000.0 });
    assert_eq!(shown["ceilings"], left);
    assert_eq!(shown["limits"], "6k IOPS, writes 1500 IOPS, 20MiB/s, burst 2s");
    // With its last limit the burst goes.
    let free = done(&home, "set web --rw-iops none --w-iops none --rw-bandwidth none");
    assert_eq!((&free["ceilings"], &free["limits"]), (&json!({}), &Value::Null));
    daemon.stop();
}

#[test]
fn what_a_disk_gets_at_least_and_which_commands_a_target_is_for_change_while_it_is_in_use() {
    let home = Home::new();
    home.configure("[device]\nbackend = \"model\"\nsize = \"64MiB\"\n[policy]\nname = \"evenkeel\"\n");
    let daemon = home.serve();
    done(&home, "create log --size 8MiB --min-iops 5k --min-bandwidth 50MiB/s");
    done(&home, "create db --size 8MiB --class guaranteed --latency-target 2ms --latency-percentile 99.9");
    let mut guest = home.attach("log");
    assert_eq!(done(&home, "show log")["floor"], "5k IOPS, 50MiB/s");
    done(&home, "set log --min-iops 6k --min-bandwidth none");
    done(&home, "set db --latency-percentile 95");
    guest.write(0, &pattern(1, 4096)).unwrap();
    assert_eq!(guest.read(0, 8).unwrap(), pattern(1, 4096));

    let told = refused(&home, "set log --min-iops 50M");
    assert!(told.contains("\"log\" can't be promised 50M IOPS"), "{told}");
    let told = refused(&home, "set db --min-iops 1k");
    assert!(told.contains("a guaranteed tenant has its latency target"), "{told}");
    // The pollers hear of new terms after the answer.
    wait_for("the terms in the table", || {
        let mut stats = evenkeel();
        stats.args(["stats", "--once", "--interval", "0", "--runtime-dir"]).arg(home.runtime_dir());
        let table = String::from_utf8(stats.output().unwrap().stdout).unwrap();
        (table.contains("≥ 6k IOPS") && table.contains("≤ 2.0 ms for 95 %")).then_some(())
    });
    let db = done(&home, "set db --class best-effort");
    assert_eq!((&db["latency_target_us"], &db["floor"]), (&Value::Null, &Value::Null));
    assert_eq!(done(&home, "set log --class guaranteed --latency-target 3ms")["floor"], Value::Null);
    assert_eq!(done(&home, "set log --overcommit")["overcommit"], true);
    assert_eq!(done(&home, "set log --overcommit=false")["overcommit"], Value::Null);
    daemon.stop();
}

#[test]
fn what_can_t_be_done_changes_nothing() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    done(&home, "create web --size 8MiB");
    // Repeating it succeeds.
    done(&home, "create web --size 8MiB");
    // So is the same in other words.
    done(&home, "create web --size 8192KiB --class best-effort --weight 1 --queues 64 --frontend vfio-user");
    done(&home, "create logs --size 4MiB --attach web");
    done(&home, "create logs --size 4096KiB --attach web --lba-size 512");
    done(&home, "delete logs --yes --force --wait");
    let layout = || std::fs::read_to_string(home.path("drive.img.layout.toml")).unwrap();
    wait_for("the disk", || is_served(&home, "web"));
    let before = layout();
    for (arguments, wanted) in [
        ("create web --size 4MiB", "another disk \"web\" already: it has size 8MiB, not 4MiB; change it by"),
        ("create web --size 8MiB --weight 3", "already: it has weight 1, not 3"),
        ("create big --size 1GiB", "no room for \"big\" of 1GiB: drive \"device\" has "),
        ("create big --size 1GiB --attach web", "no room for \"big\" of 1GiB: drive \"device\" has "),
        ("create a/b --size 4MiB", "use 1 to 63 of a-z"),
        ("create keeper --size 4MiB", "choose another name"),
        ("create odd --size 5", "not a multiple of 4096 bytes"),
        ("create odd --size 4MiB --weight 0", "expected a whole number from 1 to 10000"),
        ("create odd --size 4MiB --class guaranteed", "add --latency-target"),
        ("set web --class guaranteed", "add --latency-target"),
        ("set web --r-iops 0", "write commands per second"),
        ("set web --w-bandwidth 1KiB/s", "write \"1MiB/s\""),
        ("set web --burst 2s", "there is no limit"),
        ("set web --r-iops 1k --burst 2000s", "write a time from 0ns to 60s"),
        ("set nobody --weight 2", "there is no disk \"nobody\""),
        ("show nobody", "there is no disk \"nobody\"; `evenkeel disk list` has"),
        ("show ../v1/drives", "is no name"),
    ] {
        let told = refused(&home, arguments);
        assert!(told.contains(wanted), "disk {arguments}: {told}");
        assert_eq!(layout(), before, "disk {arguments}");
    }
    assert_eq!(names(&home), ["web"]);
    daemon.stop();
    assert!(refused(&home, "list").contains("no daemon answers"));
}

/// Without waiting for a place in the queue.
fn connect_at_once(home: &Home) -> Result<OwnedFd, Errno> {
    let socket_type = SocketType::STREAM;
    let client = socket_with(AddressFamily::UNIX, socket_type, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    connect(&client, &SocketAddrUnix::new(socket(home))?)?;
    Ok(client)
}

#[test]
fn hostile_clients_of_the_api_change_nothing_and_hold_nobody_up() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let mut seed = fastrand::Rng::with_seed(1);
    assert!(raw(&home, b"GET /v1/disks HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ends_with("[]"));
    let noise: Vec<u8> = std::iter::repeat_with(|| seed.u8(..)).take(100_000).collect();
    raw(&home, &noise);
    for (request, wanted) in [
        ("GET /v1/nothing HTTP/1.1\r\n", "404"),
        ("DELETE /v1/drives HTTP/1.1\r\n", "405"),
        ("POST /v1/disks HTTP/1.1\r\n", "415"),
        ("GET /v1/disks/%ff%fe HTTP/1.1\r\n", "400"),
        ("GET /v1/disks/%c3%a4 HTTP/1.1\r\n", "404"),
    ] {
        let answer = raw(&home, format!("{request}host: x\r\nconnection: close\r\n\r\n").as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {wanted}")), "{request}: {answer}");
        assert!(answer.contains("application/problem+json"), "{request}: {answer}");
    }
    let send = |request: &str, body: &str| {
        let head = "HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
        raw(&home, format!("{request} {head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
    };
    let body = |body: &str| send("POST /v1/disks", body);
    assert!(body(&" ".repeat(100_000)).starts_with("HTTP/1.1 413"));
    let nested = "[".repeat(60_000);
    for json in ["", "{", &nested, "{\"name\": 5}", "{\"name\": \"a\", \"size\": \"4MiB\", \"size\": \"8MiB\"}"] {
        let answer = body(json);
        assert!(answer.starts_with("HTTP/1.1 4"), "{:.40}: {answer:?}", json);
    }
    // An array is no object, though it might be one's fields in their order.
    for (request, array) in [("PATCH /v1/disks/none", " []"), ("POST /v1/disks/none/attachments", "[\"a\"]")] {
        let answer = send(request, array);
        assert!(answer.starts_with("HTTP/1.1 422") && answer.contains("no JSON object"), "{request}: {answer}");
    }
    // No key of a section can be smuggled in by a value.
    let smuggled = json!({ "name": "a", "size": "4MiB\"\noffset = \"0\"\n[[tenant]]\nname = \"b\"\nsize = \"4MiB" });
    assert!(body(&smuggled.to_string()).starts_with("HTTP/1.1 422"));
    assert_eq!(names(&home), [""; 0]);
    // A burst finds room in the queue.
    let burst: Vec<_> = std::iter::repeat_with(|| connect_at_once(&home)).take(100).collect();
    assert!(burst.iter().all(Result::is_ok), "{burst:?}");
    drop(burst);
    // As many as there are places, who say nothing: they are sent away.
    let silent: Vec<UnixStream> =
        std::iter::repeat_with(|| UnixStream::connect(socket(&home)).unwrap()).take(70).collect();
    let mut slow = UnixStream::connect(socket(&home)).unwrap();
    slow.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    slow.write_all(b"GET /v1/disks HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(silent);
    daemon.stop();
}

#[test]
fn a_promise_that_nobody_can_check_is_said_to_be_one() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let warning = "promises are not checked: the file does not say which drive this is; measure it with";
    let made = disk(&home, "create db --size 4MiB --class guaranteed --latency-target 50us");
    assert!(made.status.success() && errors(&made).contains(warning), "{made:?}");
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert!(made["warnings"][0].as_str().is_some_and(|it| it.starts_with(warning)), "{made}");
    let changed = disk(&home, "set db --latency-target 60us");
    assert!(changed.status.success() && errors(&changed).contains(warning), "{changed:?}");
    let changed = disk(&home, "set db --class best-effort");
    let told = errors(&changed);
    assert!(changed.status.success() && !told.contains(warning), "{changed:?}");
    assert!(told.contains("latency_target = \"60us\" went with its class"), "{told}");
    let changed = disk(&home, "set db --weight 3");
    assert!(changed.status.success() && errors(&changed).is_empty(), "{changed:?}");
    daemon.stop();
}

#[test]
fn the_directory_of_a_deleted_disks_socket_goes_with_it() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let directory = home.runtime_dir().join("web");
    let is_gone = || (!directory.exists()).then_some(());
    for _ in 0..2 {
        done(&home, "create web --size 4MiB");
        wait_for("the disk", || is_served(&home, "web"));
        drop(home.attach("web"));
        done(&home, "delete web --yes --force --wait");
        wait_for("the directory's end", is_gone);
    }
    // A file of another program is not the daemon's to remove.
    done(&home, "create web --size 4MiB");
    std::fs::write(directory.join("note"), "").unwrap();
    done(&home, "delete web --yes --force --wait");
    assert_eq!(names(&home), [""; 0]);
    assert!(directory.join("note").exists());
    daemon.stop();
}

#[test]
fn one_process_with_all_the_connections_that_it_gets_keeps_nobody_out() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let head = "POST /v1/disks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n";
    let connect = || {
        let mut stream = UnixStream::connect(socket(&home)).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    // Their bodies don't come, for which the daemon waits 30 s.
    let silent: Vec<UnixStream> = std::iter::repeat_with(connect).take(100).collect();
    assert_eq!(names(&home), [""; 0]);
    silent.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
    let is_open = |mut stream: &UnixStream| stream.read(&mut [0]).is_err_and(|it| it.kind() == ErrorKind::WouldBlock);
    assert!(silent.iter().all(is_open), "the other process waited until one of them had been sent away");
    drop(silent);
    daemon.stop();
}

/// Whether all of a disk's pattern is gone from the image.
fn is_wiped(home: &Home, pattern: &[u8]) -> bool {
    let image = std::fs::read(home.path("drive.img")).unwrap();
    // Patterns differ in each sector.
    let sectors: HashSet<&[u8]> = pattern.chunks(512).collect();
    !image.chunks(512).any(|found| sectors.contains(found))
}

fn operations(home: &Home) -> Vec<Value> {
    let output = evenkeel().args(["operations", "--json", "--socket"]).arg(socket(home)).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    told["items"].as_array().unwrap().clone()
}

#[test]
fn a_deleted_disk_is_wiped_and_its_room_is_used_again() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    done(&home, "create kept --size 16MiB");
    done(&home, "create gone --size 32MiB");
    let secret = pattern(7, 64 << 10);
    let mut gone = home.attach("gone");
    let mut kept = home.attach("kept");
    (0..512).for_each(|at| gone.write(at * 128, &secret).unwrap());
    kept.write(0, &pattern(1, 4096)).unwrap();
    kept.flush().unwrap();
    assert!(!is_wiped(&home, &secret));
    let told = refused(&home, "delete gone");
    assert!(told.contains("nothing is deleted; --yes deletes it"), "{told}");
    let told = refused(&home, "delete gone --yes");
    assert!(told.contains("is attached to a client; detach it there (unmount a block device), or use force"), "{told}");
    assert!(refused(&home, "delete nobody --yes").contains("there is no disk \"nobody\""));
    done(&home, "delete gone --yes --force");
    drop(gone);
    wait_for("it has left", || (names(&home) == ["kept"]).then_some(()));
    let free = || {
        let output = evenkeel().args(["drive", "list", "--json", "--socket"]).arg(socket(&home)).output().unwrap();
        let drives: Value = serde_json::from_slice(&output.stdout).unwrap();
        drives["items"][0]["free_bytes"].as_u64().unwrap()
    };
    wait_for("the wiper", || operations(&home).is_empty().then_some(()));
    assert!(is_wiped(&home, &secret));
    assert_eq!(free(), 48 << 20);
    // As good as the first time, as long as anything of it is known.
    assert!(refused(&home, "delete gone --yes").contains("there is no disk"));
    // Clean room needs no zeroing.
    assert_eq!(done(&home, "create next --size 32MiB")["state"], "served");
    let mut next = home.attach("next");
    assert!(next.read(0, 128).unwrap().iter().all(|byte| *byte == 0));
    next.write(0, &secret).unwrap();
    assert_eq!(kept.read(0, 8).unwrap(), pattern(1, 4096));
    drop(next);
    wait_for("its client is gone", || (done(&home, "show next")["attached"] == false).then_some(()));
    done(&home, "delete next --yes --wipe three-passes --wait");
    assert!(is_wiped(&home, &secret) && operations(&home).is_empty());
    daemon.stop();
}

#[test]
fn a_wipe_goes_on_after_a_kill() {
    let home = Home::new();
    home.configure(CONFIG);
    let secret = pattern(9, 64 << 10);
    for round in 0..5 {
        let daemon = home.serve();
        wait_for("the wiper", || operations(&home).is_empty().then_some(()));
        assert!(is_wiped(&home, &secret), "round {round}");
        assert_eq!(done(&home, "create gone --size 48MiB")["state"], "served", "all of it is clean");
        let mut gone = home.attach("gone");
        (0..768).for_each(|at| gone.write(at * 128, &secret).unwrap());
        drop(gone);
        wait_for("its client is gone", || (done(&home, "show gone")["attached"] == false).then_some(()));
        done(&home, "delete gone --yes");
        // SIGKILL, wherever the wiper is.
        drop(daemon);
        let layout = std::fs::read_to_string(home.path("drive.img.layout.toml")).unwrap();
        assert!(!layout.contains("\n[[tenant]]"), "{layout}");
    }
}

#[test]
fn what_left_the_configuration_is_deleted_by_its_name() {
    let home = Home::new();
    home.configure(&format!("{CONFIG}[[tenant]]\nname = \"db\"\nsize = \"8MiB\"\n"));
    let daemon = home.serve();
    let secret = pattern(11, 4096);
    let mut db = home.attach("db");
    db.write(0, &secret).unwrap();
    drop(db);
    let told = refused(&home, "delete db --yes");
    assert!(told.contains("\"db\" is declared in") && told.contains("remove it there"), "{told}");
    daemon.stop();
    home.configure(CONFIG);
    let daemon = home.serve();
    assert!(refused(&home, "create db --size 4MiB").contains("data of an earlier disk"));
    assert!(!is_wiped(&home, &secret));
    done(&home, "delete db --yes --wait");
    assert!(is_wiped(&home, &secret));
    done(&home, "create db --size 4MiB");
    daemon.stop();
}

#[test]
fn a_script_asks_which_disks_clients_have() {
    let home = Home::new();
    home.configure(
        "[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n\
         [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\n[[tenant]]\nname = \"idle\"\nsize = \"8MiB\"\n\
         [[tenant]]\nname = \"web\"\nsize = \"8MiB\"\nfrontend = \"vhost-user-blk\"\n",
    );
    let daemon = home.serve();
    let names = |arguments: &str| {
        let mut list = evenkeel();
        list.args(["disk", "list"]).args(arguments.split_whitespace());
        let output = list.env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock")).output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(names("--names"), "db\nidle\nweb\n");
    assert_eq!(names("--names --attached"), "");
    let guest = home.attach("db");
    assert_eq!(names("--names --attached"), "db\n");
    assert_eq!(names("--names --attached --frontend vhost-user-blk"), "");
    assert_eq!(names("--names --frontend vhost-user-blk"), "web\n");
    assert!(names("--attached").lines().nth(1).unwrap().starts_with("db "), "{}", names("--attached"));
    drop(guest);
    let refused = evenkeel().args(["disk", "list", "--frontend", "vfio"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "what there is not is no empty list: {}", errors(&refused));
    daemon.stop();
}
