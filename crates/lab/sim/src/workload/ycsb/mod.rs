//! YCSB on a key-value store that keeps its records in a log-structured merge tree, as RocksDB does.
//!
//! | module | what |
//! | --- | --- |
//! | `keys` | which record a request is for |
//! | `lsm` | the tree as bytes: what lies where, what has to be merged |
//! | `db` | what the store's threads share: memtables, log, cores |
//! | `client` | an application thread: operations |
//! | `background` | flush, compaction and the log's write-back |
//!
//! No data exists: the model follows how many bytes are where, and turns operations into the I/Os they would cause.
//! [`Ycsb::ASSUMPTIONS`] lists what it takes for granted.

mod background;
mod client;
mod db;
mod keys;
mod lsm;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::rc::Rc;

use io_model::Nanos;

use super::access::MAX_JOBS;
use super::{WorkloadError, within, within_f64};
use crate::Job;
use db::Db;
pub use lsm::LsmStats;

/// YCSB's core workloads (Cooper et al., "Benchmarking cloud serving systems with YCSB", SoCC 2010).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Core {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % reads, of the latest records most; 5 % inserts.
    D,
    /// 95 % scans, 5 % inserts.
    E,
    /// Half reads, half reads followed by an update of the same record.
    F,
}

/// Which records are asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Requests {
    /// Some records much more often than others, all over the key space. YCSB's `theta` is 0.99.
    Zipfian {
        /// The skew: above 0, below 1.
        theta: f64,
    },
    /// The records inserted last most often, with the same skew.
    Latest {
        /// The skew: above 0, below 1.
        theta: f64,
    },
    /// All alike.
    Uniform,
}

/// Operations in 100. They must add up to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mix {
    /// A record is looked up.
    pub read: u8,
    /// A record is looked up and written back changed.
    pub update: u8,
    /// A new record is written.
    pub insert: u8,
    /// Records are read in the order of their keys.
    pub scan: u8,
    /// A read, then an update of the same record.
    pub read_modify_write: u8,
}

/// CPU time of the operations, above the guest's cost for each I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuCosts {
    /// Looking a record up; above 0.
    pub read: Nanos,
    /// Writing a record to log and memtable; above 0.
    pub write: Nanos,
    /// Each record of a scan after the first.
    pub scan_record: Nanos,
}

/// The store's parameters. The names in brackets are RocksDB's.
#[derive(Debug, Clone, PartialEq)]
pub struct Lsm {
    /// A memtable. A multiple of 4096. (`write_buffer_size` times `min_write_buffer_number_to_merge`)
    pub memtable_bytes: u64,
    /// Memtables in all, with the one that takes writes: at least 2. (`max_write_buffer_number`)
    pub max_memtables: u32,
    /// Files on level 0 that start a compaction. (`level0_file_num_compaction_trigger`)
    pub l0_trigger: u32,
    /// Files on level 0 from which on writes are delayed. (`level0_slowdown_writes_trigger`)
    pub l0_slowdown: u32,
    /// Files on level 0 from which on writes stop. (`level0_stop_writes_trigger`)
    pub l0_stop: u32,
    /// The rate of delayed writes. (`delayed_write_rate`)
    pub delayed_write_bytes_per_second: u64,
    /// The target of level 1. A multiple of 4096. (`max_bytes_for_level_base`)
    pub l1_bytes: u64,
    /// Each level's target over the one above. (`max_bytes_for_level_multiplier`)
    pub fanout: u32,
    /// A file of level 1 and below. A multiple of 4096. (`target_file_size_base`)
    pub file_bytes: u64,
    /// What the guest's page cache and the store's block cache hold.
    pub cache_bytes: u64,
    /// The part of the lookups in a level without the record that read a block all the same: 1 without filters.
    pub filter_false_positives: f64,
    /// Whether each write waits until the log is on the drive. (`WriteOptions::sync`)
    pub sync: bool,
    /// Each I/O of a flush, a compaction or the log's write-back. A multiple of 4096.
    pub background_io_bytes: u32,
    /// I/Os that each background thread keeps outstanding.
    pub background_depth: u32,
    /// What a compaction reads before it writes. A multiple of 4096. (`compaction_readahead_size`)
    pub compaction_batch_bytes: u64,
    /// How fast files are merged, not counting their I/Os.
    pub merge_bytes_per_second: u64,
}

impl Default for Lsm {
    /// What YCSB's RocksDB binding sets (`optimizeLevelStyleCompaction`, which splits a budget of 512 MiB), with
    /// RocksDB's own defaults for the rest.
    fn default() -> Self {
        Self {
            memtable_bytes: 256 << 20,
            max_memtables: 3,
            l0_trigger: 2,
            l0_slowdown: 20,
            l0_stop: 36,
            delayed_write_bytes_per_second: 16 << 20,
            l1_bytes: 512 << 20,
            fanout: 10,
            file_bytes: 64 << 20,
            cache_bytes: 2 << 30,
            filter_false_positives: 1.0,
            sync: false,
            background_io_bytes: 128 << 10,
            background_depth: 8,
            compaction_batch_bytes: 2 << 20,
            merge_bytes_per_second: 800_000_000,
        }
    }
}

impl Lsm {
    /// The part of the disk that the log is written to, round and round.
    fn wal_region_bytes(&self) -> u64 {
        (self.memtable_bytes * u64::from(self.max_memtables)).max(64 << 20)
    }

    fn validate(&self) -> Result<(), WorkloadError> {
        let largest = 1 << 40;
        for (name, bytes, most) in [
            ("memtable_bytes", self.memtable_bytes, largest),
            ("l1_bytes", self.l1_bytes, largest),
            ("file_bytes", self.file_bytes, largest),
            ("background_io_bytes", self.background_io_bytes.into(), 16 << 20),
            ("compaction_batch_bytes", self.compaction_batch_bytes, 64 << 20),
        ] {
            let blocks = if bytes.is_multiple_of(4096) { bytes / 4096 } else { 0 };
            if blocks == 0 || bytes > most {
                let expected = "a multiple of 4096, not too large";
                return Err(WorkloadError::Range { name, value: bytes as f64, expected });
            }
        }
        within("cache_bytes", self.cache_bytes, 0..=largest, "up to 1 TiB")?;
        within("max_memtables", self.max_memtables.into(), 2..=64, "2 to 64")?;
        within("l0_trigger", self.l0_trigger.into(), 1..=1000, "1 to 1000")?;
        let (trigger, slowdown) = (u64::from(self.l0_trigger), u64::from(self.l0_slowdown));
        within("l0_slowdown", slowdown, trigger + 1..=10_000, "more than l0_trigger, up to 10000")?;
        within("l0_stop", self.l0_stop.into(), slowdown..=10_000, "at least l0_slowdown, up to 10000")?;
        within("fanout", self.fanout.into(), 2..=100, "2 to 100")?;
        within("background_depth", self.background_depth.into(), 1..=1024, "1 to 1024")?;
        let (delayed, merged) = (self.delayed_write_bytes_per_second, self.merge_bytes_per_second);
        within("delayed_write_bytes_per_second", delayed, 1000..=largest, "at least 1000")?;
        within("merge_bytes_per_second", merged, 1000..=largest, "at least 1000")?;
        within_f64("filter_false_positives", self.filter_false_positives, 0.0, 1.0, "0 to 1")
    }
}

/// YCSB's operations in a closed loop.
#[derive(Debug, Clone, PartialEq)]
pub struct Ycsb {
    /// Which operations.
    pub mix: Mix,
    /// On which records.
    pub requests: Requests,
    /// Application threads, each with one operation at a time.
    pub threads: u32,
    /// Cores that they share: thread i computes on core i modulo this.
    pub vcpus: u32,
    /// Records loaded at the start, at least 1000.
    pub records: u64,
    /// The size of each: 64 to 4096.
    pub record_bytes: u32,
    /// The longest scan; lengths are even between 1 and this.
    pub max_scan_records: u32,
    /// Operations of all threads together; `None`: no end.
    pub operations: Option<u64>,
    /// CPU time.
    pub cpu: CpuCosts,
    /// The store.
    pub lsm: Lsm,
}

/// A store ready to run.
pub struct Store {
    /// Its threads: the application's, then three of its own.
    pub jobs: Vec<Box<dyn Job>>,
    /// Its counts.
    pub stats: StatsHandle,
}

/// Reads a running store's counts.
#[derive(Debug, Clone)]
pub struct StatsHandle(Rc<RefCell<Db>>);

impl StatsHandle {
    /// The counts so far.
    pub fn read(&self) -> LsmStats {
        self.0.borrow().stats()
    }
}

impl Ycsb {
    /// What a reader of its figures must know.
    pub const ASSUMPTIONS: [&'static str; 13] = [
        "The database has 4 Mi records of 1 KiB (YCSB's ten fields of 100 bytes and their names): the 4 GB of LPNS. \
         Four threads, one per vCPU; the papers do not say how many they ran.",
        "An update first reads the record, then writes it, as YCSB's RocksDB binding does. So its latency is that of a \
         read and a little more, as in LPNS (p95 of 260 after 242 us, 453 after 419).",
        "A write does not wait for its log (RocksDB's default, which YCSB leaves as it is): the log goes to the page \
         cache and is written back 1 MiB at a time. With `sync` the threads commit in groups, one write of whole 4 KiB \
         blocks each, and the file system's own journal costs nothing.",
        "Memtables, files and levels have the sizes that the binding asks RocksDB for; each flush writes 256 MiB, two \
         of its memtables, and versions of one record in it are not merged.",
        "The store begins loaded and at rest: every level but the last is full, level 0 is empty.",
        "Page cache and block cache are one cache of 2 GiB of the guest's 4. It holds level 0 and level 1, which were \
         just written and which each lookup passes, then the blocks of the most popular records. It is as good as a \
         cache that knows the future's popularity; the real one lags and loses blocks when a compaction replaces them.",
        "A lookup reads one block of 4 KiB of the last level, unless it is cached. Index and filter blocks are always \
         in memory. Levels in between that the cache does not hold cost a read each where no filter answers for them.",
        "With `latest` requests, records inserted within the size of the cache are cached.",
        "A scan reads the blocks from its first record on in I/Os of 16 KiB, one after another, leaving out those \
         that are cached.",
        "CPU time: 15 us for a lookup, 12 us for a write, 0.7 us for each record of a scan; Java's and RocksDB's \
         together, not measured. Threads on one core take turns in the order in which they ask. Garbage collection \
         of the Java heap is left out.",
        "Flush and compaction go on side by side, one of each at a time, each with eight I/Os of 128 KiB outstanding. \
         Merging runs at 800 MB/s, as four of RocksDB's (up to eight) compaction threads do together; their CPU time \
         delays only themselves.",
        "Nothing is compressed. A compaction into the last level drops one old version for each updated record.",
        "Writes are delayed to 16 MiB/s at 20 files on level 0, stop at 36, and stop while all memtables wait for \
         their flush.",
    ];

    /// One of the core workloads on 4 GiB, with what [`ASSUMPTIONS`](Self::ASSUMPTIONS) says.
    pub fn new(core: Core) -> Self {
        let none = Mix::default();
        let mix = match core {
            Core::A => Mix { read: 50, update: 50, ..none },
            Core::B => Mix { read: 95, update: 5, ..none },
            Core::C => Mix { read: 100, ..none },
            Core::D => Mix { read: 95, insert: 5, ..none },
            Core::E => Mix { scan: 95, insert: 5, ..none },
            Core::F => Mix { read: 50, read_modify_write: 50, ..none },
        };
        let theta = 0.99;
        let requests = if core == Core::D { Requests::Latest { theta } } else { Requests::Zipfian { theta } };
        Self {
            mix,
            requests,
            threads: 4,
            vcpus: 4,
            records: 4 << 20,
            record_bytes: 1024,
            max_scan_records: 100,
            operations: None,
            cpu: CpuCosts { read: Nanos::from_micros(15), write: Nanos::from_micros(12), scan_record: Nanos(700) },
            lsm: Lsm::default(),
        }
    }

    /// The store, `divisor` times smaller: records, cache, memtables, levels and files. Flushes and compactions come as
    /// many times sooner, so a simulation of seconds sees as many as a run of minutes. Write amplification stays, and
    /// the cache's hit rate nearly so.
    pub fn scaled_down(mut self, divisor: u64) -> Self {
        let divisor = divisor.max(1);
        let blocks = |bytes: u64| (bytes / divisor / 4096).max(1) * 4096;
        self.records = (self.records / divisor).max(1000);
        let lsm = &mut self.lsm;
        lsm.memtable_bytes = blocks(lsm.memtable_bytes);
        lsm.l1_bytes = blocks(lsm.l1_bytes);
        lsm.file_bytes = blocks(lsm.file_bytes);
        lsm.cache_bytes /= divisor;
        self
    }

    /// Bytes that the application's writes will cause on the drive, for each byte written, without the log. It holds
    /// as long as compaction keeps up; behind, level 0 has more files, which makes merging cheaper.
    ///
    /// - 1 for the flush;
    /// - `1 + L1/U` for merging level 0's `U` bytes (trigger times memtable) with all of level 1;
    /// - for each level i below, `(L(i+1) / U) * ln(1 + U / Li)`: the overlap of what it gives up, averaged over its
    ///   shrinking from `Li + U` to `Li`; and 1 more for what is passed on, but for the versions that the last level
    ///   drops (all, if nothing is inserted).
    pub fn expected_write_amplification(&self) -> f64 {
        let upper = self.lsm.memtable_bytes as f64 * f64::from(self.lsm.l0_trigger);
        let levels = lsm::Tree::loaded(&self.lsm, self.db_bytes());
        let levels = levels.levels();
        let kept = if self.mix.insert > 0 { 1.0 } else { 0.0 };
        let passed_on = |target: usize| if target + 1 == levels.len() { kept } else { 1.0 };
        let first = levels.first().map_or(0.0, |l1| passed_on(0) + *l1 as f64 / upper);
        let below = levels.windows(2).enumerate().map(|(index, pair)| {
            let (above, below) = (pair[0] as f64, pair[1] as f64);
            passed_on(index + 1) + below / upper * (upper / above).ln_1p()
        });
        1.0 + first + below.sum::<f64>()
    }

    fn db_bytes(&self) -> u64 {
        self.records.saturating_mul(self.record_bytes.into()).next_multiple_of(4096)
    }

    pub(super) fn validate(&self, disk_bytes: u64) -> Result<(), WorkloadError> {
        let Mix { read, update, insert, scan, read_modify_write } = self.mix;
        let sum = [read, update, insert, scan, read_modify_write].map(u64::from).iter().sum();
        within("the sum of the mix", sum, 100..=100, "100")?;
        if let Requests::Zipfian { theta } | Requests::Latest { theta } = self.requests {
            within_f64("theta", theta, 0.01, 0.999, "0.01 to 0.999")?;
        }
        within("threads", self.threads.into(), 1..=MAX_JOBS, "1 to 1024")?;
        within("vcpus", self.vcpus.into(), 1..=1024, "1 to 1024")?;
        within("records", self.records, 1000..=1 << 40, "1000 to 2^40")?;
        within("record_bytes", self.record_bytes.into(), 64..=4096, "64 to 4096")?;
        within("max_scan_records", self.max_scan_records.into(), 1..=100_000, "1 to 100000")?;
        let second = 1_000_000_000;
        within("cpu.read", self.cpu.read.0, 1..=second, "1 ns to 1 s")?;
        within("cpu.write", self.cpu.write.0, 1..=second, "1 ns to 1 s")?;
        within("cpu.scan_record", self.cpu.scan_record.0, 0..=second, "0 to 1 s")?;
        self.lsm.validate()?;
        let least = u64::from(self.record_bytes);
        within("memtable_bytes", self.lsm.memtable_bytes, least..=u64::MAX, "at least a record")?;
        // While files are merged, old and new ones exist.
        let piece_bytes = self.lsm.memtable_bytes.max(2 * self.lsm.compaction_batch_bytes);
        let files_bytes = self.db_bytes().saturating_mul(2).max(piece_bytes);
        let need_bytes = self.lsm.wal_region_bytes().saturating_add(files_bytes);
        if disk_bytes < need_bytes {
            return Err(WorkloadError::Space { jobs: self.threads, need_bytes, have_bytes: disk_bytes });
        }
        Ok(())
    }

    /// The store's threads and a look at its counts.
    ///
    /// # Errors
    ///
    /// As [`Workload::validate`](super::Workload::validate).
    pub fn start(&self, disk_bytes: u64, seed: u64) -> Result<Store, WorkloadError> {
        self.validate(disk_bytes)?;
        let db = Rc::new(RefCell::new(Db::new(self, disk_bytes)));
        let mut jobs = client::jobs(self, &db, seed);
        jobs.extend(background::jobs(self, &db));
        Ok(Store { jobs, stats: StatsHandle(db) })
    }
}
