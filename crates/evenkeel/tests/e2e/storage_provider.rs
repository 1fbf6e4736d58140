//! A client of `evenkeel storage-provider`, beside a daemon. Block devices are served in guests.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::harness::{HANG, Home, errors, evenkeel, wait_for};

const CONFIG: &str = "[device]\nbackend = \"memory\"\nsize = \"16MiB\"\n[[tenant]]\nname = \"db\"\nsize = \"8MiB\"\n";

/// A provider's process, as systemd starts it for a client.
struct Client {
    stream: UnixStream,
    child: std::process::Child,
}

impl Client {
    fn connect(home: &Home) -> Self {
        let (stream, other) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        let mut command = evenkeel();
        command.arg("storage-provider").arg("--socket").arg(home.runtime_dir().join("api.sock"));
        let child = command.stdin(Stdio::from(OwnedFd::from(other))).stderr(Stdio::piped()).spawn().unwrap();
        Self { stream, child }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next reply.
    fn reply(&mut self) -> Value {
        let mut bytes = Vec::new();
        loop {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).unwrap();
            if byte == [0] {
                return serde_json::from_slice(&bytes).unwrap();
            }
            bytes.extend(byte);
        }
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        let method = format!("io.systemd.StorageProvider.{method}");
        let call = json!({ "method": method, "parameters": parameters, "more": method.contains("List") });
        self.send(format!("{call}\0").as_bytes());
        self.reply()
    }

    fn error(&mut self, method: &str, parameters: Value) -> String {
        let reply = self.call(method, parameters);
        reply["error"].as_str().unwrap_or_else(|| panic!("{reply}")).replace("io.systemd.StorageProvider.", "")
    }

    /// Closes the connection; gives the exit status of the process and what it wrote.
    fn end(self) -> (Option<i32>, String) {
        drop(self.stream);
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), errors(&output))
    }
}

#[test]
fn a_client_is_told_what_the_daemon_says() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let mut client = Client::connect(&home);
    assert_eq!(client.error("ListVolumes", json!({})), "NoSuchVolume");
    assert_eq!(client.error("Acquire", json!({ "name": "db" })), "WrongType");
    assert_eq!(client.error("Acquire", json!({ "name": "db", "createMode": "new" })), "VolumeExists");
    assert_eq!(client.error("Acquire", json!({ "name": "web", "createMode": "open" })), "NoSuchVolume");
    assert_eq!(client.error("Acquire", json!({ "name": "web" })), "CreateSizeRequired");
    let long = json!({ "name": "x".repeat(60 << 10) });
    assert_eq!(client.error("Acquire", long), "org.varlink.service.InvalidParameter");
    // More than the drive has.
    let reply = client.call("Acquire", json!({ "name": "web", "createSizeBytes": 1_u64 << 40 }));
    assert_eq!(reply["error"], "io.systemd.System", "{reply}");
    let (code, log) = client.end();
    assert!(code == Some(0) && log.contains("web"), "{code:?} {log}");
    daemon.stop();

    let mut client = Client::connect(&home);
    let reply = client.call("ListVolumes", json!({}));
    assert_eq!((&reply["error"], &reply["parameters"]["errno"]), (&json!("io.systemd.System"), &json!(111)), "{reply}");
    let (code, log) = client.end();
    assert!(code == Some(0) && log.contains("no daemon answers"), "{code:?} {log}");
}

#[test]
fn a_call_without_a_reply_is_executed_and_the_next_one_answered() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let mut client = Client::connect(&home);
    client.send(b"{\"method\":\"io.systemd.StorageProvider.Acquire\",\"oneway\":true}\0{\"method\":\"a.B\"}\0");
    assert_eq!(client.reply()["error"], "org.varlink.service.MethodNotFound");
    // Gone between its call and the reply.
    client.send(b"{\"method\":\"a.B\"}\0");
    let (code, log) = client.end();
    assert!(code.is_some() && !log.contains("panicked"), "{code:?} {log}");
    daemon.stop();
}

#[test]
fn clients_that_break_the_protocol_are_sent_away_and_harm_nobody() {
    let home = Home::new();
    home.configure(CONFIG);
    let daemon = home.serve();
    let mut idle: Vec<Client> = (0..8).map(|_| Client::connect(&home)).collect();
    for bytes in [&b"garbage\0"[..], b"\0", &[b' '; 70 << 10]] {
        let mut client = Client::connect(&home);
        client.send(bytes);
        let mut rest = Vec::new();
        // What was not read resets the connection.
        let _ = client.stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
        let (code, log) = client.end();
        assert!(code == Some(1) && log.contains("a client of io.systemd.StorageProvider"), "{code:?} {log}");
    }
    for client in &mut idle {
        assert_eq!(client.error("Acquire", json!({ "name": "db" })), "WrongType");
        client.child.kill().unwrap();
        wait_for("its end", || client.child.try_wait().unwrap());
    }
    let output = evenkeel().arg("storage-provider").output().unwrap();
    assert!(output.status.code() == Some(1) && errors(&output).contains("evenkeel-storage-provider.socket"));
    daemon.stop();
}
