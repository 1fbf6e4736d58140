//! What may be set, with the drives that the figures are known for.

use io_model::{Nanos, QueuePriority, WrrWeights};

use crate::cost::{Cost, Curve};
use crate::netcalc::ServiceCurve;
use crate::{ConfigError, PollerShape, Variant};

/// How a poller's HWQs are shared out, as far as that is asked for; `None`: by need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HwqSplit {
    /// HWQs that serve one VQ each (1-1). All but one at most.
    pub exclusive: Option<u16>,
    /// HWQs that serve many VQs (1-N), of those that are left; at least 1.
    pub shared: Option<u16>,
}

/// Which VQs get the exclusive HWQs that guaranteed VQs leave (LPNS §4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lending {
    /// The VQs with the longest backlogs, anew each period.
    #[default]
    Backlog,
    /// Those that have work, in turn, whatever their backlog: switching without weights.
    Turns,
    /// The VQ that came first, for as long as it stays: no switching.
    Never,
}

impl Lending {
    /// As files name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Backlog => "backlog",
            Self::Turns => "turns",
            Self::Never => "never",
        }
    }
}

/// Settings of [`Lpns`](crate::Lpns). Start from a preset and change what differs.
#[derive(Debug, Clone, PartialEq)]
pub struct LpnsConfig {
    /// Which rule throttles best-effort tenants. Published: θ = (Ω − i)/j times the slowest guaranteed tenant's rate,
    /// as LPNS §4.3 prints it, which suspends everyone beside an idle guaranteed tenant and nobody beside a fast one.
    /// Corrected: a cap on best-effort work in flight, moved by what the guaranteed tenants measure, and a token bucket
    /// that keeps the sum of all rates below the drive's.
    pub variant: Variant,
    /// Ω of the published rule: the drive's load in multiples of the slowest guaranteed tenant. 1 or more.
    pub omega: f64,
    /// R: reference commands (4 KiB random writes) that the drive completes per second under full load.
    pub r_iops: f64,
    /// L_h: latency of a command that finds the drive idle; of the slowest kind in use.
    pub l_h: Nanos,
    /// d: commands that a guaranteed tenant keeps in flight, as Eq. 2 and 5 assume. 1 or more.
    pub depth: u32,
    /// How [`with_hwqs`](Self::with_hwqs) shares HWQs out.
    pub split: HwqSplit,
    /// What is done with 1-1 HWQs that no guaranteed VQ needs.
    pub lending: Lending,
    /// 1-1 HWQs: the back end's queues `0..hwqs_exclusive`. At least one per guaranteed VQ of this poller.
    pub hwqs_exclusive: u16,
    /// How many of the 1-1 HWQs, from the first on, have the drive's class high, for guaranteed VQs only. `None`: the
    /// drive has no weighted round robin, or it is not used.
    pub hwqs_high: Option<u16>,
    /// 1-N HWQs: the queues that follow. 1 or more.
    pub hwqs_shared: u16,
    /// Commands that one HWQ holds.
    pub hwq_depth: u32,
    /// How often [`Policy::interval`](crate::Policy::interval) is called.
    pub interval: Nanos,
    /// How often VQs are given HWQs anew; a whole number of intervals.
    pub period: Nanos,
    /// Commands that the drive works on at once (channels × planes, or what calibration found).
    pub parallelism: u32,
    /// Best-effort work in flight never exceeds `parallelism` × this while two or more tenants are active: more
    /// only adds latency, and weights would have no say.
    pub saturation_factor: u32,
    /// Reference commands that best-effort tenants may always have in flight together, whatever is missed.
    pub floor_in_flight: u32,
    /// Share of R that best-effort tenants keep together even if guaranteed tenants ask for all, in 1/1000.
    pub floor_rate_permille: u32,
    /// Commands over their target that a promise allows, in 1/1000. 10: the target is a 99th percentile.
    pub miss_budget_permille: u32,
    /// What commands cost in reference commands.
    pub cost: Cost,
}

impl LpnsConfig {
    /// Intel Optane P5800X, 400 GB: Ω = 190, R = 800K/s, L_h = 11.05 µs (LPNS §5.5).
    pub fn p5800x() -> Self {
        Self {
            variant: Variant::default(),
            omega: 190.0,
            r_iops: 800_000.0,
            l_h: Nanos(11_050),
            depth: 1,
            split: HwqSplit::default(),
            lending: Lending::default(),
            hwqs_exclusive: 4,
            hwqs_high: None,
            hwqs_shared: 4,
            hwq_depth: 1024,
            interval: Nanos::from_millis(10),
            period: Nanos::from_millis(200),
            parallelism: 6,
            saturation_factor: 32,
            floor_in_flight: 1,
            floor_rate_permille: 250,
            miss_budget_permille: 10,
            cost: Cost::default(),
        }
    }

    /// Samsung PM1735, 1.6 TB: Ω = 100 (LPNS §5.5), 200K random writes/s; reads cost a fifth (1000K/s), and the
    /// idle latency is a read's, 71.9 µs, the longest kind.
    pub fn pm1735() -> Self {
        let cost = Cost { read: Curve::linear(13), ..Cost::default() };
        let (omega, r_iops, l_h) = (100.0, 200_000.0, Nanos(71_900));
        Self { omega, r_iops, l_h, parallelism: 128, saturation_factor: 8, floor_in_flight: 4, cost, ..Self::p5800x() }
    }

    /// Shares a poller's `hwqs` between both kinds as [`split`](Self::split) says. By need: an exclusive one for each
    /// of its guaranteed VQs as far as they go, half of the rest to lend to busy best-effort VQs, always one shared.
    pub fn with_hwqs(mut self, hwqs: u16, guaranteed_vqs: u16, hwq_depth: u32) -> Self {
        let most = hwqs.saturating_sub(1);
        let homes = guaranteed_vqs.min(most);
        let by_need = homes + (hwqs - homes) / 2;
        self.hwqs_exclusive = self.split.exclusive.unwrap_or(by_need).min(most);
        let rest = hwqs - self.hwqs_exclusive;
        self.hwqs_shared = self.split.shared.map_or(rest, |shared| shared.min(rest).max(1));
        self.hwq_depth = hwq_depth;
        self
    }

    /// The settings at a poller. On a drive with weighted round robin the home HWQs of guaranteed VQs have the class
    /// high.
    pub fn at(self, shape: &PollerShape) -> Self {
        let PollerShape { hwqs, hwq_depth, guaranteed_vqs, weighted } = *shape;
        let config = self.with_hwqs(hwqs, guaranteed_vqs, hwq_depth);
        let hwqs_high = weighted.then(|| guaranteed_vqs.min(config.hwqs_exclusive));
        Self { hwqs_high, ..config }
    }

    /// The class of one of a poller's HWQs. None is urgent: that class goes first without limit, and best effort is
    /// promised a share.
    pub(crate) fn class_of(&self, hwq: u16) -> QueuePriority {
        if self.hwqs_high.is_some_and(|high| hwq < high) { QueuePriority::High } else { QueuePriority::Medium }
    }

    /// What the drive's arbitration gives each class, if it is used: best effort no less than the throttle leaves it at
    /// least. In the smallest numbers, so that a guaranteed command finds one of medium in front of it, not a burst.
    pub(crate) fn weights(&self) -> Option<WrrWeights> {
        let floor = self.floor_rate_permille.clamp(1, 1000);
        let high = ((1000 - floor) / floor).clamp(1, 256) as u16;
        self.hwqs_high.map(|_| WrrWeights { high, medium: 1, low: 1 })
    }

    /// β of the drive.
    pub fn service(&self) -> ServiceCurve {
        ServiceCurve { rate_iops: self.r_iops, latency: self.l_h }
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let rules = [
            (self.omega >= 1.0 && self.omega <= 1e6, "omega", "must be from 1 to 1000000"),
            (self.r_iops >= 1.0 && self.r_iops <= 1e9, "r_iops", "must be from 1 to 1000000000 per second"),
            (self.l_h > Nanos(0) && self.l_h <= Nanos::from_millis(1000), "l_h", "must be above 0 and at most 1 s"),
            (self.depth >= 1, "depth", "must be at least 1"),
            (self.hwqs_shared >= 1, "hwqs_shared", "must be at least 1"),
            (
                u32::from(self.hwqs_exclusive) + u32::from(self.hwqs_shared) <= 4096,
                "hwqs_exclusive",
                "and hwqs_shared must be at most 4096 together",
            ),
            (self.hwq_depth >= 1, "hwq_depth", "must be at least 1"),
            (self.interval > Nanos(0), "interval", "must be above 0"),
            (self.period >= self.interval, "period", "must be at least one interval"),
            ((1..=65_536).contains(&self.parallelism), "parallelism", "must be from 1 to 65536"),
            ((1..=1024).contains(&self.saturation_factor), "saturation_factor", "must be from 1 to 1024"),
            (self.floor_in_flight >= 1, "floor_in_flight", "must be at least 1"),
            ((1..=1000).contains(&self.floor_rate_permille), "floor_rate_permille", "must be from 1 to 1000"),
            ((1..=1000).contains(&self.miss_budget_permille), "miss_budget_permille", "must be from 1 to 1000"),
        ];
        match rules.iter().find(|rule| !rule.0) {
            Some((_, field, remedy)) => Err(ConfigError { field, remedy }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_nonsense_is_named() {
        assert_eq!(LpnsConfig::p5800x().validate(), Ok(()));
        assert_eq!(LpnsConfig::pm1735().validate(), Ok(()));
        let config = LpnsConfig { r_iops: f64::NAN, ..LpnsConfig::p5800x() };
        assert_eq!(config.validate().unwrap_err().field, "r_iops");
        let config = LpnsConfig { period: Nanos::from_millis(5), ..LpnsConfig::p5800x() };
        assert_eq!(config.validate().unwrap_err().to_string(), "period must be at least one interval");
    }

    #[test]
    fn homes_of_guaranteed_vqs_are_high_where_the_drive_has_weights() {
        let high = |hwqs, guaranteed_vqs, weighted| {
            let shape = PollerShape { hwqs, hwq_depth: 64, guaranteed_vqs, weighted };
            let config = LpnsConfig::p5800x().at(&shape);
            (0..hwqs).filter(|hwq| config.class_of(*hwq) == QueuePriority::High).collect::<Vec<_>>()
        };
        assert_eq!(high(8, 3, true), [0, 1, 2], "not the two that are there to be lent");
        assert_eq!(high(4, 64, true), [0, 1, 2], "the last one is shared");
        assert_eq!(high(8, 0, true), [0; 0]);
        assert_eq!(high(8, 3, false), [0; 0]);
    }

    #[test]
    fn weights_leave_best_effort_what_the_throttle_does() {
        let high = |floor_rate_permille| {
            let config = LpnsConfig { hwqs_high: Some(0), floor_rate_permille, ..LpnsConfig::p5800x() };
            config.weights().map(|weights| (weights.high, weights.medium))
        };
        assert_eq!(high(250), Some((3, 1)));
        assert_eq!(high(1000), Some((1, 1)), "a class has at least one command");
        assert_eq!(high(1), Some((256, 1)), "a weight is a byte");
        assert_eq!(LpnsConfig::p5800x().weights(), None);
    }

    #[test]
    fn hwqs_are_split_by_need_or_as_asked() {
        let split = |hwqs, guaranteed| {
            let config = LpnsConfig::p5800x().with_hwqs(hwqs, guaranteed, 64);
            (config.hwqs_exclusive, config.hwqs_shared)
        };
        assert_eq!(split(8, 4), (6, 2));
        assert_eq!(split(8, 0), (4, 4));
        assert_eq!(split(4, 4), (3, 1));
        assert_eq!(split(4, 64), (3, 1));
        assert_eq!(split(1, 1), (0, 1));
        let split = |exclusive, shared| {
            let config = LpnsConfig { split: HwqSplit { exclusive, shared }, ..LpnsConfig::p5800x() };
            let config = config.with_hwqs(8, 4, 64);
            (config.hwqs_exclusive, config.hwqs_shared)
        };
        assert_eq!(split(Some(2), None), (2, 6));
        assert_eq!(split(Some(2), Some(1)), (2, 1));
        assert_eq!(split(None, Some(16)), (6, 2));
        assert_eq!(split(Some(64), None), (7, 1));
        assert_eq!(LpnsConfig::p5800x().with_hwqs(0, 1, 64).validate().unwrap_err().field, "hwqs_shared");
    }
}
