//! The store's own threads.

use std::cell::RefCell;
use std::rc::Rc;

use io_model::{Nanos, Op};

use super::db::Db;
use super::lsm::Merge;
use super::{Lsm, Ycsb};
use crate::{Action, Job, Shape};

/// Flush, compaction and the log's write-back, in the order of their thread numbers.
pub(super) fn jobs(ycsb: &Ycsb, db: &Rc<RefCell<Db>>) -> Vec<Box<dyn Job>> {
    let streamer = |task| Streamer { db: Rc::clone(db), lsm: ycsb.lsm.clone(), task, stream: None };
    vec![
        Box::new(streamer(Task::Flush)),
        Box::new(Compactor { db: Rc::clone(db), lsm: ycsb.lsm.clone(), merge: None }),
        Box::new(streamer(Task::WriteBack)),
    ]
}

/// Consecutive I/Os.
#[derive(Debug)]
struct Stream {
    op: Op,
    at: u64,
    bytes: u64,
    left: u64,
    in_flight: u32,
}

impl Stream {
    fn new(op: Op, at: u64, bytes: u64) -> Self {
        Self { op, at, bytes, left: bytes, in_flight: 0 }
    }

    /// The next I/O, if it may be sent now.
    fn next(&mut self, lsm: &Lsm) -> Option<Shape> {
        if self.left == 0 || self.in_flight >= lsm.background_depth {
            return None;
        }
        // The smaller of the two fits in an I/O's length.
        let len = self.left.min(lsm.background_io_bytes.into());
        let shape = Shape { op: self.op, offset_bytes: self.at, len_bytes: len as u32 };
        self.at += len;
        self.left -= len;
        self.in_flight += 1;
        Some(shape)
    }

    /// One ended. Was it the last?
    fn completed(&mut self) -> bool {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.left == 0 && self.in_flight == 0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Flush,
    WriteBack,
}

/// Writes whatever there is of one kind, sequentially.
struct Streamer {
    db: Rc<RefCell<Db>>,
    lsm: Lsm,
    task: Task,
    stream: Option<Stream>,
}

impl Streamer {
    fn begin(&self) -> Option<Stream> {
        let mut db = self.db.borrow_mut();
        let (at, bytes) = match self.task {
            Task::Flush => {
                let bytes = db.start_flush()?;
                (db.files.take(bytes), bytes)
            }
            Task::WriteBack => db.start_write_back()?,
        };
        Some(Stream::new(Op::Write, at, bytes))
    }
}

impl Job for Streamer {
    fn next(&mut self, _now: Nanos) -> Action {
        if self.stream.is_none() {
            self.stream = self.begin();
        }
        let shape = self.stream.as_mut().and_then(|stream| stream.next(&self.lsm));
        shape.map_or(Action::WaitCompletion, |shape| Action::Submit { shape, since: None })
    }

    fn completed(&mut self, _shape: &Shape, _latency: Nanos, _now: Nanos) {
        let Some(stream) = &mut self.stream else { return };
        if stream.completed() {
            if self.task == Task::Flush {
                self.db.borrow_mut().flushed(stream.bytes);
            }
            self.stream = None;
        }
    }

    fn take_wake(&mut self) -> Option<usize> {
        self.db.borrow_mut().take_wake()
    }
}

/// What a compaction is at.
#[derive(Debug)]
enum Phase {
    /// Between two batches.
    Idle,
    Reading(Stream),
    Merging(Nanos),
    Writing(Stream),
}

/// A compaction in batches: read, merge, write.
#[derive(Debug)]
struct Progress {
    merge: Merge,
    read_left: u64,
    write_left: u64,
    /// What the batch will write.
    batch_out: u64,
    phase: Phase,
}

/// One compaction after another.
struct Compactor {
    db: Rc<RefCell<Db>>,
    lsm: Lsm,
    merge: Option<Progress>,
}

impl Compactor {
    /// Moves on, if nothing is outstanding; `false` when there is nothing to merge.
    fn advance(&mut self, now: Nanos) -> bool {
        if self.merge.is_none() {
            self.merge = self.db.borrow().start_merge().map(|merge| Progress {
                merge,
                read_left: merge.read_bytes(),
                write_left: merge.write_bytes(),
                batch_out: 0,
                phase: Phase::Idle,
            });
        }
        let Some(progress) = &mut self.merge else { return false };
        match &progress.phase {
            Phase::Idle => {
                let bytes = progress.read_left.min(self.lsm.compaction_batch_bytes);
                progress.batch_out = out_of(bytes, progress.read_left, progress.write_left);
                progress.read_left -= bytes;
                progress.write_left -= progress.batch_out;
                let at = self.db.borrow_mut().old_files.take(bytes);
                progress.phase = Phase::Reading(Stream::new(Op::Read, at, bytes));
            }
            Phase::Merging(until) if *until <= now => {
                if progress.batch_out == 0 {
                    progress.phase = Phase::Idle;
                    self.finish_if_done();
                    return true;
                }
                let at = self.db.borrow_mut().files.take(progress.batch_out);
                progress.phase = Phase::Writing(Stream::new(Op::Write, at, progress.batch_out));
            }
            Phase::Merging(_) | Phase::Reading(_) | Phase::Writing(_) => {}
        }
        true
    }

    fn finish_if_done(&mut self) {
        if let Some(Progress { merge, read_left: 0, .. }) = &self.merge {
            self.db.borrow_mut().merged(merge);
            self.merge = None;
        }
    }
}

/// What a batch of `bytes` writes, of `write_left` in whole blocks; the last batch writes all that is left.
fn out_of(bytes: u64, read_left: u64, write_left: u64) -> u64 {
    if bytes == read_left {
        return write_left;
    }
    let share = u128::from(write_left) * u128::from(bytes) / u128::from(read_left);
    share as u64 / 4096 * 4096
}

impl Job for Compactor {
    fn next(&mut self, now: Nanos) -> Action {
        // At most: finish a compaction, begin the next, read its first batch.
        while self.advance(now) {
            match self.merge.as_mut().map(|progress| &mut progress.phase) {
                Some(Phase::Reading(stream) | Phase::Writing(stream)) => {
                    let shape = stream.next(&self.lsm);
                    return shape.map_or(Action::WaitCompletion, |shape| Action::Submit { shape, since: None });
                }
                Some(Phase::Merging(until)) if *until > now => return Action::WaitUntil(*until),
                Some(Phase::Merging(_) | Phase::Idle) | None => {}
            }
        }
        Action::WaitCompletion
    }

    fn completed(&mut self, _shape: &Shape, _latency: Nanos, now: Nanos) {
        let Some(progress) = &mut self.merge else { return };
        match &mut progress.phase {
            Phase::Reading(stream) => {
                if stream.completed() {
                    let ns = stream.bytes.saturating_mul(1_000_000_000) / self.lsm.merge_bytes_per_second;
                    progress.phase = Phase::Merging(now + Nanos(ns));
                }
            }
            Phase::Writing(stream) => {
                if stream.completed() {
                    progress.phase = Phase::Idle;
                    self.finish_if_done();
                }
            }
            Phase::Idle | Phase::Merging(_) => {}
        }
    }

    fn take_wake(&mut self) -> Option<usize> {
        self.db.borrow_mut().take_wake()
    }
}
