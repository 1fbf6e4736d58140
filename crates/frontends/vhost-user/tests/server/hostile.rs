//! Hostile clients at a running server: their own connection ends, the others go on.

#![allow(clippy::disallowed_methods, reason = "clients have threads")]

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use guest_memory::Mapping;
use test_clients::vhost::{Client as Raw, *};
use vhost_user::{BindError, DeviceSpec, Surroundings};

use crate::common::{self, Recorder, Running, VERSION_1, listen_at, notifier, spec};

const USER: u64 = 0x7f00_0000_0000;
const LEN: u64 = 0x10_0000;

/// Far longer than any answer takes.
const LONG: Duration = Duration::from_secs(60);

fn connect(socket: &Path) -> Raw {
    Raw::connect(socket, LONG).unwrap()
}

/// A client with a running ring 0.
fn running(socket: &Path) -> Raw {
    let raw = connect(socket);
    let (ram, kick) = (memory(), notifier());
    raw.ask(SET_PROTOCOL_FEATURES, &longs(&[PROTOCOL_FEATURES]), &[]).unwrap();
    for (request, payload, fd) in [
        (SET_FEATURES, longs(&[VERSION_1 | F_PROTOCOL_FEATURES]), None),
        (ADD_MEM_REG, mem_reg((0, LEN, USER, 0)), Some(ram.as_fd())),
        (SET_VRING_NUM, words(&[0, 64]), None),
        (SET_VRING_ADDR, addresses(0, USER, USER + 0x2000, USER + 0x1000), None),
        (SET_VRING_KICK, longs(&[0]), Some(kick.as_fd())),
    ] {
        let fds: Vec<_> = fd.into_iter().collect();
        assert_eq!(raw.ask(request, &payload, &fds).unwrap(), [0; 8], "request {request}");
    }
    raw
}

fn memory() -> OwnedFd {
    Mapping::memfd("guest", LEN as usize).unwrap().1
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn attacks_end_their_own_connection_only() {
    let bad = Running::start("bad");
    let good = Running::start("good");
    let neighbour = running(&good.socket);
    let check = || assert_eq!(neighbour.ask(GET_QUEUE_NUM, &[], &[]).unwrap(), longs(&[common::QUEUES.into()]));

    let raw = connect(&bad.socket);
    raw.send(b"GET / HTTP/1.1\r\nHost: disk\r\n\r\n", &[]).unwrap();
    assert!(bad.disconnection().contains("not a request of version 1"));
    check();

    let raw = connect(&bad.socket);
    raw.send(&words(&[SET_CONFIG, VERSION, u32::MAX]), &[]).unwrap();
    assert!(bad.disconnection().contains("SET_CONFIG with 4294967295 bytes"));
    check();

    let raw = connect(&bad.socket);
    let fd = memory();
    raw.send(&message(SET_OWNER, VERSION, &[]), &[fd.as_fd(); 100]).unwrap();
    assert!(bad.disconnection().contains("more file descriptors with one message"));
    check();

    // A descriptor with each byte of a message: they are its own, and too many.
    let raw = connect(&bad.socket);
    for byte in message(SET_FEATURES, VERSION, &longs(&[VERSION_1])) {
        // It may have been sent away before the last of them.
        if raw.send(&[byte], &[fd.as_fd(); 2]).is_err() {
            break;
        }
    }
    assert!(bad.disconnection().contains("file descriptors"));
    check();

    let raw = connect(&bad.socket);
    raw.send(&message(SET_MEM_TABLE, VERSION, &mem_table(&[(0, LEN, USER, 0)]))[..30], &[fd.as_fd()]).unwrap();
    drop(raw);
    assert_eq!(bad.disconnection(), "the client went away");
    check();

    let raw = running(&bad.socket);
    raw.send(&message(SET_VRING_NUM, VERSION, &words(&[0, 128])), &[]).unwrap();
    assert_eq!(bad.disconnection(), "SET_VRING_NUM refused: the ring is running");
    bad.logged("bad: client disconnected: SET_VRING_NUM refused: the ring is running");
    check();
}

#[test]
fn a_message_may_come_in_pieces_and_several_at_once() {
    let server = Running::start("vm");
    let raw = connect(&server.socket);
    let get = message(GET_FEATURES, VERSION, &[]);
    let config = message(SET_PROTOCOL_FEATURES, VERSION, &longs(&[PROTOCOL_FEATURES]));
    for byte in [get.clone(), config].concat() {
        raw.send(&[byte], &[]).unwrap();
    }
    let mut reply = [0; 20];
    (&raw.stream).read_exact(&mut reply).unwrap();
    // Two messages whose descriptors must not be mixed up.
    let (ram, other) = (memory(), memory());
    let add = |guest| message(ADD_MEM_REG, VERSION, &mem_reg((guest, LEN, USER + guest, 0)));
    raw.send(&add(0), &[ram.as_fd()]).unwrap();
    raw.send(&add(LEN), &[other.as_fd()]).unwrap();
    assert_eq!(raw.ask(SET_OWNER, &[], &[]).unwrap(), [0; 8]);
    let mapping = Mapping::shared(other.as_fd(), 0, LEN, true).unwrap();
    server.held.lock().unwrap().memory.guest_memory().write(LEN, &[7]).unwrap();
    let mut byte = [0];
    mapping.read_at(0, &mut byte).unwrap();
    assert_eq!(byte, [7]);
}

#[test]
fn a_client_that_stops_in_the_middle_is_disconnected() {
    let server = Running::start("bad");
    let raw = connect(&server.socket);
    raw.send(&message(SET_FEATURES, VERSION, &longs(&[VERSION_1]))[..15], &[]).unwrap();
    assert_eq!(server.next(), "connected");
    // Another client is refused while the first one stops the device's thread with half a message.
    let mut second = connect(&server.socket);
    assert_eq!(second.stream.read(&mut [0]).unwrap(), 0);
    server.logged("bad: client refused: another one is attached");
    assert_eq!(server.disconnection(), "it left a message unfinished for too long");
    drop(raw);
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let server = Running::start("bad");
    let raw = connect(&server.socket);
    let mut stream = raw.stream.try_clone().unwrap();
    let flood = std::thread::spawn(move || {
        let get = message(GET_FEATURES, VERSION, &[]).repeat(100);
        while stream.write_all(&get).is_ok() {}
    });
    assert_eq!(server.disconnection(), "it does not read its replies");
    flood.join().unwrap();
}

#[test]
fn a_thousand_clients_come_and_go() {
    let server = Running::start("vm");
    drop(running(&server.socket));
    server.disconnection();
    let before = open_files();
    for round in 0..1000 {
        // At once: the next one connects before the last one's end was seen.
        let raw = if round % 10 == 0 { running(&server.socket) } else { connect(&server.socket) };
        if round % 3 == 0 {
            raw.send(&message(SET_MEM_TABLE, VERSION, &mem_table(&[(0, LEN, USER, 0)]))[..30], &[memory().as_fd()])
                .unwrap();
        }
    }
    let raw = running(&server.socket);
    assert_eq!(raw.ask(GET_QUEUE_NUM, &[], &[]).unwrap(), longs(&[common::QUEUES.into()]));
    drop(raw);
    for _ in 0..1001 {
        assert_eq!(server.disconnection(), "the client went away");
    }
    let mut left = server.seen.try_iter();
    assert_eq!(left.next(), None, "each client's end is told once");
    // Other tests of this process open files too; a leak would be of hundreds.
    assert!(open_files() < before + 200, "{before} files were open, now {}", open_files());
}

#[test]
fn the_device_is_told_of_the_end_even_when_the_server_stops() {
    let mut server = Running::start("vm");
    let raw = running(&server.socket);
    assert!(server.socket.exists());
    let mode = std::fs::metadata(&server.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(server.server.take());
    assert_eq!(server.disconnection(), "the device is taken off its socket");
    assert_eq!((&raw.stream).read(&mut [0]).unwrap(), 0);
    assert!(!server.socket.exists());
}

#[test]
fn what_can_not_be_served_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let start = |spec: DeviceSpec| {
        let listener = listen_at(&directory.path().join("vhost.sock"))?;
        vhost_user::serve(spec, listener, Box::new(Recorder::new().0), Surroundings::plain(Arc::new(|_, _: &str| {})))
    };
    let good = spec("vm");
    for bad in [
        DeviceSpec { queues: 0, ..good.clone() },
        DeviceSpec { queues: 257, ..good.clone() },
        DeviceSpec { max_queue_size: 100, ..good.clone() },
        DeviceSpec { features: 1 << 26, ..good.clone() },
        DeviceSpec { inflight_bytes: |_| 100, ..good.clone() },
    ] {
        assert!(matches!(start(bad), Err(BindError::BadDevice { .. })));
    }
    let _first = start(good.clone()).unwrap();
    assert!(matches!(start(good), Err(BindError::InUse { .. })));
}
