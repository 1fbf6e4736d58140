//! Ceilings of groups: several disks on several drives share one, and it changes while they are served.

use std::time::Instant;

use serde_json::Value;

use crate::disks::{done, refused};
use crate::harness::{Home, errors, evenkeel};

fn file(rw_iops: u32) -> String {
    let drive = |name: &str, policy: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\nbackend = \"file\"\npath = \"HOST/{name}.img\"\nsize = \"64MiB\"\n\
             create = true\n[drive.policy]\nname = \"{policy}\"\n\
             [[tenant]]\nname = \"on-{name}\"\nsize = \"8MiB\"\ndrive = \"{name}\"\ngroup = \"vm7\"\n"
        )
    };
    format!("[[group]]\nname = \"vm7\"\nrw_iops = {rw_iops}\n{}{}", drive("one", "evenkeel"), drive("two", "drr"))
}

/// Commands of both disks together, and the seconds that contain them.
fn load(home: &Home) -> (f64, f64) {
    let began = Instant::now();
    let job = "--rw randrw --bs 4k --iodepth 16 --size 1m --runtime 500ms";
    let loads = ["on-one", "on-two"].map(|disk| home.load(disk, job));
    let ios = |report: Value| {
        let of = |way: &str| report["jobs"][0][way]["total_ios"].as_f64().unwrap();
        of("read") + of("write")
    };
    let ios: f64 = loads.map(|load| ios(load.expect_clean())).into_iter().sum();
    (ios, began.elapsed().as_secs_f64())
}

/// A ceiling per poller or per drive, or one that a running poller doesn't see change.
#[test]
fn disks_on_two_drives_share_a_ceiling_that_changes_while_they_are_served() {
    let home = Home::new();
    home.configure(&file(8_000));
    let daemon = home.serve();
    let within = |most: f64| {
        let (ios, seconds) = load(&home);
        // The quotas of the first and last slice, and a command per poller.
        let allowed = most * (seconds + 0.002) + 2.0;
        assert!(ios > 0.0 && ios <= allowed, "{ios} commands in {seconds} s at {most} IOPS");
    };
    within(8_000.0);
    let next = home.configure(&file(400));
    let socket = home.runtime_dir().join("api.sock");
    let apply = ["apply", next.to_str().unwrap(), "--yes"];
    let output = evenkeel().args(apply).env("EVENKEEL_SOCKET", &socket).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("change the daemon: group.vm7.rw_iops 8000 → 400"), "{shown}");
    within(400.0);

    let told = refused(&home, "create late --size 4MiB --drive one --group vm");
    assert!(told.contains("there is no group \"vm\" for tenant \"late\"; did you mean \"vm7\"?"), "{told}");
    assert_eq!(done(&home, "create late --size 4MiB --drive one --group vm7")["group"], "vm7");
    assert_eq!(done(&home, "set late --group none")["group"], Value::Null);
    done(&home, "set late --group vm7");
    daemon.stop();

    // Its section stands in no file, and a limit is not dropped silently.
    home.configure(&file(400).replace("vm7", "vm8"));
    let refused = home.try_serve(&home.config(), &[]);
    assert!(refused.is_err());
    let log = std::fs::read_to_string(home.config().with_extension("log")).unwrap();
    assert!(log.contains("disks that the API made:"), "{log}");
    assert!(log.contains("there is no group \"vm7\" for tenant \"late\""), "{log}");
}
