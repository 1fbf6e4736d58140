//! Disks that grow while their guests do I/O.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use nvme_driver::{Namespace, Status};

use crate::disks::{done, is_served, refused};
use crate::guest::{Guest, pattern};
use crate::harness::{Home, evenkeel, wait_for};

const MIB: u64 = 1 << 20;
const CONFIG: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                      [policy]\nname = \"passthrough\"\n";

fn layout(home: &Home) -> toml::Table {
    fs::read_to_string(home.path("drive.img.layout.toml")).unwrap().parse().unwrap()
}

/// The namespace as it is now.
fn look(guest: &mut Guest) -> Namespace {
    guest.controller.first_namespace().unwrap()
}

/// What a disk has at `at`, in steps of 64 KiB.
fn content(seed: u64, at: u64, len: u64) -> Vec<u8> {
    let step = 64 << 10;
    (at..at + len).step_by(step as usize).flat_map(|at| pattern(seed + at, step as usize)).collect()
}

/// Writes all of a disk from `from` on, in pieces that lie across each MiB.
fn fill(guest: &mut Guest, seed: u64, from_mib: u64, to_mib: u64) {
    let step = 512 << 10;
    let mut at = (from_mib * MIB).saturating_sub(step / 2);
    while at < to_mib * MIB {
        let len = step.min(to_mib * MIB - at);
        guest.write(at / 512, &content(seed, at, len)).unwrap();
        at += len;
    }
}

fn check(guest: &mut Guest, seed: u64, from_mib: u64, to_mib: u64) {
    let step = 512 << 10;
    let mut at = (from_mib * MIB).saturating_sub(step / 2);
    while at < to_mib * MIB {
        let len = step.min(to_mib * MIB - at);
        assert!(guest.read(at / 512, len as u32 / 512).unwrap() == content(seed, at, len), "at {at}");
        at += len;
    }
}

#[test]
fn a_disk_grows_into_the_holes_around_its_neighbours_and_keeps_its_data() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    // a|hole|b|hole|c|rest: what grows is in pieces.
    for name in ["a", "one", "b", "two", "c"] {
        done(&home, &format!("create {name} --size 8MiB"));
    }
    done(&home, "delete one --yes --wait");
    done(&home, "delete two --yes --wait");
    let (mut a, mut b, mut c) = (home.attach("a"), home.attach("b"), home.attach("c"));
    fill(&mut a, 1, 0, 8);
    fill(&mut b, 2, 0, 8);
    fill(&mut c, 3, 0, 8);
    for (now_mib, next_mib) in [(8, 12), (12, 20), (20, 30)] {
        assert_eq!(a.read(now_mib * MIB / 512, 1), Err(Status::LBA_OUT_OF_RANGE));
        let disk = done(&home, &format!("grow a --size {next_mib}MiB"));
        // As good as the first time.
        assert_eq!(done(&home, &format!("grow a --size {next_mib}MiB")), disk);
        assert_eq!(disk["size_bytes"], next_mib * MIB);
        wait_for("the namespace to be longer", || (look(&mut a).size_bytes() == next_mib * MIB).then_some(()));
        let new = a.read(now_mib * MIB / 512, 1024).unwrap();
        assert!(new.iter().all(|byte| *byte == 0));
        check(&mut a, 1, 0, now_mib);
        fill(&mut a, 1, now_mib, next_mib);
        check(&mut a, 1, 0, next_mib);
    }
    assert!(layout(&home)["tenant"][0]["more"].as_array().is_some_and(|more| more.len() >= 2), "{}", layout(&home));
    check(&mut b, 2, 0, 8);
    check(&mut c, 3, 0, 8);
    a.deallocate(0, 30 * MIB as u32 / 512).unwrap();
    assert!(a.read(0, 2048).unwrap().iter().all(|byte| *byte == 0));
    fill(&mut a, 5, 0, 30);
    check(&mut b, 2, 0, 8);
    check(&mut c, 3, 0, 8);
    // SIGKILL.
    drop(daemon);
    drop((a, b, c));
    let daemon = home.serve();
    let mut a = home.attach("a");
    assert_eq!(a.ns.size_bytes(), 30 * MIB);
    check(&mut a, 5, 0, 30);
    check(&mut home.attach("b"), 2, 0, 8);
    drop(a);
    for (arguments, wanted) in [
        ("grow a --size 29MiB", "\"a\" has 30MiB, and a disk can't shrink"),
        ("grow a --size 1GiB", "no room for \"a\" to grow so far: "),
        ("grow a --size 5", "not a multiple of 4096 bytes"),
        ("grow nobody --size 8MiB", "there is no disk \"nobody\""),
    ] {
        let before = layout(&home);
        let told = refused(&home, arguments);
        assert!(told.contains(wanted), "{arguments}: {told}");
        assert_eq!(layout(&home), before);
    }
    done(&home, "grow a --size 48MiB");
    done(&home, "delete a --yes --force --wait");
    done(&home, "create d --size 48MiB");
    let mut d = home.attach("d");
    (0..48).for_each(|at| assert!(d.read(at * MIB / 512, 2048).unwrap().iter().all(|byte| *byte == 0)));
    daemon.stop();
}

#[test]
fn what_a_disk_grows_by_is_zeroed_before_its_guest_sees_it() {
    let home = Home::new();
    // A drive with unknown data.
    let image = File::create(home.path("drive.img")).unwrap();
    image.write_all_at(&vec![0xee; 64 << 20], 0).unwrap();
    drop(image);
    let config = CONFIG.replace("create = true\n", "");
    home.configure(&format!("{config}[[tenant]]\nname = \"db\"\nsize = \"8MiB\"\noffset = \"0\"\n"));
    let daemon = home.serve();
    done(&home, "create web --size 8MiB");
    wait_for("the disk", || is_served(&home, "web"));
    let mut web = home.attach("web");
    fill(&mut web, 4, 0, 8);
    done(&home, "grow web --size 32MiB");
    wait_for("the new part", || (look(&mut web).size_bytes() == 32 * MIB).then_some(()));
    (8..32).for_each(|at| assert!(web.read(at * MIB / 512, 2048).unwrap().iter().all(|byte| *byte == 0)));
    check(&mut web, 4, 0, 8);
    daemon.stop();
    drop(web);
    // The file's tenant grows at a start; it is served meanwhile.
    home.configure(&format!("{config}[[tenant]]\nname = \"db\"\nsize = \"24MiB\"\noffset = \"0\"\n"));
    let daemon = home.serve();
    let mut db = home.attach("db");
    wait_for("the new part", || (look(&mut db).size_bytes() == 24 * MIB).then_some(()));
    let mut holds =
        |at: u64, what| assert!(db.read(at * MIB / 512, 2048).unwrap().iter().all(|byte| *byte == what), "MiB {at}");
    (0..8).for_each(|at| holds(at, 0xee));
    (8..24).for_each(|at| holds(at, 0));
    check(&mut home.attach("web"), 4, 0, 8);
    // And while it runs.
    let file = home.configure(&format!("{config}[[tenant]]\nname = \"db\"\nsize = \"28MiB\"\noffset = \"0\"\n"));
    let mut apply = evenkeel();
    apply.arg("apply").arg(file).arg("--yes").env("EVENKEEL_SOCKET", home.runtime_dir().join("api.sock"));
    let output = apply.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("change db: size 24MiB → 28MiB"), "{output:?}");
    wait_for("the new part", || (look(&mut db).size_bytes() == 28 * MIB).then_some(()));
    assert!(db.read(27 * MIB / 512, 2048).unwrap().iter().all(|byte| *byte == 0));
    daemon.stop();
}
