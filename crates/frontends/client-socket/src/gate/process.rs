//! The gate's process: a thread for each client, and one for each thing that is being closed.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::Builder;
use std::time::Duration;

use rustix::fs::{MemfdFlags, fcntl_get_seals, memfd_create};
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketType, shutdown, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::wire::{BEGUN, MAX_BYTES, answer, order};
use crate::message::{Received, has_hung_up, receive, send_whole};

/// How long a file may take to be closed whose client goes on: most are on a disk's file system.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Devices of which a client's descriptors are being closed.
type ClosingOf = Arc<Mutex<HashSet<u64>>>;

/// What becomes of clients when the process ends that the gate serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtTheEnd {
    /// They see the end of their connections.
    Leave,
    /// Another process may go on with them.
    Stay,
}

/// Serves the daemon that has the other end of `control`, until it ends. `follows`: in place of a process that was
/// killed.
///
/// # Errors
/// No descriptor is left.
pub fn serve(control: impl AsFd, clients: AtTheEnd, follows: bool) -> io::Result<()> {
    // It has what hostile clients leave behind, for as long as they like. Each device has 16 connections at most, and
    // 32 descriptors that came over one of them.
    raise_open_files();
    let control = Arc::new(control.as_fd().try_clone_to_owned()?);
    let mut state =
        State { control: Arc::clone(&control), closing: Arc::default(), clients: vec![], disposed: HashMap::new() };
    say(&control, BEGUN, follows.into());
    loop {
        let mut order = [0; 24];
        match receive(&control, &mut order, RecvFlags::empty()) {
            Ok(Received::Bytes(24, fds)) => {
                let word = |at: usize| order[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
                state.obey(word(0), (word(8), word(16)), fds);
            }
            // Without room for the client's descriptors its channel closes.
            Ok(Received::Bytes(..) | Received::Nothing | Received::TooManyFds(_)) => {}
            Ok(Received::End) | Err(_) => break,
        }
    }
    // The daemon is gone. Its clients must see that, even if a thread here hangs and keeps their sockets open.
    let clients = state.clients.iter().filter(|_| clients == AtTheEnd::Leave);
    for client in clients.filter_map(Weak::upgrade) {
        let _ = shutdown(&*client, Shutdown::Both);
    }
    Ok(())
}

/// Lets this process have as many files open as it may, and returns how many. `None`: there is no limit.
pub fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

/// Whether there is a daemon at the other end of `control`.
pub fn is_wanted(control: impl AsFd) -> bool {
    !has_hung_up(control)
}

/// Says that this connection of that device is closed. Waits until the daemon has room to hear it.
fn say(control: &OwnedFd, device: u64, number: u64) {
    // Nobody is there any more: nobody is to be told.
    let _ = send_whole(control, &[device, number].map(u64::to_ne_bytes).concat(), &[]);
}

/// What the gate's first thread has.
struct State {
    control: Arc<OwnedFd>,
    closing: ClosingOf,
    clients: Vec<Weak<OwnedFd>>,
    /// Sockets that the daemon is about to close.
    disposed: HashMap<(u64, u64), Vec<OwnedFd>>,
}

impl State {
    fn obey(&mut self, what: u64, which: (u64, u64), fds: Vec<OwnedFd>) {
        match what {
            order::ATTACH => self.attach(which, fds),
            order::DISPOSE => drop(self.disposed.insert(which, fds)),
            order::CLOSE => {
                let (control, fds) = (Arc::clone(&self.control), self.disposed.remove(&which));
                let close = move || {
                    drop(fds);
                    say(&control, which.0, which.1);
                };
                // Without a thread this one waits.
                let _ = Builder::new().name("closing".into()).spawn(close);
            }
            _ => {}
        }
    }

    fn attach(&mut self, (device, number): (u64, u64), fds: Vec<OwnedFd>) {
        let (control, closing) = (Arc::clone(&self.control), Arc::clone(&self.closing));
        let Ok([client, channel]) = <[OwnedFd; 2]>::try_from(fds) else { return say(&control, device, number) };
        let client = Arc::new(client);
        self.clients.retain(|client| client.strong_count() > 0);
        self.clients.push(Arc::downgrade(&client));
        let receive = move || {
            pass(&client, &channel, device, &closing);
            drop((client, channel));
            say(&control, device, number);
        };
        // Without a thread the channel closes, and its client is told that the gate does not answer.
        if Builder::new().name("client".into()).spawn(receive).is_err() {
            say(&self.control, device, number);
        }
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
