//! The keeper: a process that has clients' sockets, their memory and what they said, so that they don't notice when the
//! daemon ends, by whatever, and another one goes on.
//!
//! ```text
//!   daemon ── control socket ──▶ main thread       which devices there are
//!      └──────── channel ──────▶ device's thread ◀── client
//!                                its client's messages, whole, one by one, and the replies
//! ```
//!
//! Doorbells and I/O never pass through here: those go through memory that client and daemon share. What is said on the
//! control socket and the channels, says [`client_socket::keeping::wire`].
//!
//! | module | what |
//! | --- | --- |
//! | [`relay`] | what becomes of bytes and packets, without descriptors: the rules |
//! | [`device`] | a device's thread around it |
//! | [`control`] | the main thread: one daemon after the other |
//! | [`replace`], [`saved`] | the program's file executed again, and what the next one goes on with |
//! | [`manager`] | the service manager |
//! | [`args`], [`log`], [`clock`] | what it is told, what it tells, and since when |
//!
//! # Who can make whom wait
//!
//! Closing a descriptor of a client's can take for ever (see [`client_socket::gate`]). Each device's thread closes what
//! its own clients left, and the main thread never closes anything of theirs nor waits for such a thread.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it waits for clients, not for ever")]

pub mod args;
pub mod clock;
pub mod control;
pub mod device;
pub mod log;
pub mod manager;
pub mod relay;
pub mod replace;
pub mod saved;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use client_socket::{Access, BindError, Listener};
use confine::{ThreadKind, take_inherited};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::args::Options;
use crate::control::Control;
use crate::device::Common;
use crate::log::line;
use crate::manager::Manager;
use crate::relay::Limits;
use crate::replace::Program;
use crate::saved::{Found, Saved};

/// How long a client may leave a message unfinished, or replies unread: as long as the daemon lets it.
const STALL_LIMIT: Duration = Duration::from_secs(5);
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
    #[error("what the program before this one had can't be gone on with: its clients are lost")]
    NotResumed,
    #[error("can't {what}: {error}")]
    Os { what: &'static str, error: std::io::Error },
}

/// Whether this program could go on with what another one saved, of that version. It does what it would do to begin
/// with: the walls of whoever asks are around this process too, and it ends here if it breaks one.
pub fn can_resume(version: u64) -> bool {
    let could_begin = watch_signals().is_ok() && raise_walls().is_ok() && Program::find().is_ok() && {
        let thread = std::thread::Builder::new().spawn(|| confine::enter(ThreadKind::Kept));
        thread.is_ok_and(|thread| thread.join().is_ok())
    };
    version == saved::VERSION && could_begin
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
    let signals = watch_signals().map_err(|errno| os("watch for signals")(errno.into()))?;
    let mut program = Program::find().map_err(os("find its own file"))?;
    let manager = Manager::find().map_err(os("reach the service manager at $NOTIFY_SOCKET"))?;
    if options.unconfined {
        line("--unconfined: no system call filters; debuggers and core dumps see what it has of clients");
    } else {
        raise_walls().map_err(os("raise its walls (--unconfined goes without)"))?;
    }
    let common = Arc::new(Common {
        next_client: AtomicU64::new(1),
        limits: Limits::default(),
        stall_limit: STALL_LIMIT,
        give_up_after: options.give_up_after,
        begin: || confine::enter(ThreadKind::Kept),
    });
    let control = match saved {
        None => {
            let listener = listen(&options.socket)?;
            program.confine();
            Control::new(signals, listener, common, program)
        }
        Some((saved, mut fds)) => {
            let Saved { listener, daemon, devices, is_confined } =
                Saved::restore(&saved, &mut fds, &common).ok_or(Error::NotResumed)?;
            let listener = Listener::adopt_socket(listener, &options.socket, Access::default());
            // A filter stays, and there is room for so many.
            if is_confined {
                program.is_confined = true
            } else {
                program.confine()
            }
            line(&format!("replaced; {} devices go on", devices.len()));
            let mut control = Control::new(signals, listener, common, program);
            control.go_on(daemon, devices);
            control
        }
    };
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
