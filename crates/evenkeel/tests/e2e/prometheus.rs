//! Prometheus' own word on what we tell it: `promtool` on the metrics and the alerts, and a real Prometheus that
//! scrapes a real daemon. Both are in Debian's package `prometheus`; without it these are skipped, but not where CI is
//! set.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::harness::{Home, wait_for};
use crate::metrics::{TWO, body, exchange, on_port, own_address, scrape, with_port};

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus");

/// Whether there is such a program.
fn has(program: &str) -> bool {
    let there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !there {
        assert!(std::env::var_os("CI").is_none(), "{program} is missing: apt-get install prometheus");
        eprintln!("skipped: there is no {program} (apt-get install prometheus)");
    }
    there
}

/// Runs `promtool` over a text; what it says, which must be nothing bad.
fn promtool(arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("promtool")
        .args(arguments)
        .current_dir(PACKAGING)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8(told).unwrap();
    assert!(output.status.success(), "promtool {arguments:?}: {told}");
    told
}

#[test]
fn promtool_finds_nothing_wrong() {
    if !has("promtool") {
        return;
    }
    let home = Home::new();
    home.configure(TWO);
    let daemon = home.serve();
    home.load("db", "--rw randrw --bs 4k --size 2m").expect_clean();
    assert_eq!(promtool(&["check", "metrics"], &scrape(&home)), "", "it has nothing to say of the metrics");
    assert!(promtool(&["check", "rules", "evenkeel.rules.yml"], "").contains("SUCCESS: 18 rules found"));
    assert!(promtool(&["test", "rules", "evenkeel.rules.test.yml"], "").contains("SUCCESS"));
    assert!(promtool(&["check", "config", "--syntax-only", "prometheus.yml"], "").contains("is valid"));
    daemon.stop();
}

/// Each alert has a test that sees it fire.
#[test]
fn no_alert_goes_untested() {
    let read = |name: &str| fs::read_to_string(Path::new(PACKAGING).join(name)).unwrap();
    let (rules, tests) = (read("evenkeel.rules.yml"), read("evenkeel.rules.test.yml"));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(alerts.len(), 18);
    for alert in alerts {
        let tested = format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels:");
        assert!(tests.contains(&tested), "no test sees {alert} fire");
    }
}

/// Prometheus. Dropped, it is killed.
struct Prometheus(Child, PathBuf);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        if std::thread::panicking() {
            eprintln!("--- Prometheus\n{}---", fs::read_to_string(&self.1).unwrap_or_default());
        }
    }
}

#[test]
fn a_real_prometheus_scrapes_a_real_daemon() {
    if !has("prometheus") {
        return;
    }
    let home = Home::new();
    let (daemon, address) = with_port(&home, "");
    home.load("db", "--rw randread --bs 4k --size 2m").expect_clean();
    // As packaged, but for where the daemon is and how often.
    let packaged = fs::read_to_string(format!("{PACKAGING}/prometheus.yml")).unwrap();
    let token = home.runtime_dir().join("token");
    let config = packaged
        .replace("/run/evenkeel/token", token.to_str().unwrap())
        .replace("127.0.0.1:9560", &address.to_string())
        .replace("15s", "1s")
        .replace("evenkeel.rules.yml", &format!("{PACKAGING}/evenkeel.rules.yml"));
    let config = home.write_config("prometheus.yml", &format!("global: {{ evaluation_interval: 1s }}\n{config}"));
    let (own, log) = (own_address(), config.with_extension("log"));
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", config.with_extension("tsdb").display()))
        .arg(format!("--web.listen-address={own}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let _prometheus = Prometheus(child, log);
    wait_for("Prometheus", || {
        let stream = std::net::TcpStream::connect(own).ok()?;
        exchange(stream, "GET /-/ready", "").starts_with("HTTP/1.1 200 ").then_some(())
    });
    let ask = |path: &str| -> Value {
        let answer = on_port(own, &format!("GET {path}"), "");
        let text = body(&answer).to_owned();
        // It may come in chunks, each with its length before it.
        let json = &text[text.find('{').unwrap()..=text.rfind('}').unwrap()];
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let value = |query: &str| -> Option<f64> {
        let answer = ask(&format!("/api/v1/query?query={query}"));
        answer["data"]["result"][0]["value"][1].as_str().map(|value| value.parse().unwrap())
    };
    let reads =
        wait_for("a scrape", || value("evenkeel_tenant_completions_total{tenant=%22db%22,direction=%22read%22}"));
    assert!(reads >= 512.0, "{reads}");
    assert_eq!(value("up{job=%22evenkeel%22}"), Some(1.0));
    let quantile = "histogram_quantile(0.99,evenkeel_tenant_latency_seconds_bucket{tenant=%22db%22})";
    assert!(value(quantile).is_some_and(|seconds| seconds > 0.0 && seconds < 10.0));
    let targets = ask("/api/v1/targets");
    let target = &targets["data"]["activeTargets"][0];
    assert_eq!((&target["health"], &target["lastError"]), (&"up".into(), &"".into()), "{target}");
    let rules = wait_for("the alerts to be evaluated", || {
        let rules = ask("/api/v1/rules");
        let all = rules["data"]["groups"][0]["rules"].as_array()?.clone();
        all.iter().all(|rule| rule["health"] == "ok").then_some(all)
    });
    assert_eq!(rules.len(), 18);
    assert!(rules.iter().all(|rule| rule["state"] == "inactive"), "{rules:#?}");
    // A daemon that stopped is told of.
    daemon.stop();
    wait_for("a scrape that fails", || (value("up{job=%22evenkeel%22}")? == 0.0).then_some(()));
}
