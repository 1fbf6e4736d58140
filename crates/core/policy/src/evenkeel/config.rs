//! What the policy knows of a drive, and the highest cap on best-effort work in flight.

use io_model::Nanos;

use super::owed::MOST_OWED;
use super::work::MEDIUM_BYTES;
use crate::cost::Cost;
use crate::{ConfigError, DriveFigures, LpnsConfig};

/// The highest cap, as a multiple of what keeps the drive busy with short commands.
const LENT: f64 = 4.0;
/// The highest cap for short commands, if several best-effort tenants share it.
const SHARED: f64 = 1.5;

/// Settings of [`Evenkeel`](super::Evenkeel): what it expects of a drive until it has measured more.
#[derive(Debug, Clone, PartialEq)]
pub struct EvenkeelConfig {
    /// Reference commands (4 KiB random writes) that the drive completes per second under full load.
    pub rate_iops: f64,
    /// Latency of a command on an idle drive, for the slowest kind of command in use.
    pub alone: Nanos,
    /// Reference commands in flight that keep the drive busy. More would not be faster, and would make weights useless.
    pub max_in_flight: u32,
    /// Reference commands that best-effort tenants may always have in flight together, even if promises are broken.
    pub floor_in_flight: u32,
    /// Costs of commands, in reference commands.
    pub cost: Cost,
    /// The configuration does not name the drive. It may need more in flight to be busy.
    pub is_assumed: bool,
}

impl EvenkeelConfig {
    /// Intel Optane P5800X, 400 GB.
    pub fn p5800x() -> Self {
        let LpnsConfig { r_iops, l_h, floor_in_flight, cost, .. } = LpnsConfig::p5800x();
        Self { rate_iops: r_iops, alone: l_h, max_in_flight: 48, floor_in_flight, cost, is_assumed: false }
    }

    /// The highest cap, in reference commands: also the cap while no tenant with a latency promise is active.
    pub fn lent(&self) -> f64 {
        self.times(LENT)
    }

    /// The highest cap for commands of one length, in reference commands.
    ///
    /// If several tenants share it, short commands wait in the poller rather than in the drive, which knows no weights.
    /// Long commands are few for the same work, so they wait here anyway. A drive with few commands in flight also
    /// needs them.
    pub fn lent_of(&self, len_bytes: u64, is_shared: bool) -> f64 {
        let waits_here = is_shared && !self.is_assumed && len_bytes < MEDIUM_BYTES;
        self.times(if waits_here { SHARED } else { LENT })
    }

    /// A multiple of what keeps the drive busy, but at least [`MOST_OWED`].
    fn times(&self, factor: f64) -> f64 {
        (f64::from(self.max_in_flight) * factor).max(MOST_OWED.into())
    }

    /// The settings for a drive.
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
    /// A setting is out of its range.
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
