//! A drive that was taken from the kernel: measured on queues of its own, which are polled.

use std::fmt::Display;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use backend_nvme::{Notice, NvmeDrive, NvmeQueues, Options, StartError};
use calibrate::{BACKLOG, DEPTH, DEPTH_LEAST, HWQS, HWQS_LEAST};
use config::Assignments;
use nvme_driver::{Controller, Error, PciAddress, PciDevice, VfioDevice, VfioError};

use super::{Refused, progress};

/// How such a drive is to be used.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Which of its namespaces; `None`: the first one.
    pub nsid: Option<u32>,
    /// What a command may take before something is done about it.
    pub command_timeout: Duration,
}

impl Default for Use {
    fn default() -> Self {
        Self { nsid: None, command_timeout: Options::default().command_timeout }
    }
}

/// A drive, up and nobody else's. Dropping it shuts its controller down.
pub struct Nvme {
    /// Which drive this is, in words.
    pub identity: String,
    /// I/O queue pairs that it grants.
    granted: u16,
    /// Commands that each of them holds.
    depth: u32,
    // Before its thread, which ends once nobody has the drive.
    pub drive: NvmeDrive,
    _thread: Thread,
}

/// The drive's thread.
struct Thread(Option<JoinHandle<()>>);

impl Drop for Thread {
    fn drop(&mut self) {
        // What it panicked with it has said.
        self.0.take().into_iter().for_each(|running| drop(running.join()));
    }
}

impl Nvme {
    /// Opens a drive that was claimed.
    ///
    /// # Errors
    /// It can't be had or driven; what the operator can do about it is said.
    pub fn open(address: PciAddress, how: Use) -> Result<Self> {
        let device = VfioDevice::open(address).map_err(|error| {
            let remedy = match &error {
                Error::Vfio(VfioError::Busy { .. }) => {
                    "`evenkeel drive list`, as root, names the program that has it: stop that"
                }
                _ => "`evenkeel drive list` shows the host's drives, and their users",
            };
            Refused::new(not_measured(address, &error), remedy)
        })?;
        // Looked at while nobody else can have it.
        if let Some((what, remedy)) = Assignments::of_this_host().refusal(address) {
            return Err(Refused::new(what, remedy).into());
        }
        Self::start(device, address, how)
    }

    fn start<D: PciDevice + 'static>(device: D, address: PciAddress, how: Use) -> Result<Self> {
        let failed = |error: StartError| Refused::new(not_measured(address, &error), "see also `dmesg`");
        let mut controller = Controller::start(device).map_err(|error| failed(error.into()))?;
        let nsid = match how.nsid {
            Some(nsid) => nsid,
            None => controller.first_namespace().map_err(|error| failed(error.into()))?.nsid,
        };
        let (granted, depth) = (controller.queues(), u32::from(controller.max_entries()) - 1);
        if granted < HWQS_LEAST {
            let what =
                format!("drive {address} grants {granted} I/O queues, and {HWQS_LEAST} are needed to measure it");
            let remedy = "give it back (`evenkeel drive release`), and measure its block device; or make fewer virtual \
                          functions (`evenkeel drive vfs`), so that each has more queues";
            return Err(Refused::new(what, remedy).into());
        }
        let (model, serial) = (words(&controller.identity().mn), words(&controller.identity().sn));
        let identity = format!("drive {address} ({model}, serial number {serial}, namespace {nsid})");
        let options = Options { nsid, command_timeout: how.command_timeout };
        let (drive, thread) = NvmeDrive::over(controller, options).map_err(failed)?;
        let tell = move |notice| match notice {
            Notice::Info(text) => progress::say(&format!("Drive {address}: {text}")),
            Notice::Warning(text) => progress::say(&format!("Warning: drive {address}: {text}")),
        };
        let named = thread::Builder::new().name("nvme-drive".to_owned());
        let running = named.spawn(move || thread.run(tell)).context("no thread for the drive")?;
        Ok(Self { identity, granted, depth, drive, _thread: Thread(Some(running)) })
    }

    /// What makes the figures doubtful.
    pub fn warnings(&self) -> Vec<String> {
        let Self { granted, depth, .. } = self;
        // One of them is kept free for what is measured.
        let held = u32::from(self.hwqs() - 1) * depth.min(&DEPTH) - 1;
        let few =
            format!("it grants {granted} I/O queues of {depth} commands: more than {held} at once are not measured");
        ((held as usize) < BACKLOG).then_some(few).into_iter().collect()
    }

    fn hwqs(&self) -> u16 {
        self.granted.min(HWQS)
    }

    /// As many queues as measuring wants, or as it grants.
    ///
    /// # Errors
    /// The drive does not make them.
    pub fn open_queues(&self) -> Result<NvmeQueues> {
        // Deeper than the drive's where those are shallow: the back end keeps the rest, as it does for the daemon.
        let depth = self.depth.clamp(DEPTH_LEAST, DEPTH);
        let opened = self.drive.open_queues(self.hwqs(), depth);
        opened.with_context(|| format!("{} makes no queues", self.identity))
    }
}

fn not_measured(address: PciAddress, error: &dyn Display) -> String {
    format!("drive {address} can't be measured: {error}")
}

/// What the drive says of itself goes to terminals and files.
fn words(said: &[u8]) -> String {
    let plain = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { ' ' };
    let text: String = said.iter().take_while(|byte| **byte != 0).map(plain).collect();
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() { "unknown".to_owned() } else { words.join(" ") }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use calibrate::{Effort, Facts, Failure, Rig, Seen, Session, Stage};
    use fake_device::{BLOCK_BYTES, Fake};
    use io_model::DeviceError;

    use super::super::RealClock;
    use super::*;

    const SIZE_BYTES: u64 = 32 << 20;
    const RANGE: (u64, u64) = (8 << 20, 16 << 20);
    const EFFORT: Effort = Effort { rounds: 3, cell_commands: 64, cell_ns: 2_000_000, sustained_ns: 20_000_000 };

    fn fake() -> Fake {
        Fake::new(SIZE_BYTES / BLOCK_BYTES).with_dma_space().with_interrupts()
    }

    fn start(fake: &Fake) -> Result<Nvme> {
        Nvme::start(fake.device(), "0000:03:00.0".parse().unwrap(), Use::default())
    }

    fn session<'s>(nvme: &Nvme, stop: &'s AtomicBool) -> Session<'s, NvmeQueues, RealClock> {
        let facts = Facts { size_bytes: SIZE_BYTES, block_bytes: 512, overwrite: Some(RANGE), own_ns: (0.0, 0.0) };
        let rig = Rig::new(nvme.open_queues().unwrap(), RealClock::start(), facts, stop).unwrap();
        Session::new(rig, EFFORT, Seen::default())
    }

    #[test]
    fn it_is_measured_in_its_own_memory_and_shut_down() {
        for queues in [HWQS_LEAST, 8] {
            let (fake, stop) = (fake(), AtomicBool::new(false));
            fake.state().disk.fill(7);
            fake.state().queues = queues;
            let nvme = start(&fake).unwrap();
            assert_eq!(nvme.warnings().len(), usize::from(queues < HWQS), "{:?}", nvme.warnings());
            let mut session = session(&nvme, &stop);
            session.run_all().unwrap();
            let facts = Facts { size_bytes: SIZE_BYTES, block_bytes: 512, overwrite: Some(RANGE), own_ns: (0.0, 0.0) };
            assert!(calibrate::fit(&session.seen, facts, "fake", &nvme.identity).is_some());
            assert_eq!(nvme.drive.copied_bytes(), 0, "copies would be measured too");
            assert!(fake.lent_mappings() > 0);
            drop((session, nvme));
            assert_eq!(fake.lent_mappings(), 0);
            let (start, end) = (RANGE.0 as usize, (RANGE.0 + RANGE.1) as usize);
            let disk = std::mem::take(&mut fake.state().disk);
            assert!(disk[..start].iter().chain(&disk[end..]).all(|byte| *byte == 7), "outside of the range");
            assert!(disk[start..end].iter().any(|byte| *byte != 7));
        }
    }

    #[test]
    fn one_that_goes_is_an_error() {
        let (fake, stop) = (fake(), AtomicBool::new(false));
        let nvme = start(&fake).unwrap();
        let mut session = session(&nvme, &stop);
        session.run(Stage::Basics).unwrap();
        fake.state().unplugged = true;
        let failure = session.run(Stage::Stripe).unwrap_err();
        assert!(matches!(failure, Failure::Device { error: DeviceError::Gone, .. }), "{failure:?}");
        assert!(nvme.drive.is_gone());
    }

    #[test]
    fn what_it_lacks_is_named() {
        let fake = fake();
        fake.state().queues = 1;
        let told = start(&fake).err().unwrap().to_string();
        assert!(told.contains("0000:03:00.0 grants 1 I/O queues") && told.contains("drive release"), "{told}");
        let how = Use { nsid: Some(9), ..Use::default() };
        let told = Nvme::start(fake.device(), "3:0.0".parse().unwrap(), how).err().unwrap().to_string();
        assert!(told.contains("grants 1"), "{told}");
        fake.state().queues = 8;
        let told = Nvme::start(fake.device(), "3:0.0".parse().unwrap(), how).err().unwrap().to_string();
        assert!(
            told.contains("0000:03:00.0 can't be measured") && told.contains("write one of these as nsid"),
            "{told}"
        );
        let told = Nvme::open("1f:1f.7".parse().unwrap(), Use::default()).err().unwrap().to_string();
        assert!(told.contains("0000:1f:1f.7") && told.contains("evenkeel drive list"), "{told}");
    }

    #[test]
    fn what_a_drive_says_of_itself_is_one_plain_line() {
        assert_eq!(words(b"QEMU NVMe Ctrl      "), "QEMU NVMe Ctrl");
        assert_eq!(words(b"a\n[units]\x1b[2J\xff b\0rest"), "a [units] [2J b");
        assert_eq!(words(&[b' '; 20]), "unknown");
    }
}
