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

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{MemfdFlags, fcntl_get_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::message::{Received, has_hung_up, receive, send_now, send_whole};
use crate::server::wait;

/// The first argument of a process that is to [`serve`], and nothing else.
pub const ARGUMENT: &str = "--descriptor-gate";

/// Bytes of a message that are received at a time.
const MAX_BYTES: usize = 4096;

/// How long the gate may take for an answer: it waits for nobody.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How long a file may take to be closed whose client goes on: most are on a disk's file system.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// How long the gate may take to take an order: it waits for nobody.
const ORDER_LIMIT: Duration = Duration::from_millis(100);

/// An order to the gate, and a number after it: receive from this client of that device, through this channel.
const ATTACH: u64 = 0;
/// Keep this client's socket, under that number.
const DISPOSE: u64 = 1;
/// Close that one: the daemon has.
const CLOSE: u64 = 2;

/// What a client's thread in the gate answers, in the byte before what it received.
mod answer {
    pub const BYTES: u8 = 0;
    pub const NOTHING: u8 = 1;
    pub const END: u8 = 2;
    pub const TOO_MANY: u8 = 3;
    pub const FOREIGN: u8 = 4;
    pub const CLOSING: u8 = 5;
    /// A system error, whose number follows.
    pub const ERRNO: u8 = 6;
}

/// The daemon's end of the gate.
#[derive(Debug)]
pub struct Gate {
    /// New clients go here; the gate ends when it is closed.
    control: OwnedFd,
    /// Kept so that the process becomes a zombie if it ends first, and its number is not reused. It only keeps the gate
    /// proper running: if that is killed, another one starts a moment later.
    _process: Mutex<Child>,
    devices: AtomicU64,
    disposals: AtomicU64,
}

impl Gate {
    /// Starts this program once more, with [`ARGUMENT`] and `arguments`: its `main` is to call [`serve`] then, with its
    /// standard input.
    ///
    /// # Errors
    /// The kernel has no process or descriptor left, or the program's file is not there any more.
    pub fn start(arguments: &[&str]) -> io::Result<Arc<Self>> {
        let (ours, theirs) = pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("evenkeeld-gate").arg(ARGUMENT).args(arguments);
        // Pass no inherited descriptor on: the process may outlive the daemon, and would keep it open.
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Mutex::new(command.spawn()?);
        Ok(Arc::new(Self {
            control: ours,
            _process: process,
            devices: AtomicU64::new(0),
            disposals: AtomicU64::new(0),
        }))
    }

    /// Lets go of a client's socket without waiting for what the client left in it: closing it closes descriptors that
    /// it sent and nobody received, and those can wait for as long as it likes (a FUSE server, a lingering TCP socket).
    pub(crate) fn dispose(&self, socket: OwnedFd) {
        let number = self.disposals.fetch_add(1, Ordering::Relaxed);
        // From now on the gate has it too, so that closing it here is not the end of it; unless the gate is stopped.
        let is_taken = self.order(DISPOSE, number, &[socket.as_fd()]);
        drop(socket);
        if is_taken {
            self.order(CLOSE, number, &[]);
        }
    }

    /// Tells the gate something, if it takes it in time.
    fn order(&self, what: u64, number: u64, fds: &[BorrowedFd<'_>]) -> bool {
        let bytes = [what, number].map(u64::to_ne_bytes).concat();
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

    /// A number for one device, under which its clients come.
    pub(crate) fn device(&self) -> u64 {
        self.devices.fetch_add(1, Ordering::Relaxed)
    }

    /// Has the gate receive from a client of a device, when asked to.
    pub(crate) fn attach(&self, device: u64, client: impl AsFd) -> Result<Channel, Errno> {
        let (ours, theirs) = pair()?;
        let fds = [client.as_fd(), theirs.as_fd()];
        // Bounded by the time that the gate's first thread takes to start one: it waits for no client.
        send_whole(&self.control, &[ATTACH, device].map(u64::to_ne_bytes).concat(), &fds)?;
        Ok(Channel(ours))
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// What came through the gate.
#[derive(Debug)]
pub(crate) enum Passed {
    /// As from the client's socket; the descriptors are memory, eventfds or Unix stream sockets.
    Received(Received),
    /// One of the descriptors was something else; none came through.
    Foreign,
    /// As before, for an earlier client of the device; that one's is still not closed.
    Closing,
}

/// One client's thread in the gate. Dropping it ends the thread, unless it hangs in a descriptor of the client's.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Receives into `buffer` what was peeked to have descriptors. Waits for the gate, and for nobody else. It was
    /// killed (`EPIPE`), and there may be another one by now; or it is stopped (`ETIMEDOUT`).
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Passed, Errno> {
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

/// Devices of which a client's descriptors are being closed.
type ClosingOf = Arc<Mutex<HashSet<u64>>>;

/// Serves the daemon that has the other end of `control`, until it ends.
pub fn serve(control: impl AsFd) {
    // It has what hostile clients leave behind, for as long as they like: 32 descriptors of each device at most.
    let limits = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, maximum: limits.maximum });
    let mut state = State::default();
    loop {
        let mut order = [0; 16];
        match receive(&control, &mut order, RecvFlags::empty()) {
            Ok(Received::Bytes(16, fds)) => {
                let word = |at: usize| order[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                state.obey(word(0), word(8), fds);
            }
            // Without room for the client's descriptors its channel closes.
            Ok(Received::Bytes(..) | Received::Nothing | Received::TooManyFds(_)) => {}
            Ok(Received::End) | Err(_) => break,
        }
    }
    // The daemon is gone. Its clients must see that, even if a thread here hangs and keeps their sockets open.
    for client in state.clients.iter().filter_map(Weak::upgrade) {
        let _ = shutdown(&*client, Shutdown::Both);
    }
}

/// Whether there is a daemon at the other end of `control`.
pub fn is_wanted(control: impl AsFd) -> bool {
    !has_hung_up(control)
}

/// What the gate's first thread has.
#[derive(Default)]
struct State {
    closing: ClosingOf,
    clients: Vec<Weak<OwnedFd>>,
    /// Sockets that the daemon is about to close.
    disposed: HashMap<u64, Vec<OwnedFd>>,
}

impl State {
    fn obey(&mut self, what: u64, number: u64, fds: Vec<OwnedFd>) {
        match what {
            ATTACH => self.attach(number, fds),
            DISPOSE => drop(self.disposed.insert(number, fds)),
            CLOSE => {
                let fds = self.disposed.remove(&number);
                // Without a thread this one waits.
                let _ = Builder::new().name("closing".into()).spawn(move || drop(fds));
            }
            _ => {}
        }
    }

    fn attach(&mut self, device: u64, fds: Vec<OwnedFd>) {
        let Ok([client, channel]) = <[OwnedFd; 2]>::try_from(fds) else { return };
        let client = Arc::new(client);
        self.clients.retain(|client| client.strong_count() > 0);
        self.clients.push(Arc::downgrade(&client));
        let closing = Arc::clone(&self.closing);
        // Without a thread the channel closes, and its client is told that the gate does not answer.
        let _ = Builder::new().name("client".into()).spawn(move || pass(&client, &channel, device, &closing));
    }
}

/// Receives from one client whenever the daemon asks for it.
fn pass(client: &OwnedFd, channel: &OwnedFd, device: u64, closing: &ClosingOf) {
    let mut room = [0; 4];
    let mut bytes = [0; 1 + MAX_BYTES];
    loop {
        match receive(channel, &mut room, RecvFlags::empty()) {
            Ok(Received::Bytes(4, _)) => {}
            Ok(Received::Nothing) => continue,
            _ => return,
        }
        let room = (u32::from_ne_bytes(room) as usize).min(MAX_BYTES);
        let (kind, len, fds) = if lock(closing).contains(&device) {
            (answer::CLOSING, 0, Vec::new())
        } else {
            match receive(client, &mut bytes[1..=room], RecvFlags::DONTWAIT) {
                Ok(Received::Bytes(len, fds)) if fds.iter().all(is_harmless) => (answer::BYTES, len, fds),
                Ok(Received::Bytes(len, fds)) => match exchange(fds, device, closing) {
                    Some(fds) => (answer::BYTES, len, fds),
                    None => (answer::FOREIGN, 0, Vec::new()),
                },
                Ok(Received::TooManyFds(fds)) => (answer::TOO_MANY, 0, fds),
                Ok(Received::Nothing) => (answer::NOTHING, 0, Vec::new()),
                Ok(Received::End) => (answer::END, 0, Vec::new()),
                Err(errno) => {
                    bytes[1..5].copy_from_slice(&errno.raw_os_error().to_ne_bytes());
                    (answer::ERRNO, 4, Vec::new())
                }
            }
        };
        bytes[0] = kind;
        let passed: Vec<BorrowedFd<'_>> = fds.iter().filter(|_| kind == answer::BYTES).map(AsFd::as_fd).collect();
        let is_refused = kind == answer::TOO_MANY;
        if is_refused {
            lock(closing).insert(device);
        }
        let sent = send_whole(channel, &bytes[..=len], &passed);
        if is_refused {
            close(fds, device, closing);
        }
        if sent.is_err() {
            return;
        }
    }
}

/// Closes descriptors that are not harmless, and puts stand-ins in their places. `None`: closing takes too long, or
/// there are no descriptors for stand-ins.
fn exchange(fds: Vec<OwnedFd>, device: u64, closing: &ClosingOf) -> Option<Vec<OwnedFd>> {
    let mut foreign = Vec::new();
    let mut stand_in = |fd: OwnedFd| {
        if is_harmless(&fd) {
            return Some(fd);
        }
        let stand_in = stand_in_for(&fd);
        foreign.push(fd);
        stand_in
    };
    // All of them, so that none is closed here.
    let exchanged: Vec<Option<OwnedFd>> = fds.into_iter().map(&mut stand_in).collect();
    lock(closing).insert(device);
    let closed = close(foreign, device, closing);
    closed.recv_timeout(CLOSE_LIMIT).ok()?;
    exchanged.into_iter().collect()
}

/// An empty memfd with the file's name, which says what could not be had.
fn stand_in_for(fd: &OwnedFd) -> Option<OwnedFd> {
    // Asks the kernel's own records alone.
    let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
    let bytes = name.as_os_str().as_bytes();
    let shown = bytes.get(bytes.len().saturating_sub(STAND_IN_NAME_BYTES)..).unwrap_or_default();
    memfd_create(shown, MemfdFlags::CLOEXEC).ok()
}

/// Bytes of a memfd's name at most (memfd_create(2)).
const STAND_IN_NAME_BYTES: usize = 249;

/// Whether closing it waits for nobody, as far as can be told without asking anybody: memory (only its files have
/// seals), eventfds, and Unix stream sockets.
pub fn is_harmless(fd: &OwnedFd) -> bool {
    let is_socket =
        || sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX) && sockopt::socket_type(fd) == Ok(SocketType::STREAM);
    fcntl_get_seals(fd).is_ok() || eventfd::admit(fd).is_ok() || is_socket()
}

/// Closes what may take for ever, on a thread of its own; until then the device's clients may bring no more. The
/// receiver hears when it is done.
fn close(fds: Vec<OwnedFd>, device: u64, closing: &ClosingOf) -> Receiver<()> {
    let (closing, (done, heard)) = (Arc::clone(closing), channel());
    let close = move || {
        drop(fds);
        lock(&closing).remove(&device);
        // Nobody may be waiting for it.
        let _ = done.send(());
    };
    // Without a thread they are closed here, by this client's own, and count as being closed for good.
    let _ = Builder::new().name("closing".into()).spawn(close);
    heard
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
