//! The pollers that run on a drive: opened for tenants that come, closed when the last one left.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use config::{Config, Home, Mode, Tenant};
use confine::ThreadKind;
use io_model::TenantId;
use policy::PolicyConfig;
use poller::Board;

use crate::clock::Clock;
use crate::doorbell_scanner::DoorbellScanner;
use crate::drive::{AnyDrive, Facts, Opening, ZeroRange};
use crate::front_end::Served;
use crate::poller_thread::{Behaviour, Message, PollerSender, Thread};
use crate::{queues, threads};

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
    serves: BTreeSet<TenantId>,
}

/// All pollers of a drive.
pub struct Pollers {
    drive: Box<dyn AnyDrive>,
    open: BTreeMap<PollerId, Open>,
    next_id: usize,
    board: Arc<Board>,
    scanner: DoorbellScanner,
    clock: Clock,
    cores: usize,
}

impl Pollers {
    /// None yet.
    ///
    /// # Errors
    /// The thread that looks at mapped doorbells can't be started.
    pub fn new(drive: Box<dyn AnyDrive>, config: &Config, clock: Clock) -> Result<Self> {
        // Now: its signal handler is nothing that a confined thread could install with the first poller.
        eventfd::start_watchdog(|| threads::enter(ThreadKind::Watchdog)).context("can't start the watchdog")?;
        let period = Duration::from_nanos(config.pollers.doorbell_scan.0);
        let scanner = DoorbellScanner::start(period).context("can't start the doorbell scanner")?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { drive, open: BTreeMap::new(), next_id: 0, board: Arc::default(), scanner, clock, cores })
    }

    /// The probes of all tenants.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// What zeroes ranges of the drive; see [`Drive::zeroer`](crate::drive::Drive::zeroer).
    pub fn zeroer(&self) -> Option<Box<dyn ZeroRange>> {
        self.drive.zeroer()
    }

    /// What the drive can do.
    pub fn drive_facts(&self) -> Facts {
        self.drive.facts()
    }

    /// Opens the pollers that a configuration asks for. Returns the parts of each of its tenants.
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
        if config.home(tenant) == Home::Shared
            && let Some((id, open)) = self.open.iter_mut().find(|(_, open)| open.is_shared)
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
        let id = PollerId(self.next_id);
        self.next_id += 1;
        let (sender, thread) = self.drive.start_poller(Opening {
            number: id.0,
            shape: queues::shape(config, all, serves),
            policy,
            board: Arc::clone(&self.board),
            behaviour: behaviour(config, mode, all >= self.cores),
            cpu,
            clock: self.clock,
            scanner: self.scanner.clone(),
        })?;
        self.open.insert(id, Open { sender, thread, is_shared, mode, serves: BTreeSet::new() });
        Ok(id)
    }

    /// Pollers that share a core give way; how many there are has changed, or whom one serves.
    fn tell_behaviour(&self, config: &Config) {
        let yields = self.open.len() >= self.cores;
        for open in self.open.values() {
            open.sender.send(Message::Behave(behaviour(config, open.mode, yields)));
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

    /// A tenant has queues there from now on.
    pub fn serves(&mut self, id: PollerId, tenant: TenantId) {
        if let Some(open) = self.open.get_mut(&id) {
            open.serves.insert(tenant);
        }
    }

    /// A tenant has queues nowhere any more.
    pub fn forget(&mut self, tenant: TenantId) {
        self.open.values_mut().for_each(|open| {
            open.serves.remove(&tenant);
        });
    }

    /// Closes the pollers that serve nobody, and with them their HWQs.
    pub fn close_unused(&mut self, config: &Config) {
        let unused: Vec<PollerId> =
            self.open.iter().filter(|(_, open)| open.serves.is_empty()).map(|(id, _)| *id).collect();
        for id in &unused {
            if let Some(open) = self.open.remove(id) {
                open.sender.send(Message::Drain);
                // It has nothing in flight, so it ends at once.
                let _ = open.thread.join();
            }
        }
        if !unused.is_empty() {
            self.tell_behaviour(config);
        }
    }

    /// Completes what is in flight everywhere, and closes all pollers. Returns what the drive never answered.
    pub fn drain(&mut self) -> u32 {
        self.open.values().for_each(|open| open.sender.send(Message::Drain));
        let open = std::mem::take(&mut self.open);
        open.into_values().map(|open| open.thread.join().unwrap_or(u32::MAX)).fold(0, u32::saturating_add)
    }
}

fn behaviour(config: &Config, mode: Mode, yields: bool) -> Behaviour {
    let config::Pollers { idle_after, doorbell_scan, .. } = config.pollers;
    Behaviour { mode, idle_after, doorbell_scan, yields }
}
