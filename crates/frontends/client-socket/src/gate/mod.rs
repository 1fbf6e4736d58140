//! The descriptor gate: a process that takes file descriptors from clients, so that the daemon never has one that it
//! can't get rid of.
//!
//! Closing a file on a FUSE mount asks the mount's server, and waits for it where no signal reaches: a thread that
//! does so can't be ended, nor can its process. A client may attach such a file, of its own mount, to any message, and
//! has it in our table as soon as we receive it. So a message that has descriptors is received by another process,
//! which passes on what is memory, an eventfd or a Unix stream socket (these wait for nobody), and closes the rest: a
//! stand-in takes its place, an empty memfd of the same name. Where closing hangs, one thread of that process does, the
//! client's connection is over, and its tenant is served again once the file is closed.
//!
//! ```text
//!   client ──── bytes ────▶ daemon          looks first (MSG_PEEK), without room for descriptors
//!      └─ bytes, descriptors ─▶ gate ─ bytes, good descriptors ─▶ daemon
//! ```
//!
//! The keeper has a gate of its own. Each device has a [`Door`], which bounds what the device's clients leave behind.

mod process;
mod wire;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socketpair, sockopt};

use crate::message::{Received, Waiting, peek, receive, send_now, send_whole};
use crate::server::wait;

pub use self::process::{AtTheEnd, is_harmless, is_wanted, raise_open_files, serve};
use self::wire::{BEGUN, MAX_BYTES, answer, order};

/// The first argument of a process that is to [`serve`], and nothing else.
pub const ARGUMENT: &str = "--descriptor-gate";

/// How long the gate may take for an answer: it waits for nobody.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How long the gate may take to take an order: it waits for nobody.
const ORDER_LIMIT: Duration = Duration::from_millis(100);

/// Connections of one device that the gate may have at a time: the client's, and those that are being closed.
const MAX_AT_ONCE: usize = 16;

/// Sockets that a client may send over one connection. A vhost-user client has one, for the device's own requests.
const MAX_SOCKETS: usize = 4;

/// The daemon's end of the gate.
#[derive(Debug)]
pub struct Gate {
    /// New clients go here; the gate ends when it is closed.
    control: OwnedFd,
    /// Kept so that the process becomes a zombie if it ends first, and its number is not reused. It only keeps the gate
    /// proper running: if that is killed, another one starts a moment later.
    _process: Mutex<Child>,
    /// The next device's or connection's.
    next: AtomicU64,
    /// Each connection that the gate has: its device, and its number.
    connections: Mutex<BTreeSet<(u64, u64)>>,
}

impl Gate {
    /// Starts this program once more, as `name`, with [`ARGUMENT`] and `arguments`: its `main` is to call [`serve`]
    /// then, with its standard input.
    ///
    /// # Errors
    /// The kernel has no process or descriptor left, or the program's file is not there any more.
    pub fn start(name: &str, arguments: &[&str]) -> io::Result<Arc<Self>> {
        let (ours, theirs) = pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(name).arg(ARGUMENT).args(arguments);
        // Pass no inherited descriptor on: the process may outlive the daemon, and would keep it open.
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Mutex::new(command.spawn()?);
        let next = AtomicU64::new(0);
        Ok(Arc::new(Self { control: ours, _process: process, next, connections: Mutex::default() }))
    }

    /// Waits until its process serves; `false`: it does not within that time.
    pub fn begins_within(&self, limit: Duration) -> bool {
        wait([(self.control.as_fd(), PollFlags::IN)], Some(limit)) == Ok([true]) && is_wanted(&self.control)
    }

    /// Tells the gate something, if it takes it in time.
    fn order(&self, what: u64, device: u64, number: u64, fds: &[BorrowedFd<'_>]) -> bool {
        let bytes = [what, device, number].map(u64::to_ne_bytes).concat();
        let deadline = Instant::now() + ORDER_LIMIT;
        loop {
            match send_now(&self.control, &bytes, fds) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                sent => return sent.is_ok(),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || wait([(self.control.as_fd(), PollFlags::OUT)], Some(left)).is_err() {
                return false;
            }
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Has `change` done to the connections that the gate has, as far as it said.
    fn with_connections<T>(&self, change: impl FnOnce(&mut BTreeSet<(u64, u64)>) -> T) -> T {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let mut said = [0; 16];
        while let Ok(Received::Bytes(16, _)) = receive(&self.control, &mut said, RecvFlags::DONTWAIT) {
            match [0, 8].map(|at| said[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))) {
                [BEGUN, follows] if follows > 0 => connections.clear(),
                which @ [..] => _ = connections.remove(&which.into()),
            }
        }
        change(&mut connections)
    }
}

/// One device's place at the gate.
#[derive(Debug, Clone)]
pub struct Door {
    gate: Arc<Gate>,
    device: u64,
}

impl Door {
    /// Another device's.
    pub fn new(gate: Arc<Gate>) -> Self {
        let device = gate.number();
        Self { gate, device }
    }

    /// Whether the gate has as many of the device's connections as it may: the next client could leave more behind, and
    /// is to wait.
    pub fn is_full(&self) -> bool {
        let mine = (self.device, 0)..=(self.device, u64::MAX);
        self.gate.with_connections(|all| all.range(mine).count() >= MAX_AT_ONCE)
    }

    /// Has the gate keep a client's socket open, too, until the result is dropped. Closing it elsewhere then waits for
    /// nobody: the last close of a socket closes descriptors that it was sent and nobody received, and those can wait
    /// for as long as they like (a FUSE server, a lingering TCP socket).
    pub fn hold(&self, socket: impl AsFd) -> Held {
        let (gate, device, number) = (&self.gate, self.device, self.gate.number());
        gate.with_connections(|all| all.insert((device, number)));
        // Not taken: the gate is stopped.
        let is_taken = gate.order(order::DISPOSE, device, number, &[socket.as_fd()]);
        Held { door: self.clone(), number, is_taken }
    }

    /// Lets go of a client's socket without waiting for what the client left in it.
    pub fn dispose(&self, socket: OwnedFd) {
        let held = self.hold(&socket);
        drop(socket);
        drop(held);
    }

    /// Has the gate receive from a client, when asked to.
    fn attach(&self, client: impl AsFd) -> Result<Channel, Errno> {
        let (gate, device, number) = (&self.gate, self.device, self.gate.number());
        let (ours, theirs) = pair()?;
        let fds = [client.as_fd(), theirs.as_fd()];
        gate.with_connections(|all| all.insert((device, number)));
        // Bounded by the time that the gate's first thread takes to start one: it waits for no client.
        let order = [order::ATTACH, device, number].map(u64::to_ne_bytes).concat();
        let sent = send_whole(&gate.control, &order, &fds);
        if sent.is_err() {
            gate.with_connections(|all| all.remove(&(device, number)));
        }
        sent.map(|()| Channel(ours))
    }
}

/// A client's socket that the gate keeps open. Dropped last of all that have it, it has the gate close the socket.
#[derive(Debug)]
pub struct Held {
    door: Door,
    number: u64,
    is_taken: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        let Self { door: Door { gate, device }, number, is_taken } = self;
        if !(*is_taken && gate.order(order::CLOSE, *device, *number, &[])) {
            gate.with_connections(|all| all.remove(&(*device, *number)));
        }
    }
}

/// The sockets among the descriptors that one client sent: the gate keeps them open until the client's time is over.
#[derive(Debug, Default)]
pub struct HeldSockets(Vec<Held>);

impl HeldSockets {
    /// Takes note of what came with a message. `false`: the client sent more sockets than it has use for.
    pub fn add(&mut self, door: Option<&Door>, fds: &[OwnedFd]) -> bool {
        let sockets = || fds.iter().filter(|fd| sockopt::socket_type(fd).is_ok());
        self.0.extend(door.into_iter().flat_map(|door| sockets().map(|socket| door.hold(socket))));
        self.0.len() <= MAX_SOCKETS
    }

    /// Closes descriptors of a client's without waiting for what is in the sockets among them.
    pub fn let_go(fds: Vec<OwnedFd>, door: Option<&Door>) {
        let mut held = Self::default();
        held.add(door, &fds);
        drop(fds);
    }
}

/// How one client's messages come in.
#[derive(Debug)]
pub struct Intake {
    door: Option<Door>,
    /// Receives what has descriptors, from the first that comes on.
    channel: Option<Channel>,
}

impl Intake {
    /// Through that door; without one the caller's thread receives them, and waits for whatever the client left.
    pub fn new(door: Option<Door>) -> Self {
        Self { door, channel: None }
    }

    /// Takes what came, if there is something.
    ///
    /// # Errors
    /// The socket's.
    pub fn take(&mut self, socket: impl AsFd, buffer: &mut [u8]) -> Result<Passed, Errno> {
        let Some(door) = &self.door else {
            return receive(&socket, buffer, RecvFlags::DONTWAIT).map(Passed::Received);
        };
        let bytes = match peek(&socket, buffer)? {
            // No more than was looked at: what came since may have descriptors.
            Waiting::Plain(bytes) => {
                return receive(&socket, &mut buffer[..bytes], RecvFlags::DONTWAIT).map(Passed::Received);
            }
            Waiting::WithFds(bytes) => bytes,
            Waiting::Nothing => return Ok(Passed::Received(Received::Nothing)),
            Waiting::End => return Ok(Passed::Received(Received::End)),
        };
        let channel = match self.channel.take() {
            Some(channel) => channel,
            None => match door.attach(&socket) {
                Ok(channel) => channel,
                Err(errno) => return Ok(Passed::NoAnswer(errno)),
            },
        };
        match self.channel.insert(channel).receive(&mut buffer[..bytes]) {
            // It was killed. What waits is still there, for the next one.
            Err(Errno::PIPE | Errno::CONNRESET) => {
                self.channel = None;
                Ok(Passed::Received(Received::Nothing))
            }
            Err(errno) => Ok(Passed::NoAnswer(errno)),
            passed => passed,
        }
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// What came through the gate.
#[derive(Debug)]
pub enum Passed {
    /// As from the client's socket; the descriptors are memory, eventfds or Unix stream sockets.
    Received(Received),
    /// One of the descriptors was something else; none came through.
    Foreign,
    /// As before, for an earlier client of the device; that one's is still not closed.
    Closing,
    /// The gate does not answer, for this reason.
    NoAnswer(Errno),
}

/// One client's thread in the gate. Dropping it ends the thread, unless it hangs in a descriptor of the client's.
#[derive(Debug)]
struct Channel(OwnedFd);

impl Channel {
    /// Receives into `buffer` what was peeked to have descriptors. Waits for the gate, and for nobody else. It was
    /// killed (`EPIPE`), and there may be another one by now; or it is stopped (`ETIMEDOUT`).
    fn receive(&self, buffer: &mut [u8]) -> Result<Passed, Errno> {
        let room = u32::try_from(buffer.len().min(MAX_BYTES)).unwrap_or(0);
        send_whole(&self.0, &room.to_ne_bytes(), &[])?;
        let mut answer = [0; 1 + MAX_BYTES];
        let deadline = Instant::now() + ANSWER_LIMIT;
        let (len, fds) = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            wait([(self.0.as_fd(), PollFlags::IN)], Some(left))?;
            match receive(&self.0, &mut answer, RecvFlags::DONTWAIT)? {
                Received::Bytes(len, fds) => break (len, fds),
                // Interrupted, or too early.
                Received::Nothing => {}
                too_many @ Received::TooManyFds(_) => return Ok(Passed::Received(too_many)),
                // It was killed.
                Received::End => return Err(Errno::PIPE),
            }
        };
        let (kind, bytes) = answer[..len].split_first().ok_or(Errno::PROTO)?;
        Ok(match *kind {
            answer::BYTES => {
                let n = bytes.len().min(buffer.len());
                buffer[..n].copy_from_slice(&bytes[..n]);
                Passed::Received(Received::Bytes(n, fds))
            }
            answer::NOTHING => Passed::Received(Received::Nothing),
            answer::END => Passed::Received(Received::End),
            answer::TOO_MANY => Passed::Received(Received::TooManyFds(Vec::new())),
            answer::FOREIGN => Passed::Foreign,
            answer::CLOSING => Passed::Closing,
            _ => {
                let errno = |raw: &[u8; 4]| Errno::from_raw_os_error(i32::from_ne_bytes(*raw));
                return Err(bytes.first_chunk().map_or(Errno::PROTO, errno));
            }
        })
    }
}
