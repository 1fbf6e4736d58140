//! What every drive can do for pollers, however it is reached.

use std::ops::Range;

use anyhow::Result;
use backend_nvme::{LastHealth, Pins};
use io_model::{Backend, QueuePriority, WrrWeights};

use crate::happening::Teller;
use crate::image_disk::OpenedImage;

/// Sets the weights of a drive's arbitration classes.
pub type SetWeights = Box<dyn FnMut(WrrWeights) + Send>;

/// What a drive can do, as far as a controller must know.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// The smallest unit that can be read or written.
    pub block_bytes: u32,
    /// Writes may sit in a cache until a flush.
    pub write_cache: bool,
    /// Discard does something.
    pub discard: bool,
    /// It fetches by weighted round robin.
    pub weighted: bool,
    /// Threads of this host do its commands: a poller that looks for completions may keep a CPU from them.
    pub on_cpus: bool,
}

/// A drive that pollers open queues on; copies are the same drive. A wrapper of a drive is one too.
pub trait Drive: Clone + Send + 'static {
    /// One poller's queues.
    type Queues: Backend + Send + 'static;

    /// What the drive can do.
    fn facts(&self) -> Facts;

    /// `hwqs` queues of `depth` commands each, for one poller.
    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Self::Queues>;

    /// Opens queues with an arbitration class each, on a drive that can fetch by weighted round robin. `None`: it
    /// can't.
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

    /// What zeroes its ranges. `None`: it is empty at each start, and no range is given twice.
    fn zeroer(&self) -> Option<Box<dyn ZeroRange>> {
        None
    }

    /// Memory of guests that the drive reaches only once it is pinned, which the threads of clients do. `None`: it
    /// reaches all that this process has.
    fn pins(&self) -> Option<Pins> {
        None
    }

    /// Has what goes wrong with it told to the owner. Of others, their commands tell.
    fn report_to(&self, _owner: Teller) {}

    /// Disks that are images on it, once; they are to be [started](OpenedImage::start).
    fn take_images(&self) -> Vec<OpenedImage> {
        Vec::new()
    }

    /// What it says of itself. `None`: it says nothing, or the kernel is to be asked.
    fn health(&self) -> Option<LastHealth> {
        None
    }

    /// Whether it was given up: it fails everything until it is opened anew.
    fn is_gone(&self) -> bool {
        false
    }
}

/// Zeroes ranges of a drive, for a thread that may wait.
pub trait ZeroRange: Send {
    /// Makes a range read as zeros.
    ///
    /// # Errors
    /// The drive's; part of it may be zeroed.
    fn zero(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<()>;

    /// Makes zeroed ranges durable.
    ///
    /// # Errors
    /// The drive's.
    fn sync(&mut self) -> Result<()>;

    /// Where a range that nobody writes to may hold data, in order. All else of it reads as zeros already.
    fn data(&self, offset_bytes: u64, len_bytes: u64) -> Vec<Range<u64>> {
        std::iter::once(offset_bytes..offset_bytes + len_bytes).collect()
    }
}
