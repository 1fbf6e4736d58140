//! A guest sanitizes all that it has: the daemon goes on, whatever happens to it and to the guest.

use std::fs;

use nvme_driver::Error;
use nvme_spec::log::{SanitizeLog, lid, sstat};
use nvme_spec::opcode::{admin, sanitize};
use nvme_spec::{Sqe, Status};

use crate::disks::done;
use crate::encryption::{config, host_key};
use crate::guest::{Guest, pattern};
use crate::harness::{Home, wait_for};

const OVERWRITE: u32 = sanitize::OVERWRITE | 1 << sanitize::OWPASS_SHIFT;

fn begin(guest: &mut Guest, cdw10: u32) -> Result<u32, Error> {
    guest.controller.admin().run("Sanitize", Sqe { opc: admin::SANITIZE, cdw10, ..Sqe::default() }, None)
}

fn log(guest: &mut Guest) -> SanitizeLog {
    *guest.controller.admin().log_page(lid::SANITIZE_STATUS).unwrap()
}

fn status(guest: &mut Guest) -> u16 {
    log(guest).sstat & sstat::STATUS
}

fn layout(home: &Home) -> String {
    fs::read_to_string(home.path("drive.img.layout.toml")).unwrap()
}

/// Only here: an overwrite that a kill ends or undoes, or that waits for a guest that will never come.
#[test]
fn an_overwrite_goes_on_after_a_detach_and_a_kill() {
    let home = Home::new();
    let device = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                  [policy]\nname = \"passthrough\"\n";
    // Enough for a kill amid it.
    let tenants = "[[tenant]]\nname = \"a\"\nsize = \"16MiB\"\nw_bandwidth = \"1MiB/s\"\n\
                   [[tenant]]\nname = \"b\"\nsize = \"16MiB\"\n";
    home.configure(&format!("{device}{tenants}"));
    let daemon = home.serve();
    let neighbours = pattern(1, 65536);
    home.attach("b").write(8, &neighbours).unwrap();
    let mut a = home.attach("a");
    a.write(0, &pattern(2, 4096)).unwrap();
    begin(&mut a, OVERWRITE).unwrap();
    let begun = log(&mut a);
    assert_eq!((begun.sstat, begun.scdw10), (sstat::IN_PROGRESS, OVERWRITE));
    assert_eq!(a.read(0, 1), Err(Status::SANITIZE_IN_PROGRESS));
    wait_for("some progress", || (log(&mut a).sprog > 0).then_some(()));
    drop(a);
    let mut a = home.attach("a");
    assert_eq!((status(&mut a), a.read(0, 1)), (sstat::IN_PROGRESS, Err(Status::SANITIZE_IN_PROGRESS)));
    drop(a);
    // Killed.
    drop(daemon);
    assert!(layout(&home).contains("state = \"running\"") && layout(&home).contains("formatting_to_lba_bytes = 512"));

    home.configure(&format!("{device}{}", tenants.replace("w_bandwidth = \"1MiB/s\"\n", "")));
    let daemon = home.serve();
    daemon.wait_log("a: its guest's Sanitize goes on", 1);
    daemon.wait_log("a: sanitized", 1);
    let mut a = home.attach("a");
    assert_eq!(log(&mut a).sstat, sstat::COMPLETED | 1 << sstat::PASSES_SHIFT | sstat::NOTHING_WRITTEN);
    assert!(a.read(0, 256).unwrap().iter().all(|byte| *byte == 0));
    a.write(1, &pattern(3, 4096)).unwrap();
    assert_eq!(home.attach("b").read(8, 128).unwrap(), neighbours);
    drop(a);
    daemon.stop();
    assert!(!layout(&home).contains("formatting_to_lba_bytes ="));

    let daemon = home.serve();
    let mut a = home.attach("a");
    assert_eq!((status(&mut a), a.read(1, 8).unwrap()), (sstat::COMPLETED, pattern(3, 4096)));
    drop(a);
    daemon.stop();
}

/// Only here: a namespace that keeps its key, or a former key that comes back.
#[test]
fn a_crypto_erase_leaves_noise_in_every_namespace() {
    let home = Home::new();
    host_key(&home);
    home.configure(&config("[keys]\nhost_key = \"HOST/host.key\"\n"));
    let daemon = home.serve();
    done(&home, "create part --size 4MiB --encryption host --attach secret");
    let former = pattern(1, 64 << 10);
    let mut guest = home.attach("secret");
    for nsid in [1, 2] {
        guest.ns.nsid = nsid;
        guest.write(16, &former).unwrap();
    }
    begin(&mut guest, sanitize::CRYPTO_ERASE).unwrap();
    wait_for("its end", || (status(&mut guest) == sstat::COMPLETED).then_some(()));
    let noise = |guest: &mut Guest| {
        for nsid in [1, 2] {
            guest.ns.nsid = nsid;
            let read = guest.read(16, 16).unwrap();
            assert!(read != former && read.iter().any(|byte| *byte != 0), "namespace {nsid}");
        }
    };
    noise(&mut guest);
    guest.ns.nsid = 1;
    guest.write(0, &former[..4096]).unwrap();
    drop(guest);
    // Killed.
    drop(daemon);
    let daemon = home.serve();
    let mut guest = home.attach("secret");
    noise(&mut guest);
    guest.ns.nsid = 1;
    assert_eq!((status(&mut guest), &guest.read(0, 1).unwrap()[..]), (sstat::COMPLETED, &former[..4096]));
    // A disk without a key of the host's has none to replace.
    let told = begin(&mut home.attach("plain"), sanitize::CRYPTO_ERASE).unwrap_err().to_string();
    assert!(told.contains("INVALID_FIELD"), "{told}");
    drop(guest);
    daemon.stop();
}
