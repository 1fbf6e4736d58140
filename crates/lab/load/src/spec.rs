//! What a job does.

use std::time::Duration;

use io_model::QueuePriority;

use crate::Error;
use crate::disk::Geometry;
use crate::value::{Amount, BlockSizes};

/// Kinds and order of commands; fio's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Rw {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Sequential trims (NVMe's Dataset Management, virtio's discard).
    Trim,
    /// Random reads.
    #[value(name = "randread")]
    RandRead,
    /// Random writes.
    #[value(name = "randwrite")]
    RandWrite,
    /// Random trims.
    #[value(name = "randtrim")]
    RandTrim,
    /// Sequential reads and writes, mixed.
    #[value(name = "rw", alias = "readwrite")]
    ReadWrite,
    /// Random reads and writes, mixed.
    #[value(name = "randrw")]
    RandRw,
}

impl Rw {
    /// fio's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Trim => "trim",
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::RandTrim => "randtrim",
            Self::ReadWrite => "rw",
            Self::RandRw => "randrw",
        }
    }

    /// Whether places are random.
    pub fn is_random(self) -> bool {
        matches!(self, Self::RandRead | Self::RandWrite | Self::RandTrim | Self::RandRw)
    }

    /// Whether it only trims.
    pub fn is_trim(self) -> bool {
        matches!(self, Self::Trim | Self::RandTrim)
    }

    /// Whether it never changes data.
    pub fn is_read_only(self) -> bool {
        matches!(self, Self::Read | Self::RandRead)
    }
}

/// How paced commands arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Arrivals {
    /// At equal distances.
    #[default]
    Linear,
    /// With exponential distances, as from many independent users.
    Poisson,
}

/// One job, as an operator describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// Its name in results; empty: named after the tenant.
    pub name: String,
    /// Kinds and order of commands.
    pub rw: Rw,
    /// Share of reads in mixed jobs, percent.
    pub rwmixread: u8,
    /// Block sizes.
    pub block_sizes: BlockSizes,
    /// Commands kept in flight, 1 to the device's limit.
    pub iodepth: u16,
    /// Copies of this job, each with its own queue. With `verify` they share the range out.
    pub numjobs: u16,
    /// Queues beside those of the copies, which nothing is ever sent to.
    pub idle_queues: u16,
    /// What the copies' queues count for among the client's, in turn. Empty: what follows from the I/O priority of the
    /// thread that starts the run.
    pub queue_priorities: Vec<QueuePriority>,
    /// Commands per second and copy, sent when due whatever completes (open loop). `None`: no limit.
    pub rate_iops: Option<u64>,
    /// How paced commands arrive.
    pub arrivals: Arrivals,
    /// How long to measure. `None`: until `size` was moved once.
    pub runtime: Option<Duration>,
    /// Warm-up before measuring.
    pub ramp_time: Duration,
    /// Pause after completions.
    pub think_time: Duration,
    /// Start of the working range.
    pub offset: Amount,
    /// Length of the working range. `None`: to the end of the namespace.
    pub size: Option<Amount>,
    /// Stamp what is written, check what is read, and read everything back at the end. A read-only job
    /// checks the stamps that an earlier run with the same seed left.
    pub verify: bool,
    /// Writes are durable when they complete (FUA; with virtio a flush after each).
    pub fua: bool,
    /// Go on after a command failed.
    pub continue_on_error: bool,
    /// Seed of everything random.
    pub seed: u64,
}

impl Default for JobSpec {
    fn default() -> Self {
        Self {
            name: String::new(),
            rw: Rw::Read,
            rwmixread: 50,
            block_sizes: BlockSizes::fixed(4096),
            iodepth: 1,
            numjobs: 1,
            idle_queues: 0,
            queue_priorities: Vec::new(),
            rate_iops: None,
            arrivals: Arrivals::Linear,
            runtime: None,
            ramp_time: Duration::ZERO,
            think_time: Duration::ZERO,
            offset: Amount::Bytes(0),
            size: None,
            verify: false,
            fua: false,
            continue_on_error: false,
            seed: 0x5eed,
        }
    }
}

/// A job's range on the namespace, in bytes, whole units of the smallest block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub start_bytes: u64,
    /// Length.
    pub len_bytes: u64,
}

impl JobSpec {
    /// Checks the job against a disk; returns the range of copy `copy` (below `numjobs`).
    pub fn range(&self, disk: &Geometry, copy: u16) -> Result<Range, Error> {
        let block = u64::from(disk.block_bytes);
        let wrong = |text: String| Err(Error::Spec(text));
        if self.iodepth == 0 || self.numjobs == 0 || self.rate_iops == Some(0) {
            return wrong("iodepth, numjobs and rate must be at least 1".into());
        }
        if self.iodepth > disk.max_depth {
            return wrong(format!("iodepth {} is above the device's limit of {}", self.iodepth, disk.max_depth));
        }
        let limit = if self.rw.is_trim() { disk.max_trim_bytes } else { disk.max_transfer_bytes };
        if self.rw.is_trim() && limit == 0 {
            return wrong("the device can't trim".into());
        }
        for &(size, _) in self.block_sizes.shares() {
            if size == 0 || size % block != 0 {
                return wrong(format!("a block size of {size} bytes is not a multiple of the drive's {block} bytes"));
            }
            if size > limit {
                return wrong(format!(
                    "a block size of {size} bytes is above the device's limit of {limit} per command"
                ));
            }
        }
        let unit = self.block_sizes.min_bytes();
        if self.block_sizes.shares().iter().any(|share| share.0 % unit != 0) {
            return wrong("every block size must be a multiple of the smallest".into());
        }
        let whole = disk.size_bytes;
        let start = self.offset.of(whole).next_multiple_of(unit);
        let len = self.size.map_or(whole.saturating_sub(start), |size| size.of(whole));
        if start.checked_add(len).is_none_or(|end| end > whole) {
            return wrong(format!("the range of {len} bytes from {start} ends beyond the drive's {whole} bytes"));
        }
        let copies = if self.verify { u64::from(self.numjobs) } else { 1 };
        let share = len / copies / unit * unit;
        if share < self.block_sizes.max_bytes() {
            return wrong(format!("the range of {share} bytes is smaller than one block: raise --size"));
        }
        Ok(Range { start_bytes: start + share * (u64::from(copy) % copies), len_bytes: share })
    }

    /// What the queue of copy `copy` counts for, if that was asked for.
    pub fn queue_priority(&self, copy: u16) -> Option<QueuePriority> {
        let at = usize::from(copy).checked_rem(self.queue_priorities.len())?;
        self.queue_priorities.get(at).copied()
    }

    /// Its name in results.
    pub fn title(&self, target: &str) -> String {
        if self.name.is_empty() { target.to_string() } else { self.name.clone() }
    }
}
