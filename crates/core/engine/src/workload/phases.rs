//! A closed loop that does something else from time to time, or nothing.

use fastrand::Rng;
use io_model::Nanos;

use super::access::{Access, Picker};
use super::{WorkloadError, seed, within};
use crate::{Action, Job, Operation, Shape};

/// I/Os after a pause that count as [`WAKING`].
const FIRST: u32 = 19;
/// Operations' kinds, where a loop has pauses: the first 19 I/Os of a thread after one, and all later ones.
pub const WAKING: &str = "waking";
/// See [`WAKING`].
pub const AWAKE: &str = "awake";

/// What is done for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phase {
    /// How long; above 0.
    pub lasts: Nanos,
    /// `None`: nothing.
    pub access: Option<Access>,
}

/// Each of `jobs` threads keeps `iodepth` I/Os outstanding, of the kind that the phase has. All threads of all tenants
/// change at the same times, from time 0 on, and begin anew after the last phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phases {
    /// Threads.
    pub jobs: u32,
    /// I/Os that each keeps outstanding.
    pub iodepth: u32,
    /// In their order; at least one.
    pub phases: Vec<Phase>,
}

impl Phases {
    pub(super) fn validate(&self, disk_bytes: u64) -> Result<(), WorkloadError> {
        within("iodepth", self.iodepth.into(), 1..=65_536, "1 to 65536")?;
        if self.phases.is_empty() {
            return Err(WorkloadError::Empty("phases"));
        }
        for Phase { lasts, access } in &self.phases {
            within("lasts", lasts.0, 1..=1_000_000_000_000, "1 ns to 1000 s")?;
            if let Some(access) = access {
                access.validate(self.jobs, disk_bytes)?;
            }
        }
        Ok(())
    }

    pub(super) fn jobs(&self, disk_bytes: u64, seed: u64) -> Vec<Box<dyn Job>> {
        let has_pauses = self.phases.iter().any(|phase| phase.access.is_none());
        let job = |index: u32| -> Box<dyn Job> {
            let phase = |Phase { lasts, access }: &Phase| {
                (lasts.0, access.as_ref().map(|access| access.picker(index, self.jobs, disk_bytes)))
            };
            Box::new(PhasesJob {
                phases: self.phases.iter().map(phase).collect(),
                round_ns: self.phases.iter().map(|phase| phase.lasts.0).sum(),
                rng: seed::rng(seed, index.into()),
                in_flight: 0,
                iodepth: self.iodepth,
                since_pause: has_pauses.then_some(0),
                ended: None,
            })
        };
        (0..self.jobs).map(job).collect()
    }
}

/// One thread of [`Phases`].
struct PhasesJob {
    /// How long each lasts, and its load.
    phases: Box<[(u64, Option<Picker>)]>,
    round_ns: u64,
    rng: Rng,
    in_flight: u32,
    iodepth: u32,
    /// I/Os that ended since the last pause, where there are pauses.
    since_pause: Option<u32>,
    ended: Option<Operation>,
}

impl PhasesJob {
    /// The phase at this time, and when it ends.
    fn at(&self, now: Nanos) -> (usize, Nanos) {
        let mut end_ns = now.0 - now.0 % self.round_ns;
        for (at, (lasts_ns, _)) in self.phases.iter().enumerate() {
            end_ns += lasts_ns;
            if now.0 < end_ns {
                return (at, Nanos(end_ns));
            }
        }
        (0, Nanos(end_ns))
    }
}

impl Job for PhasesJob {
    fn next(&mut self, now: Nanos) -> Action {
        let (at, end) = self.at(now);
        let Some(picker) = &mut self.phases[at].1 else {
            self.since_pause = Some(0);
            return Action::WaitUntil(end);
        };
        if self.in_flight >= self.iodepth {
            return Action::WaitCompletion;
        }
        self.in_flight += 1;
        Action::Submit { shape: picker.pick(&mut self.rng), since: None }
    }

    fn completed(&mut self, _shape: &Shape, latency: Nanos, now: Nanos) {
        self.in_flight = self.in_flight.saturating_sub(1);
        // What ends in a pause was asked for before it.
        let pauses = self.phases[self.at(now).0].1.is_none();
        if let Some(ended) = &mut self.since_pause {
            let kind = if *ended < FIRST && !pauses { WAKING } else { AWAKE };
            *ended = if pauses { 0 } else { ended.saturating_add(1) };
            self.ended = Some(Operation { kind, latency });
        }
    }

    fn take_operation(&mut self) -> Option<Operation> {
        self.ended.take()
    }
}
