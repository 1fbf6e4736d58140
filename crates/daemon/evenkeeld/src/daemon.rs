//! The daemon: one owner of everything that lives, on a thread of its own, changed by commands from one queue alone.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use api::EventKind;
use client_socket::{Gate, Keeper, Sink, Surroundings};
use config::Prepared;
use confine::ThreadKind;
use ssd_model::Profile;

use crate::owner::Owner;
use crate::startup::Opened;
use crate::startup::{Engine, ToOpen};
use observe::events::EventLog;
use runtime::command::{Command, Handle};
use runtime::drive;
use runtime::{panics, threads};

/// A running daemon. Drop it only after [`Daemon::stop`].
pub struct Daemon {
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Daemon {
    /// Starts everything. Sockets accept clients once this returns, but those of new tenants whose ranges have to be
    /// zeroed first ([`Handle::wait_until_served`]). With each drive comes the profile that the configuration names.
    ///
    /// # Errors
    /// A problem with a drive, a socket in use, a thread that can't be started. What was started is stopped.
    pub fn start(drives: Vec<(Prepared, Profile)>, sink: Sink) -> Result<Self> {
        let opened = Self::open(drives, None, &sink)?;
        Self::serve(opened, sink, None)
    }

    /// As [`Daemon::start`], for tests that have a policy and a drive of their own.
    #[cfg(test)]
    fn start_on(
        engine: Engine<impl crate::startup::OpenDrive>,
        prepared: Prepared,
        profile: Profile,
        sink: Sink,
    ) -> Result<Self> {
        let opened = Opened::open(vec![ToOpen { engine, prepared, profile }], None, &sink)?;
        Self::serve(opened, sink, None)
    }

    /// The first half of [`Daemon::start`]: what takes rights. It starts no thread. With a keeper, clients go on with
    /// the next daemon.
    ///
    /// # Errors
    /// A problem with a drive, a directory, or a socket in use.
    pub fn open(drives: Vec<(Prepared, Profile)>, keeper: Option<Arc<Keeper>>, sink: &Sink) -> Result<Opened> {
        let to_open = |(prepared, profile): (Prepared, Profile)| {
            let policy = promises::planning::policy(&prepared.config, &profile);
            ToOpen { engine: Engine { policy, open: drive::open_configured }, prepared, profile }
        };
        Opened::open(drives.into_iter().map(to_open).collect(), keeper, sink)
    }

    /// The second half: what runs. Without a gate, a client can make the thread of its own socket hang for good.
    ///
    /// # Errors
    /// A thread that can't be started, or a tenant that can't be served.
    pub fn serve(opened: Opened, sink: Sink, gate: Option<Arc<Gate>>) -> Result<Self> {
        let (commands, queue) = channel();
        let handle = Handle::new(commands);
        let events = Arc::new(EventLog::default());
        let log = Arc::clone(&events);
        let owner = handle.clone();
        let on_client = move |name: &str, attached: bool| {
            log.tell(if attached { EventKind::Attached } else { EventKind::Detached }, Some(name), None);
            if !attached {
                owner.tell(Command::ClientLeft(name.to_owned()));
            }
        };
        let begin = || threads::enter(ThreadKind::Client);
        let around = Surroundings { sink, begin, gate, on_client: Arc::new(on_client) };
        let owner = Owner::start(opened, handle.clone(), around, events)?;
        let spawned = std::thread::Builder::new().name("owner".into()).spawn(move || run(owner, queue));
        Ok(Self { handle, thread: spawned.context("can't start the daemon's thread")? })
    }

    /// For other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Completes what is in flight and ends. Returns the commands that the drive never answered.
    pub fn stop(self) -> u32 {
        let lost = self.handle.ask(Command::Stop);
        let ended = self.thread.join();
        // A panic has ended the process already.
        lost.ok().filter(|_| ended.is_ok()).unwrap_or(u32::MAX)
    }
}

/// Applies one command after the other, until it is told to stop.
fn run(mut owner: Owner, queue: Receiver<Command>) {
    threads::enter(ThreadKind::Owner);
    panics::drill();
    loop {
        let next = match owner.patience() {
            Some(patience) => queue.recv_timeout(patience).ok(),
            None => queue.recv().ok(),
        };
        match next {
            Some(Command::Stop(done)) => {
                // Other threads that ask now are told so, and don't wait for an answer.
                drop(queue);
                let lost = owner.stop();
                // The asking thread waits for it.
                let _ = done.send(lost);
                return;
            }
            Some(command) => owner.apply(command),
            None => {}
        }
        owner.look_around();
    }
}

#[cfg(test)]
mod flush_tests;
#[cfg(test)]
mod stuck_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wiping_tests;
#[cfg(test)]
mod zeroing_tests;
