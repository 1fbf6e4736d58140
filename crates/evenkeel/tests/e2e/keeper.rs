//! Clients whose sockets a keeper has: they go on with the next daemon, whatever ended the last one.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use api::{Deletion, Rest, api_path};
use hostile::fuse::Stuck;
use nvme_driver::{Data, Status};
use test_clients::nvme::Nvme;

use crate::guest::pattern;
use crate::harness::{Home, Load, errors, evenkeel, wait_for};
use crate::stats::since_start;

const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\ncreate = true\nsize = \"64MiB\"\n\
                      [policy]\nname = \"lpns\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\nclass = \"guaranteed\"\nlatency_target = \"1ms\"\n\
                      [[tenant]]\nname = \"web\"\nsize = \"8MiB\"\n";

/// A keeper of the clients of [`Home::configure`]'s daemons. Dropped, it is killed.
pub struct Keeper(Child);

impl Keeper {
    pub fn start(home: &Home) -> Self {
        std::fs::create_dir_all(home.runtime_dir()).unwrap();
        let socket = home.runtime_dir().join("keeper");
        let program = Path::new(evenkeel().get_program()).with_file_name("evenkeel-keeper");
        let child = Command::new(program).arg(&socket).stdin(Stdio::null()).spawn().unwrap();
        // A daemon that finds nobody there goes without; one that was killed left its socket.
        wait_for("the keeper", || is_listening(&socket).then_some(()));
        Self(child)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

/// Whether a process listens there.
fn is_listening(socket: &Path) -> bool {
    /// Kernel's include/linux/net.h, SO_ACCEPTCON.
    const LISTENING: &str = "00010000";
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let path = socket.to_str().unwrap();
    sockets.lines().any(|line| line.ends_with(path) && line.split_whitespace().nth(3) == Some(LISTENING))
}

/// A host with a keeper, before its first daemon.
fn kept() -> (Home, Keeper) {
    kept_with(CONFIG)
}

/// A daemon with a keeper, and this configuration.
pub fn kept_with(config: &str) -> (Home, Keeper) {
    let home = Home::new();
    home.configure(config);
    let keeper = Keeper::start(&home);
    (home, keeper)
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_keeper_of_which_only_the_socket_is_left_is_missed_in_words() {
    let home = Home::new();
    home.configure(CONFIG);
    std::fs::create_dir_all(home.runtime_dir()).unwrap();
    drop(UnixListener::bind(home.runtime_dir().join("keeper")).unwrap());
    let daemon = home.serve();
    daemon.wait_log("no keeper listens at", 1);
    daemon.stop();
}

#[test]
fn clients_go_on_after_kills_under_load() {
    let (home, _keeper) = kept();
    let mut daemon = home.serve();
    let job = "--rw randrw --bs 4k --iodepth 32 --verify --runtime 120";
    let loads = ["db", "web"].map(|tenant| home.load(tenant, job));
    daemon.wait_log("a client attached", 2);
    for kill in 0..8 {
        // Not to wait for anything: for commands to be in flight at ever other instants.
        sleep(Duration::from_millis(20 + 37 * kill));
        drop(daemon);
        daemon = home.serve();
        daemon.wait_log("a client goes on", 2);
    }
    loads.into_iter().for_each(Load::stop_verified);
    daemon.wait_log("the client went away", 2);
    daemon.stop();
}

#[test]
fn a_client_goes_on_after_the_daemon_was_ended_or_killed_at_rest() {
    let (home, _keeper) = kept();
    let mut daemon = home.serve();
    let mut guest = home.attach("db");
    for round in 0..6 {
        guest.write(round, &pattern(round, 512)).unwrap();
        if round % 2 == 0 {
            daemon.stop()
        } else {
            drop(daemon)
        }
        daemon = home.serve();
        daemon.wait_log("db: a client goes on", 1);
        assert_eq!(guest.read(round, 1).unwrap(), pattern(round, 512));
    }
    drop(guest);
    daemon.wait_log("db: the client went away", 1);
    // The next client finds a controller as after power on.
    let mut guest = home.attach("db");
    assert_eq!(guest.read(5, 1).unwrap(), pattern(5, 512));
    daemon.stop();
}

/// A command that made the daemon panic made each following one panic, without end.
#[test]
fn a_command_that_ended_two_daemons_gets_an_error_and_those_beside_it_do_well() {
    const DEADLY: u64 = 40;
    let (home, _keeper) = kept();
    let at_byte = (DEADLY * 512).to_string();
    let serve = || home.try_serve(&home.config(), &[("EVENKEELD_PANIC_AT_BYTE", &at_byte)]);
    let mut daemon = serve().unwrap();
    let mut guest = home.attach("db");
    guest.data.write(0, &pattern(1, 512)).unwrap();
    let data = Data { iova: guest.data.iova(), len_bytes: 512 };
    let lbas = [DEADLY - 1, DEADLY, DEADLY + 1];
    let cids = lbas.map(|lba| guest.queue.write(guest.blocks(lba, 1), data, false).unwrap());
    guest.queue.ring().unwrap();
    wait_for("the first daemon's end", || (!daemon.is_alive()).then_some(()));
    // It ends before or after it says that it serves.
    if let Ok(mut second) = serve() {
        wait_for("the second daemon's end", || (!second.is_alive()).then_some(()));
    }
    daemon = serve().unwrap();
    let mut ended = BTreeMap::new();
    wait_for("three completions", || {
        guest.queue.poll(&mut |done| assert_eq!(ended.insert(done.cid, done.status), None)).unwrap();
        (ended.len() == 3).then_some(())
    });
    let statuses = cids.map(|cid| ended[&cid]);
    assert_eq!(statuses, [Status::SUCCESS, Status::INTERNAL_ERROR.dnr(), Status::SUCCESS]);
    let told = "db: a command of queue 1 (opcode 0x01, namespace 1, LBAs 40 to 40) ended the daemon 2 times";
    daemon.wait_log(told, 1);
    daemon.stop();
    let log = std::fs::read_to_string(home.config().with_extension("log")).unwrap();
    assert_eq!(log.matches("as EVENKEELD_PANIC_AT_BYTE asked").count(), 2, "{log}");

    let daemon = home.serve();
    let zeroes = vec![0; 512];
    let wanted = [pattern(1, 512), zeroes, pattern(1, 512)];
    assert_eq!(lbas.map(|lba| guest.read(lba, 1).unwrap()), wanted);
    drop(guest);
    daemon.stop();
}

#[test]
fn who_is_served_no_more_is_sent_away() {
    let (home, _keeper) = kept();
    let daemon = home.serve();
    let load = home.load("web", "--rw randread --bs 4k --iodepth 4 --runtime 120");
    daemon.wait_log("web: a client attached", 1);
    daemon.stop();
    // The next file has no such disk.
    home.configure(&CONFIG[..CONFIG.rfind("[[tenant]]").unwrap()]);
    let daemon = home.serve();
    let (code, report) = load.end();
    assert_ne!(code, Some(0), "{report:#}");
    daemon.stop();
}

#[test]
fn a_state_of_other_queues_is_not_gone_on_with() {
    let (home, _keeper) = kept();
    for (queues, others) in [(2, 1), (1, 2)] {
        home.configure(&format!("{CONFIG}queues = {queues}\n"));
        let daemon = home.serve();
        let load = home.load("web", "--rw randread --bs 4k --iodepth 4 --runtime 120");
        // Before that there is no state that could not be gone on with.
        wait_for("its reads", || {
            (since_start(&home.runtime_dir())["tenants"][1]["iops"].as_f64()? > 0.0).then_some(())
        });
        daemon.stop();
        home.configure(&format!("{CONFIG}queues = {others}\n"));
        let daemon = home.serve();
        let why = format!("that has {queues} queues, and `queues` is {others} now; restart its VM");
        let told = "web: client disconnected: an earlier process's state of its controller can't be taken over: ";
        daemon.wait_log(&(told.to_owned() + &why), 1);
        let (code, report) = load.end();
        assert_ne!(code, Some(0), "{report:#}");
        // The next client is served.
        home.attach("web").write(0, &pattern(1, 512)).unwrap();
        daemon.stop();
    }
}

#[test]
fn a_disk_made_and_removed_while_the_daemon_runs_comes_and_goes_with_the_keeper_too() {
    let (home, _keeper) = kept();
    let daemon = home.serve();
    let rest = Rest::new(api_path(&home.runtime_dir()));
    rest.create(&api::DiskSpec { name: "tmp".into(), size: "4MiB".into(), ..api::DiskSpec::default() }).unwrap();
    let mut guest = home.attach("tmp");
    guest.write(3, &pattern(3, 512)).unwrap();
    drop(daemon);
    let mut daemon = home.serve();
    daemon.wait_log("tmp: a client goes on", 1);
    assert_eq!(guest.read(3, 1).unwrap(), pattern(3, 512));
    rest.delete("tmp", Deletion::default()).expect_err("it has a client");
    drop(guest);
    daemon.wait_log("tmp: the client went away", 1);
    wait_for("nobody to have it", || rest.delete("tmp", Deletion::default()).ok());
    wait_for("its socket to go", || (!home.runtime_dir().join("tmp/cntrl").exists()).then_some(()));
    daemon.terminate();
    daemon.wait();
    assert!(!daemon.log().contains("the keeper is gone"), "it was told to let go of a disk, and is there");
}

#[test]
fn a_keeper_that_was_killed_takes_its_clients_with_it_and_nobody_else() {
    let (home, keeper) = kept();
    let daemon = home.serve();
    let rest = Rest::new(api_path(&home.runtime_dir()));
    let survivors = || -> Vec<String> {
        let disks = rest.disks().unwrap().into_iter();
        disks.filter(|disk| disk.survives_restart).map(|disk| disk.name).collect()
    };
    let _lost = home.attach("db");
    assert_eq!(survivors(), ["db", "web"]);
    drop(keeper);
    daemon.wait_log("until there is one again", 2);
    daemon.wait_log("db: client disconnected", 1);

    // Without one: clients come, disks are made, and nobody outlives the daemon.
    let mut guest = home.attach("db");
    guest.write(3, &pattern(1, 512)).unwrap();
    rest.create(&api::DiskSpec { name: "new".into(), size: "4MiB".into(), ..api::DiskSpec::default() }).unwrap();
    drop(home.attach("new"));
    assert_eq!(survivors(), [] as [&str; 0]);
    drop(guest);

    let _keeper = Keeper::start(&home);
    daemon.wait_log("there is a keeper again", 1);
    let mut guest = home.attach("db");
    assert_eq!(survivors(), ["db"], "the others' clients did not come yet");
    drop(daemon);
    let daemon = home.serve();
    daemon.wait_log("a client goes on", 1);
    assert_eq!(guest.read(3, 1).unwrap(), pattern(1, 512));
    assert_eq!(survivors(), ["db", "web", "new"]);
    drop(guest);
    daemon.stop();
}

/// A descriptor whose close never ends left the keeper as a zombie with a thread: it kept its socket, its clients
/// waited for ever, and neither a keeper nor a daemon could follow it.
#[test]
fn a_file_that_is_never_closed_keeps_no_keeper_from_dying_nor_another_from_following() {
    let home = Home::new();
    let Ok(stuck) = Stuck::mount(&home.path("fuse")) else {
        println!("skipped: no FUSE file system can be mounted here");
        return;
    };
    home.configure(CONFIG);
    let keeper = Keeper::start(&home);
    let daemon = home.serve();
    let mut guest = home.attach("db");
    guest.write(3, &pattern(1, 512)).unwrap();
    let evil = Nvme::greet_patiently(&home.runtime_dir().join("web")).unwrap();
    stuck.leave_with(&evil).unwrap();
    daemon.wait_log("web: client disconnected", 1);
    drop(guest);
    // Waits for the process and all of its threads.
    drop(keeper);
    let _keeper = Keeper::start(&home);
    daemon.wait_log("there is a keeper again", 1);
    let mut guest = home.attach("db");
    assert_eq!(guest.read(3, 1).unwrap(), pattern(1, 512));
    drop(daemon);
    let daemon = home.serve();
    daemon.wait_log("a client goes on", 1);
    assert_eq!(guest.read(3, 1).unwrap(), pattern(1, 512));
    drop(guest);
    daemon.stop();
    drop(evil);
}

#[test]
fn a_time_without_a_daemon_is_late_and_the_hosts_fault() {
    let (home, _keeper) = kept();
    let daemon = home.serve();
    let mut guest = home.attach("db");
    drop(daemon);
    let data = Data { iova: guest.data.iova(), len_bytes: 512 };
    // One late command says nothing of the 99th percentile.
    (0..3).for_each(|_| _ = guest.queue.read(guest.blocks(3, 1), data).unwrap());
    guest.queue.ring().unwrap();
    let daemon = home.serve();
    let mut reads = 0;
    wait_for("the reads", || {
        guest.queue.poll(&mut |done| reads += u32::from(done.status.is_success())).unwrap();
        (reads == 3).then_some(())
    });
    let db = &since_start(&home.runtime_dir())["tenants"][0];
    assert_eq!((&db["violations"], &db["kept"], &db["blame"]["culprit"]), (&3.into(), &false.into(), &"host".into()));
    let why = db["blame"]["why"].as_str().unwrap();
    assert!(why.starts_with("restart: for ") && why.ends_with(" ms no daemon served it"), "{why}");
    drop(guest);
    daemon.stop();
}

#[test]
fn an_upgrade_goes_well_or_changes_nothing() {
    let (home, keeper) = kept();
    let daemon = home.serve();
    let load = home.load("db", "--rw randrw --bs 4k --iodepth 8 --verify --runtime 120");
    daemon.wait_log("db: a client attached", 1);
    let upgrade = |more: &[&str]| {
        let mut command = evenkeel();
        command.args(["upgrade", "--json", "--config"]).arg(home.config()).args(more);
        command.env("EVENKEEL_SOCKET", api_path(&home.runtime_dir())).output().unwrap()
    };
    let refused = |more: &[&str], why: &str| {
        let output = upgrade(&[more, &["--restart", "exit 7"]].concat());
        assert!(!output.status.success());
        assert!(errors(&output).contains(why), "{}", errors(&output));
    };

    // A program that knows nothing of this, one that knows another version, and a file that is refused.
    refused(&["--program", "/bin/false"], "nothing was changed: /bin/false can't take over from the running daemon");
    refused(&["--program", "/nowhere"], "nothing was changed: /nowhere can't be started");
    let other = home.path("other");
    std::fs::write(&other, "#!/bin/sh\ncase $1 in --can-take-over=5.*) echo 'knows 3' >&2; exit 1;; esac\n").unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    refused(&["--program", other.to_str().unwrap()], "can't take over from the running daemon: knows 3");
    let good = std::fs::read_to_string(home.config()).unwrap();
    std::fs::write(home.config(), "nonsense = 1\n").unwrap();
    refused(&[], "nothing was changed: the configuration is refused");
    std::fs::write(home.config(), good).unwrap();
    // All is well; what restarts it fails.
    refused(&[], "\"exit 7\" failed");

    let pid = daemon.id();
    let next = home.path("next.log");
    let restart = format!(
        "kill -TERM {pid}; until grep -q ') Z ' /proc/{pid}/stat; do sleep 0.01; done; {} serve {} >{} 2>&1 & echo $! \
         >{}",
        evenkeel().get_program().to_str().unwrap(),
        home.config().display(),
        next.display(),
        home.path("pid").display()
    );
    let output = upgrade(&["--restart", &restart]);
    assert!(output.status.success(), "{}", errors(&output));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["clients"], &told["lost"]), (&serde_json::json!(["db"]), &serde_json::json!([])));
    assert!(told["pause_ms"].is_u64() && told["to"] == told["from"], "{told}");

    // Without the keeper it would be lost.
    load.stop_verified();
    drop(keeper);
    let _guest = home.attach("db");
    refused(&[], "would lose them: db");
    let pid = std::fs::read_to_string(home.path("pid")).unwrap();
    assert!(Command::new("kill").arg(pid.trim()).status().unwrap().success());
}

#[test]
fn a_keeper_that_is_stopped_is_of_no_use_until_it_goes_on() {
    let (home, keeper) = kept();
    let daemon = home.serve();
    let rest = Rest::new(api_path(&home.runtime_dir()));
    let signal = |name: &str| {
        let pid = keeper.0.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    let create =
        |name: &str| rest.create(&api::DiskSpec { name: name.into(), size: "4MiB".into(), ..api::DiskSpec::default() });
    let survives = |name: &str| rest.disk(name).unwrap().survives_restart;
    let mut guest = home.attach("db");
    signal("-STOP");
    for name in ["early", "earlier"] {
        let refused = create(name).unwrap_err().to_string();
        assert!(refused.contains("does not answer"), "{refused}");
    }
    assert!(!survives("db"), "nobody would have it");
    guest.write(3, &pattern(3, 512)).unwrap();
    signal("-CONT");
    // What it was late with is nobody's: each disk has its own place there.
    wait_for("the keeper", || create("late").ok());
    let mut other = home.attach("late");
    other.write(3, &pattern(7, 512)).unwrap();
    assert!(survives("db") && survives("late"));
    drop(daemon);
    let daemon = home.serve();
    daemon.wait_log("a client goes on", 2);
    assert_eq!(guest.read(3, 1).unwrap(), pattern(3, 512));
    assert_eq!(other.read(3, 1).unwrap(), pattern(7, 512));
    create("early").unwrap();
    drop((guest, other));
    daemon.stop();
}
