//! The thread around a poller: messages, sleep, and the answers that must wait for the drive.

use std::collections::HashMap;
use std::io::Write;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use backend_cipher::Encrypted;
use config::Mode;
use confine::ThreadKind;
use io_model::{Backend, Nanos, TenantId, Witness, WrrWeights};
use policy::{AnyPolicy, Policy, Terms};
use poller::{INTERVAL, Poller, Probe, Progress, Recorder, TenantSlot};
use rustix::thread::CpuSet;

use crate::doorbell_scanner::{self, DoorbellScanner, Doorbells, Sleeper};
use crate::drive_trait::SetWeights;
use crate::front_end::FrontEnd;
use crate::iteration_times::Stopwatch;
use crate::poller_waker::{PollerWaker, Watch};
use crate::poller_watchdog::Pulses;
use crate::{panics, threads};
use observe::clock::Clock;
use observe::cpu_waits::CountedPoller;

/// How often a running poller looks for clients whose memory went away.
const HEALTH_PERIOD: Nanos = Nanos::from_millis(50);

/// Messages between two iterations at most: tenants with many must not hold up the others' commands.
const MESSAGES_PER_LOOK: u32 = 16;

/// How long a poller that shares its CPU, or whose drive needs one, looks in vain before it gives way: as long as a
/// fast drive takes.
const LOOKS_IN_VAIN: Nanos = Nanos(10_000);

/// With no more commands in flight than this, threads of the host that do them get the CPU at once: looking on would
/// take longer than they do.
const FEW_IN_FLIGHT: u32 = 4;

/// How it yields: the shortest possible sleep. It does not call `sched_yield`: pollers that do so in turn delay the
/// kernel's own threads. With Linux 6.18, that delays read-copy-update by up to a minute, and with it every thread that
/// closes a file.
const NAP: Duration = Duration::from_micros(1);

/// A drive that has not answered for this long at shutdown is given up.
const DRAIN_LIMIT: Nanos = Nanos::from_millis(10_000);

/// The kernel takes no timer that ends beyond its clock.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// What other threads tell a poller.
pub enum Message<S: FrontEnd> {
    /// Serve a tenant's queues. What is sent to the tenant after this reaches it.
    Add(Box<Addition<S>>),
    /// What the client of a tenant wants. Of a tenant that left it is dropped, as the others are.
    Order(TenantId, S::Order),
    /// Drop the witness once all commands of a tenant's thin disk that were fetched before have ended.
    DropWhenQuiet(TenantId, Witness),
    /// A tenant has other terms.
    ChangeTerms(TenantId, Terms),
    /// Every command of a tenant is recorded from now on, or no more.
    Record(TenantId, Option<Box<Recorder>>),
    /// Another policy decides.
    ChangePolicy(Box<AnyPolicy>),
    /// Let a tenant go as soon as nothing of it is in flight, and say so.
    Remove(TenantId, Box<dyn FnOnce() + Send>),
    /// Keys of disks have changed: forget the former ones, and say so.
    TakeKeys(Box<dyn FnOnce() + Send>),
    /// Behave like this from now on.
    Behave(Behaviour),
    /// Finish commands in flight and end.
    Drain,
}

/// A tenant that comes to a poller, which has fewer than 65535.
pub struct Addition<S> {
    /// Its queues.
    pub front_end: S,
    /// What measures it here. Its tenant's identifier is not reused.
    pub probe: Arc<Probe>,
    /// What it was promised and is held to.
    pub terms: Terms,
}

/// How a poller's thread behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behaviour {
    /// When to sleep.
    pub mode: Mode,
    /// Sleep after this long without I/O, unless the mode says otherwise.
    pub idle_after: Nanos,
    /// Give the CPU away between looks: for pollers that share one.
    pub naps: bool,
}

/// The others' end of a poller.
pub struct PollerSender<S: FrontEnd> {
    sender: Sender<Message<S>>,
    waker: Arc<PollerWaker>,
}

impl<S: FrontEnd> Clone for PollerSender<S> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), waker: Arc::clone(&self.waker) }
    }
}

impl<S: FrontEnd> PollerSender<S> {
    /// Leaves a message and wakes the poller. One that ended has no use for it: it is dropped.
    pub fn send(&self, message: Message<S>) {
        if self.sender.send(message).is_ok() {
            self.waker.notify();
        }
    }

    /// What wakes the poller.
    pub fn waker(&self) -> &Arc<PollerWaker> {
        &self.waker
    }
}

/// A poller's thread; ends after [`Message::Drain`], saying how many commands were still in flight.
pub type Thread = JoinHandle<u32>;

/// What a poller's thread starts with.
pub struct Start<S, B> {
    /// Which of the daemon's pollers; given once.
    pub number: usize,
    /// The poller.
    pub poller: Poller<S, Encrypted<B>, AnyPolicy>,
    /// Sets the weights of the drive's arbitration, for a policy that relies on it.
    pub set_weights: Option<SetWeights>,
    /// At first.
    pub behaviour: Behaviour,
    /// The CPUs of the drive's interrupts are told to it, where the drive asks for that.
    pub drive_on_cpus: bool,
    /// Run on these CPUs only; empty: on any.
    pub cpus: Vec<u32>,
    /// The daemon's.
    pub clock: Clock,
    /// Looks at mapped doorbells while it sleeps.
    pub scanner: DoorbellScanner,
    /// Says that it gets on.
    pub pulses: Pulses,
}

/// Starts the thread.
///
/// # Errors
/// The kernel has no thread or descriptor left.
pub fn start<S: FrontEnd, B: Backend + Send + 'static>(
    start: Start<S, B>,
) -> std::io::Result<(PollerSender<S>, Thread)> {
    let (sender, receiver) = channel();
    let waker = Arc::new(PollerWaker::new()?);
    let handle = PollerSender { sender, waker: Arc::clone(&waker) };
    let Start { number, poller, set_weights, behaviour, drive_on_cpus, cpus, clock, scanner, pulses } = start;
    let runner = Runner {
        number,
        poller,
        behaviour,
        drive_on_cpus,
        clock,
        waker,
        scanner,
        receiver,
        tenants: HashMap::new(),
        unsettled: Vec::new(),
        leaving: Vec::new(),
        next_health: Nanos(0),
        napped: Nanos(0),
        unchecked: false,
        drive_watch: None,
        set_weights,
        weights: None,
        next_weights: Nanos(0),
    };
    let thread = std::thread::Builder::new().name(format!("poller-{number}"));
    Ok((handle, thread.spawn(move || runner.run(&cpus, &pulses))?))
}

struct Runner<S: FrontEnd, B> {
    number: usize,
    poller: Poller<S, Encrypted<B>, AnyPolicy>,
    behaviour: Behaviour,
    drive_on_cpus: bool,
    clock: Clock,
    waker: Arc<PollerWaker>,
    scanner: DoorbellScanner,
    receiver: Receiver<Message<S>>,
    /// The tenants at this poller.
    tenants: HashMap<TenantId, TenantSlot>,
    /// Tenants with orders that wait for commands in flight.
    unsettled: Vec<TenantSlot>,
    /// Tenants to release, and where to report that.
    leaving: Vec<(TenantId, Box<dyn FnOnce() + Send>)>,
    next_health: Nanos,
    /// When it last gave way.
    napped: Nanos,
    /// Clients' memory was looked at since their health was.
    unchecked: bool,
    /// The drive's completions end a sleep.
    drive_watch: Option<Watch>,
    /// For a policy that relies on the drive's arbitration, with the weights that were set last and the time to look
    /// again.
    set_weights: Option<SetWeights>,
    weights: Option<WrrWeights>,
    next_weights: Nanos,
}

impl<S: FrontEnd, B: Backend> Runner<S, B> {
    fn run(mut self, cpus: &[u32], pulses: &Pulses) -> u32 {
        threads::enter(ThreadKind::Poller);
        let _counted = CountedPoller::this_thread(self.number);
        if !cpus.is_empty() {
            pin(cpus);
        }
        eventfd::watch();
        // A timer may be a modelled drive's: 50 µs late, as the kernel likes it, would be as long as the drive takes.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        self.watch_drive();
        let (board, inside) = (self.poller.board(), self.poller.inside());
        let mut stopwatch = Stopwatch::start(self.number, board, inside, pulses, self.clock.now());
        let mut did = Progress::default();
        loop {
            if self.waker.take_messages() && self.read_messages() {
                stopwatch.pause(self.clock.now());
                return self.drain();
            }
            let now = self.clock.now();
            let took = stopwatch.lap(now, did.any());
            self.poller.took(took, did);
            did = self.poller.step(now);
            if !self.unsettled.is_empty() {
                self.settle(now);
            }
            self.unchecked = true;
            self.check_health(now);
            if self.set_weights.is_some() && now >= self.next_weights {
                self.next_weights = now + INTERVAL;
                self.follow_weights();
            }
            if !did.any() {
                self.rest(now, &mut stopwatch);
            }
        }
    }

    /// Gives the drive the weights that the policy wants now. They change at the end of an interval, if at all, so
    /// the lock or the admin command behind it is not paid per command.
    fn follow_weights(&mut self) {
        let wanted = self.poller.policy().wrr_weights();
        if let (Some(set), Some(weights)) = (&mut self.set_weights, wanted)
            && self.weights != wanted
        {
            set(weights);
            self.weights = wanted;
        }
    }

    /// Handles messages, some at a time. `true`: asked to drain.
    fn read_messages(&mut self) -> bool {
        for _ in 0..MESSAGES_PER_LOOK {
            let Ok(message) = self.receiver.try_recv() else { return false };
            panics::drill();
            match message {
                Message::Add(addition) => self.add(*addition),
                Message::Order(tenant, order) => {
                    panics::hang_drill();
                    let Some(slot) = self.tenants.get(&tenant).copied() else { continue };
                    if let Some((front_end, mut memory)) = self.poller.source_and_memory(slot) {
                        front_end.order(order, &mut memory);
                        self.look_after(slot);
                    }
                }
                Message::DropWhenQuiet(tenant, witness) => {
                    let Some(slot) = self.tenants.get(&tenant).copied() else { continue };
                    if let Some((front_end, _)) = self.poller.source_and_memory(slot) {
                        front_end.drop_when_quiet(witness);
                        self.look_after(slot);
                    }
                }
                Message::ChangeTerms(tenant, terms) => {
                    if let Some(slot) = self.tenants.get(&tenant) {
                        self.poller.change_terms(*slot, &terms, self.clock.now());
                    }
                }
                Message::Record(tenant, recorder) => {
                    if let Some(slot) = self.tenants.get(&tenant) {
                        self.poller.record(*slot, recorder.map(|it| *it));
                    }
                }
                Message::ChangePolicy(policy) => self.poller.change_policy(*policy),
                Message::Remove(tenant, gone) => {
                    let Some(slot) = self.tenants.get(&tenant).copied() else { continue };
                    if let Some(front_end) = self.poller.source_mut(slot) {
                        front_end.leave();
                        self.leaving.push((tenant, gone));
                        self.look_after(slot);
                    }
                }
                Message::TakeKeys(taken) => {
                    self.poller.backend_mut().take_keys();
                    taken();
                }
                Message::Behave(behaviour) => {
                    self.behaviour = behaviour;
                    self.watch_drive();
                }
                Message::Drain => return true,
            }
        }
        self.waker.leave_messages();
        false
    }

    fn add(&mut self, Addition { front_end, probe, terms }: Addition<S>) {
        let id = probe.tenant();
        if let Ok(slot) = self.poller.add(front_end, probe, &terms) {
            self.tenants.insert(id, slot);
        }
    }

    /// Has what a tenant's orders wait for looked at after each iteration.
    fn look_after(&mut self, tenant: TenantSlot) {
        if !self.unsettled.contains(&tenant) {
            self.unsettled.push(tenant);
        }
    }

    /// Answers the orders whose wait is over, and releases tenants that left.
    fn settle(&mut self, now: Nanos) {
        let Self { unsettled, leaving, poller, tenants, .. } = self;
        unsettled.retain(|slot| {
            let Some((front_end, mut memory)) = poller.source_and_memory(*slot) else { return false };
            if front_end.settle(&mut memory) {
                return true;
            }
            let Some(at) = leaving.iter().position(|(id, _)| tenants.get(id) == Some(slot)) else { return false };
            if poller.remove(*slot, now).is_none() {
                return true;
            }
            let (id, gone) = leaving.swap_remove(at);
            tenants.remove(&id);
            gone();
            false
        });
    }

    /// See [`FrontEnd::check_health`]. What it looks for shows only when memory is used: a poller that sleeps checks
    /// once more after it was last awake, and then sleeps on.
    fn check_health(&mut self, now: Nanos) {
        if now < self.next_health {
            return;
        }
        self.next_health = now + HEALTH_PERIOD;
        self.unchecked = false;
        self.poller.sources_mut().for_each(|(_, front_end)| front_end.check_health());
    }

    /// After an empty iteration: sleep, give way, or spin.
    fn rest(&mut self, now: Nanos, stopwatch: &mut Stopwatch) {
        if self.may_sleep(now) {
            self.sleep(stopwatch);
        } else if self.behaviour.naps && now - self.poller.last_progress().max(self.napped) > LOOKS_IN_VAIN {
            stopwatch.pause(self.clock.now());
            self.waker.sleep(Some(NAP));
            self.napped = self.clock.now();
            stopwatch.resume(self.napped);
        } else {
            std::hint::spin_loop();
        }
    }

    fn may_sleep(&mut self, now: Nanos) -> bool {
        let quiet = now - self.poller.last_progress();
        let idle = quiet > self.behaviour.idle_after;
        // A poller that only watches may hold the very CPU that the drive waits for.
        let gives_way = self.drive_on_cpus && gives_way(self.poller.inflight(), quiet);
        self.unsettled.is_empty()
            && self.wakes_in_time()
            && match self.behaviour.mode {
                _ if gives_way => true,
                Mode::Event => true,
                Mode::Adaptive => idle,
                Mode::Polling => idle && !self.poller.sources_mut().any(|(_, front_end)| front_end.has_client()),
            }
    }

    /// When to look for requests of clients that never kick. They must not keep us from sleeping.
    fn next_look(&mut self, now: Nanos) -> Nanos {
        let polled = self.poller.sources_mut().any(|(_, front_end)| front_end.is_polled());
        if polled { now + doorbell_scanner::period(now - self.poller.last_progress()) } else { Nanos::MAX }
    }

    /// Whether nothing is in flight, or what is would end a sleep.
    fn wakes_in_time(&self) -> bool {
        self.poller.inflight() == 0
            || self.sleeps_in_flight() && (self.drive_watch.is_some() || self.poller.backend().next_event().is_some())
    }

    fn sleeps_in_flight(&self) -> bool {
        self.behaviour.mode == Mode::Event || self.drive_on_cpus
    }

    /// For a poller that sleeps while commands are in flight. A drive that can't wake it has it spin, or keep to the
    /// drive's own forecast.
    fn watch_drive(&mut self) {
        if self.sleeps_in_flight() && self.drive_watch.is_none() {
            let fd = self.poller.backend_mut().wake_fd().and_then(|fd| fd.try_clone_to_owned().ok());
            self.drive_watch = fd.and_then(|fd| self.waker.watch(fd).ok());
        }
    }

    /// Sleeps until there is something to do: a message, a kick, a completion, a trapped doorbell, a mapped one that
    /// the scanner saw.
    fn sleep(&mut self, stopwatch: &mut Stopwatch) {
        loop {
            // Each time: it also notes what was rung so far, and what is rung from then on ends the sleep.
            self.poller.set_wakeup(true);
            self.waker.prepare_to_sleep();
            let now = self.clock.now();
            if self.waker.has_messages() || self.poller.step(now).any() || !self.wakes_in_time() {
                break;
            }
            self.check_health(now);
            let mut doorbells = Doorbells::new();
            self.poller.sources_mut().for_each(|(_, front_end)| front_end.doorbells(&mut doorbells));
            let scanned = !doorbells.is_empty();
            if scanned {
                self.scanner.watch(Sleeper {
                    poller: self.number,
                    waker: Arc::clone(&self.waker),
                    doorbells,
                    last_progress: self.poller.last_progress(),
                    looked: now,
                });
            }
            let health = if self.unchecked { self.next_health } else { Nanos::MAX };
            let next = self.poller.next_timer().min(health).min(self.next_look(now));
            let timer = Duration::from_nanos((next - now).0);
            stopwatch.pause(self.clock.now());
            self.unchecked |= self.waker.sleep(Some(timer.min(LONGEST_SLEEP)));
            stopwatch.resume(self.clock.now());
            if scanned {
                self.scanner.forget(self.number);
            }
        }
        self.waker.awake();
        self.poller.set_wakeup(false);
    }

    /// Completes what is in flight, then flushes for each tenant; fetches nothing else. Returns what the drive never
    /// answered.
    fn drain(mut self) -> u32 {
        let start = self.clock.now();
        let wait = |poller: &mut Poller<S, Encrypted<B>, AnyPolicy>, progress: fn(&mut _, Nanos) -> Progress| {
            let now = self.clock.now();
            if !progress(poller, now).any() {
                std::thread::sleep(NAP);
            }
            now - start <= DRAIN_LIMIT
        };
        let poller = &mut self.poller;
        while poller.inflight() > 0 && wait(poller, Poller::finish) {}
        // Publishes what was completed, and lets go of clients.
        poller.sources_mut().for_each(|(_, front_end)| front_end.part());
        loop {
            let mut flushing = poller.inflight() > 0;
            poller.for_each_with_memory(|_, front_end, memory| {
                front_end.settle(memory);
                flushing |= front_end.live_vqs() != 0;
            });
            if !flushing || !wait(poller, Poller::step) {
                return poller.inflight();
            }
        }
    }
}

/// Whether a poller whose drive needs a CPU sleeps now, `quiet` after anything moved.
fn gives_way(in_flight: u32, quiet: Nanos) -> bool {
    match in_flight {
        0 => false,
        1..=FEW_IN_FLIGHT => true,
        _ => quiet > LOOKS_IN_VAIN,
    }
}

/// Keeps this thread on `cpus`.
fn pin(cpus: &[u32]) {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu as usize));
    // Without a CPU in the set, the kernel refuses.
    if let Err(errno) = rustix::thread::sched_setaffinity(None, &set) {
        // Not eprintln: it panics where standard error can't be written.
        let _ = writeln!(std::io::stderr(), "evenkeeld: can't run a poller on CPU {cpus:?}: {errno}; it runs anywhere");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_host_get_the_cpu_at_once_for_few_commands() {
        let just_over = LOOKS_IN_VAIN + Nanos(1);
        assert!(!gives_way(0, just_over), "whether an idle poller sleeps is its mode's");
        assert!(gives_way(1, Nanos(0)) && gives_way(FEW_IN_FLIGHT, Nanos(0)));
        assert!(!gives_way(FEW_IN_FLIGHT + 1, LOOKS_IN_VAIN) && gives_way(FEW_IN_FLIGHT + 1, just_over));
    }
}
