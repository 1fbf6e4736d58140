//! Every policy serves I/O through the binary, on the drive model.

use serde_json::Value;

use crate::harness::{Home, errors, evenkeel, run};

const TENANTS: &str = "[[tenant]]\nname = \"db\"\nsize = \"8MiB\"\nclass = \"guaranteed\"\nlatency_target = \"10ms\"\n\
                       [[tenant]]\nname = \"batch\"\nsize = \"8MiB\"\nweight = 3\n";

fn model(policy: &str, tenants: &str) -> String {
    format!("[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"16MiB\"\n[policy]\n{policy}\n{tenants}")
}

fn stats(home: &Home) -> Value {
    let runtime_dir = home.runtime_dir();
    let arguments = ["stats", "--once", "--json", "--interval", "0", "--runtime-dir", runtime_dir.to_str().unwrap()];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", errors(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Both tenants write and read back at once under the policy; nothing is lost, and `stats` says who did it.
fn serves(name: &str, policy: &str, tenants: &str) {
    let home = Home::new();
    home.configure(&model(&format!("name = \"{name}\"\n{policy}"), tenants));
    let daemon = home.serve();
    assert_eq!(daemon.ready["drives"][0]["policy"]["name"], name);
    let job = "--rw randrw --bssplit 4k/50:64k/50 --iodepth 16 --verify";
    let loads = ["db", "batch"].map(|tenant| home.load(tenant, job));
    for load in loads {
        let report = load.expect_clean();
        assert!(report["jobs"][0]["verify"]["checked_blocks"].as_u64().unwrap() > 0, "{report}");
    }
    let stats = stats(&home);
    assert_eq!(stats["drives"][0]["policy"], name);
    for (row, tenant) in stats["tenants"].as_array().unwrap().iter().zip(["db", "batch"]) {
        assert_eq!((&row["name"], &row["errors"]), (&tenant.into(), &0.into()));
        assert!(row["iops"].as_f64().unwrap() > 0.0 && row["p99_us"].as_f64().unwrap() > 0.0, "{row}");
    }
    let limits = tenants.contains("rw_iops").then_some("20k IOPS, reads 500MiB/s, writes 500MiB/s");
    assert_eq!(stats["tenants"][1]["limits"].as_str(), limits);
    let pollers = daemon.ready["drives"][0]["pollers"].as_array().unwrap().len();
    assert_eq!(pollers, if matches!(name, "lpns" | "evenkeel" | "passthrough") { 2 } else { 1 });
    daemon.stop();
}

#[test]
fn passthrough() {
    serves("passthrough", "", TENANTS);
}

#[test]
fn lpns() {
    serves("lpns", "rate_iops = \"600k\"\nmin_latency = \"12us\"", TENANTS);
    serves("lpns", "", &with_limits());
}

#[test]
fn fair() {
    serves("fair", "", TENANTS);
    serves("fair", "min_latency = \"50us\"\nmax_latency = \"1ms\"\nepoch = \"2ms\"", TENANTS);
}

#[test]
fn evenkeel_itself() {
    serves("evenkeel", "", TENANTS);
    serves("evenkeel", "", &with_limits());
}

/// Policies that serve all tenants by the same pollers.
const TOGETHER: [&str; 3] = ["fair", "wrr", "drr"];

/// One over two threads of its own, two on two that all share, one on its own, beside a promised one, which has its own
/// where the policy gives it one: all write and read back at once.
#[test]
fn tenants_on_several_pollers() {
    for (policy, expected) in
        ["evenkeel", "lpns"].map(|policy| (policy, 6)).into_iter().chain(TOGETHER.map(|policy| (policy, 5)))
    {
        let home = Home::new();
        let tenants = "[pollers]\nbest_effort = 2\n\
            [[tenant]]\nname = \"db\"\nsize = \"4MiB\"\nclass = \"guaranteed\"\nlatency_target = \"10ms\"\n\
            [[tenant]]\nname = \"wide\"\nsize = \"4MiB\"\nfrontend = \"vhost-user-blk\"\nqueues = 2\n\
            threads = \"per-queue\"\nrw_iops = \"40k\"\n\
            [[tenant]]\nname = \"one\"\nsize = \"4MiB\"\n\
            [[tenant]]\nname = \"two\"\nsize = \"4MiB\"\nweight = 3\n\
            [[tenant]]\nname = \"alone\"\nsize = \"4MiB\"\nthreads = \"dedicated\"\n";
        home.configure(&model(&format!("name = \"{policy}\""), tenants).replace("16MiB", "32MiB"));
        let daemon = home.serve();
        let pollers = daemon.ready["drives"][0]["pollers"].as_array().unwrap().len();
        assert_eq!(pollers, expected, "{policy}: alone, one and two, two of wide's, and db's or not");
        let job = "--rw randrw --bssplit 4k/50:64k/50 --iodepth 16 --verify";
        for load in ["db", "wide", "one", "two", "alone"].map(|tenant| home.load(tenant, job)) {
            let report = load.expect_clean();
            assert!(report["jobs"][0]["verify"]["checked_blocks"].as_u64().unwrap() > 0, "{report}");
        }
        for row in stats(&home)["tenants"].as_array().unwrap() {
            assert!(row["iops"].as_f64().unwrap() > 0.0 && row["errors"] == 0, "{row}");
        }
        // The next one goes where fewer are.
        let socket = home.runtime_dir().join("api.sock");
        let create = ["disk", "create", "late", "--size", "4MiB"];
        let output = evenkeel().args(create).env("EVENKEEL_SOCKET", socket).output().unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        home.load("late", "--rw randread --bs 4k --size 1m").expect_clean();
        daemon.stop();
    }
}

#[test]
fn wrr() {
    let tenants = TENANTS.replace("latency_target", "priority = \"high\"\nlatency_target");
    serves("wrr", "high_weight = 64\narbitration_burst = 2\nmax_in_flight = 16", &tenants);
    serves("wrr", "", &tenants.replace("\"high\"", "\"client\""));
}

#[test]
fn drr() {
    let tenants = TENANTS.replace("latency_target", "priority = \"urgent\"\nlatency_target");
    serves("drr", "high_weight = 256\nlow_weight = 1", &tenants);
}

fn with_limits() -> String {
    format!("{TENANTS}rw_iops = \"20k\"\nr_bandwidth = \"500MiB/s\"\nw_bandwidth = \"500MiB/s\"\n")
}

#[test]
fn a_policy_or_key_of_the_simulator_is_refused() {
    let home = Home::new();
    let told = |policy: &str| {
        let config = home.configure(&model(policy, TENANTS));
        for command in ["check", "serve"] {
            let output = run(&[command, config.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(2));
            let errors = errors(&output);
            assert!(errors.contains("`evenkeel sim`"), "{errors}");
        }
    };
    told("name = \"mqfq\"");
    told("name = \"lpns\"\nomega = 10");
}

/// A drive's queues have their arbitration classes from their creation on.
#[test]
fn no_policy_takes_over_queues_of_other_classes() {
    let home = Home::new();
    let profile = include_str!("../../../core/ssd-model/profiles/p5800x.toml");
    let profile = profile.replacen("arbitration = \"rr\"", "arbitration = \"wrr\"", 1);
    let profile = format!("{profile}\n[weights]\nhigh = 4\nmedium = 2\nlow = 1\n");
    home.write_config("weighs.toml", &profile);
    let config = |policy: &str| {
        let text = model(policy, TENANTS).replace("\"p5800x\"", "\"./weighs.toml\"\nqueues = 8");
        home.configure(&text)
    };
    config("name = \"wrr\"");
    let daemon = home.serve();
    let apply = |policy: &str| {
        let file = config(policy);
        let socket = home.runtime_dir().join("api.sock");
        let output = evenkeel().args(["apply", "--yes", "--json"]).arg(file).env("EVENKEEL_SOCKET", socket).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", errors(&output));
        let applied: Value = serde_json::from_slice(&output.stdout).unwrap();
        applied["steps"][0].clone()
    };
    for policy in ["lpns", "passthrough", "fair"] {
        let put_off = apply(&format!("name = \"{policy}\""));
        let key = &put_off["keys"][0];
        assert_eq!((&put_off["action"], &key["new"]), (&"later".into(), &policy.into()), "{put_off}");
        let remedy = key["remedy"].as_str().unwrap();
        assert!(remedy.contains("the drive's queues have other classes under it"), "{remedy}");
        assert_eq!(stats(&home)["drives"][0]["policy"], "wrr");
    }
    assert_eq!(apply("name = \"wrr\"\nhigh_weight = 9")["action"], "change");
    home.load("db", "--rw randread --bs 4k --size 1m").expect_clean();
    daemon.stop();
}

#[test]
fn a_profile_of_ones_own_is_served_and_its_mistakes_are_told() {
    let home = Home::new();
    let built_in = include_str!("../../../core/ssd-model/profiles/p3520.toml");
    home.write_config("mine.toml", built_in);
    let text = model("name = \"lpns\"", TENANTS).replace("\"p5800x\"", "\"./mine.toml\"");
    let config = home.configure(&text);
    let daemon = home.serve();
    home.load("db", "--rw randread --bs 4k --size 1m").expect_clean();
    daemon.stop();

    let profile = home.write_config("mine.toml", &built_in.replace("units = 36", "units = \"many\""));
    let output = run(&["check", config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let told = errors(&output);
    assert!(told.contains(&format!("{}:", profile.display())) && told.contains("units = \"many\""), "{told}");

    std::fs::remove_file(&profile).unwrap();
    let output = run(&["check", config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let told = errors(&output);
    assert!(told.contains("can't use the profile") && told.contains("profile = \"./mine.toml\""), "{told}");
}
