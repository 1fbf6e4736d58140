//! A client that makes its device wait: nobody else waits with it, and nobody waits for its end.

#![allow(clippy::disallowed_methods, reason = "clients have threads, and waiting has an end")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use test_clients::vfio::{region_write, version};
use vfio_user_client::Client;

use crate::common::{GATE_REGISTER, Running};

/// Far longer than anything here takes that does not wait.
const LONG: Duration = Duration::from_secs(60);

/// A client whose request waits, with more behind it.
fn stuck(server: &Running, name: &str, socket: &Path) -> UnixStream {
    let mut client = UnixStream::connect(socket).unwrap();
    client.write_all(&version("{}")).unwrap();
    let behind = region_write(2, 0, 7, 0, &[7]);
    client.write_all(&[region_write(1, 0, 0, GATE_REGISTER, &[1]), behind].concat()).unwrap();
    server.waits(name);
    client
}

/// Reads the replies to all that [`stuck`] asked; `false`: the connection ended before.
fn is_answered(client: &mut UnixStream) -> bool {
    let mut header = [0; 16];
    (0..3).all(|_| {
        let Ok(()) = client.read_exact(&mut header) else { return false };
        let len = u32::from_ne_bytes(header[4..8].try_into().unwrap()) as usize;
        client.read_exact(&mut vec![0; len - 16]).is_ok()
    })
}

#[test]
fn others_are_served_added_and_removed_meanwhile() {
    let server = Running::start();
    let (_, good_socket, _) = server.add("good");
    let (bad, bad_socket, _) = server.add("bad");
    let mut good = Client::new(&good_socket).unwrap();
    let gate = server.gate.lock().unwrap();
    let mut client = stuck(&server, bad, &bad_socket);

    good.region_write(7, 0, &[1]).unwrap();
    good.reset().unwrap();
    let (third, third_socket, _) = server.add("third");
    let mut other = Client::new(&third_socket).unwrap();
    other.region_write(7, 0, &[1]).unwrap();
    assert!(server.take(third).join_by(Instant::now() + LONG));
    assert_eq!(server.disconnection(third), "the device is taken off its socket");
    good.reset().unwrap();

    drop(gate);
    assert!(is_answered(&mut client));
}

#[test]
fn a_client_that_left_is_noticed_when_the_answer_comes() {
    let server = Running::start();
    let (bad, socket, _) = server.add("bad");
    let gate = server.gate.lock().unwrap();
    drop(stuck(&server, bad, &socket));
    let next = std::thread::spawn(move || {
        // Waits in the socket's queue until the device has let go.
        let mut client = Client::new(&socket).unwrap();
        let mut last = [0];
        client.region_read(0, GATE_REGISTER, &mut last).unwrap();
        last
    });
    drop(gate);
    assert_eq!(server.disconnection(bad), "the client went away");
    server.connection(bad);
    assert_eq!(next.join().unwrap(), [1], "what was asked was done");
}

#[test]
fn to_disconnect_it_takes_no_waiting() {
    let server = Running::start();
    let (bad, socket, _) = server.add("bad");
    let gate = server.gate.lock().unwrap();
    let mut client = UnixStream::connect(&socket).unwrap();
    let session = server.connection(bad);
    client.write_all(&version("{}")).unwrap();
    client.write_all(&region_write(1, 0, 0, GATE_REGISTER, &[1])).unwrap();
    server.waits(bad);
    session.disconnect("it has to go");
    session.disconnect("another reason");
    drop(gate);
    assert_eq!(server.disconnection(bad), "it has to go");
}

#[test]
fn its_thread_is_left_behind_and_the_socket_free() {
    let server = Running::start();
    let (bad, socket, _) = server.add("bad");
    let gate = server.gate.lock().unwrap();
    let mut old = stuck(&server, bad, &socket);
    let mut queued = UnixStream::connect(&socket).unwrap();

    let stuck = server.take(bad);
    stuck.stop();
    assert!(!socket.exists());
    assert_eq!(queued.read(&mut [0]).unwrap(), 0, "who waits for its turn is sent away");
    let start = Instant::now();
    assert!(!stuck.join_by(start + Duration::from_millis(50)));
    assert!(start.elapsed() < LONG);
    server.logged("bad: its device is still busy");

    // Its successor is a device of its own.
    server.add(bad);
    Client::new(&socket).unwrap().reset().unwrap();
    assert_eq!(server.disconnection(bad), "the client went away");
    drop(gate);
    assert_eq!(server.disconnection(bad), "the device is taken off its socket");
    assert!(!is_answered(&mut old), "what was behind is not done");
    // The old one's end takes nothing from the new one.
    Client::new(&socket).unwrap().reset().unwrap();
}

#[test]
fn a_drop_waits_for_a_second_and_no_longer() {
    let server = Running::start();
    let (bad, socket, _) = server.add("bad");
    let gate = server.gate.lock().unwrap();
    let _client = stuck(&server, bad, &socket);
    let start = Instant::now();
    drop(server.take(bad));
    assert!((Duration::from_secs(1)..LONG).contains(&start.elapsed()), "{:?}", start.elapsed());
    drop(gate);
}

#[test]
fn disconnections_race_with_messages_and_none_is_lost() {
    let server = Running::start();
    let (device, socket, _) = server.add("vm");
    for _ in 0..200 {
        let mut client = UnixStream::connect(&socket).unwrap();
        let session = server.connection(device);
        let asks = std::thread::spawn(move || {
            let _ = client.write_all(&version("{}"));
            // Ends with the connection.
            let _ = std::io::copy(&mut client, &mut std::io::sink());
        });
        session.disconnect("it has to go");
        assert_eq!(server.disconnection(device), "it has to go");
        asks.join().unwrap();
    }
}
