//! `evenkeel plan`: tables and JSON, one more tenant, a solution that can be pasted, bad input. Figures are the model's
//! and have tests of their own; here loads are far on one side or the other of what a promise can bear.

use std::path::Path;

use serde_json::Value;

use crate::harness::{Home, errors, run};

/// One small promise and next to no load beside it: any policy keeps it.
const CALM: &str = "[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"1GiB\"\n\
                    [policy]\nname = \"passthrough\"\n\
                    [[tenant]]\nname = \"db\"\nsize = \"16MiB\"\nclass = \"guaranteed\"\nlatency_target = \"200us\"\n\
                    [[tenant]]\nname = \"calm\"\nsize = \"16MiB\"\n[tenant.demand]\nrw = \"randread\"\niodepth = 1\n";

/// More than a drive can do beside any promise, unless it is throttled.
const HOG: &str = "\n[[tenant]]\nname = \"hog\"\nsize = \"16MiB\"\n[tenant.demand]\nrw = \"randwrite\"\nbs = \"128k\"\n\
                   iodepth = 256\n";

const KEPT: i32 = 0;
const BAD_INPUT: i32 = 2;
const NOT_KEPT: i32 = 3;

fn plan(config: &Path, arguments: &[&str], code: i32) -> Value {
    let output = run(&[&["plan", "--json", config.to_str().unwrap()], arguments].concat());
    assert_eq!(output.status.code(), Some(code), "{}", errors(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    told["items"][0].clone()
}

fn names(list: &Value, key: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|one| one[key].as_str().unwrap().to_owned()).collect()
}

#[test]
fn floors_that_leave_a_promise_no_room_are_not_planned() {
    let home = Home::new();
    let floors = |least: &str| {
        let of_ours = CALM.replace("\"passthrough\"", "\"evenkeel\"").replace("\"200us\"", "\"50us\"");
        home.configure(&format!("{of_ours}[[tenant]]\nname = \"batch\"\nsize = \"16MiB\"\nmin_iops = \"{least}\"\n"))
    };
    for (least, kept, checked) in [("20k", KEPT, 0), ("800k", NOT_KEPT, BAD_INPUT)] {
        let config = floors(least);
        let report = plan(&config, &["--policy", "evenkeel"], kept);
        assert_eq!(report["floors"][0]["kept"], kept == KEPT, "{}", report["floors"]);
        let solved = plan(&config, &["--solve"], kept);
        assert_eq!(names(&solved["policies"], "policy"), ["evenkeel"], "no other keeps floors");
        assert_eq!(solved["solution"]["found"], kept == KEPT, "{}", solved["solution"]);
        // Admission says the same.
        let check = run(&["check", config.to_str().unwrap()]);
        assert_eq!(check.status.code(), Some(checked), "{}", errors(&check));
    }
}

/// A promise to a thin disk that first writes break, and that is made all the same.
#[test]
fn first_writes_of_a_thin_disk_count() {
    let home = Home::new();
    let config = |overcommit: &str, more: &str| {
        let device = CALM.replace("size = \"1GiB\"", "size = \"1GiB\"\npool = \"64MiB\"");
        let thin = format!("latency_target = \"30us\"\nthin = true\n{overcommit}[tenant.demand]\nrw = \"randwrite\"\n");
        home.configure(&device.replace("latency_target = \"200us\"\n", &format!("{thin}{more}\n")))
    };
    // In turn, 4 KiB of 1 MiB: less than one command in a hundred waits.
    for (declared, percent, is_kept) in [
        ("", 0.39, true),
        ("first_writes = \"0.5 %\"", 0.5, true),
        ("first_writes = \"2 %\"", 2.0, false),
        ("first_writes = \"2 % shared\"", 2.0, false),
        ("bs = \"64k\"", 6.25, false),
    ] {
        let file = config("overcommit = true\n", declared);
        let report = plan(&file, &["--policy", "passthrough"], KEPT);
        let told = report["tenants"][0]["demand"].as_str().unwrap();
        assert!(told.contains(&format!("of which first writes {percent} %")), "{told}");
        assert_eq!(told.contains("copied"), declared.contains("shared"), "{told}");
        let p99_us = report["policies"][0]["tenants"][0]["p99_us"].as_f64().unwrap();
        assert_eq!(p99_us < 30.0, is_kept, "{p99_us}");
        // Admission says the same.
        let check = run(&["check", config("", declared).to_str().unwrap()]);
        assert_eq!((check.status.success(), errors(&check).contains("can't be promised")), (is_kept, !is_kept));
    }
}

#[test]
fn every_modelled_policy_is_compared() {
    let home = Home::new();
    let config = home.configure(&format!("{CALM}{HOG}"));
    let report = plan(&config, &[], NOT_KEPT);
    assert_eq!(names(&report["policies"], "policy"), ["passthrough", "wrr", "drr", "lpns", "fair", "evenkeel"]);
    assert_eq!(report["drive"], serde_json::json!({ "name": "device", "profile": "p5800x", "named": true }));
    for policy in report["policies"].as_array().unwrap() {
        assert_eq!(names(&policy["tenants"], "tenant"), ["db", "calm", "hog"]);
        for tenant in policy["tenants"].as_array().unwrap() {
            let [iops, mean, p99] = ["iops", "mean_us", "p99_us"].map(|key| tenant[key].as_f64().unwrap());
            assert!(iops > 0.0 && mean > 0.0 && p99 >= mean, "{tenant}");
        }
        assert_eq!(names(&policy["promises"], "tenant"), ["db"]);
    }
    let db = &report["policies"][0]["promises"][0];
    assert_eq!((&db["verdict"], &db["neighbour"]), (&"not kept".into(), &"hog".into()));
    assert!(db["reason"].as_str().unwrap().contains("\"hog\""), "{db}");
    assert_eq!(report["advice"][0]["change"], "put tenant \"hog\" on another drive");
    assert_eq!(report["tenants"][0]["assumed"], true);
    assert_eq!(report["tenants"][1]["assumed"], false);

    let only = plan(
        &config,
        &["--policy", "drr"],
        report["policies"][2]["promises_kept"].as_bool().map_or(3, |kept| if kept { KEPT } else { NOT_KEPT }),
    );
    assert_eq!(names(&only["policies"], "policy"), ["drr"]);
    assert_eq!(only["policies"][0]["tenants"], report["policies"][2]["tenants"]);
    assert_eq!(plan(&home.configure(CALM), &[], KEPT)["advice"], serde_json::json!([]));
}

#[test]
fn people_get_tables_that_explain_themselves() {
    let home = Home::new();
    let many: String =
        (0..40).map(|i| HOG.replace("hog", &format!("a-tenant-with-quite-a-long-name-{i:02}"))).collect();
    let config = home.configure(&format!("{}{many}", CALM.replace("1GiB", "4GiB")));
    let output = run(&["plan", config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(NOT_KEPT));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    for words in [
        "p5800x",
        "passthrough (as configured)",
        "if the in-order bound is within the limit (--verbose shows",
        "1 at a time *\n",
        "* Assumed: the load of 1 of 42 tenants",
        "NOT KEPT",
        "db: 200 µs will NOT be kept: 99 of 100 commands take up to",
        "(40)",
        "What would make every promised latency hold",
    ] {
        assert!(text.contains(words), "{words:?} in {text}");
    }
    let unnamed = home.configure(&CALM.replace("profile = \"p5800x\"\n", "").replace("model", "memory"));
    let output = run(&["plan", unnamed.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("names no drive profile") && text.contains("evenkeel calibrate"), "{text}");
}

#[test]
fn one_more_tenant_fits_or_does_not() {
    let home = Home::new();
    let config = home.configure(CALM);
    let web = "name=web,class=guaranteed,latency_target=200us,bs=4k,iodepth=1,rw=randread";
    let report = plan(&config, &["--policy", "passthrough", "--add", web], KEPT);
    assert_eq!((&report["addition"]["fits"], &report["tenants"][2]["added"]), (&true.into(), &true.into()));
    assert_eq!(report["tenants"][2]["demand"], "4KiB reads, 1 at a time");

    let hog = home.write_config("hog.toml", HOG);
    let report = plan(&config, &["--policy", "passthrough", "--add", hog.to_str().unwrap(), "--add", web], NOT_KEPT);
    let addition = &report["addition"];
    assert_eq!(addition["tenants"], serde_json::json!(["hog", "web"]));
    let why = addition["why"].as_str().unwrap();
    assert!(why.starts_with("the promise to \"db\", \"web\" would not hold under passthrough: 99 of 100"), "{why}");

    let config = home.configure(&format!("{CALM}{HOG}"));
    let report = plan(&config, &["--policy", "passthrough", "--add", "name=small,rw=randread"], NOT_KEPT);
    let why = report["addition"]["why"].as_str().unwrap();
    assert!(why.contains("no promise suffers from it, but those to \"db\" do not hold without it either"), "{why}");
}

/// What `--solve` prints, pasted as it says.
fn pasted(text: &str, solution: &Value) -> String {
    let (before, rest) = text.split_once("[policy]\n").unwrap();
    let after = &rest[rest.find("[[tenant]]").unwrap()..];
    let mut pasted = format!("{before}{}{after}", solution["policy_toml"].as_str().unwrap());
    for one in solution["priorities"].as_array().unwrap() {
        let name = format!("name = \"{}\"\n", one["tenant"].as_str().unwrap());
        pasted = pasted.replace(&name, &format!("{name}priority = \"{}\"\n", one["priority"].as_str().unwrap()));
    }
    pasted
}

#[test]
fn a_solution_can_be_pasted_and_holds() {
    let home = Home::new();
    let text = format!("{CALM}{HOG}");
    for policy in ["passthrough", "wrr", "lpns"] {
        let text = text.replace("\"passthrough\"", &format!("{policy:?}"));
        let config = home.configure(&text);
        let report = plan(&config, &["--solve"], KEPT);
        let solution = &report["solution"];
        assert_eq!((&solution["found"], &solution["remove_priorities"]), (&true.into(), &false.into()));
        let report = plan(&home.configure(&pasted(&text, solution)), &[], KEPT);
        assert_eq!(report["policies"][0]["policy"], solution["policy"], "{policy}");
        assert_eq!(report["policies"][0]["promises"], solution["promises"], "{policy}");
    }
    let output = run(&["plan", home.configure(&text).to_str().unwrap(), "--solve"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("\n# in place of the [policy] section\n[policy]\nname = "), "{shown}");
}

#[test]
fn where_there_is_no_solution_it_says_why() {
    let home = Home::new();
    let greedy = "[tenant.demand]\nrw = \"randwrite\"\nbs = \"128k\"\niodepth = 1024\n";
    let text = CALM.replace("latency_target = \"200us\"\n", &format!("latency_target = \"200us\"\n{greedy}"));
    let report = plan(&home.configure(&text), &["--solve"], NOT_KEPT);
    let solution = &report["solution"];
    assert!(solution["why"].as_str().unwrap().starts_with("none of the settings"), "{solution}");
    assert_eq!(solution["promises"][0]["tenant"], "db");
}

#[test]
fn where_an_added_tenant_went_is_said_and_nobody_is_promised_nothing() {
    let home = Home::new();
    let drive = |name: &str, size: &str, policy: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"{size}\"\n\
             [drive.policy]\nname = \"{policy}\"\n"
        )
    };
    let config = home.configure(&[drive("fast", "1GiB", "fair"), drive("small", "64MiB", "wrr")].concat());
    let report = plan(&config, &["--drive", "fast"], KEPT);
    assert_eq!(report["policies"][0]["policy"], "fair", "{report}");
    let report = plan(&config, &["--drive", "fast", "--add", "name=web2"], KEPT);
    let wanted = "tenant \"web2\" went to drive \"small\"";
    assert!(report["warnings"].as_array().unwrap().iter().any(|it| it.as_str().unwrap().contains(wanted)), "{report}");
    let report = plan(&config, &["--drive", "fast", "--add", "name=web2,drive=fast"], KEPT);
    assert_eq!(report["addition"]["tenants"], serde_json::json!(["web2"]), "{report}");
}

#[test]
fn a_plot_is_a_page() {
    let home = Home::new();
    let config = home.configure(&format!("{CALM}{HOG}"));
    let page = home.path("plan.html");
    plan(&config, &["--plot", page.to_str().unwrap()], NOT_KEPT);
    let html = std::fs::read_to_string(page).unwrap();
    for words in ["passthrough (as configured)", "<h2>fair</h2>", "target of db", "p99 latency (µs)", "<polyline"] {
        assert!(html.contains(words), "{words:?} in {html}");
    }
    let output = run(&["plan", config.to_str().unwrap(), "--plot", "plan.png"]);
    assert_eq!(output.status.code(), Some(BAD_INPUT));
    assert!(errors(&output).contains("ends in .html"), "{}", errors(&output));
}

#[test]
fn bad_input_is_told_with_its_place() {
    let home = Home::new();
    let refused = |text: &str, arguments: &[&str], says: &[&str]| {
        let config = home.configure(text);
        let output = run(&[&["plan", config.to_str().unwrap()], arguments].concat());
        let told = errors(&output);
        assert_eq!(output.status.code(), Some(BAD_INPUT), "{told}");
        assert!(output.stdout.is_empty());
        for words in says {
            assert!(told.contains(words), "{words:?} in {told}");
        }
    };
    let wrr = CALM.replace("\"passthrough\"\n", "\"wrr\"\nhigh_weight = 0\n");
    refused(&wrr, &[], &["ek.toml:9:", "`high_weight` in [policy] is 0"]);
    let class = CALM
        .replace("\"passthrough\"\n", "\"wrr\"\n")
        .replace("name = \"db\"\n", "name = \"db\"\npriority = \"top\"\n");
    refused(&class, &[], &["ek.toml:11:", "\"top\"", "urgent"]);
    refused(&CALM.replace("200us", "1us"), &[], &["ek.toml:13:"]);

    // A profile of one's own: its missing field, and the lowest target that follows from it.
    let own = CALM.replace("\"p5800x\"", "\"mine.toml\"");
    let profile = include_str!("../../../core/ssd-model/profiles/p3520.toml");
    home.write_config(
        "mine.toml",
        &profile.lines().filter(|line| !line.starts_with("read_ns")).collect::<Vec<_>>().join("\n"),
    );
    refused(&own, &[], &["mine.toml", "read_ns"]);
    home.write_config("mine.toml", profile);
    let too_low = own.replace("200us", "20us");
    refused(
        &too_low,
        &[],
        &[
            "ek.toml:13:",
            "tenant \"db\" can't be promised 20us",
            "even alone on the drive",
            "write latency_target = \"",
        ],
    );
    let output =
        run(&["plan", home.configure(&too_low.replace("\"20us\"", "\"20us\"\novercommit = true")).to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(KEPT), "{}", errors(&output));

    // What is added is told by its own name and lines.
    refused(CALM, &["--add", "name=web,clas=guaranteed"], &["--add: unknown key `clas`", "`class`"]);
    refused(CALM, &["--add", "name=db"], &["--add: ", "\"db\""]);
    refused(CALM, &["--add", "name=web,bs=4k"], &["--add: ", "rw"]);
    refused(CALM, &["--add", "name=\"x\""], &["--add: name is "]);
    refused(CALM, &["--add", "/nonexistent.toml"], &["/nonexistent.toml: can't be read"]);
    let more = home.write_config("more.toml", "\n[[tenant]]\nname = \"web\"\nsize = \"1MiB\"\nweight = 0\n");
    refused(CALM, &["--add", more.to_str().unwrap()], &["more.toml:5:10: `weight`"]);
    for (text, says) in [
        ("name = \"web\"\n", "begins with a key of no section"),
        ("[[tenant]]\nname = \"web\"\n[policy]\nname = \"drr\"\n", "has something else than tenants: [policy]"),
        ("# nothing\n", "has no [[tenant]] section"),
    ] {
        let more = home.write_config("more.toml", text);
        refused(CALM, &["--add", more.to_str().unwrap()], &["more.toml: ", says]);
    }
}
