//! What an operator sets, with the drives that the figures are known for.

use io_model::{Nanos, Op};

use crate::cost::{COST_UNIT, Cost, Curve};
use crate::{ConfigError, Variant};

/// A lone command's latency times this is `thresh_min`: 600 µs are printed for a drive whose lone read takes
/// 99.94 µs (FairNVMe §3.2 and Table 2).
const MIN_FACTOR: u64 = 6;

/// Commands per parallel unit that the drive is given at once; see [`FairConfig::window`].
const WINDOW_FACTOR: u64 = 6;

/// Settings of [`FairNvme`](crate::FairNvme). Start from a preset and change what differs.
#[derive(Debug, Clone, PartialEq)]
pub struct FairConfig {
    /// Which rules share the drive. Published: FairNVMe's Algorithm 1 and Eq. 3 to 7 as printed: weights that grow
    /// without bound, a share for the tenant that asks most, the first tenant first, nothing that limits work in
    /// flight. What
    /// is not printed is filled in with the least that runs: a first cost from the calibration, B_total = epoch ×
    /// parallel units, new budgets when nobody has both a command and budget. Configured weights don't count.
    /// Corrected: the same idea with bounded weights, calibrated costs and a drive that is never filled beyond need.
    pub variant: Variant,
    /// Thresh_min: a tenant whose latency is below is idle. Longer than a command takes a tenant that is alone.
    pub thresh_min: Nanos,
    /// Thresh_max: a tenant whose latency is this or more is saturated. A little longer than a command takes when the
    /// drive approaches saturation. Above `thresh_min` by 2 ns or more.
    pub thresh_max: Nanos,
    /// k_u of Eq. 4: how fast Thresh_cur follows a higher latency, 0 to 1.
    pub k_up: f64,
    /// k_d of Eq. 4: how fast it follows a lower one, 0 to 1.
    pub k_down: f64,
    /// β: by how much an unbalanced tenant's weight rises; a saturated one's rises by 2β. 0 to 1.
    pub beta: f64,
    /// The span that the total budget is for: B_total = `epoch` × `parallel_units`. At least 1 µs.
    pub epoch: Nanos,
    /// Commands that the drive works on at once (channels × planes, or what calibration found), 1 to 65536.
    pub parallel_units: u32,
    /// How long a reference command (cost [`COST_UNIT`]) keeps one unit busy. Above 0, at most 1 s.
    pub reference_time: Nanos,
    /// Work in flight per unit, corrected variant: with two or more tenants the drive is given this × `parallel_units`
    /// at once. More only moves the waiting from the tenants' queues, where turns are fair, into the drive's. Above 0,
    /// at most 10 s.
    pub window: Nanos,
    /// What commands cost in reference commands.
    pub cost: Cost,
}

impl FairConfig {
    /// A drive where a lone 4 KiB read takes `alone_latency`, a read under full load `saturation_latency`.
    ///
    /// While it works on a lone command one of `parallel_units` is busy, so `alone_latency` is also what a read costs;
    /// `cost` says what everything else costs beside it.
    pub fn for_drive(alone_latency: Nanos, saturation_latency: Nanos, parallel_units: u32, cost: Cost) -> Self {
        let read = u64::from(cost.of(Op::Read, 4096));
        Self {
            variant: Variant::default(),
            thresh_min: Nanos(alone_latency.0.saturating_mul(MIN_FACTOR)),
            thresh_max: saturation_latency,
            k_up: 0.01,
            k_down: 0.001,
            beta: 0.5,
            epoch: Nanos::from_millis(1),
            parallel_units,
            reference_time: Nanos(alone_latency.0.saturating_mul(u64::from(COST_UNIT)) / read),
            window: Nanos(alone_latency.0.saturating_mul(WINDOW_FACTOR)),
            cost,
        }
    }

    /// Intel DC P3520, 1.2 TB: thresholds of 600 and 3500 µs (FairNVMe §3.2), 36 units.
    pub fn p3520() -> Self {
        Self::for_drive(Nanos::from_micros(100), Nanos::from_micros(3_500), 36, Cost::default())
    }

    /// Samsung PM1735, 1.6 TB. The paper prints no thresholds for it: these are the P3520's in multiples of the
    /// lone read's 71.9 µs. 128 units; a read costs a fifth of a write (1000K against 200K/s).
    pub fn pm1735() -> Self {
        let cost = Cost { read: Curve::linear(13), ..Cost::default() };
        Self::for_drive(Nanos(71_900), Nanos(2_516_500), 128, cost)
    }

    /// Intel Optane P5800X, 400 GB; thresholds as for the PM1735, in multiples of 11.05 µs. 6 units, and nothing else
    /// that limits small commands: they need a larger window, or units idle while others have a queue. 7.2 GB/s, so
    /// that 64 KiB cost as much as 7.5 commands of 4 KiB.
    pub fn p5800x() -> Self {
        let curve = Curve::new([64, 83, 121, 242, 483, 967, 1_934, 3_868, 7_735]);
        let cost = Cost { read: curve, write: curve, ..Cost::default() };
        Self { window: Nanos(110_500), ..Self::for_drive(Nanos(11_050), Nanos(386_750), 6, cost) }
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first setting out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let second = Nanos::from_millis(1_000);
        let part = |value: f64| (0.0..=1.0).contains(&value);
        let rules = [
            (self.thresh_min > Nanos(0), "thresh_min", "must be above 0"),
            (self.thresh_max > self.thresh_min + Nanos(1), "thresh_max", "must be above thresh_min"),
            (self.thresh_max <= Nanos(60 * second.0), "thresh_max", "must be at most 60 s"),
            (part(self.k_up), "k_up", "must be from 0 to 1"),
            (part(self.k_down), "k_down", "must be from 0 to 1"),
            (part(self.beta), "beta", "must be from 0 to 1"),
            (self.epoch >= Nanos::from_micros(1) && self.epoch <= second, "epoch", "must be from 1 µs to 1 s"),
            ((1..=65_536).contains(&self.parallel_units), "parallel_units", "must be from 1 to 65536"),
            (
                self.reference_time > Nanos(0) && self.reference_time <= second,
                "reference_time",
                "must be above 0 and at most 1 s",
            ),
            (
                self.window > Nanos(0) && self.window <= Nanos(10 * second.0),
                "window",
                "must be above 0 and at most 10 s",
            ),
        ];
        match rules.iter().find(|rule| !rule.0) {
            Some((_, field, remedy)) => Err(ConfigError { field, remedy }),
            None => Ok(()),
        }
    }

    /// B_total: what all units together can do in an epoch, in ns of a unit.
    pub fn total_budget_ns(&self) -> u64 {
        self.epoch.0 * u64::from(self.parallel_units)
    }

    /// A cost in ns of a unit.
    pub(super) fn cost_ns(&self, ticks: u64) -> f64 {
        ticks as f64 * self.reference_time.0 as f64 / f64::from(COST_UNIT)
    }

    /// The window in cost ticks; at least one reference command for each unit, or the drive could not be kept busy.
    pub(super) fn window_ticks(&self) -> u64 {
        let per_unit = (self.window.0 * u64::from(COST_UNIT) / self.reference_time.0).max(1);
        per_unit * u64::from(self.parallel_units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_nonsense_is_named() {
        for config in [FairConfig::p3520(), FairConfig::pm1735(), FairConfig::p5800x()] {
            assert_eq!(config.validate(), Ok(()));
        }
        let config = FairConfig { beta: f64::NAN, ..FairConfig::p3520() };
        assert_eq!(config.validate().unwrap_err().field, "beta");
        let config = FairConfig { thresh_max: Nanos::from_micros(600), ..FairConfig::p3520() };
        assert_eq!(config.validate().unwrap_err().to_string(), "thresh_max must be above thresh_min");
        let nothing = FairConfig::for_drive(Nanos(0), Nanos(0), 0, Cost::default());
        assert_eq!(nothing.validate().unwrap_err().field, "thresh_min");
        let forever = FairConfig::for_drive(Nanos::MAX, Nanos::MAX, u32::MAX, Cost::default());
        assert!(forever.validate().is_err());
    }

    #[test]
    fn the_p3520_has_the_printed_thresholds() {
        let config = FairConfig::p3520();
        assert_eq!((config.thresh_min, config.thresh_max), (Nanos::from_micros(600), Nanos::from_micros(3_500)));
        assert_eq!((config.beta, config.k_up, config.k_down), (0.5, 0.01, 0.001));
        assert_eq!(config.total_budget_ns(), 36_000_000);
    }

    #[test]
    fn a_window_is_so_many_commands_for_each_unit() {
        let config = FairConfig::p3520();
        assert_eq!(config.window_ticks(), 36 * WINDOW_FACTOR * u64::from(COST_UNIT));
        assert!(FairConfig { window: Nanos(1), ..config }.window_ticks() >= 36);
    }
}
