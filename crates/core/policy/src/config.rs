//! Which policy, with which settings: what the daemon and the simulator build a poller's policy from.

use std::sync::Arc;

use io_model::{QueuePriority, WrrWeights};

use crate::{
    AnyPolicy, Arbitrated, ArbitratedConfig, Evenkeel, EvenkeelConfig, FairConfig, FairNvme, Groups, Limited, Lpns,
    LpnsConfig, OneOf, Passthrough, PolicyWith, arbitrated,
};

/// A setting that can't work. Nothing was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{field} {remedy}")]
pub struct ConfigError {
    /// The field of the policy's configuration.
    pub field: &'static str,
    /// What it must be.
    pub remedy: &'static str,
}

impl ConfigError {
    /// # Errors
    /// The rule does not hold.
    pub fn check(holds: bool, field: &'static str, remedy: &'static str) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self { field, remedy }) }
    }
}

/// What one poller has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollerShape {
    /// HWQs of its back end, 1 or more.
    pub hwqs: u16,
    /// Commands that one HWQ holds, 1 or more.
    pub hwq_depth: u32,
    /// VQs of guaranteed tenants that it is expected to serve.
    pub guaranteed_vqs: u16,
    /// The drive fetches by weighted round robin, and gives the HWQs the classes that the policy
    /// [wants](PolicyConfig::hwq_classes).
    pub weighted: bool,
}

impl PollerShape {
    /// # Errors
    /// No HWQ, or none that holds a command.
    pub fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::check((1..=4096).contains(&self.hwqs), "hwqs", "must be from 1 to 4096")?;
        ConfigError::check(self.hwq_depth >= 1, "hwq_depth", "must be at least 1")
    }
}

/// A policy with all that it needs. The HWQ counts and the depth of `lpns` are replaced by the poller's, its split
/// holds.
pub type PolicyConfig = PolicyWith<LpnsConfig, FairConfig, ArbitratedConfig, EvenkeelConfig>;

impl PolicyConfig {
    /// The policy of one poller, with its tenants' limits and without groups.
    ///
    /// # Errors
    /// A setting out of its range, or a shape without HWQs or depth.
    pub fn build(&self, shape: &PollerShape) -> Result<AnyPolicy, ConfigError> {
        self.build_in(shape, Arc::default())
    }

    /// The policy of one poller, with its tenants' limits and their groups' ceilings.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_in(&self, shape: &PollerShape, groups: Arc<Groups>) -> Result<AnyPolicy, ConfigError> {
        Ok(Limited::new(self.build_unlimited(shape)?, groups))
    }

    /// Builds the policy without limits.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_unlimited(&self, shape: &PollerShape) -> Result<OneOf, ConfigError> {
        shape.validate()?;
        let PollerShape { hwqs, hwq_depth, .. } = *shape;
        Ok(match self {
            Self::Passthrough => Passthrough::new(hwqs, hwq_depth).into(),
            Self::Lpns(config) => Lpns::new(config.clone().at(shape))?.into(),
            Self::Fair(config) => FairNvme::new(config.clone(), hwqs, hwq_depth)?.into(),
            Self::Wrr(config) => Arbitrated::wrr(config, shape)?.into(),
            Self::Drr(config) => Arbitrated::drr(config, shape)?.into(),
            Self::Evenkeel(config) => Evenkeel::new(config.clone(), shape)?.into(),
        })
    }

    /// The arbitration class that each of a poller's HWQs must have, if the policy uses the drive's weighted round
    /// robin there. `None`: any arbitration will do.
    pub fn hwq_classes(&self, shape: &PollerShape) -> Option<Vec<QueuePriority>> {
        let each = |class_of: &dyn Fn(u16) -> QueuePriority| Some((0..shape.hwqs).map(class_of).collect());
        match self {
            Self::Lpns(config) if shape.weighted => {
                let config = config.clone().at(shape);
                each(&|hwq| config.class_of(hwq))
            }
            Self::Wrr(config) if arbitrated::goes_on_in_drive(config, shape) => each(&arbitrated::class_of),
            _ => None,
        }
    }

    /// The weights of those classes at the start; later ones are [`Policy::wrr_weights`](crate::Policy::wrr_weights).
    pub fn wrr_weights(&self, shape: &PollerShape) -> Option<WrrWeights> {
        match self {
            Self::Lpns(config) => config.clone().at(shape).weights(),
            Self::Wrr(config) => arbitrated::goes_on_in_drive(config, shape).then(|| config.weights()),
            _ => None,
        }
    }
}
