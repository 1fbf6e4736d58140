//! The keeper: holds clients' sockets and state, so that clients don't notice when the daemon ends.
//!
//! It keeps each client's socket, memory and messages. When the daemon ends, for whatever reason, another one goes on
//! with them.
//!
//! ```text
//!   daemon ── control socket ──▶ main thread       which devices there are
//!      └──────── channel ──────▶ device's thread ◀── client
//!                                its client's messages, whole, one by one, and the replies
//! ```
//!
//! Doorbells and I/O never pass through the keeper: they go through memory that client and daemon share.
//! [`client_socket::keeping::wire`] describes the messages on the control socket and the channels.
//!
//! | module | what |
//! | --- | --- |
//! | [`relay`] | the rules for bytes and packets, without descriptors |
//! | [`device`] | the thread of one device |
//! | [`control`] | the main thread, which serves one daemon after the other |
//! | [`replace`], [`saved`] | replacing the keeper by a new version (`exec`), and the state that it passes on |
//! | [`manager`], [`store`] | the service manager, and the state that it holds in case the keeper is killed |
//! | [`room`] | how many descriptors each client may leave |
//! | [`args`], [`log`], [`clock`] | arguments, log lines, time |
//!
//! # Blocking
//!
//! Closing a client's descriptor can block for ever, even a process that was killed (see [`client_socket::gate`]). So
//! another process receives them, and closes clients' sockets. Memory and eventfds are closed by each device's thread.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it waits for clients, not for ever")]

pub mod args;
pub mod bytes;
pub mod clock;
pub mod control;
pub mod device;
pub mod log;
pub mod manager;
pub mod relay;
pub mod replace;
pub mod room;
pub mod saved;
pub mod store;
mod stored;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use client_socket::gate::AtTheEnd;
use client_socket::{Access, BindError, Gate, Listener, gate};
use confine::{ThreadKind, Walls, take_inherited};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::args::{IS_CONFINED, Options, UNCONFINED};
use crate::control::Control;
use crate::device::Common;
use crate::log::line;
use crate::manager::Manager;
use crate::replace::Program;
use crate::room::Room;
use crate::saved::{Found, Saved};
use crate::store::Store;
use crate::stored::Stored;

/// How long a client may leave a message unfinished, or replies unread: as long as the daemon lets it.
const STALL_LIMIT: Duration = Duration::from_secs(5);
/// How long the process may take to begin that takes descriptors.
const GATE_LIMIT: Duration = Duration::from_secs(2);
/// Daemons that may wait for the one before to end.
const BACKLOG: i32 = 8;

/// Why it can't keep anything. The texts name the remedy.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{0} is in use: another keeper listens there; stop that one, or choose another socket")]
    InUse(String),
    #[error("{0}")]
    Socket(BindError),
    #[error("the former keeper's state can't be taken over: its clients are lost")]
    NotResumed,
    #[error("can't {what}: {error}")]
    Os { what: &'static str, error: std::io::Error },
}

/// Whether this program could go on with a saved state of that version. It does what it would do to begin with. It runs
/// inside the confinement of the process that asks, and is killed if it breaks it.
pub fn can_resume(version: u64, unconfined: bool) -> bool {
    let could_begin = Begun::begin(unconfined).is_ok_and(|begun| {
        let file = begun.store.as_ref().map(store::File::try_out);
        let thread = std::thread::Builder::new().spawn(|| confine::enter(ThreadKind::Kept));
        let gate = start_gate(unconfined, true);
        file.is_none_or(|file| file.is_ok())
            && thread.is_ok_and(|thread| thread.join().is_ok())
            && gate.is_ok_and(|gate| gate.begins_within(GATE_LIMIT))
    });
    version == bytes::VERSION && could_begin
}

/// What it has before it has anything to keep.
struct Begun {
    signals: SignalFd,
    program: Program,
    manager: Option<Manager>,
    store: Option<Arc<Store>>,
}

impl Begun {
    fn begin(unconfined: bool) -> Result<Self, Error> {
        let os = |what| move |error: std::io::Error| Error::Os { what, error };
        let signals = watch_signals().map_err(|errno| os("watch for signals")(errno.into()))?;
        let program = Program::find().map_err(os("find its own file"))?;
        let manager = Manager::find().map_err(os("reach the service manager at $NOTIFY_SOCKET"))?;
        let store = manager.clone().filter(|_| manager::room() > 0).map(|manager| Arc::new(Store::new(manager)));
        if !unconfined {
            raise_walls().map_err(os("raise its walls (--unconfined goes without)"))?;
        }
        Ok(Self { signals, program, manager, store })
    }
}

/// Starts the process that takes descriptors from clients.
fn start_gate(unconfined: bool, is_resumed: bool) -> std::io::Result<Arc<Gate>> {
    let walls: &[&str] = match (unconfined, is_resumed) {
        (true, _) => &[UNCONFINED],
        // The program before this one has put up a filter that lets nobody raise the outer walls.
        (false, true) => &[IS_CONFINED],
        (false, false) => &[],
    };
    Gate::start("evenkeel-keeper-gate", walls)
}

/// Serves as the gate of the keeper that started this process, until that ends.
pub fn as_gate(walls: Walls) -> ExitCode {
    // Clients may go on with another keeper, which has them from the service manager.
    let serve = |follows| match gate::serve(std::io::stdin(), AtTheEnd::Stay, follows) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    };
    confine::keep_running_within(walls, ThreadKind::Gate, serve, || gate::is_wanted(std::io::stdin()))
}

/// Before any thread starts. The main thread's filter comes later.
fn raise_walls() -> std::io::Result<()> {
    confine::hide_memory()?;
    confine::drop_privileges(None)?;
    confine::arm()
}

/// Keeps clients until a signal asks it to end. First thing in `main`.
///
/// # Errors
/// It can't begin, or the kernel fails it.
pub fn run(options: &Options) -> Result<(), Error> {
    let os = |what| move |error: std::io::Error| Error::Os { what, error };
    let saved = options.resume.map(take_saved).transpose().map_err(os("take what the program before it had"))?;
    let stored = if saved.is_none() { manager::stored() } else { Vec::new() };
    let Begun { signals, mut program, manager, store } = Begun::begin(options.unconfined)?;
    if options.unconfined {
        line("--unconfined: no system call filters; debuggers and core dumps see clients' data");
    }
    // That of the program before this one ends with it.
    let gate = start_gate(options.unconfined, saved.is_some())
        .map_err(os("start the process that takes clients' descriptors"))?;
    let common = Arc::new(Common {
        // Above all that a process before this one may have given.
        next_client: AtomicU64::new(u64::try_from(clock::now().as_nanos()).unwrap_or(1)),
        gate,
        room: Room::find(store.as_ref().map(|_| manager::room())),
        stall_limit: STALL_LIMIT,
        give_up_after: options.give_up_after,
        begin: || confine::enter(ThreadKind::Kept),
        store,
    });
    let (listener, daemon, devices) = match saved {
        None => {
            let Stored { listener, daemon, devices } = Stored::take(stored, &common);
            let listener = match listener {
                Some(listener) => Listener::adopt_socket(listener, &options.socket, Access::default()),
                None => listen(&options.socket)?,
            };
            program.confine();
            (listener, daemon, devices)
        }
        Some((saved, mut fds)) => {
            let Saved { listener, daemon, devices, is_confined } =
                Saved::restore(&saved, &mut fds, &common).ok_or(Error::NotResumed)?;
            let listener = Listener::adopt_socket(listener, &options.socket, Access::default());
            // Filters are never removed, and their number is limited: don't add one again.
            if is_confined {
                program.is_confined = true;
            } else {
                program.confine();
            }
            line(&format!("replaced; {} devices continue", devices.len()));
            (listener, daemon, devices)
        }
    };
    let mut control = Control::new(signals, listener, common, program);
    control.go_on(daemon, devices);
    if let Some(manager) = &manager {
        manager.tell("READY=1", &[]);
    }
    let ended = control.run();
    if let Some(manager) = &manager {
        manager.tell("STOPPING=1", &[]);
    }
    ended.map_err(os("wait for daemons"))
}

/// What the program before this one saved there, and its descriptors.
fn take_saved(number: u32) -> std::io::Result<(Vec<u8>, Found)> {
    let invalid = || std::io::Error::from(std::io::ErrorKind::InvalidData);
    let file = File::from(take_inherited([number]).pop().ok_or_else(invalid)?);
    let mut saved = vec![0; usize::try_from(file.metadata()?.len()).map_err(|_| invalid())?];
    file.read_exact_at(&mut saved, 0)?;
    let numbers = saved::numbers(&saved).ok_or_else(invalid)?;
    Ok((saved, Found::new(take_inherited(numbers))))
}

/// In all threads, since it is called before there are others.
fn watch_signals() -> nix::Result<SignalFd> {
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    signals.thread_block()?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

fn listen(socket: &Path) -> Result<Listener, Error> {
    let listener = Listener::bind_for_packets(socket, Access::default()).and_then(|listener| {
        listener.listen_for(None, BACKLOG)?;
        Ok(listener)
    });
    listener.map_err(|error| match error {
        BindError::InUse { path } => Error::InUse(path.display().to_string()),
        error => Error::Socket(error),
    })
}
