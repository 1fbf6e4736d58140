//! Any policy that the simulator runs.

use std::sync::Arc;

use engine::{Contestant, FairQueueing};
use io_model::QueuePriority;
use policy::{ConfigError, Limited, PolicyConfig, PollerShape, Variant};

use crate::{
    Caps, D2fq, D2fqConfig, Gimbal, GimbalConfig, IoCost, IoCostConfig, K2, K2Config, Mqfq, MqfqConfig, Reflex,
    ReflexConfig, d2fq,
};

/// Any policy, of the product or of others, and each tenant's limits whichever it is.
pub type LabPolicy = Limited<OneOf>;

/// Any policy, chosen at run time without a virtual call per command.
#[derive(Debug)]
pub enum OneOf {
    /// One of the product's.
    Product(policy::OneOf),
    /// See [`K2`].
    K2(Box<K2>),
    /// See [`Mqfq`].
    Mqfq(Box<Mqfq>),
    /// See [`D2fq`].
    D2fq(Box<D2fq>),
    /// See [`Caps`].
    Caps(Box<Caps>),
    /// See [`IoCost`].
    IoCost(Box<IoCost>),
    /// See [`Gimbal`].
    Gimbal(Box<Gimbal>),
    /// See [`Reflex`].
    Reflex(Box<Reflex>),
}

policy::one_of_policies!(OneOf: Product, K2, Mqfq, D2fq, Caps, IoCost, Gimbal, Reflex);

/// A policy and its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum LabConfig {
    /// One of the product's.
    Product(PolicyConfig),
    /// See [`K2`].
    K2(K2Config),
    /// See [`Mqfq`].
    Mqfq(MqfqConfig),
    /// See [`D2fq`].
    D2fq(D2fqConfig),
    /// See [`Caps`].
    Caps,
    /// See [`IoCost`].
    IoCost(IoCostConfig),
    /// See [`Gimbal`].
    Gimbal(GimbalConfig),
    /// See [`Reflex`].
    Reflex(ReflexConfig),
}

impl From<PolicyConfig> for LabConfig {
    fn from(config: PolicyConfig) -> Self {
        Self::Product(config)
    }
}

impl LabConfig {
    /// Whether it knows what all tenants do only if one poller serves them all. Else a tenant may be on several, too.
    pub fn needs_one_poller(&self) -> bool {
        match self {
            Self::Product(PolicyConfig::Fair(fair)) => fair.variant == Variant::Published,
            Self::Product(_) | Self::K2(_) | Self::Mqfq(_) | Self::Caps => false,
            Self::D2fq(_) | Self::IoCost(_) | Self::Gimbal(_) | Self::Reflex(_) => true,
        }
    }
}

impl Contestant for LabConfig {
    type Policy = LabPolicy;

    fn name(&self) -> &'static str {
        match self {
            Self::Product(config) => config.name(),
            Self::K2(_) => "k2",
            Self::Mqfq(_) => "mqfq",
            Self::D2fq(_) => "d2fq",
            Self::Caps => "caps",
            Self::IoCost(_) => "iocost",
            Self::Gimbal(_) => "gimbal",
            Self::Reflex(_) => "reflex",
        }
    }

    fn product(&self) -> Option<&PolicyConfig> {
        match self {
            Self::Product(config) => Some(config),
            _ => None,
        }
    }

    fn build(&self, shape: &PollerShape) -> Result<LabPolicy, ConfigError> {
        let policy = match self {
            Self::Product(config) => OneOf::Product(config.build_unlimited(shape)?),
            Self::K2(config) => OneOf::K2(Box::new(K2::new(config, shape)?)),
            Self::Mqfq(config) => OneOf::Mqfq(Box::new(Mqfq::new(config, shape)?)),
            Self::D2fq(config) => OneOf::D2fq(Box::new(D2fq::new(config, shape)?)),
            Self::Caps => OneOf::Caps(Box::new(Caps::new(shape)?)),
            Self::IoCost(config) => OneOf::IoCost(Box::new(IoCost::new(config.clone(), shape)?)),
            Self::Gimbal(config) => OneOf::Gimbal(Box::new(Gimbal::new(config.clone(), shape)?)),
            Self::Reflex(config) => OneOf::Reflex(Box::new(Reflex::new(config.clone(), shape)?)),
        };
        Ok(Limited::new(policy, Arc::default()))
    }

    fn hwq_classes(&self, shape: &PollerShape) -> Option<Vec<QueuePriority>> {
        match self {
            Self::Product(config) => config.hwq_classes(shape),
            Self::D2fq(_) => Some((0..shape.hwqs).map(d2fq::class_of).collect()),
            _ => None,
        }
    }

    fn fair_queueing(&self) -> Option<FairQueueing> {
        let Self::Mqfq(MqfqConfig { gap_commands, guaranteed_weight, cost, .. }) = *self else { return None };
        Some(FairQueueing { cost, guaranteed_weight, gap_commands })
    }
}
