//! The settings of a policy, as the event loop and its checks need them.

use std::fmt::Debug;

use io_model::QueuePriority;
use policy::{AnyPolicy, ConfigError, Cost, Policy, PolicyConfig, PollerShape};

/// The settings of a policy that can be played.
pub trait Contestant: Debug + Clone + From<PolicyConfig> {
    /// The policy of one poller.
    type Policy: Policy;

    /// As reports name it.
    fn name(&self) -> &'static str;
    /// The settings, if it is one of the product's policies.
    fn product(&self) -> Option<&PolicyConfig>;
    /// Makes the policy of one poller.
    ///
    /// # Errors
    /// A setting out of its range, or a shape without HWQs or depth.
    fn build(&self, shape: &PollerShape) -> Result<Self::Policy, ConfigError>;
    /// As [`PolicyConfig::hwq_classes`].
    fn hwq_classes(&self, shape: &PollerShape) -> Option<Vec<QueuePriority>>;

    /// Whether a guaranteed tenant has a poller of its own.
    fn gives_own_pollers(&self) -> bool {
        self.product().is_some_and(|config| config.kind().gives_own_pollers())
    }

    /// What its shares are held to, if it orders commands by start tags and is none of the product's.
    fn fair_queueing(&self) -> Option<FairQueueing> {
        None
    }
}

/// Fair queueing by start tags.
#[derive(Debug, Clone, Copy)]
pub struct FairQueueing {
    /// What commands cost.
    pub cost: Cost,
    /// The weight of a guaranteed tenant.
    pub guaranteed_weight: u32,
    /// Commands by which a tenant's start tags may be ahead of the others'.
    pub gap_commands: u32,
}

impl Contestant for PolicyConfig {
    type Policy = AnyPolicy;

    fn name(&self) -> &'static str {
        self.name()
    }

    fn product(&self) -> Option<&PolicyConfig> {
        Some(self)
    }

    fn build(&self, shape: &PollerShape) -> Result<AnyPolicy, ConfigError> {
        self.build(shape)
    }

    fn hwq_classes(&self, shape: &PollerShape) -> Option<Vec<QueuePriority>> {
        self.hwq_classes(shape)
    }
}
