//! The guests' CPUs: each does one thing after another, completions before submissions.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::host::{GuestCosts, PathCosts};
use crate::job::{Action, Job, Shape};
use crate::lock::Spinlock;
use crate::measure::Tally;
use crate::port::{Io, Port, latency};

/// What a vCPU is busy with.
#[derive(Debug, Clone, Copy)]
enum Item {
    /// Until the doorbell.
    Submit { job: u32, shape: Shape, since_ns: u64 },
    /// Holding the host's or the VQ's lock before the doorbell.
    LockedSubmit { job: u32, shape: Shape, since_ns: u64 },
    /// Exiting to ring so that the host hears it.
    Kick,
    /// The exit waits for the global mutex or holds it.
    LockedKick,
    /// Until the application knows.
    Complete(Io),
    /// Holding the host's or the VQ's lock for a completion that the application knows of already: Linux ends the I/O
    /// first and its scheduler's request after that.
    LockedComplete,
}

struct Vcpu {
    /// The VQ that it submits to.
    vq: u16,
    item: Option<Item>,
    /// The time of its next turn. `u64::MAX`: when it is poked.
    wake_ns: u64,
    /// Jobs that may have something to submit, each once.
    ready: VecDeque<u32>,
    in_interrupt: bool,
    /// Until then its CPU does something else.
    stolen_until_ns: u64,
}

impl Vcpu {
    /// It should look at its queue at `at_ns`. `vcpu` is its own number.
    fn poke(&mut self, vcpu: u16, at_ns: u64, asks: &mut Vec<Ask>) {
        let at_ns = at_ns.max(self.stolen_until_ns);
        if self.item.is_none() && at_ns < self.wake_ns {
            self.wake_ns = at_ns;
            asks.push(Ask::Turn { vcpu, at_ns });
        }
    }
}

struct Thread {
    job: Box<dyn Job>,
    vcpu: u16,
    queued: bool,
    timer_ns: u64,
}

/// A turn's requests to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Another turn of this vCPU.
    Turn { vcpu: u16, at_ns: u64 },
    /// A look at this thread.
    Timer { thread: u32, at_ns: u64 },
    /// A VQ's doorbell rang; `heard`: by an exit, which wakes who sleeps.
    Ring { vq: u16, heard: bool },
    /// This vCPU wants the global mutex …
    Lock { vcpu: u16 },
    /// … or lets it go.
    Release,
}

/// Draws durations around a mean.
struct Jitter {
    rng: fastrand::Rng,
    /// Of the exponential distribution with mean 1, in 1/1024.
    quantiles: [u32; 256],
    varies_permille: u64,
}

impl Jitter {
    fn new(varies_permille: u64, seed: u64) -> Self {
        let quantile = |at: usize| (-(1.0 - (at as f64 + 0.5) / 256.0).ln() * 1024.0) as u32;
        let quantiles = std::array::from_fn(quantile);
        Self { rng: fastrand::Rng::with_seed(seed), quantiles, varies_permille: varies_permille.min(1000) }
    }

    fn around(&mut self, mean_ns: u64) -> u64 {
        if self.varies_permille == 0 {
            return mean_ns;
        }
        let varying_ns = mean_ns * self.varies_permille / 1000;
        let factor = u64::from(self.quantiles[usize::from(self.rng.u8(..))]);
        mean_ns - varying_ns + ((varying_ns * factor) >> 10)
    }
}

/// One tenant's guest.
pub(crate) struct Guest {
    pub(crate) port: Rc<RefCell<Port>>,
    costs: GuestCosts,
    kick_ns: u64,
    /// Whether exits take the global mutex.
    takes_mutex: bool,
    /// Each VQ's lock.
    rings: Vec<Spinlock>,
    jitter: Jitter,
    vcpus: Vec<Vcpu>,
    threads: Vec<Thread>,
    pub(crate) tally: Tally,
    /// Completions from then on count.
    pub(crate) measure_from_ns: u64,
    pub(crate) target_ns: u64,
    /// Ended I/Os, measured or not.
    pub(crate) ios: u64,
    /// It is gone, or not there yet.
    pub(crate) stopped: bool,
    /// It will come.
    pub(crate) awaited: bool,
}

impl Guest {
    pub(crate) fn new(
        port: Port,
        costs: GuestCosts,
        path: &PathCosts,
        jobs: Vec<Box<dyn Job>>,
        tally: Tally,
        seed: u64,
    ) -> Self {
        let vcpu = |&vq: &u16| Vcpu {
            vq,
            item: None,
            wake_ns: u64::MAX,
            ready: VecDeque::new(),
            in_interrupt: false,
            stolen_until_ns: 0,
        };
        let vcpus: Vec<Vcpu> = port.vqs_of_vcpus().iter().map(vcpu).collect();
        let jobs = jobs.into_iter().enumerate();
        Self {
            costs,
            kick_ns: path.kick_ns,
            takes_mutex: path.mutex.hold_ns > 0,
            rings: port.doorbells.iter().map(|_| Spinlock::new(path.ring)).collect(),
            jitter: Jitter::new(costs.varies_permille, seed),
            threads: jobs
                .map(|(at, job)| Thread { job, vcpu: (at % vcpus.len()) as u16, queued: false, timer_ns: 0 })
                .collect(),
            vcpus,
            port: Rc::new(RefCell::new(port)),
            tally,
            measure_from_ns: 0,
            target_ns: u64::MAX,
            ios: 0,
            stopped: false,
            awaited: false,
        }
    }

    /// More threads, spread over its vCPUs; [`ready`](Self::ready) starts them.
    pub(crate) fn add_threads(&mut self, jobs: Vec<Box<dyn Job>>) {
        for job in jobs {
            let vcpu = (self.threads.len() % self.vcpus.len()) as u16;
            self.threads.push(Thread { job, vcpu, queued: false, timer_ns: 0 });
        }
    }

    pub(crate) fn threads(&self) -> u32 {
        self.threads.len() as u32
    }

    /// Takes the interrupts that were raised. `false`: there are none.
    pub(crate) fn interrupt(&mut self, asks: &mut Vec<Ask>) -> bool {
        let raised = &mut self.port.borrow_mut().raised;
        let any = !raised.is_empty();
        for (vcpu, at_ns) in raised.drain(..) {
            self.vcpus[usize::from(vcpu)].poke(vcpu, at_ns, asks);
        }
        any
    }

    /// A thread may have something to do: it just started, its time came, or an I/O of it ended.
    pub(crate) fn ready(&mut self, thread: u32, now_ns: u64, asks: &mut Vec<Ask>) {
        let place = &mut self.threads[thread as usize];
        if !std::mem::replace(&mut place.queued, true) {
            let vcpu = place.vcpu;
            let cpu = &mut self.vcpus[usize::from(vcpu)];
            cpu.ready.push_back(thread);
            cpu.poke(vcpu, now_ns, asks);
        }
    }

    /// A thread's timer rang; an old one does not count.
    pub(crate) fn timer(&mut self, thread: u32, now_ns: u64, asks: &mut Vec<Ask>) {
        if self.threads[thread as usize].timer_ns == now_ns {
            self.ready(thread, now_ns, asks);
        }
    }

    /// A vCPU has the global mutex, until `until_ns`.
    pub(crate) fn granted(&mut self, vcpu: u16, until_ns: u64) {
        self.vcpus[usize::from(vcpu)].wake_ns = until_ns;
    }

    /// A vCPU's CPU does something else for so long. When its next turn is now, if that changed.
    pub(crate) fn steal(&mut self, vcpu: u16, now_ns: u64, until_ns: u64) -> Option<u64> {
        let cpu = self.vcpus.get_mut(usize::from(vcpu))?;
        cpu.stolen_until_ns = until_ns;
        if cpu.wake_ns == u64::MAX {
            return None;
        }
        let turn_ns = if cpu.item.is_some() { cpu.wake_ns + (until_ns - now_ns) } else { cpu.wake_ns.max(until_ns) };
        (turn_ns != std::mem::replace(&mut cpu.wake_ns, turn_ns)).then_some(turn_ns)
    }

    /// A turn of a vCPU: ends what it was busy with, starts the next thing.
    pub(crate) fn turn(&mut self, vcpu: u16, now_ns: u64, lock: &mut Spinlock, asks: &mut Vec<Ask>) {
        let at = usize::from(vcpu);
        if self.vcpus[at].wake_ns != now_ns {
            return;
        }
        // Within the turn nobody needs to poke it: it looks at everything before it ends.
        self.vcpus[at].wake_ns = 0;
        let ended = self.vcpus[at].item.take();
        let next = match ended {
            Some(item) => self.end(vcpu, item, now_ns, lock, asks),
            None => None,
        };
        if let Some((item, until_ns)) = next.or_else(|| self.start(vcpu, now_ns, asks)) {
            self.vcpus[at].item = Some(item);
            self.vcpus[at].wake_ns = until_ns;
            if until_ns != u64::MAX {
                asks.push(Ask::Turn { vcpu, at_ns: until_ns });
            }
            return;
        }
        self.vcpus[at].wake_ns = u64::MAX;
        let posted = self.port.borrow().done[at].front().copied();
        if let Some((at_ns, _)) = posted {
            self.vcpus[at].poke(vcpu, at_ns, asks);
        }
    }

    /// Ends one activity. It may lead straight to another, which ends at a known time or, at `u64::MAX`, when it is
    /// told to.
    fn end(
        &mut self,
        vcpu: u16,
        item: Item,
        now_ns: u64,
        lock: &mut Spinlock,
        asks: &mut Vec<Ask>,
    ) -> Option<(Item, u64)> {
        let vq = self.vcpus[usize::from(vcpu)].vq;
        let lock = if lock.is_there() { lock } else { &mut self.rings[usize::from(vq)] };
        match item {
            Item::Submit { job, shape, since_ns } if lock.is_there() => {
                return Some((Item::LockedSubmit { job, shape, since_ns }, lock.pass(now_ns)));
            }
            Item::Submit { job, shape, since_ns } | Item::LockedSubmit { job, shape, since_ns } => {
                let mut port = self.port.borrow_mut();
                port.submit(vcpu, job, shape, since_ns);
                if port.doorbells[usize::from(vq)].take_exit(now_ns) {
                    return Some((Item::Kick, now_ns + self.kick_ns));
                }
                asks.push(Ask::Ring { vq, heard: false });
            }
            Item::Kick if self.takes_mutex => {
                asks.push(Ask::Lock { vcpu });
                return Some((Item::LockedKick, u64::MAX));
            }
            Item::Kick => asks.push(Ask::Ring { vq, heard: true }),
            Item::LockedKick => asks.extend([Ask::Ring { vq, heard: true }, Ask::Release]),
            Item::Complete(io) => {
                let locked_until_ns = lock.is_there().then(|| lock.pass(now_ns));
                self.ended(&io, now_ns, asks);
                return locked_until_ns.map(|until_ns| (Item::LockedComplete, until_ns));
            }
            Item::LockedComplete => {}
        }
        None
    }

    fn ended(&mut self, io: &Io, now_ns: u64, asks: &mut Vec<Ask>) {
        let took = latency(io, now_ns);
        self.ios += 1;
        let measured = now_ns >= self.measure_from_ns && !self.stopped;
        if measured {
            self.tally.io(&io.shape, took, self.target_ns, io.outcome.is_err(), now_ns);
            self.tally.over_bound += u64::from(io.served_ns() > io.bound_ns);
        }
        let thread = &mut self.threads[io.job as usize];
        if io.outcome.is_err() {
            thread.job.failed();
        }
        thread.job.completed(&io.shape, took, io_model::Nanos(now_ns));
        self.follow(io.job, now_ns);
        self.ready(io.job, now_ns, asks);
    }

    /// Takes the operations that ended in a thread's last call.
    fn follow(&mut self, thread: u32, now_ns: u64) {
        while let Some(operation) = self.threads[thread as usize].job.take_operation() {
            if now_ns >= self.measure_from_ns && !self.stopped {
                self.tally.operation(operation);
            }
        }
    }

    /// Finds the next thing to do and when it will be over.
    fn start(&mut self, vcpu: u16, now_ns: u64, asks: &mut Vec<Ask>) -> Option<(Item, u64)> {
        let at = usize::from(vcpu);
        if let Some(io) = self.port.borrow_mut().take_done(vcpu, now_ns) {
            let entry_ns = if self.vcpus[at].in_interrupt { 0 } else { self.costs.irq_ns };
            self.vcpus[at].in_interrupt = true;
            let takes_ns = self.jitter.around(self.costs.complete_ns);
            return Some((Item::Complete(io), now_ns + entry_ns + takes_ns));
        }
        self.vcpus[at].in_interrupt = false;
        if self.stopped {
            return None;
        }
        while self.port.borrow().has_room(vcpu)
            && let Some(thread) = self.vcpus[at].ready.pop_front()
        {
            if let Some((shape, since)) = self.ask(thread, now_ns, asks) {
                self.vcpus[at].ready.push_back(thread);
                let rings_ns = now_ns + self.jitter.around(self.costs.app_ns);
                let since_ns = since.unwrap_or(rings_ns);
                let write_ns = if shape.op == io_model::Op::Write { self.costs.write_ns } else { 0 };
                let item = Item::Submit { job: thread, shape, since_ns };
                return Some((item, rings_ns + self.costs.submit_ns + write_ns));
            }
        }
        None
    }

    /// Asks a thread for its next I/O.
    fn ask(&mut self, thread: u32, now_ns: u64, asks: &mut Vec<Ask>) -> Option<(Shape, Option<u64>)> {
        let action = self.threads[thread as usize].job.next(io_model::Nanos(now_ns));
        self.follow(thread, now_ns);
        let place = &mut self.threads[thread as usize];
        match action {
            Action::Submit { shape, since } => return Some((shape, since.map(|since| since.0))),
            Action::WaitUntil(at) => {
                // A time that has come is asked for again at the next nanosecond, so that time goes on.
                let at_ns = at.0.max(now_ns + 1);
                if place.timer_ns != at_ns {
                    place.timer_ns = at_ns;
                    asks.push(Ask::Timer { thread, at_ns });
                }
            }
            Action::WaitCompletion | Action::Done => {}
        }
        place.queued = false;
        None
    }
}
