//! Zeroes the ranges of new tenants before their first client: what an earlier tenant left there is nobody's to read.
//!
//! On a thread of its own, one range after the other: zeroing may take as long as writing the whole drive, and neither
//! the owner nor a poller can wait for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use confine::ThreadKind;
use layout::Placement;

use crate::daemon::{Command, Handle};
use crate::drive::ZeroRange;
use crate::threads;

/// Bytes zeroed at a time; between two of them the thread can end.
const STEP_BYTES: u64 = 64 << 20;

/// How often a long one is recorded and told.
const REPORT_PERIOD: Duration = Duration::from_secs(5);

/// How far the range of the named tenant is.
pub struct Zeroed {
    /// Whose.
    pub name: String,
    /// So much from its start is zeroed, durably; or why it can't be.
    pub result: Result<u64>,
}

/// The thread.
pub struct Zeroing {
    jobs: Sender<Placement>,
    stop: Arc<AtomicBool>,
}

impl Zeroing {
    /// Starts it. The owner hears of each range by [`Command::Zeroed`].
    ///
    /// # Errors
    /// The kernel has no thread left.
    pub fn start(drive: Box<dyn ZeroRange>, handle: Handle) -> Result<Self> {
        let (jobs, placements) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let worker = Worker { drive, handle, stop: Arc::clone(&stop) };
        let spawned = std::thread::Builder::new().name("zeroing".into()).spawn(move || {
            threads::enter(ThreadKind::Zeroing);
            worker.run(&placements);
        });
        spawned.context("can't start the thread that zeroes new ranges")?;
        Ok(Self { jobs, stop })
    }

    /// Has what is left of a range zeroed.
    pub fn zero(&self, placement: &Placement) {
        // A thread that ended was told to.
        let _ = self.jobs.send(placement.clone());
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
    handle: Handle,
    stop: Arc<AtomicBool>,
}

impl Worker {
    fn run(mut self, placements: &Receiver<Placement>) {
        while let Ok(placement) = placements.recv() {
            let result = self.zero(&placement);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.tell(&placement, result);
        }
    }

    fn tell(&self, placement: &Placement, result: Result<u64>) {
        self.handle.tell(Command::Zeroed(Zeroed { name: placement.name.clone(), result }));
    }

    /// Up to its end, or until the thread is to stop.
    fn zero(&mut self, placement: &Placement) -> Result<u64> {
        let mut done_bytes = placement.zeroed_bytes.unwrap_or_else(|| placement.size_bytes());
        let (extents, mut reported) = (placement.to_look_up(), Instant::now());
        while let Some((offset_bytes, follow_bytes)) = extents.locate(done_bytes)
            && !self.stop.load(Ordering::Relaxed)
        {
            let step = STEP_BYTES.min(follow_bytes);
            self.drive.zero(offset_bytes, step)?;
            done_bytes += step;
            if reported.elapsed() >= REPORT_PERIOD {
                self.drive.sync()?;
                self.tell(placement, Ok(done_bytes));
                reported = Instant::now();
            }
        }
        self.drive.sync()?;
        Ok(done_bytes)
    }
}
