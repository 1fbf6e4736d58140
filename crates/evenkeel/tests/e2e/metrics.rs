//! `GET /metrics`: what it says, to whom, and what those can do who ask for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::Value;

use crate::guest::pattern;
use crate::harness::{Daemon, HANG, Home, wait_for};

/// An address of this host that no other test has.
pub fn own_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    // A process' number may be larger: two that share these bytes don't run at once on a host with 65536 of them.
    SocketAddr::from(([127, high, low, NEXT.fetch_add(1, Ordering::Relaxed)], 9560))
}

/// One request on a connection of its own; the whole answer.
pub fn exchange(mut stream: impl Read + Write, request: &str, headers: &str) -> String {
    let request = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub fn on_socket(home: &Home, request: &str, headers: &str) -> String {
    let stream = UnixStream::connect(home.runtime_dir().join("api.sock")).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    exchange(stream, request, headers)
}

pub fn on_port(address: SocketAddr, request: &str, headers: &str) -> String {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    exchange(stream, request, headers)
}

/// The text of a good answer.
pub fn body(answer: &str) -> &str {
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    answer.split_once("\r\n\r\n").unwrap().1
}

pub fn scrape(home: &Home) -> String {
    body(&on_socket(home, "GET /metrics", "")).to_owned()
}

/// Values by the names of their samples, labels and all.
fn samples(text: &str) -> BTreeMap<&str, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.rsplit_once(' ')).map(|(name, value)| (name, value.parse().unwrap())).collect()
}

/// Scrapes until `found` says what it was looking for.
fn scrape_for<T>(home: &Home, what: &str, mut found: impl FnMut(&BTreeMap<&str, f64>) -> Option<T>) -> T {
    wait_for(what, || found(&samples(&scrape(home))))
}

pub const TWO: &str = "[device]\nbackend = \"memory\"\nsize = \"16MiB\"\n[policy]\nname = \"lpns\"\n\
                   [[tenant]]\nname = \"db\"\nsize = \"4MiB\"\nlatency_target = \"1s\"\nclass = \"guaranteed\"\n\
                   [[tenant]]\nname = \"batch\"\nsize = \"4MiB\"\nweight = 7\n";

#[test]
fn what_a_guest_does_is_told_on_the_socket() {
    let home = Home::new();
    home.configure(TWO);
    let daemon = home.serve();
    let mut guest = home.attach("db");
    for lba in 0..8 {
        guest.write(lba, &pattern(lba, 4096)[..guest.ns.block_bytes as usize]).unwrap();
    }
    let content = guest.read(0, 16).unwrap();
    assert!(guest.read(1 << 40, 1).is_err(), "refused by the controller: the drive never sees it");
    let block_bytes = f64::from(guest.ns.block_bytes);
    let text = scrape(&home);
    let told = samples(&text);
    let db = |name: &str| told[format!("evenkeel_{name}{{drive=\"device\",tenant=\"db\"}}").as_str()];
    let db_by = |name: &str, direction: &str| {
        told[format!("evenkeel_{name}{{drive=\"device\",tenant=\"db\",direction=\"{direction}\"}}").as_str()]
    };
    let completions = ["read", "write", "other"].map(|direction| db_by("tenant_completions_total", direction));
    assert_eq!(completions, [1.0, 8.0, 0.0], "{text}");
    assert_eq!(db_by("tenant_bytes_total", "write"), 8.0 * block_bytes);
    assert_eq!(db_by("tenant_bytes_total", "read"), content.len() as f64);
    assert_eq!(db_by("tenant_errors_total", "read"), 0.0);
    assert_eq!(db("tenant_latency_seconds_count"), completions.iter().sum::<f64>());
    let all = "evenkeel_tenant_latency_seconds_bucket{drive=\"device\",tenant=\"db\",le=\"+Inf\"}";
    assert_eq!(told[all], completions.iter().sum::<f64>());
    let spent = db("tenant_wait_seconds_total") + db("tenant_service_seconds_total");
    assert!(spent > 0.0 && (spent - db("tenant_latency_seconds_sum")).abs() < 1e-9, "{text}");
    assert_eq!((db("tenant_latency_target_seconds"), db("tenant_in_flight_commands")), (1.0, 0.0));
    assert_eq!(told["evenkeel_tenant_weight{drive=\"device\",tenant=\"batch\"}"], 7.0);
    assert_eq!(told["evenkeel_tenant_info{drive=\"device\",tenant=\"db\",class=\"guaranteed\"}"], 1.0);
    assert_eq!(told["evenkeel_drive_up{drive=\"device\"}"], 1.0);
    assert_eq!(told["evenkeel_drive_size_bytes{drive=\"device\"}"], 16.0 * 1024.0 * 1024.0);
    assert!(told["evenkeel_poller_iterations_total{drive=\"device\",poller=\"0\"}"] > 0.0);
    // The scrape itself finds a poller that slept, or will.
    scrape_for(&home, "a poller that fell asleep", |told| {
        let asleep = told["evenkeel_poller_asleep{drive=\"device\",poller=\"0\"}"];
        (asleep == 1.0 && told["evenkeel_poller_sleeps_total{drive=\"device\",poller=\"0\"}"] > 0.0).then_some(())
    });
    drop(guest);
    daemon.stop();
}

/// Prometheus takes a counter that fell for one that began anew, and counts all of it again.
#[test]
fn what_was_counted_goes_on_with_the_next_daemon() {
    let home = Home::new();
    home.configure(TWO);
    let (mut daemon, mut writes) = (home.serve(), 0);
    let told = |home: &Home| {
        let text = scrape(home);
        let told = samples(&text);
        let count = |name: &str| told[name];
        let writes = count("evenkeel_tenant_completions_total{drive=\"device\",tenant=\"db\",direction=\"write\"}");
        let late = count("evenkeel_tenant_latency_seconds_bucket{drive=\"device\",tenant=\"db\",le=\"+Inf\"}");
        assert_eq!(writes, late, "{text}");
        assert!(count("evenkeel_tenant_service_seconds_total{drive=\"device\",tenant=\"db\"}") > 0.0);
        writes
    };
    for killed in [false, true, false, true] {
        let mut guest = home.attach("db");
        for lba in 0..5 {
            guest.write(lba, &pattern(lba, 4096)[..guest.ns.block_bytes as usize]).unwrap();
        }
        writes += 5;
        if killed {
            // What was shown does not fall; an orderly end needs nobody to look. A reading is given again for a second.
            wait_for("a reading with all of them", || (told(&home) == f64::from(writes)).then_some(()));
            guest.write(0, &pattern(0, 4096)[..guest.ns.block_bytes as usize]).unwrap();
            drop(daemon);
        } else {
            daemon.stop();
        }
        daemon = home.serve();
        assert_eq!(told(&home), f64::from(writes));
    }
    // Of a disk of that name that is made anew nothing was counted.
    daemon.stop();
    home.configure(&TWO.replace("name = \"db\"", "name = \"other\""));
    let daemon = home.serve();
    assert!(!scrape(&home).contains("\"db\""));
    daemon.stop();
    home.configure(TWO);
    let daemon = home.serve();
    let none = samples(&scrape(&home))["evenkeel_tenant_wait_seconds_total{drive=\"device\",tenant=\"db\"}"];
    assert_eq!(none, 0.0);
    daemon.stop();
}

/// One drive for each policy, all in one daemon.
fn policies() -> String {
    let drive = |name: &str| {
        format!(
            "[[drive]]\nname = \"{name}\"\nbackend = \"memory\"\nsize = \"8MiB\"\nqueues = 8\n\
             policy = {{ name = \"{name}\" }}\n\
             [[tenant]]\nname = \"on-{name}\"\ndrive = \"{name}\"\nsize = \"4MiB\"\nrw_iops = 100000\n"
        )
    };
    ["lpns", "evenkeel", "fair", "wrr", "drr", "passthrough"].map(drive).concat()
}

#[test]
fn each_policy_shows_what_it_has_inside() {
    let home = Home::new();
    home.configure(&policies());
    let daemon = home.serve();
    let of_pollers: [(&str, &[&str]); 5] = [
        ("lpns", &["lpns_engaged", "lpns_omega", "lpns_best_effort_cap_commands", "lpns_hwq_switches_total"]),
        ("fair", &["policy_window_commands"]),
        ("evenkeel", &["policy_window_commands"]),
        ("wrr", &["policy_window_commands"]),
        ("drr", &["policy_window_commands"]),
    ];
    let of_tenants: [(&str, &[&str]); 2] = [
        ("fair", &["fair_state", "fair_threshold_seconds", "fair_weight_factor", "fair_budget_seconds"]),
        ("passthrough", &["tenant_held_by_limits"]),
    ];
    let mut guests = Vec::new();
    for name in of_pollers.iter().chain(&of_tenants).map(|(drive, _)| *drive).collect::<BTreeSet<_>>() {
        let mut guest = home.attach(&format!("on-{name}"));
        guest.read(0, 1).unwrap();
        guests.push(guest);
    }
    scrape_for(&home, "each policy's figures", |told| {
        let has = |drive: &str, figure: &str| {
            let start = format!("evenkeel_{figure}{{drive=\"{drive}\",");
            told.keys().any(|sample| sample.starts_with(&start))
        };
        let all_of = |list: &[(&str, &[&str])]| {
            list.iter().all(|(drive, figures)| figures.iter().all(|figure| has(drive, figure)))
        };
        (all_of(&of_pollers) && all_of(&of_tenants) && has("lpns", "tenant_queue_hwq")).then(|| {
            assert!(!has("drr", "lpns_omega") && !has("lpns", "fair_state"), "nobody has what is another's");
        })
    });
    drop(guests);
    daemon.stop();
}

#[test]
fn a_broken_promise_is_told_with_whose_fault_it_is() {
    let home = Home::new();
    // It asks for more than it declared.
    home.configure(
        "[device]\nbackend = \"model\"\nprofile = \"p5800x\"\nsize = \"16MiB\"\n[policy]\nname = \"passthrough\"\n\
         [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\nclass = \"guaranteed\"\nlatency_target = \"100us\"\n\
         [tenant.demand]\nrw = \"randread\"\nbs = \"4k\"\n",
    );
    let daemon = home.serve();
    // A forecast is played when it is first wanted.
    wait_for("the forecast", || {
        on_socket(&home, "GET /v1/stats?span_ms=0", "").contains("\"predicted\":{").then_some(())
    });
    home.load("db", "--rw randread --bs 128k --iodepth 32 --size 8m --runtime 2s").expect_clean();
    let broken = "evenkeel_promise_broken{drive=\"device\",tenant=\"db\",culprit=\"own\",neighbour=\"\"}";
    scrape_for(&home, "the broken promise", |told| {
        told.contains_key(broken).then(|| {
            let db = |name: &str| told[format!("evenkeel_{name}{{drive=\"device\",tenant=\"db\"}}").as_str()];
            assert_eq!(db("promise_kept"), 0.0);
            assert!(db("tenant_p99_latency_seconds") > 100e-6 && db("tenant_late_completions_total") > 0.0);
            let alone = db("tenant_alone_p99_latency_seconds");
            assert!(alone > 0.0 && db("tenant_predicted_p99_latency_seconds") > 0.0);
            assert!((db("tenant_slowdown_ratio") - db("tenant_p99_latency_seconds") / alone).abs() < 1e-6);
        })
    });
    daemon.stop();
}

pub fn with_port(home: &Home, api: &str) -> (Daemon, SocketAddr) {
    let address = own_address();
    home.configure(&format!("{TWO}[api]\nlisten = \"{address}\"\n{api}"));
    (home.serve(), address)
}

pub fn bearer(token: &str) -> String {
    format!("authorization: Bearer {}\r\n", token.trim())
}

#[test]
fn the_port_takes_the_token_and_only_shows() {
    let home = Home::new();
    let (daemon, address) = with_port(&home, "");
    let at = home.runtime_dir().join("token");
    let token = fs::read_to_string(&at).unwrap();
    assert_eq!(fs::metadata(&at).unwrap().mode() & 0o7777, 0o640);
    assert!(token.trim().len() == 64 && token.trim().bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
    for (headers, title) in [
        (String::new(), "this takes a token"),
        (bearer("0123456789abcdef"), "that is not the token"),
        (bearer(&token[1..]), "that is not the token"),
        (bearer(&token).replace("Bearer", "Basic"), "that is not the token"),
    ] {
        for path in ["/metrics", "/v1/disks", "/nothing"] {
            let answer = on_port(address, &format!("GET {path}"), &headers);
            assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("www-authenticate: Bearer"), "{answer}");
            assert!(answer.contains(title) && answer.contains(at.to_str().unwrap()), "{answer}");
        }
    }
    let names = |text: &str| samples(text).keys().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let shown = on_port(address, "GET /metrics", &bearer(&token));
    assert!(shown.contains("content-type: text/plain; version=0.0.4"), "{shown}");
    assert_eq!(names(body(&shown)), names(&scrape(&home)));
    let accept = format!("accept: application/openmetrics-text;version=1.0.0\r\n{}", bearer(&token));
    let shown = on_port(address, "GET /metrics", &accept);
    assert!(shown.contains("content-type: application/openmetrics-text"), "{shown}");
    assert!(body(&shown).ends_with("# EOF\n"), "{shown}");
    // Nothing changes anything there, nor shows more than metrics.
    for (request, status) in [
        ("GET /v1/disks", 404),
        ("POST /v1/disks", 404),
        ("DELETE /v1/disks/db", 404),
        ("POST /v1/apply", 404),
        ("POST /metrics", 405),
    ] {
        let answer = on_port(address, request, &bearer(&token));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    // Each start has a token of its own.
    daemon.stop();
    let daemon = home.serve();
    let answer = on_port(address, "GET /metrics", &bearer(&token));
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    let token = fs::read_to_string(&at).unwrap();
    body(&on_port(address, "GET /metrics", &bearer(&token)));
    daemon.stop();
}

#[test]
fn a_port_that_another_process_has_is_told_of_and_disks_are_served_all_the_same() {
    let home = Home::new();
    let (daemon, address) = with_port(&home, "");
    let other = Home::new();
    other.configure(&format!("{TWO}[api]\nlisten = \"{address}\"\n"));
    let without = other.serve();
    without.wait_log(&format!("can't listen on {address}, another process does"), 1);
    body(&on_socket(&other, "GET /metrics", ""));
    without.stop();
    daemon.stop();
}

#[test]
fn who_reads_nothing_or_shows_no_token_holds_up_nobody() {
    let home = Home::new();
    let (daemon, address) = with_port(&home, "");
    let token = fs::read_to_string(home.runtime_dir().join("token")).unwrap();
    // More than there are places, that say nothing, half a request, or a wrong token.
    let mut strangers = Vec::new();
    for n in 0..100 {
        let mut stream = TcpStream::connect(address).unwrap();
        let said = ["", "GET /metrics HTTP/1.1\r\n", "GET /metrics HTTP/1.1\r\nauthorization: Bearer x\r\n\r\n"][n % 3];
        let _ = stream.write_all(said.as_bytes());
        strangers.push(stream);
    }
    // And who may ask, and never reads the answers.
    let mut unread = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nhost: x\r\n{}\r\n", bearer(&token));
        stream.write_all(request.repeat(200).as_bytes()).unwrap();
        unread.push(stream);
    }
    for _ in 0..5 {
        body(&on_port(address, "GET /metrics", &bearer(&token)));
        scrape(&home);
        body(&on_socket(&home, "GET /v1/disks", ""));
    }
    // More clients that never read than there are slots: their slots become free, and the next request is answered.
    let flood = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nhost: x\r\n{}\r\n", bearer(&token)).repeat(20_000);
        let _ = stream.write(request.as_bytes());
        stream
    };
    let floods: Vec<TcpStream> = (0..40).map(flood).collect();
    wait_for("a place", || {
        let mut stream = TcpStream::connect(address).ok()?;
        let request = format!("GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n", bearer(&token));
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200 ").then_some(())
    });
    drop((strangers, unread, floods));
    daemon.stop();
}

#[test]
fn ten_thousand_requests_are_answered() {
    let home = Home::new();
    let (daemon, address) = with_port(&home, "");
    let token = fs::read_to_string(home.runtime_dir().join("token")).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: x\r\n{}\r\n", bearer(&token));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let request = request.clone();
            std::thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(HANG)).unwrap();
                let mut answered = 0;
                while answered < 2_500 {
                    stream.write_all(request.as_bytes()).unwrap();
                    answered += usize::from(read_answer(&mut stream).is_some());
                }
                answered
            })
        })
        .collect();
    assert_eq!(clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>(), 10_000);
    daemon.stop();
}

/// One good answer on a connection that stays; `None`: the connection ended.
fn read_answer(stream: &mut TcpStream) -> Option<()> {
    let mut answer = Vec::new();
    let mut piece = [0; 65_536];
    loop {
        let text = String::from_utf8_lossy(&answer);
        if let Some((head, rest)) = text.split_once("\r\n\r\n") {
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if rest.len() >= length.parse().unwrap() {
                return Some(());
            }
        }
        match stream.read(&mut piece).unwrap() {
            0 => return None,
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
}

/// Every metric that the board and the alerts ask for is one that the daemon has.
#[test]
fn the_board_and_the_alerts_ask_for_what_there_is() {
    let home = Home::new();
    home.configure(TWO);
    let daemon = home.serve();
    let text = scrape(&home);
    let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut known = BTreeSet::new();
    for (name, kind) in names {
        match kind {
            "histogram" => known.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}"))),
            _ => known.extend([name.to_owned()]),
        }
    }
    let packaging = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
    let read = |path: &str| fs::read_to_string(format!("{packaging}/{path}")).unwrap();
    let board: Value = serde_json::from_str(&read("grafana/evenkeel.json")).unwrap();
    let queries = strings(&board, &["expr", "definition"]);
    assert!(queries.len() > 40, "{queries:?}");
    for query in &queries {
        let metrics = metrics_in(query);
        assert!(!metrics.is_empty(), "no metric of ours in {query}");
        assert!(metrics.is_subset(&known), "{query} asks for {:?}", metrics.difference(&known));
    }
    check_layout(&board);
    // What the files call a metric anywhere is one, but for file names and the job.
    let rules = [read("prometheus/evenkeel.rules.yml"), read("prometheus/evenkeel.rules.test.yml")].concat();
    let metrics = metrics_in(&rules);
    assert!(metrics.len() > 10 && metrics.is_subset(&known), "{:?}", metrics.difference(&known));
    daemon.stop();
}

/// Names that begin as ours do.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("evenkeel_")).map(str::to_owned).collect()
}

/// All texts under these keys, however deep.
fn strings(value: &Value, keys: &[&str]) -> Vec<String> {
    match value {
        Value::Object(entries) => {
            let own = entries.iter().filter(|(key, _)| keys.contains(&key.as_str()));
            let own = own.filter_map(|(_, value)| value.as_str().map(str::to_owned));
            own.chain(entries.values().flat_map(|value| strings(value, keys))).collect()
        }
        Value::Array(values) => values.iter().flat_map(|value| strings(value, keys)).collect(),
        _ => Vec::new(),
    }
}

/// What Grafana takes for granted of a board: numbers that are each panel's own, places that don't overlap, a data
/// source for each query, and no variable that the board does not have.
fn check_layout(board: &Value) {
    let panels = board["panels"].as_array().unwrap();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{panel}");
        for place in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{} lies over another panel", panel["title"]);
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{target}");
        }
    }
    let variables = board["templating"]["list"].as_array().unwrap().iter();
    let variables: BTreeSet<&str> = variables.filter_map(|variable| variable["name"].as_str()).collect();
    for query in strings(board, &["expr", "definition"]) {
        let used = query.split('$').skip(1).map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
        for name in used.flatten().filter(|name| !name.starts_with("__")) {
            assert!(variables.contains(name), "{query}: ${name}");
        }
    }
}
