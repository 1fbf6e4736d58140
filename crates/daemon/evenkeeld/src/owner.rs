//! The one owner of everything that lives: drives, and what is asked of them or told by them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use api::{DiskError, EventKind};
use client_socket::{Level, Surroundings};
use config::{Absent, AddedDrives};
use confine::ThreadKind;
use io_model::TenantId;
use promises::forecasts::{self, Forecasts};

use crate::config_file::OwnFile;
use crate::served_drive::{Common, ServedDrive, answer};
use crate::service_manager::Notices;
use crate::startup::Opened;
use crate::status;
use api_server::api_socket::ApiSocket;
use api_server::api_state::Asked;
use api_server::observer::Observer;
use api_server::traces::Traces;
use observe::clock::Clock;
use observe::events::EventLog;
use observe::summaries::{Around, Summaries};
use observe::totals::{Ledger, Served};
use observe::verdicts::Verdicts;
use observe::why::Asker;
use runtime::command::{Command, Handle};
use runtime::front_end::Reached;
use runtime::group_ids::GroupIds;
use runtime::happening::{DriveId, Happening};
use runtime::pollers::PollerThreads;
use runtime::threads;

/// How often to look whether a keeper that ended has come again.
const KEEPER_PERIOD: Duration = Duration::from_secs(5);

/// How often a command waits for forecasts at most: others may change what is served meanwhile.
const ROUNDS: u32 = 8;

/// How long the present window of a re-encryption may take to end.
const WINDOW_LIMIT: Duration = Duration::from_secs(5);

/// How long clients' threads may take to end once the pollers have: a client can make its own one hang.
const SERVERS_LIMIT: Duration = Duration::from_secs(1);

/// Everything that lives. See [`Command`] for what changes it.
pub struct Owner {
    pub(crate) drives: BTreeMap<DriveId, ServedDrive>,
    when_served: Vec<Sender<()>>,
    own_file: Option<OwnFile>,
    pub(crate) common: Common,
    /// Drives that were added since the file was written.
    pub(crate) added: AddedDrives,
    pub(crate) next_drive: u32,
    /// Drives that could not be had at the start.
    pub(crate) absent: Absent,
    notices: Notices,
    /// Names of tenants whose promises fail.
    broken_promises: Vec<String>,
    /// What the service manager was last told of what is served.
    told_status: String,
    /// Pollers that ran when they were last told whether they share cores.
    told_pollers: usize,
    /// How often the command that is carried out has waited for forecasts.
    pub(crate) round: u32,
    /// Commands that wait until pollers have let go of these tenants.
    put_off: Vec<(Vec<TenantId>, Command)>,
    summaries: Summaries,
    observer: Observer,
    _api: ApiSocket,
}

impl Owner {
    /// Starts the pollers, and lets clients connect to every tenant of the configuration.
    ///
    /// # Errors
    /// A problem with a drive, a socket in use, or a thread that can't be started.
    pub fn start(opened: Opened, handle: Handle, around: Surroundings, events: Arc<EventLog>) -> Result<Self> {
        let Opened { drives, added, absent, api, port, state_dir, own_file, roles, .. } = opened;
        let (helper, keeper, history, manager) = (opened.helper, opened.keeper, opened.history, opened.manager);
        let clock = Clock::start();
        let gate = around.gate.clone();
        let threads = PollerThreads::new(clock)?;
        let notices = manager.map(|manager| manager.start(threads.pulses(), clock)).transpose();
        let notices = notices.context("can't start the thread that tells the service manager")?.unwrap_or_default();
        let forecasts = start_forecasts().context("can't start the thread that plays forecasts")?;
        let groups = Arc::<GroupIds>::default();
        // Those of the file, which each drive's part of it has.
        drives.first().into_iter().for_each(|drive| groups.set(&drive.config.groups));
        let next_tenant = Arc::default();
        let disk_keys = opened.disk_keys;
        let common = Common {
            next_tenant,
            threads,
            clock,
            handle,
            around,
            events,
            helper,
            keeper,
            forecasts,
            groups,
            disk_keys,
        };
        if let Some(port) = &port {
            (common.around.sink)(Level::Info.of_daemon(), &port.to_string());
        }
        let daemon = || common.handle.clone();
        let events = || Arc::clone(&common.events);
        let ledger = Ledger::open(opened.totals, Arc::clone(&common.around.sink));
        let sink = || Arc::clone(&common.around.sink);
        let verdicts = Verdicts::new(clock, sink(), events());
        let observer = Observer::start(daemon(), clock, verdicts, events(), state_dir, ledger)?;
        let summaries =
            Summaries::start(history, Around { daemon: Box::new(daemon()), clock, events: events(), sink: sink() })?;
        let asker = Asker::start(daemon(), summaries.clone(), events())?;
        let traces = Traces::start(daemon())?;
        let asked = Asked::new(daemon(), events(), observer.clone(), asker, traces);
        let next_drive = drives.len() as u32;
        let numbered = (0..).map(DriveId).zip(drives);
        let mut owner = Self {
            drives: numbered.map(|(id, opened)| (id, ServedDrive::new(id, opened, common.clone()))).collect(),
            when_served: Vec::new(),
            next_drive,
            added,
            absent,
            own_file,
            notices,
            broken_promises: Vec::new(),
            told_status: String::new(),
            told_pollers: 0,
            round: 0,
            put_off: Vec::new(),
            summaries,
            observer,
            _api: ApiSocket::serve(api, port, roles, asked, gate)?,
            common,
        };
        owner.common.events.tell(EventKind::Started, None, None);
        let started = owner.drives.values_mut().try_for_each(ServedDrive::start_tenants);
        if let Err(error) = started {
            owner.stop();
            return Err(error);
        }
        owner.forget_who_is_not_served();
        for missing in &owner.absent.drives {
            let what = format!("{}: {}", missing.name(), missing.why());
            owner.common.events.tell(EventKind::DriveFailing, None, Some(what));
        }
        owner.drives.values_mut().for_each(|drive| {
            drive.wipe_next();
            drive.reencrypt_next();
        });
        owner.look_around();
        owner.notices.ready();
        Ok(owner)
    }

    /// Clients of disks that are not there any more are sent away. Those of a drive that is missing wait for it.
    fn forget_who_is_not_served(&self) {
        let Some(keeper) = self.common.keeper.as_ref().filter(|_| self.absent.drives.is_empty()) else { return };
        if let Err(error) = keeper.forget_others() {
            (self.common.around.sink)(Level::Warn.of_daemon(), &error.to_string());
        }
    }

    /// The drive that is served under that name.
    pub(crate) fn drive_named(&self, name: &str) -> Option<(DriveId, &ServedDrive)> {
        self.drives.iter().find(|(_, drive)| drive.config().device.name == name).map(|(id, drive)| (*id, drive))
    }

    /// How long to wait for a command at most: a keeper may come again.
    pub fn patience(&self) -> Option<Duration> {
        self.common.keeper.as_ref().map(|_| KEEPER_PERIOD)
    }

    /// After each command: what it may have led to.
    pub fn look_around(&mut self) {
        if self.drives.values().all(|drive| drive.waiting.is_empty()) {
            self.when_served.drain(..).for_each(|done| answer(&done, ()));
        }
        if let Some(keeper) = &self.common.keeper
            && matches!(keeper.reconnect(), Ok(true))
        {
            let line = "there is a keeper again: clients that attach from now on survive the daemon's end";
            (self.common.around.sink)(Level::Info.of_daemon(), line);
        }
        let running = self.common.threads.running();
        if running != self.told_pollers {
            self.told_pollers = running;
            self.drives.values().for_each(|drive| drive.pollers.tell_behaviour(drive.config()));
        }
        if self.notices.are_wanted() {
            let missing: Vec<&str> = self.absent.drives.iter().map(|missing| missing.name()).collect();
            let status = status::in_words(&self.drives.values().collect::<Vec<_>>(), &self.broken_promises, &missing);
            if status != self.told_status {
                self.notices.status(status.clone());
                self.told_status = status;
            }
        }
    }

    /// Applies a command, whole or not at all.
    pub fn apply(&mut self, command: Command) {
        self.common.forecasts.take_missing();
        self.drives.values_mut().for_each(|drive| drive.awaited.clear());
        match command {
            Command::Again(command, round) => self.apply_again(*command, round),
            Command::Disk(command) => self.apply_to_disks(command),
            Command::Reread => match &self.own_file {
                Some(file) => file.read_again(self.common.handle.clone()),
                None => {
                    let line = "the directory of the configuration file could not be kept open";
                    (self.common.around.sink)(Level::Warn.of_daemon(), line);
                }
            },
            Command::OwnFile(text) => {
                self.notices.reloading();
                self.apply_own_file(text);
                self.notices.ready();
            }
            Command::ClientLeft(name) => self.drives.values_mut().for_each(|drive| drive.client_left(&name)),
            Command::Happened(id, happening) => {
                let may_go_on = matches!(happening, Happening::Left(_) | Happening::ReencrypterLeft(_));
                if let Some(drive) = self.drives.get_mut(&id) {
                    drive.happened(happening);
                }
                if may_go_on {
                    self.go_on();
                }
                // After a command that waited for the present one to stop.
                self.drives.get_mut(&id).into_iter().for_each(ServedDrive::reencrypt_next);
            }
            Command::Record(name, reply) => reply(self.record(&name)),
            Command::StopRecording(tenant) => self.stop_recording(tenant),
            Command::WhenServed(done) => self.when_served.push(done),
            Command::PromisesBroken(names) => self.broken_promises = names,
            Command::Describe(done) => answer(&done, self.drives.values().map(ServedDrive::view).collect()),
            // Ends the loop around this.
            Command::Stop(_) => {}
        }
    }

    /// Completes what is in flight, and lets go of everything. Returns the commands that drives never answered.
    pub fn stop(&mut self) -> u32 {
        self.notices.stopping();
        // While the probes are there.
        self.summaries.stop();
        let views: Vec<_> = self.drives.values().map(ServedDrive::view).collect();
        let tenants = Served::all(&views);
        // Clients that it has go on with the next daemon.
        self.common.keeper.iter().for_each(|keeper| keeper.let_go());
        // All at once: one that does not answer holds up no other.
        stop_reencryptions(self.drives.values_mut());
        let servers: Vec<_> = self.drives.values_mut().flat_map(ServedDrive::begin_to_stop).collect();
        let lost = self.drives.values_mut().map(|drive| drive.pollers.join()).fold(0, u32::saturating_add);
        part_with(servers);
        self.drives.values_mut().for_each(ServedDrive::close_pool);
        self.drives.values_mut().for_each(|drive| drive.images.stop());
        // What was in flight is counted by now.
        self.observer.record_last(tenants);
        lost
    }

    /// What a command lacked, if it is to wait for that. Nothing of it was done then.
    pub(crate) fn missing_for<T>(&mut self, done: &Result<T, DiskError>) -> Option<Lacking> {
        let missing = self.common.forecasts.take_missing();
        let awaited: Vec<TenantId> = self.drives.values_mut().flat_map(|drive| drive.awaited.drain(..)).collect();
        match done {
            Err(_) if !awaited.is_empty() => Some(Lacking::Pollers(awaited)),
            Err(_) if !missing.is_empty() && self.round < ROUNDS => Some(Lacking::Forecasts(missing)),
            _ => None,
        }
    }

    /// Carries out a command once these are played, or pollers have let go of these.
    pub(crate) fn carry_out_after(&mut self, lacking: Lacking, command: Command) {
        let (handle, round) = (self.common.handle.clone(), self.round + 1);
        match lacking {
            Lacking::Forecasts(missing) => {
                self.common.forecasts.play(missing, move || handle.tell(Command::Again(Box::new(command), round)));
            }
            Lacking::Pollers(tenants) => self.put_off.push((tenants, command)),
        }
    }

    /// Pollers have let go of a tenant: carries out what waited for that.
    fn go_on(&mut self) {
        let drives = &self.drives;
        let is_leaving = |id: &TenantId| drives.values().any(|drive| drive.is_leaving(*id));
        let (later, now) =
            std::mem::take(&mut self.put_off).into_iter().partition(|(tenants, _)| tenants.iter().any(is_leaving));
        self.put_off = later;
        now.into_iter().for_each(|(_, command): (_, Command)| self.apply(command));
        self.take_back();
    }

    /// Tenants that are off their pollers, without a command that waits for that, are served again.
    pub(crate) fn take_back(&mut self) {
        let awaited: BTreeSet<TenantId> = self.put_off.iter().flat_map(|(tenants, _)| tenants).copied().collect();
        self.drives.values_mut().for_each(|drive| drive.take_back(|id| awaited.contains(&id)));
    }

    /// Carries out a command that waited so often.
    pub(crate) fn apply_again(&mut self, command: Command, round: u32) {
        self.round = round;
        self.apply(command);
        self.round = 0;
    }
}

/// What a command waits for.
pub(crate) enum Lacking {
    Forecasts(Vec<forecasts::Asked>),
    Pollers(Vec<TenantId>),
}

/// Forecasts for the owner, and the thread that plays what is missing.
fn start_forecasts() -> std::io::Result<Forecasts> {
    let forecasts = Forecasts::default();
    let play = forecasts.player();
    let run = move || {
        threads::enter_lowest(ThreadKind::Forecasts);
        play();
    };
    std::thread::Builder::new().name("forecasts".into()).spawn(run)?;
    Ok(forecasts.noting())
}

/// Has the present windows of re-encryptions end: commands in flight wait for that. A drive that does not answer is
/// waited for no longer than when its pollers end.
pub(crate) fn stop_reencryptions<'d>(drives: impl Iterator<Item = &'d mut ServedDrive>) {
    let ending: Vec<_> = drives.filter_map(ServedDrive::stop_reencryption).collect();
    let deadline = Instant::now() + WINDOW_LIMIT;
    for ended in ending {
        let _ = ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Waits for clients' threads, which were told to end.
pub(crate) fn part_with(servers: Vec<Reached>) {
    let deadline = Instant::now() + SERVERS_LIMIT;
    servers.into_iter().for_each(|server| server.part_by(deadline));
}
