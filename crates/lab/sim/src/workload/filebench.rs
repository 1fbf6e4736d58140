//! Two of Filebench's personalities, as the I/Os that they cause.

use fastrand::Rng;
use io_model::{Nanos, Op};

use super::access::MAX_JOBS;
use super::{WorkloadError, seed, within};
use crate::{Action, Job, Operation, Shape};

const KIB: u64 = 1024;

/// The log of each thread, at the end of the disk.
const LOG_BYTES: u64 = 16 << 20;

/// Which of Filebench's personalities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Personality {
    /// Reads ten whole files of 16 to 64 KiB, then appends 16 KiB to a log.
    Webserver,
    /// Writes a new file of 128 KiB, appends 16 KiB to another and reads a third of 128 KiB.
    Fileserver,
}

/// A closed loop of file operations. An operation ends before its thread starts the next, and so does each I/O of an
/// operation. See [`ASSUMPTIONS`](Self::ASSUMPTIONS).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filebench {
    /// What each thread does.
    pub personality: Personality,
    /// How many there are. FairNVMe (section 5.4) has 8.
    pub threads: u32,
    /// The largest I/O: longer ones are split. A multiple of 4096.
    pub max_io_bytes: u32,
}

impl Filebench {
    /// What a reader of its figures must know.
    pub const ASSUMPTIONS: [&'static str; 4] = [
        "Filebench is reduced to the I/Os of its file operations; opening, closing, deleting and looking up files \
         cost nothing.",
        "No read is served from the guest's page cache and each write goes to the drive at once, so that the drive and \
         not the guest's memory is measured.",
        "Files are contiguous, start at multiples of 4 KiB and lie evenly over the disk; sizes are even between 16 and \
         64 KiB (webserver) or fixed at 128 KiB (fileserver) where Filebench draws them from a gamma distribution.",
        "FairNVMe gives only the personalities and 8 threads; the sizes of the appends are Filebench's own.",
    ];

    /// Eight threads, as in FairNVMe, with I/Os of up to 128 KiB.
    pub fn new(personality: Personality) -> Self {
        Self { personality, threads: 8, max_io_bytes: 128 << 10 }
    }

    pub(super) fn validate(&self, disk_bytes: u64) -> Result<(), WorkloadError> {
        within("threads", self.threads.into(), 1..=MAX_JOBS, "1 to 1024")?;
        let io_blocks = if self.max_io_bytes.is_multiple_of(4096) { self.max_io_bytes / 4096 } else { 0 };
        if !(1..=4096).contains(&io_blocks) {
            let value = self.max_io_bytes.into();
            let expected = "a multiple of 4096, up to 16 MiB";
            return Err(WorkloadError::Range { name: "max_io_bytes", value, expected });
        }
        let need_bytes = u64::from(self.threads) * LOG_BYTES + 256 * KIB;
        if disk_bytes < need_bytes {
            return Err(WorkloadError::Space { jobs: self.threads, need_bytes, have_bytes: disk_bytes });
        }
        Ok(())
    }

    pub(super) fn jobs(&self, disk_bytes: u64, seed: u64) -> Vec<Box<dyn Job>> {
        let files_bytes = disk_bytes / 4096 * 4096 - u64::from(self.threads) * LOG_BYTES;
        let job = |index: u32| -> Box<dyn Job> {
            Box::new(FileJob {
                personality: self.personality,
                max_io_bytes: self.max_io_bytes.into(),
                rng: seed::rng(seed, index.into()),
                files_bytes,
                log_start: files_bytes + u64::from(index) * LOG_BYTES,
                log_at: 0,
                step: 0,
                kind: "read",
                op: Op::Read,
                offset: 0,
                left: 0,
                in_flight: false,
                started: Nanos(0),
                ended: None,
            })
        };
        (0..self.threads).map(job).collect()
    }
}

/// One thread of [`Filebench`].
struct FileJob {
    personality: Personality,
    max_io_bytes: u64,
    rng: Rng,
    files_bytes: u64,
    log_start: u64,
    /// How far the log is written.
    log_at: u64,
    /// The operation's place in the personality's loop.
    step: u32,
    kind: &'static str,
    op: Op,
    /// What is left of the operation.
    offset: u64,
    left: u64,
    in_flight: bool,
    started: Nanos,
    ended: Option<Operation>,
}

impl FileJob {
    fn start(&mut self, now: Nanos) {
        self.started = now;
        match (self.personality, self.step) {
            (Personality::Webserver, 0..10) => {
                let len = self.rng.u64(4..=16) * 4 * KIB;
                self.file("read", Op::Read, len);
            }
            (Personality::Webserver, _) => self.log(16 * KIB),
            (Personality::Fileserver, 0) => self.file("write", Op::Write, 128 * KIB),
            (Personality::Fileserver, 1) => self.file("append", Op::Write, 16 * KIB),
            (Personality::Fileserver, _) => self.file("read", Op::Read, 128 * KIB),
        }
        let steps = match self.personality {
            Personality::Webserver => 11,
            Personality::Fileserver => 3,
        };
        self.step = (self.step + 1) % steps;
    }

    fn file(&mut self, kind: &'static str, op: Op, len: u64) {
        self.kind = kind;
        self.op = op;
        self.offset = self.rng.u64(..=(self.files_bytes - len) / 4096) * 4096;
        self.left = len;
    }

    fn log(&mut self, len: u64) {
        self.kind = "append";
        self.op = Op::Write;
        self.offset = self.log_start + self.log_at;
        self.left = len;
        self.log_at = (self.log_at + len) % LOG_BYTES;
    }
}

impl Job for FileJob {
    fn next(&mut self, now: Nanos) -> Action {
        if self.in_flight {
            return Action::WaitCompletion;
        }
        if self.left == 0 {
            self.start(now);
        }
        let len = self.left.min(self.max_io_bytes);
        let shape = Shape { op: self.op, offset_bytes: self.offset, len_bytes: len as u32 };
        self.offset += len;
        self.left -= len;
        self.in_flight = true;
        Action::Submit { shape, since: None }
    }

    fn completed(&mut self, _shape: &Shape, _latency: Nanos, now: Nanos) {
        self.in_flight = false;
        if self.left == 0 {
            self.ended = Some(Operation { kind: self.kind, latency: now - self.started });
        }
    }

    fn take_operation(&mut self) -> Option<Operation> {
        self.ended.take()
    }
}
