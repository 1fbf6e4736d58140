//! Zeroes the ranges of new tenants before their first client, and what others grow by: what an earlier tenant left
//! there is nobody's to read.
//!
//! On a thread of its own, one range after the other: zeroing may take as long as writing the whole drive, and neither
//! the owner nor a poller can wait for that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use confine::ThreadKind;
use io_model::TenantId;
use layout::Placement;

use crate::drive::ZeroRange;
use crate::happening::{Happening, Teller, Zeroed};
use crate::threads;

/// Bytes zeroed at a time; between two of them the thread can end.
const STEP_BYTES: u64 = 64 << 20;

/// How often a long one is recorded and told.
const REPORT_PERIOD: Duration = Duration::from_secs(5);

/// The thread.
pub struct Zeroing {
    jobs: Sender<Job>,
    stop: Arc<AtomicBool>,
    in_work: BTreeMap<TenantId, InWork>,
}

/// What is left of a range.
struct Job {
    tenant: TenantId,
    placement: Placement,
    cancelled: Arc<AtomicBool>,
}

/// A tenant's jobs.
#[derive(Default)]
struct InWork {
    jobs: u32,
    cancelled: Arc<AtomicBool>,
}

impl Zeroing {
    /// Starts it. The owner hears of each range by [`Happening::Zeroed`].
    ///
    /// # Errors
    /// The kernel has no thread left.
    pub fn start(drive: Box<dyn ZeroRange>, teller: Teller) -> Result<Self> {
        let (jobs, queue) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let worker = Worker { drive, teller, stop: Arc::clone(&stop) };
        let spawned = threads::spawn("zeroing", ThreadKind::Zeroing, move || worker.run(&queue));
        spawned.context("can't start the thread that zeroes new ranges")?;
        Ok(Self { jobs, stop, in_work: BTreeMap::new() })
    }

    /// Zeroes the rest of a range.
    pub fn zero(&mut self, tenant: TenantId, placement: &Placement) {
        let in_work = self.in_work.entry(tenant).or_default();
        in_work.jobs += 1;
        let job = Job { tenant, placement: placement.clone(), cancelled: Arc::clone(&in_work.cancelled) };
        // A thread that ended was told to.
        let _ = self.jobs.send(job);
    }

    /// Zeroes no more of what this tenant has. Until it [has no job](Self::has_job) left, something may still be
    /// written.
    pub fn cancel(&self, tenant: TenantId) {
        self.in_work.get(&tenant).iter().for_each(|in_work| in_work.cancelled.store(true, Ordering::Relaxed));
    }

    /// A tenant's job is over.
    pub fn ended(&mut self, tenant: TenantId) {
        if let Some(in_work) = self.in_work.get_mut(&tenant) {
            in_work.jobs -= 1;
            if in_work.jobs == 0 {
                self.in_work.remove(&tenant);
            }
        }
    }

    /// Whether something may be written where this tenant is, or was.
    pub fn has_job(&self, tenant: TenantId) -> bool {
        self.in_work.contains_key(&tenant)
    }
}

impl Drop for Zeroing {
    /// It ends after the step that it is at. Nobody waits for it: the next start goes on.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Worker {
    drive: Box<dyn ZeroRange>,
    teller: Teller,
    stop: Arc<AtomicBool>,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Job>) {
        while let Ok(job) = queue.recv() {
            let result = self.zero(&job);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.tell(&job, result, true);
        }
    }

    fn tell(&self, job: &Job, result: Result<u64>, is_over: bool) {
        self.teller.tell(Happening::Zeroed(Zeroed { tenant: job.tenant, result, is_over }));
    }

    /// Up to its end, or until the thread is to stop.
    fn zero(&mut self, job: &Job) -> Result<u64> {
        let placement = &job.placement;
        let mut done_bytes = placement.zeroed_bytes.unwrap_or_else(|| placement.size_bytes());
        let (extents, mut reported) = (placement.to_look_up(), Instant::now());
        let is_wanted = || !self.stop.load(Ordering::Relaxed) && !job.cancelled.load(Ordering::Relaxed);
        while is_wanted()
            && let Some((offset_bytes, follow_bytes)) = extents.locate(done_bytes)
        {
            let step = STEP_BYTES.min(follow_bytes);
            self.drive.zero(offset_bytes, step)?;
            done_bytes += step;
            if reported.elapsed() >= REPORT_PERIOD {
                self.drive.sync()?;
                self.tell(job, Ok(done_bytes), false);
                reported = Instant::now();
            }
        }
        self.drive.sync()?;
        Ok(done_bytes)
    }
}
