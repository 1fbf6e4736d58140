//! Bytes on a socket, with those of systemd 262's own provider as examples, and a daemon that answers as told.

use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::Duration;

use api::Rest;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::varlink::{Connection, Failure, Replies};
use super::volumes::Volumes;

const LONG: Duration = Duration::from_secs(60);
/// For what never comes.
const SHORT: Duration = Duration::from_millis(1);

fn connection(limit: Duration) -> (UnixStream, Connection) {
    let (client, server) = UnixStream::pair().unwrap();
    (client, Connection::new(server, limit).unwrap())
}

/// What a provider answers to a call.
fn answer(volumes: &Volumes, call: &str) -> String {
    let (mut client, mut connection) = connection(LONG);
    client.write_all(format!("{call}\0").as_bytes()).unwrap();
    let call = connection.next_call().unwrap().unwrap();
    connection.reply(volumes.answer(call)).unwrap();
    drop(connection);
    let mut told = String::new();
    client.read_to_string(&mut told).unwrap();
    told
}

/// A daemon that gives these answers, one after another, and then the requests that it got.
fn daemon(answers: Vec<(u16, Value)>) -> (TempDir, Volumes, JoinHandle<Vec<String>>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let requests = std::thread::spawn(move || answers.into_iter().map(|told| serve(&listener, &told)).collect());
    (dir, Volumes::new(Rest::new(path)), requests)
}

fn serve(listener: &UnixListener, (status, body): &(u16, Value)) -> String {
    let mut stream = listener.accept().unwrap().0;
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut first, mut length) = (String::new(), String::new(), 0);
    while reader.read_line(&mut line).unwrap() > 2 {
        first = if first.is_empty() { line.trim_end().to_owned() } else { first };
        length = line.to_lowercase().strip_prefix("content-length: ").map_or(length, |it| it.trim().parse().unwrap());
        line.clear();
    }
    let mut asked = vec![0; length];
    reader.read_exact(&mut asked).unwrap();
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} told\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap();
    first.replace("HTTP/1.1", "") + &String::from_utf8(asked).unwrap()
}

fn disk(name: &str, frontend: &str, state: &str) -> Value {
    json!({
        "name": name, "drive": "fast", "size_bytes": 8192, "lba_bytes": 512, "frontend": frontend, "ceilings": {},
        "state": state, "attached": false, "declared": false,
    })
}

fn refusal(status: u16, code: &str) -> (u16, Value) {
    (status, json!({ "status": status, "code": code, "title": "no", "remedy": "none" }))
}

fn acquire(parameters: &str) -> String {
    format!("{{\"method\":\"io.systemd.StorageProvider.Acquire\",\"parameters\":{parameters}}}")
}

#[test]
fn calls_arrive_in_any_pieces() {
    let (mut client, mut connection) = connection(LONG);
    client.write_all(b"{\"method\":\"a.A\"}\0{\"method\":\"b.B\",\"more\":true,\"para").unwrap();
    assert_eq!(connection.next_call().unwrap().unwrap().method, "a.A");
    client.write_all(b"meters\":{\"x\":null},\"upgrade\":false}\0").unwrap();
    let call = connection.next_call().unwrap().unwrap();
    assert!(call.method == "b.B" && call.more && call.parameters.unwrap().contains_key("x"));
    client.shutdown(Shutdown::Write).unwrap();
    assert!(connection.next_call().unwrap().is_none());
}

#[test]
fn what_is_no_call_ends_the_connection() {
    let deep = "[".repeat(10_000);
    for bytes in [
        "garbage",
        "",
        "[]",
        "{}",
        "{\"method\":1}",
        "{\"method\":\"a.A\",\"method\":\"a.A\"}",
        "{\"method\":\"a.A\",\"foo\":true}",
        "{\"method\":\"a.A\",\"parameters\":[]}",
        "{\"method\":\"a.A\",\"more\":true,\"oneway\":true}",
        "{\"method\":\"a.A\",\"more\":1}",
        "{\"method\":\"\u{1}\"}",
        &deep,
    ] {
        let (mut client, mut connection) = connection(LONG);
        client.write_all(format!("{bytes}\0").as_bytes()).unwrap();
        assert!(connection.next_call().is_err(), "{bytes}");
    }
    let (mut client, mut connection) = connection(LONG);
    client.write_all(b"{\"method\":\"\xff\"}\0").unwrap();
    assert!(connection.next_call().is_err(), "not UTF-8");
}

#[test]
fn a_client_can_be_neither_endless_nor_late() {
    let (mut client, mut connection) = connection(LONG);
    client.write_all(&vec![b' '; 70 << 10]).unwrap();
    assert!(connection.next_call().unwrap_err().to_string().contains("longer than"));

    let (mut client, mut connection) = self::connection(SHORT);
    client.write_all(b"{\"method\"").unwrap();
    assert!(connection.next_call().unwrap_err().to_string().contains("no call within"));
    client.shutdown(Shutdown::Write).unwrap();
    let (client, mut gone) = self::connection(LONG);
    drop(client);
    assert!(gone.next_call().unwrap().is_none());
    let (mut client, mut gone) = self::connection(LONG);
    client.write_all(b"{").unwrap();
    drop(client);
    assert!(gone.next_call().unwrap_err().to_string().contains("went away"));
    assert!(gone.reply(Err(Failure::named("a.B"))).is_err());
}

#[test]
fn a_client_that_reads_nothing_ends_the_connection() {
    let (_client, connection) = connection(SHORT);
    let results = vec![json!({ "name": "x".repeat(1 << 10) }); 4 << 10];
    assert!(connection.reply(Ok(Replies { results, descriptor: None })).is_err());
}

#[test]
fn a_descriptor_goes_with_its_reply() {
    let (client, connection) = connection(LONG);
    let descriptor: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let results = vec![json!({ "fileDescriptorIndex": 0, "readOnly": true, "type": "blk" })];
    connection.reply(Ok(Replies { results, descriptor: Some(descriptor) })).unwrap();
    let mut bytes = [0; 200];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let told = recvmsg(&client, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty()).unwrap();
    let expected = b"{\"parameters\":{\"fileDescriptorIndex\":0,\"readOnly\":true,\"type\":\"blk\"}}\0";
    assert_eq!(&bytes[..told.bytes], expected);
    let fds: Vec<OwnedFd> = control
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
            _ => Vec::new(),
        })
        .collect();
    let [fd] = &fds[..] else { panic!("{fds:?}") };
    assert_eq!(rustix::fs::fstat(fd).unwrap().st_rdev, rustix::fs::stat("/dev/null").unwrap().st_rdev);
}

#[test]
fn errors_are_those_of_systemd() {
    let volumes = Volumes::new(Rest::new("/nobody/listens"));
    let invalid =
        |name| format!("\"org.varlink.service.InvalidParameter\",\"parameters\":{{\"parameter\":\"{name}\"}}");
    let storage = |name| format!("\"io.systemd.StorageProvider.{name}\"");
    let list = "{\"method\":\"io.systemd.StorageProvider.ListVolumes\"";
    let interface = "{\"method\":\"org.varlink.service.GetInterfaceDescription\"";
    for (call, error) in [
        ("{\"method\":\"org.varlink.service.GetInfo\",\"parameters\":{\"x\":1}}".into(), invalid("x")),
        (format!("{interface}}}"), invalid("interface")),
        (
            format!("{interface},\"parameters\":{{\"interface\":\"a.b\"}}}}"),
            "\"org.varlink.service.InterfaceNotFound\",\"parameters\":{\"interface\":\"a.b\"}".into(),
        ),
        (
            "{\"method\":\"nodot\"}".into(),
            "\"org.varlink.service.MethodNotFound\",\"parameters\":{\"method\":\"nodot\"}".into(),
        ),
        (format!("{list}}}"), "\"org.varlink.service.ExpectedMore\"".into()),
        (format!("{list},\"more\":true,\"parameters\":{{\"matchName\":5}}}}"), invalid("matchName")),
        (format!("{list},\"more\":true,\"parameters\":{{\"matchName\":\"a[\"}}}}"), invalid("matchName")),
        ("{\"method\":\"io.systemd.StorageProvider.ListTemplates\",\"more\":true}".into(), storage("NoSuchTemplate")),
        (acquire("null"), invalid("name")),
        (acquire("{\"name\":null}"), invalid("name")),
        (acquire("{\"name\":\"\"}"), invalid("name")),
        (acquire("{\"name\":\"a\\nb\"}"), invalid("name")),
        (acquire("{\"name\":\"../sda\"}"), invalid("name")),
        (acquire("{\"name\":\"a\",\"createMode\":\"bad\"}"), invalid("createMode")),
        (acquire("{\"name\":\"a\",\"createSizeBytes\":-1}"), invalid("createSizeBytes")),
        (acquire("{\"name\":\"a\",\"createSizeBytes\":4097}"), invalid("createSizeBytes")),
        (acquire("{\"name\":\"a\",\"createSizeBytes\":1e99}"), invalid("createSizeBytes")),
        (acquire("{\"name\":\"a\",\"readOnly\":\"x\"}"), invalid("readOnly")),
        (acquire("{\"name\":\"a\",\"readOnly\":true,\"createMode\":\"new\"}"), invalid("readOnly")),
        (acquire("{\"name\":\"a\",\"foo\":true}"), invalid("foo")),
        (acquire("{\"name\":\"a\",\"requestAs\":\"file\"}"), invalid("requestAs")),
        (acquire("{\"name\":\"a\",\"template\":\"t\"}"), storage("NoSuchTemplate")),
        (
            acquire("{\"name\":\"a\",\"template\":\"\",\"allowInteractiveAuthentication\":true}"),
            "\"io.systemd.System\",\"parameters\":{\"errno\":111,\"origin\":\"linux\"}".into(),
        ),
    ] {
        assert_eq!(answer(&volumes, &call), format!("{{\"error\":{error}}}\0"), "{call}");
    }
}

#[test]
fn the_service_describes_itself() {
    let volumes = Volumes::new(Rest::new("/nobody/listens"));
    let told = answer(&volumes, "{\"method\":\"org.varlink.service.GetInfo\"}");
    let info: Value = serde_json::from_str(told.trim_end_matches('\0')).unwrap();
    for interface in info["parameters"]["interfaces"].as_array().unwrap() {
        let ask = json!({
            "method": "org.varlink.service.GetInterfaceDescription", "parameters": { "interface": interface },
        });
        let told: Value = serde_json::from_str(answer(&volumes, &ask.to_string()).trim_end_matches('\0')).unwrap();
        let text = told["parameters"]["description"].as_str().unwrap();
        assert!(text.contains(&format!("\ninterface {}\n", interface.as_str().unwrap())), "{text}");
    }
}

#[test]
fn block_devices_are_listed_by_name() {
    let disks = json!([
        disk("web", "ublk", "served"),
        disk("db", "vfio-user", "served"),
        disk("wiki", "ublk", "zeroing"),
        disk("was", "ublk", "leaving"),
        disk("old", "ublk", "served"),
    ]);
    let (_dir, volumes, requests) = daemon(vec![(200, disks.clone()), (200, disks)]);
    let list = "\"method\":\"io.systemd.StorageProvider.ListVolumes\",\"more\":true";
    let call = |pattern| format!("{{{list},\"parameters\":{{\"matchName\":\"{pattern}\"}}}}");
    let row = |name| format!("\"parameters\":{{\"name\":\"{name}\",\"sizeBytes\":8192,\"type\":\"blk\"}}}}\0");
    assert_eq!(answer(&volumes, &call("w*")), format!("{{\"continues\":true,{}{{{}", row("web"), row("wiki")));
    assert_eq!(answer(&volumes, &call("db")), "{\"error\":\"io.systemd.StorageProvider.NoSuchVolume\"}\0");
    assert_eq!(requests.join().unwrap(), ["GET /v1/disks "; 2]);
}

#[test]
fn disks_are_created_where_the_mode_says_so() {
    let missing = || refusal(404, "no-such-disk");
    let served = |frontend| (200, disk("a", frontend, "served"));
    let size = "\"createSizeBytes\":8192";
    // There is no device of that name on any host that runs this: a disk that is served has none.
    for (parameters, answers, error) in [
        ("\"createMode\":\"open\"", vec![missing()], "NoSuchVolume"),
        ("\"readOnly\":true", vec![missing()], "NoSuchVolume"),
        ("\"createMode\":\"new\"", vec![served("ublk")], "VolumeExists"),
        ("\"createMode\":\"any\"", vec![missing()], "CreateSizeRequired"),
        ("\"createMode\":\"open\"", vec![served("vfio-user")], "WrongType"),
        ("\"requestAs\":\"reg\"", vec![served("ublk")], "WrongType"),
        ("\"requestAs\":\"reg\"", vec![missing()], "CreateSizeRequired"),
        (&format!("\"requestAs\":\"dir\",{size}"), vec![missing()], "TypeNotSupported"),
        (
            &format!("\"createMode\":\"new\",{size}"),
            vec![missing(), (201, disk("a", "ublk", "served"))],
            "NoSuchVolume",
        ),
        (&format!("\"createMode\":\"new\",{size}"), vec![missing(), served("ublk")], "VolumeExists"),
        (&format!("\"createMode\":\"new\",{size}"), vec![missing(), refusal(409, "name-taken")], "VolumeExists"),
        (size, vec![missing(), refusal(409, "name-taken"), served("vhost-user-blk")], "WrongType"),
        (size, vec![missing(), (201, disk("a", "ublk", "zeroing")), served("ublk")], "NoSuchVolume"),
    ] {
        let (asked, creates) = (answers.len(), answers.len() > 1);
        let (_dir, volumes, requests) = daemon(answers);
        let told = answer(&volumes, &acquire(&format!("{{\"name\":\"a\",{parameters}}}")));
        assert_eq!(told, format!("{{\"error\":\"io.systemd.StorageProvider.{error}\"}}\0"), "{parameters}");
        let requests = requests.join().unwrap();
        assert_eq!(requests.len(), asked);
        assert_eq!(requests[0], "GET /v1/disks/a ");
        if creates {
            assert_eq!(requests[1], "POST /v1/disks {\"name\":\"a\",\"size\":\"8192\",\"frontend\":\"ublk\"}");
        }
    }
}

#[test]
fn what_the_daemon_refuses_has_an_errno() {
    for (status, code, error) in [
        (507, "no-room", "\"io.systemd.System\",\"parameters\":{\"errno\":28,\"origin\":\"linux\"}"),
        (422, "invalid", "\"io.systemd.System\",\"parameters\":{\"errno\":22,\"origin\":\"linux\"}"),
        (500, "failed", "\"io.systemd.System\",\"parameters\":{\"errno\":5,\"origin\":\"linux\"}"),
        (403, "not-allowed", "\"org.varlink.service.PermissionDenied\""),
    ] {
        let (_dir, volumes, _requests) = daemon(vec![refusal(404, "no-such-disk"), refusal(status, code)]);
        let told = answer(&volumes, &acquire("{\"name\":\"a\",\"createSizeBytes\":8192}"));
        assert_eq!(told, format!("{{\"error\":{error}}}\0"), "{code}");
    }
}
