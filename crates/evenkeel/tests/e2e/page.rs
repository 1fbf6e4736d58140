//! The page and what it is made of: `GET /`, `/live` and `/live/NAME`, on the socket and on the port.

use std::fs;

use serde_json::Value;

use crate::guest::pattern;
use crate::harness::{Home, wait_for};
use crate::metrics::{TWO, bearer, body, on_port, on_socket, with_port};

fn live(home: &Home) -> Value {
    serde_json::from_str(body(&on_socket(home, "GET /live", ""))).unwrap()
}

fn tenant<'a>(live: &'a Value, name: &str) -> &'a Value {
    live["tenants"].as_array().unwrap().iter().find(|tenant| tenant["name"] == name).unwrap()
}

#[test]
fn what_a_guest_does_is_seen_live() {
    let home = Home::new();
    home.configure(TWO);
    let daemon = home.serve();
    let first = live(&home);
    assert_eq!(
        (&first["span_ms"], &tenant(&first, "db")["moved"]),
        (&Value::Null, &Value::Null),
        "nobody asked before"
    );
    let drive = &first["drives"][0];
    assert_eq!((&drive["name"], &drive["policy"]), (&"device".into(), &"lpns".into()));
    assert_eq!(drive["disks"][1], serde_json::json!({"name": "batch", "size_bytes": 4 << 20}));
    assert_eq!(first["events"][0]["kind"], "started");
    let mut guest = home.attach("db");
    let seen = wait_for("a span with commands", || {
        guest.write(0, &pattern(0, 4096)[..guest.ns.block_bytes as usize]).unwrap();
        let now = live(&home);
        now["tenants"][0]["latency"].is_object().then_some(now)
    });
    assert!(seen["span_ms"].as_u64().unwrap() > 0 && seen["at_unix_ms"].as_u64() > first["at_unix_ms"].as_u64());
    assert_eq!(seen["started_at_unix_ms"], first["started_at_unix_ms"]);
    let db = tenant(&seen, "db");
    assert_eq!((&db["target_ns"], &db["class"]), (&1_000_000_000_u64.into(), &"guaranteed".into()));
    assert!(db["moved"]["iops"].as_f64().unwrap() > 0.0 && db["moved"]["bytes_per_second"].as_u64().unwrap() > 0);
    assert!(db["latency"]["p50_ns"].as_u64().unwrap() <= db["latency"]["p99_ns"].as_u64().unwrap());
    let batch = tenant(&seen, "batch");
    assert_eq!((&batch["latency"], &batch["weight"], &batch["verdict"]), (&Value::Null, &7.into(), &Value::Null));
    assert_eq!(batch["moved"]["iops"], 0.0);
    daemon.stop();
}

#[test]
fn a_tenants_latencies_are_counted_by_their_length() {
    let home = Home::new();
    home.configure(TWO);
    let daemon = home.serve();
    let mut guest = home.attach("db");
    (0..8).for_each(|_| drop(guest.read(0, 1).unwrap()));
    let detail: Value = serde_json::from_str(body(&on_socket(&home, "GET /live/db", ""))).unwrap();
    let numbers = |key: &str| -> Vec<u64> {
        detail[key].as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).collect()
    };
    let (upper_ns, counts) = (numbers("upper_ns"), numbers("counts"));
    assert_eq!(counts.len(), upper_ns.len() + 1, "those above all bounds too");
    assert!(upper_ns.is_sorted());
    assert_eq!(counts.iter().sum::<u64>(), 8, "{detail}");
    assert_eq!((&detail["tenant"]["name"], &detail["assumed"]), (&"db".into(), &true.into()));
    let answer = on_socket(&home, "GET /live/nobody", "");
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("there is no disk \\\"nobody\\\""), "{answer}");
    let no_text = on_socket(&home, "GET /live/%FF", "");
    assert!(no_text.starts_with("HTTP/1.1 400 ") && no_text.contains("application/problem+json"), "{no_text}");
    daemon.stop();
}

#[test]
fn a_page_of_another_host_gets_nothing() {
    let home = Home::new();
    home.configure(TWO);
    let daemon = home.serve();
    let asked = |what: &str, headers: &str| {
        let request = format!("{what} HTTP/1.1\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n");
        crate::disks::raw(&home, request.as_bytes())
    };
    // As it comes through a forwarded port from a browser: its name leads here, or it sends to ours.
    for headers in ["host: evil.example:9560\r\n", "host: localhost\r\norigin: https://evil.example\r\n"] {
        for what in ["GET /v1/disks", "GET /", "DELETE /v1/disks/db?force=true", "POST /v1/disks/db/trace?seconds=1"] {
            let told = asked(what, headers);
            assert!(told.starts_with("HTTP/1.1 403 ") && told.contains("foreign-page"), "{what}: {told}");
        }
    }
    assert!(asked("GET /v1/disks", "host: localhost:9560\r\n").starts_with("HTTP/1.1 200 "));
    daemon.stop();
}

#[test]
fn the_page_needs_no_token_and_its_figures_do() {
    let home = Home::new();
    let (daemon, address) = with_port(&home, "");
    let token = bearer(&fs::read_to_string(home.runtime_dir().join("token")).unwrap());
    for page in [on_socket(&home, "GET /", ""), on_port(address, "GET /", ""), on_port(address, "GET /", &token)] {
        assert!(body(&page).starts_with("<!doctype html>"), "{page}");
        for header in [
            "content-type: text/html; charset=utf-8",
            "content-security-policy: default-src 'none'; script-src 'sha256-",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(page.contains(header), "{header}: {page}");
        }
        assert!(!page.contains(token.trim()), "it knows no token");
    }
    for path in ["/live", "/live/db", "/live/nobody"] {
        let answer = on_port(address, &format!("GET {path}"), "");
        assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("www-authenticate: Bearer"), "{answer}");
    }
    for path in ["/live", "/live/db"] {
        let answer = on_port(address, &format!("GET {path}"), &token);
        assert!(
            answer.contains("content-type: application/json") && answer.contains("cache-control: no-store"),
            "{answer}"
        );
        assert!(body(&answer).contains("\"db\""), "{answer}");
    }
    assert!(on_port(address, "GET /live/nobody", &token).starts_with("HTTP/1.1 404 "));
    for request in ["POST /", "POST /live", "DELETE /live/db"] {
        let answer = on_port(address, request, &token);
        assert!(answer.starts_with("HTTP/1.1 405 "), "{request}: {answer}");
    }
    daemon.stop();
}
