//! A drive without the kernel: its thread is started when it is first asked for anything, by a process that has dropped
//! its rights by then.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use backend_nvme::{DriveThread, LastHealth, Notice, NvmeDrive, NvmeQueues, NvmeZeroer, Options, Pins, StartError};
use config::Assignments;
use config::Survey;
use confine::ThreadKind;
use io_model::{Nanos, Outcome, QueuePriority, WrrWeights};
use nvme_driver::{Controller, PciDevice, VfioDescriptors, VfioDevice};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::drive_trait::{Drive, Facts, SetWeights, ZeroRange};
use crate::happening::{Happening, Teller};
use crate::threads;

/// A drive, and its thread until it runs.
pub struct ServedNvme<D: PciDevice> {
    drive: NvmeDrive,
    name: Arc<str>,
    idle: Arc<Mutex<Option<DriveThread<D>>>>,
    /// Hears of what goes wrong, beside the log.
    owner: Arc<OnceLock<Teller>>,
}

impl<D: PciDevice> Clone for ServedNvme<D> {
    fn clone(&self) -> Self {
        let Self { drive, name, idle, owner } = self;
        let (drive, name) = (drive.clone(), Arc::clone(name));
        Self { drive, name, idle: Arc::clone(idle), owner: Arc::clone(owner) }
    }
}

/// Opens a drive that was taken from the kernel.
///
/// # Errors
/// It can't be driven; what the operator can do about it is said.
pub fn open(name: &str, address: &str, nsid: u32, command_timeout: Nanos) -> Result<ServedNvme<VfioDevice>> {
    let at = address.parse().map_err(|_| anyhow!("{address} is no PCI address"))?;
    let device = VfioDevice::open(at).with_context(|| format!("can't open drive {address}"))?;
    // It was looked at before; now nobody else can have it.
    if let Some((what, remedy)) = Assignments::of_this_host().refusal(at) {
        return Err(anyhow!("{what}; {remedy}"));
    }
    ServedNvme::start(name, device, options(nsid, command_timeout))
        .with_context(|| format!("drive {address} can't be used"))
}

fn options(nsid: u32, command_timeout: Nanos) -> Options {
    Options { nsid, command_timeout: Duration::from_nanos(command_timeout.0) }
}

/// A drive that was handed over, and its identification.
pub struct SurveyedNvme {
    /// The drive, brought up.
    pub drive: ServedNvme<VfioDevice>,
    /// What it says of itself.
    pub survey: Survey,
}

/// Brings a drive up that its opener handed over. Asks what it is, and what it holds, unless that `is_discarded`.
/// Takes as long as the drive does.
///
/// # Errors
/// As [`open`].
pub fn survey(
    name: &str,
    opened: VfioDescriptors,
    nsid: u32,
    command_timeout: Nanos,
    is_discarded: bool,
) -> Result<SurveyedNvme> {
    let address = opened.address;
    let look = || {
        let mut controller = Controller::start(VfioDevice::from_descriptors(opened)?)?;
        let survey = Survey::of(&mut controller, nsid, |_| is_discarded)?;
        let drive = NvmeDrive::over(controller, options(nsid, command_timeout))?;
        Ok::<_, StartError>(SurveyedNvme { drive: ServedNvme::new(name, drive), survey })
    };
    look().with_context(|| format!("drive {address} can't be used"))
}

/// Raises the limit of locked memory, against which guests' memory is pinned. If it can't be raised and is too low,
/// pinning reports that.
pub fn raise_memory_lock() {
    let unlimited = Rlimit { current: None, maximum: None };
    if setrlimit(Resource::Memlock, unlimited).is_err() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Memlock);
        let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    }
}

impl<D: PciDevice + 'static> ServedNvme<D> {
    /// Over a device that is open.
    ///
    /// # Errors
    /// The drive's.
    pub fn start(name: &str, device: D, options: Options) -> Result<Self> {
        Ok(Self::new(name, NvmeDrive::start(device, options)?))
    }

    fn new(name: &str, (drive, thread): (NvmeDrive, DriveThread<D>)) -> Self {
        Self { drive, name: name.into(), idle: Arc::new(Mutex::new(Some(thread))), owner: Arc::default() }
    }

    /// Which one, for errors.
    fn in_words(&self) -> String {
        format!("drive {:?}", self.name)
    }

    /// The drive, with its thread running.
    fn running(&self) -> Result<&NvmeDrive> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(idle) = idle {
            let (name, owner) = (Arc::clone(&self.name), Arc::clone(&self.owner));
            let serve = move || idle.run(|notice| tell(&name, notice, owner.get()));
            let spawned = threads::spawn(format!("nvme-{}", self.name), ThreadKind::Drive, serve);
            spawned.context("no thread for the drive")?;
        }
        Ok(&self.drive)
    }
}

fn tell(drive: &str, notice: Notice, owner: Option<&Teller>) {
    match notice {
        Notice::Info(text) => tracing::info!(drive, "drive {drive}: {text}"),
        Notice::Warning(text) => {
            tracing::warn!(drive, "drive {drive}: {text}");
            if let Some(owner) = owner {
                owner.tell(Happening::DriveFailing(text));
            }
        }
    }
}

impl<D: PciDevice + 'static> Drive for ServedNvme<D> {
    type Queues = NvmeQueues;

    fn facts(&self) -> Facts {
        let drive = &self.drive;
        let (block_bytes, write_cache, discard) = (drive.block_bytes(), drive.has_write_cache(), drive.can_discard());
        Facts { block_bytes, write_cache, discard, weighted: drive.is_weighted(), on_cpus: false }
    }

    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<NvmeQueues> {
        self.running()?.open_queues(hwqs, depth).with_context(|| self.in_words())
    }

    fn open_weighted_queues(
        &self,
        classes: &[QueuePriority],
        weights: WrrWeights,
        depth: u32,
    ) -> Option<Result<NvmeQueues>> {
        match self.running() {
            Ok(drive) => {
                let opened = drive.open_weighted_queues(classes, weights, depth)?;
                Some(opened.with_context(|| self.in_words()))
            }
            Err(error) => Some(Err(error)),
        }
    }

    fn weights(&self) -> Option<SetWeights> {
        let drive = self.drive.clone();
        drive.is_weighted().then(|| Box::new(move |weights| drive.set_weights(weights)) as SetWeights)
    }

    fn zeroer(&self) -> Option<Box<dyn ZeroRange>> {
        // Started here: those that zero start no threads.
        self.running().ok().map(|drive| Box::new(Zeroer { drive: drive.clone(), queue: None }) as Box<dyn ZeroRange>)
    }

    fn pins(&self) -> Option<Pins> {
        self.drive.pins()
    }

    fn report_to(&self, owner: Teller) {
        // Once: a drive has one owner.
        let _ = self.owner.set(owner);
    }

    fn health(&self) -> Option<LastHealth> {
        Some(self.drive.health())
    }

    fn is_gone(&self) -> bool {
        self.drive.is_gone()
    }
}

/// Has a queue of the drive only while it zeroes something: queues are few, and one that is kept keeps a drive from
/// being unplugged.
struct Zeroer {
    drive: NvmeDrive,
    queue: Option<NvmeZeroer>,
}

impl Zeroer {
    fn run(&mut self, zero: impl FnOnce(&mut NvmeZeroer) -> Outcome) -> Result<()> {
        let mut queue = match self.queue.take() {
            Some(queue) => queue,
            None => NvmeZeroer::new(&self.drive)?,
        };
        zero(&mut queue).map_err(|error| anyhow!("the drive fails it: {error:?}"))?;
        self.queue = Some(queue);
        Ok(())
    }
}

impl ZeroRange for Zeroer {
    fn zero(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        self.run(|queue| queue.zero(offset_bytes, len_bytes))
    }

    fn sync(&mut self) -> Result<()> {
        self.run(NvmeZeroer::sync)?;
        self.queue = None;
        Ok(())
    }
}
