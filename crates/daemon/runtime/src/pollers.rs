//! The pollers that run on a drive: opened for tenants that come, closed when the last one left.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use backend_cipher::Keys;
use backend_nvme::{LastHealth, Pins};
use config::{AllowedCpus, Config, Home, Mode, Tenant};
use confine::ThreadKind;
use io_model::TenantId;
use policy::{Groups, PolicyConfig, PollerShape, Terms};
use poller::{Board, Probe};

use crate::doorbell_scanner::DoorbellScanner;
use crate::drive::{AnyDrive, Facts, Opening, ZeroRange};
use crate::front_end::Served;
use crate::image_disk::OpenedImage;
use crate::poller_thread::{Addition, Behaviour, Message, PollerSender, Thread};
use crate::poller_watchdog::Pulses;
use crate::{iteration_times, poller_shape, threads};
use api::{DiskError, Reason};
use observe::clock::Clock;

/// A poller; given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PollerId(usize);

/// Some of a tenant's queues, and the poller that is to serve them.
pub struct Part {
    /// Which.
    pub queues: Range<u16>,
    /// By whom.
    pub poller: PollerId,
}

struct Open {
    sender: PollerSender<Served>,
    thread: Thread,
    /// Any tenant that needs none of its own may come.
    is_shared: bool,
    mode: Mode,
    shape: PollerShape,
    serves: BTreeSet<TenantId>,
}

/// What the pollers of all drives share.
#[derive(Clone)]
pub struct PollerThreads {
    /// What was given out last.
    next: Arc<AtomicUsize>,
    /// How many run.
    running: Arc<AtomicUsize>,
    cores: usize,
    /// CPUs that this process may use; `None`: the kernel does not tell.
    cpus: Option<AllowedCpus>,
    scanner: DoorbellScanner,
    pulses: Pulses,
}

impl PollerThreads {
    /// None runs yet.
    ///
    /// # Errors
    /// The thread that looks at sleeping ones' doorbells can't be started.
    pub fn new(clock: Clock) -> Result<Self> {
        // Now: its signal handler is nothing that a confined thread could install with the first poller.
        eventfd::start_watchdog(|| threads::enter(ThreadKind::Watchdog)).context("can't start the watchdog")?;
        iteration_times::prepare();
        let scanner = DoorbellScanner::start(clock).context("can't start the doorbell scanner")?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let cpus = AllowedCpus::of_this_process();
        Ok(Self { next: Arc::default(), running: Arc::default(), cores, cpus, scanner, pulses: Pulses::default() })
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Whether they make progress.
    pub fn pulses(&self) -> Pulses {
        self.pulses.clone()
    }
}

/// All pollers of a drive.
pub struct Pollers {
    drive: Box<dyn AnyDrive>,
    open: BTreeMap<PollerId, Open>,
    threads: PollerThreads,
    board: Arc<Board>,
    clock: Clock,
    near_cpus: Vec<u32>,
    groups: Arc<Groups>,
    keys: Arc<Keys>,
}

impl Pollers {
    /// None yet. `near_cpus`: where pollers without a CPU of their own run; empty: anywhere.
    pub fn new(
        drive: Box<dyn AnyDrive>,
        threads: PollerThreads,
        clock: Clock,
        near_cpus: Vec<u32>,
        groups: Arc<Groups>,
    ) -> Self {
        Self {
            drive,
            open: BTreeMap::new(),
            threads,
            board: Arc::default(),
            clock,
            near_cpus,
            groups,
            keys: Arc::default(),
        }
    }

    /// The keys of the drive's disks, for all pollers.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The probes of all tenants.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// What zeroes ranges of the drive; see [`Drive::zeroer`](crate::drive::Drive::zeroer).
    pub fn zeroer(&self) -> Option<Box<dyn ZeroRange>> {
        self.drive.zeroer()
    }

    /// Disks that are images on the drive; see [`Drive::take_images`](crate::drive::Drive::take_images).
    pub fn take_images(&self) -> Vec<OpenedImage> {
        self.drive.take_images()
    }

    /// What pins guests' memory for it; see [`Drive::pins`](crate::drive::Drive::pins).
    pub fn pins(&self) -> Option<Pins> {
        self.drive.pins()
    }

    /// What the drive says of itself; see [`Drive::health`](crate::drive::Drive::health).
    pub fn drive_health(&self) -> Option<LastHealth> {
        self.drive.health()
    }

    /// Whether the drive was given up.
    pub fn is_drive_gone(&self) -> bool {
        self.drive.is_gone()
    }

    /// What the drive can do.
    pub fn drive_facts(&self) -> Facts {
        self.drive.facts()
    }

    /// Whether a tenant's own threads can run where it has them. Of those in the configuration file this was checked
    /// before the start.
    ///
    /// # Errors
    /// One of its CPUs is not this process's.
    pub fn check_cpus(&self, tenant: &Tenant) -> Result<(), DiskError> {
        let allowed = self.threads.cpus.as_ref();
        let refused = allowed.and_then(|allowed| tenant.frontend.cpus().iter().find_map(|cpu| allowed.refuse(*cpu)));
        refused.map_or(Ok(()), |(what, remedy)| Err(DiskError::new(Reason::Invalid, what, remedy)))
    }

    /// Opens the pollers of a configuration. Returns the parts of each of its tenants.
    ///
    /// # Errors
    /// A poller can't be started; those before it run.
    pub fn open_planned(&mut self, config: &Config, policy: &PolicyConfig) -> Result<Vec<Vec<Part>>> {
        let plan = config.poller_plan();
        let mut parts: Vec<Vec<Part>> = config.tenants.iter().map(|_| Vec::new()).collect();
        for planned in &plan {
            let serves: Vec<_> =
                planned.serves.iter().map(|serves| (&config.tenants[serves.tenant], serves.queues.clone())).collect();
            let is_shared = planned.serves.iter().all(|of| config.home(&config.tenants[of.tenant]) == Home::Shared);
            let poller = self.open(config, policy, plan.len(), &serves, is_shared, (planned.mode, planned.cpu))?;
            for serves in &planned.serves {
                parts[serves.tenant].push(Part { queues: serves.queues.clone(), poller });
            }
        }
        Ok(parts)
    }

    /// Finds or opens the pollers that one more tenant needs.
    ///
    /// # Errors
    /// A poller can't be started. Those that were opened for the tenant are closed.
    pub fn open_for(&mut self, config: &Config, policy: &PolicyConfig, tenant: &Tenant) -> Result<Vec<Part>> {
        let shared = || self.open.values().filter(|open| open.is_shared);
        let is_laid_out = shared().count() >= usize::from(config.pollers.best_effort);
        if config.home(tenant) == Home::Shared
            && is_laid_out
            && let Some((id, open)) =
                self.open.iter_mut().filter(|(_, open)| open.is_shared).min_by_key(|(_, open)| open.serves.len())
        {
            open.mode = open.mode.max(tenant.frontend.mode());
            let part = Part { queues: 0..tenant.queues, poller: *id };
            self.tell_behaviour(config);
            return Ok(vec![part]);
        }
        let is_shared = config.home(tenant) == Home::Shared;
        let planned = config.own_pollers(tenant, self.open.len());
        let all = self.open.len() + planned.len();
        let parts = planned.into_iter().map(|(queues, mode, cpu)| {
            let serves = [(tenant, queues.clone())];
            let poller = self.open(config, policy, all, &serves, is_shared, (mode, cpu))?;
            Ok(Part { queues, poller })
        });
        let parts: Result<Vec<Part>> = parts.collect();
        if parts.is_err() {
            self.close_unused(config);
        }
        self.tell_behaviour(config);
        parts
    }

    fn open(
        &mut self,
        config: &Config,
        policy: &PolicyConfig,
        all: usize,
        serves: &[(&Tenant, Range<u16>)],
        is_shared: bool,
        (mode, cpu): (Mode, Option<u32>),
    ) -> Result<PollerId> {
        let id = PollerId(self.threads.next.fetch_add(1, Ordering::Relaxed));
        let shape = poller_shape::shape(config, all, serves, self.drive.facts().weighted);
        // Those of other drives.
        let others = self.threads.running() - self.open.len();
        let (sender, thread) = self.drive.start_poller(Opening {
            number: id.0,
            shape,
            policy,
            board: Arc::clone(&self.board),
            behaviour: behaviour(config, mode, others + all >= self.threads.cores),
            groups: Arc::clone(&self.groups),
            keys: Arc::clone(&self.keys),
            cpus: cpu.map_or_else(|| self.near_cpus.clone(), |cpu| vec![cpu]),
            clock: self.clock,
            scanner: self.threads.scanner.clone(),
            pulses: self.threads.pulses.clone(),
        })?;
        self.threads.running.fetch_add(1, Ordering::Relaxed);
        self.open.insert(id, Open { sender, thread, is_shared, mode, shape, serves: BTreeSet::new() });
        Ok(id)
    }

    /// Pollers that share CPUs give way; how many there are has changed, or whom one serves.
    pub fn tell_behaviour(&self, config: &Config) {
        let naps = self.threads.running() >= self.threads.cores;
        for open in self.open.values() {
            open.sender.send(Message::Behave(behaviour(config, open.mode, naps)));
        }
    }

    /// What keeps a policy from taking over from another one while the pollers run.
    ///
    /// # Errors
    /// Why, in words.
    pub fn can_change(&self, from: &PolicyConfig, to: &PolicyConfig) -> Result<(), String> {
        let classes_stay = |open: &Open| from.hwq_classes(&open.shape) == to.hwq_classes(&open.shape);
        if !self.open.values().all(classes_stay) {
            return Err(
                "the drive's queues have other classes under it, which they get when they are opened".to_owned()
            );
        }
        let built =
            self.open.values().try_for_each(|open| to.build_in(&open.shape, Arc::clone(&self.groups)).map(drop));
        built.map_err(|error| error.to_string())
    }

    /// Another policy decides at every poller, each as soon as what it has in flight is done.
    pub fn change_policy(&self, to: &PolicyConfig) {
        for open in self.open.values() {
            // It can be built: `can_change` tried.
            if let Ok(policy) = to.build_in(&open.shape, Arc::clone(&self.groups)) {
                open.sender.send(Message::ChangePolicy(Box::new(policy)));
            }
        }
    }

    /// Has all pollers forget the former keys of disks. `taken` comes once they have.
    pub fn take_keys(&self, taken: impl FnOnce() + Send + 'static) {
        let last = Arc::new(Mutex::new(Taken(Some(Box::new(taken)))));
        for open in self.open.values() {
            let mine = Arc::clone(&last);
            open.sender.send(Message::TakeKeys(Box::new(move || drop(mine))));
        }
    }

    /// A poller's end for others.
    pub fn sender(&self, id: PollerId) -> Option<PollerSender<Served>> {
        self.open.get(&id).map(|open| open.sender.clone())
    }

    /// Tells a poller something; one that was closed hears nothing.
    pub fn send(&self, id: PollerId, message: Message<Served>) {
        if let Some(open) = self.open.get(&id) {
            open.sender.send(message);
        }
    }

    /// Has a poller serve a tenant's queues, or some of them. Returns what measures them. A stuck poller gets to them
    /// later: nobody waits for it.
    pub fn add(&mut self, id: PollerId, tenant: TenantId, front_end: Served, terms: Terms) -> Arc<Probe> {
        let probe = Arc::new(Probe::new(tenant, terms.class));
        probe.served_by(id.0);
        if let Some(open) = self.open.get_mut(&id) {
            open.serves.insert(tenant);
            open.sender.send(Message::Add(Box::new(Addition { front_end, probe: Arc::clone(&probe), terms })));
        }
        probe
    }

    /// A tenant has queues nowhere any more.
    pub fn forget(&mut self, tenant: TenantId) {
        self.open.values_mut().for_each(|open| {
            open.serves.remove(&tenant);
        });
    }

    /// Closes the pollers without tenants, and with them their HWQs.
    pub fn close_unused(&mut self, config: &Config) {
        let unused: Vec<PollerId> =
            self.open.iter().filter(|(_, open)| open.serves.is_empty()).map(|(id, _)| *id).collect();
        for id in &unused {
            if let Some(open) = self.open.remove(id) {
                self.threads.running.fetch_sub(1, Ordering::Relaxed);
                open.sender.send(Message::Drain);
                // Its HWQs must be free before others are opened. It has nothing in flight, so it ends at once.
                let _ = open.thread.join();
            }
        }
        if !unused.is_empty() {
            self.tell_behaviour(config);
        }
    }

    /// Completes all commands in flight.
    pub fn begin_to_drain(&self) {
        self.open.values().for_each(|open| open.sender.send(Message::Drain));
    }

    /// Waits until all draining pollers have ended, 10 s at most: a drive may not answer. No thread uses the drive
    /// after that. Returns the commands that the drive never answered.
    pub fn join(&mut self) -> u32 {
        let open = std::mem::take(&mut self.open);
        self.threads.running.fetch_sub(open.len(), Ordering::Relaxed);
        open.into_values().map(|open| open.thread.join().unwrap_or(u32::MAX)).fold(0, u32::saturating_add)
    }
}

/// Says, once the last poller has let go of it, that all have. A poller that ends lets go of it too.
struct Taken(Option<Box<dyn FnOnce() + Send>>);

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(taken) = self.0.take() {
            taken();
        }
    }
}

fn behaviour(config: &Config, mode: Mode, naps: bool) -> Behaviour {
    Behaviour { mode, idle_after: config.pollers.idle_after, naps }
}
