//! A configuration file that is applied to a daemon that runs, and the one that it gives back.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use crate::guest::pattern;
use crate::harness::{Home, errors, evenkeel, wait_for};

const HEAD: &str = "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
                    [policy]\nname = \"passthrough\"\n";

fn tenant(name: &str, keys: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\nsize = \"8MiB\"\n{keys}\n")
}

fn socket(home: &Home) -> PathBuf {
    home.runtime_dir().join("api.sock")
}

fn ask(home: &Home, arguments: &[&str]) -> Output {
    evenkeel().args(arguments).env("EVENKEEL_SOCKET", socket(home)).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", errors(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn apply(home: &Home, file: &Path, flags: &[&str]) -> Output {
    ask(home, &[&["apply", file.to_str().unwrap()], flags].concat())
}

/// Exit status 2, and all that was told.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    errors(output)
}

pub(crate) fn listed(home: &Home, command: &[&str]) -> Vec<Value> {
    let told: Value = serde_json::from_str(&text(&ask(home, command))).unwrap();
    told["items"].as_array().unwrap().clone()
}

fn disks(home: &Home) -> Vec<Value> {
    listed(home, &["disk", "list", "--json"])
}

fn names(home: &Home) -> Vec<String> {
    disks(home).iter().map(|disk| disk["name"].as_str().unwrap().to_owned()).collect()
}

fn export(home: &Home) -> String {
    text(&ask(home, &["export"]))
}

#[test]
fn a_file_is_shown_and_then_served() {
    let home = Home::new();
    home.configure(&[HEAD, &tenant("db", ""), &tenant("gone", "")].concat());
    let daemon = home.serve();
    text(&ask(&home, &["disk", "create", "made", "--size", "4MiB"]));
    let secret = pattern(5, 4096);
    let mut guest = home.attach("gone");
    guest.write(0, &secret).unwrap();
    let next = [HEAD, &tenant("db", "weight = 5\nw_iops = 2000"), &tenant("web", "queues = 2")].concat();
    let file = home.configure(&next);
    // A client is in the way.
    let told = refused(&apply(&home, &file, &["--yes"]));
    assert!(told.contains("\"gone\" was removed from the file and is attached to a client; detach it there"), "{told}");
    drop(guest);
    let shown = wait_for("the client is gone", || {
        let output = apply(&home, &file, &["--dry-run"]);
        output.status.success().then(|| text(&output))
    });
    let wanted = "delete  gone: 8MiB and all data on it\nchange db: w_iops none → 2000, weight 1 → 5\n\
                  create web: queues 2, size 8MiB\n";
    assert_eq!(shown, wanted);
    let told = refused(&apply(&home, &file, &[]));
    assert!(told.contains(wanted) && told.contains("nothing is done; --yes does it"), "{told}");
    assert_eq!(names(&home), ["db", "gone", "made"]);
    // A program is shown the same as JSON, and told the same.
    let asked = apply(&home, &file, &["--json"]);
    let shown: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!((&shown["done"], shown["steps"].as_array().unwrap().len()), (&json!(false), 3));
    assert!(!refused(&asked).contains("delete  gone"), "{asked:?}");
    let json = text(&apply(&home, &file, &["--yes", "--json"]));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["done"], json["steps"].as_array().unwrap().len()), (&json!(true), 3));
    wait_for("the deleted one has left", || (names(&home) == ["db", "made", "web"]).then_some(()));
    assert_eq!(disks(&home)[0]["weight"], 5);
    // Repeating it changes nothing.
    assert_eq!(text(&apply(&home, &file, &["--yes"])), "nothing to do\n");
    text(&ask(&home, &["disk", "set", "made", "--weight", "2"]));
    let told = refused(&ask(&home, &["disk", "set", "db", "--weight", "2"]));
    assert!(told.contains("change it there, and run `evenkeel apply "), "{told}");
    home.attach("web").write(0, &pattern(1, 512)).unwrap();
    // SIGKILL: the next one is as good.
    drop(daemon);
    let daemon = home.serve();
    assert_eq!(names(&home).len(), 3);
    assert_eq!(text(&apply(&home, &file, &["--yes"])), "nothing to do\n");
    wait_for("the wiper", || listed(&home, &["operations", "--json"]).is_empty().then_some(()));
    let image = std::fs::read(home.path("drive.img")).unwrap();
    assert!(!image.windows(512).any(|found| found == &secret[..512]));
    daemon.stop();
}

#[test]
fn a_file_is_refused_as_a_whole() {
    let home = Home::new();
    home.configure(&[HEAD, &tenant("db", "")].concat());
    let daemon = home.serve();
    text(&ask(&home, &["disk", "create", "made", "--size", "4MiB"]));
    let before = (export(&home), std::fs::read(home.path("drive.img.layout.toml")).unwrap());
    // Each problem at its line.
    let bad: String = (0..50).map(|n| tenant(&format!("t{n}"), &format!("weight = {}", 20_000 + n))).collect();
    let file = home.write_config("bad.toml", &[HEAD, &bad].concat());
    let told = refused(&apply(&home, &file, &["--yes"]));
    assert_eq!(told.matches("expected a whole number from 1 to 10000").count(), 50, "{told}");
    assert!((0..50).all(|n| told.contains(&format!("weight = {}", 20_000 + n))), "{told}");
    let good = tenant("web", "");
    for (more, wanted) in [
        (tenant("big", "").replace("8MiB", "60MiB"), "make tenants smaller"),
        (tenant("x", "socket_user = \"nobody\""), "write the number instead (`id -u nobody`)"),
        (tenant("x", "weight = 2\nclass = \"guaranteed\""), "add latency_target"),
        ("[[tenant]]\nname = ".to_owned(), "not valid TOML"),
    ] {
        let file = home.configure(&[HEAD, &tenant("db", "weight = 9"), &good, &more].concat());
        let told = refused(&apply(&home, &file, &["--yes"]));
        assert!(told.contains(wanted), "{more}: {told}");
        assert_eq!((export(&home), std::fs::read(home.path("drive.img.layout.toml")).unwrap()), before, "{more}");
    }
    let told = refused(&apply(&home, &home.path("nothing.toml"), &[]));
    assert!(told.contains("can't be read"), "{told}");
    daemon.stop();
}

#[test]
fn what_needs_a_start_is_said_and_the_rest_is_done() {
    let home = Home::new();
    home.configure(&[HEAD, &tenant("db", "")].concat());
    let daemon = home.serve();
    let other = format!("{}[pollers]\nbest_effort = 2\n", HEAD.replace("passthrough", "fair"));
    let file = home.configure(&[other.as_str(), &tenant("db", "queues = 3\nweight = 2")].concat());
    let shown = text(&apply(&home, &file, &["--yes"]));
    let wanted = "change the daemon: policy.name passthrough → fair\nchange db: queues 64 → 3, weight 1 → 2\n\
                  later   the daemon: pollers.best_effort none → 2 (start the daemon again)\ndone\n";
    assert_eq!(shown, wanted);
    assert_eq!((&disks(&home)[0]["weight"], &disks(&home)[0]["size_bytes"]), (&json!(2), &json!(8 << 20)));
    let exported = export(&home);
    assert!(exported.contains("name = \"fair\"") && exported.contains("queues = 3"), "{exported}");
    assert!(!exported.contains("best_effort"), "{exported}");
    daemon.stop();
}

#[test]
fn a_signal_applies_the_daemons_own_file_and_deletes_nothing() {
    let home = Home::new();
    home.configure(&[HEAD, &tenant("db", ""), &tenant("gone", "")].concat());
    let daemon = home.serve();
    // As editors do.
    let replace = |text: &str| {
        let new = home.write_config(
            "ek.toml.new",
            &format!("{}{text}", "runtime_dir = \"HOST/run\"\nstate_dir = \"HOST/state\"\n"),
        );
        std::fs::rename(new, home.config()).unwrap();
        daemon.reload();
    };
    replace(&[HEAD, &tenant("db", "weight = 4"), &tenant("web", "")].concat());
    daemon.wait_log("applied: create web", 1);
    daemon.wait_log("applied: change db: weight 1 → 4", 1);
    // Not "gone: " alone, which it says when it begins to listen, too.
    daemon.wait_log("it is served until `evenkeel apply", 1);
    assert!(daemon.log().contains("it is served until `evenkeel apply"), "{}", daemon.log());
    assert_eq!(names(&home), ["db", "gone", "web"]);
    replace(&format!("{HEAD}[pollers]\nbest_effort = 2\n{}", tenant("db", "weight = 4\nlba_size = 4096")));
    daemon.wait_log("db: ", 1);
    daemon.wait_log("ek.toml has lba_size 512 → 4096 (format it from inside its guest", 1);
    daemon.wait_log("ek.toml has pollers.best_effort none → 2 (start the daemon again): not done", 1);
    replace(&[HEAD, &tenant("db", "weight = 0")].concat());
    daemon.wait_log("not applied: ", 1);
    assert!(daemon.log().contains("expected a whole number from 1 to 10000"));
    std::fs::remove_file(home.config()).unwrap();
    daemon.reload();
    daemon.wait_log("not applied: it can't be opened", 1);
    assert_eq!(names(&home), ["db", "gone", "web"]);
    daemon.stop();
}

#[test]
fn a_file_with_which_the_daemon_would_not_start_is_refused_with_its_line() {
    let home = Home::new();
    let drive = |profile: &str| HEAD.replace("create = true", &format!("create = true\nprofile = \"{profile}\""));
    let fast = drive("p5800x");
    let promised = |name: &str| tenant(name, "class = \"guaranteed\"\nlatency_target = \"60us\"");
    let db = promised("db");
    home.configure(&format!("{}{}", fast, db));
    let daemon = home.serve();
    let before = export(&home);
    for (text, wanted) in [
        (format!("{}{}", fast, db.replace("8MiB", "4MiB")), "tenant \"db\" has 8MiB on the drive, not 4MiB"),
        (format!("{}{}{}", drive("p3520"), db, promised("new")), "tenant \"new\" can't be promised 60us"),
        (format!("{}{}", fast.replace("64MiB", "96MiB"), db), "has 64MiB, less than size = \"96MiB\""),
        (format!("{}{}", fast.replace("64MiB", "32MiB"), db), "has 32MiB, it had 64MiB before"),
        (format!("{}{}", fast, db.replace("8MiB", "8MiB\"\noffset = \"16MiB")), "is at 0 on the drive, not at 16MiB"),
    ] {
        let file = home.configure(&text);
        for flag in ["--yes", "--dry-run"] {
            let told = refused(&apply(&home, &file, &[flag]));
            assert!(told.contains(wanted) && told.contains("ek.toml:"), "{wanted}: {told}");
        }
        assert_eq!(export(&home), before, "{wanted}");
    }
    // Larger once it is.
    std::fs::File::options().write(true).open(home.path("drive.img")).unwrap().set_len(96 << 20).unwrap();
    let file = home.configure(&format!("{}{}", fast.replace("64MiB", "96MiB"), db));
    assert!(text(&apply(&home, &file, &["--yes"])).starts_with("later   the daemon: device.size 64MiB → 96MiB"));
    daemon.stop();
    home.serve().stop();
}

#[test]
fn a_file_that_declares_what_was_made_takes_it_over() {
    let home = Home::new();
    home.configure(&[HEAD, &tenant("db", "")].concat());
    let daemon = home.serve();
    text(&ask(&home, &["disk", "create", "mine", "--size", "4MiB", "--weight", "3"]));
    text(&ask(&home, &["disk", "create", "other", "--size", "4MiB"]));
    text(&ask(&home, &["disk", "create", "third", "--size", "4MiB"]));
    text(&ask(&home, &["disk", "create", "log", "--size", "4MiB", "--attach", "mine"]));
    wait_for("the disk", || crate::disks::is_served(&home, "mine"));
    let secret = pattern(7, 4096);
    let mut guest = home.attach("mine");
    guest.write(0, &secret).unwrap();
    let declared = |name: &str| {
        let disk = disks(&home).into_iter().find(|disk| disk["name"] == name).unwrap();
        (disk["declared"] == true, disk["weight"].clone())
    };
    let exported = export(&home);
    let third = "\n[[tenant]]\nname = \"third\"\nsize = \"4MiB\"\n";
    assert!(exported.contains(third), "{exported}");
    let exported = exported.replace(third, "");
    std::fs::write(home.config(), exported.replace("name = \"other\"", "name = \"other\"\nweight = 5")).unwrap();
    let shown = text(&apply(&home, &home.config(), &["--yes"]));
    let wanted = "declare mine: the file declares it from now on\ndeclare other: the file declares it from now on\n\
                  declare log: the file declares it from now on\nchange other: weight 1 → 5\ndone\n";
    assert_eq!(shown, wanted);
    assert_eq!([declared("mine"), declared("other")], [(true, json!(3)), (true, json!(5))]);
    assert_eq!([declared("log").0, declared("third").0], [true, false]);
    assert_eq!(guest.read(0, 8).unwrap(), secret);
    assert_eq!(text(&apply(&home, &home.config(), &["--yes"])), "nothing to do\n");
    let layout = std::fs::read_to_string(home.path("drive.img.layout.toml")).unwrap();
    assert_eq!(layout.matches("settings").count(), 1, "{layout}");
    let told = refused(&ask(&home, &["disk", "set", "mine", "--weight", "2"]));
    assert!(told.contains("\"mine\" is declared in"), "{told}");

    // A start takes over what nobody applied: the file is the truth.
    drop((guest, daemon));
    std::fs::write(home.config(), format!("{exported}{}", third.replace("4MiB", "8MiB"))).unwrap();
    let daemon = home.serve();
    assert_eq!([declared("third"), declared("other")], [(true, json!(1)), (true, json!(1))]);
    assert_eq!(disks(&home).iter().find(|disk| disk["name"] == "third").unwrap()["size_bytes"], 8 << 20);
    assert_eq!(home.attach("mine").read(0, 8).unwrap(), secret);
    assert!(!std::fs::read_to_string(home.path("drive.img.layout.toml")).unwrap().contains("settings"));
    daemon.stop();
}

#[test]
fn what_is_exported_serves_the_same() {
    let home = Home::new();
    let db =
        tenant("db", "class = \"guaranteed\"\nlatency_target = \"1s\"\n[tenant.demand]\nrw = \"read\"\nbs = \"4k\"");
    home.configure(&[HEAD, "[pollers]\nidle_after = \"100ms\"\n", &db].concat());
    let daemon = home.serve();
    text(&ask(&home, &["disk", "create", "made", "--size", "4MiB", "--w-iops", "2k", "--burst", "1s"]));
    let first = export(&home);
    daemon.stop();
    let (copy, root) = (Home::new(), home.path(""));
    let (root, other) = (root.to_str().unwrap().trim_end_matches('/'), copy.path(""));
    let other = other.to_str().unwrap().trim_end_matches('/');
    copy.write_config("ek.toml", &first.replace(root, other));
    let output = evenkeel().arg("check").arg(copy.config()).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let daemon = copy.serve();
    assert_eq!(export(&copy).replace(other, root), first);
    assert_eq!(text(&apply(&copy, &copy.config(), &["--yes"])), "nothing to do\n");
    let made = disks(&copy).into_iter().find(|disk| disk["name"] == "made").unwrap();
    assert_eq!((&made["ceilings"]["w_iops"], &made["declared"]), (&json!(2000), &json!(true)));
    daemon.stop();
}
