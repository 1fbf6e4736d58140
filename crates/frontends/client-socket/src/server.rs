//! A device on its socket, with a thread that serves its clients one after the other.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::connection::{Closed, Connection, Protocol};
use crate::gate::{Door, Gate, HeldSockets, Intake, Passed};
use crate::keeping::{self, KeeperError};
use crate::listener::{Accepted, BindError, Listener};
use crate::log::{Level, Log, Sink};
use crate::message::{Received, has_hung_up, send};
use crate::session::Session;
use crate::waker::Waker;

/// How long a client may leave a message unfinished, or replies unread.
const STALL_LIMIT: Duration = Duration::from_secs(5);
/// How long a client must be silent before it is told of a configuration change: QEMU 7.2 answers it
/// from within its wait for the reply to another message, and takes one reply for the other.
pub(crate) const SILENCE: Duration = Duration::from_millis(200);
/// How long nobody is served after a client that was cut off.
const REST: Duration = Duration::from_secs(1);
/// How long [`Server`]'s drop waits for the thread.
const JOIN_LIMIT: Duration = Duration::from_secs(1);
/// Taken from a socket at a time; longer messages come in pieces.
const PIECE_BYTES: usize = 4096;

/// What a device needs to be on a socket, whatever it speaks there.
pub struct Place<'a> {
    /// The tenant's name, for log lines and the thread.
    pub name: &'a str,
    /// What the thread's name begins with.
    pub prefix: &'a str,
    /// Where clients connect, once they may.
    pub listener: Listener,
    /// What is the same for all devices.
    pub around: Surroundings,
}

/// What a process has for the threads of all its devices.
#[derive(Clone)]
pub struct Surroundings {
    /// Where log lines go.
    pub sink: Sink,
    /// What each thread does first.
    pub begin: fn(),
    /// What takes descriptors from clients. `None`: a device's own thread does, which a client can then make hang for
    /// good (see [`gate`](crate::gate)); for clients that are trusted.
    pub gate: Option<Arc<Gate>>,
    /// Hears of each client that attached to a device, by the device's name (`true`), and that is gone (`false`).
    /// Called on the thread that serves the client, which it must not hold up.
    pub on_client: OnClient,
}

/// See [`Surroundings::on_client`].
pub type OnClient = Arc<dyn Fn(&str, bool) + Send + Sync>;

impl Surroundings {
    /// No gate, nothing to do first, and nobody who hears of clients.
    pub fn plain(sink: Sink) -> Self {
        Self { sink, begin: || {}, gate: None, on_client: Arc::new(|_, _| {}) }
    }
}

/// A device on its socket. Dropping it disconnects the client and waits for the thread to end, for 1 s at most; see
/// [`Server::join_by`].
pub struct Server {
    name: String,
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
    sink: Sink,
}

impl Server {
    /// Puts a device on its socket. Clients can connect as soon as this returns. `protocol` makes the state of a client
    /// that said nothing yet.
    ///
    /// # Errors
    /// The socket is in use or can't be created, or the kernel refused a thread or a descriptor.
    pub fn start<P: Protocol + 'static>(
        place: Place<'_>,
        protocol: impl Fn() -> P + Send + 'static,
        device: Box<P::Device>,
    ) -> Result<Self, BindError>
    where
        P::Device: Send,
    {
        let Place { name, prefix, listener, around: Surroundings { sink, begin, gate, on_client } } = place;
        let bad = |error: std::io::Error| BindError::BadDevice { name: name.to_owned(), why: error.to_string() };
        listener.listen(gate)?;
        let log = Log::new(Arc::clone(&sink), name);
        let channel = match P::FRAMING.map(|framing| listener.begin_to_keep(framing)).transpose() {
            // Others are kept all the same, and this one is served.
            Err(BindError::Keeper(refused @ KeeperError::Refused { .. })) => {
                log.warn(&format!("{name}: {refused}; its clients lose their disk when the daemon ends"));
                None
            }
            channel => channel?.flatten(),
        };
        let at = format!("{name}: listening on {}", listener.path().display());
        let control = Arc::new(Control {
            listener,
            waker: Arc::new(Waker::new().map_err(bad)?),
            is_stopping: AtomicBool::new(false),
            has_client: AtomicBool::new(false),
            has_ended: Mutex::new(false),
            ended: Condvar::new(),
        });
        log.info(&at);
        let name_of_it = name.to_owned();
        let served = Served { name: name_of_it, control: Arc::clone(&control), protocol, device, log, on_client };
        let guard = Ended(Arc::clone(&control));
        let thread = Builder::new().name(format!("{prefix}-{name}")).spawn(move || {
            // Dropped last, when the device is gone, or in a panic.
            let _guard = guard;
            begin();
            served.run(channel);
        });
        Ok(Self { name: name.to_owned(), control, thread: Some(thread.map_err(bad)?), sink })
    }

    /// Takes the device off its socket and disconnects the client once the device has done what it is doing for it.
    /// Returns at once: ask all servers before dropping the first.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Whether a client is attached now.
    pub fn has_client(&self) -> bool {
        self.control.has_client.load(Ordering::Acquire)
    }

    /// Whether its clients go on when this process ends; see [`Listener::bind_kept`].
    pub fn is_kept(&self) -> bool {
        self.control.listener.is_kept()
    }

    /// Waits until the thread has ended and the device is gone; `false`: it had not by then. A thread that its client
    /// holds up longer is left behind, as a line of the log says. It has the device, and nothing that others need: the
    /// path of the socket is free.
    pub fn join_by(mut self, deadline: Instant) -> bool {
        self.finish(deadline)
    }

    fn finish(&mut self, deadline: Instant) -> bool {
        self.stop();
        let Some(thread) = self.thread.take() else { return true };
        let has_ended = self.control.has_ended_by(deadline);
        if has_ended {
            // A panic of the device's was reported when it happened.
            let _ = thread.join();
        } else {
            let line =
                format!("{}: its device is still busy with what the client asked for, and is left so", self.name);
            (self.sink)(Level::Warn.of_tenant(&self.name), &line);
        }
        has_ended
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.finish(Instant::now() + JOIN_LIMIT);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What the thread and its owner share.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) listener: Listener,
    pub(crate) waker: Arc<Waker>,
    is_stopping: AtomicBool,
    has_client: AtomicBool,
    has_ended: Mutex<bool>,
    ended: Condvar,
}

impl Control {
    fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.listener.close();
        self.waker.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn has_ended_by(&self, deadline: Instant) -> bool {
        let has_ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = deadline.saturating_duration_since(Instant::now());
        let waited = self.ended.wait_timeout_while(has_ended, patience, |has_ended| !*has_ended);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Tells that the thread ended.
struct Ended(Arc<Control>);

impl Drop for Ended {
    fn drop(&mut self) {
        // Whatever it ended for, nobody is to wait for it.
        self.0.listener.close();
        *self.0.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.ended.notify_all();
    }
}

/// What the thread owns.
pub(crate) struct Served<P: Protocol, F> {
    pub(crate) name: String,
    pub(crate) control: Arc<Control>,
    pub(crate) protocol: F,
    pub(crate) device: Box<P::Device>,
    pub(crate) log: Log,
    on_client: OnClient,
}

/// The one client of a device.
struct Client<P: Protocol> {
    socket: Accepted,
    intake: Intake,
    session: Session,
    connection: Connection<P>,
    buffer: [u8; PIECE_BYTES],
    /// Since when it owes us a message or the rest of one.
    midway_since: Option<Instant>,
    /// Since when it could have taken what we owe it.
    unread_since: Option<Instant>,
    /// When it last said something.
    heard_at: Instant,
    /// It is to be told of a configuration change.
    config_changed: bool,
    /// Others are not sent away, since they could leave more behind: they wait.
    has_others_wait: bool,
    /// Last, so that all that has them is gone before.
    sockets: HeldSockets,
}

impl<P: Protocol, F: Fn() -> P> Served<P, F> {
    /// Serves one client after the other until the device is taken off its socket: with a keeper, as long as there is
    /// one.
    fn run(mut self, mut channel: Option<keeping::Channel>) {
        while !self.control.is_stopping() {
            if let Some(channel) = channel.take() {
                self.run_kept(channel);
                continue;
            }
            match self.wait_for_client() {
                Ok(false) => {}
                Ok(true) => {
                    channel = self.keep_again();
                    if channel.is_none() {
                        self.accept();
                    }
                }
                Err(errno) => {
                    self.log.warn(&format!("{}: waiting for a client failed: {errno}", self.name));
                    return;
                }
            }
        }
    }

    /// Whether one is there, after a wait.
    fn wait_for_client(&mut self) -> Result<bool, Errno> {
        let Control { listener, waker, .. } = &*self.control;
        if self.is_full() {
            self.log.warn(&format!(
                "{}: no client is served until descriptors of former clients are closed: the processes behind those \
                 files, or the other ends of those sockets, don't answer",
                self.name
            ));
            self.rest_while(|| self.is_full());
            return Ok(false);
        }
        let [has_client, woken] = wait([(listener.as_fd(), PollFlags::IN), (waker.as_fd(), PollFlags::IN)], None)?;
        if woken {
            waker.drain();
        }
        Ok(has_client && !self.control.is_stopping())
    }

    fn accept(&mut self) {
        match self.control.listener.accept() {
            Ok(socket) => self.serve(socket),
            Err(errno) => self.complain_of_accept(errno),
        }
    }

    fn complain_of_accept(&mut self, errno: Errno) {
        // Other errors are the client's own: it changed its mind.
        if let Errno::MFILE | Errno::NFILE = errno {
            self.log.warn(&format!("{}: client refused: too many open files; raise LimitNOFILE", self.name));
        }
    }

    fn serve(&mut self, socket: Accepted) {
        if !self.admit(&socket, "attached") {
            return;
        }
        let session = Session::new(Arc::clone(&self.control.waker), false);
        let connection = Connection::open((self.protocol)(), session.clone(), &mut self.device);
        let mut client = Client {
            socket,
            intake: Intake::new(self.control.listener.door().cloned()),
            session,
            midway_since: connection.is_midway().then(Instant::now),
            connection,
            buffer: [0; PIECE_BYTES],
            unread_since: None,
            heard_at: Instant::now(),
            config_changed: false,
            has_others_wait: false,
            sockets: HeldSockets::default(),
        };
        let why = loop {
            if let Err(why) = self.turn(&mut client) {
                break why;
            }
        };
        // The last error reply, if it can go at once; the connection is over either way.
        let _ = client.flush();
        // The socket first: a client that comes back at once waits in the queue until the device let go.
        self.part(&why, client.connection, &client.session, (client.intake, client.socket));
    }

    /// Whether a client may come in; if so, it is there from now on. `came`: how, in words.
    pub(crate) fn admit(&self, socket: &impl AsFd, came: &str) -> bool {
        if let Err(who) = self.control.listener.admit(socket) {
            self.log.warn(&format!("{}: client refused: {who}", self.name));
            return false;
        }
        let peer = rustix::net::sockopt::socket_peercred(socket);
        let pid = peer.map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        self.log.info(&format!("{}: a client {came} (process {pid})", self.name));
        self.has_client(true);
        true
    }

    /// Why the client must be disconnected, if another thread asked for that.
    pub(crate) fn asked_to_end(&self, session: &Session) -> Option<Closed<P::Error>> {
        if self.control.is_stopping() {
            return Some(Closed::Asked("the device is taken off its socket".into()));
        }
        session.is_to_end().map(|reason| Closed::Asked(reason.to_owned()))
    }

    /// Another client was sent away.
    pub(crate) fn tell_of_another(&self) {
        self.log.warn(&format!("{}: client refused: another one is attached", self.name));
    }

    /// A client's time is over. What is `first` goes before the device hears of it.
    pub(crate) fn part(
        &mut self,
        why: &Closed<P::Error>,
        connection: Connection<P>,
        session: &Session,
        first: impl Sized,
    ) {
        match why {
            Closed::Gone => self.log.info(&format!("{}: {why}", self.name)),
            _ => self.log.warn(&format!("{}: client disconnected: {why}", self.name)),
        }
        drop(first);
        connection.close(&why.to_string(), &mut self.device);
        self.has_client(false);
        if session.is_cut_off() {
            // The next one may do it again.
            self.rest_while(|| false);
        }
    }

    /// A client came, or went.
    fn has_client(&self, is_there: bool) {
        self.control.has_client.store(is_there, Ordering::Release);
        (self.on_client)(&self.name, is_there);
    }

    /// Whether too much of what its clients left is still being closed.
    fn is_full(&self) -> bool {
        self.control.listener.door().is_some_and(Door::is_full)
    }

    /// Serves nobody for a while, and as long as there is a reason.
    fn rest_while(&self, is_due: impl Fn() -> bool) {
        let mut over_at = Instant::now() + REST;
        while !self.control.is_stopping() {
            let left = over_at.saturating_duration_since(Instant::now());
            match wait([(self.control.waker.as_fd(), PollFlags::IN)], Some(left)) {
                Ok([true]) => self.control.waker.drain(),
                Ok([false]) if !left.is_zero() => {}
                Ok([false]) if is_due() => over_at = Instant::now() + REST,
                _ => return,
            }
        }
    }

    /// Waits for something to do, and does it.
    fn turn(&mut self, client: &mut Client<P>) -> Result<(), Closed<P::Error>> {
        if let Some(why) = self.asked_to_end(&client.session) {
            return Err(why);
        }
        client.config_changed |= client.session.take_config_changed() | client.connection.take_config_change_due();
        let Control { listener, waker, .. } = &*self.control;
        client.has_others_wait = client.has_others_wait && self.is_full();
        let others = if client.has_others_wait { PollFlags::empty() } else { PollFlags::IN };
        let fds =
            [(client.socket.as_fd(), client.interest()), (listener.as_fd(), others), (waker.as_fd(), PollFlags::IN)];
        let [is_ready, has_another, woken] = wait(fds, client.patience()).map_err(Closed::Socket)?;
        if woken {
            // Before the orders are looked at: one that comes meanwhile wakes us again.
            waker.drain();
        }
        if has_another {
            self.refuse(client);
        }
        if is_ready {
            client.flush()?;
            return self.receive(client);
        }
        client.check_stall()?;
        if client.config_changed && client.is_silent() {
            client.config_changed = false;
            client.connection.send_config_change();
        }
        Ok(())
    }

    /// Takes one message, or what came of it.
    fn receive(&mut self, client: &mut Client<P>) -> Result<(), Closed<P::Error>> {
        while !client.connection.is_full() {
            let room = client.connection.wanted_bytes().min(PIECE_BYTES);
            let (bytes, fds) = match client.take(room)? {
                Received::Bytes(bytes, fds) => (&client.buffer[..bytes], fds),
                Received::Nothing => break,
                Received::TooManyFds(_) => return Err(Closed::TooManyFds),
                Received::End => return Err(Closed::Gone),
            };
            if !client.sockets.add(self.control.listener.door(), &fds) {
                return Err(Closed::TooManySockets);
            }
            if let Some(refusal) = client.connection.feed(bytes, fds, &mut self.device)? {
                self.log.warn(&format!("{}: {refusal}", self.name));
            }
            client.heard_at = Instant::now();
            client.midway_since = client.connection.is_midway().then_some(client.heard_at);
            if !client.connection.has_part() {
                break;
            }
        }
        client.flush()
    }

    /// A second client is sent away, unless it is the next one.
    fn refuse(&mut self, client: &mut Client<P>) {
        if has_hung_up(&client.socket) {
            return;
        }
        if self.is_full() {
            client.has_others_wait = true;
            return;
        }
        match self.control.listener.accept() {
            Ok(_) => self.tell_of_another(),
            Err(errno) => self.complain_of_accept(errno),
        }
    }
}

impl<P: Protocol> Client<P> {
    /// Takes `room` bytes at most from its socket into the buffer.
    fn take(&mut self, room: usize) -> Result<Received, Closed<P::Error>> {
        match self.intake.take(&self.socket, &mut self.buffer[..room]) {
            Ok(Passed::Received(received)) => Ok(received),
            Ok(Passed::Foreign) => Err(Closed::ForeignFd),
            Ok(Passed::Closing) => Err(Closed::ClosingFds),
            Ok(Passed::NoAnswer(errno)) => Err(Closed::Gate(errno)),
            Err(Errno::CONNRESET | Errno::PIPE) => Err(Closed::Gone),
            Err(errno) => Err(Closed::Socket(errno)),
        }
    }

    fn flush(&mut self) -> Result<(), Closed<P::Error>> {
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

    fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, !self.connection.is_full());
        interest.set(PollFlags::OUT, self.connection.output().is_some());
        interest
    }

    fn is_silent(&self) -> bool {
        self.midway_since.is_none() && self.unread_since.is_none() && self.heard_at.elapsed() >= SILENCE
    }

    /// How long to wait for it.
    fn patience(&self) -> Option<Duration> {
        match [self.midway_since, self.unread_since].into_iter().flatten().min() {
            Some(since) => Some(STALL_LIMIT.saturating_sub(since.elapsed())),
            None => self.config_changed.then(|| SILENCE.saturating_sub(self.heard_at.elapsed())),
        }
    }

    fn check_stall(&self) -> Result<(), Closed<P::Error>> {
        let over = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= STALL_LIMIT);
        if over(self.unread_since) {
            return Err(Closed::NotReading);
        }
        if over(self.midway_since) { Err(Closed::Stalled) } else { Ok(()) }
    }
}

/// Waits for any of these; which of them have something to say, be it an error.
pub(crate) fn wait<const N: usize>(
    fds: [(impl AsFd, PollFlags); N],
    patience: Option<Duration>,
) -> Result<[bool; N], Errno> {
    let mut polled: [PollFd<'_>; N] = std::array::from_fn(|at| PollFd::new(&fds[at].0, fds[at].1));
    // Rounded up by the kernel, so that a time limit is over when it returns.
    let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) => Ok(std::array::from_fn(|at| !polled[at].revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(errno) => Err(errno),
    }
}
