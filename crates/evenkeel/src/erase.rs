//! Erasing a whole drive that the kernel does not have: by its own means where it has any, else by writing zeros.

mod capabilities;

use std::time::{Duration, Instant};

use nvme_driver::{Blocks, Controller, Data, DmaMemory, Error, PciDevice, QueuePair};
use nvme_spec::NSID_ALL;
use nvme_spec::identify::oacs;
use nvme_spec::log::{SanitizeLog, lid};

use self::capabilities::{Action, Capabilities, Status};
use crate::progress::Progress;

/// A Sanitize command only begins; a Format returns when it has ended.
const SANITIZE_LIMIT: Duration = Duration::from_secs(60);
const FORMAT_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// A drive that completes nothing for so long hangs.
const WRITE_LIMIT: Duration = Duration::from_secs(60);
/// Entries of the queue that zeros are written over.
const QUEUE_ENTRIES: u16 = 9;
/// How often a drive that sanitizes itself is asked how far it is.
const PERIOD: Duration = Duration::from_millis(500);
/// CMIC: the NVM subsystem may have several controllers (Base 5.17.2.1).
const CMIC_CONTROLLERS: u8 = 1 << 1;

/// A drive that is to be erased.
pub struct Eraser<'a, D: PciDevice> {
    controller: &'a mut Controller<D>,
    /// Its namespaces may be other controllers' too, or there may be others that it does not see.
    is_shared: bool,
    namespaces: Vec<u32>,
}

impl<'a, D: PciDevice> Eraser<'a, D> {
    /// Looks at what is to be erased. `is_function`: it is one of a drive's virtual functions.
    ///
    /// # Errors
    /// The drive's, or it has namespaces that can't be reached over this controller.
    pub fn new(controller: &'a mut Controller<D>, is_function: bool) -> Result<Self, Error> {
        let identity = controller.identity();
        let is_shared = is_function || identity.cmic & CMIC_CONTROLLERS != 0;
        let is_managed = identity.oacs & oacs::NAMESPACE_MANAGEMENT != 0;
        let namespaces = controller.admin().active_namespaces()?;
        let all = if is_managed { controller.admin().allocated_namespaces()? } else { Vec::new() };
        for nsid in all.into_iter().filter(|nsid| !namespaces.contains(nsid)) {
            // What is attached elsewhere is others'; what is attached nowhere the VM may have left.
            let is_others = match controller.admin().controllers_of(nsid) {
                Ok(controllers) => !controllers.is_empty(),
                Err(Error::Command { .. }) => false,
                Err(error) => return Err(error),
            };
            if !is_others {
                let why = "it has namespaces that are not attached (`nvme list-ns --all`): attach or delete them";
                return Err(Error::Unsuitable(why));
            }
        }
        Ok(Self { controller, is_shared, namespaces })
    }

    /// Has nothing left that can be read of what was there. Returns how that was done, in words.
    ///
    /// # Errors
    /// The drive's; part of it may be erased.
    pub fn run(mut self, progress: &mut Progress) -> Result<String, Error> {
        let capabilities = self.capabilities(self.namespaces.first().copied().unwrap_or(NSID_ALL))?;
        if let Some(action) = self.choose(&capabilities).filter(|action| action.is_sanitize()) {
            self.sanitize(&capabilities, action, progress)?;
            return Ok(action.to_string());
        }
        let mut done = Vec::new();
        for nsid in std::mem::take(&mut self.namespaces) {
            let how = self.erase(nsid, progress)?;
            done.push(format!("namespace {nsid}: {how}"));
        }
        Ok(if done.is_empty() { "it has no namespaces".to_owned() } else { done.join(", ") })
    }

    fn capabilities(&mut self, nsid: u32) -> Result<Capabilities, Error> {
        let controller = *self.controller.identity();
        let namespace = *self.controller.admin().namespace(nsid)?;
        Ok(Capabilities { controller, nsid, namespace })
    }

    /// The best that the drive can do without touching what is not this controller's.
    fn choose(&self, capabilities: &Capabilities) -> Option<Action> {
        let is_kept_apart = |action: &Action| !(self.is_shared && capabilities.is_of_all(*action));
        Action::ALL.into_iter().find(|action| capabilities.has(*action) && is_kept_apart(action))
    }

    fn send(&mut self, capabilities: &Capabilities, action: Action) -> Result<(), Error> {
        let (name, limit) =
            if action.is_sanitize() { ("Sanitize", SANITIZE_LIMIT) } else { ("Format NVM", FORMAT_LIMIT) };
        self.controller.admin().within(limit).run(name, capabilities.command(action), None).map(drop)
    }

    fn sanitize(&mut self, with: &Capabilities, action: Action, progress: &mut Progress) -> Result<(), Error> {
        // Begun when this was ended in the middle, it goes on by itself.
        if !matches!(self.status()?, Status::Going(_)) {
            self.send(with, action)?;
        }
        loop {
            match self.status()? {
                Status::Going(done) => progress.show(&format!("{action}: {} %", u32::from(done) * 100 / 65536)),
                Status::Completed => return Ok(()),
                Status::Failed => return Err(Error::Protocol("it failed to sanitize itself")),
                Status::Idle => return Err(Error::Protocol("its log knows of no sanitize")),
            }
            std::thread::sleep(PERIOD);
        }
    }

    fn status(&mut self) -> Result<Status, Error> {
        Ok(Status::of(&*self.controller.admin().log_page::<SanitizeLog>(lid::SANITIZE_STATUS)?))
    }

    fn erase(&mut self, nsid: u32, progress: &mut Progress) -> Result<String, Error> {
        let capabilities = self.capabilities(nsid)?;
        if let Some(action) = self.choose(&capabilities) {
            progress.show(&format!("namespace {nsid}: {action}"));
            match self.send(&capabilities, action) {
                Ok(()) => return Ok(action.to_string()),
                // It has the command and does not take it for this namespace.
                Err(Error::Command { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.overwrite(nsid, progress)?;
        Ok("overwritten with zeros".to_owned())
    }

    fn overwrite(&mut self, nsid: u32, progress: &mut Progress) -> Result<(), Error> {
        let namespace = self.controller.admin().identify_namespace(nsid)?;
        let block_bytes = u64::from(namespace.block_bytes);
        let step = (self.controller.max_transfer_bytes() / block_bytes).clamp(1, 1 << 16);
        let zeros = self.controller.allocate_dma((step * block_bytes) as usize)?;
        let mut queue = self.controller.create_queue_pair(QUEUE_ENTRIES, None)?;
        let written = write_zeros(&mut queue, &zeros, (nsid, namespace.blocks, block_bytes), step, progress);
        let deleted = self.controller.delete_queue_pair(queue);
        written.and(deleted)?;
        self.controller.release_dma(zeros)
    }
}

/// Writes `zeros`, `step` blocks of them by each command, to all blocks of a namespace, and has them durable.
fn write_zeros(
    queue: &mut QueuePair,
    zeros: &DmaMemory,
    (nsid, blocks, block_bytes): (u32, u64, u64),
    step: u64,
    progress: &mut Progress,
) -> Result<(), Error> {
    let (mut lba, mut is_flushed, mut last) = (0, false, Instant::now());
    let mut failed = None;
    while !is_flushed || queue.in_flight() > 0 {
        while lba < blocks && queue.next_cid().is_some() && failed.is_none() {
            let count = step.min(blocks - lba);
            let data = Data { iova: zeros.iova(), len_bytes: count * block_bytes };
            let part = Blocks { nsid, lba, count: count as u32 };
            queue.write(part, data, false).map_err(|_| Error::Invalid("a write that does not fit"))?;
            lba += count;
        }
        if queue.in_flight() == 0 && failed.is_none() {
            queue.flush(nsid).map_err(|_| Error::Invalid("a flush that does not fit"))?;
            is_flushed = true;
        }
        queue.ring()?;
        let reaped = queue.poll(&mut |done| {
            if !done.status.is_success() {
                failed.get_or_insert(done.status);
            }
        })?;
        if let Some(status) = failed.filter(|_| queue.in_flight() == 0) {
            return Err(Error::Command { command: "a write of zeros", status });
        }
        if reaped > 0 {
            last = Instant::now();
            progress.show(&format!("namespace {nsid}: overwriting, {} %", lba * 100 / blocks.max(1)));
        } else if last.elapsed() > WRITE_LIMIT {
            return Err(Error::NoAnswer { peer: "the drive".into(), what: "a write of zeros", limit: WRITE_LIMIT });
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fake_device::Fake;
    use nvme_spec::identify::{fna, sanicap};

    use super::*;

    #[test]
    fn a_drive_that_can_not_erase_itself_is_overwritten_to_its_last_block() {
        // No whole number of steps.
        let fake = Fake::new(12_345);
        fake.state().disk.fill(0xa5);
        let mut controller = Controller::start(fake.device()).expect("started");
        let eraser = Eraser::new(&mut controller, false).expect("looked at");
        let how = eraser.run(&mut Progress::new()).expect("erased");
        assert_eq!(how, "namespace 1: overwritten with zeros");
        assert!(fake.state().disk.iter().all(|byte| *byte == 0));
    }

    /// What is done to a drive with data, if it is made such by `prepare`.
    fn erased(is_function: bool, prepare: impl Fn(&mut fake_device::State)) -> String {
        let fake = Fake::new(4096);
        fake.state().disk.fill(0xa5);
        prepare(&mut fake.state());
        let mut controller = Controller::start(fake.device()).expect("started");
        let eraser = Eraser::new(&mut controller, is_function).expect("looked at");
        let how = eraser.run(&mut Progress::new()).expect("erased");
        assert!(fake.state().disk.iter().all(|byte| *byte == 0), "{how}");
        how
    }

    #[test]
    fn a_drive_erases_itself_as_far_as_it_is_its_own() {
        let sanitize = "Sanitize by block erase";
        let format = "namespace 1: Format with user data erase";
        let zeros = "namespace 1: overwritten with zeros";
        for (is_shared, fna, means) in [
            (false, 0, [sanitize, format]),
            (true, 0, [format, format]),
            (false, fna::ERASE_ALL, [sanitize, format]),
            (true, fna::FORMAT_ALL, [zeros, zeros]),
        ] {
            let drive = |state: &mut fake_device::State| {
                (state.oacs, state.fna) = (oacs::FORMAT, fna);
            };
            let with_sanitize = |state: &mut fake_device::State| {
                drive(state);
                state.sanicap = sanicap::BLOCK_ERASE;
            };
            assert_eq!([erased(is_shared, with_sanitize), erased(is_shared, drive)], means, "{is_shared} {fna}");
            // Two ports are as good as two functions.
            let two_ports = |state: &mut fake_device::State| {
                with_sanitize(state);
                state.cmic = CMIC_CONTROLLERS;
            };
            assert!(!erased(false, two_ports).contains("Sanitize"), "the other port's data are on it");
        }
    }

    #[test]
    fn a_sanitize_that_goes_on_is_waited_for() {
        let how = erased(false, |state| {
            state.sanicap = sanicap::BLOCK_ERASE;
            state.sanitizing = Some(3);
        });
        assert_eq!(how, "Sanitize by block erase");
    }

    #[test]
    fn a_write_that_fails_is_told_and_nothing_is_called_erased() {
        let fake = Fake::new(4096);
        let mut controller = Controller::start(fake.device()).expect("started");
        fake.state().failures.push_back(nvme_spec::Status::INTERNAL_ERROR);
        let told = Eraser::new(&mut controller, false).expect("looked at").run(&mut Progress::new());
        assert!(matches!(told, Err(Error::Command { command: "a write of zeros", .. })), "{told:?}");
    }
}
