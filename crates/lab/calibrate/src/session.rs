//! The stages in their order, and what they share.

use io_model::Backend;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::estimate::Estimate;
use crate::rig::{Failure, Rig, Shot};
use crate::seen::Seen;

/// The unit in which the model's times are given.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Samples of each time.
    pub rounds: usize,
    /// Commands of each load.
    pub cell_commands: usize,
    /// The longest that one load goes on, ns.
    pub cell_ns: u64,
    /// The longest that sustained writes go on, ns.
    pub sustained_ns: u64,
}

impl Effort {
    /// About half a minute for reads and a minute for writes on a drive with a latency of 100 µs.
    pub const FULL: Self =
        Self { rounds: 101, cell_commands: 50_000, cell_ns: 500_000_000, sustained_ns: 5_000_000_000 };
    /// A few seconds; intervals are wider.
    pub const QUICK: Self = Self { rounds: 31, cell_commands: 4_000, cell_ns: 60_000_000, sustained_ns: 2_000_000_000 };
}

/// One stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Lone commands and bursts.
    Basics,
    /// Which addresses lie on one unit.
    Stripe,
    /// How many units there are.
    Units,
    /// Reads of several sizes.
    Reads,
    /// Which units share a channel.
    Channels,
    /// How many commands the drive takes in.
    Window,
    /// How the drive takes turns among queues.
    Turns,
    /// Reads under load.
    ReadCells,
    /// Lone writes and bursts of writes.
    Writes,
    /// Reads beside writes.
    Beside,
    /// Writes that go on.
    Sustained,
    /// Writes and mixes under load.
    WriteCells,
}

impl Stage {
    /// Those that only read, in their order.
    pub const READING: [Self; 8] = [
        Self::Basics,
        Self::Stripe,
        Self::Units,
        Self::Reads,
        Self::Channels,
        Self::Window,
        Self::Turns,
        Self::ReadCells,
    ];
    /// Those that write, after the others.
    pub const WRITING: [Self; 4] = [Self::Writes, Self::Beside, Self::Sustained, Self::WriteCells];

    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Basics => "lone commands and bursts",
            Self::Stripe => "which addresses share a unit",
            Self::Units => "counting units",
            Self::Reads => "reads by size",
            Self::Channels => "which units share a channel",
            Self::Window => "commands that the drive takes in",
            Self::Turns => "turns among queues",
            Self::ReadCells => "reads under load",
            Self::Writes => "lone writes and bursts",
            Self::Beside => "reads beside writes",
            Self::Sustained => "sustained writes",
            Self::WriteCells => "writes and mixes under load",
        }
    }

    /// Whether it was done.
    pub fn is_done(self, seen: &Seen) -> bool {
        match self {
            Self::Basics => seen.basics.is_some(),
            Self::Stripe => seen.stripe_bytes.is_some(),
            Self::Units => seen.units.is_some(),
            Self::Reads => seen.reads.is_some(),
            Self::Channels => seen.channels.is_some(),
            Self::Window => seen.window.is_some(),
            Self::Turns => seen.burst.is_some(),
            Self::ReadCells => seen.read_cells.is_some(),
            Self::Writes => seen.writes.is_some(),
            Self::Beside => seen.beside.is_some(),
            Self::Sustained => seen.sustained.is_some(),
            Self::WriteCells => seen.write_cells.is_some(),
        }
    }
}

/// A calibration under way.
pub struct Session<'s, B, C> {
    pub(crate) rig: Rig<'s, B, C>,
    pub(crate) effort: Effort,
    /// What was seen up to now.
    pub seen: Seen,
}

impl<'s, B: Backend, C: Clock> Session<'s, B, C> {
    /// Begins, or goes on after `seen`.
    pub fn new(rig: Rig<'s, B, C>, effort: Effort, seen: Seen) -> Self {
        Self { rig, effort, seen }
    }

    /// The stages that this drive may be put through.
    pub fn stages(&self) -> impl Iterator<Item = Stage> + use<B, C> {
        let writing = self.rig.facts().overwrite.is_some();
        Stage::READING.into_iter().chain(Stage::WRITING.into_iter().filter(move |_| writing))
    }

    /// Does one stage; those before it were done.
    ///
    /// # Errors
    /// The drive fails a command or does not answer, or the operator wants to stop. What was seen before stays.
    pub fn run(&mut self, stage: Stage) -> Result<(), Failure> {
        match stage {
            Stage::Basics => self.seen.basics = Some(self.basics()?),
            Stage::Stripe => self.seen.stripe_bytes = Some(self.stripe()?),
            Stage::Units => self.seen.units = Some(self.units()?),
            Stage::Reads => self.seen.reads = Some(self.reads()?),
            Stage::Channels => self.seen.channels = Some(self.channels()?),
            Stage::Window => self.seen.window = Some(self.window()?),
            Stage::Turns => self.seen.burst = Some(self.turns()?),
            Stage::ReadCells => self.seen.read_cells = Some(self.read_cells()?),
            Stage::Writes => self.seen.writes = Some(self.write_times()?),
            Stage::Beside => self.seen.beside = Some(self.beside()?),
            Stage::Sustained => self.seen.sustained = Some(self.sustained()?),
            Stage::WriteCells => self.seen.write_cells = Some(self.write_cells()?),
        }
        Ok(())
    }

    /// Does all stages that are not done.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_all(&mut self) -> Result<(), Failure> {
        let stages: Vec<Stage> = self.stages().filter(|stage| !stage.is_done(&self.seen)).collect();
        stages.into_iter().try_for_each(|stage| self.run(stage))
    }

    /// Time that the host lost since this session began, ns; see [`Clock::lost`].
    pub fn lost_ns(&self) -> u64 {
        self.rig.lost_ns()
    }

    /// The stripe as far as it is known.
    pub(crate) fn stripe_bytes(&self) -> u64 {
        self.seen.stripe_bytes.flatten().unwrap_or(ASSUMED_STRIPE_BYTES)
    }

    /// A random multiple of `step_bytes` where `len_bytes` can be read.
    pub(crate) fn place(&mut self, step_bytes: u64, len_bytes: u64) -> u64 {
        let steps = self.rig.facts().size_bytes.saturating_sub(len_bytes) / step_bytes.max(1) + 1;
        self.rig.rng.u64(..steps) * step_bytes
    }

    /// The next place that may be overwritten.
    pub(crate) fn place_to_write(&mut self, step_bytes: u64, len_bytes: u64) -> u64 {
        let (start, range_bytes) = self.rig.facts().overwrite.unwrap_or_default();
        let first = start.next_multiple_of(step_bytes.max(1));
        let steps = (start + range_bytes).saturating_sub(first + len_bytes) / step_bytes.max(1) + 1;
        first + self.rig.rng.u64(..steps) * step_bytes
    }

    /// The time between two completions of a burst, less the loop's own part.
    pub(crate) fn spacing(&mut self, shots: &[Shot]) -> Result<f64, Failure> {
        let finished = self.rig.burst(shots)?;
        let (first, last) = (finished.iter().min(), finished.iter().max());
        let span = last.zip(first).map_or(0, |(last, first)| last - first) as f64;
        let own_ns = self.rig.facts().own_ns.1;
        Ok((span / (shots.len().max(2) - 1) as f64 - own_ns).max(0.0))
    }

    /// Whether the last of these commands, which come at once, has to wait for another: it is later than `late_ns`.
    /// A busy host makes commands late, never early, so it takes three times.
    pub(crate) fn waits(&mut self, shots: &[Shot], late_ns: f64) -> Result<bool, Failure> {
        for _ in 0..3 {
            let finished = self.rig.burst(shots)?;
            if finished.last().is_none_or(|at_ns| (*at_ns as f64) < late_ns) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// What is taken where it can't be seen.
pub(crate) const ASSUMED_STRIPE_BYTES: u64 = 16 << 10;

/// A median that has samples.
pub(crate) fn median(mut samples: Vec<f64>) -> Estimate {
    Estimate::median(&mut samples).unwrap_or(Estimate::exact(0.0))
}

/// The low end of samples: what a burst takes if nothing collides and the host is not busy.
pub(crate) fn least(mut samples: Vec<f64>) -> Estimate {
    samples.sort_by(f64::total_cmp);
    samples.truncate((samples.len() / 5).max(1));
    median(samples)
}
