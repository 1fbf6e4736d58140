//! The policies that are compared, each as a drive's figures have it.

use policy::{DriveFigures, PolicyKind, Variant};
use rivals::{FairAsked, GimbalConfig, IoCostConfig, LabConfig, LabKind, LabSettings, LpnsAsked, ReflexConfig};
use sim::{Contestant, Layout, Report, Scenario};

use super::cases::WARMUP_FIXED_MS;
use crate::papers::bench::play;

/// From cold, with the drive's figures expected.
pub const WARMUP_MS: u64 = 2_000;
/// Those that adjust, but have nothing to do with promises.
const WARMUP_OTHERS_MS: u64 = 1_000;

/// A policy with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contender {
    /// A policy that a scenario may name.
    Named(LabKind, Variant),
    IoCost,
    Gimbal,
    Reflex,
}

/// One of the product's.
pub const fn corrected(kind: PolicyKind) -> Contender {
    Contender::Named(LabKind::Product(kind), Variant::Corrected)
}

const fn published(kind: PolicyKind) -> Contender {
    Contender::Named(LabKind::Product(kind), Variant::Published)
}

/// Another one.
pub const fn rival(kind: LabKind) -> Contender {
    Contender::Named(kind, Variant::Corrected)
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
    rival(LabKind::K2),
    rival(LabKind::Mqfq),
    rival(LabKind::D2fq),
    corrected(PolicyKind::Drr),
    corrected(PolicyKind::Fair),
    published(PolicyKind::Fair),
    rival(LabKind::Caps),
    corrected(PolicyKind::Passthrough),
];

impl Contender {
    /// In tables.
    pub fn name(self) -> String {
        match self {
            Self::Named(kind, Variant::Corrected) => kind.name().to_owned(),
            Self::Named(kind, Variant::Published) => format!("{} as published", kind.name()),
            Self::IoCost => "iocost".to_owned(),
            Self::Gimbal => "gimbal".to_owned(),
            Self::Reflex => "reflex".to_owned(),
        }
    }

    /// As the drive has it, or by default.
    fn config(self, figures: &DriveFigures) -> LabConfig {
        match self {
            Self::Named(kind, variant) => {
                let settings = match LabSettings::with_defaults(kind) {
                    LabSettings::Lpns(asked) => LabSettings::Lpns(LpnsAsked { variant, ..asked }),
                    LabSettings::Fair(asked) => LabSettings::Fair(FairAsked { variant, ..asked }),
                    settings => settings,
                };
                settings.on(figures)
            }
            Self::IoCost => LabConfig::IoCost(IoCostConfig::on(figures)),
            Self::Gimbal => LabConfig::Gimbal(GimbalConfig::on(figures)),
            Self::Reflex => LabConfig::Reflex(ReflexConfig::on(figures)),
        }
    }

    /// Plays a scenario under it. Where it serves all together, one poller does, as in the daemon by default.
    pub fn play(self, scenario: &Scenario, figures: &DriveFigures) -> Result<Report, String> {
        let policy = self.config(figures);
        let layout = if policy.gives_own_pollers() { scenario.layout } else { Layout::Mdev };
        play(&Scenario { policy, layout, ..scenario.clone() })
    }

    /// How long until it has settled.
    pub fn warmup_ms(self) -> u64 {
        match self {
            OURS | LPNS | Self::IoCost => WARMUP_MS,
            Self::Named(LabKind::Product(PolicyKind::Lpns | PolicyKind::Fair), _) | Self::Gimbal => WARMUP_OTHERS_MS,
            Self::Named(..) | Self::Reflex => WARMUP_FIXED_MS,
        }
    }
}
