//! What the threads of one store share.

use std::collections::VecDeque;

use io_model::Nanos;

use super::lsm::{LsmStats, Merge, Tree};
use super::{Lsm, Ycsb};

/// The log is written back in pieces of this, as soon as there is one.
const WAL_WRITE_BACK_BYTES: u64 = 1 << 20;

/// Whether a record may go into the memtable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Now.
    Go,
    /// At this time: level 0 has too many files.
    At(Nanos),
    /// When the thread is woken.
    Stopped,
}

/// A thread's place in the group commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commit {
    /// Its record is in the log.
    Done,
    /// It writes the log for its group.
    Lead { offset_bytes: u64, len_bytes: u32 },
    /// Another writes.
    Wait,
}

/// A part of the disk that is written round and round.
#[derive(Debug)]
pub(super) struct Region {
    start: u64,
    len: u64,
    at: u64,
}

impl Region {
    pub(super) fn new(start: u64, len: u64) -> Self {
        Self { start, len, at: 0 }
    }

    /// The place of the next `bytes`, in one piece; no more than the region has.
    pub(super) fn take(&mut self, bytes: u64) -> u64 {
        if self.at + bytes > self.len {
            self.at = 0;
        }
        let place = self.start + self.at;
        self.at += bytes;
        place
    }
}

/// The log: who waits for it.
#[derive(Debug, Default)]
struct Wal {
    /// Records that are not written back (without sync).
    dirty_bytes: u64,
    /// Threads whose records are being written.
    group: Vec<usize>,
    /// Threads for the next group.
    pending: Vec<usize>,
    /// By thread: its record was written.
    done: Vec<bool>,
}

/// The shared state of a store. Clients have the thread numbers `0..clients`, then come the flusher, the compactor and
/// the log's write-back.
#[derive(Debug)]
pub(super) struct Db {
    lsm: Lsm,
    record_bytes: u64,
    tree: Tree,
    stats: LsmStats,
    /// Bytes in the memtable that takes writes.
    memtable_bytes: u64,
    /// Full memtables that are not on the drive yet.
    full_memtables: u32,
    /// Records inserted, not updated.
    new_bytes: u64,
    records: u64,
    wal: Wal,
    wal_region: Region,
    /// Where files are written.
    pub(super) files: Region,
    /// Where files that are merged are read.
    pub(super) old_files: Region,
    /// Threads that wait for a flush or a compaction.
    stopped: Vec<usize>,
    /// When the next delayed write may go.
    next_slot: Nanos,
    /// By core: when it is free.
    cores: Vec<Nanos>,
    wakes: VecDeque<usize>,
    clients: usize,
}

impl Db {
    pub(super) fn new(ycsb: &Ycsb, disk_bytes: u64) -> Self {
        let db_bytes = ycsb.db_bytes();
        let wal_bytes = ycsb.lsm.wal_region_bytes();
        let clients = ycsb.threads as usize;
        Self {
            lsm: ycsb.lsm.clone(),
            record_bytes: ycsb.record_bytes.into(),
            tree: Tree::loaded(&ycsb.lsm, db_bytes),
            stats: LsmStats::default(),
            memtable_bytes: 0,
            full_memtables: 0,
            new_bytes: 0,
            records: ycsb.records,
            wal: Wal { done: vec![false; clients], ..Wal::default() },
            wal_region: Region::new(0, wal_bytes),
            files: Region::new(wal_bytes, (disk_bytes - wal_bytes) / 4096 * 4096),
            old_files: Region::new(wal_bytes, db_bytes.max(ycsb.lsm.compaction_batch_bytes)),
            stopped: Vec::new(),
            next_slot: Nanos(0),
            cores: vec![Nanos(0); ycsb.vcpus as usize],
            wakes: VecDeque::new(),
            clients,
        }
    }

    pub(super) fn stats(&self) -> LsmStats {
        self.stats
    }

    #[cfg(test)]
    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Records that there are, with those inserted.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    pub(super) fn take_wake(&mut self) -> Option<usize> {
        self.wakes.pop_front()
    }

    fn flusher(&self) -> usize {
        self.clients
    }

    fn compactor(&self) -> usize {
        self.clients + 1
    }

    fn write_back(&self) -> usize {
        self.clients + 2
    }

    /// Takes `cost` of a core's time, after those who asked before: when it is done.
    pub(super) fn compute(&mut self, core: usize, now: Nanos, cost: Nanos) -> Nanos {
        let free_at = &mut self.cores[core];
        *free_at = (*free_at).max(now) + cost;
        *free_at
    }

    /// Asks for room for one record. `Stopped` again each time until there is.
    pub(super) fn admit(&mut self, thread: usize, now: Nanos) -> Admission {
        let no_memtable = self.memtable_bytes + self.record_bytes > self.lsm.memtable_bytes && !self.rotate();
        if no_memtable || self.tree.l0_files() >= self.lsm.l0_stop as usize {
            if !self.stopped.contains(&thread) {
                self.stopped.push(thread);
                self.stats.stopped_writes += 1;
            }
            return Admission::Stopped;
        }
        self.memtable_bytes += self.record_bytes;
        if self.tree.l0_files() < self.lsm.l0_slowdown as usize {
            return Admission::Go;
        }
        self.stats.delayed_writes += 1;
        let slot = self.next_slot.max(now);
        let gap_ns = self.record_bytes.saturating_mul(1_000_000_000) / self.lsm.delayed_write_bytes_per_second;
        self.next_slot = slot + Nanos(gap_ns);
        Admission::At(slot)
    }

    /// Begins another memtable, if one may exist.
    fn rotate(&mut self) -> bool {
        if self.full_memtables + 1 >= self.lsm.max_memtables {
            return false;
        }
        self.full_memtables += 1;
        self.memtable_bytes = 0;
        self.wakes.push_back(self.flusher());
        true
    }

    /// A record was written by the application.
    pub(super) fn written(&mut self, new: bool) {
        self.stats.user_bytes += self.record_bytes;
        if new {
            self.new_bytes += self.record_bytes;
            self.records += 1;
        }
    }

    /// Appends a record to the log in the page cache.
    pub(super) fn log(&mut self) {
        let before = self.wal.dirty_bytes;
        self.wal.dirty_bytes += self.record_bytes;
        if before < WAL_WRITE_BACK_BYTES && self.wal.dirty_bytes >= WAL_WRITE_BACK_BYTES {
            self.wakes.push_back(self.write_back());
        }
    }

    /// The log that is to be written back now: where and how much.
    pub(super) fn start_write_back(&mut self) -> Option<(u64, u64)> {
        if self.wal.dirty_bytes < WAL_WRITE_BACK_BYTES {
            return None;
        }
        self.wal.dirty_bytes -= WAL_WRITE_BACK_BYTES;
        self.stats.wal_bytes += WAL_WRITE_BACK_BYTES;
        Some((self.wal_region.take(WAL_WRITE_BACK_BYTES), WAL_WRITE_BACK_BYTES))
    }

    /// Joins the next group commit.
    pub(super) fn queue(&mut self, thread: usize) {
        self.wal.done[thread] = false;
        self.wal.pending.push(thread);
    }

    /// A queued thread asks: the first in the queue leads as soon as no group is being written.
    pub(super) fn commit(&mut self, thread: usize) -> Commit {
        if self.wal.done[thread] {
            return Commit::Done;
        }
        if !self.wal.group.is_empty() || self.wal.pending.first() != Some(&thread) {
            return Commit::Wait;
        }
        std::mem::swap(&mut self.wal.group, &mut self.wal.pending);
        let records = self.wal.group.len() as u64;
        let bytes = (records * self.record_bytes).next_multiple_of(4096);
        self.stats.wal_bytes += bytes;
        // At most 1024 threads with records of at most 4 KiB.
        Commit::Lead { offset_bytes: self.wal_region.take(bytes), len_bytes: bytes as u32 }
    }

    /// The write of this leader ended.
    pub(super) fn committed(&mut self, leader: usize) {
        for thread in self.wal.group.drain(..) {
            self.wal.done[thread] = true;
            if thread != leader {
                self.wakes.push_back(thread);
            }
        }
        if let Some(next) = self.wal.pending.first() {
            self.wakes.push_back(*next);
        }
    }

    /// The memtable that is to be flushed now: its size.
    pub(super) fn start_flush(&mut self) -> Option<u64> {
        (self.full_memtables > 0).then_some(self.lsm.memtable_bytes)
    }

    pub(super) fn flushed(&mut self, bytes: u64) {
        self.full_memtables -= 1;
        self.stats.flush_bytes += bytes;
        self.tree.flushed(bytes);
        self.wakes.push_back(self.compactor());
        self.release();
    }

    pub(super) fn start_merge(&self) -> Option<Merge> {
        let new_share = self.new_bytes as f64 / self.stats.user_bytes.max(1) as f64;
        self.tree.due(new_share)
    }

    pub(super) fn merged(&mut self, merge: &Merge) {
        self.tree.merged(merge);
        self.stats.compaction_read_bytes += merge.read_bytes();
        self.stats.compaction_write_bytes += merge.write_bytes();
        self.stats.dropped_bytes += merge.read_bytes() - merge.write_bytes();
        self.release();
    }

    fn release(&mut self) {
        self.wakes.extend(self.stopped.drain(..));
    }
}
