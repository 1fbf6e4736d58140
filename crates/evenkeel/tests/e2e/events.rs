//! The event log of a running daemon, for clients that ask and for clients that wait.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use crate::harness::{Home, errors, evenkeel, wait_for};

const CONFIG: &str = "[device]\nbackend = \"memory\"\nsize = \"64MiB\"\n[policy]\nname = \"passthrough\"\n\
                      [[tenant]]\nname = \"db\"\nsize = \"8MiB\"\n";

fn socket(home: &Home) -> PathBuf {
    home.runtime_dir().join("api.sock")
}

fn disk(home: &Home, arguments: &str) {
    let mut command = evenkeel();
    command.arg("disk").args(arguments.split(' ')).env("EVENKEEL_SOCKET", socket(home));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments}: {}", errors(&output));
}

fn events(home: &Home, since: u64) -> Vec<Value> {
    let mut command = evenkeel();
    command.args(["events", "--json", "--since", &since.to_string()]).env("EVENKEEL_SOCKET", socket(home));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// `created web`.
fn word(event: &Value) -> String {
    let tenant = event["tenant"].as_str().map(|tenant| format!(" {tenant}")).unwrap_or_default();
    format!("{}{tenant}", event["kind"].as_str().unwrap_or("lost"))
}

fn words(events: &[Value]) -> Vec<String> {
    events.iter().map(word).collect()
}

#[test]
fn what_happens_is_told_in_order() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    // A client follows all the while.
    let mut follower = evenkeel();
    follower.args(["events", "--follow", "--json"]).env("EVENKEEL_SOCKET", socket(&home)).stdout(Stdio::piped());
    follower.stderr(Stdio::piped());
    let mut follower = follower.spawn().unwrap();
    let mut followed = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut next = || word(&serde_json::from_str(&followed.next().unwrap().unwrap()).unwrap());
    assert_eq!(next(), "started");
    disk(&home, "create web --size 8MiB");
    assert_eq!(next(), "created web");
    disk(&home, "set web --weight 3");
    assert_eq!(next(), "changed web");
    disk(&home, "set web --threads dedicated --queues 4");
    assert_eq!(next(), "changed web");
    let guest = home.attach("web");
    assert_eq!(next(), "attached web");
    drop(guest);
    assert_eq!(next(), "detached web");
    disk(&home, "grow web --size 12MiB");
    assert_eq!(next(), "changed web");
    disk(&home, "delete web --yes");
    assert_eq!((next(), next()), ("deleted web".into(), "wiped web".into()));
    let all = events(&home, 0);
    let wanted = [
        "started",
        "created web",
        "changed web",
        "changed web",
        "attached web",
        "detached web",
        "changed web",
        "deleted web",
        "wiped web",
    ];
    assert_eq!(words(&all), wanted);
    let changes = [2, 3, 6].map(|at: usize| all[at]["what"].as_str().unwrap());
    assert_eq!(changes, ["weight 3", "queues 64 → 4, threads shared → dedicated", "size 12MiB, weight 3"]);
    let number = all[3]["number"].as_u64().unwrap();
    assert_eq!(words(&events(&home, number)), wanted[4..]);
    daemon.stop();
    let ended = follower.wait_with_output().unwrap();
    let (told, newest) = (errors(&ended), all.last().unwrap()["number"].as_u64().unwrap());
    assert!(!ended.status.success(), "the daemon is gone");
    assert!(told.contains(&format!("stopped; `--since {newest}` goes on from there")), "{told}");
    // A number of the daemon before: what was after it is lost, and said to be.
    let daemon = home.serve();
    let again = wait_for("events", || Some(events(&home, number)));
    assert_eq!(words(&again), ["lost", "started"]);
    assert!(again[1]["number"].as_u64().unwrap() > number);
    daemon.stop();
}

#[test]
fn those_who_wait_hold_nobody_up() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let newest = events(&home, 0).last().unwrap()["number"].as_u64().unwrap();
    let wait = || {
        let mut stream = UnixStream::connect(socket(&home)).unwrap();
        let request =
            format!("GET /v1/events?since={newest}&wait_s=20 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        stream
    };
    let answer = |mut stream: UnixStream| {
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        answer
    };
    let waiting: Vec<UnixStream> = std::iter::repeat_with(wait).take(32).collect();
    // One more than there may be is told so at once.
    let told = answer(wait());
    assert!(told.starts_with("HTTP/1.1 503") && told.contains("32 others wait"), "{told}");
    disk(&home, "create web --size 8MiB");
    for stream in waiting {
        let told = answer(stream);
        assert!(told.starts_with("HTTP/1.1 200") && told.contains("\"created\""), "{told}");
    }
    for (query, wanted) in [("wait_s=21", "wait 20 seconds at most"), ("since=-1", "since"), ("other=1", "other")] {
        let mut stream = UnixStream::connect(socket(&home)).unwrap();
        let request = format!("GET /v1/events?{query} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let told = answer(stream);
        assert!(told.starts_with("HTTP/1.1 4") && told.contains(wanted), "{query}: {told}");
    }
    daemon.stop();
}
