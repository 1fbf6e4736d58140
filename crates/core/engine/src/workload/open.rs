//! An open loop: I/Os arrive on their own clock.

use fastrand::Rng;
use io_model::Nanos;

use super::access::{Access, Picker};
use super::{WorkloadError, seed, within, within_f64};
use crate::{Action, Job, Shape};

/// The highest rate of an open loop, in I/Os per second.
pub(super) const MAX_IOPS: f64 = 1e8;

/// When I/Os arrive. Rates are those of all jobs together, in I/Os per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// Independent of each other: exponential gaps.
    Poisson {
        /// The mean rate.
        iops: f64,
    },
    /// Equal gaps. The jobs take turns.
    Constant {
        /// The rate.
        iops: f64,
    },
    /// Poisson arrivals for `on`, none for `off`, and so on; all jobs at the same times, beginning with `on`.
    Bursts {
        /// The mean rate while on.
        iops: f64,
        /// How long each burst lasts; above 0.
        on: Nanos,
        /// How long each pause lasts.
        off: Nanos,
    },
}

/// I/Os that arrive whether or not the last one ended. Each latency counts from the arrival, so time spent waiting
/// for a slot counts too: a slow system can't make its own load lighter (no coordinated omission).
#[derive(Debug, Clone, PartialEq)]
pub struct Open {
    /// Threads; each gets an equal part of the arrivals.
    pub jobs: u32,
    /// When.
    pub arrivals: Arrivals,
    /// What.
    pub access: Access,
    /// I/Os that each job may have outstanding. An arrival above that waits for a completion.
    pub max_outstanding: u32,
}

impl Open {
    /// 4 KiB random I/Os with Poisson arrivals over the whole disk, up to 4096 outstanding per job.
    pub fn random_4k(jobs: u32, iops: f64, read_percent: u8) -> Self {
        Self {
            jobs,
            arrivals: Arrivals::Poisson { iops },
            access: Access::random_4k(read_percent),
            max_outstanding: 4096,
        }
    }

    pub(super) fn validate(&self, disk_bytes: u64) -> Result<(), WorkloadError> {
        let iops = match self.arrivals {
            Arrivals::Poisson { iops } | Arrivals::Constant { iops } => iops,
            Arrivals::Bursts { iops, on, off } => {
                let longest = 1_000_000_000_000;
                within("on", on.0, 1..=longest, "1 ns to 1000 s")?;
                within("off", off.0, 0..=longest, "0 to 1000 s")?;
                iops
            }
        };
        within_f64("iops", iops, 1e-3, MAX_IOPS, "0.001 to 100000000")?;
        let outstanding = self.max_outstanding.into();
        within("max_outstanding", outstanding, 1..=65_536, "1 to 65536")?;
        self.access.validate(self.jobs, disk_bytes)
    }

    pub(super) fn jobs(&self, disk_bytes: u64, seed: u64) -> Vec<Box<dyn Job>> {
        let job = |index: u32| -> Box<dyn Job> {
            let clock = Clock::new(self.arrivals, index, self.jobs);
            let picker = self.access.picker(index, self.jobs, disk_bytes);
            let rng = seed::rng(seed, index.into());
            Box::new(OpenJob::new(clock, picker, rng, self.max_outstanding))
        };
        (0..self.jobs).map(job).collect()
    }
}

/// The arrivals of one job, as times since its start.
pub(super) trait Arrive {
    /// The next, in nanoseconds since the job's start; never before the one before.
    fn next_ns(&mut self, rng: &mut Rng) -> f64;
}

/// [`Arrivals`] of one job.
struct Clock {
    arrivals: Arrivals,
    mean_gap_ns: f64,
    /// The last arrival, not counting pauses.
    at_ns: f64,
}

impl Clock {
    fn new(arrivals: Arrivals, index: u32, jobs: u32) -> Self {
        let (Arrivals::Poisson { iops } | Arrivals::Constant { iops } | Arrivals::Bursts { iops, .. }) = arrivals;
        let mean_gap_ns = 1e9 * f64::from(jobs) / iops;
        let at_ns = match arrivals {
            // Job 0 begins at 0, the others follow at equal gaps.
            Arrivals::Constant { .. } => mean_gap_ns * (f64::from(index) / f64::from(jobs) - 1.0),
            Arrivals::Poisson { .. } | Arrivals::Bursts { .. } => 0.0,
        };
        Self { arrivals, mean_gap_ns, at_ns }
    }
}

impl Arrive for Clock {
    fn next_ns(&mut self, rng: &mut Rng) -> f64 {
        self.at_ns += match self.arrivals {
            Arrivals::Constant { .. } => self.mean_gap_ns,
            Arrivals::Poisson { .. } | Arrivals::Bursts { .. } => self.mean_gap_ns * seed::exponential(rng),
        };
        match self.arrivals {
            Arrivals::Bursts { on, off, .. } => {
                // The clock runs in bursts only: put back the pauses that lie before it.
                let pauses = (self.at_ns / on.0 as f64).floor();
                self.at_ns + pauses * off.0 as f64
            }
            Arrivals::Poisson { .. } | Arrivals::Constant { .. } => self.at_ns,
        }
    }
}

/// One thread of an open loop.
pub(super) struct OpenJob<C> {
    clock: C,
    picker: Picker,
    rng: Rng,
    outstanding: u32,
    max_outstanding: u32,
    /// When it was first asked; arrivals count from there.
    origin: Option<Nanos>,
    arrival: Nanos,
}

impl<C: Arrive> OpenJob<C> {
    pub(super) fn new(clock: C, picker: Picker, rng: Rng, max_outstanding: u32) -> Self {
        Self { clock, picker, rng, outstanding: 0, max_outstanding, origin: None, arrival: Nanos(0) }
    }

    fn draw(&mut self, origin: Nanos) {
        // Rounds down; below 0 (it can't be) and beyond the end of time saturate.
        self.arrival = origin + Nanos(self.clock.next_ns(&mut self.rng) as u64);
    }
}

impl<C: Arrive> Job for OpenJob<C> {
    fn next(&mut self, now: Nanos) -> Action {
        let origin = match self.origin {
            Some(origin) => origin,
            None => {
                self.origin = Some(now);
                self.draw(now);
                now
            }
        };
        if self.outstanding >= self.max_outstanding {
            return Action::WaitCompletion;
        }
        if self.arrival > now {
            return Action::WaitUntil(self.arrival);
        }
        let since = Some(self.arrival);
        self.draw(origin);
        self.outstanding += 1;
        Action::Submit { shape: self.picker.pick(&mut self.rng), since }
    }

    fn completed(&mut self, _shape: &Shape, _latency: Nanos, _now: Nanos) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }
}
