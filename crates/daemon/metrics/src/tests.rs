//! What is rendered, and that it is what `docs/METRICS.md` lists.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::{BlameRow, Drive, DriveHealth, Operation, OperationState, Predicted};
use policy::{PolicyFigure, TenantFigure};

use super::*;

fn drive(name: &str) -> Drive {
    Drive {
        name: name.to_owned(),
        backend: "file".to_owned(),
        path: Some("/srv/a \"b\"\n\\c".to_owned()),
        size_bytes: 1 << 40,
        free_bytes: 5,
        pool: Some(api::PoolRoom { size_bytes: 8, free_bytes: 3, piece_bytes: 1, promised_bytes: 9 }),
        wiping_bytes: 6,
        policy: "lpns".to_owned(),
        declared: true,
        id: None,
        failed: None,
        disks_not_served: Vec::new(),
        health: Some(DriveHealth {
            temperature_celsius: -3,
            available_spare_percent: 93,
            spare_threshold_percent: 10,
            used_percent: 107,
            media_errors: 4,
            warnings: vec!["it is hot".to_owned()],
        }),
    }
}

/// A disk with a tenant's key.
fn disk(name: &str, state: &str) -> api::Disk {
    let described = serde_json::json!({
        "name": name, "drive": "fast", "size_bytes": 1, "lba_bytes": 4096, "frontend": "vfio-user", "pool_bytes": 2,
        "encryption": "tenant", "ceilings": {}, "state": state, "attached": false, "declared": true
    });
    serde_json::from_value(described).unwrap()
}

/// A tenant with something in each field.
fn tenant(name: &str) -> TenantReading {
    let predicted = Predicted { iops: 9.0, mean_us: 40.0, p99_us: 80.0, alone_us: 20.0, demand: "measured".to_owned() };
    let blame = BlameRow { culprit: "neighbour".to_owned(), neighbour: Some("batch".to_owned()), why: String::new() };
    TenantReading {
        name: name.to_owned(),
        labels: BTreeMap::new(),
        class: "guaranteed".to_owned(),
        weight: Some(3),
        target_ns: Some(50_000),
        quantile: Some(0.999),
        bound_ns: Some(45_000),
        totals: Totals {
            reads: Moved { completions: 6, bytes: 24_576, errors: 1 },
            writes: Moved { completions: 3, bytes: 12_288, errors: 0 },
            others: Moved { completions: 1, bytes: 0, errors: 0 },
            late: 2,
            at_most: [vec![0; 2], vec![4; 3], vec![9; 34]].concat(),
            latency_ns: 1_000_000,
            served_ns: 400_000,
        },
        in_flight: 5,
        waiting: 7,
        figures: [Some(1.5); TenantFigure::COUNT],
        queues: vec![QueueReading { queue: 2, poller: 1, hwq: 3 }],
        verdict: Some(Verdict {
            span_ms: 5_000,
            at_percentile_us: Some(60.0),
            p99_us: Some(70.0),
            predicted: Some(predicted),
            kept: Some(false),
            blame: Some(blame),
        }),
    }
}

fn poller() -> PollerReading {
    PollerReading {
        poller: 1,
        iterations: 1_000_000,
        busy_ns: 1_500_000_000,
        cpu_waited_ns: Some(2_000_000),
        hwq_depth: 64,
        hwqs_in_flight: vec![4, 1],
        figures: [Some(2.5); PolicyFigure::COUNT],
        ..PollerReading::default()
    }
}

/// Something of everything.
fn full() -> Arc<Reading> {
    let operation = Operation {
        kind: "wipe".to_owned(),
        disk: "old".to_owned(),
        state: OperationState::Running,
        done_bytes: 3,
        total_bytes: 12,
        write_bytes: Some(12),
        bytes_per_second: Some(1),
        seconds_left: Some(9),
        why: None,
    };
    let failed = Drive { failed: Some("it is not there".to_owned()), health: None, ..drive("lost") };
    let plain = api::Disk { encryption: None, ..disk("plain", "served") };
    let disks = vec![disk("db", "served"), disk("vault", "locked"), plain];
    let reading = |drive, disks, pollers, tenants| DriveReading { drive, disks, pollers, tenants };
    Arc::new(Reading {
        version: "1.2.3".to_owned(),
        started_at_s: 1.5,
        drives: vec![
            reading(drive("fast"), disks, vec![poller()], vec![tenant("db")]),
            reading(failed, Vec::new(), Vec::new(), Vec::new()),
        ],
        operations: vec![operation],
        file_systems: vec![FileSystem {
            path: "/var/lib/evenkeel".to_owned(),
            holds: "state".to_owned(),
            size_bytes: 100,
            free_bytes: 40,
        }],
    })
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "no line {line:?} in:\n{text}");
}

#[test]
fn labels_stand_on_the_info_metric_alone() {
    let mut full = full();
    let labels = [("pvc", "data-0"), ("note", "a \"b\"")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    Arc::get_mut(&mut full).expect("its only owner").drives[0].tenants[0].labels = labels.into();
    let text = render(&full, Format::Text);
    let labels = r#"class="guaranteed",label_note="a \"b\"",label_pvc="data-0"} 1"#;
    has(&text, &format!("evenkeel_tenant_info{{drive=\"fast\",tenant=\"db\",{labels}"));
    assert_eq!(text.matches("label_pvc").count(), 1);
}

#[test]
fn each_value_stands_where_prometheus_looks_for_it() {
    let text = render(&full(), Format::Text);
    for line in [
        r#"evenkeel_build_info{version="1.2.3"} 1"#,
        r#"evenkeel_drive_up{drive="fast"} 1.0"#,
        r#"evenkeel_drive_up{drive="lost"} 0.0"#,
        r#"evenkeel_drive_info{drive="fast",backend="file",policy="lpns",path="/srv/a \"b\"\n\\c"} 1"#,
        r#"evenkeel_drive_in_flight_commands{drive="fast"} 5.0"#,
        r#"evenkeel_drive_waiting_commands{drive="fast"} 7.0"#,
        r#"evenkeel_drive_temperature_celsius{drive="fast"} -3.0"#,
        r#"evenkeel_drive_used_life_ratio{drive="fast"} 1.07"#,
        r#"evenkeel_drive_media_errors_total{drive="fast"} 4.0"#,
        r#"evenkeel_drive_warning_info{drive="fast",warning="it is hot"} 1"#,
        r#"evenkeel_disk_encrypted{drive="fast",disk="db"} 1.0"#,
        r#"evenkeel_disk_encrypted{drive="fast",disk="plain"} 0.0"#,
        r#"evenkeel_disk_locked{drive="fast",disk="db"} 0.0"#,
        r#"evenkeel_disk_locked{drive="fast",disk="vault"} 1.0"#,
        r#"evenkeel_poller_busy_seconds_total{drive="fast",poller="1"} 1.5"#,
        r#"evenkeel_poller_cpu_wait_seconds_total{drive="fast",poller="1"} 0.002"#,
        r#"evenkeel_hwq_in_flight_commands{drive="fast",poller="1",hwq="1"} 1.0"#,
        r#"evenkeel_lpns_omega{drive="fast",poller="1"} 2.5"#,
        r#"evenkeel_lpns_hwq_switches_total{drive="fast",poller="1"} 2.5"#,
        r#"evenkeel_fair_budget_seconds{drive="fast",tenant="db"} 1.5"#,
        r#"evenkeel_tenant_info{drive="fast",tenant="db",class="guaranteed"} 1"#,
        r#"evenkeel_tenant_completions_total{drive="fast",tenant="db",direction="read"} 6.0"#,
        r#"evenkeel_tenant_bytes_total{drive="fast",tenant="db",direction="write"} 12288.0"#,
        r#"evenkeel_tenant_errors_total{drive="fast",tenant="db",direction="read"} 1.0"#,
        r#"evenkeel_tenant_wait_seconds_total{drive="fast",tenant="db"} 0.0006"#,
        r#"evenkeel_tenant_service_seconds_total{drive="fast",tenant="db"} 0.0004"#,
        r#"evenkeel_tenant_queue_hwq{drive="fast",tenant="db",queue="2",poller="1"} 3.0"#,
        r#"evenkeel_tenant_slowdown_ratio{drive="fast",tenant="db"} 3.5"#,
        r#"evenkeel_promise_kept{drive="fast",tenant="db"} 0.0"#,
        r#"evenkeel_promise_broken{drive="fast",tenant="db",culprit="neighbour",neighbour="batch"} 1.0"#,
        r#"evenkeel_operation_left_seconds{kind="wipe",disk="old",state="running"} 9.0"#,
        r#"evenkeel_file_system_free_bytes{holds="state",path="/var/lib/evenkeel"} 40.0"#,
    ] {
        has(&text, line);
    }
    for part in [r#"celsius{drive="lost""#, r#"disk_locked{drive="fast",disk="plain""#] {
        assert!(!text.contains(part), "what a drive or disk does not tell is not told: {part}");
    }
}

#[test]
fn the_histogram_is_cumulative_and_adds_up() {
    let text = render(&full(), Format::Text);
    for line in [
        r#"evenkeel_tenant_latency_seconds_bucket{drive="fast",tenant="db",le="7e-06"} 0"#,
        r#"evenkeel_tenant_latency_seconds_bucket{drive="fast",tenant="db",le="1e-05"} 4"#,
        r#"evenkeel_tenant_latency_seconds_bucket{drive="fast",tenant="db",le="10"} 9"#,
        r#"evenkeel_tenant_latency_seconds_bucket{drive="fast",tenant="db",le="+Inf"} 10"#,
        r#"evenkeel_tenant_latency_seconds_count{drive="fast",tenant="db"} 10"#,
        r#"evenkeel_tenant_latency_seconds_sum{drive="fast",tenant="db"} 0.001"#,
    ] {
        has(&text, line);
    }
    assert!(BOUNDS_NS.is_sorted());
    // Buckets that were read after the counts may be ahead of these.
    let mut ahead = Reading::clone(&full());
    ahead.drives[0].tenants[0].totals.at_most = vec![20; BOUNDS_NS.len()];
    has(
        &render(&Arc::new(ahead), Format::Text),
        r#"evenkeel_tenant_latency_seconds_count{drive="fast",tenant="db"} 20"#,
    );
}

#[test]
fn a_promise_that_is_kept_or_not_judged_is_nobodys_fault() {
    let mut reading = Reading::clone(&full());
    for (kept, told) in [(Some(true), "evenkeel_promise_kept{"), (None, "evenkeel_tenant_p99_latency_seconds{")] {
        reading.drives[0].tenants[0].verdict.as_mut().unwrap().kept = kept;
        let text = render(&Arc::new(reading.clone()), Format::Text);
        assert!(text.contains(told) && !text.contains("evenkeel_promise_broken{"), "{text}");
    }
}

#[test]
fn both_forms_tell_the_same_names_and_the_right_one_is_chosen() {
    let text = render(&full(), Format::OpenMetrics);
    assert!(text.ends_with("# EOF\n"));
    has(&text, "# TYPE evenkeel_tenant_bytes counter");
    has(&text, r#"evenkeel_tenant_bytes_total{drive="fast",tenant="db",direction="write"} 12288.0"#);
    has(&text, r#"evenkeel_tenant_latency_seconds_bucket{le="+Inf",drive="fast",tenant="db"} 10"#);
    let samples = |text: &str| {
        let names = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(['{', ' ']).next());
        names.map(|name| name.unwrap().to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(samples(&text), samples(&render(&full(), Format::Text)));
    let of_prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    assert_eq!(Format::accepted(Some(of_prometheus)), Format::OpenMetrics);
    assert_eq!([None, Some("*/*"), Some("text/plain")].map(Format::accepted), [Format::Text; 3]);
}

/// Names with what each says and what it is: from `# HELP` and `# TYPE`.
fn rendered() -> BTreeMap<String, (String, String)> {
    let mut found = BTreeMap::<_, (String, String)>::new();
    let text = render(&Arc::default(), Format::Text);
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            assert!(found.insert(name.to_owned(), (help.to_owned(), String::new())).is_none(), "{name} twice");
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            kind.clone_into(&mut found.get_mut(name).unwrap().1);
        }
    }
    found
}

/// The document's tables have a row for each metric: its name, its labels, and what it says.
#[test]
fn the_document_lists_what_is_rendered() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/METRICS.md");
    let document = std::fs::read_to_string(document).unwrap();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `evenkeel_"));
    let rows = rows.filter_map(|row| row.split_once('`')).map(|(name, rest)| (format!("evenkeel_{name}"), rest));
    let listed: BTreeMap<String, &str> = rows.collect();
    let rendered = rendered();
    let names = |all: Vec<&String>| all.into_iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(listed.keys().collect()), names(rendered.keys().collect()));
    for (name, (help, kind)) in rendered {
        assert!(listed[&name].contains(&help), "{name} says {help:?} and is listed as {:?}", listed[&name]);
        assert!(listed[&name].contains(&format!("| {kind} |")), "{name} is a {kind}: {:?}", listed[&name]);
        // A counter's name ends in `_total`, and nothing else's (Prometheus' conventions).
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
    }
}
