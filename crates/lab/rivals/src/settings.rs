//! A policy as a scenario asks for it. What is left open follows from the drive.

use policy::{
    DriveFigures, FairConfig, FairSettings, HwqSplit, Lending, LpnsConfig, LpnsSettings, PolicyConfig, PolicyKind,
    Settings, Variant,
};

use crate::{D2fqConfig, K2Config, LabConfig, MqfqConfig};

/// Which policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabKind {
    /// One of the product's.
    Product(PolicyKind),
    /// See [`K2`](crate::K2).
    K2,
    /// See [`Mqfq`](crate::Mqfq).
    Mqfq,
    /// See [`D2fq`](crate::D2fq).
    D2fq,
    /// See [`Caps`](crate::Caps).
    Caps,
}

impl LabKind {
    /// Those that are not the product's.
    pub const RIVALS: [Self; 4] = [Self::K2, Self::Mqfq, Self::D2fq, Self::Caps];

    /// As files and tables name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Product(kind) => kind.name(),
            Self::K2 => "k2",
            Self::Mqfq => "mqfq",
            Self::D2fq => "d2fq",
            Self::Caps => "caps",
        }
    }
}

/// A policy with what a scenario may set of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabSettings {
    /// One of the product's but `lpns` and `fair`.
    Product(Settings),
    /// `lpns`.
    Lpns(LpnsAsked),
    /// `fair`.
    Fair(FairAsked),
    /// See [`LabKind::K2`].
    K2(K2Config),
    /// See [`LabKind::Mqfq`]. What commands cost is the drive's.
    Mqfq(MqfqConfig),
    /// See [`LabKind::D2fq`]. What commands cost is the drive's.
    D2fq(D2fqConfig),
    /// See [`LabKind::Caps`].
    Caps,
}

/// `lpns`, with what operators can't set of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LpnsAsked {
    /// What they can.
    pub settings: LpnsSettings,
    /// Which rules.
    pub variant: Variant,
    /// See [`LpnsConfig::omega`]; 1 to 1000000. `None`: as the drive has it.
    pub omega: Option<u32>,
    /// How a poller's HWQs are shared out.
    pub hwqs: HwqSplit,
    /// See [`LpnsConfig::lending`].
    pub lending: Lending,
}

/// `fair`, with what operators can't set of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FairAsked {
    /// What they can.
    pub settings: FairSettings,
    /// Which rules.
    pub variant: Variant,
}

impl LpnsAsked {
    fn on(&self, drive: &LpnsConfig) -> LpnsConfig {
        let &Self { settings, variant, omega, hwqs, lending } = self;
        let omega = omega.map_or(drive.omega, f64::from);
        LpnsConfig { variant, omega, split: hwqs, lending, ..settings.on(drive) }
    }
}

impl LabSettings {
    /// A policy of which no more is said than its name.
    pub fn with_defaults(kind: LabKind) -> Self {
        match kind {
            LabKind::Product(PolicyKind::Lpns) => Self::Lpns(LpnsAsked::default()),
            LabKind::Product(PolicyKind::Fair) => Self::Fair(FairAsked::default()),
            LabKind::Product(kind) => Self::Product(Settings::with_defaults(kind)),
            LabKind::K2 => Self::K2(K2Config::default()),
            LabKind::Mqfq => Self::Mqfq(MqfqConfig::default()),
            LabKind::D2fq => Self::D2fq(D2fqConfig::default()),
            LabKind::Caps => Self::Caps,
        }
    }

    /// Which policy.
    pub fn kind(&self) -> LabKind {
        match self {
            Self::Product(settings) => LabKind::Product(settings.kind()),
            Self::Lpns(_) => LabKind::Product(PolicyKind::Lpns),
            Self::Fair(_) => LabKind::Product(PolicyKind::Fair),
            Self::K2(_) => LabKind::K2,
            Self::Mqfq(_) => LabKind::Mqfq,
            Self::D2fq(_) => LabKind::D2fq,
            Self::Caps => LabKind::Caps,
        }
    }

    /// As files and tables name it.
    pub fn name(&self) -> &'static str {
        self.kind().name()
    }

    /// Whether it is one of the product's that does this.
    pub fn does(&self, what: fn(PolicyKind) -> bool) -> bool {
        matches!(self.kind(), LabKind::Product(kind) if what(kind))
    }

    /// The policy as it runs on a drive.
    pub fn on(&self, drive: &DriveFigures) -> LabConfig {
        let cost = drive.lpns.cost;
        match self {
            Self::Product(settings) => settings.on(drive).into(),
            Self::Lpns(asked) => PolicyConfig::Lpns(asked.on(&drive.lpns)).into(),
            Self::Fair(FairAsked { settings, variant }) => {
                PolicyConfig::Fair(FairConfig { variant: *variant, ..settings.on(&drive.fair) }).into()
            }
            Self::K2(config) => LabConfig::K2(*config),
            Self::Mqfq(config) => LabConfig::Mqfq(MqfqConfig { cost, ..config.clone() }),
            Self::D2fq(config) => LabConfig::D2fq(D2fqConfig { cost, ..config.clone() }),
            Self::Caps => LabConfig::Caps,
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::PollerShape;

    use engine::Contestant;

    use super::*;

    fn drive() -> DriveFigures {
        DriveFigures { lpns: LpnsConfig::pm1735(), fair: FairConfig::pm1735(), max_in_flight: 100, is_assumed: false }
    }

    #[test]
    fn what_is_left_open_is_the_drives_and_the_rest_the_scenarios() {
        let asked = LpnsAsked { omega: Some(7), lending: Lending::Never, ..LpnsAsked::default() };
        let LabConfig::Product(PolicyConfig::Lpns(lpns)) = LabSettings::Lpns(asked).on(&drive()) else {
            panic!("not lpns")
        };
        assert_eq!((lpns.omega, lpns.lending, lpns.l_h), (7.0, Lending::Never, drive().lpns.l_h));
        let asked = FairAsked { variant: Variant::Published, ..FairAsked::default() };
        let fair = LabSettings::Fair(asked).on(&drive());
        assert!(fair.needs_one_poller());
        let LabConfig::Mqfq(mqfq) = LabSettings::with_defaults(LabKind::Mqfq).on(&drive()) else { panic!("not mqfq") };
        assert_eq!(mqfq, MqfqConfig { cost: drive().lpns.cost, ..MqfqConfig::default() });
    }

    #[test]
    fn every_policy_runs_with_its_defaults() {
        let shape = PollerShape { hwqs: 4, hwq_depth: 64, guaranteed_vqs: 1, weighted: false };
        for kind in PolicyKind::ALL.into_iter().map(LabKind::Product).chain(LabKind::RIVALS) {
            let settings = LabSettings::with_defaults(kind);
            let config = settings.on(&drive());
            assert_eq!((settings.kind(), config.name()), (kind, kind.name()));
            assert!(config.build(&shape).is_ok(), "{kind:?}");
        }
    }
}
