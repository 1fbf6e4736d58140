//! Drives that come and go while the daemon runs.
//!
//! The daemon may open none itself: whoever adds one opens it, sees that nobody else uses it, and hands it over with
//! the request. It is recorded in the state directory, beside its layout, and opened by its path at the next start.

use std::fs::File;
use std::path::PathBuf;

use api::{Drive, EventKind, NewDrive, Problem};
use client_socket::Level;
use config::{AddedDrives, Config, ConfigErrors, DeviceLock, Drives, Found, Profile};
use layout::{Layout, LayoutFile};
use promises::{drive_profile, planning};

use crate::disks::{broken, in_words, invalid, no_such_drive, not_durable, not_writable};
use crate::drive;
use crate::opened::OpenedDrive;
use crate::owner::Owner;
use crate::served_drive::{DriveId, ServedDrive};

impl Owner {
    /// Serves one more drive.
    pub(crate) fn add_drive(&mut self, new: &NewDrive, file: Option<File>) -> Result<Drive, Problem> {
        let layout_file = new.path.as_ref().map(|_| self.added.layout_file(&new.name));
        let section = new.to_section(layout_file.as_deref()).map_err(not_writable)?;
        let to_be = self.added.with(&section);
        if let Some((_, there)) = self.find_drive_by_name(&new.name) {
            let is_same = there.config.is_added() && self.added.sections().contains(&section);
            return if is_same { Ok(there.describe()) } else { Err(name_taken(&new.name)) };
        }
        let state_dir = self.added.directory();
        if !state_dir.is_dir() {
            let title = format!("{} is not there to remember the drive in", state_dir.display());
            let remedy = "make that directory, or write another state_dir, and start the daemon again";
            return Err(Problem::new(409, "no-state-dir", title, remedy));
        }
        let config = self.config_of_new(&new.name, &to_be)?;
        layout_file.map_or(Ok(()), remove_left_behind)?;
        let opened = self.open(config, file)?;
        self.keep(to_be).inspect_err(|_| {
            // It has nobody's data: at worst an unused file stays behind.
            let _ = opened.layout.remove();
        })?;
        let id = DriveId(self.next_drive);
        self.next_drive += 1;
        let drive = ServedDrive::new(id, opened, self.common.clone());
        let described = drive.describe();
        self.drives.insert(id, drive);
        self.tell(EventKind::DriveAdded, &new.name, "added");
        Ok(described)
    }

    /// Lets go of a drive that nobody has anything on.
    pub(crate) fn remove_drive(&mut self, name: &str) -> Result<(), Problem> {
        let Some((id, drive)) = self.find_drive_by_name(name) else { return Err(no_such_drive(name)) };
        if !drive.config.is_added() {
            let title = format!("drive {name:?} is declared in {}", drive.config.file().display());
            return Err(Problem::new(409, "declared", title, "remove it there, and start the daemon again"));
        }
        if let Some(why) = drive.holds() {
            let title = format!("drive {name:?} is not empty: {why}");
            return Err(Problem::new(
                409,
                "not-empty",
                title,
                "delete its disks, and wait until they are wiped or it is sanitized",
            ));
        }
        self.keep(self.added.without(name))?;
        if let Some(mut drive) = self.drives.remove(&id) {
            // What it says of free ranges is not to be believed of what somebody writes there meanwhile.
            if let Err(error) = drive.layout.remove() {
                (self.common.around.sink)(Level::Warn, &format!("{name}: {error}"));
            }
            drive.begin_to_stop();
            drive.pollers.join();
        }
        self.tell(EventKind::DriveRemoved, name, "removed");
        Ok(())
    }

    /// These drives are the added ones, durably.
    pub(crate) fn keep(&mut self, added: AddedDrives) -> Result<(), Problem> {
        added.save().map_err(|error| {
            let what = format!("the list of drives can't be written: {error}");
            Problem::new(507, "not-durable", what, "check state_dir: its owner, mode and free space")
        })?;
        self.added = added;
        Ok(())
    }

    fn tell(&self, kind: EventKind, name: &str, done: &str) {
        (self.common.around.sink)(Level::Info, &format!("drive {name}: {done}"));
        self.common.events.tell(kind, None, Some(name.to_owned()));
    }

    fn find_drive_by_name(&self, name: &str) -> Option<(DriveId, &ServedDrive)> {
        self.drives.iter().find(|(_, drive)| drive.config.device.name == name).map(|(id, drive)| (*id, drive))
    }

    /// What the drive has of the file, and of `added`: no tenant.
    fn config_of_new(&self, name: &str, added: &AddedDrives) -> Result<Config, Problem> {
        let Some(first) = self.drives.values().next() else { return Err(broken()) };
        let known = &first.config;
        let drives = Drives::parse(known.file(), known.declared_text(), added.sections());
        let mut config = drives.and_then(|drives| drives.one(Some(name))).map_err(|errors| invalid(&errors))?;
        config.take_accounts_of(known).map_err(|errors| invalid(&errors))?;
        if matches!(config.device.profile, Profile::File(_)) {
            let title = "a profile's file can't be read while the daemon runs";
            return Err(Problem::new(
                422,
                "invalid",
                title,
                "name a built-in profile, or declare the drive in the file",
            ));
        }
        Ok(config)
    }

    /// Opens what was handed over, with nobody on it.
    fn open(&self, config: Config, file: Option<File>) -> Result<OpenedDrive, Problem> {
        if config.device.backend.path().is_some() != file.is_some() {
            let title =
                format!("a {} drive comes with its descriptor, and no other does", config.device.backend.name());
            return Err(Problem::new(422, "no-descriptor", title, "use `evenkeel drive add`, which hands it over"));
        }
        let profile = drive_profile::load(&config.device.profile, |why| config.no_profile(why));
        let profile = profile.map_err(|errors| invalid(&errors))?;
        let policy = planning::policy(&config, &profile);
        let lock = DeviceLock::over(file.as_ref()).map_err(|error| {
            Problem::new(409, "in-use", format!("the drive can't be locked: {error}"), "see who uses it: `fuser -v`")
        })?;
        let found = Found::handed_over(config, file.as_ref()).map_err(|errors| refused(&errors))?;
        let size_bytes = found.host.device.size_bytes;
        let drive = drive::open_over(&found.config, &profile, size_bytes, file);
        let drive =
            drive.map_err(|error| Problem::new(409, "not-usable", format!("{error:#}"), "choose another drive"))?;
        let prepared = found.prepare().map_err(|errors| refused(&errors))?;
        let (config, layout) = prepared.commit_handed_over().map_err(|errors| {
            let (title, remedy) = in_words(&errors);
            Problem::new(507, "not-durable", title, remedy)
        })?;
        Ok(OpenedDrive { config, profile, policy, layout, lock, drive, sockets: Default::default() })
    }
}

impl ServedDrive {
    /// What keeps it from being taken away.
    fn holds(&self) -> Option<String> {
        let layout = self.layout.layout()?;
        if self.is_held() {
            return Some("it is being sanitized".to_owned());
        }
        let disks = layout.placements().len().max(self.tenants.len());
        match (disks, layout.wiping().len()) {
            (0, 0) => None,
            (0, _) => Some("what a deleted disk left is not wiped yet".to_owned()),
            (1, _) => Some("it has a disk".to_owned()),
            (disks, _) => Some(format!("it has {disks} disks")),
        }
    }
}

/// Removes the layout of a drive of that name that was taken away, and whose daemon was killed before it could do so:
/// somebody may have written since to what that calls clean. One with disks is kept: it is all that tells where they
/// are.
fn remove_left_behind(path: PathBuf) -> Result<(), Problem> {
    let left = LayoutFile::open(Some(path)).map_err(|error| not_durable(&error))?;
    let is_empty = |layout: &Layout| layout.placements().is_empty() && layout.wiping().is_empty();
    match left.layout().is_some_and(is_empty) {
        true => left.remove().map_err(|error| not_durable(&error)),
        false => Ok(()),
    }
}

fn name_taken(name: &str) -> Problem {
    Problem::new(409, "name-taken", format!("there is a drive {name:?} already"), "choose another name")
}

fn refused(errors: &ConfigErrors) -> Problem {
    let (title, remedy) = in_words(errors);
    Problem::new(409, "not-usable", title, remedy)
}
