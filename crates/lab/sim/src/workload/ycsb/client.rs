//! The application's threads.

use std::cell::RefCell;
use std::rc::Rc;

use fastrand::Rng;
use io_model::{Nanos, Op};

use super::super::seed;
use super::db::{Admission, Commit, Db};
use super::keys::{Scatter, Zipf};
use super::lsm::Tree;
use super::{Requests, Ycsb};
use crate::{Action, Job, Operation, Shape};

const BLOCK_BYTES: u64 = 4096;

/// The blocks that one I/O of a scan reads.
const SCAN_BLOCKS: u64 = 4;

pub(super) fn jobs(ycsb: &Ycsb, db: &Rc<RefCell<Db>>, seed: u64) -> Vec<Box<dyn Job>> {
    let layout = Rc::new(Layout::new(ycsb, seed));
    let threads = u64::from(ycsb.threads);
    let client = |thread: u32| -> Box<dyn Job> {
        let share = |all: u64| all / threads + u64::from(u64::from(thread) < all % threads);
        Box::new(Client {
            ycsb: ycsb.clone(),
            layout: Rc::clone(&layout),
            db: Rc::clone(db),
            rng: seed::rng(seed, thread.into()),
            thread: thread as usize,
            core: (thread % ycsb.vcpus) as usize,
            operations_left: ycsb.operations.map_or(u64::MAX, share),
            phase: Phase::Begin,
            kind: Kind::Read,
            reads: Vec::new(),
            started: Nanos(0),
            ended: None,
        })
    };
    (0..ycsb.threads).map(client).collect()
}

/// Where the loaded records are and which of them are cached: the same for all threads.
#[derive(Debug)]
struct Layout {
    requests: Requests,
    zipf: Option<Zipf>,
    scatter: Scatter,
    records: u64,
    records_per_block: u64,
    /// Where the last level begins on the disk.
    start: u64,
    /// Blocks that hold a record of a rank below this are cached.
    hot_ranks: u64,
    /// With `latest` requests: the newest records that are cached.
    hot_newest: u64,
    /// The part of the records that is in levels which the cache holds entirely.
    resident_share: f64,
    /// The fraction of the records in each level between those and the last.
    between_shares: Vec<f64>,
    false_positives: f64,
}

impl Layout {
    fn new(ycsb: &Ycsb, seed: u64) -> Self {
        let zipf = match ycsb.requests {
            Requests::Zipfian { theta } | Requests::Latest { theta } => Some(Zipf::new(ycsb.records, theta)),
            Requests::Uniform => None,
        };
        let record_bytes = u64::from(ycsb.record_bytes);
        let records_per_block = (BLOCK_BYTES / record_bytes).max(1);
        let tree = Tree::loaded(&ycsb.lsm, ycsb.db_bytes());
        let (last, above) = tree.levels().split_last().map_or((0, &[][..]), |(last, above)| (*last, above));
        let l0_bytes = ycsb.lsm.memtable_bytes * u64::from(ycsb.lsm.l0_trigger);
        let mut cache_left = ycsb.lsm.cache_bytes.saturating_sub(l0_bytes);
        let resident = above.iter().take_while(|level| {
            let fits = **level <= cache_left;
            cache_left -= if fits { **level } else { 0 };
            fits
        });
        let resident = resident.count();
        let share = |bytes: &u64| *bytes as f64 / ycsb.db_bytes() as f64;
        Self {
            requests: ycsb.requests,
            zipf,
            scatter: Scatter::new(ycsb.records, seed),
            records: ycsb.records,
            records_per_block,
            start: ycsb.lsm.wal_region_bytes(),
            hot_ranks: hot_ranks(cache_left, last, records_per_block, ycsb.records),
            hot_newest: ycsb.lsm.cache_bytes / record_bytes,
            resident_share: above.iter().take(resident).map(share).sum(),
            between_shares: above.iter().skip(resident).map(share).collect(),
            false_positives: ycsb.lsm.filter_false_positives,
        }
    }

    /// The record that a request is for, as its place among the loaded ones; `None`: a cached new one.
    fn place(&self, rng: &mut Rng, records_now: u64) -> Option<u64> {
        match (self.requests, &self.zipf) {
            (Requests::Latest { .. }, Some(zipf)) => {
                let age = zipf.rank(rng);
                let key = records_now.saturating_sub(age + 1);
                (age >= self.hot_newest).then(|| self.scatter.place(key % self.records))
            }
            (_, Some(zipf)) => Some(self.scatter.place(zipf.rank(rng))),
            (_, None) => Some(rng.u64(..self.records)),
        }
    }

    /// Whether the block at a place is among the popular ones.
    fn is_hot(&self, place: u64) -> bool {
        if matches!(self.requests, Requests::Latest { .. }) {
            return false;
        }
        let first = place / self.records_per_block * self.records_per_block;
        let end = (first + self.records_per_block).min(self.records);
        (first..end).any(|place| self.scatter.rank(place) < self.hot_ranks)
    }

    fn read(&self, place: u64, blocks: u64) -> (u64, u32) {
        let block = place / self.records_per_block;
        (self.start + block * BLOCK_BYTES, (blocks * BLOCK_BYTES) as u32)
    }

    /// The reads that finding the record at a place takes.
    fn lookup(&self, place: u64, rng: &mut Rng, reads: &mut Vec<(u64, u32)>) {
        if self.is_hot(place) {
            return;
        }
        let mut seen = self.resident_share;
        if rng.f64() < seen {
            return;
        }
        for share in &self.between_shares {
            let found = rng.f64() * (1.0 - seen) < *share;
            seen += share;
            if found || rng.f64() < self.false_positives {
                reads.push(self.read(place, 1));
            }
            if found {
                return;
            }
        }
        reads.push(self.read(place, 1));
    }

    /// The reads of a scan of this many records from a place.
    fn scan(&self, place: u64, records: u64, reads: &mut Vec<(u64, u32)>) {
        let last = (place + records - 1).min(self.records - 1) / self.records_per_block;
        let mut block = place / self.records_per_block;
        while block <= last {
            let end = (block + SCAN_BLOCKS).min(last + 1);
            if (block..end).any(|block| !self.is_hot(block * self.records_per_block)) {
                reads.push(self.read(block * self.records_per_block, end - block));
            }
            block = end;
        }
    }
}

/// How many of the most popular records a cache of blocks holds. Popular records lie anywhere, so a block of k records
/// is wanted with probability `1 - (1 - x)^k` when the part x of the records is; that is the part that fits.
fn hot_ranks(cache_bytes: u64, level_bytes: u64, records_per_block: u64, records: u64) -> u64 {
    if level_bytes == 0 || cache_bytes >= level_bytes {
        return records;
    }
    let cached = cache_bytes as f64 / level_bytes as f64;
    let wanted = 1.0 - (1.0 - cached).powf(1.0 / records_per_block as f64);
    (wanted * records as f64) as u64
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::Scan => "scan",
            Self::ReadModifyWrite => "rmw",
        }
    }

    fn writes(self) -> bool {
        matches!(self, Self::Update | Self::Insert | Self::ReadModifyWrite)
    }
}

/// What comes next in an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Draw the next operation.
    Begin,
    /// Read the next block.
    Read,
    /// Ask for room in the memtable.
    Admit,
    /// Write the log, or wait for who does.
    Commit,
    /// Queued for the group commit.
    Queued,
    /// The operation is over.
    Finish,
    /// Computing until then, then one of the above.
    Busy(Nanos, Next),
    /// An I/O is outstanding: of a read, or of the log.
    Reading,
    Logging,
}

/// What follows computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Read,
    Admit,
    Commit,
}

struct Client {
    ycsb: Ycsb,
    layout: Rc<Layout>,
    db: Rc<RefCell<Db>>,
    rng: Rng,
    thread: usize,
    core: usize,
    operations_left: u64,
    phase: Phase,
    kind: Kind,
    /// Blocks that the operation still has to read, the last one first.
    reads: Vec<(u64, u32)>,
    started: Nanos,
    ended: Option<Operation>,
}

impl Client {
    /// One step of the operation: what to do, or `None` to take the next step at once.
    fn step(&mut self, now: Nanos) -> Option<Action> {
        match self.phase {
            Phase::Begin if self.operations_left == 0 => return Some(Action::Done),
            Phase::Begin => self.begin(now),
            Phase::Busy(until, _) if until > now => return Some(Action::WaitUntil(until)),
            Phase::Busy(_, Next::Read) => self.phase = Phase::Read,
            Phase::Busy(_, Next::Admit) => self.phase = Phase::Admit,
            Phase::Busy(_, Next::Commit) => self.phase = Phase::Commit,
            Phase::Read => return self.read(now),
            Phase::Admit => return self.admit(now),
            Phase::Commit => self.commit(),
            Phase::Queued => return self.queued(),
            Phase::Finish => self.finish(now),
            Phase::Reading | Phase::Logging => return Some(Action::WaitCompletion),
        }
        None
    }

    fn begin(&mut self, now: Nanos) {
        self.operations_left -= 1;
        self.started = now;
        self.kind = self.draw_kind();
        self.reads.clear();
        let mut cpu = self.ycsb.cpu.read;
        match self.kind {
            Kind::Insert => {
                self.busy(now, self.ycsb.cpu.write, Next::Admit);
                return;
            }
            Kind::Scan => {
                let records = self.rng.u64(1..=self.ycsb.max_scan_records.into());
                cpu += Nanos(self.ycsb.cpu.scan_record.0 * (records - 1));
                if let Some(place) = self.place() {
                    self.layout.scan(place, records, &mut self.reads);
                }
            }
            Kind::Read | Kind::Update | Kind::ReadModifyWrite => {
                if let Some(place) = self.place() {
                    self.layout.lookup(place, &mut self.rng, &mut self.reads);
                }
                if self.kind == Kind::ReadModifyWrite {
                    // The update reads again; the block is cached by then.
                    cpu += self.ycsb.cpu.read;
                }
            }
        }
        self.reads.reverse();
        self.busy(now, cpu, Next::Read);
    }

    fn draw_kind(&mut self) -> Kind {
        let mix = self.ycsb.mix;
        let mut at = self.rng.u8(..100);
        for (percent, kind) in
            [(mix.read, Kind::Read), (mix.update, Kind::Update), (mix.insert, Kind::Insert), (mix.scan, Kind::Scan)]
        {
            if at < percent {
                return kind;
            }
            at -= percent;
        }
        Kind::ReadModifyWrite
    }

    fn place(&mut self) -> Option<u64> {
        let records = self.db.borrow().records();
        self.layout.place(&mut self.rng, records)
    }

    fn busy(&mut self, now: Nanos, cost: Nanos, next: Next) {
        let until = self.db.borrow_mut().compute(self.core, now, cost);
        self.phase = Phase::Busy(until, next);
    }

    fn read(&mut self, now: Nanos) -> Option<Action> {
        if let Some((offset_bytes, len_bytes)) = self.reads.pop() {
            self.phase = Phase::Reading;
            return Some(Action::Submit { shape: Shape { op: Op::Read, offset_bytes, len_bytes }, since: None });
        }
        if self.kind.writes() {
            self.busy(now, self.ycsb.cpu.write, Next::Admit);
        } else {
            self.phase = Phase::Finish;
        }
        None
    }

    fn admit(&mut self, now: Nanos) -> Option<Action> {
        let admission = self.db.borrow_mut().admit(self.thread, now);
        match admission {
            Admission::Go => self.phase = Phase::Commit,
            Admission::At(slot) => self.phase = Phase::Busy(slot, Next::Commit),
            Admission::Stopped => return Some(Action::WaitCompletion),
        }
        None
    }

    fn commit(&mut self) {
        let mut db = self.db.borrow_mut();
        db.written(self.kind == Kind::Insert);
        if self.ycsb.lsm.sync {
            db.queue(self.thread);
            self.phase = Phase::Queued;
        } else {
            db.log();
            self.phase = Phase::Finish;
        }
    }

    fn queued(&mut self) -> Option<Action> {
        let commit = self.db.borrow_mut().commit(self.thread);
        match commit {
            Commit::Done => {
                self.phase = Phase::Finish;
                None
            }
            Commit::Wait => Some(Action::WaitCompletion),
            Commit::Lead { offset_bytes, len_bytes } => {
                self.phase = Phase::Logging;
                Some(Action::Submit { shape: Shape { op: Op::Write, offset_bytes, len_bytes }, since: None })
            }
        }
    }

    fn finish(&mut self, now: Nanos) {
        self.ended = Some(Operation { kind: self.kind.name(), latency: now - self.started });
        self.phase = Phase::Begin;
    }
}

impl Job for Client {
    fn next(&mut self, now: Nanos) -> Action {
        // Ends: each operation begins with CPU time above 0, so at most one ends and one begins here.
        loop {
            if let Some(action) = self.step(now) {
                return action;
            }
        }
    }

    fn completed(&mut self, _shape: &Shape, _latency: Nanos, _now: Nanos) {
        match self.phase {
            Phase::Reading => self.phase = Phase::Read,
            Phase::Logging => {
                self.db.borrow_mut().committed(self.thread);
                self.phase = Phase::Finish;
            }
            _ => {}
        }
    }

    fn take_operation(&mut self) -> Option<Operation> {
        self.ended.take()
    }

    fn take_wake(&mut self) -> Option<usize> {
        self.db.borrow_mut().take_wake()
    }
}
