//! Which operation, where and how much.

use fastrand::Rng;
use io_model::Op;

use super::{WorkloadError, seed, within};
use crate::Shape;

/// The largest I/O a workload may ask for, in bytes.
const MAX_BLOCK_BYTES: u64 = 16 << 20;

/// The most jobs of one workload.
pub(super) const MAX_JOBS: u64 = 1024;

/// How the place of each I/O follows from the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Anywhere in the working set, aligned to the smallest block size; all jobs share the working set.
    Random,
    /// One after another, reads and writes alike, each job in a part of its own of the working set; from the start
    /// again at its end.
    Sequential,
}

/// One of the block sizes of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSize {
    /// The size in bytes: a multiple of 512, up to 16 MiB.
    pub bytes: u32,
    /// Its part of the I/Os, relative to the other sizes' weights; above 0.
    pub weight: u32,
}

/// Which operation, where and how much: what fio calls `rwmixread`, `rw`, `bssplit` and `size`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Reads in 100 I/Os, drawn independently for each I/O; the others are writes.
    pub read_percent: u8,
    /// Where.
    pub pattern: Pattern,
    /// How much: at least one size.
    pub block_sizes: Vec<BlockSize>,
    /// The I/Os stay in this many bytes from the start of the disk; `None`: the whole disk.
    pub working_set_bytes: Option<u64>,
}

impl Access {
    /// 4 KiB random I/Os over the whole disk.
    pub fn random_4k(read_percent: u8) -> Self {
        Self {
            read_percent,
            pattern: Pattern::Random,
            block_sizes: vec![BlockSize { bytes: 4096, weight: 1 }],
            working_set_bytes: None,
        }
    }

    pub(super) fn validate(&self, jobs: u32, disk_bytes: u64) -> Result<(), WorkloadError> {
        within("jobs", jobs.into(), 1..=MAX_JOBS, "1 to 1024")?;
        within("read_percent", self.read_percent.into(), 0..=100, "0 to 100")?;
        if self.block_sizes.is_empty() {
            return Err(WorkloadError::Empty("block_sizes"));
        }
        for size in &self.block_sizes {
            let bytes = if size.bytes.is_multiple_of(512) { u64::from(size.bytes) } else { 0 };
            if !(512..=MAX_BLOCK_BYTES).contains(&bytes) {
                return Err(WorkloadError::Range {
                    name: "block size",
                    value: size.bytes.into(),
                    expected: "a multiple of 512, up to 16 MiB",
                });
            }
            within("weight", size.weight.into(), 1..=1_000_000, "1 to 1000000")?;
        }
        let largest = self.largest_bytes();
        let need_bytes = match self.pattern {
            Pattern::Random => largest,
            // Room for the alignment of each part.
            Pattern::Sequential => largest.saturating_mul(2).saturating_mul(jobs.into()),
        };
        let have_bytes = self.space_bytes(disk_bytes);
        if have_bytes < need_bytes {
            return Err(WorkloadError::Space { jobs, need_bytes, have_bytes });
        }
        Ok(())
    }

    fn space_bytes(&self, disk_bytes: u64) -> u64 {
        self.working_set_bytes.unwrap_or(disk_bytes).min(disk_bytes)
    }

    fn largest_bytes(&self) -> u64 {
        let sizes = self.block_sizes.iter().map(|size| size.bytes.into());
        sizes.max().unwrap_or(512)
    }

    fn smallest_bytes(&self) -> u64 {
        let sizes = self.block_sizes.iter().map(|size| size.bytes.into());
        sizes.min().unwrap_or(512)
    }

    /// The picker of job `index` of `jobs`. Call only what validated.
    pub(super) fn picker(&self, index: u32, jobs: u32, disk_bytes: u64) -> Picker {
        let align = self.smallest_bytes();
        let space = self.space_bytes(disk_bytes);
        let (start, end) = match self.pattern {
            Pattern::Random => (0, space),
            Pattern::Sequential => {
                let part = space / u64::from(jobs.max(1)) / align * align;
                (part * u64::from(index), part * u64::from(index + 1))
            }
        };
        let mut weight_sum = 0;
        let choices = self.block_sizes.iter().map(|size| {
            weight_sum += u64::from(size.weight);
            Choice {
                below: weight_sum,
                len_bytes: size.bytes,
                places: (end - start).saturating_sub(size.bytes.into()) / align + 1,
            }
        });
        Picker {
            choices: choices.collect(),
            weight_sum,
            read_percent: self.read_percent,
            pattern: self.pattern,
            align,
            start,
            end,
            next: start,
        }
    }
}

/// A block size in a [`Picker`].
#[derive(Debug)]
struct Choice {
    /// Taken for a draw below this that is not below the choice before.
    below: u64,
    len_bytes: u32,
    /// How many aligned places such a block has.
    places: u64,
}

/// Draws the I/Os of one job.
#[derive(Debug)]
pub(super) struct Picker {
    choices: Box<[Choice]>,
    weight_sum: u64,
    read_percent: u8,
    pattern: Pattern,
    align: u64,
    start: u64,
    end: u64,
    /// Where the last sequential I/O ended.
    next: u64,
}

impl Picker {
    /// The next I/O. One to three random numbers, no allocation: this runs once per simulated I/O.
    pub(super) fn pick(&mut self, rng: &mut Rng) -> Shape {
        let (len_bytes, places) = self.size(rng);
        let offset_bytes = match self.pattern {
            Pattern::Random => self.start + seed::below(rng, places) * self.align,
            Pattern::Sequential => self.follow(len_bytes.into()),
        };
        Shape { op: self.op(rng), offset_bytes, len_bytes }
    }

    fn size(&self, rng: &mut Rng) -> (u32, u64) {
        let at = match &*self.choices {
            [only] => return (only.len_bytes, only.places),
            _ => seed::below(rng, self.weight_sum),
        };
        let hit = self.choices.iter().find(|choice| at < choice.below);
        hit.map_or((512, 1), |choice| (choice.len_bytes, choice.places))
    }

    fn op(&self, rng: &mut Rng) -> Op {
        let read = match self.read_percent {
            100.. => true,
            0 => false,
            percent => seed::below(rng, 100) < percent.into(),
        };
        if read { Op::Read } else { Op::Write }
    }

    fn follow(&mut self, len: u64) -> u64 {
        if self.next + len > self.end {
            self.next = self.start;
        }
        let offset = self.next;
        self.next += len;
        offset
    }
}
