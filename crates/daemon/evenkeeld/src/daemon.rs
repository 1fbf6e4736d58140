//! The daemon: one owner of everything that lives, on a thread of its own, changed by commands from one queue alone.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use api::EventKind;
use backend_nvme::LastHealth;
use client_socket::{Gate, Keeper, Sink, Surroundings};
use config::{Config, Prepared};
use confine::ThreadKind;
use io_model::TenantId;
use layout::Wiping;
use nvme_controller::FormatRecord;
use policy::PolicyConfig;
use poller::Board;
use ssd_model::Profile;

use crate::disks::{DiskCommand, Reply};
use crate::drive::{self, AnyDrive};
use crate::error::DiskError;
use crate::events::EventLog;
use crate::foresight::Foresight;
use crate::front_end::WipeStep;
use crate::opened::Opened;
use crate::owner::Owner;
use crate::recording::Recorded;
use crate::served_drive::DriveId;
use crate::zeroing::Zeroed;
use crate::{panics, threads};

/// What the owner is told, each with where the answer goes. An answer that never comes: the daemon has ended.
pub enum Command {
    /// What the API asks for.
    Disk(DiskCommand),
    /// Read the own configuration file again, and apply it.
    Reread,
    /// What was read, or why it can't be.
    OwnFile(Result<String, String>),
    /// A tenant of that name has no client any more.
    ClientLeft(String),
    /// Something happened on a drive.
    Happened(DriveId, Happening),
    /// Have every command of the tenant of that name recorded.
    Record(String, Reply<Result<Recorded, DiskError>>),
    /// No more.
    StopRecording(TenantId),
    /// Answered once no tenant waits for its range to be zeroed.
    WhenServed(Sender<()>),
    /// What is said of the tenants that are there now, of each drive.
    Describe(Sender<Vec<DriveView>>),
    /// Complete what is in flight and end; answered with the commands that drives never answered.
    Stop(Sender<u32>),
}

/// What a drive's pollers and threads tell of themselves.
pub enum Happening {
    /// A poller has let go of its part of a tenant.
    Left(TenantId),
    /// A guest formats one of its namespaces; the layout must remember, and then the guest's poller hears of it.
    Format(TenantId, FormatRecord),
    /// A controller has let go of its namespace of that identifier.
    NamespaceLeft(TenantId, u32),
    /// How far the range of a new tenant is.
    Zeroed(Zeroed),
    /// How far the wiper is with what a deleted disk left.
    Wiped(WipeStep),
    /// What the wiper is to write of that range: pieces of the drive.
    Looked(Wiping, Vec<Range<u64>>),
    /// A poller has let go of the wiper.
    WiperLeft(TenantId),
    /// The drive itself tells what goes wrong with it.
    DriveFailing(String),
}

/// One drive, for threads that read what its tenants get.
#[derive(Clone)]
pub struct DriveView {
    /// The drive.
    pub name: Arc<str>,
    /// The probes of its tenants.
    pub board: Arc<Board>,
    /// What was said of them.
    pub foresight: Arc<Foresight>,
    /// What it says of itself, where the kernel does not have it.
    pub health: Option<LastHealth>,
    /// What overwrites deleted disks, while it is there: nothing is said of it.
    pub wiper: Option<TenantId>,
}

/// Gives the owner commands, from any thread.
#[derive(Clone)]
pub struct Handle {
    commands: Sender<Command>,
}

impl Handle {
    /// What is said of the tenants that are there now, of each drive.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn describe(&self) -> Result<Vec<DriveView>> {
        self.ask(Command::Describe)
    }

    /// What the API asks for, and the answer.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn ask_disks<T: Send + 'static>(&self, command: impl FnOnce(Reply<T>) -> DiskCommand) -> Result<T> {
        self.ask(|done| {
            Command::Disk(command(Box::new(move |it| {
                // Nobody gives up waiting.
                let _ = done.send(it);
            })))
        })
    }

    /// Waits until no tenant waits for its range of the drive to be zeroed.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn wait_until_served(&self) -> Result<()> {
        self.ask(Command::WhenServed)
    }

    /// Tells something that needs no answer. Nobody hears it if the daemon has ended.
    pub fn tell(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T> {
        let (done, answer) = channel();
        self.tell(command(done));
        answer.recv().map_err(|_| anyhow!("the daemon is ending"))
    }
}

/// Opens the drive of a configuration, with this many bytes.
pub trait OpenDrive: FnOnce(&Config, &Profile, u64) -> Result<Box<dyn AnyDrive>> {}

impl<O: FnOnce(&Config, &Profile, u64) -> Result<Box<dyn AnyDrive>>> OpenDrive for O {}

/// What follows from a configuration, unless a test has its own.
pub struct Engine<O> {
    /// Of every poller.
    pub policy: PolicyConfig,
    /// Opens the drive.
    pub open: O,
}

/// A drive that is to be opened.
pub struct ToOpen<O> {
    /// How.
    pub engine: Engine<O>,
    /// What is served on it.
    pub prepared: Prepared,
    /// What it is, or is taken for.
    pub profile: Profile,
}

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
    fn start_on(engine: Engine<impl OpenDrive>, prepared: Prepared, profile: Profile, sink: Sink) -> Result<Self> {
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
        let handle = Handle { commands };
        let events = Arc::new(EventLog::new());
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
        let spawned = std::thread::Builder::new().name("owner".into()).spawn(move || run(owner, &queue));
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
fn run(mut owner: Owner, queue: &Receiver<Command>) {
    threads::enter(ThreadKind::Owner);
    panics::drill();
    loop {
        let next = match owner.patience() {
            Some(patience) => queue.recv_timeout(patience).ok(),
            None => queue.recv().ok(),
        };
        match next {
            Some(Command::Stop(done)) => {
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
mod tests;
#[cfg(test)]
mod wiping_tests;
#[cfg(test)]
mod zeroing_tests;
