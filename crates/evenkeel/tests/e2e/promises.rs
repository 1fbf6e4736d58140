//! Promises: judged before they are made, watched while they are kept, and whose fault it is when they fail.

use serde_json::Value;

use crate::disks::{done, refused};
use crate::harness::{Home, errors, run, wait_for};

/// A modelled drive, and a tenant that was promised something beside one that asks for much.
fn model(policy: &str, db: &str, batch: &str) -> String {
    format!(
        "[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"16MiB\"\n[policy]\nname = \"{policy}\"\n\
         [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\nclass = \"guaranteed\"\n{db}\n\
         [[tenant]]\nname = \"batch\"\nsize = \"8MiB\"\n{batch}\n"
    )
}

const GREEDY: &str = "[tenant.demand]\nrw = \"randwrite\"\nbs = \"128k\"\niodepth = 64\nnumjobs = 4";
const LIGHT: &str = "[tenant.demand]\nrw = \"randread\"\nrate_iops = 100";

fn stats(home: &Home, arguments: &[&str]) -> String {
    let runtime_dir = home.runtime_dir();
    let all = [&["stats", "--once", "--interval", "0", "--runtime-dir", runtime_dir.to_str().unwrap()], arguments];
    let output = run(&all.concat());
    assert!(output.status.success(), "{}", errors(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn stats_json(home: &Home) -> Value {
    serde_json::from_str(&stats(home, &["--json"])).unwrap()
}

/// Once the tenant "db" has such a row: it is played meanwhile.
fn stats_with(home: &Home, row: &str) -> Value {
    wait_for(row, || Some(stats_json(home)).filter(|shown| !shown["tenants"][0][row].is_null()))
}

/// The table once it says all of `told`. A forecast is missing for as long as the load keeps changing.
fn table_with(home: &Home, told: &[&str]) -> String {
    wait_for("a forecast in the table", || {
        Some(stats(home, &[])).filter(|table| told.iter().all(|part| table.contains(part)))
    })
}

#[test]
fn a_promise_that_cannot_be_kept_is_refused() {
    let home = Home::new();
    let config = home.configure(&model("passthrough", "latency_target = \"50us\"", GREEDY));
    let before = home.listing();
    let config = config.to_str().unwrap();
    let (check, serve) = (run(&["check", "--json", config]), run(&["serve", config]));
    for output in [&check, &serve] {
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let told = errors(output);
        for part in ["ek.toml:13:18: tenant \"db\" can't be promised 50us", "\"batch\"", "overcommit = true"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    // Each speaks in its own name.
    assert_eq!(errors(&check).strip_prefix("evenkeel: "), errors(&serve).strip_prefix("evenkeeld: "));
    let checked: Value = serde_json::from_slice(&check.stdout).unwrap();
    let promise = &checked["items"][0]["promises"][0];
    assert_eq!((&promise["tenant"], &promise["verdict"]), (&"db".into(), &"not kept".into()));
    assert_eq!((&promise["assumed"], &promise["overcommitted"]), (&true.into(), &false.into()));
    assert_eq!(home.listing(), before, "nothing was touched");
}

#[test]
fn a_target_below_the_drive_is_told_the_lowest_possible_one() {
    let home = Home::new();
    let built_in = include_str!("../../../core/ssd-model/profiles/p3520.toml");
    home.write_config("mine.toml", built_in);
    let text = model("lpns", "latency_target = \"20us\"", LIGHT).replace("\"p5800x\"", "\"./mine.toml\"");
    let config = home.configure(&text);
    for command in ["check", "serve"] {
        let output = run(&[command, config.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        let told = errors(&output);
        // A read of that drive takes 95 µs: 3.2 in the controller, 7 on its way, 85 in the flash.
        assert!(told.contains("take up to 9") && told.contains("write latency_target = \""), "{told}");
    }
}

#[test]
fn overcommit_is_served_and_shown() {
    let home = Home::new();
    home.configure(&model("passthrough", "latency_target = \"50us\"\novercommit = true", GREEDY));
    let daemon = home.serve();
    assert_eq!(daemon.ready["drives"][0]["promises"][0]["overcommitted"], true);
    assert_eq!(daemon.ready["drives"][0]["tenants"][0]["overcommit"], true);
    daemon.wait_log("it is served anyway", 1);
    let shown = stats_json(&home);
    assert_eq!((&shown["tenants"][0]["overcommit"], &shown["tenants"][1]["overcommit"]), (&true.into(), &false.into()));
    assert!(stats(&home, &[]).contains("overcommitted"));
    daemon.stop();
}

#[test]
fn stats_show_what_was_predicted_beside_what_came() {
    let home = Home::new();
    home.configure(&model(
        "wrr",
        "latency_target = \"1s\"\npriority = \"high\"",
        &format!("priority = \"low\"\n{LIGHT}"),
    ));
    let daemon = home.serve();
    assert_eq!(daemon.ready["drives"][0]["tenants"][0]["priority"], "high");
    home.load("db", "--rw randread --bs 4k --size 4m").expect_clean();
    let shown = stats_with(&home, "predicted");
    let [db, batch] = [&shown["tenants"][0], &shown["tenants"][1]];
    assert_eq!((&db["priority"], &batch["priority"]), (&"high".into(), &"low".into()));
    // Nobody declared what "db" asks for, so the prediction is for what it did; "batch" did nothing yet.
    assert_eq!((&db["assumed"], &db["predicted"]["demand"]), (&true.into(), &"measured".into()));
    assert_eq!((&batch["assumed"], &batch["predicted"]["demand"]), (&false.into(), &"declared".into()));
    assert_eq!(batch["demand"], "4KiB reads, 100 a second");
    assert_eq!((&db["kept"], &batch["kept"], &db["blame"]), (&true.into(), &Value::Null, &Value::Null));
    for field in ["iops", "mean_us", "p99_us"] {
        assert!(db["predicted"][field].as_f64().unwrap() > 0.0, "{field} of {db}");
    }
    let [mean, waited, served] = ["mean_us", "waited_us", "served_us"].map(|field| db[field].as_f64().unwrap());
    assert!(served > 0.0 && (waited + served - mean).abs() < 0.01, "{db}");
    let table = table_with(&home, &["predicted → measured", "measured load"]);
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
    daemon.stop();
}

#[test]
fn a_promise_has_its_price_told_and_the_others_what_holds_them_back() {
    let home = Home::new();
    home.configure(&model("evenkeel", "latency_target = \"50us\"\novercommit = true", ""));
    let daemon = home.serve();
    let batch = home.load("batch", "--rw randwrite --bs 16k --iodepth 64 --size 8m --runtime 3s");
    home.load("db", "--rw randread --bs 4k --size 8m --runtime 2s").expect_clean();
    batch.expect_clean();
    let shown = stats_with(&home, "price");
    let [db, batch] = [&shown["tenants"][0], &shown["tenants"][1]];
    let [now, looser, without] = ["others_bw_bytes", "looser_bw_bytes", "without_bw_bytes"]
        .map(|field| db["price"][field].as_f64().unwrap_or_else(|| panic!("{field} of {db}")));
    assert!(0.0 < now && now <= looser && looser <= without, "{db}");
    assert_eq!(db["price"]["looser_target_us"], 75.0);
    assert_eq!((&db["held"], &batch["price"]), (&Value::Null, &Value::Null));
    assert!(batch["held"]["by"].is_string(), "{batch}");
    table_with(&home, &["db: by the model others get", "batch: held back by"]);
    daemon.stop();
}

#[test]
fn a_tenant_that_asks_more_than_it_declared_has_itself_to_blame() {
    let home = Home::new();
    let db = "latency_target = \"100us\"\n[tenant.demand]\nrw = \"randread\"\nbs = \"4k\"";
    home.configure(&model("passthrough", db, LIGHT));
    let daemon = home.serve();
    home.load("db", "--rw randread --bs 128k --iodepth 32 --size 8m --runtime 2s").expect_clean();
    let shown = stats_json(&home);
    let db = &shown["tenants"][0];
    assert_eq!((&db["kept"], &db["blame"]["culprit"]), (&false.into(), &"own".into()), "{db}");
    // On a busy host the part of the late commands that is the host's follows.
    let why = db["blame"]["why"].as_str().unwrap();
    assert!(why.starts_with("its commands have 128.0 KiB in the mean, 4.0 are declared"), "{why}");
    let told = "its own load: its commands have 128.0 KiB in the mean";
    assert!(stats(&home, &[]).contains(told));
    // The log has it once its next look is over.
    daemon.wait_log(told, 1);
    daemon.stop();
}

#[test]
fn a_promise_stands_through_changes_and_a_restart() {
    let home = Home::new();
    let web = "[[tenant]]\nname = \"web\"\nsize = \"4MiB\"\n\
               [tenant.demand]\nrw = \"randrw\"\nrwmixread = 70\nbs = \"64k\"\niodepth = 16\n";
    home.configure(&format!(
        "[device]\nbackend = \"file\"\npath = \"HOST/drive.img\"\nsize = \"64MiB\"\ncreate = true\n\
         profile = \"p5800x\"\n[policy]\nname = \"fair\"\n{web}"
    ));
    let daemon = home.serve();
    done(&home, "create batch --size 4MiB --weight 5");
    let db = "create db --size 4MiB --class guaranteed --latency-target";
    let told = refused(&home, &format!("{db} 5us"));
    let (_, rest) = told.split_once("write --latency-target ").expect("its own option");
    let lowest = rest.split(' ').next().expect("a time");
    done(&home, &format!("{db} {lowest}"));
    done(&home, "delete db --yes --wait");
    done(&home, &format!("{db} 400us"));
    done(&home, "set batch --weight 6");
    done(&home, "set db --rw-iops 100k");
    let told = refused(&home, "set batch --weight 10000");
    assert!(told.contains("tenant \"db\" can't be promised 400us") && told.contains("with --overcommit"), "{told}");
    daemon.stop();
    let daemon = home.serve();
    assert_eq!(done(&home, "show batch")["weight"], 6);
    daemon.stop();
}
