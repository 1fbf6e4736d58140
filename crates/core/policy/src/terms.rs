//! What a tenant was promised, and what it is held to: told at attach, and changeable while it runs.

use std::fmt;

use io_model::units::{Bandwidth, Rate};
use io_model::{Nanos, QueuePriority};

use crate::groups::GroupId;
use crate::limits::{KINDS, PER_RATE};
use crate::{ConfigError, Percentile};

/// What a tenant was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// A latency, whatever its neighbours do.
    Guaranteed {
        /// The promise. `None`: as good as the drive can, no number given.
        latency_target: Option<Nanos>,
        /// The part of its commands that it is for.
        percentile: Percentile,
    },
    /// A share in proportion to its weight.
    BestEffort {
        /// Relative weight, 1 to 10000.
        weight: u32,
    },
}

impl Class {
    /// A latency for 99 of 100 commands, with or without a number.
    pub const fn guaranteed(latency_target: Option<Nanos>) -> Self {
        Self::Guaranteed { latency_target, percentile: Percentile::P99 }
    }

    /// As files and tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Guaranteed { .. } => "guaranteed",
            Self::BestEffort { .. } => "best-effort",
        }
    }

    /// The weight of a best-effort tenant.
    pub const fn weight(self) -> Option<u32> {
        match self {
            Self::Guaranteed { .. } => None,
            Self::BestEffort { weight } => Some(weight),
        }
    }

    /// Whether a latency was promised, with or without a number.
    pub const fn is_guaranteed(self) -> bool {
        matches!(self, Self::Guaranteed { .. })
    }

    /// The latency that was promised, if it has a number.
    pub const fn latency_target(self) -> Option<Nanos> {
        match self {
            Self::Guaranteed { latency_target, .. } => latency_target,
            Self::BestEffort { .. } => None,
        }
    }

    /// The latency that was promised, if it has a number, and the part of commands that it is for.
    pub const fn promise(self) -> Option<(Nanos, Percentile)> {
        match self {
            Self::Guaranteed { latency_target: Some(target), percentile } => Some((target, percentile)),
            Self::Guaranteed { latency_target: None, .. } | Self::BestEffort { .. } => None,
        }
    }

    /// The weight, 1 to 10000, where a guaranteed tenant has this one.
    pub fn weight_or(self, guaranteed: u32) -> u32 {
        match self {
            Self::Guaranteed { .. } => guaranteed,
            Self::BestEffort { weight } => weight.clamp(1, 10_000),
        }
    }
}

/// What one tenant may do at most, under every policy; 0: no limit. Names and units are SPDK's: a MB is 2^20 bytes.
///
/// In no span `T` a tenant gets more than limit × (`T` + `burst`), the quotas of the slices of 1 ms in which the span
/// begins and ends, and one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Commands per second, up to 10^9.
    pub rw_ios_per_sec: u64,
    /// Reads per second, up to 10^9.
    pub r_ios_per_sec: u64,
    /// Commands per second that are no reads, up to 10^9.
    pub w_ios_per_sec: u64,
    /// MiB per second, both ways, up to 10^6.
    pub rw_mbytes_per_sec: u64,
    /// MiB per second read, up to 10^6.
    pub r_mbytes_per_sec: u64,
    /// MiB per second written, up to 10^6.
    pub w_mbytes_per_sec: u64,
    /// How long a time's worth of unused quota is kept of each limit, up to 60 s. It is earned by rest: a tenant that
    /// comes, or gets a limit that it didn't have, begins with one slice's quota.
    pub burst: Nanos,
}

impl Limits {
    /// Highest limit on commands per second.
    pub const MOST_IOS_PER_SEC: u64 = 1_000_000_000;
    /// Highest limit on MiB per second.
    pub const MOST_MBYTES_PER_SEC: u64 = 1_000_000;
    /// Longest burst.
    pub const LONGEST_BURST: Nanos = Nanos::from_millis(60_000);

    /// Whether nothing is limited. A burst is no limit.
    pub fn is_empty(&self) -> bool {
        Self { burst: Nanos(0), ..*self } == Self::default()
    }

    /// Each limit in hundredths of a command or byte per second, `part` of it, rounded up; 0: no limit. For commands,
    /// reads, other commands; then for bytes, both ways, read, written.
    pub(crate) fn rates(&self, part: f64) -> [u64; KINDS] {
        let here = |limit: u64| if limit == 0 { 0 } else { ((limit * PER_RATE) as f64 * part).ceil() as u64 };
        let ios = |limit: u64| here(limit.min(Self::MOST_IOS_PER_SEC));
        let bytes = |mbytes: u64| here(mbytes.min(Self::MOST_MBYTES_PER_SEC) << 20);
        [
            ios(self.rw_ios_per_sec),
            ios(self.r_ios_per_sec),
            ios(self.w_ios_per_sec),
            bytes(self.rw_mbytes_per_sec),
            bytes(self.r_mbytes_per_sec),
            bytes(self.w_mbytes_per_sec),
        ]
    }

    /// Commands per second that they come to for a tenant of whose commands `read_share` (0 to 1) are reads, of
    /// `mean_len_bytes` (above 0) each. `None`: nothing limits such a tenant.
    pub fn most_iops(&self, read_share: f64, mean_len_bytes: f64) -> Option<f64> {
        let bytes = |mbytes: u64| (mbytes << 20) as f64 / mean_len_bytes;
        let limits = [
            (self.rw_ios_per_sec as f64, 1.0),
            (self.r_ios_per_sec as f64, read_share),
            (self.w_ios_per_sec as f64, 1.0 - read_share),
            (bytes(self.rw_mbytes_per_sec), 1.0),
            (bytes(self.r_mbytes_per_sec), read_share),
            (bytes(self.w_mbytes_per_sec), 1.0 - read_share),
        ];
        let given = limits.into_iter().filter(|(limit, part)| *limit > 0.0 && *part > 0.0);
        given.map(|(limit, part)| limit / part).reduce(f64::min)
    }

    /// As it is shown; `None` where nothing is limited.
    pub fn in_words(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.to_string())
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first limit out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let in_ios = [
            ("rw_ios_per_sec", self.rw_ios_per_sec),
            ("r_ios_per_sec", self.r_ios_per_sec),
            ("w_ios_per_sec", self.w_ios_per_sec),
        ];
        for (field, limit) in in_ios {
            ConfigError::check(limit <= Self::MOST_IOS_PER_SEC, field, "must be at most 1000000000")?;
        }
        let in_mbytes = [
            ("rw_mbytes_per_sec", self.rw_mbytes_per_sec),
            ("r_mbytes_per_sec", self.r_mbytes_per_sec),
            ("w_mbytes_per_sec", self.w_mbytes_per_sec),
        ];
        for (field, limit) in in_mbytes {
            ConfigError::check(limit <= Self::MOST_MBYTES_PER_SEC, field, "must be at most 1000000")?;
        }
        ConfigError::check(self.burst <= Self::LONGEST_BURST, "burst", "must be at most 60 s")
    }
}

/// As an operator would say it: `20k IOPS, reads 200MiB/s, burst 2s`.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = [("", self.rw_ios_per_sec), ("reads ", self.r_ios_per_sec), ("writes ", self.w_ios_per_sec)];
        let bandwidths =
            [("", self.rw_mbytes_per_sec), ("reads ", self.r_mbytes_per_sec), ("writes ", self.w_mbytes_per_sec)];
        let given = |limit: &(&str, u64)| limit.1 > 0;
        let rates = rates.into_iter().filter(given).map(|(word, limit)| format!("{word}{} IOPS", Rate(limit)));
        let bandwidths = bandwidths.into_iter().filter(given);
        let bandwidths = bandwidths.map(|(word, mib)| format!("{word}{}", Bandwidth::from_mib(mib)));
        let burst = (self.burst > Nanos(0)).then(|| format!("burst {}", self.burst));
        f.write_str(&rates.chain(bandwidths).chain(burst).collect::<Vec<_>>().join(", "))
    }
}

/// What a best-effort tenant gets at least while it asks for it, before anybody's weight counts; 0: nothing is
/// promised. Heeded by [`Evenkeel`](crate::Evenkeel). Of both it gets what it asks for (QoS paper, Eqs. 1 and 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Floor {
    /// Commands per second, up to [`Limits::MOST_IOS_PER_SEC`].
    pub ios_per_sec: u64,
    /// MiB per second, both ways, up to [`Limits::MOST_MBYTES_PER_SEC`].
    pub mbytes_per_sec: u64,
}

impl Floor {
    /// Whether nothing is promised.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Commands of `mean_len_bytes` (above 0) per second that it comes to.
    pub fn iops(&self, mean_len_bytes: f64) -> f64 {
        (self.ios_per_sec as f64).max((self.mbytes_per_sec << 20) as f64 / mean_len_bytes)
    }

    /// As it is shown; `None` where nothing is promised.
    pub fn in_words(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.to_string())
    }
}

/// As an operator would say it: `20k IOPS, 200MiB/s`.
impl fmt::Display for Floor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ios = (self.ios_per_sec > 0).then(|| format!("{} IOPS", Rate(self.ios_per_sec)));
        let bandwidth = (self.mbytes_per_sec > 0).then(|| Bandwidth::from_mib(self.mbytes_per_sec).to_string());
        f.write_str(&ios.into_iter().chain(bandwidth).collect::<Vec<_>>().join(", "))
    }
}

/// Whence a tenant's priority comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TenantPriority {
    /// From the configuration, for all of its VQs.
    Fixed(QueuePriority),
    /// From its client, for each VQ when it creates it. Urgent counts as high.
    OfQueue,
}

impl TenantPriority {
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::Fixed(QueuePriority::Urgent),
        Self::Fixed(QueuePriority::High),
        Self::Fixed(QueuePriority::Medium),
        Self::Fixed(QueuePriority::Low),
        Self::OfQueue,
    ];

    /// As files and tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed(priority) => priority.name(),
            Self::OfQueue => "client",
        }
    }

    /// What one of its queues counts for whose client asked for nothing.
    pub const fn unasked(self) -> QueuePriority {
        match self {
            Self::Fixed(priority) => priority,
            Self::OfQueue => QueuePriority::Medium,
        }
    }
}

impl Default for TenantPriority {
    fn default() -> Self {
        Self::Fixed(QueuePriority::Medium)
    }
}

/// All that an operator says about one tenant. Each policy heeds what it can: classes and weights, or priorities
/// (`wrr`, `drr`). Limits hold under all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// A latency, or a share.
    pub class: Class,
    /// What it may do at most. Out of range: the highest limit there is; see [`Limits::validate`].
    pub limits: Limits,
    /// The group whose ceiling holds for the tenant too.
    pub group: Option<GroupId>,
    /// What a best-effort tenant gets at least.
    pub floor: Floor,
    /// What it counts for under `wrr` and `drr`.
    pub priority: TenantPriority,
    /// Pollers that serve the tenant's queues, at least 1. Each keeps a part of the limits: an equal one until it is
    /// known [where the tenant asks](crate::Policy::asks_here).
    pub pollers: u16,
}

impl Terms {
    /// A latency, with or without a number; no limits, medium priority.
    pub fn guaranteed(latency_target: Option<Nanos>) -> Self {
        Class::guaranteed(latency_target).into()
    }

    /// A share by weight, 1 to 10000; no limits, medium priority.
    pub fn best_effort(weight: u32) -> Self {
        Class::BestEffort { weight }.into()
    }
}

impl From<Class> for Terms {
    fn from(class: Class) -> Self {
        let (limits, floor, priority) = (Limits::default(), Floor::default(), TenantPriority::default());
        Self { class, limits, group: None, floor, priority, pollers: 1 }
    }
}

impl Default for Terms {
    /// Best effort with weight 1, no limits, medium priority.
    fn default() -> Self {
        Self::best_effort(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_as_a_file_has_them() {
        let limits =
            Limits { rw_ios_per_sec: 20_000, r_mbytes_per_sec: 200, w_mbytes_per_sec: 1024, ..Limits::default() };
        assert_eq!(limits.in_words().as_deref(), Some("20k IOPS, reads 200MiB/s, writes 1GiB/s"));
        let burst = Nanos::from_millis(1_500);
        let apart = Limits { r_ios_per_sec: 5_000, w_ios_per_sec: 700, burst, ..Limits::default() };
        assert_eq!(apart.in_words().as_deref(), Some("reads 5k IOPS, writes 700 IOPS, burst 1500ms"));
        assert_eq!(Limits { burst, ..Limits::default() }.in_words(), None);
        assert_eq!(Limits::default().in_words(), None);
    }

    #[test]
    fn a_floor_is_told_as_a_file_has_it() {
        let floor = Floor { ios_per_sec: 20_000, mbytes_per_sec: 200 };
        assert_eq!(floor.in_words().as_deref(), Some("20k IOPS, 200MiB/s"));
        assert_eq!(Floor::default().in_words(), None);
        assert_eq!((floor.iops(4096.0), floor.iops(1048576.0)), (51_200.0, 20_000.0));
    }

    #[test]
    fn the_tightest_limit_counts_by_what_a_tenant_does() {
        let limits = Limits { rw_ios_per_sec: 20_000, r_ios_per_sec: 7_000, w_mbytes_per_sec: 10, ..Limits::default() };
        assert_eq!(limits.most_iops(0.0, 4096.0), Some(2_560.0));
        assert_eq!(limits.most_iops(1.0, 4096.0), Some(7_000.0));
        assert_eq!(limits.most_iops(0.5, 512.0), Some(14_000.0));
        assert_eq!(Limits { r_ios_per_sec: 7_000, ..Limits::default() }.most_iops(0.0, 4096.0), None);
    }

    #[test]
    fn limits_out_of_range_are_named() {
        assert_eq!(Limits::default().validate(), Ok(()));
        let field = |limits: Limits| limits.validate().unwrap_err().field;
        assert_eq!(field(Limits { rw_ios_per_sec: 1_000_000_001, ..Limits::default() }), "rw_ios_per_sec");
        assert_eq!(field(Limits { w_ios_per_sec: 1_000_000_001, ..Limits::default() }), "w_ios_per_sec");
        assert_eq!(field(Limits { burst: Nanos::from_millis(60_001), ..Limits::default() }), "burst");
        assert_eq!(field(Limits { w_mbytes_per_sec: 1_000_001, ..Limits::default() }), "w_mbytes_per_sec");
    }
}
