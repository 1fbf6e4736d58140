//! A look at an NVMe drive that the kernel does not have: its controller is brought up, asked, and shut down again.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use io_model::QueuePriority;
use layout::{DeviceIdentity, LayoutFile};
use nvme_driver::{Blocks, Controller, Data, Error, Namespace, PciDevice, QueuePair, Status, VfioDevice, VfioError};
use policy::Settings;

use super::in_use::InUse;
use super::{Content, Found, ImageMarks, content};
use crate::assigned::{Assignments, plain};
use crate::config::{Config, Device, HWQ_DEPTH};
use crate::keys::STATE_DIR;
use crate::plan::LEAST_HWQS;
use crate::problem::{ConfigErrors, Sink};

/// A daemon that was killed lets go of its drive a little after it is gone.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// One read is no longer, and takes no longer.
const READ_BYTES: u64 = 65_536;
const READ_LIMIT: Duration = Duration::from_secs(30);

/// What there is to know of such a drive before it is served.
#[derive(Debug)]
pub struct Survey {
    serial: String,
    nsid: u32,
    size_bytes: u64,
    block_bytes: u32,
    content: Option<Content>,
    is_weighted: bool,
    queues: u16,
}

impl Survey {
    /// Asks a controller that nobody uses yet about one of its namespaces, and what that holds, unless
    /// that is known of the drive of this identity.
    ///
    /// # Errors
    /// There is no such namespace, or the drive does not answer as it should.
    pub fn of<D: PciDevice>(
        controller: &mut Controller<D>,
        nsid: u32,
        is_known: impl Fn(String) -> bool,
    ) -> Result<Self, Error> {
        if !controller.admin().active_namespaces()?.contains(&nsid) {
            return Err(Error::Unsuitable("it has no namespace of that number; set `nsid`"));
        }
        let namespace = controller.admin().identify_namespace(nsid)?;
        let serial = plain(&controller.identity().sn);
        let is_known = is_known(format!("{}{nsid}", identity_of(&serial)));
        let content = if is_known { None } else { content_of(controller, nsid, &namespace)? };
        Ok(Self {
            serial,
            nsid,
            size_bytes: namespace.size_bytes(),
            block_bytes: namespace.block_bytes,
            content,
            is_weighted: controller.has_priorities(),
            queues: controller.queues(),
        })
    }
}

impl Config {
    pub(super) fn check_nvme(
        &self,
        sink: &mut Sink<'_>,
        warnings: &mut Sink<'_>,
        address: &str,
        nsid: u32,
    ) -> Option<Found> {
        let mark = self.marks.path.as_ref();
        if let Some((what, remedy)) = address.parse().ok().and_then(|it| Assignments::of_this_host().refusal(it)) {
            sink.maybe_at(mark, what, remedy);
            return None;
        }
        let is_known = |id| self.is_known(Path::new(address), Some(id));
        let survey = match look_at(address, nsid, is_known) {
            Ok(survey) => survey,
            // As of a drive that the kernel has, what a running daemon serves can be checked beside it.
            Err(Error::Vfio(VfioError::Busy { .. })) if let Some(found) = self.recorded(address, nsid) => {
                warnings.maybe_at(mark, InUse::Locked.what(Path::new(address)), InUse::Locked.remedy());
                return Some(found);
            }
            Err(error) => {
                sink.maybe_at(mark, format!("drive {address} can't be used: {error}"), "see what it says");
                return None;
            }
        };
        let Survey { queues, is_weighted, .. } = survey;
        let (arbitration, remedy) = arbitration(&self.policy, &self.device, is_weighted);
        warnings.maybe_at(mark, format!("{address} fetches from its {queues} I/O queues by {arbitration}"), remedy);
        Some(self.found_nvme(sink, address, &survey))
    }

    /// A drive that is in use, as its layout knows it. `None`: it was never served from here.
    fn recorded(&self, address: &str, nsid: u32) -> Option<Found> {
        let namespace = format!("-{nsid}");
        let is_it = |id: &Option<String>| id.as_ref().is_some_and(|id| id.ends_with(&namespace));
        let named = self.device.layout_file.clone().and_then(|path| LayoutFile::open(Some(path)).ok());
        let layouts = named.into_iter().chain(layouts_in(&self.state_dir));
        let mut devices = layouts.filter_map(|file| Some(file.layout()?.device().clone()));
        let device = devices.find(|device| device.path == address && is_it(&device.id))?;
        Some(Found {
            path: PathBuf::from(address),
            marks: ImageMarks { id: device.id, ..Default::default() },
            len_bytes: device.size_bytes,
            to_create: false,
            content: None,
            block_bytes: None,
        })
    }

    /// What the file wants of such a drive, it must have.
    pub(super) fn found_nvme(&self, sink: &mut Sink<'_>, address: &str, survey: &Survey) -> Found {
        let Survey { serial, nsid, size_bytes, block_bytes, content, queues, .. } = survey;
        let id = Some(format!("{}{nsid}", identity_of(serial)));
        self.tell_queues(sink, *queues, self.has_new_disks(address, id.clone()), address);
        Found {
            path: PathBuf::from(address),
            marks: ImageMarks { id, ..Default::default() },
            len_bytes: *size_bytes,
            to_create: false,
            content: content.clone(),
            block_bytes: Some(*block_bytes),
        }
    }
}

impl Config {
    /// Of a drive that is no NVMe drive, and has as many queues as some.
    ///
    /// # Errors
    /// Its pollers take more than the `granted` queues of `by`.
    pub fn refuse_queues(&self, granted: u16, by: &str) -> Result<(), ConfigErrors> {
        let mut sink = Sink::new(&self.text);
        self.tell_queues(&mut sink, granted, false, by);
        sink.finish()
    }

    /// `has_new`: disks will be zeroed, which takes one more.
    fn tell_queues(&self, sink: &mut Sink<'_>, granted: u16, has_new: bool, by: &str) {
        let mark = self.marks.path.as_ref().or(self.marks.device.as_ref());
        let wanted = self.device.queues.filter(|wanted| *wanted > granted);
        let needed = self.planned_hwqs().max(LEAST_HWQS.into()) + usize::from(has_new);
        let what = if let Some(wanted) = wanted {
            format!("queues = {wanted} is more than the {granted} I/O queues that {by} grants")
        } else if needed > usize::from(granted) {
            let zeroing = if has_new { ", one of them to zero new disks" } else { "" };
            format!("drive {:?} needs {needed} I/O queues{zeroing}, and {by} grants {granted}", self.device.name)
        } else {
            return;
        };
        sink.maybe_at(mark, what, self.fewer_queues(granted, has_new));
    }

    /// Whether disks will be zeroed at the start, which takes a queue meanwhile.
    fn has_new_disks(&self, address: &str, id: Option<String>) -> bool {
        let device = DeviceIdentity { path: address.to_owned(), id, ..Default::default() };
        let file = self.open_layout(&device).ok();
        let recorded = file.as_ref().and_then(LayoutFile::layout);
        let is_new = |name: &str| recorded.is_none_or(|layout| layout.find(name).is_none());
        self.disks().any(|(name, ..)| is_new(name))
    }

    /// How its pollers do with the queues that a drive grants.
    fn fewer_queues(&self, granted: u16, has_new: bool) -> String {
        let for_pollers = granted.saturating_sub(has_new.into());
        let (most, pollers) = (usize::from(for_pollers / LEAST_HWQS), self.poller_plan().len().max(1));
        if most == 0 {
            return "such a drive can only be served through the kernel: give it back by `evenkeel drive release`, and \
                    write backend = \"block\""
                .to_owned();
        }
        if most < pollers {
            let least = LEAST_HWQS;
            return format!(
                "each of its {pollers} pollers takes {least}: have {most} at most (tenants can share them)"
            );
        }
        format!("write queues = {for_pollers} or less")
    }
}

/// What a layout calls such a drive, but for the namespace.
fn identity_of(serial: &str) -> String {
    format!("nvme-{serial}-")
}

/// The layout of the daemon's disks on a drive, if there are any, on whichever of its namespaces. Either the daemon
/// itself had the drive then, or the kernel, which calls the namespaces `names`.
pub fn layout_of_nvme(serial: &str, names: &[String]) -> Option<PathBuf> {
    let serial = plain(serial.as_bytes());
    let itself = identity_of(&serial);
    let by_kernel = |id: &String| names.iter().any(|name| id == name || id.starts_with(&format!("{name}-part")));
    let is_it = |id: &String| !serial.is_empty() && id.starts_with(&itself) || by_kernel(id);
    let is_there = |file: &LayoutFile| {
        file.layout().is_some_and(|its| its.device().id.as_ref().is_some_and(is_it) && !its.placements().is_empty())
    };
    layouts_in(Path::new(STATE_DIR)).find(is_there)?.path().map(Path::to_owned)
}

/// The layouts in a state directory, as far as they can be read.
fn layouts_in(state_dir: &Path) -> impl Iterator<Item = LayoutFile> {
    let files = std::fs::read_dir(state_dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.filter_map(|path| LayoutFile::open(Some(path)).ok())
}

/// How a drive picks among a policy's queues, and what would have it do otherwise.
fn arbitration(policy: &Settings, device: &Device, is_weighted: bool) -> (String, String) {
    let mut remedy = "there is no remedy".to_owned();
    if !is_weighted {
        return ("round robin: it has no weights".to_owned(), remedy);
    }
    let use_of_it = match policy {
        Settings::Lpns(_) => ": the 1-1 queues of guaranteed tenants are high, all others medium".to_owned(),
        // Its one poller has all of them; 8 unless the file says otherwise.
        Settings::Wrr(_) if device.queues.is_some_and(|queues| queues < 4) => {
            "write queues = 4 or more".clone_into(&mut remedy);
            ", which wrr leaves alone: it would need a queue for each of the 4 priorities".to_owned()
        }
        Settings::Wrr(wrr) => match wrr.max_in_flight {
            Some(window) if window > u32::from(HWQ_DEPTH) => {
                remedy = format!("write max_in_flight = {HWQ_DEPTH} or less");
                format!(
                    ", which wrr leaves alone: max_in_flight = {window} is more than the {HWQ_DEPTH} entries of a queue"
                )
            }
            Some(_) => ": each priority of wrr has queues of its class".to_owned(),
            None => format!(
                ": each priority of wrr has queues of its class, if the profile's max_in_flight is \
                 {HWQ_DEPTH} or less"
            ),
        },
        other => format!(", which {} leaves alone: all queues are medium", other.name()),
    };
    (format!("weighted round robin with urgent class{use_of_it}"), remedy)
}

fn look_at(address: &str, nsid: u32, is_known: impl Fn(String) -> bool) -> Result<Survey, Error> {
    let address = address.parse().map_err(|_| Error::Invalid("that is no PCI address"))?;
    let mut tries_left = BUSY_TRIES;
    let device = loop {
        match VfioDevice::open(address) {
            Err(Error::Vfio(VfioError::Busy { .. })) if tries_left > 0 => tries_left -= 1,
            opened => break opened?,
        }
        thread::sleep(BUSY_PAUSE);
    };
    Survey::of(&mut Controller::start(device)?, nsid, is_known)
}

/// What a namespace holds.
fn content_of<D: PciDevice>(
    controller: &mut Controller<D>,
    nsid: u32,
    namespace: &Namespace,
) -> Result<Option<Content>, Error> {
    let block_bytes = u64::from(namespace.block_bytes);
    let most = controller.max_transfer_bytes().min(READ_BYTES).max(block_bytes);
    let mut queue = controller.create_queue_pair_with(2, None, QueuePriority::Medium)?;
    let memory = controller.allocate_dma(most as usize)?;
    let began = Instant::now();
    let content = content::look(namespace.size_bytes(), |at_bytes, part| {
        for (at, part) in (at_bytes..).step_by(most as usize).zip(part.chunks_mut(most as usize)) {
            let count = part.len() as u64 / block_bytes;
            let blocks = Blocks { nsid, lba: at / block_bytes, count: count as u32 };
            if !read(&mut queue, blocks, Data { iova: memory.iova(), len_bytes: part.len() as u64 }, began)? {
                return Ok(false);
            }
            memory.read(0, part).ok_or(Error::Invalid("more than was read is looked at"))?;
        }
        Ok::<_, Error>(true)
    })?;
    controller.delete_queue_pair(queue)?;
    controller.release_dma(memory)?;
    Ok(content)
}

/// Reads blocks, and waits for them. `false`: the medium can't be read there.
fn read(queue: &mut QueuePair, blocks: Blocks, data: Data, began: Instant) -> Result<bool, Error> {
    queue.read(blocks, data).map_err(|_| Error::Invalid("a read that does not fit"))?;
    queue.ring()?;
    let mut ended = None;
    while ended.is_none() {
        queue.poll(&mut |done| ended = Some(done.status))?;
        if began.elapsed() > READ_LIMIT {
            return Err(Error::NoAnswer { peer: "the drive".into(), what: "a read", limit: READ_LIMIT });
        }
        thread::sleep(Duration::from_micros(20));
    }
    match ended.filter(|status| !status.is_success()) {
        Some(status) if status.sct() == Status::UNRECOVERED_READ.sct() => Ok(false),
        Some(status) => Err(Error::Command { command: "a read of what it holds", status }),
        None => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// What is said under a policy, with more lines under `[device]`.
    fn told(policy: &str, device: &str, is_weighted: bool) -> (String, String) {
        let text = format!(
            "[device]\nbackend = \"memory\"\nsize = \"1GiB\"\n{device}\n[policy]\nname = {policy}\n\
             [[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n"
        );
        let config = Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|e| panic!("{e}"));
        arbitration(&config.policy, &config.device, is_weighted)
    }

    #[test]
    fn what_a_policy_makes_of_a_drives_arbitration_is_said() {
        let nothing = "there is no remedy";
        for (policy, device, said, remedy) in [
            ("\"lpns\"", "", ": the 1-1 queues of guaranteed tenants are high, all others medium", nothing),
            ("\"drr\"", "", ", which drr leaves alone: all queues are medium", nothing),
            (
                "\"wrr\"",
                "",
                ": each priority of wrr has queues of its class, if the profile's max_in_flight is 1024 or \
                 less",
                nothing,
            ),
            ("\"wrr\"\nmax_in_flight = 1024", "", ": each priority of wrr has queues of its class", nothing),
            (
                "\"wrr\"\nmax_in_flight = 1025",
                "",
                ", which wrr leaves alone: max_in_flight = 1025 is more than the 1024 entries of a queue",
                "write max_in_flight = 1024 or less",
            ),
            (
                "\"wrr\"",
                "queues = 3",
                ", which wrr leaves alone: it would need a queue for each of the 4 priorities",
                "write queues = 4 or more",
            ),
        ] {
            let expected = (format!("weighted round robin with urgent class{said}"), remedy.to_owned());
            assert_eq!(told(policy, device, true), expected, "{policy}");
            let plain = ("round robin: it has no weights".to_owned(), nothing.to_owned());
            assert_eq!(told(policy, device, false), plain, "{policy}");
        }
    }

    #[test]
    fn a_drive_with_too_few_queues_is_refused_with_what_can_be_done() {
        let state = tempfile::tempdir().expect("a folder");
        let told = |granted: u16, queues: &str, tenants: &str| {
            let text = format!(
                "state_dir = {:?}\n[device]\nbackend = \"nvme\"\naddress = \"0000:03:00.0\"\n{queues}\n\
                 [policy]\nname = \"passthrough\"\n{tenants}",
                state.path()
            );
            let config = Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|e| panic!("{e}"));
            let serial = "S1".to_owned();
            let (size_bytes, content, is_weighted) = (1 << 30, None, false);
            let survey =
                Survey { serial, nsid: 1, size_bytes, block_bytes: 512, content, is_weighted, queues: granted };
            let mut sink = Sink::new(&config.text);
            config.found_nvme(&mut sink, "0000:03:00.0", &survey);
            sink.finish().map_err(|errors| errors.to_string())
        };
        let one = "[[tenant]]\nname = \"a\"\nsize = \"4MiB\"\n";
        let own = |name: &str| {
            let threads = "frontend = \"vhost-user-blk\"\nthreads = \"dedicated\"";
            format!("[[tenant]]\nname = \"{name}\"\nsize = \"4MiB\"\n{threads}\n")
        };
        let two = own("a") + &own("b");
        for (granted, queues, tenants, parts) in [
            (
                1,
                "queues = 1",
                one,
                &["\"device\" needs 3 I/O queues, one of them to zero", "grants 1", "\"block\""][..],
            ),
            (1, "queues = 1", "", &["needs 2 I/O queues, and", "\"block\""]),
            (2, "queues = 2", one, &["needs 3 I/O queues", "\"block\""]),
            (1, "queues = 3", one, &["queues = 3 is more than the 1", "\"block\""]),
            (4, "", one, &["needs 9 I/O queues", "write queues = 3 or less"]),
            (4, "queues = 9", one, &["queues = 9 is more than the 4", "write queues = 3 or less"]),
            (4, "queues = 4", &two, &["needs 5 I/O queues", "each of its 2 pollers takes 2: have 1 at most"]),
        ] {
            let refused = told(granted, queues, tenants).expect_err(queues);
            assert!(parts.iter().all(|part| refused.contains(part)), "{granted}, {queues}: {refused}");
        }
        for (granted, queues, tenants) in [(3, "queues = 1", one), (9, "", one), (5, "queues = 4", &two), (2, "", "")] {
            assert_eq!(told(granted, queues, tenants), Ok(()), "{granted}, {queues}");
        }
    }
}
