//! Doorbells at a poller that sleeps.

use nvme_driver::VfioUserDevice;

use crate::guest::{Guest, pattern};
use crate::harness::{Daemon, Home, wait_for};

const CONFIG: &str = "[device]\nbackend = \"memory\"\nsize = \"8MiB\"\n\
                      [pollers]\nidle_after = \"1ms\"\n\
                      [[tenant]]\nname = \"mapped\"\nsize = \"4MiB\"\n\
                      [[tenant]]\nname = \"trapped\"\nsize = \"4MiB\"\ndoorbells = \"trapped\"\n";

/// Waits until the daemon's poller is in a system call that waits: a poller that runs never is.
fn wait_asleep(daemon: &Daemon) {
    let tasks = format!("/proc/{}/task", daemon.ready["pid"]);
    wait_for("the poller to sleep", || {
        std::fs::read_dir(&tasks).unwrap().find_map(|task| {
            // Name and state, as in `41 (poller-0) S ...`.
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).ok()?;
            stat.contains("(poller-0) S").then_some(())
        })
    });
}

fn one_at_a_time(daemon: &Daemon, mut guest: Guest) {
    for round in 0..20 {
        wait_asleep(daemon);
        guest.write(round, &pattern(round, 512)).unwrap();
        wait_asleep(daemon);
        assert_eq!(guest.read(round, 1).unwrap(), pattern(round, 512));
    }
}

fn device(home: &Home, tenant: &str) -> VfioUserDevice {
    VfioUserDevice::connect(&home.runtime_dir().join(tenant)).unwrap()
}

#[test]
fn a_trapped_doorbell_wakes_the_poller() {
    let home = Home::new();
    // Nobody looks at mapped doorbells: there is no client that has any.
    home.configure(CONFIG);
    let daemon = home.serve();
    let guest = home.attach("trapped");
    assert!(guest.controller.has_shadow_doorbells());
    one_at_a_time(&daemon, guest);
    daemon.stop();
}

#[test]
fn the_scanner_finds_mapped_doorbells() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let guest = home.attach("mapped");
    assert!(!guest.controller.has_shadow_doorbells(), "the doorbells are mapped");
    one_at_a_time(&daemon, guest);
    // A guest that is offered mapped doorbells and does not take them.
    let guest = Guest::on(device(&home, "mapped").without_mapped_doorbells());
    assert!(guest.controller.has_shadow_doorbells());
    one_at_a_time(&daemon, guest);
    daemon.stop();
}

#[test]
fn both_verify_while_the_poller_falls_asleep_again_and_again() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    // A command every 5 ms each: the poller sleeps between most of them.
    let job = "--rw write --bs 16k --verify --rate-iops 200 --rate-process poisson";
    let loads = ["mapped", "trapped"].map(|tenant| home.load(tenant, job));
    for load in loads {
        load.expect_clean();
    }
    daemon.stop();
}
