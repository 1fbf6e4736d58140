//! The policies that are compared, each as a drive's figures have it.

use io_model::Nanos;
use policy::compared::{Gimbal, GimbalConfig, IoCost, IoCostConfig, Reflex, ReflexConfig};
use policy::{
    AnyPolicy, ConfigError, DriveFigures, FairConfig, LpnsConfig, PolicyConfig, PolicyKind, Settings, Variant,
};
use sim::{Layout, Report, Scenario};

use super::cases::WARMUP_FIXED;

/// From cold, with the drive's figures expected.
pub const WARMUP: Nanos = Nanos::from_millis(2_000);
/// Those that adjust, but have nothing to do with promises.
const WARMUP_OTHERS: Nanos = Nanos::from_millis(1_000);

/// A policy with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// A policy that the daemon offers.
    Offered(PolicyKind, Variant),
    IoCost,
    Gimbal,
    Reflex,
}

pub const fn corrected(kind: PolicyKind) -> Contender {
    Contender::Offered(kind, Variant::Corrected)
}

const fn published(kind: PolicyKind) -> Contender {
    Contender::Offered(kind, Variant::Published)
}

/// Ours.
pub const OURS: Contender = corrected(PolicyKind::Evenkeel);
/// What else holds others back until a target is met.
pub const LPNS: Contender = corrected(PolicyKind::Lpns);
/// All others.
pub const OTHERS: [Contender; 12] = [
    published(PolicyKind::Lpns),
    Contender::Reflex,
    Contender::IoCost,
    Contender::Gimbal,
    corrected(PolicyKind::K2),
    corrected(PolicyKind::Mqfq),
    corrected(PolicyKind::D2fq),
    corrected(PolicyKind::Drr),
    corrected(PolicyKind::Fair),
    published(PolicyKind::Fair),
    corrected(PolicyKind::Caps),
    corrected(PolicyKind::Passthrough),
];

impl Contender {
    /// In tables.
    pub fn name(self) -> String {
        match self {
            Self::Offered(kind, Variant::Corrected) => kind.name().to_owned(),
            Self::Offered(kind, Variant::Published) => format!("{} as published", kind.name()),
            Self::IoCost => "iocost".to_owned(),
            Self::Gimbal => "gimbal".to_owned(),
            Self::Reflex => "reflex".to_owned(),
        }
    }

    /// Plays a scenario under it, with everything as the drive has it or by default. Where it serves all
    /// together, one poller does, as in the daemon by default.
    pub fn play(self, scenario: &Scenario, figures: &DriveFigures) -> Result<Report, String> {
        let built = |policy: Result<AnyPolicy, ConfigError>| Ok(policy?);
        let together = Scenario { layout: Layout::Mdev, ..scenario.clone() };
        let report = match self {
            Self::Offered(kind, variant) => {
                let policy = match kind {
                    PolicyKind::Lpns => PolicyConfig::Lpns(LpnsConfig { variant, ..figures.lpns.clone() }),
                    PolicyKind::Fair => PolicyConfig::Fair(FairConfig { variant, ..figures.fair.clone() }),
                    kind => Settings::with_defaults(kind).on(figures),
                };
                let scenario = if kind.gives_own_pollers() { scenario.clone() } else { together };
                sim::run(&Scenario { policy, ..scenario })
            }
            Self::IoCost => sim::run_with(&together, &mut |shape| {
                built(IoCost::new(IoCostConfig::on(figures), shape).map(Into::into))
            }),
            Self::Gimbal => sim::run_with(&together, &mut |shape| {
                built(Gimbal::new(GimbalConfig::on(figures), shape).map(Into::into))
            }),
            Self::Reflex => sim::run_with(&together, &mut |shape| {
                built(Reflex::new(ReflexConfig::on(figures), shape).map(Into::into))
            }),
        };
        report.map_err(|error| error.to_string())
    }

    /// How long until it has settled.
    pub fn warmup(self) -> Nanos {
        match self {
            Self::Offered(PolicyKind::Evenkeel, _) | LPNS => WARMUP,
            Self::Offered(PolicyKind::Lpns | PolicyKind::Fair, _) | Self::Gimbal => WARMUP_OTHERS,
            Self::IoCost => WARMUP,
            Self::Offered(..) | Self::Reflex => WARMUP_FIXED,
        }
    }
}
