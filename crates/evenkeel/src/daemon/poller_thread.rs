//! The thread around a poller: mail, sleep, and the answers that must wait for the drive.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use io_model::{Backend, Nanos, WrrWeights};
use policy::{AnyPolicy, Policy};
use poller::{INTERVAL, Poller, TenantSlot};
use vfio_user::{Reply, ReplyTo, Request, ServerHandle, Session};

use super::clock::Clock;
use super::device::Device;
use super::doorman::Doorman;
use super::drive::SetWeights;
use super::patrol::{Doorbells, Patrol};

/// How often a running poller looks for clients whose memory went away.
const HEALTH_PERIOD: Nanos = Nanos::from_millis(50);

/// A drive that has not answered for this long at shutdown is given up.
const DRAIN_LIMIT: Nanos = Nanos::from_millis(10_000);

/// What the control thread tells a poller.
pub enum Mail {
    /// A client attached to the device.
    Connected(TenantSlot, Session),
    /// A client's request to one of the poller's devices.
    Request(TenantSlot, Request, ReplyTo),
    /// The device's client is gone.
    Disconnected(TenantSlot),
    /// Finish what is in flight and end.
    Drain,
}

impl Mail {
    /// The device that it is about.
    fn tenant(&self) -> Option<TenantSlot> {
        match self {
            Self::Connected(tenant, _) | Self::Request(tenant, ..) | Self::Disconnected(tenant) => Some(*tenant),
            Self::Drain => None,
        }
    }
}

/// How a poller's thread behaves.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// Sleep after this long without I/O.
    pub idle_after: Nanos,
    /// Give the CPU away after an empty iteration: for pollers that share a core.
    pub yields: bool,
    /// Run on this CPU only.
    pub cpu: Option<u32>,
}

/// The control thread's end of a poller.
#[derive(Clone)]
pub struct Mailbox {
    sender: Sender<Mail>,
    doorman: Arc<Doorman>,
}

impl Mailbox {
    /// Leaves a message and wakes the poller.
    pub fn send(&self, mail: Mail) {
        // A poller that ended has no use for mail.
        if self.sender.send(mail).is_ok() {
            self.doorman.post();
        }
    }

    /// Wakes the poller: a doorbell was stored for it.
    pub fn wake(&self) {
        self.doorman.wake();
    }
}

/// A poller's thread; ends after [`Mail::Drain`], saying how many commands were still in flight.
pub type Thread = JoinHandle<u32>;

/// Starts a thread for `poller`, which is the daemon's `number`th.
pub fn start<B: Backend + Send + 'static>(
    number: usize,
    poller: Poller<Device, B, AnyPolicy>,
    weights: Option<SetWeights>,
    manners: Manners,
    clock: Clock,
    server: ServerHandle,
    patrol: Patrol,
) -> std::io::Result<(Mailbox, Thread)> {
    let (sender, receiver) = channel();
    let doorman = Arc::new(Doorman::new()?);
    let mailbox = Mailbox { sender, doorman: Arc::clone(&doorman) };
    let runner = Runner {
        number,
        poller,
        set_weights: weights,
        weights: None,
        manners,
        clock,
        doorman,
        patrol,
        receiver,
        server,
        waiting: Vec::new(),
        held: VecDeque::new(),
        next_health: Nanos(0),
        next_weights: Nanos(0),
    };
    let thread = std::thread::Builder::new().name(format!("poller-{number}")).spawn(move || runner.run())?;
    Ok((mailbox, thread))
}

/// An answer that waits for the drive.
enum Waiting {
    /// For memory to be quiet: a range, or all that was taken away.
    Unmap(TenantSlot, Option<(u64, u64)>, ReplyTo),
    /// For commands in flight to end.
    Reset(TenantSlot, ReplyTo),
    /// For commands of a client that left; nobody is told, but the next client's mail is held until then.
    Gone(TenantSlot),
}

impl Waiting {
    fn tenant(&self) -> TenantSlot {
        match self {
            Self::Unmap(tenant, ..) | Self::Reset(tenant, _) | Self::Gone(tenant) => *tenant,
        }
    }
}

fn answer(server: &ServerHandle, waiting: Waiting) {
    match waiting {
        Waiting::Unmap(_, _, reply_to) | Waiting::Reset(_, reply_to) => server.reply(reply_to, Reply::Done),
        Waiting::Gone(_) => {}
    }
}

struct Runner<B> {
    number: usize,
    poller: Poller<Device, B, AnyPolicy>,
    manners: Manners,
    clock: Clock,
    doorman: Arc<Doorman>,
    patrol: Patrol,
    receiver: Receiver<Mail>,
    server: ServerHandle,
    waiting: Vec<Waiting>,
    /// Mail for devices that still wind up after a reset or their former client.
    held: VecDeque<Mail>,
    next_health: Nanos,
    /// For a policy that relies on the drive's arbitration, with the weights that were set last and the time to look
    /// again.
    set_weights: Option<SetWeights>,
    weights: Option<WrrWeights>,
    next_weights: Nanos,
}

impl<B: Backend> Runner<B> {
    fn run(mut self) -> u32 {
        if let Some(cpu) = self.manners.cpu {
            pin(cpu);
        }
        loop {
            if self.doorman.take_mail() && self.read_mail() {
                return self.drain();
            }
            let now = self.clock.now();
            let progress = self.poller.step(now);
            if !self.waiting.is_empty() {
                self.settle();
            }
            if now >= self.next_health {
                self.next_health = now + HEALTH_PERIOD;
                self.cut_off_poisoned();
            }
            if self.set_weights.is_some() && now >= self.next_weights {
                self.next_weights = now + INTERVAL;
                self.follow_weights();
            }
            if !progress.any() {
                self.rest(now);
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

    /// Handles all mail. `true`: asked to drain.
    fn read_mail(&mut self) -> bool {
        while let Ok(mail) = self.receiver.try_recv() {
            let Some(tenant) = mail.tenant() else { return true };
            if self.is_winding_up(tenant) {
                self.held.push_back(mail);
            } else {
                self.handle(mail);
            }
        }
        false
    }

    /// Whether later mail for the device must wait, so that its order is kept.
    fn is_winding_up(&self, tenant: TenantSlot) -> bool {
        self.waiting.iter().any(|waiting| waiting.tenant() == tenant && !matches!(waiting, Waiting::Unmap(..)))
    }

    fn handle(&mut self, mail: Mail) {
        match mail {
            Mail::Connected(tenant, session) => {
                if let Some(device) = self.poller.source_mut(tenant) {
                    device.client_here(session);
                }
            }
            Mail::Request(tenant, request, reply_to) => self.request(tenant, request, reply_to),
            Mail::Disconnected(tenant) => {
                if let Some(device) = self.poller.source_mut(tenant) {
                    device.client_gone();
                    self.waiting.push(Waiting::Gone(tenant));
                }
            }
            Mail::Drain => {}
        }
    }

    fn request(&mut self, tenant: TenantSlot, request: Request, reply_to: ReplyTo) {
        let Some(device) = self.poller.source_mut(tenant) else { return };
        match request {
            Request::DmaUnmap { iova, len_bytes } => match device.dma_unmap(iova, len_bytes) {
                Ok(()) => self.waiting.push(Waiting::Unmap(tenant, Some((iova, len_bytes)), reply_to)),
                Err(errno) => self.server.reply(reply_to, Reply::Failed(errno)),
            },
            Request::DmaUnmapAll => {
                device.dma_unmap_all();
                self.waiting.push(Waiting::Unmap(tenant, None, reply_to));
            }
            Request::Reset => {
                device.reset();
                self.waiting.push(Waiting::Reset(tenant, reply_to));
            }
            other => {
                let reply = device.request(other);
                self.server.reply(reply_to, reply);
            }
        }
    }

    /// Gives the answers whose wait is over.
    fn settle(&mut self) {
        let before = self.waiting.len();
        for (tenant, device) in self.poller.sources_mut() {
            while let Some(quiet) = device.take_unmapped() {
                let told = |waiting: &Waiting| matches!(waiting, Waiting::Unmap(of, range, _) if *of == tenant && *range == Some(quiet));
                if let Some(at) = self.waiting.iter().position(told) {
                    answer(&self.server, self.waiting.remove(at));
                }
            }
        }
        let mut at = 0;
        while let Some(waiting) = self.waiting.get(at) {
            let Some(device) = self.poller.source_mut(waiting.tenant()) else { return };
            let over = match waiting {
                Waiting::Unmap(_, Some(_), _) => false,
                Waiting::Unmap(_, None, _) => !device.is_unmapping(),
                Waiting::Reset(..) => device.is_idle(),
                Waiting::Gone(_) => device.is_idle() && !device.is_unmapping(),
            };
            if over {
                answer(&self.server, self.waiting.remove(at));
            } else {
                at += 1;
            }
        }
        if self.waiting.len() < before {
            self.read_held();
        }
    }

    /// Handles mail whose device has wound up.
    fn read_held(&mut self) {
        for _ in 0..self.held.len() {
            let Some(mail) = self.held.pop_front() else { break };
            if mail.tenant().is_some_and(|tenant| self.is_winding_up(tenant)) {
                self.held.push_back(mail);
            } else {
                self.handle(mail);
            }
        }
    }

    /// Ends the connection of clients that took memory away from under us (see `guest_memory::sigbus`).
    fn cut_off_poisoned(&mut self) {
        for (_, device) in self.poller.sources_mut() {
            if let Some(session) = device.poisoned_session() {
                self.server.disconnect(session, "the client shrank a file that it had shared as memory");
            }
        }
    }

    /// After an empty iteration: spin, give way, or sleep.
    fn rest(&mut self, now: Nanos) {
        let busy = self.poller.inflight() > 0 || !self.waiting.is_empty();
        if !busy && now - self.poller.last_progress() > self.manners.idle_after {
            self.sleep();
        } else if self.manners.yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// Sleeps until there is something to do: mail, a trapped doorbell, a mapped one that the patrol saw.
    fn sleep(&mut self) {
        self.poller.set_wakeup(true);
        self.doorman.lie_down();
        loop {
            let now = self.clock.now();
            if self.doorman.has_mail() || self.poller.step(now).any() || self.poller.inflight() > 0 {
                break;
            }
            let mut doorbells = Doorbells::new();
            self.poller.sources_mut().for_each(|(_, device)| device.doorbells(&mut doorbells));
            self.patrol.watch(self.number, &self.doorman, doorbells);
            let timer = Duration::from_nanos((self.poller.next_event() - now).0);
            self.doorman.sleep(Some(timer.min(Duration::from_secs(3600))));
            self.patrol.forget(self.number);
            self.doorman.lie_down();
        }
        self.doorman.get_up();
        self.poller.set_wakeup(false);
    }

    /// Completes what is in flight, fetches nothing more. Returns what the drive never answered.
    fn drain(mut self) -> u32 {
        let start = self.clock.now();
        while self.poller.inflight() > 0 {
            let now = self.clock.now();
            if now - start > DRAIN_LIMIT {
                break;
            }
            if !self.poller.finish(now).any() {
                std::thread::yield_now();
            }
        }
        self.poller.inflight()
    }
}

fn pin(cpu: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    if let Err(errno) = rustix::thread::sched_setaffinity(None, &set) {
        // Not eprintln: it panics where standard error can't be written.
        let _ = writeln!(std::io::stderr(), "evenkeel: can't run a poller on CPU {cpu}: {errno}; it runs anywhere");
    }
}
