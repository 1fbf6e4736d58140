//! NVMe tenants whose queues several pollers serve.

use std::thread::sleep;
use std::time::Duration;

use crate::disks::done;
use crate::guest::{Guest, pattern};
use crate::harness::{Home, Load};
use crate::keeper::kept_with;
use crate::namespaces::{go_to, wait_for_namespaces};

const TENANTS: &str = "[[tenant]]\nname = \"wide\"\nsize = \"16MiB\"\nqueues = 4\nthreads = \"per-queue\"\n\
                       [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\nclass = \"guaranteed\"\nlatency_target = \"10ms\"\n";
const MEMORY: &str = "[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n";
const FILE: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\ncreate = true\nsize = \"64MiB\"\n";

fn policy(name: &str) -> String {
    format!("[policy]\nname = \"{name}\"\n")
}

/// No job of a load found anything but its own data.
fn assert_verified(load: Load) {
    let report = load.stop();
    let jobs = report["jobs"].as_array().unwrap();
    assert!(!jobs.is_empty());
    for job in jobs {
        assert_eq!(job["verify"]["bad_blocks"], 0, "{report:#}");
    }
}

#[test]
fn what_queues_of_several_pollers_write_is_read() {
    for name in ["passthrough", "lpns", "evenkeel"] {
        let home = Home::new();
        home.configure(&format!("{MEMORY}{}{TENANTS}", policy(name)));
        let daemon = home.serve();
        let pollers = &daemon.ready["drives"][0]["pollers"];
        assert_eq!(pollers.as_array().map(Vec::len), Some(5), "{pollers:#}");
        // More queues than jobs, then as many; the second client finds a controller as after power on.
        for jobs in [2, 4] {
            let job = format!("--rw randwrite --bs 4k --iodepth 8 --numjobs {jobs} --verify --runtime 120");
            let load = home.load("wide", &job);
            daemon.wait_log("wide: a client attached", jobs / 2);
            sleep(Duration::from_millis(100));
            assert_verified(load);
            daemon.wait_log("wide: the client went away", jobs / 2);
        }
        // What one queue wrote, another one reads.
        let mut guest = home.attach("wide");
        let mut other = guest.controller.create_queue_pair(64, None).unwrap();
        guest.write(7, &pattern(7, 512)).unwrap();
        std::mem::swap(&mut guest.queue, &mut other);
        assert_eq!(guest.read(7, 1).unwrap(), pattern(7, 512));
        drop(other);
        drop(guest);
        daemon.stop();
    }
}

#[test]
fn a_client_that_is_killed_amid_load_leaves_the_next_one_a_controller() {
    let home = Home::new();
    home.configure(&format!("{MEMORY}{}{TENANTS}", policy("evenkeel")));
    let daemon = home.serve();
    let neighbour = home.load("db", "--rw randwrite --bs 4k --iodepth 4 --verify --runtime 120");
    for life in 1..=5 {
        let load = home.load("wide", "--rw randrw --bs 16k --iodepth 32 --numjobs 4 --runtime 120");
        daemon.wait_log("wide: a client attached", life);
        sleep(Duration::from_millis(20 + 13 * life as u64));
        load.kill();
        daemon.wait_log("wide: the client went away", life);
    }
    assert_verified(neighbour);
    let load = home.load("wide", "--rw randwrite --bs 4k --iodepth 8 --numjobs 4 --verify --runtime 120");
    daemon.wait_log("wide: a client attached", 6);
    assert_verified(load);
    daemon.stop();
}

#[test]
fn clients_of_several_pollers_go_on_after_kills_under_load_whatever_serves_them_then() {
    let config = |tenants: &str| format!("{FILE}{}{tenants}", policy("evenkeel"));
    let (home, _keeper) = kept_with(&config(TENANTS));
    let mut daemon = home.serve();
    let job = "--rw randwrite --bs 4k --iodepth 32 --numjobs 4 --verify --runtime 120";
    let loads = ["wide", "db"].map(|tenant| home.load(tenant, job));
    daemon.wait_log("a client attached", 2);
    for kill in 0..8 {
        sleep(Duration::from_millis(20 + 37 * kill));
        if kill % 4 == 3 {
            daemon.stop();
        } else {
            drop(daemon);
        }
        // Now and then one poller has all of its queues.
        let shared = TENANTS.replace("per-queue", "shared");
        home.configure(&config(if kill % 3 == 2 { &shared } else { TENANTS }));
        daemon = home.serve();
        daemon.wait_log("a client goes on", 2);
    }
    loads.into_iter().for_each(assert_verified);
    daemon.stop();
}

/// What the guest is told of a namespace, it can use at once by a queue of whichever poller.
#[test]
fn namespaces_come_grow_and_go_at_all_pollers() {
    let home = Home::new();
    home.configure(&format!("{FILE}{}{TENANTS}", policy("passthrough")));
    let daemon = home.serve();
    let mut guest = home.attach("wide");
    let mut queues: Vec<_> = (0..3).map(|_| guest.controller.create_queue_pair(64, None).unwrap()).collect();
    let mut use_all = |guest: &mut Guest, lba: u64| {
        // What one writes, the next one reads.
        for at in 0..4 {
            guest.write(lba + at, &pattern(lba + at, 512)).unwrap();
            queues.rotate_left(1);
            std::mem::swap(&mut guest.queue, &mut queues[0]);
            assert_eq!(guest.read(lba + at, 1).unwrap(), pattern(lba + at, 512));
        }
    };
    for _ in 0..5 {
        done(&home, "create logs --size 2MiB --attach wide");
        wait_for_namespaces(&mut guest, &[1, 2]);
        go_to(&mut guest, 2, 2);
        use_all(&mut guest, 0);
        done(&home, "grow logs --size 3MiB");
        go_to(&mut guest, 2, 3);
        use_all(&mut guest, (2 << 20) / 512);
        done(&home, "detach logs --from wide");
        wait_for_namespaces(&mut guest, &[1]);
        assert!(guest.read(0, 1).is_err());
        done(&home, "delete logs --yes --wait");
    }
    drop(queues);
    drop(guest);
    daemon.stop();
}
