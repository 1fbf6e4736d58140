//! A file that is applied as the next start would find it: what needs a start, too, must not keep the daemon from one.
//!
//! What the confined daemon can't look at is left to the start and to `evenkeel check`: other paths, CPUs, accounts,
//! profiles in files, the size of a block device.

use config::{Config, ConfigErrors, Drives, Profile};
use promises::admission::Admission;
use promises::{drive_profile, ready};

use crate::error_texts::in_words;
use crate::owner::Owner;
use crate::served_drive::ServedDrive;
use api::{DiskError, Reason};

impl Owner {
    /// Refuses a file with which the daemon would not start, with the lines that are to blame.
    pub(crate) fn check_next_start(&self, next: Drives) -> Result<(), DiskError> {
        let (file, mut problems) = (next.each.first().map(|it| it.file().to_owned()).unwrap_or_default(), Vec::new());
        let profile = |drive: &ServedDrive, config: &Config| {
            profile_at_start(drive, config).unwrap_or_else(|| drive.profile.clone())
        };
        let configs = self.on_drives(next, &profile).map_err(|errors| would_not_start(&errors))?;
        for (id, config) in configs {
            let Some(drive) = self.drives.get(&id) else { continue };
            if let Some(profile) = profile_at_start(drive, &config) {
                let was_there = |name: &str| drive.has_disk(name);
                let refused = Admission::at_start(&config, &profile, &was_there, &drive.forecasts).refuse(&config);
                problems.extend(refused.err().into_iter().flat_map(|errors| errors.problems));
            }
            let on = |name: &str| {
                let other = self.drives.values().find(|other| other.has_disk(name));
                other.map(|other| other.config.device.name.as_str())
            };
            let elsewhere = config.refuse_elsewhere(&|name| drive.has_disk(name), &on);
            problems.extend(elsewhere.err().into_iter().flat_map(|errors| errors.problems));
            let blocks = drive.pollers.drive_facts().block_bytes;
            let placed = config.check_next_start(&drive.config, &drive.lock, blocks, drive.layout.layout());
            problems.extend(placed.err().into_iter().flat_map(|errors| errors.problems));
            let queues = ready::refuse_queues(&config);
            problems.extend(queues.err().into_iter().flat_map(|errors| errors.problems));
        }
        if problems.is_empty() { Ok(()) } else { Err(would_not_start(&ConfigErrors { file, problems })) }
    }
}

/// What the drive is taken for once the daemon starts again. `None`: nobody can tell before.
fn profile_at_start(drive: &ServedDrive, config: &Config) -> Option<ssd_model::Profile> {
    let named = &config.device.profile;
    if *named == drive.config.device.profile {
        return Some(drive.profile.clone());
    }
    match named {
        Profile::BuiltIn(_) => drive_profile::load(named, |why| config.no_profile(why)).ok(),
        Profile::File(_) => None,
    }
}

fn would_not_start(errors: &ConfigErrors) -> DiskError {
    let (title, remedy) = in_words(errors);
    let details = errors.problems.iter().map(|problem| problem.in_file(&errors.file)).collect();
    DiskError {
        details,
        ..DiskError::new(Reason::WouldNotStart, format!("the daemon would not start: {title}"), remedy)
    }
}
