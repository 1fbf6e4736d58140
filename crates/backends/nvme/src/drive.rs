//! The drive: what is known of it, and how its thread is asked for queues.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use io_model::{QueuePriority, WrrWeights};
use nvme_driver::{Controller, Error, Namespace, PciDevice};
use nvme_spec::identify::{IdentifyController, oncs, sgls, vwc};
use nvme_spec::log::SmartLog;

use crate::pins::Pins;
use crate::queues::NvmeQueues;
use crate::thread::{DriveThread, Open, Order};

/// How a drive is to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Which of its namespaces.
    pub nsid: u32,
    /// What a command may take before something is done about it.
    pub command_timeout: Duration,
}

impl Default for Options {
    /// The first namespace, and what Linux waits (`nvme_core.io_timeout`).
    fn default() -> Self {
        Self { nsid: 1, command_timeout: Duration::from_secs(30) }
    }
}

/// How long what was done about a command may take before more is done: a share of the time limit within these.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Why a drive can't be used, or has no queues to give.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The controller's.
    #[error(transparent)]
    Driver(#[from] Error),
    /// There is no such namespace.
    #[error("it has no namespace {nsid}: its namespaces are {active:?}; write one of these as nsid")]
    NoNamespace {
        /// The one that was asked for.
        nsid: u32,
        /// Those that there are.
        active: Vec<u32>,
    },
    /// More queues are wanted than the drive has left.
    #[error("{wanted} more I/O queues are wanted, and {left} of the drive's {granted} are left: {}", fewer(*granted))]
    FewQueues {
        /// Asked for.
        wanted: usize,
        /// Free.
        left: usize,
        /// What the controller grants in all (Number of Queues).
        granted: u16,
    },
    /// It was given up.
    #[error("the drive is gone: it was unplugged, or given up after resets that did not help; see the log")]
    Gone,
}

/// How a drive with so few queues can be served.
fn fewer(granted: u16) -> String {
    // Each poller takes two, and to zero new disks takes one meanwhile.
    match granted.saturating_sub(1) {
        0 | 1 => "let the kernel have it, and write backend = \"block\"".to_owned(),
        most => format!("write queues = {most} or less, and have {} pollers at most", most / 2),
    }
}

/// What the drive can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Abilities {
    pub nsid: u32,
    pub block_bytes: u32,
    pub block_shift: u32,
    pub size_bytes: u64,
    /// The most that one command moves.
    pub max_bytes: u64,
    /// What addresses and lengths of SGL descriptors are multiples of. `None`: it takes none.
    pub sgl_granularity: Option<u64>,
    pub write_cache: bool,
    pub write_zeroes: bool,
    pub discard: bool,
}

impl Abilities {
    fn of(identity: &IdentifyController, namespace: Namespace, max_bytes: u64) -> Self {
        let sgl_granularity = match identity.sgls & 0b11 {
            sgls::SUPPORTED => Some(1),
            sgls::SUPPORTED_DWORD => Some(4),
            _ => None,
        };
        Self {
            nsid: namespace.nsid,
            block_bytes: namespace.block_bytes,
            block_shift: namespace.block_bytes.trailing_zeros(),
            size_bytes: namespace.size_bytes(),
            max_bytes: max_bytes.max(namespace.block_bytes.into()),
            sgl_granularity,
            write_cache: identity.vwc & vwc::PRESENT != 0,
            write_zeroes: identity.oncs & oncs::WRITE_ZEROES != 0,
            discard: identity.oncs & oncs::DATASET_MANAGEMENT != 0,
        }
    }
}

/// What a drive said last of its health. It outlives the drive.
#[derive(Debug, Clone, Default)]
pub struct LastHealth(Arc<Mutex<Option<Health>>>);

impl LastHealth {
    /// A minute old at most. `None`: it has not said anything yet, or does not any more.
    pub fn get(&self) -> Option<Health> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, health: Health) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(health);
    }

    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// How the drive is, by its SMART / Health log page (Base 5.16.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// Composite temperature.
    pub temperature_celsius: i32,
    /// Spare that is left.
    pub available_spare_percent: u8,
    /// Below this the drive warns.
    pub spare_threshold_percent: u8,
    /// Of the life that the vendor expects; may pass 100.
    pub used_percent: u8,
    /// Bits as the specification numbers them; 0: nothing.
    pub critical_warning: u8,
    /// Data that could not be read, as the drive counts them.
    pub media_errors: u64,
}

impl Health {
    pub(crate) fn of(log: &SmartLog) -> Self {
        const ZERO_CELSIUS_K: i32 = 273;
        Self {
            temperature_celsius: i32::from(u16::from_le_bytes(log.temperature_k)) - ZERO_CELSIUS_K,
            available_spare_percent: log.available_spare,
            spare_threshold_percent: log.available_spare_threshold,
            used_percent: log.percentage_used,
            critical_warning: log.critical_warning,
            media_errors: if log.media_errors[1] > 0 { u64::MAX } else { log.media_errors[0] },
        }
    }

    /// What the drive warns of, in words.
    pub fn warnings(&self) -> Vec<&'static str> {
        const WORDS: [&str; 6] = [
            "its spare is below the threshold",
            "its temperature is out of range",
            "its reliability is degraded",
            "it takes no writes any more",
            "the backup of its volatile memory failed",
            "its persistent memory region became read-only",
        ];
        let is_set = |bit: &usize| self.critical_warning & 1 << bit != 0;
        (0..WORDS.len()).filter(is_set).map(|bit| WORDS[bit]).collect()
    }
}

/// What everybody who uses the drive shares. Nothing of it is locked per command.
#[derive(Debug)]
pub(crate) struct Shared {
    pub abilities: Abilities,
    pub limit: Duration,
    pub patience: Duration,
    pub pins: Option<Pins>,
    pub copied_bytes: AtomicU64,
    pub is_gone: AtomicBool,
    pub health: LastHealth,
    max_depth: u32,
    is_weighted: bool,
}

/// An NVMe drive that pollers open queues on; copies are the same drive. Its controller is shut down when the last copy
/// and the last queues are dropped.
#[derive(Debug, Clone)]
pub struct NvmeDrive {
    shared: Arc<Shared>,
    orders: Sender<Order>,
}

impl NvmeDrive {
    /// Brings the controller up behind `device`. Nothing happens before [`DriveThread::run`] is called, by a thread of
    /// its own.
    ///
    /// # Errors
    /// The controller does not come up, or lacks something.
    pub fn start<D: PciDevice>(device: D, options: Options) -> Result<(Self, DriveThread<D>), StartError> {
        Self::over(Controller::start(device)?, options)
    }

    /// Makes a drive of a controller that is up and not in use.
    ///
    /// # Errors
    /// The controller lacks something.
    pub fn over<D: PciDevice>(
        mut controller: Controller<D>,
        options: Options,
    ) -> Result<(Self, DriveThread<D>), StartError> {
        let active = controller.admin().active_namespaces()?;
        if !active.contains(&options.nsid) {
            return Err(StartError::NoNamespace { nsid: options.nsid, active });
        }
        let namespace = controller.admin().identify_namespace(options.nsid)?;
        let identity = controller.identity();
        let shared = Arc::new(Shared {
            abilities: Abilities::of(identity, namespace, controller.max_transfer_bytes()),
            limit: options.command_timeout,
            patience: (options.command_timeout / 4).clamp(PATIENCE.0, PATIENCE.1),
            copied_bytes: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
            health: LastHealth::default(),
            max_depth: u32::from(controller.max_entries()) - 1,
            is_weighted: controller.has_priorities(),
            pins: controller.device().dma_space().map(Pins::new),
        });
        let (orders, received) = channel();
        let thread = DriveThread::new(controller, Arc::clone(&shared), received);
        Ok((Self { shared, orders }, thread))
    }

    /// `hwqs` queues of `depth` commands each, for one poller. Waits for the drive's thread.
    ///
    /// # Errors
    /// The drive has no such queues, or is gone.
    pub fn open_queues(&self, hwqs: u16, depth: u32) -> Result<NvmeQueues, StartError> {
        self.open(vec![QueuePriority::Medium; hwqs.into()], None, depth)
    }

    /// Opens queues with an arbitration class each. `None`: the drive does not fetch by weighted round robin.
    pub fn open_weighted_queues(
        &self,
        classes: &[QueuePriority],
        weights: WrrWeights,
        depth: u32,
    ) -> Option<Result<NvmeQueues, StartError>> {
        self.is_weighted().then(|| self.open(classes.to_vec(), Some(weights), depth))
    }

    fn open(
        &self,
        classes: Vec<QueuePriority>,
        weights: Option<WrrWeights>,
        depth: u32,
    ) -> Result<NvmeQueues, StartError> {
        let (reply, answer) = channel();
        // A queue holds one less than it has entries.
        let entries = depth.min(self.shared.max_depth) as u16 + 1;
        let open = Open { classes, weights, entries, reply };
        self.orders.send(Order::Open(open)).map_err(|_| StartError::Gone)?;
        // The daemon's owner waits here: only the drive's thread has the controller, and a poller starts with queues.
        let new = answer.recv().map_err(|_| StartError::Gone)??;
        Ok(NvmeQueues::new(&self.shared, &self.orders, new, depth)?)
    }

    /// Changes what a round of the drive's weighted round robin gives each class.
    pub fn set_weights(&self, weights: WrrWeights) {
        // A drive that is gone has no weights.
        let _ = self.orders.send(Order::Weights(weights));
    }

    /// Whether the drive fetches from its queues by weighted round robin.
    pub fn is_weighted(&self) -> bool {
        self.shared.is_weighted
    }

    /// Size of the namespace.
    pub fn size_bytes(&self) -> u64 {
        self.shared.abilities.size_bytes
    }

    /// Bytes of a logical block.
    pub fn block_bytes(&self) -> u32 {
        self.shared.abilities.block_bytes
    }

    /// Whether it has a volatile write cache.
    pub fn has_write_cache(&self) -> bool {
        self.shared.abilities.write_cache
    }

    /// Whether it is told of discards.
    pub fn can_discard(&self) -> bool {
        self.shared.abilities.discard
    }

    /// Memory of others that the drive reaches, to be mapped by those who may wait. `None`: it reaches none, and
    /// everything is copied.
    pub fn pins(&self) -> Option<Pins> {
        self.shared.pins.clone()
    }

    /// Bytes that were copied, because they lay in our own memory or in pieces that no command describes.
    pub fn copied_bytes(&self) -> u64 {
        self.shared.copied_bytes.load(Ordering::Relaxed)
    }

    /// Whether it was given up.
    pub fn is_gone(&self) -> bool {
        self.shared.is_gone.load(Ordering::Relaxed)
    }

    /// How it says that it is.
    pub fn health(&self) -> LastHealth {
        self.shared.health.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_too_few_queues_can_be_done() {
        let told = |granted: u16| StartError::FewQueues { wanted: 2, left: 1, granted }.to_string();
        assert!([1, 2].into_iter().all(|granted| told(granted).contains("backend = \"block\"")));
        let many = "2 more I/O queues are wanted, and 1 of the drive's 9 are left: write queues = 8 or less, and have \
                    4 pollers at most";
        assert_eq!(told(9), many);
    }
}
