//! The control socket: one JSON request per line, one JSON answer per line.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use api::{Answer, Ask, MAX_SPAN_MS, Snapshot};
use client_socket::Listener;
use confine::ThreadKind;
use poller::Board;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::clock::Clock;
use crate::daemon::Handle;
use crate::snapshot::Mark;
use crate::{panics, threads};

/// A request is one short line.
const MAX_REQUEST_BYTES: u64 = 4096;

/// What the control socket can see.
#[derive(Clone)]
pub struct View {
    /// All tenants' probes.
    pub board: Arc<Board>,
    /// Its owner, who knows what was said of the tenants.
    pub daemon: Handle,
    /// The pollers' clock.
    pub clock: Clock,
}

/// The socket; its file goes when this is dropped.
pub struct ControlSocket {
    listener: Arc<Listener>,
}

impl ControlSocket {
    /// Serves `view`, each client on a short-lived thread of its own.
    pub fn serve(listener: Listener, view: View) -> Result<Self> {
        let listener = Arc::new(listener);
        listener.listen()?;
        let accepting = Arc::clone(&listener);
        std::thread::Builder::new().name("control".into()).spawn(move || {
            threads::enter(ThreadKind::Control);
            while let Ok(client) = next_client(&accepting) {
                let view = view.clone();
                // A client that is not admitted, or whose thread can't be started, sees the socket close.
                let Some(client) = client else { continue };
                let _ = std::thread::Builder::new().name("stats".into()).spawn(move || talk(client, &view));
            }
        })?;
        Ok(Self { listener })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.listener.close();
    }
}

/// Waits for a client; `None`: one that may not be here, or changed its mind.
fn next_client(listener: &Listener) -> Result<Option<UnixStream>, Errno> {
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(errno) => return Err(errno),
    }
    let client = match listener.accept() {
        Ok(client) => UnixStream::from(client),
        // Taken off its place.
        Err(Errno::INVAL) => return Err(Errno::INVAL),
        Err(_) => return Ok(None),
    };
    let is_admitted = listener.admit(&client).is_ok() && client.set_nonblocking(false).is_ok();
    Ok(is_admitted.then_some(client))
}

fn talk(client: UnixStream, view: &View) {
    threads::enter(ThreadKind::Stats);
    let limits = [
        client.set_read_timeout(Some(Duration::from_secs(60))),
        client.set_write_timeout(Some(Duration::from_secs(5))),
    ];
    if limits.iter().any(Result::is_err) {
        return;
    }
    panics::drill();
    let mut reader = BufReader::new(&client);
    loop {
        let mut line = String::new();
        match reader.by_ref().take(MAX_REQUEST_BYTES).read_line(&mut line) {
            Ok(1..) if line.ends_with('\n') => {}
            _ => return,
        }
        let answer = match serde_json::from_str(&line) {
            Ok(Ask::Stats { span_ms }) if span_ms <= MAX_SPAN_MS => match stats(view, span_ms) {
                Ok(snapshot) => Answer::Stats(snapshot),
                Err(error) => Answer::Error(error.to_string()),
            },
            Ok(Ask::Stats { .. }) => Answer::Error(format!("span_ms: at most {MAX_SPAN_MS}")),
            Err(error) => Answer::Error(error.to_string()),
        };
        let Ok(mut text) = serde_json::to_vec(&answer) else { return };
        text.push(b'\n');
        if (&client).write_all(&text).is_err() {
            return;
        }
    }
}

fn stats(view: &View, span_ms: u64) -> Result<Snapshot> {
    let mark = if span_ms == 0 {
        Mark::start()
    } else {
        let mark = Mark::now(&view.board, view.clock.now());
        std::thread::sleep(Duration::from_millis(span_ms));
        mark
    };
    Ok(mark.until(view.clock.now(), &view.board, &*view.daemon.describe()?))
}
