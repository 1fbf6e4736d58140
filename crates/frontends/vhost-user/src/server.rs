//! A device on its socket, with a thread that serves its clients one after the other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use client_socket::{BindError, Listener, Log, Received, Sink, has_hung_up, receive, send};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::connection::{Closed, Connection};
use crate::device::{Device, DeviceSpec};
use crate::session::{Desk, Session};
use crate::wire::{HEADER_BYTES, MAX_PAYLOAD_BYTES};

/// How long a client may leave a message unfinished, or replies unread.
const STALL_LIMIT: Duration = Duration::from_secs(5);
/// How long a client must be silent before it is told of a configuration change: QEMU 7.2 answers it
/// from within its wait for the reply to another message, and takes one reply for the other.
const SILENCE: Duration = Duration::from_millis(200);

/// A device on its socket. Dropping it disconnects the client and waits for the thread to end.
#[derive(Debug)]
pub struct Server {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Puts a device on its socket. Clients can connect as soon as this returns.
    ///
    /// # Errors
    /// The socket is in use or can't be created, the description makes no sense, or the kernel refused
    /// a thread or a descriptor.
    pub fn start(spec: DeviceSpec, device: Box<dyn Device>, sink: Sink) -> Result<Self, BindError> {
        let bad = |why| BindError::BadDevice { name: spec.name.clone(), why };
        spec.check().map_err(bad)?;
        let listener = Listener::bind(&spec.socket)?;
        let desk = Arc::new(Desk::new().map_err(|error| bad(error.to_string()))?);
        let mut log = Log::new(sink);
        log.info(&format!("{}: listening on {}", spec.name, listener.path().display()));
        let spec = Arc::new(spec);
        let served = Served { spec: Arc::clone(&spec), listener, device, desk: Arc::clone(&desk), log, generation: 0 };
        let thread = Builder::new().name(format!("vhost-{}", spec.name)).spawn(move || served.run());
        let thread =
            thread.map_err(|error| BindError::BadDevice { name: spec.name.clone(), why: error.to_string() })?;
        Ok(Self { desk, thread: Some(thread) })
    }

    /// Disconnects the client and takes the device off its socket, without waiting for it: ask all servers
    /// before dropping the first.
    pub fn stop(&self) {
        self.desk.stop();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the device's was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// What the thread owns.
struct Served {
    spec: Arc<DeviceSpec>,
    listener: Listener,
    device: Box<dyn Device>,
    desk: Arc<Desk>,
    log: Log,
    /// Clients so far.
    generation: u64,
}

/// The one client of a device.
struct Client {
    socket: OwnedFd,
    session: Session,
    connection: Connection,
    /// Since when it owes us the rest of a message.
    midway_since: Option<Instant>,
    /// Since when it could have taken what we owe it.
    unread_since: Option<Instant>,
    /// When it last said something.
    heard_at: Instant,
    /// It is to be told of a configuration change.
    config_changed: bool,
}

/// What there is to do.
struct Ready {
    client: bool,
    listener: bool,
}

impl Served {
    fn run(mut self) {
        while !self.desk.is_stopped() {
            if let Err(error) = self.wait_for_client() {
                self.log.warn(&format!("{}: waiting for a client failed: {error}", self.spec.name));
                return;
            }
        }
    }

    fn wait_for_client(&mut self) -> io::Result<()> {
        let ready = wait(&[(self.listener.as_fd(), PollFlags::IN), (self.desk.as_fd(), PollFlags::IN)], None)?;
        self.desk.drain();
        let [true, _] = ready else { return Ok(()) };
        match self.listener.accept() {
            Ok(socket) => self.serve(socket),
            Err(errno) => self.complain_of_accept(errno),
        }
        Ok(())
    }

    fn complain_of_accept(&mut self, errno: Errno) {
        // Other errors are the client's own: it changed its mind.
        if let Errno::MFILE | Errno::NFILE = errno {
            self.log.warn(&format!("{}: client refused: too many open files; raise LimitNOFILE", self.spec.name));
        }
    }

    fn serve(&mut self, socket: OwnedFd) {
        self.generation += 1;
        let session = Session::new(&self.desk, self.generation);
        let peer = rustix::net::sockopt::socket_peercred(&socket);
        let pid = peer.map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        self.log.info(&format!("{}: a client attached (process {pid})", self.spec.name));
        let connection = Connection::open(Arc::clone(&self.spec), session.clone(), &mut *self.device);
        let mut client = Client {
            socket,
            session,
            connection,
            midway_since: None,
            unread_since: None,
            heard_at: Instant::now(),
            config_changed: false,
        };
        let why = loop {
            if let Err(why) = self.turn(&mut client) {
                break why;
            }
        };
        // The last error reply, if it can go at once; the connection is over either way.
        let _ = client.flush();
        match &why {
            Closed::Gone => self.log.info(&format!("{}: {why}", self.spec.name)),
            _ => self.log.warn(&format!("{}: client disconnected: {why}", self.spec.name)),
        }
        // The socket first: a client that comes back at once waits in the queue until the device let go.
        drop(client.socket);
        client.connection.close(&why, &mut *self.device);
    }

    /// Waits for one thing to do, and does it.
    fn turn(&mut self, client: &mut Client) -> Result<(), Closed> {
        let orders = client.session.take_orders();
        if orders.stop {
            return Err(Closed::Asked("the device is taken off its socket".into()));
        }
        if let Some(reason) = orders.disconnect {
            return Err(Closed::Asked(reason));
        }
        client.config_changed |= orders.config_changed | client.connection.take_config_change_due();
        let ready = self.wait(client)?;
        if ready.client {
            if client.connection.output().is_some() {
                return client.flush();
            }
            return self.receive(client);
        }
        client.check_stall()?;
        if ready.listener {
            self.refuse(client);
        } else if client.config_changed && client.is_silent() {
            client.config_changed = false;
            client.connection.send_config_change();
        }
        Ok(())
    }

    fn wait(&self, client: &Client) -> Result<Ready, Closed> {
        let interest = if client.connection.output().is_some() { PollFlags::OUT } else { PollFlags::IN };
        let fds = [
            (client.socket.as_fd(), interest),
            (self.listener.as_fd(), PollFlags::IN),
            (self.desk.as_fd(), PollFlags::IN),
        ];
        match wait(&fds, client.patience()) {
            Ok([client, listener, _]) => Ok(Ready { client, listener }),
            Err(errno) => Err(Closed::Socket(errno)),
        }
    }

    fn receive(&mut self, client: &mut Client) -> Result<(), Closed> {
        let mut buffer = [0; HEADER_BYTES + MAX_PAYLOAD_BYTES];
        let room = client.connection.wanted_bytes().min(buffer.len());
        let (bytes, fds) = match receive(&client.socket, &mut buffer[..room]) {
            Ok(Received::Bytes(bytes, fds)) => (&buffer[..bytes], fds),
            Ok(Received::Nothing) => return Ok(()),
            Ok(Received::TooManyFds) => return Err(Closed::TooManyFds),
            Ok(Received::End) | Err(Errno::CONNRESET | Errno::PIPE) => return Err(Closed::Gone),
            Err(errno) => return Err(Closed::Socket(errno)),
        };
        if let Some(refusal) = client.connection.feed(bytes, fds, &mut *self.device)? {
            self.log.warn(&format!("{}: {refusal}", self.spec.name));
        }
        client.heard_at = Instant::now();
        client.midway_since = client.connection.is_midway().then(Instant::now);
        client.flush()
    }

    /// A second client is sent away, unless it is the next one.
    fn refuse(&mut self, client: &Client) {
        if has_hung_up(&client.socket) {
            return;
        }
        match self.listener.accept() {
            Ok(_) => self.log.warn(&format!("{}: client refused: another one is attached", self.spec.name)),
            Err(errno) => self.complain_of_accept(errno),
        }
    }
}

impl Client {
    fn flush(&mut self) -> Result<(), Closed> {
        while let Some((bytes, fd)) = self.connection.output() {
            match send(&self.socket, bytes, fd) {
                Ok(0) => {
                    self.unread_since.get_or_insert_with(Instant::now);
                    return Ok(());
                }
                Ok(sent) => {
                    self.connection.sent(sent);
                    self.unread_since = None;
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Closed::Gone),
                Err(errno) => return Err(Closed::Socket(errno)),
            }
        }
        Ok(())
    }

    fn is_silent(&self) -> bool {
        self.midway_since.is_none() && self.unread_since.is_none() && self.heard_at.elapsed() >= SILENCE
    }

    /// How long to wait for it.
    fn patience(&self) -> Option<Duration> {
        match self.midway_since.or(self.unread_since) {
            Some(since) => Some(STALL_LIMIT.saturating_sub(since.elapsed())),
            None => self.config_changed.then(|| SILENCE.saturating_sub(self.heard_at.elapsed())),
        }
    }

    fn check_stall(&self) -> Result<(), Closed> {
        let over = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= STALL_LIMIT);
        if over(self.unread_since) {
            return Err(Closed::NotReading);
        }
        if over(self.midway_since) { Err(Closed::Stalled) } else { Ok(()) }
    }
}

/// Waits for any of these; which of them have something to say, be it an error.
fn wait<const N: usize>(fds: &[(impl AsFd, PollFlags); N], patience: Option<Duration>) -> Result<[bool; N], Errno> {
    let mut polled: [PollFd<'_>; N] = std::array::from_fn(|at| PollFd::new(&fds[at].0, fds[at].1));
    // Rounded up by the kernel, so that a time limit is over when it returns.
    let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(std::array::from_fn(|at| !polled[at].revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(errno) => Err(errno),
    }
}
