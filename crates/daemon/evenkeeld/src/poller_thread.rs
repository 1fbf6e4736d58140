//! The thread around a poller: mail, sleep, and the answers that must wait for the drive.

use std::collections::VecDeque;
use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use config::Mode;
use io_model::{Backend, Nanos, WrrWeights};
use policy::{AnyPolicy, Policy};
use poller::{INTERVAL, Poller, TenantSlot};
use vfio_user::{Reply, ReplyTo, Request, ServerHandle, Session};

use crate::clock::Clock;
use crate::disk::{DiskQueues, Order, Pending};
use crate::doorman::{Doorman, Watch};
use crate::drive::SetWeights;
use crate::patrol::{Doorbells, Patrol};
use crate::served::Served;

/// How often a running poller looks for clients whose memory went away.
const HEALTH_PERIOD: Nanos = Nanos::from_millis(50);

/// A drive that has not answered for this long at shutdown is given up.
const DRAIN_LIMIT: Nanos = Nanos::from_millis(10_000);

/// Why a client is cut off.
const POISONED: &str = "the client shrank a file that it had shared as memory";

/// The kernel takes no timer that ends beyond its clock.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// What the control thread tells a poller.
pub enum Mail {
    /// A client attached to the device.
    Connected(TenantSlot, Session),
    /// A client's request to one of the poller's devices.
    Request(TenantSlot, Request, ReplyTo),
    /// The device's client is gone.
    Disconnected(TenantSlot),
    /// What the client of a disk wants.
    Disk(TenantSlot, Order),
    /// Finish what is in flight and end.
    Drain,
}

impl Mail {
    /// The device that it is about.
    fn tenant(&self) -> Option<TenantSlot> {
        match self {
            Self::Connected(tenant, _)
            | Self::Request(tenant, ..)
            | Self::Disconnected(tenant)
            | Self::Disk(tenant, _) => Some(*tenant),
            Self::Drain => None,
        }
    }
}

/// How a poller's thread behaves.
#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// When to sleep.
    pub mode: Mode,
    /// Sleep after this long without I/O, unless the mode says otherwise.
    pub idle_after: Nanos,
    /// While asleep, look this often for requests that nobody announces.
    pub patrol: Nanos,
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

    /// Has whoever writes to an eventfd wake the poller, until the [`Watch`] is dropped. See [`Doorman::watch`].
    pub fn watch(&self, fd: OwnedFd) -> std::io::Result<Watch> {
        self.doorman.watch(fd)
    }
}

/// What the names of pollers' threads begin with.
pub const NAME_PREFIX: &str = "poller-";

/// A poller's thread; ends after [`Mail::Drain`], saying how many commands were still in flight.
pub type Thread = JoinHandle<u32>;

/// Starts a thread for `poller`, which is the daemon's `number`th.
pub fn start<B: Backend + Send + 'static>(
    number: usize,
    poller: Poller<Served, B, AnyPolicy>,
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
        unchecked: false,
        drive_watch: None,
        next_weights: Nanos(0),
    };
    let thread = std::thread::Builder::new().name(format!("{NAME_PREFIX}{number}")).spawn(move || runner.run())?;
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
    /// For commands in flight of a disk.
    Disk(TenantSlot, Pending),
}

impl Waiting {
    fn tenant(&self) -> TenantSlot {
        match self {
            Self::Unmap(tenant, ..) | Self::Reset(tenant, _) | Self::Gone(tenant) | Self::Disk(tenant, _) => *tenant,
        }
    }
}

fn answer(server: &ServerHandle, waiting: Waiting) {
    match waiting {
        Waiting::Unmap(_, _, reply_to) | Waiting::Reset(_, reply_to) => server.reply(reply_to, Reply::Done),
        // A disk answers for itself.
        Waiting::Gone(_) | Waiting::Disk(..) => {}
    }
}

struct Runner<B> {
    number: usize,
    poller: Poller<Served, B, AnyPolicy>,
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

impl<B: Backend> Runner<B> {
    fn run(mut self) -> u32 {
        if let Some(cpu) = self.manners.cpu {
            pin(cpu);
        }
        // A timer may be a modelled drive's: 50 µs late, as the kernel likes it, would be as long as the drive takes.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        self.drive_watch = self.watch_drive();
        loop {
            if self.doorman.take_mail() && self.read_mail() {
                return self.drain();
            }
            let now = self.clock.now();
            let progress = self.poller.step(now);
            if !self.waiting.is_empty() {
                self.settle();
            }
            self.unchecked = true;
            self.check_health(now);
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
                if let Some(device) = self.poller.source_mut(tenant).and_then(Served::nvme) {
                    device.client_here(session);
                }
            }
            Mail::Request(tenant, request, reply_to) => self.request(tenant, request, reply_to),
            Mail::Disconnected(tenant) => {
                if let Some(device) = self.poller.source_mut(tenant).and_then(Served::nvme) {
                    device.client_gone();
                    self.waiting.push(Waiting::Gone(tenant));
                }
            }
            Mail::Disk(tenant, order) => {
                let disk = self.poller.source_mut(tenant).and_then(Served::disk);
                let pending = disk.and_then(|disk| disk.order(order));
                self.waiting.extend(pending.map(|pending| Waiting::Disk(tenant, pending)));
            }
            Mail::Drain => {}
        }
    }

    fn request(&mut self, tenant: TenantSlot, request: Request, reply_to: ReplyTo) {
        let Some(device) = self.poller.source_mut(tenant).and_then(Served::nvme) else { return };
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
        for (tenant, served) in self.poller.sources_mut() {
            let Some(device) = served.nvme() else { continue };
            while let Some(quiet) = device.take_unmapped() {
                let told = |waiting: &Waiting| matches!(waiting, Waiting::Unmap(of, range, _) if *of == tenant && *range == Some(quiet));
                if let Some(at) = self.waiting.iter().position(told) {
                    answer(&self.server, self.waiting.remove(at));
                }
            }
        }
        let mut at = 0;
        while let Some(waiting) = self.waiting.get(at) {
            let Some(served) = self.poller.source_mut(waiting.tenant()) else { return };
            let over = match (waiting, served) {
                (Waiting::Unmap(_, None, _), Served::Nvme(device)) => !device.is_unmapping(),
                (Waiting::Reset(..), Served::Nvme(device)) => device.is_idle(),
                (Waiting::Gone(_), Served::Nvme(device)) => device.is_idle() && !device.is_unmapping(),
                (Waiting::Disk(_, pending), Served::Disk(disk)) => disk.settle(pending),
                _ => false,
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

    /// Now and then says what stopped a disk, and ends the connection of clients that took memory away from under us (see
    /// `guest_memory::sigbus`).
    /// That shows only when the memory is used: a poller that sleeps checks once more after it was last awake, and
    /// then sleeps on.
    fn check_health(&mut self, now: Nanos) {
        if now < self.next_health {
            return;
        }
        self.next_health = now + HEALTH_PERIOD;
        self.unchecked = false;
        for (_, served) in self.poller.sources_mut() {
            match served {
                Served::Nvme(device) => {
                    if let Some(session) = device.poisoned_session() {
                        self.server.disconnect(session, POISONED);
                    }
                }
                Served::Disk(disk) => {
                    disk.cut_off_poisoned(POISONED);
                    disk.report_fault();
                }
            }
        }
    }

    /// After an empty iteration: sleep, give way, or spin.
    fn rest(&mut self, now: Nanos) {
        if self.may_sleep(now) {
            self.sleep();
        } else if self.manners.yields {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    fn may_sleep(&mut self, now: Nanos) -> bool {
        let idle = now - self.poller.last_progress() > self.manners.idle_after;
        self.waiting.is_empty()
            && self.wakes_in_time()
            && match self.manners.mode {
                Mode::Event => true,
                Mode::Adaptive => idle,
                Mode::Polling => idle && !self.poller.sources_mut().any(|(_, served)| served.has_client()),
            }
    }

    /// When to look for requests of clients that never kick. They must not keep us from sleeping.
    fn next_look(&mut self, now: Nanos) -> Nanos {
        let polled = self.poller.sources_mut().any(|(_, served)| served.disk().is_some_and(|disk| disk.is_polled()));
        if polled { now + self.manners.patrol } else { Nanos::MAX }
    }

    /// Whether nothing is in flight, or what is would end a sleep.
    fn wakes_in_time(&self) -> bool {
        self.poller.inflight() == 0
            || self.manners.mode == Mode::Event
                && (self.drive_watch.is_some() || self.poller.backend().next_event().is_some())
    }

    /// For a poller that sleeps while commands are in flight. `None`: this drive can't wake it, so it spins or keeps
    /// to the drive's own forecast.
    fn watch_drive(&mut self) -> Option<Watch> {
        if self.manners.mode != Mode::Event {
            return None;
        }
        let fd = self.poller.backend_mut().wake_fd()?.try_clone_to_owned().ok()?;
        self.doorman.watch(fd).ok()
    }

    /// Sleeps until there is something to do: mail, a kick, a completion, a trapped doorbell, a mapped one that the
    /// patrol saw.
    fn sleep(&mut self) {
        self.poller.set_wakeup(true);
        self.doorman.lie_down();
        loop {
            let now = self.clock.now();
            if self.doorman.has_mail() || self.poller.step(now).any() || !self.wakes_in_time() {
                break;
            }
            self.check_health(now);
            let mut doorbells = Doorbells::new();
            self.poller
                .sources_mut()
                .filter_map(|(_, served)| served.nvme())
                .for_each(|device| device.doorbells(&mut doorbells));
            let patrolled = !doorbells.is_empty();
            if patrolled {
                self.patrol.watch(self.number, &self.doorman, doorbells);
            }
            let health = if self.unchecked { self.next_health } else { Nanos::MAX };
            let next = self.poller.next_timer().min(health).min(self.next_look(now));
            let timer = Duration::from_nanos((next - now).0);
            self.unchecked |= self.doorman.sleep(Some(timer.min(LONGEST_SLEEP)));
            if patrolled {
                self.patrol.forget(self.number);
            }
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
        self.poller.sources_mut().filter_map(|(_, served)| served.disk()).for_each(DiskQueues::let_go);
        self.poller.inflight()
    }
}

fn pin(cpu: u32) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu as usize);
    if let Err(errno) = rustix::thread::sched_setaffinity(None, &set) {
        // Not eprintln: it panics where standard error can't be written.
        let _ = writeln!(std::io::stderr(), "evenkeeld: can't run a poller on CPU {cpu}: {errno}; it runs anywhere");
    }
}
