//! A policy as an operator asks for it. What is left open follows from the drive.

use io_model::Nanos;
use io_model::units::Rate;

use crate::{ArbitratedConfig, EvenkeelConfig, FairConfig, LpnsConfig, PolicyConfig};

/// Which rules of a published policy (`lpns`, `fair`). Operators have the corrected ones; the printed ones are for the
/// papers' figures.
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
    /// Weighted round robin among tenants by class.
    Wrr,
    /// Deficit round robin among tenants by class.
    Drr,
    /// Latency targets at the least price.
    Evenkeel,
}

impl PolicyKind {
    /// Every one.
    pub const ALL: [Self; 6] = [Self::Passthrough, Self::Wrr, Self::Drr, Self::Lpns, Self::Fair, Self::Evenkeel];

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
            Self::Wrr => "wrr",
            Self::Drr => "drr",
            Self::Evenkeel => "evenkeel",
        }
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

/// A policy with settings of its own: those of an operator ([`Settings`]), or all that it needs ([`PolicyConfig`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyWith<L, F, A, E> {
    /// See [`PolicyKind::Passthrough`].
    Passthrough,
    /// See [`PolicyKind::Lpns`].
    Lpns(L),
    /// See [`PolicyKind::Fair`].
    Fair(F),
    /// See [`PolicyKind::Wrr`].
    Wrr(A),
    /// See [`PolicyKind::Drr`].
    Drr(A),
    /// See [`PolicyKind::Evenkeel`].
    Evenkeel(E),
}

impl<L, F, A, E> PolicyWith<L, F, A, E> {
    /// Which policy.
    pub fn kind(&self) -> PolicyKind {
        match self {
            Self::Passthrough => PolicyKind::Passthrough,
            Self::Lpns(_) => PolicyKind::Lpns,
            Self::Fair(_) => PolicyKind::Fair,
            Self::Wrr(_) => PolicyKind::Wrr,
            Self::Drr(_) => PolicyKind::Drr,
            Self::Evenkeel(_) => PolicyKind::Evenkeel,
        }
    }

    /// As files and tables name it.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }
}

/// A policy with what an operator may set of it. `max_in_flight` of `wrr` and `drr`: `None`, what keeps the drive busy.
/// All that `evenkeel` expects of the drive is the drive's.
pub type Settings = PolicyWith<LpnsSettings, FairSettings, ArbitratedConfig<Option<u32>>, ()>;

/// What may be set of `lpns`; `None`: as the drive has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LpnsSettings {
    /// See [`LpnsConfig::r_iops`].
    pub rate_iops: Option<Rate>,
    /// See [`LpnsConfig::l_h`].
    pub min_latency: Option<Nanos>,
}

/// What may be set of `fair`; `None`: as the drive has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FairSettings {
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
    /// Of `lpns`; its `cost` goes for `evenkeel` too, with the rate and latencies.
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
            PolicyKind::Wrr => Self::Wrr(ArbitratedConfig::wrr().with_max_in_flight(None)),
            PolicyKind::Drr => Self::Drr(ArbitratedConfig::drr().with_max_in_flight(None)),
            PolicyKind::Evenkeel => Self::Evenkeel(()),
        }
    }

    /// The policy as it runs on a drive.
    pub fn on(&self, drive: &DriveFigures) -> PolicyConfig {
        let arbitrated = |settings: &ArbitratedConfig<Option<u32>>| {
            settings.clone().with_max_in_flight(settings.max_in_flight.unwrap_or(drive.max_in_flight))
        };
        match self {
            Self::Passthrough => PolicyConfig::Passthrough,
            Self::Lpns(settings) => PolicyConfig::Lpns(settings.on(&drive.lpns)),
            Self::Fair(settings) => PolicyConfig::Fair(settings.on(&drive.fair)),
            Self::Wrr(settings) => PolicyConfig::Wrr(arbitrated(settings)),
            Self::Drr(settings) => PolicyConfig::Drr(arbitrated(settings)),
            Self::Evenkeel(()) => PolicyConfig::Evenkeel(EvenkeelConfig::on(drive)),
        }
    }
}

impl LpnsSettings {
    /// The settings on a drive that has these of its own.
    pub fn on(&self, drive: &LpnsConfig) -> LpnsConfig {
        LpnsConfig {
            r_iops: self.rate_iops.map_or(drive.r_iops, |rate| rate.0 as f64),
            l_h: self.min_latency.unwrap_or(drive.l_h),
            ..drive.clone()
        }
    }
}

impl FairSettings {
    /// The settings on a drive that has these of its own.
    pub fn on(&self, drive: &FairConfig) -> FairConfig {
        FairConfig {
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
        let lpns = LpnsSettings { rate_iops: Some(Rate(50_000)), ..LpnsSettings::default() };
        let PolicyConfig::Lpns(lpns) = Settings::Lpns(lpns).on(&drive()) else { panic!("not lpns") };
        assert_eq!((lpns.r_iops, lpns.l_h), (50_000.0, drive().lpns.l_h));
        let fair = FairSettings { epoch: Some(Nanos::from_millis(2)), ..FairSettings::default() };
        let PolicyConfig::Fair(fair) = Settings::Fair(fair).on(&drive()) else { panic!("not fair") };
        assert_eq!((fair.epoch, fair.thresh_min), (Nanos::from_millis(2), drive().fair.thresh_min));
        let window = |settings: Settings| match settings.on(&drive()) {
            PolicyConfig::Wrr(config) => config.max_in_flight,
            other => panic!("{other:?}"),
        };
        assert_eq!(window(Settings::with_defaults(PolicyKind::Wrr)), 100);
        assert_eq!(window(Settings::Wrr(ArbitratedConfig::wrr().with_max_in_flight(Some(8)))), 8);
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
