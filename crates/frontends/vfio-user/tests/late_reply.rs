//! A late reply that comes at the worst moment: after the server took its orders, with its waker set already.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::message::{RESET, message, version};
use vfio_user::{Handler, Reply, ReplyTo, Request, Server, ServerHandle, Session};

/// A server that waits this long for something that is there already, does not know of it.
const LOST: Duration = Duration::from_secs(20);

/// Answers everything late, and as early as that can be.
struct Late(ServerHandle);

impl Handler for Late {
    fn connected(&mut self, _session: Session) {}

    fn request(&mut self, _session: Session, _request: Request, reply_to: ReplyTo) -> Option<Reply> {
        self.0.reply(reply_to, Reply::Done);
        None
    }

    fn disconnected(&mut self, _session: Session, _reason: &str) {}
}

#[test]
fn its_wake_up_is_not_lost() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("cntrl");
    let mut server = Server::new(Arc::new(|_, _: &str| {})).unwrap();
    let handle = server.handle();
    let mut handler = Late(server.handle());
    let mut turn = || server.run_once(&mut handler, Some(LOST)).unwrap();
    handle.add_device(common::spec("vm", &socket).0).unwrap();
    turn();
    let mut client = UnixStream::connect(&socket).unwrap();
    client.set_nonblocking(true).unwrap();
    turn();
    client.write_all(&version("{}")).unwrap();
    turn();
    let mut greeting = [0; 4096];
    assert!(client.read(&mut greeting).unwrap() > 16);

    // The server finds the message and the wake-up together, and the reply is there in between.
    client.write_all(&message(1, RESET, 0, &[])).unwrap();
    handle.wake();
    turn();
    let start = Instant::now();
    turn();
    assert!(start.elapsed() < LOST, "only the time limit woke it");
    client.read_exact(&mut [0; 16]).expect("the reply");
}
