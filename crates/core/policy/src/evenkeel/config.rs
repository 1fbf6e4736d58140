//! What the policy is told of a drive, and what others may have with it at most.

use io_model::Nanos;

use super::owed::MOST_OWED;
use super::work::MEDIUM_BYTES;
use crate::cost::Cost;
use crate::{ConfigError, DriveFigures, LpnsConfig};

/// What others may have at most, in multiples of what keeps the drive busy with short commands.
const LENT: f64 = 4.0;
/// And of short commands where several share that.
const SHARED: f64 = 1.5;

/// Settings of [`Evenkeel`](super::Evenkeel): what it expects of a drive, until it has seen more.
#[derive(Debug, Clone, PartialEq)]
pub struct EvenkeelConfig {
    /// Reference commands (4 KiB random writes) that the drive completes per second under full load.
    pub rate_iops: f64,
    /// What a command takes that finds the drive idle; of the slowest kind in use.
    pub alone: Nanos,
    /// Reference commands in flight that keep the drive busy: nobody needs more, and weights would have no say.
    pub max_in_flight: u32,
    /// Reference commands that best-effort tenants may always have in flight together, whatever is missed.
    pub floor_in_flight: u32,
    /// What commands cost in reference commands.
    pub cost: Cost,
    /// Nobody said which drive it is, and it may need more to be busy.
    pub is_assumed: bool,
}

impl EvenkeelConfig {
    /// Intel Optane P5800X, 400 GB.
    pub fn p5800x() -> Self {
        let LpnsConfig { r_iops, l_h, floor_in_flight, cost, .. } = LpnsConfig::p5800x();
        Self { rate_iops: r_iops, alone: l_h, max_in_flight: 48, floor_in_flight, cost, is_assumed: false }
    }

    /// Reference commands that others may have with the drive: at most, and while nobody is active who was promised a
    /// latency.
    pub fn lent(&self) -> f64 {
        self.times(LENT)
    }

    /// The same of commands of one length. Where several share, short ones wait with us rather than in the drive, which
    /// knows no weights; there are few longer ones for as much work, so these do as it is, and a drive that is fed by
    /// few needs them.
    pub fn lent_of(&self, len_bytes: u64, is_shared: bool) -> f64 {
        let waits_here = is_shared && !self.is_assumed && len_bytes < MEDIUM_BYTES;
        self.times(if waits_here { SHARED } else { LENT })
    }

    /// So many times what keeps the drive busy, and what is owed at least.
    fn times(&self, factor: f64) -> f64 {
        (f64::from(self.max_in_flight) * factor).max(MOST_OWED.into())
    }

    /// On a drive.
    pub fn on(drive: &DriveFigures) -> Self {
        let DriveFigures { lpns, max_in_flight, is_assumed, .. } = drive;
        Self {
            rate_iops: lpns.r_iops,
            alone: lpns.l_h,
            max_in_flight: *max_in_flight,
            floor_in_flight: lpns.floor_in_flight,
            cost: lpns.cost,
            is_assumed: *is_assumed,
        }
    }

    /// # Errors
    /// A setting out of its range.
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let rate_is_one = self.rate_iops >= 1.0 && self.rate_iops <= 1e9;
        ConfigError::check(rate_is_one, "rate_iops", "must be from 1 to 1000000000 per second")?;
        let alone_is_one = self.alone > Nanos(0) && self.alone <= Nanos::from_millis(1000);
        ConfigError::check(alone_is_one, "alone", "must be above 0 and at most 1 s")?;
        ConfigError::check(self.max_in_flight >= 1, "max_in_flight", "must be at least 1")?;
        ConfigError::check(self.floor_in_flight >= 1, "floor_in_flight", "must be at least 1")?;
        Ok(())
    }
}
