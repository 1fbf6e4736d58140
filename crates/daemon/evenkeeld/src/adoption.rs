//! Disks and drives that were made or added while the daemon ran, and that a file declares: from then on they are the
//! file's. The file is the truth: a kill before that is recorded leaves it to the next start.

use api::{Action, Key, Step};
use config::{AddedDrives, Sections};

use state::errors::broken;

use crate::error_texts::disk_error;
use crate::owner::Owner;
use api::DiskError;

/// What of it a file declares.
pub(crate) struct Adopted {
    /// One for each disk, and one for all drives.
    pub(crate) steps: Vec<Step>,
    /// Drives that stay added.
    pub(crate) added: AddedDrives,
    /// The sections of the others.
    pub(crate) drives: String,
}

impl Owner {
    /// Takes what a file declares of disks and drives that were made or added into the sections of what is declared
    /// `now`, with the settings that they have. Nothing is changed.
    pub(crate) fn adopt(&self, now: &mut Sections, next: &Sections, text: &str) -> Adopted {
        let step = |tenant, keys| Step { action: Action::Declare, tenant, size_bytes: None, keys };
        let mut steps = Vec::new();
        for name in next.names().filter(|name| now.find(name).is_none()).collect::<Vec<_>>() {
            if let Some(settings) = self.drives.values().find_map(|drive| drive.state.section_of(name)) {
                now.extend(settings);
                steps.push(step(Some(name.to_owned()), Vec::new()));
            }
        }
        let added = self.added.not_declared(text);
        let names: Vec<&str> = self
            .drives
            .values()
            .map(|drive| drive.config().device.name.as_str())
            .filter(|name| self.added.has(name) && !added.has(name))
            .collect();
        let drives = added.names().iter().fold(self.added.clone(), |rest, stays| rest.without(stays));
        if !names.is_empty() {
            now.extend_drives(drives.sections());
            let key = |name: &&str| Key { key: format!("drive.{name}"), old: None, new: None, remedy: None };
            steps.push(step(None, names.iter().map(key).collect()));
        }
        Adopted { steps, added, drives: drives.sections().to_owned() }
    }

    /// To name the drive that a disk is on is no change.
    pub(crate) fn name_drives(&self, now: &mut Sections, next: &mut Sections) {
        let names: Vec<String> = next.names().map(str::to_owned).collect();
        for name in names {
            let (Some((_, old)), Some((_, new))) = (now.find(&name), next.find(&name)) else { continue };
            let (old, new) = (old.contains_key("drive"), new.contains_key("drive"));
            let Some(drive) = self.drives.values().find(|drive| drive.has_disk(&name)) else { continue };
            match (old, new) {
                (false, true) => now.set_drive(&name, &drive.config().device.name),
                (true, false) => next.set_drive(&name, &drive.config().device.name),
                _ => {}
            }
        }
    }

    /// Takes a step of [`adopt`](Self::adopt), durably; what is `done` has it with the settings that it has now.
    pub(crate) fn take_adoption(
        &mut self,
        step: &Step,
        adopted: (&AddedDrives, &str),
        done: &mut Sections,
    ) -> Result<(), DiskError> {
        let Some(name) = step.tenant.as_deref() else {
            self.keep(adopted.0.clone())?;
            done.extend_drives(adopted.1);
            return Ok(());
        };
        let drive = self.find_drive(name).ok_or_else(broken)?;
        let settings = drive.state.section_of(name).map(str::to_owned).ok_or_else(broken)?;
        drive.apply(state::Command::Declare(name.to_owned())).map_err(disk_error)?;
        done.extend(&settings);
        Ok(())
    }
}
