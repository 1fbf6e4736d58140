//! Commands to the owner, from any thread, and their answers.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Result, anyhow};
use api::{
    Applied, Apply, Attach, Deletion, Disk, DiskError, DiskPatch, DiskSpec, Drive, DriveRemoval, Erasure, Exported,
    NewDrive, Operation, Rewrapped,
};
use confine::ThreadKind;
use io_model::{Nanos, TenantId};
use observe::DriveView;
use poller::Recording;
use zeroize::Zeroizing;

use crate::drive::HandedIn;
use crate::happening::{DriveId, Happening};
use crate::{panics, threads};

/// A tenant's own key, as the API got it.
pub struct Handed {
    /// As text. Overwritten when dropped.
    pub key: Zeroizing<String>,
    /// It replaces the disk's key.
    pub erase: bool,
    /// Also under a client.
    pub force: bool,
}

/// Where an answer goes. Dropped: there is none.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// The API's requests to the owner.
pub enum DiskCommand {
    /// All disks, or those whose sockets are a user's.
    List(Option<u32>, Reply<Vec<Disk>>),
    /// One more; `true`: it was not there.
    Create(Box<DiskSpec>, Reply<Result<(Disk, bool), DiskError>>),
    /// What one is promised and held to.
    Change(String, Box<DiskPatch>, Reply<Result<Disk, DiskError>>),
    /// A namespace comes to one more tenant.
    Attach(String, Attach, Reply<Result<Disk, DiskError>>),
    /// It leaves that tenant; answered once it has.
    Detach(String, String, Reply<Result<Disk, DiskError>>),
    /// Delete it and wipe its data.
    Delete(String, Deletion, Reply<Result<Vec<Operation>, DiskError>>),
    /// Give an encrypted disk another key; answered once nothing has the former one.
    Erase(String, Erasure, Reply<Result<Disk, DiskError>>),
    /// Give an encrypted disk another key, and keep its data.
    Reencrypt(String, Reply<Result<Disk, DiskError>>),
    /// Snapshots of thin disks at one instant, by disk.
    Snapshot(Vec<(String, String)>, Reply<Result<Vec<Disk>, DiskError>>),
    /// A thin disk becomes as its snapshot.
    RollBack(String, String, Reply<Result<Disk, DiskError>>),
    /// A snapshot goes.
    DeleteSnapshot(String, String, Reply<Result<Disk, DiskError>>),
    /// A tenant's own key of a disk; answered once nothing has a former one.
    Unlock(String, Handed, Reply<Result<Disk, DiskError>>),
    /// The lines of a host key's file, for all disks.
    HostKeys(Zeroizing<String>, Reply<Result<Rewrapped, DiskError>>),
    /// What goes on by itself.
    Operations(Reply<Vec<Operation>>),
    /// The drives.
    Drives(Reply<Vec<Drive>>),
    /// One more, with the descriptors that came with it.
    AddDrive(Box<NewDrive>, Vec<OwnedFd>, Reply<Result<Drive, DiskError>>),
    /// A drive that was asked for is open, or can't be opened.
    DriveOpened(Box<NewDrive>, Result<HandedIn, DiskError>, Reply<Result<Drive, DiskError>>),
    /// One less.
    RemoveDrive(String, DriveRemoval, Reply<Result<Vec<Drive>, DiskError>>),
    /// A configuration file.
    Apply(Box<Apply>, Reply<Result<Applied, DiskError>>),
    /// All that is served, as one.
    Export(Reply<Result<Exported, DiskError>>),
}

/// What the owner is told, each with where the answer goes. An answer that never comes: the daemon has ended.
pub enum Command {
    /// A request of the API.
    Disk(DiskCommand),
    /// Read the own configuration file again, and apply it.
    Reread,
    /// What was read, or why it can't be.
    OwnFile(Result<String, String>),
    /// A tenant of that name has no client any more.
    ClientLeft(String),
    /// A command that waited for forecasts, and how often it has.
    Again(Box<Self>, u32),
    /// Something happened on a drive.
    Happened(DriveId, Happening),
    /// Have every command of the tenant of that name recorded.
    Record(String, Reply<Result<Recorded, DiskError>>),
    /// No more.
    StopRecording(TenantId),
    /// Answered once no tenant waits for its range to be zeroed.
    WhenServed(Sender<()>),
    /// The tenants whose promises fail have changed: their names.
    PromisesBroken(Vec<String>),
    /// What is said of the tenants that are there now, of each drive.
    Describe(Sender<Vec<DriveView>>),
    /// Complete commands in flight and end; answered with the number of commands that drives never answered.
    Stop(Sender<u32>),
}

/// Gives the owner commands, from any thread.
#[derive(Clone)]
pub struct Handle {
    commands: Sender<Command>,
}

impl observe::Daemon for Handle {
    fn views(&self) -> Option<Vec<DriveView>> {
        self.describe().ok()
    }

    fn declared(&self) -> Option<BTreeSet<String>> {
        let disks = self.ask_disks(|reply| DiskCommand::List(None, reply)).ok()?;
        Some(disks.into_iter().filter(|disk| disk.declared).map(|disk| disk.name).collect())
    }

    fn tell_broken(&self, names: Vec<String>) {
        self.tell(Command::PromisesBroken(names));
    }

    fn begin(&self, kind: ThreadKind) {
        threads::enter(kind);
        panics::drill();
    }
}

impl Handle {
    /// Its commands go into this queue.
    pub fn new(commands: Sender<Command>) -> Self {
        Self { commands }
    }

    /// What is said of the tenants that are there now, of each drive.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn describe(&self) -> Result<Vec<DriveView>> {
        self.ask(Command::Describe)
    }

    /// A request of the API, and the answer.
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

    /// Waits for the answer.
    ///
    /// # Errors
    /// The daemon has ended.
    pub fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T> {
        let (done, answer) = channel();
        self.tell(command(done));
        answer.recv().map_err(|_| anyhow!("the daemon is ending"))
    }
}

/// The tenant's commands from now on.
pub struct Recorded {
    /// The tenant.
    pub tenant: TenantId,
    /// Its drive.
    pub drive: Arc<str>,
    /// The policy in force.
    pub policy: &'static str,
    /// When this began, by the pollers' clock.
    pub start: Nanos,
    /// One of each poller that serves it.
    pub rings: Vec<Recording>,
}
