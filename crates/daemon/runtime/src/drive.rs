//! The drives that a configuration can name, behind one trait.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use backend_cipher::{Encrypted, Keys};
use backend_memory::{Memory, MemoryDrive, Model, ModelDrive, Null, NullDrive};
use backend_nvme::{LastHealth, Pins};
use backend_uring::{Kind, Uring, UringDrive};
use config::{Config, Content};
use io_model::{Backend, QueuePriority, WrrWeights};
use policy::{Groups, PolicyConfig, PollerShape};
use poller::{Board, Poller};
use ssd_model::Profile;

use crate::doorbell_scanner::DoorbellScanner;
pub use crate::drive_trait::{Drive, Facts, SetWeights, ZeroRange};
use crate::front_end::Served;
use crate::happening::Teller;
use crate::image_disk::OpenedImage;
use crate::image_drive::ImageDrive;
use crate::nvme_drive::{self, SurveyedNvme};
use crate::poller_thread::{self, Behaviour, PollerSender, Start, Thread};
use crate::poller_watchdog::Pulses;
use observe::clock::Clock;

impl ZeroRange for UringDrive {
    fn zero(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        Ok(UringDrive::zero(self, offset_bytes, len_bytes)?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(UringDrive::sync(self)?)
    }

    fn data(&self, offset_bytes: u64, len_bytes: u64) -> Vec<Range<u64>> {
        UringDrive::data(self, offset_bytes, len_bytes)
    }
}

/// A drive whose type only its pollers know. Its owner opens and closes pollers on it while others run.
pub trait AnyDrive: Send {
    /// What the drive can do.
    fn facts(&self) -> Facts;

    /// See [`Drive::zeroer`].
    fn zeroer(&self) -> Option<Box<dyn ZeroRange>>;

    /// See [`Drive::pins`].
    fn pins(&self) -> Option<Pins>;

    /// See [`Drive::take_images`].
    fn take_images(&self) -> Vec<OpenedImage>;

    /// See [`Drive::report_to`].
    fn report_to(&self, owner: Teller);

    /// See [`Drive::health`].
    fn health(&self) -> Option<LastHealth>;

    /// See [`Drive::is_gone`].
    fn is_gone(&self) -> bool;

    /// Opens queues and starts a poller on them.
    ///
    /// # Errors
    /// The drive has no such queues, the policy a setting out of its range, or the kernel no thread left.
    fn start_poller(&self, opening: Opening<'_>) -> Result<(PollerSender<Served>, Thread)>;
}

/// A poller to open.
pub struct Opening<'a> {
    /// Which of the daemon's; given once.
    pub number: usize,
    /// Its queues.
    pub shape: PollerShape,
    /// The policy of the drive.
    pub policy: &'a PolicyConfig,
    /// The probes of all tenants of the drive.
    pub board: Arc<Board>,
    /// How its thread behaves at first.
    pub behaviour: Behaviour,
    /// The ceilings of groups.
    pub groups: Arc<Groups>,
    /// The keys of the drive's disks.
    pub keys: Arc<Keys>,
    /// Run on these CPUs only; empty: on any.
    pub cpus: Vec<u32>,
    /// The daemon's.
    pub clock: Clock,
    /// Looks at mapped doorbells while it sleeps.
    pub scanner: DoorbellScanner,
    /// Says that it gets on.
    pub pulses: Pulses,
}

impl<D: Drive> AnyDrive for D {
    fn facts(&self) -> Facts {
        Drive::facts(self)
    }

    fn zeroer(&self) -> Option<Box<dyn ZeroRange>> {
        Drive::zeroer(self)
    }

    fn pins(&self) -> Option<Pins> {
        Drive::pins(self)
    }

    fn take_images(&self) -> Vec<OpenedImage> {
        Drive::take_images(self)
    }

    fn report_to(&self, owner: Teller) {
        Drive::report_to(self, owner);
    }

    fn health(&self) -> Option<LastHealth> {
        Drive::health(self)
    }

    fn is_gone(&self) -> bool {
        Drive::is_gone(self)
    }

    fn start_poller(&self, opening: Opening<'_>) -> Result<(PollerSender<Served>, Thread)> {
        let Opening { number, shape, policy, groups, keys, board, behaviour, cpus, clock, scanner, pulses } = opening;
        let built = policy.build_in(&shape, groups).context("[policy]")?;
        let (queues, set_weights) = open(self, policy, &shape)?;
        let poller = Poller::new(Encrypted::new(queues, keys), built, board, clock.now());
        let drive_on_cpus = Drive::facts(self).on_cpus;
        let start = Start { number, poller, set_weights, behaviour, drive_on_cpus, cpus, clock, scanner, pulses };
        poller_thread::start(start).with_context(|| format!("can't start poller {number}"))
    }
}

/// A poller's queues, and what sets their weights where the policy relies on them.
fn open<D: Drive>(drive: &D, policy: &PolicyConfig, shape: &PollerShape) -> Result<(D::Queues, Option<SetWeights>)> {
    let (Some(classes), Some(weights)) = (policy.hwq_classes(shape), policy.wrr_weights(shape)) else {
        return Ok((drive.open_queues(shape.hwqs, shape.hwq_depth)?, None));
    };
    // The configuration was checked; this is for the author of a new back end.
    let none = || anyhow!("{} needs a drive with weighted round robin", policy.name());
    let queues = drive.open_weighted_queues(&classes, weights, shape.hwq_depth).ok_or_else(none)??;
    Ok((queues, drive.weights()))
}

const IN_MEMORY: Facts = Facts { block_bytes: 512, write_cache: false, discard: true, weighted: false, on_cpus: false };

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
        Facts { weighted: self.is_weighted(), ..IN_MEMORY }
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
        let (discard, on_cpus) = (self.can_discard(), self.is_on_cpus());
        Facts { block_bytes, write_cache: true, discard, weighted: false, on_cpus }
    }

    fn zeroer(&self) -> Option<Box<dyn ZeroRange>> {
        Some(Box::new(self.clone()))
    }

    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<Uring> {
        Ok(self.open_queues(hwqs, depth)?)
    }
}

/// Opens the drive that a configuration names, with this many bytes.
///
/// # Errors
/// It can't be opened, or there is not enough memory for it.
pub fn open_configured(config: &Config, profile: &Profile, size_bytes: u64) -> Result<Box<dyn AnyDrive>> {
    Ok(match &config.device.backend {
        config::Backend::Null => Box::new(NullDrive::new(size_bytes)),
        config::Backend::Memory => Box::new(MemoryDrive::new(size_bytes).map_err(|error| config.no_memory(error))?),
        config::Backend::Model { memory_backed: false } => {
            Box::new(ModelDrive::without_content(profile.clone(), size_bytes))
        }
        config::Backend::Model { memory_backed: true } => {
            Box::new(ModelDrive::over_memory(profile.clone(), size_bytes).map_err(|error| config.no_memory(error))?)
        }
        config::Backend::File { path, .. } => Box::new(UringDrive::open(path, Kind::File, None)?),
        config::Backend::Block { path, nvme_commands: false } => Box::new(UringDrive::open(path, Kind::Block, None)?),
        config::Backend::Block { path, nvme_commands: true } => {
            Box::new(UringDrive::open_nvme(path, &config::nvme_character_device(path)?)?)
        }
        config::Backend::Directory { .. } => Box::new(ImageDrive::open(config)?),
        config::Backend::Nvme { address, nsid, command_timeout } => {
            Box::new(nvme_drive::open(&config.device.name, address, *nsid, *command_timeout)?)
        }
    })
}

/// A drive as a client hands it over.
pub enum HandedIn {
    /// There is nothing to be opened.
    Nothing,
    /// A file or block device, and what it holds.
    File(File, Option<Content>),
    /// A drive without the kernel, which is up.
    Nvme(Box<SurveyedNvme>),
}

/// As [`open_configured`], for a drive that a client opened.
///
/// # Errors
/// As there.
pub fn open_over(config: &Config, profile: &Profile, size_bytes: u64, opened: HandedIn) -> Result<Box<dyn AnyDrive>> {
    let over = |file: File, path: &Path, kind| Ok(Box::new(UringDrive::over(file, path, kind)?) as Box<dyn AnyDrive>);
    match (&config.device.backend, opened) {
        (config::Backend::File { path, .. }, HandedIn::File(file, _)) => over(file, path, Kind::File),
        (config::Backend::Block { path, .. }, HandedIn::File(file, _)) => over(file, path, Kind::Block),
        (config::Backend::Nvme { .. }, HandedIn::Nvme(opened)) => Ok(Box::new(opened.drive)),
        _ => open_configured(config, profile, size_bytes),
    }
}

/// A drive with something around each poller's queues, for tests in which it must misbehave.
#[derive(Clone)]
pub struct Wrapped<D, W> {
    /// The drive.
    pub drive: D,
    /// What goes around its queues.
    pub wrap: W,
}

impl<D: Drive, B: Backend + Send + 'static, W: Fn(D::Queues) -> B + Clone + Send + 'static> Drive for Wrapped<D, W> {
    type Queues = B;

    fn facts(&self) -> Facts {
        self.drive.facts()
    }

    fn open_queues(&self, hwqs: u16, depth: u32) -> Result<B> {
        self.drive.open_queues(hwqs, depth).map(&self.wrap)
    }

    fn open_weighted_queues(&self, classes: &[QueuePriority], weights: WrrWeights, depth: u32) -> Option<Result<B>> {
        Some(self.drive.open_weighted_queues(classes, weights, depth)?.map(&self.wrap))
    }

    fn weights(&self) -> Option<SetWeights> {
        self.drive.weights()
    }

    fn zeroer(&self) -> Option<Box<dyn ZeroRange>> {
        self.drive.zeroer()
    }
}

#[cfg(test)]
mod tests {
    use backend_nvme::Options;
    use backend_wrappers::{Fate, Fault, Faults, Faulty};
    use fake_device::Fake;
    use io_model::{DeviceError, HwqId, Io, IoBuf, Nanos, Place, TenantId};
    use nvme_spec::feature::fid;
    use policy::{ArbitratedConfig, LpnsConfig};

    use super::*;
    use crate::nvme_drive::ServedNvme;

    /// What a controller hears when pollers for `guaranteed` VQs, with four HWQs each, open their queues: the QPRIO of
    /// each queue, and the Arbitration feature.
    fn heard(fake: &Fake, policy: &PolicyConfig, guaranteed: &[u16]) -> (Vec<u8>, Option<u32>) {
        fake.state().features.insert(fid::ARBITRATION, 0x0707_0705);
        let drive = ServedNvme::start("d", fake.device(), Options::default()).expect("a drive");
        let weighted = Drive::facts(&drive).weighted;
        let shape = |&guaranteed_vqs| PollerShape { hwqs: 4, hwq_depth: 64, guaranteed_vqs, weighted };
        let opened = guaranteed.iter().map(shape).map(|shape| open(&drive, policy, &shape).expect("queues"));
        let opened: Vec<_> = opened.collect();
        assert!(opened.iter().all(|(_, set_weights)| set_weights.is_some() == weighted));
        let state = fake.state();
        (state.qprios.values().copied().collect(), state.features.get(&fid::ARBITRATION).copied())
    }

    const URGENT: u8 = 0;
    const HIGH: u8 = 1;
    const MEDIUM: u8 = 2;
    const LOW: u8 = 3;

    #[test]
    fn under_lpns_homes_of_guaranteed_vqs_are_high_and_all_other_queues_medium() {
        let lpns = PolicyConfig::Lpns(LpnsConfig::p5800x());
        let (qprios, arbitration) = heard(&Fake::new(64).with_arbitration(), &lpns, &[2, 0]);
        assert_eq!(qprios, [HIGH, HIGH, MEDIUM, MEDIUM, MEDIUM, MEDIUM, MEDIUM, MEDIUM]);
        assert_eq!(arbitration, Some(0x0200_0005), "3 to 1, each less one, and the drive's own burst");
    }

    #[test]
    fn under_wrr_each_priority_has_queues_of_its_class() {
        let wrr = PolicyConfig::Wrr(ArbitratedConfig::wrr());
        let (qprios, arbitration) = heard(&Fake::new(64).with_arbitration(), &wrr, &[0]);
        assert_eq!(qprios, [URGENT, HIGH, MEDIUM, LOW]);
        assert_eq!(arbitration, Some(0x1f0f_0705));
    }

    #[test]
    fn a_drive_without_weights_hears_nothing_of_them() {
        let [lpns, wrr] = [PolicyConfig::Lpns(LpnsConfig::p5800x()), PolicyConfig::Wrr(ArbitratedConfig::wrr())];
        for policy in [lpns, wrr] {
            let (qprios, arbitration) = heard(&Fake::new(64), &policy, &[2]);
            assert!(qprios.iter().all(|qprio| *qprio == qprios[0]), "{}: {qprios:?}", policy.name());
            assert_eq!(arbitration, Some(0x0707_0705), "{}", policy.name());
        }
    }

    #[test]
    fn a_wrapped_drive_is_a_drive_that_fails_on_demand() {
        let faults = Faults::default();
        let (drive, of_queues) = (MemoryDrive::new(1 << 20).unwrap(), faults.clone());
        let wrapped = Wrapped { drive, wrap: move |queues| Faulty::new(queues, &of_queues) };
        let mut queues = wrapped.open_queues(1, 4).unwrap();
        let mut flush = || {
            let command = Place::whole_drive(TenantId(0)).flush();
            queues.submit(HwqId(0), Io { tag: 0, command, buf: IoBuf::default() }, Nanos(0));
            let mut outcome = None;
            queues.reap(Nanos(0), &mut |_, done| outcome = Some(done.outcome));
            outcome
        };
        assert_eq!(flush(), Some(Ok(())));
        faults.add(Fault::new(Fate::Fails(DeviceError::Gone)));
        assert_eq!(flush(), Some(Err(DeviceError::Gone)));
    }
}
