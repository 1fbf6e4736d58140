//! The event loop: guests, pollers and the drive in the order of their time.

mod build;
mod disks;
mod effort;
mod events;
mod faults;
mod membership;
mod mutex;

pub use effort::Effort;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use io_model::{Nanos, WrrWeights};
use policy::{Cost, Policy, PolicyConfig, PollerShape, Terms};
use poller::{Board, INTERVAL, Poller, Probe, TenantSlot};
use ssd_model::Drive;

use crate::check::{BoundCounts, Contender, Ledger, Rule, Service, Shares, Watch};
use crate::contestant::Contestant;
use crate::device::{SimBackend, SimDrive};
use crate::disks::{DiskCounts, Disks};
use crate::event_loop::events::{Event, Events};
use crate::guest::{Ask, Guest};
use crate::host::{Contention, Kick, PathCosts};
use crate::lock::{Mutex, Spinlock};
use crate::observed::Observed;
use crate::port::Meter;
use crate::report::{Report, TenantReport};
use crate::sabotage::{Laboratory, Sabotage};
use crate::scenario::{Scenario, ScenarioError};
use crate::thin::Pool;

/// How long a run may go on after its end for commands in flight.
const DRAIN_NS: u64 = 10_000_000_000;
/// A poller that wants its next step at once without having moved anything comes back this much later …
const SPIN_NS: u64 = 1_000;
/// … and this many times in a row are a fault of its policy.
const SPINS: u32 = 1_000;
/// This many events at one instant are a fault: time does not go on.
const EVENTS_AT_ONCE: u64 = 1_000_000;
/// Number of looks for starvation within the starvation limit.
const LOOKS: u64 = 4;

struct Node<P> {
    poller: Poller<Observed, SimBackend, P>,
    /// All tenants that are served here at some time.
    members: Vec<u16>,
    /// The tenants that are here now, and their places in the poller.
    tenants: Vec<(u16, TenantSlot)>,
    /// The most that they ever were.
    most_tenants: usize,
    /// Tenants and their VQs that rang, and that it has perhaps not seen yet.
    rung: Vec<(u16, u16)>,
    /// Tenants that come later.
    awaited: Vec<Awaited>,
    /// What its policy last had the drive fetch by.
    weights: Option<WrrWeights>,
    busy_until_ns: u64,
    /// The time of its next step. `u64::MAX`: when it is poked.
    wake_ns: u64,
    worked_ns: u64,
    spins: u32,
    /// Whether it has the global mutex, or waits for it.
    turn: MutexTurn,
    /// The tenant and vCPU whose CPU it works on.
    beside: Option<(u16, u16)>,
}

/// What a poller will have of a tenant that is not there yet.
struct Awaited {
    tenant: u16,
    source: Observed,
    probe: Arc<Probe>,
}

/// A poller's place at the global mutex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MutexTurn {
    Away,
    Waits,
    Holds,
}

/// A run in progress.
pub(crate) struct Engine<'a, C, P> {
    scenario: &'a Scenario<C>,
    now_ns: u64,
    events: Events,
    drive: Rc<RefCell<SimDrive>>,
    meter: Rc<Meter>,
    ledger: Rc<RefCell<Ledger>>,
    path: PathCosts,
    lock: Spinlock,
    mutex: Mutex,
    nodes: Vec<Node<P>>,
    guests: Vec<Guest>,
    probes: Vec<Arc<Probe>>,
    board: Arc<Board>,
    /// If disks come, grow and go.
    disks: Option<Disks>,
    /// What thin disks share.
    pool: Rc<RefCell<Pool>>,
    sabotage: Sabotage,
    /// Each tenant's, in force now.
    terms: Vec<Terms>,
    /// Tenants whose shares over the measured time can't be compared, since their terms changed.
    changed: Vec<bool>,
    /// Each tenant's: one, or one for each VQ.
    nodes_of: Vec<Range<u16>>,
    watches: Vec<Watch>,
    /// The measured time.
    measured_ns: Range<u64>,
    /// Each tenant's, when the measured time began.
    measured_from: Vec<Service>,
    events_at_once: u64,
    /// Scratch.
    woken: Vec<u16>,
    asks: Vec<Ask>,
}

impl<'a, C: Contestant, P: Policy> Engine<'a, C, P> {
    /// Everything in its place at time 0. `build` makes each poller's policy.
    pub(crate) fn new(
        scenario: &'a Scenario<C>,
        build: &mut dyn FnMut(&PollerShape) -> Result<P, ScenarioError>,
        Laboratory { sabotage, new_space }: Laboratory,
    ) -> Result<Self, ScenarioError> {
        scenario.validate()?;
        let policy = scenario.policy.product();
        let cost = scenario.policy.fair_queueing().map(|queueing| queueing.cost).or(match policy {
            Some(PolicyConfig::Fair(config)) => Some(config.cost),
            Some(PolicyConfig::Evenkeel(config)) => Some(config.cost),
            Some(PolicyConfig::Drr(_)) => Some(Cost::default()),
            _ => None,
        });
        let bound_cost = match policy {
            Some(PolicyConfig::Lpns(config)) => Some(config.cost),
            Some(PolicyConfig::Evenkeel(config)) => Some(config.cost),
            _ => None,
        };
        let ledger = Rc::new(RefCell::new(Ledger::new(cost, bound_cost)));
        let path = scenario.layout.path(&scenario.costs);
        let hwqs = scenario.poller_hwqs();
        let drive = Drive::new(scenario.profile.clone(), hwqs.iter().sum());
        let seed = scenario.seed ^ 0xD01E;
        let drive = SimDrive::new(drive, scenario.drive_bytes, seed, Rc::clone(&ledger), sabotage);
        let mut engine = Self {
            scenario,
            now_ns: 0,
            events: Events::default(),
            drive: Rc::new(RefCell::new(drive)),
            meter: Rc::new(Meter::new(path)),
            ledger,
            path,
            lock: Spinlock::new(Contention { hold_ns: path.lock_ns, handover_ns: 0 }),
            mutex: Mutex::new(path.mutex),
            nodes: Vec::new(),
            guests: Vec::new(),
            probes: Vec::new(),
            board: Arc::default(),
            disks: None,
            pool: Rc::default(),
            sabotage,
            terms: scenario.tenants.iter().map(|tenant| tenant.terms).collect(),
            changed: vec![false; scenario.tenants.len()],
            nodes_of: vec![0..0; scenario.tenants.len()],
            watches: Vec::new(),
            measured_ns: scenario.warmup.0..scenario.warmup.0 + scenario.duration.0,
            measured_from: vec![Service::default(); scenario.tenants.len()],
            events_at_once: 0,
            woken: Vec::new(),
            asks: Vec::new(),
        };
        engine.place_disks(new_space)?;
        engine.add_guests();
        engine.add_pollers(&hwqs, build, sabotage)?;
        Ok(engine)
    }

    fn push(&mut self, at_ns: u64, event: Event) {
        self.events.push(at_ns, event);
    }

    /// Runs to the end and returns the report.
    pub(crate) fn run(mut self) -> Report {
        self.begin();
        self.push(self.measured_ns.start, Event::Measure);
        let end_ns = self.measured_ns.end;
        while self.advance(end_ns) {}
        self.now_ns = end_ns;
        self.check_shares();
        let report = self.report();
        self.drain(end_ns + DRAIN_NS);
        self.finish(report)
    }

    /// The first events.
    fn begin(&mut self) {
        for tenant in 0..self.guests.len() {
            if !self.guests[tenant].awaited {
                self.start(tenant);
            }
        }
        for change in 0..self.scenario.changes.len() {
            self.push(self.scenario.changes[change].at.0, Event::Change { change: change as u32 });
        }
        for fault in 0..self.scenario.faults.len() {
            self.push(self.scenario.faults[fault].at.0, Event::Fault { fault: fault as u16 });
        }
        self.push(INTERVAL.0, Event::Interval);
        self.push(self.look_every_ns(), Event::Look);
    }

    /// One event, if there is one until then.
    fn advance(&mut self, until_ns: u64) -> bool {
        let drive_ns = self.drive.borrow().next_ns();
        let event_ns = self.events.next_ns();
        let next_ns = drive_ns.min(event_ns).max(self.now_ns);
        if next_ns > until_ns || next_ns == u64::MAX || self.is_stuck(next_ns) {
            return false;
        }
        if drive_ns <= event_ns {
            self.now_ns = self.now_ns.max(drive_ns);
            self.drive.borrow_mut().advance(self.now_ns, &mut self.woken);
            while let Some(poller) = self.woken.pop() {
                self.poke(poller);
            }
            return true;
        }
        let Some(event) = self.events.take() else { return false };
        let at_ns = event_ns;
        self.now_ns = at_ns;
        match event {
            Event::Flush { poller } => self.drive.borrow_mut().flush(poller, at_ns),
            Event::Poll { poller } => self.step(poller),
            Event::Vcpu { tenant, vcpu } => {
                self.guests[usize::from(tenant)].turn(vcpu, at_ns, &mut self.lock, &mut self.asks);
                self.answer(tenant);
            }
            Event::Timer { tenant, thread } => {
                self.guests[usize::from(tenant)].timer(thread, at_ns, &mut self.asks);
                self.answer(tenant);
            }
            Event::Release => self.release(),
            Event::Interval => self.interval(),
            Event::Measure => self.measure(),
            Event::Look => self.look(),
            Event::Fault { fault } => self.fault(fault),
            Event::FaultEnds { fault } => self.fault_ends(fault),
            Event::Change { change } => self.change(change),
        }
        true
    }

    /// Does what a guest asked for.
    fn answer(&mut self, tenant: u16) {
        for at in 0..self.asks.len() {
            match self.asks[at] {
                Ask::Turn { vcpu, at_ns } => self.push(at_ns, Event::Vcpu { tenant, vcpu }),
                Ask::Timer { thread, at_ns } => self.push(at_ns, Event::Timer { tenant, thread }),
                Ask::Ring { vq, heard } => self.ring(tenant, vq, heard),
                Ask::Lock { vcpu } => self.lock_for(tenant, vcpu),
                Ask::Release => self.release(),
            }
        }
        self.asks.clear();
        if self.disks.as_ref().is_some_and(|disks| disks.wiper == tenant) {
            self.take_wiped();
        }
        self.wake_threads();
    }

    /// A doorbell rang. Where a notification takes an exit, a sleeper goes on sleeping without one.
    fn ring(&mut self, tenant: u16, vq: u16, heard: bool) {
        let nodes = &self.nodes_of[usize::from(tenant)];
        let number = if nodes.len() > 1 { nodes.start + vq - 1 } else { nodes.start };
        let node = &mut self.nodes[usize::from(number)];
        if !node.rung.contains(&(tenant, vq)) {
            node.rung.push((tenant, vq));
        }
        let sleeps = node.wake_ns == u64::MAX && self.now_ns >= node.busy_until_ns;
        if heard || self.path.kick == Kick::Never || !sleeps {
            self.poke(number);
        }
    }

    /// Something changed about a tenant that is no doorbell: its pollers hear of it.
    fn poke_all(&mut self, tenant: usize) {
        for number in self.nodes_of[tenant].clone() {
            let node = &mut self.nodes[usize::from(number)];
            if let Some((_, slot)) = node.tenants.iter().find(|place| usize::from(place.0) == tenant) {
                node.poller.source_mut(*slot);
            }
            self.poke(number);
        }
    }

    /// Something happened that a poller will see when it next looks.
    fn poke(&mut self, poller: u16) {
        let now_ns = self.now_ns;
        let node = &self.nodes[usize::from(poller)];
        // An idle poller is halfway through a look at all doorbells, on average.
        let notices_ns = now_ns + self.path.wake_ns + self.path.pass_ns / 2;
        let looks_ns = if now_ns >= node.busy_until_ns { notices_ns } else { node.busy_until_ns };
        self.wake(poller, looks_ns);
    }

    fn wake(&mut self, poller: u16, at_ns: u64) {
        let node = &mut self.nodes[usize::from(poller)];
        // A poller that waits for the mutex looks at everything once it has it.
        if at_ns < node.wake_ns && node.turn != MutexTurn::Waits {
            if self.path.kick == Kick::Asleep && node.wake_ns == u64::MAX {
                node.poller.set_wakeup(false);
            }
            node.wake_ns = at_ns;
            self.push(at_ns, Event::Poll { poller });
        }
    }

    fn step(&mut self, number: u16) {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[usize::from(number)];
        if node.wake_ns != now_ns {
            return;
        }
        node.wake_ns = u64::MAX;
        if self.mutex.is_there() && !self.has_mutex(number) {
            return;
        }
        let node = &mut self.nodes[usize::from(number)];
        self.meter.set(now_ns);
        self.ledger.borrow_mut().set_now(now_ns);
        let progress = node.poller.step(Nanos(now_ns));
        let wanted = node.poller.policy().wrr_weights();
        if let Some(weights) = wanted.filter(|_| node.weights != wanted) {
            node.weights = wanted;
            self.drive.borrow_mut().set_weights(weights);
        }
        node.busy_until_ns = self.meter.now_ns() + self.path.pass_ns;
        node.worked_ns += node.busy_until_ns - now_ns;
        let busy_until_ns = node.busy_until_ns;
        let wanted_ns = node.poller.next_event().0;
        node.spins = if !progress.any() && wanted_ns <= now_ns { node.spins + 1 } else { 0 };
        if node.spins > SPINS {
            node.spins = 0;
            self.ledger
                .borrow_mut()
                .violate(Rule::Progress, || format!("poller {number} spins without moving anything"));
        }
        let earliest_ns = if progress.any() { busy_until_ns } else { busy_until_ns.max(now_ns + SPIN_NS) };
        self.leave_mutex(number);
        self.take_cpu(number);
        let has_finished = self.drive.borrow().has_finished(number);
        if has_finished {
            self.wake(number, busy_until_ns);
        } else if wanted_ns != u64::MAX {
            self.wake(number, wanted_ns.max(earliest_ns));
        }
        self.go_on_looking(number, busy_until_ns);
        let node = &mut self.nodes[usize::from(number)];
        if self.path.kick == Kick::Asleep && node.wake_ns == u64::MAX {
            node.poller.set_wakeup(true);
        }
        let kicked_ns = self.drive.borrow().kicked_ns(number);
        match kicked_ns {
            Some(at_ns) if at_ns == now_ns => self.drive.borrow_mut().flush(number, now_ns),
            Some(at_ns) => self.push(at_ns, Event::Flush { poller: number }),
            None => {}
        }
        self.interrupt(number);
        self.let_go_deleted();
    }

    /// A resting tenant that rang is noticed when the patrol reaches it, for which there is no event.
    fn go_on_looking(&mut self, number: u16, from_ns: u64) {
        let Self { nodes, guests, .. } = self;
        let node = &mut nodes[usize::from(number)];
        node.rung.retain(|(tenant, vq)| {
            let port = guests[usize::from(*tenant)].port.borrow();
            port.is_live() && port.doorbells[usize::from(*vq)].has_unseen()
        });
        if !node.rung.is_empty() {
            let patrol_ns = node.poller.next_patrol().0;
            self.wake(number, patrol_ns.max(from_ns));
        }
    }

    /// Delivers the interrupts that a step raised, in the order of the poller's tenants.
    fn interrupt(&mut self, number: u16) {
        let mut raised = self.meter.raised.take();
        if raised.len() > 1 {
            let tenants = &self.nodes[usize::from(number)].tenants;
            raised.sort_by_key(|tenant| tenants.iter().position(|place| place.0 == *tenant));
        }
        for tenant in raised.drain(..) {
            if self.guests[usize::from(tenant)].interrupt(&mut self.asks) {
                self.answer(tenant);
            }
        }
        self.meter.raised.replace(raised);
    }

    /// Every 10 ms each poller's interval ends.
    fn interval(&mut self) {
        let now_ns = self.now_ns;
        self.push(now_ns + INTERVAL.0, Event::Interval);
        for poller in 0..self.nodes.len() {
            self.poke(poller as u16);
        }
        for tenant in 0..self.guests.len() {
            self.let_go(tenant);
        }
        if !self.scenario.changes.is_empty() {
            self.check_board();
        }
    }

    /// The measured time begins.
    fn measure(&mut self) {
        let ledger = self.ledger.borrow();
        for (tenant, from) in self.measured_from.iter_mut().enumerate() {
            *from = ledger.service(tenant as u16);
        }
    }

    fn look_every_ns(&self) -> u64 {
        (self.scenario.starvation_limit.0 / LOOKS).max(1)
    }

    /// Looks for waiting tenants.
    fn look(&mut self) {
        let now_ns = self.now_ns;
        self.push(now_ns.saturating_add(self.look_every_ns()), Event::Look);
        let mut ledger = self.ledger.borrow_mut();
        ledger.set_now(now_ns);
        let served = ledger.served();
        for (tenant, (guest, watch)) in self.guests.iter().zip(&mut self.watches).enumerate() {
            if let Some((vq, waits_ns)) = watch.look(guest.port.borrow().queues(), now_ns, served) {
                ledger.starves(tenant as u16, vq, waits_ns);
            }
        }
    }

    /// Whether time has stopped.
    fn is_stuck(&mut self, next_ns: u64) -> bool {
        if next_ns > self.now_ns {
            self.events_at_once = 0;
            return false;
        }
        self.events_at_once += 1;
        let stuck = self.events_at_once > EVENTS_AT_ONCE;
        if stuck {
            self.ledger.borrow_mut().violate(Rule::Progress, || format!("time does not go on at {next_ns} ns"));
        }
        stuck
    }

    /// What weights promised for the measured time.
    fn check_shares(&mut self) {
        let Scenario { policy, warmup, duration, hwq_depth, tenants, .. } = self.scenario;
        let mut ledger = self.ledger.borrow_mut();
        ledger.set_now(self.now_ns);
        let given = (0..).zip(&self.measured_from).map(|(tenant, from)| ledger.service(tenant).cost - from.cost);
        let work: u64 = given.sum();
        let weights = self.terms.iter().map(|terms| u64::from(terms.class.weight().unwrap_or(1))).sum();
        let counts =
            |tenant: &u16| !policy.gives_own_pollers() || !self.terms[usize::from(*tenant)].class.is_guaranteed();
        let is_parted = self.nodes.iter().filter(|node| node.members.iter().any(counts)).count() > 1;
        for (node, hwqs) in self.nodes.iter().zip(self.scenario.poller_hwqs()) {
            let (policy, queueing) = (policy.product(), policy.fair_queueing());
            let (span_ns, hwq_depth) = (duration.0, *hwq_depth);
            let shares = Shares { policy, queueing, span_ns, work, weights, is_parted, hwq_depth, hwqs };
            let contenders = node.members.iter().map(|&tenant| {
                let guest = &self.guests[usize::from(tenant)];
                let port = guest.port.borrow();
                let always_waiting = port.seen_since_ns.is_some_and(|since_ns| since_ns <= warmup.0) && !port.rogue;
                let own = &tenants[usize::from(tenant)];
                let kind = tenants.iter().position(|other| other.is_like(own)).unwrap_or(usize::from(tenant));
                let (from, to) = (self.measured_from[usize::from(tenant)], ledger.service(tenant));
                let terms = self.terms[usize::from(tenant)];
                let changed = self.changed[usize::from(tenant)];
                Contender { tenant, terms, changed, always_waiting, rogue: port.rogue, kind, from, to }
            });
            let contenders: Vec<Contender> = contenders.collect();
            shares.check(&contenders, &mut |rule, tenant, what| ledger.violate_of(rule, tenant, || what));
        }
    }

    fn report(&mut self) -> Report {
        let scenario = self.scenario;
        let Range { start, end } = self.measured_ns.clone();
        let seconds = (end - start) as f64 / 1e9;
        let guests = self.guests.iter_mut().zip(&self.probes).zip(&self.terms);
        let tenants = scenario.tenants.iter().zip(guests).map(|(tenant, ((guest, probe), terms))| {
            // A command that still waits at the end is late too.
            let overdue = guest.port.borrow().overdue(guest.target_ns, self.now_ns);
            let tally = &guest.tally;
            let latency = tally.latencies.finish();
            let operations = tally.operations.iter().map(|(kind, seen)| ((*kind).to_owned(), seen.finish()));
            let promise = terms.class.promise();
            let judged = promise.and_then(|promise| tally.judge(promise));
            TenantReport {
                name: tenant.name.clone(),
                iops: latency.count as f64 / seconds,
                bandwidth_bytes_s: tally.bytes as f64 / seconds,
                reads: tally.reads.moments(),
                writes: tally.writes.moments(),
                errors: tally.errors,
                latency,
                windows: tally.windows(Nanos(end)),
                operations: operations.collect(),
                target_ns: promise.map(|(target, _)| target.0),
                latency_percentile: promise.map(|(_, percentile)| percentile.percent()),
                at_percentile_ns: judged.map(|(took_ns, _)| took_ns),
                cautious_ns: promise.and_then(|promise| tally.cautious_ns(promise)),
                waited: waited(&probe.counters()),
                kept: judged.map(|(_, kept)| kept),
                over_target: tally.late + overdue,
                bound: probe.bound().map(Into::into),
                over_bound: tally.over_bound,
                slowdown: None,
            }
        });
        let elapsed_ns = end as f64;
        Report {
            policy: scenario.policy.name().to_owned(),
            layout: scenario.layout.name().to_owned(),
            drive: scenario.profile.name.to_string(),
            seed: scenario.seed,
            duration_ns: end - start,
            tenants: tenants.collect(),
            poller_utilization: self.nodes.iter().map(|node| node.worked_ns as f64 / elapsed_ns).collect(),
            fairness_index: None,
            max_slowdown: None,
            simulated_ios: 0,
            bounds: BoundCounts::default(),
            disks: DiskCounts::default(),
            violations: 0,
            broken: Vec::new(),
        }
    }

    /// No new commands: those in flight end, and all tenants leave.
    fn drain(&mut self, until_ns: u64) {
        (0..self.guests.len()).for_each(|tenant| self.leave(tenant));
        let is_busy = |node: &Node<P>| node.poller.inflight() > 0 || !node.tenants.is_empty();
        while self.nodes.iter().any(is_busy) && self.advance(until_ns) {}
        (0..self.guests.len()).for_each(|tenant| self.let_go(tenant));
    }

    fn finish(self, mut report: Report) -> Report {
        self.check_board();
        self.check_tables();
        let mut ledger = self.ledger.borrow_mut();
        for (number, node) in self.nodes.iter().enumerate() {
            let (left, unknown) = (node.poller.inflight(), node.poller.unknown_completions());
            if left > 0 {
                ledger.violate(Rule::ExactlyOnce, || format!("poller {number}: {left} commands never completed"));
            }
            for (tenant, _) in &node.tenants {
                ledger.violate(Rule::ExactlyOnce, || format!("poller {number}: tenant {tenant} can't leave"));
            }
            if unknown > 0 {
                let what = || format!("poller {number}: {unknown} completions of commands that were not in flight");
                ledger.violate(Rule::ExactlyOnce, what);
            }
        }
        for (tenant, guest) in self.guests.iter().enumerate() {
            let lost = guest.port.borrow().lost();
            if lost > 0 {
                ledger.violate(Rule::ExactlyOnce, || {
                    format!("tenant {tenant}: {lost} I/Os were fetched and never came back")
                });
            }
        }
        ledger.close();
        report.bounds = ledger.bounds();
        report.disks = self.disks.as_ref().map_or_else(DiskCounts::default, |disks| disks.counts);
        report.disks.reused_bytes = ledger.reused_bytes();
        report.disks.further_parts = ledger.further_parts();
        report.simulated_ios = self.guests.iter().map(|guest| guest.ios).sum();
        (report.violations, report.broken) = ledger.take();
        drop(ledger);
        // What never completed was reported; its tokens need not complain as well.
        self.nodes.into_iter().filter(|node| node.poller.inflight() > 0).for_each(std::mem::forget);
        report
    }
}

/// The part of their time that commands waited in their queue.
fn waited(counters: &poller::Counters) -> f64 {
    let all_ns = counters.latency_sum_ns.max(1);
    1.0 - counters.served_sum_ns.min(all_ns) as f64 / all_ns as f64
}
