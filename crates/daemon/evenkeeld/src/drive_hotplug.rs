//! Drives that are added and removed while the daemon runs.
//!
//! The confined daemon can't open drives itself. The client that adds one opens it, checks that it is not in use, and
//! hands it over with the request. The drive is recorded in the state directory, beside its layout, and opened by its
//! path at the next start.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;

use api::{Drive, EventKind, NewDrive};
use client_socket::{Level, Sink};
use config::{
    AddedDrives, Backend, Config, ConfigErrors, DeviceLock, Drives, Found, HandedOver, Missing, Profile, content_of,
    is_same_drive_as, same_drive,
};
use confine::ThreadKind;
use io_model::units::Size;
use layout::{Layout, LayoutFile};
use nvme_driver::VfioDescriptors;
use promises::{drive_profile, planning};

use state::errors::{broken, in_words, invalid, not_writable};

use crate::error_texts::{drive_name_taken, no_such_drive, not_durable};
use crate::owner::{Owner, part_with};
use crate::served_drive::ServedDrive;
use crate::startup::OpenedDrive;
use api::{DiskError, Reason};
use runtime::command::{Command, DiskCommand, Reply};
use runtime::drive::{self, HandedIn};
use runtime::happening::DriveId;
use runtime::nvme_drive::{self, SurveyedNvme};
use runtime::threads;

/// A drive that is to be added, before it is looked at.
struct Wanted {
    /// Where its layout is kept, if it has one.
    layout_file: Option<PathBuf>,
    section: String,
    /// The drives that were added, with it.
    to_be: AddedDrives,
}

impl Owner {
    /// Serves one more drive. It is brought up, and what it holds is read, by a thread that only this client waits for.
    pub(crate) fn begin_to_add_drive(
        &mut self,
        new: Box<NewDrive>,
        handed_over: Vec<OwnedFd>,
        reply: Reply<Result<Drive, DiskError>>,
    ) {
        let handle = self.common.handle.clone();
        let open: Box<dyn FnOnce() -> Result<HandedIn, DiskError> + Send> =
            if new.backend == "nvme" && !handed_over.is_empty() {
                match self.to_be_brought_up(&new, handed_over) {
                    Err(problem) => return reply(Err(problem)),
                    Ok((config, opened)) => Box::new(move || {
                        threads::enter(ThreadKind::Drive);
                        bring_up(&config, opened)
                    }),
                }
            } else {
                let Some(file) = handed_over.into_iter().next().map(File::from) else {
                    return reply(self.add_drive(&new, HandedIn::Nothing));
                };
                let is_discarded = new.discard_content;
                Box::new(move || {
                    threads::enter(ThreadKind::OwnFile);
                    look_into(file, is_discarded)
                })
            };
        let open = move || {
            let opened = open();
            handle.tell(Command::Disk(DiskCommand::DriveOpened(new, opened, reply)));
        };
        // Without a thread the reply is dropped: there is no answer.
        let _ = thread::Builder::new().name("drive-new".into()).spawn(open);
    }

    /// What was handed over of a drive without the kernel, and what is to be known of it to bring it up.
    fn to_be_brought_up(&self, new: &NewDrive, fds: Vec<OwnedFd>) -> Result<(Config, VfioDescriptors), DiskError> {
        let Wanted { section, to_be, .. } = self.wanted(new)?;
        let config = match self.drive_named(&new.name) {
            Some((_, there)) if there.pollers.is_drive_gone() => {
                refuse_other_than(there.config(), new, self.is_as_added(there.config(), &section))?;
                there.config().clone()
            }
            Some(_) => return Err(drive_name_taken(&new.name)),
            None => self.config_of_new(new, &to_be)?,
        };
        let Backend::Nvme { address, .. } = &config.device.backend else { return Err(broken()) };
        let Ok([container, group, device]) = <[OwnedFd; 3]>::try_from(fds) else { return Err(no_descriptors("nvme")) };
        let address = address.parse().map_err(|_| broken())?;
        Ok((config, VfioDescriptors { address, container, group, device }))
    }

    fn wanted(&self, new: &NewDrive) -> Result<Wanted, DiskError> {
        let outlives_us = new.path.is_some() || new.address.is_some();
        let layout_file = outlives_us.then(|| self.added.layout_file(&new.name));
        let section = new.to_section(layout_file.as_deref()).map_err(not_writable)?;
        Ok(Wanted { to_be: self.added.with(&section), layout_file, section })
    }

    /// Serves one more drive that is open, or one that was given up again.
    pub(crate) fn add_drive(&mut self, new: &NewDrive, opened: HandedIn) -> Result<Drive, DiskError> {
        let Wanted { layout_file, section, to_be } = self.wanted(new)?;
        if let Some((id, there)) = self.drive_named(&new.name) {
            if let (true, HandedIn::Nvme(opened)) = (there.pollers.is_drive_gone(), opened) {
                // Another one of that name may have come and gone while this one was brought up.
                refuse_other_than(there.config(), new, self.is_as_added(there.config(), &section))?;
                return self.serve_once_more(id, opened);
            }
            return if self.is_as_added(there.config(), &section) {
                Ok(there.describe())
            } else {
                Err(drive_name_taken(&new.name))
            };
        }
        self.refuse_missing(new)?;
        let state_dir = self.added.directory();
        if !state_dir.is_dir() {
            let title = format!("{} is missing, so the drive can't be recorded", state_dir.display());
            let remedy = "make that directory, or write another state_dir, and start the daemon again";
            return Err(DiskError::new(Reason::NoStateDir, title, remedy));
        }
        let config = self.config_of_new(new, &to_be)?;
        layout_file.map_or(Ok(()), remove_left_behind)?;
        let opened = self.open(config, opened)?;
        self.refuse_names_of(&opened)?;
        self.keep(to_be).inspect_err(|_| {
            if opened.layout.layout().is_none_or(is_empty) {
                // It has nobody's data: at worst an unused file stays behind.
                let _ = opened.layout.remove();
            }
        })?;
        let id = DriveId(self.next_drive);
        self.next_drive += 1;
        Ok(self.serve_drive(id, opened, "added"))
    }

    fn is_as_added(&self, there: &Config, section: &str) -> bool {
        there.is_added() && self.added.sections().contains(section)
    }

    fn serve_drive(&mut self, id: DriveId, opened: OpenedDrive, done: &str) -> Drive {
        let mut drive = ServedDrive::new(id, opened, self.common.clone());
        self.tell(EventKind::DriveAdded, &drive.config().device.name, done);
        drive.serve_again();
        let described = drive.describe();
        self.drives.insert(id, drive);
        described
    }

    /// A drive that was given up is there again: its tenants are served as after a restart of the daemon.
    fn serve_once_more(&mut self, id: DriveId, opened: Box<SurveyedNvme>) -> Result<Drive, DiskError> {
        let Some(former) = self.drives.get(&id) else { return Err(broken()) };
        let opened = self.open(former.declared(), HandedIn::Nvme(opened))?;
        if let Some(mut former) = self.drives.remove(&id) {
            let servers = former.begin_to_stop();
            // The drive was given up, so nothing is in flight; its queues must be closed before others are opened.
            former.pollers.join();
            former.close_pool();
            part_with(servers);
        }
        Ok(self.serve_drive(id, opened, "served again"))
    }

    /// By another path or another controller it may be a drive that is there, or one that is missing: its own layout
    /// would give away what the other one's tenants have.
    fn refuse_twice(&self, Found { config, host, .. }: &Found) -> Result<(), DiskError> {
        let served = self.drives.values().map(|it| (it.config(), it.state.layout()));
        let absent = self.absent.drives.iter().map(|it| (&it.config, it.layout()));
        let recorded = served.chain(absent).filter_map(|(other, layout)| Some((other, layout?.device())));
        // A drive that is served once more is itself.
        let others = recorded.filter(|(other, _)| other.device.name != config.device.name);
        let Some(other) = same_drive(config, &host.device, others) else { return Ok(()) };
        let (title, remedy) = is_same_drive_as(config, &host.device, other);
        Err(DiskError::new(Reason::InUse, title, remedy))
    }

    /// A drive that was Evenkeel's before may have disks whose names others have by now.
    fn refuse_names_of(&self, opened: &OpenedDrive) -> Result<(), DiskError> {
        let its = opened.layout.layout().map(Layout::placements).unwrap_or_default();
        let is_taken = |name: &str| self.drives.values().any(|it| it.has_disk(name)) || self.absent.why(name).is_some();
        let Some(placement) = its.iter().find(|placement| is_taken(&placement.name)) else { return Ok(()) };
        let title = format!("the drive has a disk {:?}, and so has another one", placement.name);
        Err(DiskError::new(Reason::NameTaken, title, "delete the other one first, or make room for its name"))
    }

    /// A missing drive still counts: once it is back, it would be there twice.
    fn refuse_missing(&self, new: &NewDrive) -> Result<(), DiskError> {
        let place = new.path.as_ref().or(new.address.as_ref());
        let is_there = |missing: &&Missing| place.is_some_and(|place| missing.is_at(Path::new(place)));
        let same_path = || self.absent.drives.iter().find(is_there);
        let Some(missing) = self.absent.drive(&new.name).or_else(same_path) else { return Ok(()) };
        let name = missing.name();
        let title = match name == new.name {
            true => format!("there is a drive {name:?} already, which is missing: {}", missing.why()),
            false => {
                let place = place.map_or("", String::as_str);
                format!("{place} is drive {name:?} already, which is missing: {}", missing.why())
            }
        };
        let remedy = match missing.config.is_added() {
            true => format!("fix that and start the daemon again, or run `evenkeel drive remove {name}` first"),
            false => "fix that, and start the daemon again".to_owned(),
        };
        Err(DiskError::new(Reason::NameTaken, title, remedy))
    }

    /// Lets go of a drive that nobody has anything on. With `force`, one that could not be had at the start is
    /// forgotten with its disks, and one that is there need not have wiped what is left on it.
    pub(crate) fn remove_drive(&mut self, name: &str, force: bool) -> Result<(), DiskError> {
        let Some((id, drive)) = self.drive_named(name) else { return self.remove_missing(name, force) };
        refuse_declared(drive.config())?;
        let (disks, wiping_bytes) = drive.holds();
        if disks > 0 {
            let its = if disks == 1 { "a disk".to_owned() } else { format!("{disks} disks") };
            let title = format!("drive {name:?} is not empty: it has {its}");
            return Err(DiskError::new(Reason::NotEmpty, title, "delete its disks, and wait until they are wiped"));
        }
        if wiping_bytes > 0 && !force {
            let left = Size(wiping_bytes);
            let (title, remedy) = match drive.state.jobs().any_failure() {
                Some(why) => (
                    format!("drive {name:?} is not empty: {left} of deleted disks are left, and wiping failed: {why}"),
                    "--force removes it with their data on it; the next start of the daemon tries again to wipe it",
                ),
                None => (
                    format!("drive {name:?} is not empty: {left} of deleted disks are not wiped yet"),
                    "wait until they are (`evenkeel operations`); --force removes it with their data on it",
                ),
            };
            return Err(DiskError::new(Reason::NotEmpty, title, remedy));
        }
        self.keep(self.added.without(name))?;
        if wiping_bytes > 0 {
            let line =
                format!("drive {name}: {} of deleted disks' data are on it and were not wiped", Size(wiping_bytes));
            (self.common.around.sink)(Level::Warn.of_drive(name), &line);
        }
        if let Some(mut drive) = self.drives.remove(&id) {
            // Don't trust its list of free ranges: other programs may write to the drive meanwhile.
            if let Err(error) = drive.layout_file.remove() {
                (self.common.around.sink)(Level::Warn.of_drive(name), &format!("{name}: {error}"));
            }
            drive.begin_to_stop();
            // Once this is answered others may write to the drive. Only the wiper can have something in flight.
            drive.pollers.join();
            drive.close_pool();
        }
        self.tell(EventKind::DriveRemoved, name, "removed");
        Ok(())
    }

    fn remove_missing(&mut self, name: &str, force: bool) -> Result<(), DiskError> {
        let Some(missing) = self.absent.drive(name) else { return Err(no_such_drive(name)) };
        refuse_declared(&missing.config)?;
        let lost = missing.disks_in_words();
        let may_be_empty = missing.disks().is_empty() && missing.unread().is_none();
        if !may_be_empty && !force {
            let title = format!("drive {name:?} is missing ({}), and {lost} would be forgotten", missing.why());
            let remedy = "fix that and start the daemon again; --force forgets the drive and its disks";
            return Err(DiskError::new(Reason::NotEmpty, title, remedy));
        }
        self.keep(self.added.without(name))?;
        if !may_be_empty {
            (self.common.around.sink)(
                Level::Warn.of_drive(name),
                &format!("drive {name}: with it {lost} is forgotten"),
            );
        }
        if let Some(at) = self.absent.drives.iter().position(|missing| missing.name() == name) {
            let missing = self.absent.drives.remove(at);
            if let Err(error) = missing.forget() {
                (self.common.around.sink)(
                    Level::Warn.of_drive(name),
                    &format!("{name}: its layout file can't be removed: {error}"),
                );
            }
        }
        self.tell(EventKind::DriveRemoved, name, "removed");
        Ok(())
    }

    /// These drives are the added ones, durably.
    pub(crate) fn keep(&mut self, added: AddedDrives) -> Result<(), DiskError> {
        added.save().map_err(|error| {
            let what = format!("the list of drives can't be written: {error}");
            DiskError::new(Reason::NotDurable, what, "check state_dir: its owner, mode and free space")
        })?;
        self.added = added;
        Ok(())
    }

    fn tell(&self, kind: EventKind, name: &str, done: &str) {
        (self.common.around.sink)(Level::Info.of_drive(name), &format!("drive {name}: {done}"));
        self.common.events.tell(kind, None, Some(name.to_owned()));
    }

    /// What the drive has of the file, and of `added`: no tenant.
    fn config_of_new(&self, new: &NewDrive, added: &AddedDrives) -> Result<Config, DiskError> {
        let Some(first) = self.drives.values().next() else { return Err(broken()) };
        let known = first.config();
        let drives = Drives::parse(known.file(), known.declared_text(), added.sections());
        let mut config = drives.and_then(|drives| drives.one(Some(&new.name))).map_err(|errors| invalid(&errors))?;
        config.take_accounts_of(known).map_err(|errors| invalid(&errors))?;
        config.device.discard_content = new.discard_content;
        if matches!(config.device.profile, Profile::File(_)) {
            let title = "a profile's file can't be read while the daemon runs";
            return Err(DiskError::new(
                Reason::Invalid,
                title,
                "name a built-in profile, or declare the drive in the file",
            ));
        }
        Ok(config)
    }

    /// Opens what was handed over, with nobody on it.
    fn open(&self, config: Config, opened: HandedIn) -> Result<OpenedDrive, DiskError> {
        let (file, handed_over) = match (&config.device.backend, &opened) {
            (Backend::File { .. } | Backend::Block { .. }, HandedIn::File(file, content)) => {
                (Some(file), HandedOver::File(file, content.as_ref()))
            }
            (Backend::Nvme { .. }, HandedIn::Nvme(surveyed)) => (None, HandedOver::Nvme(&surveyed.survey)),
            (Backend::Memory | Backend::Null | Backend::Model { .. }, HandedIn::Nothing) => (None, HandedOver::Nothing),
            (backend, _) => return Err(no_descriptors(backend.name())),
        };
        let profile = drive_profile::load(&config.device.profile, |why| config.no_profile(why));
        let profile = profile.map_err(|errors| invalid(&errors))?;
        let policy = planning::policy(&config, &profile);
        let lock = DeviceLock::over(file).map_err(|error| {
            DiskError::new(Reason::InUse, format!("the drive can't be locked: {error}"), "find the process: `fuser -v`")
        })?;
        let found = Found::handed_over(config, handed_over).map_err(|errors| refused(&errors))?;
        self.refuse_twice(&found)?;
        let size_bytes = found.host.device.size_bytes;
        let drive =
            drive::open_over(&found.config, &profile, size_bytes, opened).map_err(|error| not_usable(&error))?;
        let prepared = found.prepare().map_err(|errors| refused(&errors))?;
        let (config, layout) = prepared.commit_handed_over(&lock).map_err(|errors| {
            let (title, remedy) = in_words(&errors);
            DiskError::new(Reason::NotDurable, title, remedy)
        })?;
        // Behind its walls, the daemon can't look the drive's node up.
        let (near_cpus, sockets) = Default::default();
        Ok(OpenedDrive { config, profile, policy, layout, lock, drive, near_cpus, sockets })
    }
}

impl ServedDrive {
    /// Its configuration with the tenants that the file declares and that are still there; the layout has the others.
    fn declared(&self) -> Config {
        let is_made = |name: &str| self.state.section_of(name).is_some();
        let mut config = self.config().clone();
        let tenants = self.tenants.values().map(|live| &live.tenant).filter(|tenant| !is_made(&tenant.name));
        config.tenants = tenants.cloned().collect();
        config.namespaces.retain(|namespace| self.has_disk(&namespace.name) && !is_made(&namespace.name));
        config
    }

    /// The disks that were made on it before are served, and what deleted ones left is wiped.
    fn serve_again(&mut self) {
        let warn = |sink: &Sink, name: &str, error: &anyhow::Error| {
            sink(
                Level::Warn.of_tenant(name),
                &format!("{name}: it is not served before the daemon starts again: {error:#}"),
            );
        };
        self.read_changes();
        if let Err(error) = self.open_pool() {
            let drive = &self.config().device.name;
            let line = format!("drive {drive}: its thin disks are not served: {error:#}");
            (self.around.sink)(Level::Warn.of_drive(drive), &line);
        }
        let config = self.state.shared_config();
        for tenant in &config.tenants {
            let name = &tenant.name;
            if let Err(error) = self.serve_placed(tenant.clone(), &config) {
                warn(&self.around.sink, name, &error);
            }
        }
        if let Err(error) = self.start_namespaces(&config) {
            warn(&self.around.sink, &config.device.name, &error);
        }
        self.wipe_next();
        self.reencrypt_next();
    }

    /// What keeps it from being taken away: disks, and bytes that are not wiped yet.
    fn holds(&self) -> (usize, u64) {
        let layout = self.state.layout();
        let disks = layout.map_or(0, |layout| layout.placements().len()).max(self.tenants.len());
        (disks, layout.map_or(0, |layout| layout.wiping().iter().map(|range| range.size_bytes).sum()))
    }
}

/// Asks a drive without the kernel what it is.
fn bring_up(config: &Config, opened: VfioDescriptors) -> Result<HandedIn, DiskError> {
    let Backend::Nvme { nsid, command_timeout, .. } = &config.device.backend else { return Err(broken()) };
    let is_discarded = config.device.discard_content;
    let surveyed = nvme_drive::survey(&config.device.name, opened, *nsid, *command_timeout, is_discarded);
    surveyed.map(|surveyed| HandedIn::Nvme(Box::new(surveyed))).map_err(|error| not_usable(&error))
}

/// What an image or a block device holds, unless that is to be discarded.
fn look_into(file: File, is_discarded: bool) -> Result<HandedIn, DiskError> {
    let content = if is_discarded { Ok(None) } else { content_of(&file) };
    let content = content.map_err(|error| {
        DiskError::new(Reason::NotUsable, format!("the drive can't be read: {error}"), "check the drive (`dmesg`)")
    })?;
    Ok(HandedIn::File(file, content))
}

/// A drive that comes back must be what it was: the next start opens what is recorded of it. `is_as_added`: it is added
/// by the same words as before.
fn refuse_other_than(former: &Config, new: &NewDrive, is_as_added: bool) -> Result<(), DiskError> {
    let Backend::Nvme { address, nsid, .. } = &former.device.backend else { return Err(drive_name_taken(&new.name)) };
    let name = &new.name;
    if new.address.as_ref() != Some(address) {
        let title = format!("drive {name:?} was at {address}, where the next start looks for it");
        return Err(DiskError::new(Reason::OtherAddress, title, "plug it in there again, and give that address"));
    }
    if let Some(other) = new.nsid.filter(|other| u32::from(*other) != *nsid) {
        let title = format!("drive {name:?} was namespace {nsid}, which the next start looks for, and not {other}");
        return Err(DiskError::new(Reason::OtherNamespace, title, format!("leave nsid out, or give {nsid}")));
    }
    let NewDrive { command_timeout, size, profile, queues, policy, wipe, .. } = new;
    let says_more = queues.is_some() || [command_timeout, size, profile, policy, wipe].iter().any(|it| it.is_some());
    if says_more && !is_as_added {
        let title = format!("drive {name:?} comes back with other settings");
        let remedy = "give only its backend and address, or remove the drive and add it again";
        return Err(DiskError::new(Reason::OtherSettings, title, remedy));
    }
    Ok(())
}

fn not_usable(error: &anyhow::Error) -> DiskError {
    DiskError::new(Reason::NotUsable, format!("{error:#}"), "choose another drive")
}

fn no_descriptors(backend: &str) -> DiskError {
    let title = format!("a {backend} drive comes with its descriptors, or with none: these are others");
    DiskError::new(Reason::NoDescriptor, title, "use `evenkeel drive add`, which hands them over")
}

fn refuse_declared(config: &Config) -> Result<(), DiskError> {
    if config.is_added() {
        return Ok(());
    }
    let title = format!("drive {:?} is declared in {}", config.device.name, config.file().display());
    Err(DiskError::new(Reason::Declared, title, "remove it there, and start the daemon again"))
}

/// Removes the layout of a removed drive of that name, whose daemon was killed before it could do so. Other programs
/// may have written to what the layout calls clean. A layout with disks is kept: it is the only record of where they
/// are.
fn remove_left_behind(path: PathBuf) -> Result<(), DiskError> {
    let left = LayoutFile::open(Some(path)).map_err(|error| not_durable(&error))?;
    match left.layout().is_some_and(is_empty) {
        true => left.remove().map_err(|error| not_durable(&error)),
        false => Ok(()),
    }
}

fn is_empty(layout: &Layout) -> bool {
    layout.placements().is_empty() && layout.wiping().is_empty()
}

fn refused(errors: &ConfigErrors) -> DiskError {
    let (title, remedy) = in_words(errors);
    DiskError::new(Reason::NotUsable, title, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_comes_back_as_what_it_was() {
        let text = "[[drive]]\nname = \"fast\"\nbackend = \"nvme\"\naddress = \"0000:03:00.1\"\nnsid = 2\n\
                    [[drive]]\nname = \"calm\"\nbackend = \"memory\"\nsize = \"16MiB\"\n\
                    [policy]\nname = \"passthrough\"\n";
        let drives = Drives::parse(Path::new("ek.toml"), text, "").expect("drives");
        let new = |former: usize, address: &str, nsid: Option<u16>| {
            let name = drives.each[former].device.name.clone();
            NewDrive {
                name,
                backend: "nvme".to_owned(),
                address: Some(address.to_owned()),
                nsid,
                ..NewDrive::default()
            }
        };
        let told = |former: usize, new: &NewDrive, is_as_added| {
            let refused = refuse_other_than(&drives.each[former], new, is_as_added);
            refused.map_err(|problem| (problem.reason, problem.title))
        };
        assert_eq!(told(0, &new(0, "0000:03:00.1", None), false), Ok(()));
        assert_eq!(told(0, &new(0, "0000:03:00.1", Some(2)), false), Ok(()));
        let (reason, title) = told(0, &new(0, "0000:03:00.2", None), false).expect_err("refused");
        assert!(reason == Reason::OtherAddress && title.contains("was at 0000:03:00.1"), "{reason:?}: {title}");
        let (reason, title) = told(0, &new(0, "0000:03:00.1", Some(1)), false).expect_err("refused");
        assert!(reason == Reason::OtherNamespace && title.contains("was namespace 2"), "{reason:?}: {title}");
        assert!(told(1, &new(1, "0000:03:00.1", None), false).is_err(), "another back end");
        let slower = NewDrive { command_timeout: Some("60s".to_owned()), ..new(0, "0000:03:00.1", None) };
        assert_eq!(told(0, &slower, true), Ok(()), "the same words again");
        assert_eq!(told(0, &slower, false).expect_err("refused").0, Reason::OtherSettings);
    }
}
