//! First writes of thin disks: to pieces of the pool that a disk does not have for itself yet.
//!
//! A first write waits before its tenant's queue, as in the daemon: no policy sees it meanwhile. It waits for a batch
//! of the pool's maps to become durable, and before that, if its piece is shared, for a copy. Copies are the work of a
//! tenant with [`Workload::Copy`](crate::workload::Workload::Copy), as the daemon's mover makes them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use fastrand::Rng;
use io_model::{Nanos, Op};

use crate::job::{Action, Job, Operation, Shape};

/// Copies at a time, and bytes of a command: the daemon's mover's.
const COPIES: usize = 4;
const CHUNK_BYTES: u64 = 128 << 10;

/// The first writes of a thin disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstWrites {
    /// Their part of the disk's writes, 0 to 1.
    pub share: f64,
    /// How long a batch of the pool's maps takes to become durable.
    pub map: Nanos,
    /// Their pieces are shared, and copied before. `None`: they are new.
    pub copies: Option<Copies>,
}

/// The copies that first writes wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copies {
    /// Bytes of a piece.
    pub piece_bytes: u64,
    /// The tenant that makes them: an index.
    pub by: usize,
}

/// A thread of a run: the tenant's index, and its own.
type Who = (u16, u32);

/// A copy that a command waits for.
struct Wanted {
    piece_bytes: u64,
    /// When the command may go on, once that is known.
    ready_ns: Rc<Cell<u64>>,
    map_ns: u64,
    who: Who,
}

/// What the thin disks of a run share.
#[derive(Default)]
pub(crate) struct Pool {
    /// The last batch of the maps that was begun, or will be.
    begins_ns: u64,
    ends_ns: u64,
    /// By the tenant that is to copy.
    wanted: BTreeMap<usize, VecDeque<Wanted>>,
    /// Threads that have something to do now.
    pub(crate) woken: Vec<Who>,
}

impl Pool {
    /// When the batch is durable that has what is asked for now. One is written at a time; the next one has all that
    /// comes meanwhile.
    fn durable_ns(&mut self, now_ns: u64, map_ns: u64) -> u64 {
        if now_ns >= self.begins_ns {
            self.begins_ns = self.ends_ns.max(now_ns);
            self.ends_ns = self.begins_ns + map_ns;
        }
        self.ends_ns
    }
}

/// A first write that waits.
struct Parked {
    ready_ns: Rc<Cell<u64>>,
    shape: Shape,
    since: Nanos,
}

/// A thread of a thin disk's guest.
pub(crate) struct ThinJob {
    inner: Box<dyn Job>,
    of: FirstWrites,
    who: Who,
    pool: Rc<RefCell<Pool>>,
    rng: Rng,
    parked: Vec<Parked>,
}

impl ThinJob {
    pub(crate) fn new(inner: Box<dyn Job>, of: FirstWrites, who: Who, pool: &Rc<RefCell<Pool>>, seed: u64) -> Self {
        Self { inner, of, who, pool: Rc::clone(pool), rng: Rng::with_seed(seed), parked: Vec::new() }
    }

    fn park(&mut self, shape: Shape, since: Nanos, now: Nanos) {
        let ready_ns = Rc::new(Cell::new(u64::MAX));
        let (mut pool, map_ns) = (self.pool.borrow_mut(), self.of.map.0);
        match self.of.copies {
            None => ready_ns.set(pool.durable_ns(now.0, map_ns)),
            Some(Copies { piece_bytes, by }) => {
                let wanted = Wanted { piece_bytes, ready_ns: Rc::clone(&ready_ns), map_ns, who: self.who };
                pool.wanted.entry(by).or_default().push_back(wanted);
                pool.woken.push((by as u16, 0));
            }
        }
        self.parked.push(Parked { ready_ns, shape, since });
    }
}

impl Job for ThinJob {
    fn next(&mut self, now: Nanos) -> Action {
        if let Some(at) = self.parked.iter().position(|parked| parked.ready_ns.get() <= now.0) {
            let Parked { shape, since, .. } = self.parked.remove(at);
            return Action::Submit { shape, since: Some(since) };
        }
        let until_ns = loop {
            match self.inner.next(now) {
                Action::Submit { shape, since } if shape.op == Op::Write && self.rng.f64() < self.of.share => {
                    self.park(shape, since.unwrap_or(now), now);
                }
                action @ Action::Submit { .. } => return action,
                Action::WaitUntil(at) => break at.0,
                Action::WaitCompletion | Action::Done => break u64::MAX,
            }
        };
        let ready_ns = self.parked.iter().map(|parked| parked.ready_ns.get()).min().unwrap_or(u64::MAX);
        match until_ns.min(ready_ns) {
            u64::MAX => Action::WaitCompletion,
            at_ns => Action::WaitUntil(Nanos(at_ns)),
        }
    }

    fn failed(&mut self) {
        self.inner.failed();
    }

    fn completed(&mut self, shape: &Shape, latency: Nanos, now: Nanos) {
        self.inner.completed(shape, latency, now);
    }

    fn take_operation(&mut self) -> Option<Operation> {
        self.inner.take_operation()
    }
}

/// The thread that copies: reads some pieces, writes them, flushes, and has the maps name them.
pub(crate) struct CopyJob {
    tenant: usize,
    disk_bytes: u64,
    pool: Rc<RefCell<Pool>>,
    rng: Rng,
    present: Vec<Wanted>,
    /// What is still to do with them, one phase after the other.
    phases: VecDeque<VecDeque<Shape>>,
    in_flight: u32,
}

impl CopyJob {
    pub(crate) fn new(tenant: usize, disk_bytes: u64, pool: &Rc<RefCell<Pool>>, seed: u64) -> Self {
        let (pool, rng) = (Rc::clone(pool), Rng::with_seed(seed));
        Self { tenant, disk_bytes, pool, rng, present: Vec::new(), phases: VecDeque::new(), in_flight: 0 }
    }

    fn begin(&mut self) {
        let mut pool = self.pool.borrow_mut();
        let Some(wanted) = pool.wanted.get_mut(&self.tenant) else { return };
        self.present.extend(wanted.drain(..wanted.len().min(COPIES)));
        if self.present.is_empty() {
            return;
        }
        for op in [Op::Read, Op::Write] {
            let mut phase = VecDeque::new();
            for Wanted { piece_bytes, .. } in &self.present {
                let start_bytes = self.rng.u64(..(self.disk_bytes / piece_bytes).max(1)) * piece_bytes;
                phase.extend((0..*piece_bytes).step_by(CHUNK_BYTES as usize).map(|at_bytes| {
                    let len_bytes = CHUNK_BYTES.min(piece_bytes - at_bytes) as u32;
                    Shape { op, offset_bytes: start_bytes + at_bytes, len_bytes }
                }));
            }
            self.phases.push_back(phase);
        }
        self.phases.push_back(VecDeque::from([Shape { op: Op::Flush, offset_bytes: 0, len_bytes: 0 }]));
    }

    fn end(&mut self, now: Nanos) {
        let mut pool = self.pool.borrow_mut();
        for Wanted { ready_ns, map_ns, who, .. } in self.present.drain(..) {
            ready_ns.set(pool.durable_ns(now.0, map_ns));
            pool.woken.push(who);
        }
    }
}

impl Job for CopyJob {
    fn next(&mut self, now: Nanos) -> Action {
        loop {
            match self.phases.front_mut() {
                Some(phase) => {
                    if let Some(shape) = phase.pop_front() {
                        self.in_flight += 1;
                        return Action::Submit { shape, since: None };
                    }
                    if self.in_flight > 0 {
                        return Action::WaitCompletion;
                    }
                    self.phases.pop_front();
                    if self.phases.is_empty() {
                        self.end(now);
                    }
                }
                None => {
                    self.begin();
                    if self.present.is_empty() {
                        return Action::WaitCompletion;
                    }
                }
            }
        }
    }

    fn completed(&mut self, _: &Shape, _: Nanos, _: Nanos) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}
