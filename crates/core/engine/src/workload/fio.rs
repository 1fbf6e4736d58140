//! A closed loop, as fio runs it with `ioengine=libaio`.

use fastrand::Rng;
use io_model::Nanos;

use super::access::{Access, Picker};
use super::{WorkloadError, seed, within};
use crate::{Action, Job, Shape};

/// Each of `jobs` threads keeps `iodepth` I/Os outstanding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fio {
    /// Threads: fio's `numjobs`, the papers' n.
    pub jobs: u32,
    /// I/Os that each keeps outstanding: the papers' d.
    pub iodepth: u32,
    /// Its load.
    pub access: Access,
}

impl Fio {
    /// 4 KiB random I/Os over the whole disk: the papers' `n{jobs}d{iodepth}`.
    pub fn random_4k(jobs: u32, iodepth: u32, read_percent: u8) -> Self {
        Self { jobs, iodepth, access: Access::random_4k(read_percent) }
    }

    pub(super) fn validate(&self, disk_bytes: u64) -> Result<(), WorkloadError> {
        within("iodepth", self.iodepth.into(), 1..=65_536, "1 to 65536")?;
        self.access.validate(self.jobs, disk_bytes)
    }

    pub(super) fn jobs(&self, disk_bytes: u64, seed: u64) -> Vec<Box<dyn Job>> {
        let job = |index: u32| -> Box<dyn Job> {
            Box::new(FioJob {
                picker: self.access.picker(index, self.jobs, disk_bytes),
                rng: seed::rng(seed, index.into()),
                in_flight: 0,
                iodepth: self.iodepth,
            })
        };
        (0..self.jobs).map(job).collect()
    }
}

/// One thread of [`Fio`].
struct FioJob {
    picker: Picker,
    rng: Rng,
    in_flight: u32,
    iodepth: u32,
}

impl Job for FioJob {
    fn next(&mut self, _now: Nanos) -> Action {
        if self.in_flight >= self.iodepth {
            return Action::WaitCompletion;
        }
        self.in_flight += 1;
        Action::Submit { shape: self.picker.pick(&mut self.rng), since: None }
    }

    fn completed(&mut self, _shape: &Shape, _latency: Nanos, _now: Nanos) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }
}
