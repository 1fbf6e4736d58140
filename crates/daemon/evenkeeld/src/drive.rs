//! The drives that a configuration can name, behind one trait.

use anyhow::Result;
use backend_memory::{Memory, MemoryDrive, Model, ModelDrive, Null, NullDrive};
use backend_uring::{Uring, UringDrive};
use config::Config;
use io_model::{Backend, QueuePriority, WrrWeights};
use ssd_model::Profile;

/// What a drive can do, as far as a controller must know.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// The smallest unit that can be read or written.
    pub block_bytes: u32,
    /// Writes may sit in a cache until a flush.
    pub write_cache: bool,
    /// Discard does something.
    pub discard: bool,
}

/// A drive that pollers open queues on.
pub trait Drive {
    /// One poller's queues.
    type Queues: Backend + Send + 'static;

    /// What the drive can do.
    fn facts(&self) -> Facts;

    /// `hwqs` queues of `depth` commands each, for one poller.
    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Self::Queues>;

    /// The same with an arbitration class for each queue, on a drive that can fetch by weighted round robin. `None`:
    /// it can't.
    fn open_weighted_queues(
        &self,
        _classes: &[QueuePriority],
        _weights: WrrWeights,
        _depth: u32,
    ) -> Option<Result<Self::Queues>> {
        None
    }

    /// What changes the weights of those classes later.
    fn weights(&self) -> Option<SetWeights> {
        None
    }
}

/// Sets the weights of a drive's arbitration classes.
pub type SetWeights = Box<dyn FnMut(WrrWeights) + Send>;

const IN_MEMORY: Facts = Facts { block_bytes: 512, write_cache: false, discard: true };

impl Drive for NullDrive {
    type Queues = Null;

    fn facts(&self) -> Facts {
        IN_MEMORY
    }

    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Null> {
        Ok(self.open_queues(hwqs, depth))
    }
}

impl Drive for MemoryDrive {
    type Queues = Memory;

    fn facts(&self) -> Facts {
        IN_MEMORY
    }

    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Memory> {
        Ok(self.open_queues(hwqs, depth))
    }
}

impl Drive for ModelDrive {
    type Queues = Model;

    fn facts(&self) -> Facts {
        IN_MEMORY
    }

    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Model> {
        Ok(self.open_queues(hwqs, depth)?)
    }

    fn open_weighted_queues(
        &self,
        classes: &[QueuePriority],
        weights: WrrWeights,
        depth: u32,
    ) -> Option<Result<Model>> {
        Some(self.open_weighted_queues(classes, weights, depth).map_err(Into::into))
    }

    fn weights(&self) -> Option<SetWeights> {
        let drive = self.clone();
        Some(Box::new(move |weights| drive.set_weights(weights)))
    }
}

impl Drive for UringDrive {
    type Queues = Uring;

    fn facts(&self) -> Facts {
        let block_bytes = u32::try_from(self.block_bytes()).unwrap_or(u32::MAX);
        Facts { block_bytes, write_cache: true, discard: self.can_discard() }
    }

    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Uring> {
        Ok(self.open_queues(hwqs, depth)?)
    }
}

/// A drive model with that profile.
pub fn model(config: &Config, profile: Profile, size_bytes: u64) -> Result<ModelDrive> {
    Ok(ModelDrive::over_memory(profile, size_bytes).map_err(|error| config.no_memory(error))?)
}
