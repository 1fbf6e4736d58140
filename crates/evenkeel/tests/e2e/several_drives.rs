//! One daemon, several drives.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::disks::{done, is_served, raw, refused};
use crate::guest::pattern;
use crate::harness::{Home, errors, evenkeel, wait_for};

const BLOCK: u32 = 8;

/// `fast` promises something, `big` shares by weight and has more room.
const CONFIG: &str = r#"
[[drive]]
name = "fast"
backend = "file"
path = "HOST/fast.img"
size = "32MiB"
create = true

[drive.policy]
name = "passthrough"

[[drive]]
name = "big"
backend = "file"
path = "HOST/big.img"
size = "64MiB"
create = true

[policy]
name = "drr"

[[tenant]]
name = "db"
drive = "big"
size = "8MiB"
"#;

pub fn ask(home: &Home, arguments: &[&str]) -> Output {
    let socket = home.runtime_dir().join("api.sock");
    evenkeel().args(arguments).env("EVENKEEL_SOCKET", socket).output().unwrap()
}

fn answer(home: &Home, arguments: &[&str]) -> Value {
    let output = ask(home, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn free_bytes(home: &Home, drive: &str) -> u64 {
    answer(home, &["drive", "show", drive])["free_bytes"].as_u64().unwrap()
}

fn drive_of(home: &Home, disk: &str) -> String {
    done(home, &format!("show {disk}"))["drive"].as_str().unwrap().to_owned()
}

fn check_fails(home: &Home, config: &str) -> String {
    home.configure(config);
    let output = evenkeel().arg("check").arg(home.config()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    errors(&output)
}

#[test]
fn tenants_are_on_the_drive_that_they_name_or_on_the_one_with_the_least_left_over() {
    let home = Home::new();
    home.configure(&format!("{CONFIG}[[tenant]]\nname = \"web\"\nsize = \"16MiB\"\n"));
    let daemon = home.serve();
    let drives = answer(&home, &["drive", "list"])["items"].clone();
    let policies: Vec<_> = drives.as_array().unwrap().iter().map(|it| (&it["name"], &it["policy"])).collect();
    assert_eq!(policies, [(&json!("fast"), &json!("passthrough")), (&json!("big"), &json!("drr"))]);
    assert_eq!((drive_of(&home, "db"), drive_of(&home, "web")), ("big".into(), "fast".into()));

    done(&home, "create named --size 8MiB --drive big");
    done(&home, "create placed --size 16MiB");
    assert_eq!((drive_of(&home, "named"), drive_of(&home, "placed")), ("big".into(), "fast".into()));
    // The other one is full.
    done(&home, "create next --size 16MiB");
    assert_eq!(drive_of(&home, "next"), "big");
    let told = refused(&home, "create more --size 40MiB");
    assert!(told.contains("no drive can have \"more\": fast: ") && told.contains("big: "), "{told}");
    for malformed in ["create a/b --size 4MiB", "create odd --size 5"] {
        let told = refused(&home, malformed);
        assert!(!told.contains("fast") && !told.contains("big"), "{told}");
    }
    done(&home, "create logs --size 2MiB --attach db");
    let told = refused(&home, "attach logs --to web");
    assert!(told.contains("\"logs\" is on drive \"big\", and tenant \"web\" on \"fast\""), "{told}");
    done(&home, "delete logs --yes --force --wait");
    let told = refused(&home, "create more --size 8MiB --drive fats");
    assert!(told.contains("there is no drive \"fats\""), "{told}");
    let told = refused(&home, "create named --size 8MiB --drive fast");
    assert!(told.contains("another disk \"named\""), "{told}");

    // Each writes to its own place, whatever drive that is on.
    let tenants = ["db", "web", "named", "placed", "next"];
    for (seed, tenant) in (0..).zip(tenants) {
        wait_for("the disk", || is_served(&home, tenant));
        let mut guest = home.attach(tenant);
        guest.write(0, &pattern(seed, 4096)).unwrap();
        guest.flush().unwrap();
    }
    // SIGKILL. What was placed stays where it is, though another place would be chosen now.
    drop(daemon);
    let daemon = home.serve();
    for (seed, tenant) in (0..).zip(tenants) {
        assert_eq!(home.attach(tenant).read(0, BLOCK).unwrap(), pattern(seed, 4096), "{tenant}");
    }
    let exported = String::from_utf8(ask(&home, &["export"]).stdout).unwrap();
    for (tenant, drive) in [("web", "fast"), ("placed", "fast"), ("next", "big")] {
        assert!(exported.contains(&format!("name = \"{tenant}\"\ndrive = \"{drive}\"\n")), "{exported}");
    }
    assert!(exported.contains("[drive.policy]\nname = \"passthrough\""), "{exported}");

    // What one leaves is wiped on its own drive.
    let before = [free_bytes(&home, "fast"), free_bytes(&home, "big")];
    done(&home, "delete placed --yes --wait");
    assert_eq!([free_bytes(&home, "fast"), free_bytes(&home, "big")], [before[0] + (16 << 20), before[1]]);
    let mut stats = evenkeel();
    stats.args(["stats", "--once", "--interval", "0", "--json", "--runtime-dir"]).arg(home.runtime_dir());
    let stats: Value = serde_json::from_slice(&stats.output().unwrap().stdout).unwrap();
    let of = |row: &Value| (row["name"].as_str().unwrap().to_owned(), row["drive"].as_str().unwrap().to_owned());
    let mut rows: Vec<_> = stats["tenants"].as_array().unwrap().iter().map(of).collect();
    rows.sort();
    let expected = [("db", "big"), ("named", "big"), ("next", "big"), ("web", "fast")];
    assert_eq!(rows, expected.map(|(name, drive)| (name.to_owned(), drive.to_owned())));
    daemon.stop();
}

#[test]
fn a_file_is_applied_to_every_drive() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let config = home.configure(&format!(
        "{CONFIG}weight = 5\n[[tenant]]\nname = \"web\"\nsize = \"30MiB\"\n\
         [[tenant]]\nname = \"log\"\ndrive = \"fast\"\nsize = \"2MiB\"\n"
    ));
    let path = config.to_str().unwrap();
    answer(&home, &["apply", path, "--yes"]);
    // `web` came before `log`, and would not have left it any room.
    assert_eq!((drive_of(&home, "web"), drive_of(&home, "log")), ("fast".into(), "fast".into()));
    assert_eq!(done(&home, "show db")["weight"], 5);
    wait_for("the disk", || is_served(&home, "web"));
    let again = answer(&home, &["apply", path, "--yes"]);
    assert_eq!(again["steps"], json!([]), "{again}");
    // A drive that is not served yet.
    let more = "[[drive]]\nname = \"new\"\nbackend = \"memory\"\nsize = \"1MiB\"\n\
                [[tenant]]\nname = \"tmp\"\ndrive = \"new\"\nsize = \"1MiB\"\n";
    let config = home.configure(&format!("{CONFIG}{more}"));
    let output = ask(&home, &["apply", config.to_str().unwrap(), "--yes"]);
    assert!(errors(&output).contains("drive \"new\" has tenants in the file and is not served yet"), "{output:?}");
    // Nor does a tenant come there that names no drive, and fits on no other.
    let large = "[[drive]]\nname = \"new\"\nbackend = \"memory\"\nsize = \"1GiB\"\n\
                 [[tenant]]\nname = \"tmp\"\nsize = \"900MiB\"\n";
    let config = home.configure(&format!("{CONFIG}{large}"));
    let output = ask(&home, &["apply", config.to_str().unwrap(), "--yes"]);
    assert!(errors(&output).contains("not served before the daemon starts again: \"new\""), "{output:?}");
    daemon.stop();
}

#[test]
fn what_contradicts_the_drives_is_told_at_its_line() {
    let home = Home::new();
    let told = check_fails(&home, &CONFIG.replace("drive = \"big\"", "drive = \"bigg\""));
    assert!(told.contains("there is no drive \"bigg\"; did you mean \"big\"?"), "{told}");
    let told = check_fails(&home, &format!("{CONFIG}[[tenant]]\nname = \"huge\"\nsize = \"1GiB\"\n"));
    assert!(
        told.contains("no drive can have tenant \"huge\": fast: it has only 32MiB left; big: it has only"),
        "{told}"
    );
    home.configure(CONFIG);
    home.serve().stop();
    let told = check_fails(&home, &CONFIG.replace("big.img\"\nsize = \"64MiB", "../host/fast.img\"\nsize = \"32MiB"));
    assert!(told.contains("fast.img is drive \"fast\" already"), "{told}");
    // Its data would stay behind.
    let told = check_fails(&home, &CONFIG.replace("drive = \"big\"", "drive = \"fast\""));
    assert!(told.contains("tenant \"db\" has its data on drive \"big\", not on \"fast\""), "{told}");
}

#[test]
fn a_drive_that_is_not_there_at_the_start_keeps_nobody_else_from_being_served() {
    let home = Home::new();
    let tenants = "[[tenant]]\nname = \"gone\"\ndrive = \"fast\"\nsize = \"8MiB\"\n\
                   [[tenant]]\nname = \"placed\"\nsize = \"8MiB\"\n";
    let config = format!("{CONFIG}{tenants}").replace("fast.img\"\n", "fast.img\"\nnofail = true\n");
    home.configure(&config);
    let daemon = home.serve();
    home.attach("gone").write(0, &pattern(1, 4096)).unwrap();
    home.attach("db").write(0, &pattern(2, 4096)).unwrap();
    assert_eq!(drive_of(&home, "placed"), "fast");
    daemon.stop();
    // Something else is in its place for a while.
    std::fs::rename(home.path("fast.img"), home.path("kept")).unwrap();
    std::fs::create_dir(home.path("fast.img")).unwrap();
    let daemon = home.serve();
    assert_eq!(home.attach("db").read(0, BLOCK).unwrap(), pattern(2, 4096));
    let fast = answer(&home, &["drive", "list"])["items"][1].clone();
    assert_eq!(fast["name"], "fast");
    assert!(fast["failed"].as_str().is_some_and(|why| why.contains("is a directory")), "{fast}");
    let log = daemon.log();
    assert!(log.contains("drive \"fast\" is unavailable, and its disks \"gone\", \"placed\" are not served"), "{log}");
    // It must not get an empty disk elsewhere.
    assert!(log.contains("tenant \"placed\" is on no drive that is there, and is not served"), "{log}");
    let told = refused(&home, "create gone --size 8MiB");
    assert!(told.contains("another disk \"gone\""), "{told}");
    daemon.stop();
    std::fs::remove_dir(home.path("fast.img")).unwrap();
    std::fs::rename(home.path("kept"), home.path("fast.img")).unwrap();
    let daemon = home.serve();
    assert_eq!(home.attach("gone").read(0, BLOCK).unwrap(), pattern(1, 4096));
    assert_eq!(drive_of(&home, "placed"), "fast");
    daemon.stop();
    // Without the word, it must be there.
    std::fs::remove_file(home.path("fast.img")).unwrap();
    std::fs::create_dir(home.path("fast.img")).unwrap();
    let told = check_fails(&home, &config.replace("nofail = true\n", ""));
    assert!(told.contains("fast.img is a directory"), "{told}");
}

#[test]
fn policies_change_under_load() {
    let home = Home::new();
    let config = CONFIG.replace("name = \"passthrough\"", "name = \"POLICY\"");
    home.configure(&config.replace("POLICY", "passthrough"));
    let daemon = home.serve();
    let apply = |policy: &str| {
        let path = home.configure(&config.replace("POLICY", policy));
        answer(&home, &["apply", path.to_str().unwrap(), "--yes"])
    };
    done(&home, "create web --size 8MiB --drive fast");
    wait_for("the disk", || is_served(&home, "web"));
    let load = home.load("web", "--rw randrw --bs 4k --iodepth 16 --verify --runtime 600s");
    wait_for("the load", || (done(&home, "show web")["attached"] == true).then_some(()));
    for policy in ["lpns", "evenkeel", "fair", "wrr", "drr", "passthrough"] {
        let applied = apply(policy);
        let step = &applied["steps"][0];
        assert_eq!((&step["action"], &step["keys"][0]["new"]), (&json!("change"), &json!(policy)), "{applied}");
        let drives = answer(&home, &["drive", "list"])["items"].clone();
        let policies = [&drives[0]["policy"], &drives[1]["policy"]];
        assert_eq!(policies, [policy, "drr"], "the other drive's stays");
    }
    // It is not lost: what is served is what the file says.
    assert_eq!(apply("passthrough")["steps"], json!([]));
    // A poller of its own: what weighs all tenants takes over all the same.
    done(&home, "create gold --size 4MiB --drive fast --class guaranteed --latency-target 10ms");
    wait_for("the disk", || is_served(&home, "gold"));
    let mut gold = home.attach("gold");
    assert_eq!(apply("fair")["steps"][0]["action"], "change");
    assert_eq!(answer(&home, &["drive", "show", "fast"])["policy"], "fair");
    gold.write(0, &pattern(3, 4096)).unwrap();
    drop(gold);
    load.stop();
    daemon.stop();
}

#[test]
fn disks_go_to_drives_that_can_vouch_and_that_last() {
    let home = Home::new();
    let judged = CONFIG.replace("size = \"32MiB\"", "size = \"32MiB\"\nprofile = \"p5800x\"");
    home.configure(&judged.replace("name = \"passthrough\"", "name = \"lpns\""));
    let daemon = home.serve();
    answer(&home, &["drive", "add", "brief", "--backend", "memory", "--size", "4MiB"]);
    // It has less left over than any other.
    done(&home, "create web --size 2MiB");
    assert_ne!(drive_of(&home, "web"), "brief");
    done(&home, "create tmp --size 2MiB --drive brief");
    done(&home, "create gold --size 2MiB --class guaranteed --latency-target 1ms");
    assert_eq!(drive_of(&home, "gold"), "fast");
    let told = refused(&home, "create hasty --size 2MiB --class guaranteed --latency-target 1us");
    assert!(told.contains("big: it has no profile to judge the promise by"), "{told}");
    done(&home, "create hasty --size 2MiB --class guaranteed --latency-target 1us --drive big");
    daemon.stop();
}

#[test]
fn users_and_groups_of_the_file_stay_known() {
    let home = Home::new();
    home.configure(&format!("{CONFIG}socket_user = \"root\"\n[api]\noperators = \"root\"\n"));
    let daemon = home.serve();
    done(&home, "create web --size 2MiB --drive big --socket-user root");
    answer(&home, &["drive", "add", "brief", "--backend", "memory", "--size", "4MiB"]);
    assert_eq!(answer(&home, &["apply", home.config().to_str().unwrap(), "--yes"])["steps"], json!([]));
    let told = refused(&home, "set web --socket-user daemon");
    assert!(told.contains("write the number instead (`id -u daemon`)"), "{told}");
    done(&home, "delete web --yes");
    answer(&home, &["drive", "add", "other", "--backend", "memory", "--size", "4MiB"]);
    daemon.stop();
}

#[test]
fn a_drive_that_is_added_again_has_its_disks() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let image = home.path("new.img");
    let add = ["drive", "add", "new", "--backend", "file", "--path", image.to_str().unwrap(), "--size", "16MiB"];
    answer(&home, &[&add[..], &["--create"]].concat());
    for create in ["web --size 4MiB --drive new", "logs --size 1MiB --attach web", "gone --size 1MiB --drive new"] {
        done(&home, &format!("create {create} --wait"));
    }
    home.attach("web").write(0, &pattern(1, 4096)).unwrap();
    daemon.stop();
    // The list of drives is lost, and one of the names is taken meanwhile.
    std::fs::remove_file(home.path("state/drives.toml")).unwrap();
    let daemon = home.serve();
    done(&home, "create gone --size 1MiB --drive big");
    let told = drive_fails(&home, &add[1..].join(" "));
    assert!(told.contains("the drive has a disk \"gone\", and so has another one"), "{told}");
    done(&home, "delete gone --yes --wait");
    answer(&home, &add);
    assert_eq!(home.attach("web").read(0, BLOCK).unwrap(), pattern(1, 4096));
    assert_eq!(done(&home, "show logs")["attachments"][0]["tenant"], "web");
    assert_eq!(drive_of(&home, "gone"), "new");
    daemon.stop();
}

#[test]
fn a_layout_is_of_one_image_alone() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    done(&home, "create web --size 2MiB --drive fast");
    daemon.stop();
    let layout = |drive: &str| home.path(&format!("{drive}.img.layout.toml"));
    let kept = std::fs::read(layout("big")).unwrap();
    std::fs::copy(layout("fast"), layout("big")).unwrap();
    let told = check_fails(&home, CONFIG);
    let fast = home.path("fast.img").canonicalize().unwrap();
    assert!(told.contains("its layout was made for drive") && told.contains(fast.to_str().unwrap()), "{told}");
    std::fs::write(layout("big"), kept).unwrap();
    // Nor are images mixed up.
    let [fast, big, other] = ["fast.img", "big.img", "other.img"].map(|name| home.path(name));
    for (from, to) in [(&fast, &other), (&big, &fast), (&other, &big)] {
        std::fs::rename(from, to).unwrap();
    }
    let told = check_fails(&home, &CONFIG.replace("size = \"64MiB\"", "size = \"32MiB\""));
    assert!(told.contains("restore the layout file that belongs to this one"), "{told}");
    for (from, to) in [(&fast, &other), (&big, &fast), (&other, &big)] {
        std::fs::rename(from, to).unwrap();
    }
    home.configure(CONFIG);
    home.serve().stop();
}

/// What was deleted since then would be in it, under the disks that have that place now.
#[test]
fn an_older_copy_of_an_image_is_refused() {
    let home = Home::new();
    home.configure(CONFIG);
    home.serve().stop();
    let [image, copy] = ["fast.img", "copy.img"].map(|name| home.path(name));
    let layout = home.path("fast.img.layout.toml");
    // With its extended attributes.
    let cp = |from: &Path, to: &Path| {
        assert!(Command::new("cp").arg("--preserve=all").args([from, to]).status().unwrap().success());
    };
    cp(&image, &copy);
    let saved = std::fs::read(&layout).unwrap();
    let daemon = home.serve();
    done(&home, "create web --size 2MiB --drive fast");
    daemon.stop();
    std::fs::rename(&image, home.path("newest.img")).unwrap();
    cp(&copy, &image);
    let told = check_fails(&home, CONFIG);
    assert!(told.contains("is not the image that was served last") && told.contains("`id` and `start`"), "{told}");
    // And one that was copied without them, whatever its age.
    std::fs::remove_file(&image).unwrap();
    std::fs::write(&image, std::fs::read(home.path("newest.img")).unwrap()).unwrap();
    let told = check_fails(&home, CONFIG);
    assert!(told.contains("is not the image that was served last"), "{told}");
    // As told: with the layout of its time; or by hand.
    let newest = std::fs::read_to_string(&layout).unwrap();
    std::fs::write(&layout, saved).unwrap();
    cp(&copy, &image);
    home.serve().stop();
    let kept: Vec<&str> =
        newest.lines().filter(|line| !line.starts_with("id = ") && !line.starts_with("start = ")).collect();
    std::fs::write(&layout, kept.join("\n")).unwrap();
    std::fs::rename(home.path("newest.img"), &image).unwrap();
    let daemon = home.serve();
    assert_eq!(answer(&home, &["disk", "show", "web"])["state"], "served");
    daemon.stop();
}

fn drive_fails(home: &Home, arguments: &str) -> String {
    let arguments: Vec<&str> = ["drive"].into_iter().chain(arguments.split_whitespace()).collect();
    let output = ask(home, &arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    errors(&output)
}

#[test]
fn a_drive_comes_and_goes_while_others_run() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let mut db = home.attach("db");
    db.write(0, &pattern(1, 4096)).unwrap();
    let image = home.path("new.img");
    let at = image.to_str().unwrap();
    let add = ["drive", "add", "new", "--backend", "file", "--path", at, "--size", "64MiB", "--create"];
    // What is refused leaves nothing behind.
    let told = drive_fails(&home, &format!("{} --policy fairest", add[1..].join(" ")));
    assert!(told.contains("fairest") && !image.exists(), "{told}");
    let added = answer(&home, &[&add[..], &["--policy", "passthrough"]].concat());
    assert_eq!((&added["size_bytes"], &added["declared"]), (&json!(64 << 20), &json!(false)));
    // Once more is as good.
    assert_eq!(answer(&home, &[&add[..], &["--policy", "passthrough"]].concat()), added);
    let told = drive_fails(&home, &format!("{} --policy lpns", add[1..].join(" ")));
    assert!(told.contains("there is a drive \"new\" already"), "{told}");
    done(&home, "create web --size 16MiB --drive new");
    wait_for("the disk", || is_served(&home, "web"));
    let mut web = home.attach("web");
    web.write(0, &pattern(2, 4096)).unwrap();
    web.flush().unwrap();
    assert_eq!(db.read(0, BLOCK).unwrap(), pattern(1, 4096));
    // SIGKILL. It is opened again, and its disks are there.
    drop((daemon, web, db));
    let daemon = home.serve();
    assert_eq!(drive_of(&home, "web"), "new");
    let mut web = home.attach("web");
    assert_eq!(web.read(0, BLOCK).unwrap(), pattern(2, 4096));
    let exported = String::from_utf8(ask(&home, &["export"]).stdout).unwrap();
    assert!(exported.contains("[[drive]]\nname = \"new\"\nbackend = \"file\""), "{exported}");

    let told = drive_fails(&home, "remove new");
    assert!(told.contains("\"new\" is not empty: it has a disk;"), "{told}");
    // The daemon has it open itself, whatever it is called.
    let (link, other) = (home.path("link.img"), home.path("other.img"));
    std::os::unix::fs::symlink(&image, &link).unwrap();
    std::fs::hard_link(&image, &other).unwrap();
    for path in [&image, &link, &other] {
        let told = drive_fails(&home, &format!("add twice --backend file --path {}", path.display()));
        assert!(told.contains("is drive \"new\" of this daemon already") && !told.contains("stop"), "{told}");
    }
    let told = drive_fails(&home, "remove big");
    assert!(told.contains("\"big\" is declared in"), "{told}");
    let told = drive_fails(&home, "remove nwe");
    assert!(told.contains("there is no drive \"nwe\""), "{told}");
    drop(web);
    done(&home, "delete web --yes --force --wait");
    let left = answer(&home, &["drive", "remove", "new"]);
    assert_eq!(left["items"].as_array().unwrap().len(), 2, "{left}");
    // It is nobody's, and its name is free.
    let told = drive_fails(&home, &format!("add new --backend file --path {at}"));
    assert!(told.contains("no layout file describes it"), "{told}");
    std::fs::remove_file(&image).unwrap();
    let added = answer(&home, &add);
    assert_eq!(added["free_bytes"], 64 << 20);
    answer(&home, &["drive", "remove", "new"]);
    answer(&home, &["drive", "add", "new", "--backend", "memory", "--size", "16MiB"]);
    done(&home, "create tmp --size 8MiB --drive new");
    home.attach("tmp").write(0, &pattern(3, 4096)).unwrap();
    daemon.stop();
}

/// A daemon that is killed after it let go of a drive leaves the drive's layout behind.
#[test]
fn what_a_removed_drive_left_behind_is_not_believed() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let (image, layout) = (home.path("new.img"), home.path("state/layout-of-new.toml"));
    let at = image.to_str().unwrap();
    let add = ["drive", "add", "new", "--backend", "file", "--path", at, "--size", "16MiB", "--create"];
    answer(&home, &add);
    done(&home, "create web --size 8MiB --drive new");
    wait_for("the disk", || is_served(&home, "web"));
    let with_a_disk = std::fs::read(&layout).unwrap();
    done(&home, "delete web --yes --wait");
    let left = std::fs::read_to_string(&layout).unwrap();
    assert!(left.contains("[[clean]]"), "{left}");
    answer(&home, &["drive", "remove", "new"]);
    assert!(!layout.exists());
    std::fs::write(&layout, &left).unwrap();
    // Another program's data, in a range that the layout calls clean.
    std::fs::write(&image, vec![0xfe; 16 << 20]).unwrap();
    let told = drive_fails(&home, &format!("add new --backend file --path {at}"));
    assert!(told.contains("no layout file describes it"), "{told}");
    // An empty image is another drive of that name.
    std::fs::remove_file(&image).unwrap();
    std::fs::write(&layout, &left).unwrap();
    assert_eq!(answer(&home, &add)["free_bytes"], 16 << 20);
    answer(&home, &["drive", "remove", "new"]);
    // What names a disk is all that tells where it is.
    std::fs::write(&layout, &with_a_disk).unwrap();
    let told = drive_fails(&home, &format!("add new --backend file --path {at} --size 16MiB"));
    assert!(told.contains("its layout was made for drive"), "{told}");
    assert_eq!(std::fs::read(&layout).unwrap(), with_a_disk);
    daemon.stop();
}

#[test]
fn a_drive_that_was_added_can_be_declared() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    for name in ["one", "two"] {
        let image = home.path(&format!("{name}.img"));
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        answer(&home, &["drive", "add", name, "--backend", "file", "--path", image.to_str().unwrap()]);
        done(&home, &format!("create on-{name} --size 4MiB --drive {name}"));
    }
    let is_declared = |name: &str| answer(&home, &["drive", "show", name])["declared"] == true;
    let exported = || String::from_utf8(ask(&home, &["export"]).stdout).unwrap();
    let both = exported();
    // At another place it is another drive.
    std::fs::write(home.config(), both.replace("one.img", "other.img")).unwrap();
    let output = ask(&home, &["apply", home.config().to_str().unwrap(), "--yes"]);
    assert!(errors(&output).contains("drive \"one\" was added by `evenkeel drive add`, at another place"));
    std::fs::write(home.config(), &both).unwrap();
    let output = ask(&home, &["apply", home.config().to_str().unwrap(), "--yes"]);
    let shown = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(shown.contains("declare drive.one, drive.two: "), "{shown}{}", errors(&output));
    assert!(is_declared("one") && is_declared("two"));
    assert!(!std::fs::read_to_string(home.path("state/drives.toml")).unwrap().contains("[[drive]]"));
    assert_eq!(answer(&home, &["apply", home.config().to_str().unwrap(), "--yes"])["steps"], json!([]));
    assert_eq!(exported(), both);
    drop(daemon);
    let daemon = home.serve();
    assert!(is_declared("one"));
    assert_eq!(done(&home, "show on-two")["drive"], "two");
    daemon.stop();
}

#[test]
fn a_drive_that_can_not_be_added_is_refused_with_the_reason() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let path = |name: &str| home.path(name).display().to_string();
    let told = drive_fails(&home, &format!("add new --backend file --path {}", path("fast.img")));
    assert!(told.contains("fast.img is drive \"fast\" of this daemon already"), "{told}");
    let told = drive_fails(&home, &format!("add new --backend file --path {}", path("none.img")));
    assert!(told.contains("can't open"), "{told}");
    std::fs::write(home.path("data.img"), vec![7; 1 << 20]).unwrap();
    let told = drive_fails(&home, &format!("add new --backend file --path {}", path("data.img")));
    assert!(told.contains("no layout file describes it"), "{told}");
    let told = drive_fails(&home, &format!("add new --backend block --path {}", path("data.img")));
    assert!(told.contains("is a regular file; say so: --backend file"), "{told}");
    let told = drive_fails(&home, "add new --backend block --path /dev/null");
    assert!(told.contains("is a character device; give the path of a regular file"), "{told}");
    let told = drive_fails(&home, "add fast --backend memory --size 1MiB");
    assert!(told.contains("there is a drive \"fast\" already"), "{told}");
    let told = drive_fails(&home, "add ../fast --backend memory --size 1MiB");
    assert!(told.contains("use 1 to 63 of a-z"), "{told}");
    let told = drive_fails(&home, "add new --backend memory");
    assert!(told.contains("has no `size`"), "{told}");
    // The daemon opens nothing by itself.
    let body = format!("{{\"name\":\"new\",\"backend\":\"file\",\"path\":\"{}\"}}", path("data.img"));
    let request = format!(
        "POST /v1/drives HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    );
    let told = raw(&home, request.as_bytes());
    assert!(told.contains("comes with its descriptor"), "{told}");
    assert_eq!(answer(&home, &["drive", "list"])["items"].as_array().unwrap().len(), 2);
    daemon.stop();
}

#[test]
fn a_drive_that_fails_takes_down_its_own_tenants_alone() {
    let home = Home::new();
    home.configure(&format!("{CONFIG}[[tenant]]\nname = \"web\"\ndrive = \"fast\"\nsize = \"16MiB\"\n"));
    let daemon = home.serve();
    let (mut web, mut db) = (home.attach("web"), home.attach("db"));
    web.write(0, &pattern(1, 4096)).unwrap();
    db.write(0, &pattern(2, 4096)).unwrap();
    // The file system took it away.
    OpenOptions::new().write(true).open(home.path("fast.img")).unwrap().set_len(0).unwrap();
    assert!(web.read(0, BLOCK).is_err());
    assert_eq!(db.read(0, BLOCK).unwrap(), pattern(2, 4096));
    db.flush().unwrap();
    // The rest is changed as ever.
    done(&home, "create log --size 8MiB --drive big");
    wait_for("the disk", || is_served(&home, "log"));
    home.attach("log").write(0, &pattern(3, 4096)).unwrap();
    assert_eq!(db.read(0, BLOCK).unwrap(), pattern(2, 4096));
    drop((web, db));
    daemon.stop();
}
