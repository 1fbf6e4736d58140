//! What a person is told of a configuration before it runs.

use std::path::Path;

use config::{Config, Prepared, Summary};

const MIB: u64 = 1 << 20;

const MIXED: &str = r#"runtime_dir = "/tmp/evenkeel-summary"
[device]
backend = "model"
size = "64MiB"
[[tenant]]
name = "db"
size = "16MiB"
class = "guaranteed"
latency_target = "50us"
[[tenant]]
name = "batch"
size = "16MiB"
weight = 2
[[tenant]]
name = "web"
size = "16MiB"
class = "guaranteed"
latency_target = "100us"
frontend = "vhost-user-blk"
queues = 2
threads = "per-queue"
mode = "event"
read_only = true
"#;

#[test]
fn the_summary_says_what_will_run() {
    let config = Config::parse(Path::new("ek.toml"), MIXED).unwrap_or_else(|e| panic!("{e}"));
    let summary = Summary::new(&Prepared::new(config).unwrap_or_else(|e| panic!("{e}")));
    let json = serde_json::to_value(&summary).expect("JSON");
    assert_eq!(json["tenants"][0]["latency_target_us"], 50.0);
    assert_eq!(json["tenants"][1]["offset_bytes"], 16 * MIB);
    assert_eq!(json["tenants"][1]["socket"], "/tmp/evenkeel-summary/batch/cntrl");
    assert_eq!(json["tenants"][1]["doorbells"], "mapped");
    assert_eq!(json["pollers"][1]["tenants"][0], "batch");
    assert_eq!(json["pollers"][1]["queue"], serde_json::Value::Null);
    assert_eq!(json["pollers"][3], serde_json::json!({ "tenants": ["web"], "queue": 1, "mode": "event", "cpu": null }));
    let web = &json["tenants"][2];
    for (key, value) in [("frontend", "vhost-user-blk"), ("threads", "per-queue"), ("mode", "event")] {
        assert_eq!(web[key], value);
    }
    assert_eq!((&web["doorbells"], &web["read_only"]), (&serde_json::Value::Null, &serde_json::Value::Bool(true)));
    assert_eq!(web["socket"], "/tmp/evenkeel-summary/web/vhost.sock");
    assert_eq!(json["layout_file"], serde_json::Value::Null);
    let shown = summary.to_string();
    assert!(shown.starts_with("drive    device: model p5800x, 64MiB (16MiB free)\npolicy   evenkeel\n"), "{shown}");
    let rest = shown.split_once("\nthreads  ").map_or("", |(_, rest)| rest).replace("/tmp/evenkeel-summary/", "");
    let expected = "4 to move commands: 2 adaptive, 2 event\n\
        poller 0 db: adaptive\n\
        poller 1 batch: adaptive\n\
        pollers 2 to 3 web (a queue each): event\n\
        \n\
        tenant  class        promise    size     at  front end                  threads    mode      socket\n\
        db      guaranteed   50us      16MiB      0  vfio-user                  dedicated  adaptive  db/cntrl\n\
        batch   best-effort  weight 2  16MiB  16MiB  vfio-user                  shared     adaptive  batch/cntrl\n\
        web     guaranteed   100us     16MiB  32MiB  vhost-user-blk, read-only  per-queue  event     web/vhost.sock\n";
    assert!(rest.starts_with(expected), "{shown}");
}
