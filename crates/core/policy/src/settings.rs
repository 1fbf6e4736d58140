//! A policy as an operator asks for it. What is left open follows from the drive.

use io_model::Nanos;
use io_model::units::Rate;

use crate::{
    ArbitratedConfig, D2fqConfig, EvenkeelConfig, FairConfig, HwqSplit, K2Config, Lending, LpnsConfig, MqfqConfig,
    PolicyConfig,
};

/// Which rules of a published policy (`lpns`, `fair`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Variant {
    /// As printed, to compare with the paper's figures.
    Published,
    /// With the gaps of the printed rules closed.
    #[default]
    Corrected,
}

impl Variant {
    /// As files and tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Corrected => "corrected",
        }
    }
}

/// Which policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Round robin, no throttle.
    Passthrough,
    /// Predictable latency.
    Lpns,
    /// Fair slowdowns by time budgets.
    Fair,
    /// A cap on all commands in flight, guaranteed tenants first.
    K2,
    /// Fair queueing with a bounded gap.
    Mqfq,
    /// Fair queueing by the drive's weighted round robin.
    D2fq,
    /// A limit for each tenant, as its terms say.
    Caps,
    /// Weighted round robin among tenants by class.
    Wrr,
    /// Deficit round robin among tenants by class.
    Drr,
    /// Latency targets at the least price.
    Evenkeel,
}

impl PolicyKind {
    /// Every one.
    pub const ALL: [Self; 10] = [
        Self::Passthrough,
        Self::Lpns,
        Self::Fair,
        Self::K2,
        Self::Mqfq,
        Self::D2fq,
        Self::Caps,
        Self::Wrr,
        Self::Drr,
        Self::Evenkeel,
    ];

    /// The [`name`](Self::name) of each.
    pub const NAMES: [&str; Self::ALL.len()] = {
        let mut names = [""; Self::ALL.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = Self::ALL[at].name();
            at += 1;
        }
        names
    };

    /// As files and tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Lpns => "lpns",
            Self::Fair => "fair",
            Self::K2 => "k2",
            Self::Mqfq => "mqfq",
            Self::D2fq => "d2fq",
            Self::Caps => "caps",
            Self::Wrr => "wrr",
            Self::Drr => "drr",
            Self::Evenkeel => "evenkeel",
        }
    }

    /// Whether it knows what all tenants do only if one poller serves them all. Else a tenant may be on several, too.
    pub(crate) const fn needs_one_poller(self, variant: Variant) -> bool {
        matches!((self, variant), (Self::D2fq, _) | (Self::Fair, Variant::Published))
    }

    /// Whether a guaranteed tenant has a poller of its own if nothing is said. Else it shares those of all others,
    /// where who goes first is decided with each command and not from one interval to the next.
    pub const fn gives_own_pollers(self) -> bool {
        matches!(self, Self::Passthrough | Self::Lpns | Self::Evenkeel)
    }

    /// Whether it holds best-effort tenants back together, for guaranteed ones that may have pollers of their own.
    pub const fn throttles_best_effort(self) -> bool {
        matches!(self, Self::Lpns | Self::Evenkeel)
    }

    /// Whether it keeps latency targets: by a throttle, or because a tenant's priority may be high enough.
    pub const fn keeps_targets(self) -> bool {
        self.throttles_best_effort() || self.has_priorities()
    }

    /// Whether it keeps what best-effort tenants are to get at least.
    pub const fn keeps_floors(self) -> bool {
        matches!(self, Self::Evenkeel)
    }

    /// Whether tenants' priorities count.
    pub const fn has_priorities(self) -> bool {
        matches!(self, Self::Wrr | Self::Drr)
    }
}

/// A policy with what an operator may set of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settings {
    /// See [`PolicyKind::Passthrough`].
    Passthrough,
    /// See [`PolicyKind::Lpns`].
    Lpns(LpnsSettings),
    /// See [`PolicyKind::Fair`].
    Fair(FairSettings),
    /// See [`PolicyKind::K2`].
    K2(K2Config),
    /// See [`PolicyKind::Mqfq`]. What commands cost is the drive's.
    Mqfq(MqfqConfig),
    /// See [`PolicyKind::D2fq`]. What commands cost is the drive's.
    D2fq(D2fqConfig),
    /// See [`PolicyKind::Caps`].
    Caps,
    /// See [`PolicyKind::Wrr`]. `max_in_flight`: `None`, what keeps the drive busy.
    Wrr(ArbitratedConfig<Option<u32>>),
    /// See [`PolicyKind::Drr`]. `max_in_flight` as for `wrr`.
    Drr(ArbitratedConfig<Option<u32>>),
    /// See [`PolicyKind::Evenkeel`]. What it expects of the drive is the drive's.
    Evenkeel,
}

/// What may be set of `lpns`; `None`: as the drive has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LpnsSettings {
    /// Which rules.
    pub variant: Variant,
    /// See [`LpnsConfig::omega`]; 1 to 1000000.
    pub omega: Option<u32>,
    /// See [`LpnsConfig::r_iops`].
    pub rate_iops: Option<Rate>,
    /// See [`LpnsConfig::l_h`].
    pub min_latency: Option<Nanos>,
    /// How a poller's HWQs are shared out.
    pub hwqs: HwqSplit,
    /// See [`LpnsConfig::lending`].
    pub lending: Lending,
}

/// What may be set of `fair`; `None`: as the drive has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FairSettings {
    /// Which rules.
    pub variant: Variant,
    /// See [`FairConfig::thresh_min`].
    pub min_latency: Option<Nanos>,
    /// See [`FairConfig::thresh_max`].
    pub max_latency: Option<Nanos>,
    /// See [`FairConfig::epoch`].
    pub epoch: Option<Nanos>,
}

/// What policies must know about a drive: their settings on it where an operator says nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct DriveFigures {
    /// Of `lpns`; its `cost` goes for `mqfq` and `d2fq` too, and for `evenkeel` with the rate and latencies.
    pub lpns: LpnsConfig,
    /// Of `fair`.
    pub fair: FairConfig,
    /// Reference commands in flight that keep the drive busy.
    pub max_in_flight: u32,
    /// These are figures of another drive, as far as anybody knows.
    pub is_assumed: bool,
}

impl Settings {
    /// A policy of which an operator says no more than its name.
    pub fn with_defaults(kind: PolicyKind) -> Self {
        match kind {
            PolicyKind::Passthrough => Self::Passthrough,
            PolicyKind::Lpns => Self::Lpns(LpnsSettings::default()),
            PolicyKind::Fair => Self::Fair(FairSettings::default()),
            PolicyKind::K2 => Self::K2(K2Config::default()),
            PolicyKind::Mqfq => Self::Mqfq(MqfqConfig::default()),
            PolicyKind::D2fq => Self::D2fq(D2fqConfig::default()),
            PolicyKind::Caps => Self::Caps,
            PolicyKind::Wrr => Self::Wrr(ArbitratedConfig::wrr().with_max_in_flight(None)),
            PolicyKind::Drr => Self::Drr(ArbitratedConfig::drr().with_max_in_flight(None)),
            PolicyKind::Evenkeel => Self::Evenkeel,
        }
    }

    /// Which policy.
    pub fn kind(&self) -> PolicyKind {
        match self {
            Self::Passthrough => PolicyKind::Passthrough,
            Self::Lpns(_) => PolicyKind::Lpns,
            Self::Fair(_) => PolicyKind::Fair,
            Self::K2(_) => PolicyKind::K2,
            Self::Mqfq(_) => PolicyKind::Mqfq,
            Self::D2fq(_) => PolicyKind::D2fq,
            Self::Caps => PolicyKind::Caps,
            Self::Wrr(_) => PolicyKind::Wrr,
            Self::Drr(_) => PolicyKind::Drr,
            Self::Evenkeel => PolicyKind::Evenkeel,
        }
    }

    /// As files and tables name it.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// As a message names it that does not go for its other variant.
    pub fn in_words(&self) -> String {
        match self {
            Self::Fair(FairSettings { variant: Variant::Published, .. }) => {
                "fair with variant = \"published\"".to_owned()
            }
            _ => self.name().to_owned(),
        }
    }

    /// Whether one poller must serve all tenants. Else a tenant may be on several, too.
    pub fn needs_one_poller(&self) -> bool {
        let variant = if let Self::Fair(fair) = self { fair.variant } else { Variant::Corrected };
        self.kind().needs_one_poller(variant)
    }

    /// The policy as it runs on a drive.
    pub fn on(&self, drive: &DriveFigures) -> PolicyConfig {
        let cost = drive.lpns.cost;
        let arbitrated = |settings: &ArbitratedConfig<Option<u32>>| {
            settings.clone().with_max_in_flight(settings.max_in_flight.unwrap_or(drive.max_in_flight))
        };
        match self {
            Self::Passthrough => PolicyConfig::Passthrough,
            Self::Lpns(settings) => PolicyConfig::Lpns(settings.on(&drive.lpns)),
            Self::Fair(settings) => PolicyConfig::Fair(settings.on(&drive.fair)),
            Self::K2(config) => PolicyConfig::K2(*config),
            Self::Mqfq(config) => PolicyConfig::Mqfq(MqfqConfig { cost, ..config.clone() }),
            Self::D2fq(config) => PolicyConfig::D2fq(D2fqConfig { cost, ..config.clone() }),
            Self::Caps => PolicyConfig::Caps,
            Self::Wrr(settings) => PolicyConfig::Wrr(arbitrated(settings)),
            Self::Drr(settings) => PolicyConfig::Drr(arbitrated(settings)),
            Self::Evenkeel => PolicyConfig::Evenkeel(EvenkeelConfig::on(drive)),
        }
    }
}

impl LpnsSettings {
    fn on(&self, drive: &LpnsConfig) -> LpnsConfig {
        LpnsConfig {
            variant: self.variant,
            omega: self.omega.map_or(drive.omega, f64::from),
            r_iops: self.rate_iops.map_or(drive.r_iops, |rate| rate.0 as f64),
            l_h: self.min_latency.unwrap_or(drive.l_h),
            split: self.hwqs,
            lending: self.lending,
            ..drive.clone()
        }
    }
}

impl FairSettings {
    fn on(&self, drive: &FairConfig) -> FairConfig {
        FairConfig {
            variant: self.variant,
            thresh_min: self.min_latency.unwrap_or(drive.thresh_min),
            thresh_max: self.max_latency.unwrap_or(drive.thresh_max),
            epoch: self.epoch.unwrap_or(drive.epoch),
            ..drive.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PollerShape;

    fn drive() -> DriveFigures {
        DriveFigures { lpns: LpnsConfig::pm1735(), fair: FairConfig::pm1735(), max_in_flight: 100, is_assumed: false }
    }

    #[test]
    fn what_is_left_open_is_the_drives_and_the_rest_the_operators() {
        let lpns = LpnsSettings { omega: Some(7), rate_iops: Some(Rate(50_000)), ..LpnsSettings::default() };
        let PolicyConfig::Lpns(lpns) = Settings::Lpns(lpns).on(&drive()) else { panic!("not lpns") };
        assert_eq!((lpns.omega, lpns.r_iops, lpns.l_h), (7.0, 50_000.0, drive().lpns.l_h));
        assert_eq!(lpns.lending, Lending::Backlog);
        let lpns = LpnsSettings { lending: Lending::Never, ..LpnsSettings::default() };
        let PolicyConfig::Lpns(lpns) = Settings::Lpns(lpns).on(&drive()) else { panic!("not lpns") };
        assert_eq!(lpns.lending, Lending::Never);
        let fair = FairSettings { epoch: Some(Nanos::from_millis(2)), ..FairSettings::default() };
        let PolicyConfig::Fair(fair) = Settings::Fair(fair).on(&drive()) else { panic!("not fair") };
        assert_eq!((fair.epoch, fair.thresh_min), (Nanos::from_millis(2), drive().fair.thresh_min));
        let PolicyConfig::Mqfq(mqfq) = Settings::with_defaults(PolicyKind::Mqfq).on(&drive()) else {
            panic!("not mqfq")
        };
        assert_eq!(mqfq, MqfqConfig { cost: drive().lpns.cost, ..MqfqConfig::default() });
        let window = |settings: Settings| match settings.on(&drive()) {
            PolicyConfig::Wrr(config) => config.max_in_flight,
            other => panic!("{other:?}"),
        };
        assert_eq!(window(Settings::with_defaults(PolicyKind::Wrr)), 100);
        assert_eq!(window(Settings::Wrr(ArbitratedConfig::wrr().with_max_in_flight(Some(8)))), 8);
    }

    #[test]
    fn an_operators_split_of_the_hwqs_is_kept_as_far_as_they_go() {
        let split = |exclusive, shared| {
            let hwqs = HwqSplit { exclusive, shared };
            let settings = Settings::Lpns(LpnsSettings { hwqs, ..LpnsSettings::default() });
            let PolicyConfig::Lpns(lpns) = settings.on(&drive()) else { panic!("not lpns") };
            let lpns = lpns.with_hwqs(8, 4, 64);
            (lpns.hwqs_exclusive, lpns.hwqs_shared)
        };
        assert_eq!(split(None, None), (6, 2));
        assert_eq!(split(Some(2), None), (2, 6));
        assert_eq!(split(Some(2), Some(1)), (2, 1));
        assert_eq!(split(None, Some(16)), (6, 2));
        assert_eq!(split(Some(64), None), (7, 1));
    }

    #[test]
    fn every_policy_runs_with_its_defaults() {
        let shape = PollerShape { hwqs: 4, hwq_depth: 64, guaranteed_vqs: 1, weighted: false };
        for kind in PolicyKind::ALL {
            let config = Settings::with_defaults(kind).on(&drive());
            assert_eq!((config.kind(), config.name()), (kind, kind.name()));
            assert!(config.build(&shape).is_ok(), "{kind:?}");
        }
    }
}
