//! A drive that was looked at, with its layout.

use std::fs::File;
use std::io;

use layout::{Layout, LayoutError, LayoutFile};

use crate::config::Config;
use crate::host::{Content, HostReport, Survey};
use crate::problem::{ConfigErrors, Problem};

/// What comes with a drive whose opener hands it over.
#[derive(Debug, Clone, Copy)]
pub enum HandedOver<'a> {
    /// It has neither file nor device.
    Nothing,
    /// A file or block device, open, and what it [holds](crate::content_of).
    File(&'a File, Option<&'a Content>),
    /// A drive without the kernel, as it describes itself.
    Nvme(&'a Survey),
}

/// A drive that was looked at.
#[derive(Debug)]
pub struct Found {
    /// What is served there.
    pub config: Config,
    /// The machine.
    pub host: HostReport,
    pub(crate) file: LayoutFile,
}

impl Found {
    pub(crate) fn look(mut config: Config) -> Result<Self, ConfigErrors> {
        config.look_up_accounts()?;
        let mut host = config.check_host()?;
        let file = config.open_layout(&host.device).map_err(|e| layout_problem(&config, &e))?;
        // Not of a drive that is handed over: a daemon that runs may ask no file system.
        host.warnings.extend(no_room_left(&config, &file));
        if let (true, Some(recorded)) = (host.to_create, file.layout()) {
            // What is to be made is no older copy; if anybody had data in it, it is refused for that.
            host.device.start.clone_from(&recorded.device().start);
        }
        Ok(Self { config, host, file })
    }

    /// A drive that its opener handed over.
    ///
    /// # Errors
    /// It is no such drive, its layout can't be read, or it holds data that no layout knows.
    pub fn handed_over(config: Config, opened: HandedOver<'_>) -> Result<Self, ConfigErrors> {
        let host = match opened {
            HandedOver::File(opened, content) => config.check_opened(opened, content.cloned())?,
            HandedOver::Nvme(survey) => config.check_surveyed(survey)?,
            HandedOver::Nothing => config.of_no_file(),
        };
        let file = config.open_layout(&host.device).map_err(|e| layout_problem(&config, &e))?;
        let found = Self { config, host, file };
        match found.unknown_content() {
            None => Ok(found),
            Some(what) => {
                let remedy = format!(
                    "to serve it, declare it in the configuration file with its tenants' offsets; \
                     to overwrite it with new disks, add --discard-content {}",
                    found.config.device.name
                );
                Err(ConfigErrors::one(found.config.file(), what, remedy))
            }
        }
    }

    /// The existing layout. `None`: the drive has none yet.
    pub fn layout(&self) -> Option<&Layout> {
        self.file.layout()
    }

    /// The names of the disks that were made on it while a daemon ran.
    pub(crate) fn made(&self) -> Vec<&str> {
        self.layout().into_iter().flat_map(|layout| layout.settings()).map(|(name, _)| name).collect()
    }

    /// What nobody has of it yet, with the tenants that its configuration has.
    pub fn free_bytes(&self) -> u64 {
        let free = self.layout().map_or(self.host.device.size_bytes, Layout::free_bytes);
        let new = self.config.disks().filter(|(name, ..)| !self.has(name));
        new.fold(free, |free, (_, size, _)| free.saturating_sub(size.0))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.layout().is_some_and(|layout| layout.find(name).is_some())
    }
}

impl Found {
    /// The data of a drive that no layout describes, in words.
    pub(crate) fn unknown_content(&self) -> Option<String> {
        let content = self.host.content.as_ref().filter(|_| self.file.layout().is_none())?;
        Some(format!("{} holds {content}, and no layout file describes it", self.host.device.path))
    }
}

/// What is served is served all the same; but nothing can be recorded.
pub(crate) fn no_room_left(config: &Config, file: &LayoutFile) -> Option<Problem> {
    let directory = file.path().filter(|path| path.exists())?.parent()?;
    let left = rustix::fs::statvfs(directory).ok()?;
    (left.f_blocks > 0 && left.f_bavail == 0).then(|| {
        let what = format!("{} is full, and the drive's layout file belongs there", directory.display());
        let remedy = "make room: until then no disk can be made, changed or deleted";
        config.drive_problem(what, remedy)
    })
}

pub(crate) fn layout_problem(config: &Config, error: &LayoutError) -> ConfigErrors {
    let remedy = match error {
        LayoutError::Io { path, source, .. } if source.kind() == io::ErrorKind::PermissionDenied => config.let_in(path),
        _ => error.remedy().to_owned(),
    };
    ConfigErrors::one(config.file(), error.what(), remedy)
}
