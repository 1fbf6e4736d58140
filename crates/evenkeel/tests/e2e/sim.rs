//! `evenkeel sim`: the examples run, figures can be had again, and bad input is told with its line.

use std::path::{Path, PathBuf};

use serde_json::Value;
use ssd_model::Cipher;

use crate::harness::{Home, errors, run};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/scenarios")
}

/// An example with other settings of `[run]`: enough to see everything work.
fn shortened(home: &Home, name: &str, warmup: &str, duration: &str) -> PathBuf {
    let text = std::fs::read_to_string(examples().join(name)).unwrap();
    let lines = text.lines().map(|line| match line {
        _ if line.starts_with("warmup") => format!("warmup = \"{warmup}\"\n"),
        _ if line.starts_with("duration") => format!("duration = \"{duration}\"\n"),
        _ => format!("{line}\n"),
    });
    home.write_config(name, &lines.collect::<String>())
}

fn simulate(scenario: &Path, arguments: &[&str]) -> Value {
    let output = run(&[&["sim", "--json", scenario.to_str().unwrap()], arguments].concat());
    assert!(output.status.success(), "{}", errors(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn six_noisy_neighbours_under_every_policy() {
    let home = Home::new();
    let scenario = shortened(&home, "six-noisy-neighbours.toml", "150ms", "100ms");
    let outcome = simulate(&scenario, &[]);
    let runs = outcome["items"].as_array().unwrap();
    let policies: Vec<&str> = runs.iter().map(|run| run["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["passthrough", "evenkeel", "lpns", "fair", "k2", "mqfq", "d2fq", "caps"]);
    for run in runs {
        assert_eq!(run["violations"], 0, "{run}");
        let tenants = run["tenants"].as_array().unwrap();
        assert_eq!(tenants.len(), 7);
        assert!(tenants.iter().all(|tenant| tenant["iops"].as_f64().unwrap() > 0.0), "{run}");
        assert!(tenants.iter().all(|tenant| tenant["slowdown"].as_f64().unwrap() >= 0.9), "{run}");
    }
    let mean = |run: &Value| run["tenants"][0]["latency"]["mean_ns"].as_f64().unwrap();
    for at in [1, 2] {
        assert!(mean(&runs[at]) <= mean(&runs[0]), "{} protects the database", policies[at]);
    }
    // Seven tenants, of two kinds.
    let alone = outcome["alone_mean_ns"].as_array().unwrap();
    assert!(alone.len() == 7 && alone[1] == alone[6] && alone[0] != alone[1], "{alone:?}");
}

/// A key of the file that changes nothing.
#[test]
fn an_encrypted_tenant_is_charged_for_the_cipher() {
    let home = Home::new();
    let mean_ns = |encryption: &str| {
        let tenant = format!("[[tenant]]\nname = \"db\"\nvcpus = 1\nencryption = \"{encryption}\"\n");
        let workload = "[tenant.workload]\nkind = \"fio\"\nrw = \"randread\"\n";
        let head = "policies = [\"passthrough\"]\n[drive]\nprofile = \"p5800x\"\n[run]\nduration = \"20ms\"\n";
        let played = simulate(&home.write_config("scenario.toml", &[head, &tenant, workload].concat()), &[]);
        played["items"][0]["tenants"][0]["latency"]["mean_ns"].as_f64().unwrap()
    };
    let (plain_ns, cipher_ns) = (mean_ns("none"), Cipher::default().sector_4096_ns as f64);
    for encryption in ["host", "tenant"] {
        let added_ns = mean_ns(encryption) - plain_ns;
        assert!((0.5 * cipher_ns..2.0 * cipher_ns).contains(&added_ns), "{encryption}: {added_ns} ns");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let home = Home::new();
    let scenario = shortened(&home, "mixed-tenants.toml", "20ms", "60ms");
    let bytes = |seed: &str| run(&["sim", "--json", scenario.to_str().unwrap(), "--seed", seed]).stdout;
    assert_eq!(bytes("7"), bytes("7"));
    assert_ne!(bytes("7"), bytes("8"));
    let outcome = simulate(&scenario, &["--seed", "7"]);
    assert_eq!((&outcome["seed"], &outcome["items"][0]["seed"]), (&7.into(), &7.into()));
    let [store, quiet] = [1, 4].map(|index| &outcome["items"][0]["tenants"][index]);
    let count = |kind: &str| store[kind]["count"].as_u64().unwrap();
    assert!(count("reads") > 0 && count("writes") > 0, "{store}");
    assert_eq!((&quiet["reads"]["count"], &quiet["slowdown"]), (&0.into(), &Value::Null));
    let notes = outcome["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains("synthetic")), "{notes:?}");
}

#[test]
fn faults_strike_and_every_rule_holds() {
    let outcome = simulate(&examples().join("faults.toml"), &[]);
    let run = &outcome["items"][0];
    assert_eq!((&run["violations"], &outcome["alone_mean_ns"]), (&0.into(), &Value::Null));
    let failed: u64 = run["tenants"].as_array().unwrap().iter().map(|row| row["errors"].as_u64().unwrap()).sum();
    assert!(failed > 0, "{run}");
}

#[test]
fn people_get_tables() {
    let home = Home::new();
    let scenario = shortened(&home, "six-noisy-neighbours.toml", "10ms", "20ms");
    let output = run(&["sim", scenario.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    for words in
        ["lpns on p5800x", "≤ 50.0 µs", "checks: all held", "worst p99 of a promise", "fairness index", "  late  "]
    {
        assert!(text.contains(words), "{words} in {text}");
    }
}

/// A promise that 99 of 100 I/Os meet beside what nothing holds back, and 999 of 1000 don't.
const FOR_MORE: &str = "policies = [\"passthrough\", \"drr\"]\n[drive]\nprofile = \"p5800x\"\nsize = \"32GB\"\n[run]\n\
                        warmup = \"20ms\"\nduration = \"100ms\"\n[[tenant]]\nname = \"db\"\nclass = \"guaranteed\"\n\
                        latency_target = \"70us\"\nlatency_percentile = 99.9\nsize = \"1GiB\"\n[tenant.workload]\n\
                        kind = \"fio\"\nrw = \"randread\"\niodepth = 1\n[[tenant]]\nname = \"noisy\"\nvcpus = 4\n\
                        size = \"1GiB\"\n[tenant.workload]\nkind = \"fio\"\nrw = \"randrw\"\niodepth = 64\n\
                        numjobs = 4\n";

#[test]
fn a_promise_is_judged_at_its_own_percentile() {
    let home = Home::new();
    let scenario =
        |percentile| home.write_config("more.toml", &FOR_MORE.replace("latency_percentile = 99.9\n", percentile));
    let judged = |percentile| {
        let outcome = simulate(&scenario(percentile), &[]);
        let db = &outcome["items"][0]["tenants"][0];
        let figures = ["latency_percentile", "at_percentile_ns", "kept"].map(|key| db[key].clone());
        (figures, ["p99_ns", "p999_ns"].map(|key| db["latency"][key].clone()))
    };
    let ([percent, took, kept], [p99, _]) = judged("");
    assert_eq!((percent, took, kept), (99.0.into(), p99, true.into()));
    let ([percent, took, kept], [_, p999]) = judged("latency_percentile = 99.9\n");
    assert_eq!((percent, took, kept), (99.9.into(), p999, false.into()));
    let output = run(&["sim", scenario("latency_percentile = 99.9\n").to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let compared = text.lines().find(|line| line.starts_with("passthrough  ")).unwrap_or_default();
    assert!(text.contains("≤ 70.0 µs for 99.9 %") && compared.contains("  NO  "), "{text}");
    assert!(text.contains("worst at promise") && !text.contains("worst p99"), "{text}");
}

const TRACE: &str = "[drive]\nprofile = \"p5800x\"\n[policy]\nname = \"lpns\"\n[run]\nwarmup = \"1ms\"\n\
                     duration = \"50ms\"\n\
                     [[tenant]]\nname = \"vm\"\nclass = \"guaranteed\"\nlatency_target = \"50us\"\nsize = \"1GiB\"\n\
                     [tenant.workload]\nkind = \"trace\"\npath = \"vm.log\"\nformat = \"fio\"\n\
                     [[tenant]]\nname = \"noisy\"\n[tenant.workload]\nkind = \"fio\"\nrw = \"randwrite\"\n\
                     iodepth = 32\n";

#[test]
fn a_trace_beside_the_scenario_is_replayed() {
    let home = Home::new();
    let scenario = home.write_config("trace.toml", TRACE);
    let line = |number: u64| {
        let kind = if number.is_multiple_of(3) { "write" } else { "read" };
        format!("{} disk {kind} {} 4096\n", number * 100, number * 8192)
    };
    let lines = |count| ["fio version 3 iolog\n".to_owned()].into_iter().chain((0..count).map(line));
    home.write_config("vm.log", &lines(100).collect::<String>());
    let outcome = simulate(&scenario, &[]);
    let vm = &outcome["items"][0]["tenants"][0];
    assert!(vm["reads"]["count"].as_u64().unwrap() > vm["writes"]["count"].as_u64().unwrap(), "{vm}");
    assert!(outcome["notes"].to_string().contains("100 requests over"), "{}", outcome["notes"]);

    let broken = lines(5).chain(["not,a,line\n".to_owned()]).collect::<String>();
    let trace = home.write_config("vm.log", &broken);
    let output = run(&["sim", scenario.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains(&format!("{}:7: expected", trace.display())), "{}", errors(&output));
}

#[test]
fn a_trace_that_spans_no_time_is_played_once_and_a_missing_one_is_told_with_its_tenant() {
    let home = Home::new();
    let scenario = home.write_config("trace.toml", &TRACE.replace("format = \"fio\"\n", ""));
    let output = run(&["sim", scenario.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let told = errors(&output);
    assert!(told.contains(&format!("{}:9:8: tenant \"vm\" has no trace: ", scenario.display())), "{told}");
    assert_eq!(told.matches("No such file").count(), 1, "{told}");

    home.write_config("vm.log", "fio version 2 iolog\nd add\nd open\nd read 0 4096\nd read 8192 4096\nd close\n");
    // Both requests come at the start, so that is what must be measured.
    let text = TRACE.replace("format = \"fio\"\n", "").replace("1ms", "0ms");
    let outcome = simulate(&home.write_config("trace.toml", &text), &[]);
    assert_eq!(outcome["items"][0]["tenants"][0]["reads"]["count"], 2);
    assert!(outcome["notes"].to_string().contains("spans no time, so it is played once"), "{}", outcome["notes"]);
    assert!(outcome["notes"].to_string().contains("3 lines that move no data, skipped"), "{}", outcome["notes"]);

    let asked = home.write_config("asked.toml", &text.replace("\"vm.log\"\n", "\"vm.log\"\nloop = true\n"));
    let output = run(&["sim", asked.to_str().unwrap()]);
    assert!(errors(&output).contains("the trace spans no time, so it can't be looped"), "{}", errors(&output));
}

#[test]
fn a_trace_beside_noise() {
    let home = Home::new();
    let name = "trace-beside-noise.csv";
    home.write_config(name, &std::fs::read_to_string(examples().join(name)).unwrap());
    let scenario = shortened(&home, "trace-beside-noise.toml", "10ms", "50ms");
    let outcome = simulate(&scenario, &[]);
    for run in outcome["items"].as_array().unwrap() {
        assert_eq!(run["violations"], 0, "{run}");
        let web = &run["tenants"][0];
        assert!(web["reads"]["count"].as_u64() > web["writes"]["count"].as_u64(), "{web}");
    }
    assert!(outcome["notes"].to_string().contains("500 requests over"), "{}", outcome["notes"]);
}

#[test]
fn what_a_layout_can_not_do_is_told() {
    let home = Home::new();
    let scenario = |layout: &str, policies: &str, fault: &str| {
        let text = format!(
            "policies = [{policies}]\n[drive]\nprofile = \"p5800x\"\n[host]\nlayout = \"{layout}\"\n[run]\n\
             warmup = \"1ms\"\nduration = \"5ms\"\n[[tenant]]\nname = \"a\"\ncount = 2\n[tenant.workload]\n\
             kind = \"fio\"\nrw = \"randread\"\n{fault}"
        );
        home.write_config("layout.toml", &text)
    };
    let output = run(&["sim", scenario("virtio", "\"d2fq\"", "").to_str().unwrap()]);
    let told = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    let why = "layout.toml:1:1: d2fq needs 3 queues of the drive for a poller, under layout virtio one has 1; write \
               layout = \"evenkeel\", ";
    assert!(told.contains(why), "{told}");

    let outcome = simulate(&scenario("sr-iov", "\"passthrough\", \"mqfq\", \"k2\"", ""), &[]);
    let notes = outcome["notes"].to_string();
    assert!(notes.contains("nothing is weighed against others by mqfq, k2"), "{notes}");

    // Two tenants with four queues each, and a queue of the drive for each poller; or a poller with 6 for each tenant.
    let all_hwqs = |layout: &str| {
        let fault = "[[fault]]\nkind = \"lose-hwq\"\nat = \"2ms\"\nhwq = 100\n";
        errors(&run(&["sim", scenario(layout, "\"passthrough\"", fault).to_str().unwrap()]))
    };
    let told = all_hwqs("per-queue");
    assert!(told.contains("layout per-queue: its pollers have 8 in all"), "{told}");
    let told = all_hwqs("evenkeel\"\nbest_effort_pollers = 2 #");
    assert!(told.contains("layout evenkeel: its pollers have 12 in all"), "{told}");
    let outcome = simulate(&scenario("per-queue", "\"passthrough\"", ""), &[]);
    assert_eq!(outcome["items"][0]["violations"], 0, "{outcome}");

    let fault = "[[fault]]\nkind = \"lose-hwq\"\nat = \"2ms\"\nhwq = 8\n";
    let output = run(&["sim", scenario("mdev", "\"passthrough\"", fault).to_str().unwrap()]);
    let told = errors(&output);
    assert!(told.contains(":15:1: there is no hwq 8 under passthrough, layout mdev: its pollers have 8"), "{told}");
    assert!(told.contains("; write hwq = 0 to 7"), "{told}");
}

#[test]
fn an_impossible_seed_is_told_and_progress_goes_to_standard_error() {
    let scenario = examples().join("faults.toml");
    let output = run(&["sim", scenario.to_str().unwrap(), "--seed", "-1"]);
    assert_eq!(output.status.code(), Some(2));
    let why = "invalid value '-1' for '--seed <N>': a seed is a whole number from 0 to 18446744073709551615";
    assert!(errors(&output).contains(why), "{}", errors(&output));

    let home = Home::new();
    let short = shortened(&home, "faults.toml", "1ms", "5ms");
    let output = run(&["sim", short.to_str().unwrap()]);
    assert!(errors(&output).contains("simulated 1 of 1 policies\n"), "{}", errors(&output));
}

#[test]
fn bad_scenarios_are_told_with_their_lines() {
    let home = Home::new();
    let refused = |text: &str, place: &str| {
        let scenario = home.write_config("bad.toml", text);
        let output = run(&["sim", scenario.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2));
        let told = errors(&output);
        assert!(told.contains(&format!("{}{place}", scenario.display())), "{place} in {told}");
    };
    refused("[drive]\nprofile = \"p5800y\"\n", ":2:11: ");
    let tenant =
        "[[tenant]]\nname = \"a\"\nsize = \"4KiB\"\n[tenant.workload]\nkind = \"fio\"\nrw = \"read\"\nbs = \"64k\"\n";
    refused(&format!("[drive]\nprofile = \"p5800x\"\n{tenant}"), ":4:8: tenant \"a\" can't run: ");
    let idle = "[[tenant]]\nname = \"a\"\nworkload = { kind = \"idle\" }\n";
    refused(&format!("[drive]\nprofile = \"./none.toml\"\n{idle}"), ":2:11: can't use the profile: ");

    let output = run(&["sim", "/nonexistent/scenario.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("/nonexistent/scenario.toml: can't be read"), "{}", errors(&output));
}
