//! The main thread: signals, and one daemon after the other.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use client_socket::keeping::wire::{Answer, Framing, MAX_KEPT_FDS, MAX_PACKET_BYTES, Request, VERSION};
use client_socket::{Listener, Received, receive, send_now};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, accept_with, socketpair, sockopt};
use rustix::process::geteuid;

use crate::clock::now;
use crate::device::{Common, Device, Ending, Given};
use crate::log::line;
use crate::replace::Program;
use crate::store::Store;

/// How long the end of devices is waited for. What takes longer is a client's doing.
const END_LIMIT: Duration = Duration::from_secs(1);

/// How long a device may take until the service manager has it; it waits for nobody, unless for what a client left.
const WRITE_LIMIT: Duration = Duration::from_millis(500);

/// The words under which the service manager has the socket for daemons, and that of the daemon that is there.
pub(crate) const CONTROL: &str = "control";
pub(crate) const DAEMON: &str = "daemon";

/// What the main thread has.
pub struct Control {
    signals: SignalFd,
    pub(crate) listener: Listener,
    common: Arc<Common>,
    pub(crate) devices: BTreeMap<String, Device>,
    pub(crate) daemon: Option<Daemon>,
    program: Program,
    buffer: Vec<u8>,
}

/// The daemon that is served.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub socket: OwnedFd,
    /// It said hello.
    pub is_known: bool,
}

/// An answer, and what comes along.
type Reply = (Answer, Vec<Arc<OwnedFd>>);

impl Control {
    /// With nothing to keep yet.
    pub fn new(signals: SignalFd, listener: Listener, common: Arc<Common>, program: Program) -> Self {
        if let Some(store) = &common.store {
            // It may have it already, and takes it once.
            store.put(CONTROL, listener.as_fd());
        }
        let buffer = vec![0; MAX_PACKET_BYTES];
        Self { signals, listener, common, devices: BTreeMap::new(), daemon: None, program, buffer }
    }

    /// With what another program had.
    pub fn go_on(&mut self, daemon: Option<(OwnedFd, bool)>, devices: Vec<(String, Device)>) {
        self.daemon = daemon.map(|(socket, is_known)| Daemon { socket, is_known });
        self.devices = devices.into_iter().collect();
    }

    /// The service manager's store.
    pub(crate) fn store(&self) -> Option<&Store> {
        self.common.store.as_deref()
    }

    /// Number of the next client.
    pub(crate) fn next_client(&self) -> u64 {
        self.common.next_client.load(Ordering::Relaxed)
    }

    /// Serves until a signal asks it to end.
    ///
    /// # Errors
    /// The kernel's.
    pub fn run(mut self) -> std::io::Result<()> {
        loop {
            // A second daemon waits until the first one is gone.
            let other = self.daemon.as_ref().map_or(self.listener.as_fd(), |daemon| daemon.socket.as_fd());
            let mut polled = [PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&other, PollFlags::IN)];
            match poll(&mut polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let [is_signalled, is_ready] = polled.each_ref().map(|one| !one.revents().is_empty());
            if is_signalled && let Some(signal) = self.signals.read_signal()? {
                if signal.ssi_signo != Signal::SIGHUP as u32 {
                    self.end();
                    return Ok(());
                }
                self.program.replace(&self);
            }
            match &self.daemon {
                Some(_) if is_ready => self.hear(),
                None if is_ready => self.accept(),
                _ => {}
            }
        }
    }

    /// Sends all clients away. Whose descriptors hang does not matter: its connection is shut down already.
    fn end(self) {
        if let Some(store) = &self.common.store {
            [DAEMON, CONTROL].into_iter().for_each(|word| store.remove(word));
        }
        let endings: Vec<Ending> = self.devices.into_values().map(Device::end).collect();
        wait_for(&endings);
    }

    fn accept(&mut self) {
        // Errors are the other side's: it changed its mind.
        let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
        match sockopt::socket_peercred(&socket) {
            Ok(peer) if peer.uid.is_root() || peer.uid == geteuid() => {
                self.daemon = Some(Daemon { socket, is_known: false });
            }
            Ok(peer) => line(&format!("process {} of user {} may not use this keeper", peer.pid, peer.uid.as_raw())),
            Err(errno) => line(&format!("can't find out which process connects: {errno}")),
        }
    }

    /// Answers one request.
    fn hear(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let is_known = daemon.is_known;
        let answer = match receive(&daemon.socket, &mut self.buffer, RecvFlags::DONTWAIT) {
            Ok(Received::Nothing) => return,
            Ok(Received::Bytes(bytes, fds)) => match Request::decode(&self.buffer[..bytes]) {
                Some(request @ Request::Hello { .. }) => Some(self.answer(request, fds)),
                Some(request) if is_known => Some(self.answer(request, fds)),
                _ => None,
            },
            Ok(Received::TooManyFds(_)) => Some(refused("no descriptor is left; raise LimitNOFILE of the keeper")),
            Ok(Received::End) | Err(_) => return self.lose_daemon(),
        };
        let Some((answer, fds)) = answer else {
            line("the daemon sent an invalid request; its connection is closed");
            return self.lose_daemon();
        };
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        // A daemon that does not read its answers blocks no one.
        let is_sent =
            self.daemon.as_ref().is_some_and(|daemon| send_now(&daemon.socket, &answer.encode(), &fds).is_ok());
        if !is_sent {
            self.lose_daemon();
        }
    }

    fn greet(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        daemon.is_known = true;
        if let Some(store) = &self.common.store {
            store.remove(DAEMON);
            store.put(DAEMON, daemon.socket.as_fd());
        }
        self.devices.values_mut().for_each(|device| device.is_wanted = false);
        let held = self.devices.values().filter(|device| device.has_client()).count();
        line(&format!("a daemon came; {} devices are kept, {held} of them with a client", self.devices.len()));
    }

    fn lose_daemon(&mut self) {
        if self.daemon.take().is_some_and(|daemon| daemon.is_known) {
            line("the daemon disconnected");
            if let Some(store) = &self.common.store {
                store.remove(DAEMON);
            }
        }
    }

    fn answer(&mut self, request: Request, fds: Vec<OwnedFd>) -> Reply {
        match request {
            Request::Hello { version } => {
                // One of another version sees that this is not its own, and goes.
                if version == VERSION {
                    self.greet();
                }
                (Answer::Hello { version: VERSION }, Vec::new())
            }
            Request::Find(name) => self.find(&name),
            Request::Keep(name, framing) => {
                self.keep(&name, framing, fds).unwrap_or_else(|errno| refused(&format!("{name}: {errno}")))
            }
            Request::Forget(name) => {
                let device = self.devices.remove_entry(&name);
                forget(device.into_iter().collect())
            }
            Request::ForgetOthers => {
                let others = self.devices.extract_if(.., |_, device| !device.is_wanted);
                forget(others.collect())
            }
        }
    }

    fn find(&self, name: &str) -> Reply {
        let Some(device) = self.devices.get(name) else { return (Answer::Unknown, Vec::new()) };
        (Answer::Found { has_client: device.has_client() }, device.fds().cloned().collect())
    }

    fn keep(&mut self, name: &str, framing: Framing, mut fds: Vec<OwnedFd>) -> std::io::Result<Reply> {
        if fds.is_empty() || fds.len() > 1 + MAX_KEPT_FDS {
            return Ok(refused(&format!("{name}: it needs a listening socket and some memory")));
        }
        let memory = fds.split_off(1);
        let Some(listener) = fds.pop().filter(listens) else {
            return Ok(refused(&format!("{name}: its first descriptor must be a listening Unix stream socket")));
        };
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let given = Given { framing, listener, memory, channel: ours };
        match self.devices.get_mut(name).filter(|device| !device.has_ended()) {
            Some(device) => device.keep(given),
            None => {
                let device = Device::start(name, given, Arc::clone(&self.common))?;
                self.devices.insert(name.to_owned(), device);
            }
        }
        if let (Some(_), Some(device)) = (self.store(), self.devices.get(name)) {
            device.wait_until_written(WRITE_LIMIT);
        }
        Ok((Answer::Kept, vec![Arc::new(theirs)]))
    }
}

/// Whether clients can connect to it, and an accept waits for nobody: it is made so.
fn listens(fd: &OwnedFd) -> bool {
    let is_stream =
        sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX) && sockopt::socket_type(fd) == Ok(SocketType::STREAM);
    is_stream && sockopt::socket_acceptconn(fd) == Ok(true) && rustix::io::ioctl_fionbio(fd, true).is_ok()
}

fn refused(why: &str) -> Reply {
    (Answer::Refused(why.to_owned()), Vec::new())
}

/// Lets go of devices: nothing of them is known any more, and their threads close what they have.
fn forget(devices: Vec<(String, Device)>) -> Reply {
    let (names, endings): (Vec<String>, Vec<Ending>) =
        devices.into_iter().map(|(name, device)| (name, device.end())).unzip();
    let hanging: Vec<&str> =
        names.iter().zip(wait_for(&endings)).filter(|(_, has_ended)| !has_ended).map(|(name, _)| &**name).collect();
    if hanging.is_empty() {
        return (Answer::Done, Vec::new());
    }
    let hanging = hanging.join(", ");
    refused(&format!("{hanging}: forgotten, but closing its client's descriptors takes long; its memory is still held"))
}

/// Waits for all of them together; which have ended.
fn wait_for(endings: &[Ending]) -> Vec<bool> {
    let deadline = now() + END_LIMIT;
    endings.iter().map(|ending| ending.wait(deadline.saturating_sub(now()))).collect()
}
