//! Drives that are away, or not what they were, when the daemon starts: the others are served, nothing is lost, and no
//! name is there twice.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::process::Output;

use serde_json::{Value, json};

use crate::disks::{done, is_served, refused};
use crate::drive_errors::SmallDisk;
use crate::guest::pattern;
use crate::harness::{Daemon, Home, errors, evenkeel, wait_for};

const BLOCK: u32 = 8;

/// `a` must be there.
const CONFIG: &str = r#"
[policy]
name = "passthrough"

[[drive]]
name = "a"
backend = "file"
path = "HOST/a.img"
size = "64MiB"
create = true

[[tenant]]
name = "db"
drive = "a"
size = "4MiB"
"#;

/// Comes before `a` in the file.
const BIG: &str = r#"
[[drive]]
name = "big"
backend = "file"
path = "HOST/big.img"
size = "32MiB"
create = true
nofail = true

[[tenant]]
name = "gone"
drive = "big"
size = "4MiB"
"#;

fn ask(home: &Home, arguments: &str) -> Output {
    let socket = home.runtime_dir().join("api.sock");
    evenkeel().args(arguments.split_whitespace()).env("EVENKEEL_SOCKET", socket).output().unwrap()
}

fn answer(home: &Home, arguments: &str) -> Value {
    let output = ask(home, &format!("{arguments} --json"));
    assert!(output.status.success(), "{arguments}: {}", errors(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fails(home: &Home, arguments: &str) -> String {
    let output = ask(home, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments}: {output:?}");
    errors(&output)
}

fn add(home: &Home, name: &str) {
    let path = home.path(&format!("{name}.img"));
    let name = name.rsplit('/').next().unwrap_or(name);
    answer(home, &format!("drive add {name} --backend file --path {} --size 32MiB --create", path.display()));
}

fn make(home: &Home, name: &str, drive: &str, seed: u64) {
    done(home, &format!("create {name} --size 4MiB --drive {drive}"));
    wait_for("the disk", || is_served(home, name));
    let mut guest = home.attach(name);
    guest.write(0, &pattern(seed, 4096)).unwrap();
    guest.flush().unwrap();
}

fn why_missing(home: &Home, drive: &str) -> String {
    answer(home, &format!("drive show {drive}"))["failed"].as_str().unwrap_or_default().to_owned()
}

fn names(home: &Home) -> Vec<String> {
    let all = done(home, "list");
    all["items"].as_array().unwrap().iter().map(|disk| disk["name"].as_str().unwrap().to_owned()).collect()
}

/// `db` is served although the drive is missing, for a reason that says `why`.
fn serves_without(home: &Home, drive: &str, why: &str) -> Daemon {
    let daemon = home.serve();
    let told = why_missing(home, drive);
    assert!(told.contains(why), "{told}");
    home.attach("db").write(0, &pattern(9, 4096)).unwrap();
    daemon
}

#[test]
fn names_of_disks_on_a_missing_drive_stay_taken() {
    let home = Home::new();
    home.configure(&format!("{BIG}{CONFIG}"));
    let daemon = home.serve();
    add(&home, "spare");
    make(&home, "sp1", "spare", 1);
    make(&home, "big1", "big", 2);
    // SIGKILL.
    drop(daemon);
    for image in ["spare.img", "big.img"] {
        fs::rename(home.path(image), home.path(&format!("{image}.away"))).unwrap();
    }
    let daemon = home.serve();
    let log = daemon.log();
    assert!(log.contains("drives.toml) is unavailable, and its disk \"sp1\" is not served"), "{log}");
    assert!(log.contains("drive \"big\" is unavailable, and its disks \"big1\", \"gone\" are not served"), "{log}");
    assert_eq!(answer(&home, "drive show big")["disks_not_served"], json!(["big1", "gone"]));
    let told = String::from_utf8(ask(&home, "disk list").stdout).unwrap();
    assert!(told.contains("not served: big1, gone, since drive big is missing: "), "{told}");
    for name in ["sp1", "big1", "gone"] {
        let told = refused(&home, &format!("create {name} --size 4MiB --drive a"));
        assert!(told.contains(&format!("another disk {name:?} already")) && told.contains("is missing"), "{told}");
        let told = refused(&home, &format!("create {name} --size 4MiB --attach db"));
        assert!(told.contains(&format!("another disk {name:?} already")), "{told}");
        let told = refused(&home, &format!("delete {name} --yes"));
        assert!(told.contains("is missing"), "{told}");
    }
    let told = refused(&home, "create other --size 4MiB --drive spare");
    assert!(told.contains("drive \"spare\" is missing: ") && told.contains("does not exist"), "{told}");
    let exported = String::from_utf8(ask(&home, "export").stdout).unwrap();
    assert!(exported.contains("name = \"sp1\"\ndrive = \"spare\"\n"), "{exported}");
    drop(daemon);
    for image in ["spare.img", "big.img"] {
        fs::rename(home.path(&format!("{image}.away")), home.path(image)).unwrap();
    }
    let daemon = home.serve();
    assert_eq!(home.attach("sp1").read(0, BLOCK).unwrap(), pattern(1, 4096));
    assert_eq!(home.attach("big1").read(0, BLOCK).unwrap(), pattern(2, 4096));
    daemon.stop();
}

#[test]
fn one_name_on_two_drives_is_served_once() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    add(&home, "spare");
    make(&home, "sp1", "spare", 1);
    drop(daemon);
    // Nobody can know what is on it.
    let layout = home.path("state/layout-of-spare.toml");
    for file in [home.path("spare.img"), layout.clone()] {
        fs::rename(&file, file.with_extension("away")).unwrap();
    }
    let daemon = home.serve();
    assert!(daemon.log().contains("there may be more: no layout file of it was found"), "{}", daemon.log());
    make(&home, "sp1", "a", 2);
    drop(daemon);
    for file in [home.path("spare.img"), layout.clone()] {
        fs::rename(file.with_extension("away"), &file).unwrap();
    }
    let recorded = fs::read(&layout).unwrap();
    let daemon = serves_without(&home, "spare", "it has a disk \"sp1\", and so has drive \"a\"");
    assert_eq!(names(&home), ["db", "sp1"]);
    assert_eq!(home.attach("sp1").read(0, BLOCK).unwrap(), pattern(2, 4096));
    done(&home, "delete sp1 --yes --force --wait");
    daemon.stop();
    // The other one was not touched.
    assert_eq!(fs::read(&layout).unwrap(), recorded);
    let daemon = home.serve();
    assert_eq!(home.attach("sp1").read(0, BLOCK).unwrap(), pattern(1, 4096));
    daemon.stop();
}

#[test]
fn one_image_is_not_two_drives() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    add(&home, "spare");
    make(&home, "sp1", "spare", 1);
    drop(daemon);
    let (image, away) = (home.path("spare.img"), home.path("away"));
    fs::rename(&image, &away).unwrap();
    let daemon = serves_without(&home, "spare", "does not exist");
    let told =
        fails(&home, &format!("drive add spare9 --backend file --path {} --size 8MiB --create", image.display()));
    assert!(told.contains("spare.img is drive \"spare\" already, which is missing"), "{told}");
    let told = fails(&home, "drive add spare --backend memory --size 8MiB");
    assert!(told.contains("there is a drive \"spare\" already, which is missing"), "{told}");
    drop(daemon);
    fs::rename(&away, &image).unwrap();
    // A list as earlier versions would have made it.
    let list = home.path("state/drives.toml");
    let text = fs::read_to_string(&list).unwrap();
    let section = text.split_once("[[drive]]").unwrap().1.split_once("# end").unwrap().0;
    let second = section.replace("\"spare\"", "\"spare9\"").replace("layout-of-spare", "layout-of-spare9");
    fs::write(&list, text.replace("# end", &format!("[[drive]]{second}\n# end"))).unwrap();
    let daemon = serves_without(&home, "spare9", "spare.img is drive \"spare\" already");
    let log = daemon.log();
    assert!(log.contains("`evenkeel drive remove spare9` takes one of the two out of") && log.contains("drives.toml"));
    assert_eq!(home.attach("sp1").read(0, BLOCK).unwrap(), pattern(1, 4096));
    answer(&home, "drive remove spare9 --force");
    daemon.stop();
    let daemon = home.serve();
    assert_eq!(answer(&home, "drive list")["items"].as_array().unwrap().len(), 2);
    daemon.stop();
}

#[test]
fn a_drive_that_need_not_be_there_never_keeps_the_daemon_from_starting() {
    let home = Home::new();
    home.configure(&format!("{BIG}{CONFIG}"));
    let daemon = home.serve();
    add(&home, "spare");
    make(&home, "sp1", "spare", 1);
    daemon.stop();
    for (drive, layout) in
        [("spare", home.path("state/layout-of-spare.toml")), ("big", home.path("big.img.layout.toml"))]
    {
        let image = home.path(&format!("{drive}.img"));
        // Another process has it.
        let locked = File::open(&image).unwrap();
        locked.try_lock().unwrap();
        serves_without(&home, drive, "is in use by another process").stop();
        drop(locked);
        // It shrank.
        let resize = |bytes| OpenOptions::new().write(true).open(&image).unwrap().set_len(bytes).unwrap();
        resize(16 << 20);
        serves_without(&home, drive, "less than size").stop();
        resize(32 << 20);
        // Its layout is of a drive of another size.
        let recorded = fs::read_to_string(&layout).unwrap();
        fs::write(&layout, recorded.replace("size_bytes = 33554432", "size_bytes = 67108864")).unwrap();
        serves_without(&home, drive, "has 32MiB, it had 64MiB before").stop();
        // It holds data, and nobody knows whose.
        OpenOptions::new().write(true).open(&image).unwrap().write_all(&[7]).unwrap();
        fs::remove_file(&layout).unwrap();
        serves_without(&home, drive, "no layout file describes it").stop();
        // Half a layout.
        fs::write(&layout, &recorded[..recorded.len() / 2]).unwrap();
        serves_without(&home, drive, "is damaged").stop();
        fs::write(&layout, recorded).unwrap();
        // The image is gone.
        fs::rename(&image, home.path("kept")).unwrap();
        serves_without(&home, drive, if drive == "big" { "the image is missing" } else { "does not exist" }).stop();
        fs::rename(home.path("kept"), &image).unwrap();
    }
    // Nothing of that is left.
    let daemon = home.serve();
    assert_eq!(names(&home).len(), 3);
    assert_eq!(home.attach("sp1").read(BLOCK.into(), BLOCK).unwrap(), vec![0; 4096]);
    daemon.stop();
}

#[test]
fn a_drive_that_must_be_there_says_how_the_others_can_do_without_it() {
    let home = Home::new();
    let told = |text: &str| {
        let config = home.configure(text);
        home.try_serve(&config, &[]).err().expect("a drive is not there");
        let told = fs::read_to_string(config.with_extension("log")).unwrap();
        fs::remove_file(config.with_extension("log")).unwrap();
        told
    };
    let remedy = "or write nofail = true in its section: then the others are served without it";
    let must = BIG.replace("nofail = true\n", "");
    let missing = told(&format!("{CONFIG}{}", must.replace("create = true\n", "")));
    assert!(missing.contains("big.img does not exist") && missing.contains(remedy), "{missing}");
    // It holds data, and half a layout says whose.
    fs::write(home.path("big.img"), vec![1; 32 << 20]).unwrap();
    fs::write(home.path("big.img.layout.toml"), "version = 2\n[device]\npa").unwrap();
    let cut = told(&format!("{CONFIG}{must}"));
    assert!(cut.contains("it was cut short") && cut.contains(remedy), "{cut}");
    // There are no others.
    let alone = told(&CONFIG.replace("create = true\n", ""));
    assert!(alone.contains("a.img does not exist") && !alone.contains("nofail"), "{alone}");
}

#[test]
fn a_drive_that_shrank_and_says_no_size_is_missing() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let image = home.path("spare.img");
    File::create(&image).unwrap().set_len(32 << 20).unwrap();
    answer(&home, &format!("drive add spare --backend file --path {}", image.display()));
    make(&home, "sp1", "spare", 1);
    daemon.stop();
    OpenOptions::new().write(true).open(&image).unwrap().set_len(16 << 20).unwrap();
    serves_without(&home, "spare", "has 16MiB, it had 32MiB before").stop();
}

#[test]
fn a_dead_drive_can_be_forgotten() {
    let home = Home::new();
    home.configure(&format!("{BIG}{CONFIG}"));
    let daemon = home.serve();
    for drive in ["spare", "empty", "kept"] {
        add(&home, drive);
    }
    make(&home, "sp1", "spare", 1);
    make(&home, "k1", "kept", 2);
    daemon.stop();
    for image in ["spare.img", "empty.img", "big.img"] {
        fs::rename(home.path(image), home.path(&format!("{image}.away"))).unwrap();
    }
    let daemon = home.serve();
    let told = fails(&home, "drive remove spare");
    assert!(told.contains("its disk \"sp1\" would be forgotten") && told.contains("--force"), "{told}");
    let told = fails(&home, "drive remove big --force");
    assert!(told.contains("\"big\" is declared in"), "{told}");
    // With disks on it, a drive that is there stays.
    let told = fails(&home, "drive remove kept --force");
    assert!(told.contains("\"kept\" is not empty: it has a disk"), "{told}");
    let output = ask(&home, "drive remove spare --force");
    let told = String::from_utf8_lossy(&output.stdout);
    assert_eq!(told, "spare is no longer served; its disks are forgotten: sp1\n", "{}", errors(&output));
    answer(&home, "drive remove empty");
    assert!(!home.path("state/layout-of-spare.toml").exists());
    // Its name is free, and so are those of its disks.
    make(&home, "sp1", "a", 3);
    add(&home, "spare");
    daemon.stop();
    let daemon = home.serve();
    assert_eq!(home.attach("sp1").read(0, BLOCK).unwrap(), pattern(3, 4096));
    daemon.stop();
}

#[test]
fn a_drive_that_can_not_wipe_any_more_is_taken_away_by_force() {
    let home = Home::new();
    let Some(_disk) = SmallDisk::mount(&home.path("mount")) else { return };
    home.configure(CONFIG);
    let daemon = home.serve();
    add(&home, "mount/spare");
    // On tmpfs blocks are larger.
    done(&home, "create sp1 --size 4MiB --drive spare --lba-size 4096");
    // What was never written can't be written over, which a wipe by zeros does not try.
    let mut filler = File::create(home.path("mount/filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    done(&home, "delete sp1 --yes --force --wipe three-passes");
    let has_failed =
        || answer(&home, "operations")["items"].as_array().unwrap().iter().any(|it| it["state"] == "failed");
    wait_for("the wipe's end", || has_failed().then_some(()));
    let why = answer(&home, "operations")["items"][0]["why"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("the drive failed a command"), "{why}");
    let told = fails(&home, "drive remove spare");
    assert!(told.contains("4MiB of deleted disks are left, and wiping failed: ") && told.contains(&why), "{told}");
    assert!(told.contains("--force") && told.contains("next start") && !told.contains("wait"), "{told}");
    let told = String::from_utf8(ask(&home, "drive remove spare --force").stdout).unwrap();
    assert_eq!(told, "spare is no longer served; 4MiB of deleted disks' data are on it and were not wiped\n");
    daemon.wait_log("drive spare: 4MiB of deleted disks' data are on it", 1);
    assert_eq!(answer(&home, "drive list")["items"].as_array().unwrap().len(), 1);
    home.attach("db").write(0, &pattern(9, 4096)).unwrap();
    daemon.stop();
}

#[test]
fn a_file_is_applied_to_the_drives_that_are_there() {
    let home = Home::new();
    let text = format!("{BIG}{CONFIG}[[tenant]]\nname = \"placed\"\nsize = \"4MiB\"\n");
    let config = home.configure(&text);
    home.serve().stop();
    fs::rename(home.path("big.img"), home.path("away")).unwrap();
    let daemon = home.serve();
    let at = config.to_str().unwrap();
    let apply = |text: &str| {
        home.configure(text);
        answer(&home, &format!("apply {at} --yes"))["steps"].clone()
    };
    assert_eq!(apply(&text), json!([]));
    // What concerns drives that are there is done; the rest waits.
    let changed = text
        .replace("name = \"gone\"", "weight = 7\nname = \"gone\"")
        .replace("drive = \"a\"", "drive = \"a\"\nweight = 5")
        + "[[tenant]]\nname = \"new\"\nsize = \"4MiB\"\n[[tenant]]\nname = \"late\"\ndrive = \"big\"\n\
           size = \"4MiB\"\n";
    let steps = apply(&changed);
    let action = |name: &str| {
        let all = steps.as_array().unwrap();
        all.iter().find(|step| step["tenant"] == name).map(|step| step["action"].as_str().unwrap().to_owned())
    };
    let actions = ["db", "new", "gone", "late", "placed"].map(action);
    let expected = [Some("change"), Some("create"), Some("later"), Some("later"), None];
    assert_eq!(actions, expected.map(|action| action.map(str::to_owned)), "{steps}");
    assert!(steps.to_string().contains("drive \\\"big\\\" is missing"), "{steps}");
    assert_eq!(done(&home, "show db")["weight"], 5);
    wait_for("the disk", || is_served(&home, "new"));
    // A tenant that leaves the file is not forgotten.
    let without = changed.replace("[[tenant]]\nweight = 7\nname = \"gone\"\ndrive = \"big\"\nsize = \"4MiB\"\n", "");
    assert!(!without.contains("gone"));
    let steps = apply(&without);
    assert!(steps.as_array().unwrap().iter().all(|step| step["action"] == "later"), "{steps}");
    daemon.stop();
    fs::rename(home.path("away"), home.path("big.img")).unwrap();
    home.configure(&changed);
    let daemon = home.serve();
    for name in ["db", "gone", "placed", "new", "late"] {
        wait_for("the disk", || is_served(&home, name));
    }
    daemon.stop();
}
