//! All drives of a file, from their text to what is said before anybody is served.

use std::fmt;

use config::{Absent, Backend, Config, ConfigErrors, Drives, Found, Looked, Missing, Prepared, Problem, Summary};
use serde::Serialize;
use ssd_model::{MAX_QUEUES, Profile};

use crate::admission::{Admission, PromiseRow};
use crate::drive_profile;
use crate::forecasts::Forecasts;
use crate::placing::{self, Site};

/// A drive that can be served.
pub struct Ready {
    /// What is served there.
    pub prepared: Prepared,
    /// What it is, or is taken for.
    pub profile: Profile,
    admission: Admission,
}

/// What `check` and `serve` say of one.
#[derive(Serialize)]
pub struct DriveReport {
    /// What was decided.
    #[serde(flatten)]
    pub summary: Summary,
    promises: Vec<PromiseRow>,
    #[serde(skip)]
    shown: String,
}

impl fmt::Display for DriveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.summary, self.shown)
    }
}

impl Ready {
    /// What is to be said of it.
    pub fn report(&self) -> DriveReport {
        let Admission { promises, .. } = &self.admission;
        let (summary, shown) = (Summary::new(&self.prepared), self.admission.to_string());
        DriveReport { summary, promises: promises.clone(), shown }
    }

    /// As [`Ready::report`], for a look that starts nothing: a mark that is still to be made, and a file that is named
    /// after it, have no names yet. Each look would make up others.
    pub fn report_before_start(&self) -> DriveReport {
        let mut report = self.report();
        if self.prepared.host.to_mark {
            report.summary.device.id = None;
            report.summary.layout_file = self.prepared.config.device.layout_file.clone();
        }
        report
    }
}

/// Looks at all drives of a file, places the tenants that name none, and judges every promise. Writes nothing. What
/// can't be had and need not is among the first one's warnings.
///
/// # Errors
/// What would keep the daemon from starting, but for promises.
pub fn prepare(drives: Drives, forecasts: &Forecasts) -> Result<(Vec<Ready>, Absent), ConfigErrors> {
    let Looked { mut found, absent, unplaced } = drives.find()?;
    let load = |found: &Found| {
        let config = &found.config;
        drive_profile::load(&config.device.profile, |why| config.no_profile(why))
    };
    let profiles: Vec<Profile> = found.iter().map(load).collect::<Result<_, _>>()?;
    let sites = found.iter_mut().zip(&profiles).map(|(found, profile)| Site::new(found, profile));
    placing::place(&mut sites.collect::<Vec<_>>(), &unplaced, forecasts)?;
    let ready = |(found, profile): (Found, Profile)| {
        let mut prepared = found.prepare()?;
        refuse_queues(&prepared.config)?;
        let was_there = |tenant: &str| prepared.was_there(tenant);
        let admission = Admission::at_start(&prepared.config, &profile, &was_there, forecasts);
        prepared.warnings.extend(admission.warnings.iter().cloned());
        Ok(Ready { prepared, profile, admission })
    };
    let mut ready: Vec<Ready> = found.into_iter().zip(profiles).map(ready).collect::<Result<_, _>>()?;
    let unknown = absent.unknown.iter().map(|name| may_be_there(name));
    let not_there = absent.drives.iter().map(Missing::warning).chain(unknown);
    if let Some(first) = ready.first_mut() {
        first.prepared.warnings.extend(not_there);
    }
    Ok((ready, absent))
}

/// Refuses more queues than a modelled drive has. What other drives grant is seen when they are opened.
///
/// # Errors
/// The drive's pollers need more queues.
pub fn refuse_queues(config: &Config) -> Result<(), ConfigErrors> {
    match config.device.backend {
        Backend::Model { .. } => config.refuse_queues(MAX_QUEUES, "the drive model"),
        _ => Ok(()),
    }
}

fn may_be_there(name: &str) -> Problem {
    let what = format!("tenant {name:?} is on no drive that is there, and is not served: its data may be on another");
    Problem { place: None, what, remedy: "make all drives available, or name its drive".to_owned() }
}

/// # Errors
/// Each promise that can't be kept and is not overcommitted, on any drive.
pub fn refuse(ready: &[Ready]) -> Result<(), ConfigErrors> {
    ready.iter().try_for_each(|ready| ready.admission.refuse(&ready.prepared.config))
}
