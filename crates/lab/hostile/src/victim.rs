//! A tenant's client that verifies what it reads and measures how long it waits.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use load::disk::{Disk, DiskQueue, QueueShape, Request};
use load::verify::Verifier;
use load::{AnyDisk, AnyQueue, Direction, Frontend};

use crate::vm::Vm;

/// Data is stamped in units of this size; a command moves one to four.
const UNIT_BYTES: u64 = 4096;
const MAX_UNITS: u64 = 4;
/// The most that a command moves.
pub const MAX_BYTES: u64 = MAX_UNITS * UNIT_BYTES;
/// The part of the disk that is used: small, so that what was written is soon read.
const RANGE_BYTES: u64 = 8 << 20;
/// How long commands in flight may take once nothing new is sent.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// How long a daemon may take to be back.
const RESTART_LIMIT: Duration = Duration::from_secs(30);

/// What a victim does.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The tenant.
    pub name: &'static str,
    /// The tenant's directory.
    pub directory: PathBuf,
    /// Commands in flight.
    pub depth: u16,
    /// Between a completion and the next command.
    pub pause: Duration,
    /// Of what is written where.
    pub seed: u64,
}

/// What a victim saw in a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Commands that completed.
    pub commands: u64,
    /// The longest that one took, or is taking.
    pub longest: Duration,
}

/// The daemon's life, as far as its clients excuse it.
#[derive(Debug, Default)]
pub struct Life {
    /// Restarts so far: a client whose daemon is another one attaches anew.
    pub(crate) epoch: AtomicU32,
    is_down: AtomicBool,
}

impl Life {
    /// The daemon is about to be killed: nobody measures how long it takes to answer.
    pub fn ends(&self) {
        self.is_down.store(true, Relaxed);
    }

    /// Another daemon serves.
    pub fn begins_anew(&self) {
        self.epoch.fetch_add(1, Relaxed);
        self.is_down.store(false, Relaxed);
    }

    /// Which daemon is up, if one is.
    pub(crate) fn up(&self) -> Option<u32> {
        let epoch = self.epoch.load(Relaxed);
        (!self.is_down.load(Relaxed)).then_some(epoch)
    }
}

/// What a victim and its owner share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    life: Arc<Life>,
    commands: AtomicU64,
    longest_ns: AtomicU64,
    problems: Mutex<Vec<String>>,
}

impl Shared {
    /// A command that `epoch`'s daemon got took until now at least.
    fn waited(&self, since: Instant, epoch: u32) {
        if self.life.up() != Some(epoch) {
            return;
        }
        self.longest_ns.fetch_max(since.elapsed().as_nanos() as u64, Relaxed);
    }

    fn problem(&self, text: String) {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// A victim at work.
pub struct Victim {
    /// The tenant.
    pub name: &'static str,
    shared: Arc<Shared>,
    thread: JoinHandle<u64>,
}

impl Victim {
    /// Attaches and starts. When another daemon's `life` begins the victim attaches to that, and what was acknowledged
    /// before must be there.
    ///
    /// # Errors
    /// It can't attach.
    pub fn start(plan: Plan, life: Arc<Life>) -> Result<Self> {
        Self::start_on(Attached::to, plan, life)
    }

    /// As [`Victim::start`], over vhost-user alone: goes on with its ring, and what was in flight completes, as a VM
    /// does.
    ///
    /// # Errors
    /// It can't attach.
    pub fn start_vm(plan: Plan, life: Arc<Life>) -> Result<Self> {
        Self::start_on(Vm::attach, plan, life)
    }

    /// As [`Victim::start`], over what `attach` makes.
    ///
    /// # Errors
    /// It can't attach.
    pub fn start_on<L: Lane>(attach: fn(&Plan) -> Result<L>, plan: Plan, life: Arc<Life>) -> Result<Self> {
        let (name, shared) = (plan.name, Arc::new(Shared { life, ..Shared::default() }));
        let work = Work::attach(attach, plan, Arc::clone(&shared))?;
        let thread = std::thread::Builder::new().name(format!("victim-{name}")).spawn(move || work.run())?;
        Ok(Self { name, shared, thread })
    }

    /// Since the last time that this was asked.
    pub fn take_figures(&self) -> Figures {
        let longest = Duration::from_nanos(self.shared.longest_ns.swap(0, Relaxed));
        Figures { commands: self.shared.commands.swap(0, Relaxed), longest }
    }

    /// Whether it ended by itself, which is a problem.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Completes what is in flight, reads back all that is known, and says how many units were checked and what was
    /// wrong.
    pub fn stop(self) -> (u64, Vec<String>) {
        self.shared.stop.store(true, Relaxed);
        let checked = self.thread.join().unwrap_or_else(|_| {
            self.shared.problem("its thread panicked".into());
            0
        });
        let problems = std::mem::take(&mut *self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner));
        (checked, problems)
    }
}

/// A command in flight.
#[derive(Clone, Copy)]
pub struct Flight {
    start: Instant,
    offset_bytes: u64,
    len_bytes: u64,
    /// Of a write.
    generation: Option<u32>,
}

/// A connection with one queue, whose commands have tags below the plan's depth and a buffer each.
pub trait Lane: Send + 'static {
    /// The tag of the next command; `None`: the queue is full.
    fn next_tag(&self, flights: &[Option<Flight>]) -> Option<u16> {
        flights.iter().position(Option::is_none).map(|tag| tag as u16)
    }

    /// Sends a write of `data`, or a read, without ringing.
    fn send(&mut self, tag: u16, offset_bytes: u64, len_bytes: u64, data: Option<&[u8]>) -> Result<()>;

    /// Rings.
    fn ring(&mut self) -> Result<()>;

    /// Takes what completed.
    fn take_done(&mut self) -> Result<Vec<(u16, Result<()>)>>;

    /// What a read brought.
    fn data(&self, tag: u16, out: &mut [u8]) -> Result<()>;

    /// Attaches to the next daemon. `true`: what was in flight completes there.
    fn attach_again(&mut self, plan: &Plan) -> Result<bool>;
}

/// An ordinary client, whose commands in flight end with the daemon.
struct Attached {
    // The queue goes before the disk does.
    queue: AnyQueue,
    _disk: AnyDisk,
}

impl Attached {
    fn to(plan: &Plan) -> Result<Self> {
        let mut disk = AnyDisk::attach(&plan.directory, Frontend::Auto)?;
        let shape = QueueShape { depth: plan.depth, buffer_bytes: MAX_BYTES, priority: None };
        let queue = disk.open_queues(&[shape])?.pop().ok_or_else(|| anyhow!("no queue"))?;
        Ok(Self { queue, _disk: disk })
    }
}

impl Lane for Attached {
    fn next_tag(&self, _flights: &[Option<Flight>]) -> Option<u16> {
        self.queue.next_tag()
    }

    fn send(&mut self, tag: u16, offset_bytes: u64, len_bytes: u64, data: Option<&[u8]>) -> Result<()> {
        let direction = if data.is_some() { Direction::Write } else { Direction::Read };
        data.into_iter().for_each(|data| _ = self.queue.buffers().write(tag, data));
        Ok(self.queue.send(Request { direction, offset_bytes, len_bytes, durable: false })?)
    }

    fn ring(&mut self) -> Result<()> {
        Ok(self.queue.ring()?)
    }

    fn take_done(&mut self) -> Result<Vec<(u16, Result<()>)>> {
        let mut done = Vec::new();
        self.queue.poll(&mut |one| done.push((one.tag, one.outcome.map_err(|failure| anyhow!("{failure}")))))?;
        Ok(done)
    }

    fn data(&self, tag: u16, out: &mut [u8]) -> Result<()> {
        self.queue.buffers().read(tag, out).ok_or_else(|| anyhow!("the buffer is too small"))
    }

    fn attach_again(&mut self, plan: &Plan) -> Result<bool> {
        *self = Self::to(plan)?;
        Ok(false)
    }
}

struct Work<L> {
    plan: Plan,
    shared: Arc<Shared>,
    epoch: u32,
    random: fastrand::Rng,
    verifier: Verifier,
    flights: Vec<Option<Flight>>,
    lane: L,
}

impl<L: Lane> Work<L> {
    fn attach(attach: fn(&Plan) -> Result<L>, plan: Plan, shared: Arc<Shared>) -> Result<Self> {
        let epoch = shared.life.epoch.load(Relaxed);
        let lane = attach(&plan)?;
        let verifier = Verifier::new(plan.seed, UNIT_BYTES, 0, RANGE_BYTES, false);
        let flights = vec![None; plan.depth.into()];
        let random = fastrand::Rng::with_seed(plan.seed);
        Ok(Self { plan, shared, epoch, random, verifier, flights, lane })
    }

    /// Returns how many units were checked.
    fn run(mut self) -> u64 {
        while !self.shared.stop.load(Relaxed) {
            if let Err(error) = self.turn() {
                self.shared.problem(format!("{error:#}"));
                return self.verifier.checked_units;
            }
        }
        if let Err(error) = self.drain().and_then(|()| self.read_all()) {
            self.shared.problem(format!("at its end: {error:#}"));
        }
        let bad = self.verifier.mismatch_count;
        if bad > 0 {
            self.shared
                .problem(format!("{bad} units are not what was written, the first: {}", self.verifier.mismatches[0]));
        }
        self.verifier.checked_units
    }

    /// Sends what can be sent and takes what completed.
    fn turn(&mut self) -> Result<()> {
        if self.epoch != self.shared.life.epoch.load(Relaxed) {
            self.attach_again()?;
        }
        let done = self.fill().and_then(|()| self.reap());
        match done {
            Ok(0) => std::thread::sleep(Duration::from_micros(100)),
            Ok(_) => std::thread::sleep(self.plan.pause),
            Err(_) if self.new_epoch_within() => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn new_epoch_within(&self) -> bool {
        let start = Instant::now();
        // Told before it was killed, or soon after the connection was seen to be gone.
        while start.elapsed() < Duration::from_millis(100)
            || (self.shared.life.up().is_none() && start.elapsed() < RESTART_LIMIT)
        {
            if self.epoch != self.shared.life.epoch.load(Relaxed) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    fn fill(&mut self) -> Result<()> {
        while self.lane.next_tag(&self.flights).is_some() {
            let units = self.random.u64(1..=MAX_UNITS);
            let offset_bytes = self.random.u64(0..=RANGE_BYTES / UNIT_BYTES - units) * UNIT_BYTES;
            let is_write = self.random.bool();
            self.send(is_write, offset_bytes, units * UNIT_BYTES)?;
        }
        self.lane.ring()
    }

    /// Sends a command, unless another one is in its way.
    fn send(&mut self, is_write: bool, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        let tag = self.lane.next_tag(&self.flights).ok_or_else(|| anyhow!("the queue is full"))?;
        if !self.verifier.claim(offset_bytes, len_bytes, is_write) {
            return Ok(());
        }
        let mut data = is_write.then(|| vec![0; len_bytes as usize]);
        let generation = data.as_mut().map(|data| self.verifier.stamp(offset_bytes, data));
        self.flights[usize::from(tag)] = Some(Flight { start: Instant::now(), offset_bytes, len_bytes, generation });
        self.lane.send(tag, offset_bytes, len_bytes, data.as_deref())
    }

    /// Takes what completed; returns how many commands that were.
    fn reap(&mut self) -> Result<usize> {
        let done = self.lane.take_done()?;
        let count = done.len();
        for (tag, outcome) in done {
            let flight = self.flights.get_mut(usize::from(tag)).and_then(Option::take);
            self.completed(tag, outcome, flight.ok_or_else(|| anyhow!("a stray completion"))?)?;
        }
        self.flights.iter().flatten().for_each(|flight| self.shared.waited(flight.start, self.epoch));
        Ok(count)
    }

    fn completed(&mut self, tag: u16, outcome: Result<()>, flight: Flight) -> Result<()> {
        let Flight { start, offset_bytes, len_bytes, generation } = flight;
        self.shared.waited(start, self.epoch);
        self.shared.commands.fetch_add(1, Relaxed);
        outcome.context("a command failed")?;
        if generation.is_some() {
            self.verifier.written(offset_bytes, len_bytes, generation);
        } else {
            let mut data = vec![0; len_bytes as usize];
            self.lane.data(tag, &mut data)?;
            self.verifier.was_read(offset_bytes, len_bytes, Some(&data));
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        let start = Instant::now();
        while self.flights.iter().any(Option::is_some) {
            if self.reap()? == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
            if start.elapsed() > DRAIN_LIMIT {
                return Err(anyhow!("{} commands never completed", self.flights.iter().flatten().count()));
            }
        }
        Ok(())
    }

    /// Reads everything of which something is known.
    fn read_all(&mut self) -> Result<()> {
        for offset_bytes in (0..RANGE_BYTES).step_by(MAX_BYTES as usize) {
            if self.lane.next_tag(&self.flights).is_none() {
                self.drain()?;
            }
            self.send(false, offset_bytes, MAX_BYTES)?;
            self.lane.ring()?;
        }
        self.drain()
    }

    /// To the next daemon. Nobody measures how long it took to be there.
    fn attach_again(&mut self) -> Result<()> {
        self.epoch = self.shared.life.epoch.load(Relaxed);
        let start = Instant::now();
        let goes_on = loop {
            match self.lane.attach_again(&self.plan) {
                Ok(goes_on) => break goes_on,
                Err(error) if start.elapsed() > RESTART_LIMIT => return Err(error.context("after a restart")),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        if goes_on {
            self.flights.iter_mut().flatten().for_each(|flight| flight.start = Instant::now());
            return Ok(());
        }
        // What was in flight may have happened or not.
        for flight in self.flights.iter_mut().filter_map(Option::take) {
            match flight.generation {
                Some(generation) => self.verifier.unsettled(flight.offset_bytes, flight.len_bytes, generation),
                None => self.verifier.was_read(flight.offset_bytes, flight.len_bytes, None),
            }
        }
        Ok(())
    }
}
