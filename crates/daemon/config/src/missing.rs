//! Drives that can't be had while others are served, and what is known of them all the same: their layout files lie
//! elsewhere. The names of their disks stay taken, or there would be two of a name once the drive is back.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use layout::{DeviceIdentity, Layout, LayoutError, LayoutFile};

use crate::config::{Backend, Config};
use crate::problem::{ConfigErrors, Problem};

/// Disks that a warning names, at most.
const NAMED_MAX: usize = 16;

/// A drive that can't be had.
#[derive(Debug)]
pub struct Missing {
    /// What would be served there.
    pub config: Config,
    /// Why it is not.
    pub errors: ConfigErrors,
    /// Its path without links, or its PCI address, as far as there is one.
    at: Option<PathBuf>,
    file: Result<LayoutFile, LayoutError>,
}

impl Missing {
    /// Reads its layout, if that is there.
    pub fn new(config: Config, mut errors: ConfigErrors) -> Self {
        if config.is_added() {
            // It stands in no line of the configuration.
            errors.problems.iter_mut().for_each(|problem| problem.place = None);
        }
        let at = config.device.backend.place().map(|place| without_links(&place));
        let file = find_layout(&config, at.as_deref());
        Self { config, errors, at, file }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.config.device.name
    }

    /// Why it can't be had, in words.
    pub fn why(&self) -> String {
        self.errors.problems.iter().map(|problem| problem.what.as_str()).collect::<Vec<_>>().join("; ")
    }

    /// The layout of the missing drive, if known.
    pub fn layout(&self) -> Option<&Layout> {
        self.file.as_ref().ok().and_then(LayoutFile::layout)
    }

    /// The names of its disks: those that the configuration puts there, and those that its layout has.
    pub fn disks(&self) -> BTreeSet<&str> {
        let recorded = self.layout().into_iter().flat_map(Layout::placements).map(|placement| placement.name.as_str());
        self.config.disks().map(|(name, ..)| name).chain(recorded).collect()
    }

    /// The disks that were made on it while a daemon ran, each with its section.
    pub fn made(&self) -> impl Iterator<Item = (&str, &str)> {
        self.layout().into_iter().flat_map(Layout::settings)
    }

    /// Why it may have more disks than are known.
    pub fn unread(&self) -> Option<String> {
        match &self.file {
            Err(error) => Some(error.what()),
            Ok(file) if file.layout().is_none() && self.at.is_some() => {
                Some("no layout file of it was found".to_owned())
            }
            Ok(_) => None,
        }
    }

    /// Its disks, in words: `its disks "a" and "b"`.
    pub fn disks_in_words(&self) -> String {
        let all = self.disks();
        let quoted: Vec<String> = all.iter().take(NAMED_MAX).map(|name| format!("{name:?}")).collect();
        let more = if all.len() > NAMED_MAX { format!(" and {} more", all.len() - NAMED_MAX) } else { String::new() };
        let known = match all.len() {
            0 => "what is on it".to_owned(),
            1 => format!("its disk {}", quoted[0]),
            _ => format!("its disks {}{more}", quoted.join(", ")),
        };
        match self.unread() {
            Some(why) => format!("{known} (there may be more: {why})"),
            None => known,
        }
    }

    /// What an operator is told.
    pub fn warning(&self) -> Problem {
        let verb = if self.disks().len() > 1 { "are" } else { "is" };
        let name = self.name();
        let added = match self.config.is_added() {
            true => format!(" (added by `evenkeel drive add`: {})", self.config.added_file().display()),
            false => String::new(),
        };
        let what = format!(
            "drive {name:?}{added} is unavailable, and {} {verb} not served: {}",
            self.disks_in_words(),
            self.why()
        );
        let place = self.config.marks.device.as_ref().filter(|_| !self.config.is_added());
        let place = place.and_then(|mark| self.config.text.find(mark));
        let remedies: BTreeSet<&str> = self.errors.problems.iter().map(|problem| problem.remedy.as_str()).collect();
        let remedy = remedies.into_iter().collect::<Vec<_>>().join("; ");
        Problem { place, what, remedy: format!("{remedy}; then start the daemon again") }
    }

    /// Whether it is that file or device.
    pub fn is_at(&self, path: &Path) -> bool {
        self.at.as_deref() == Some(path) || self.config.device.backend.place().as_deref() == Some(path)
    }

    /// Removes the layout of a drive that was added, durably. The drive's content stays.
    ///
    /// # Errors
    /// The system's; the record is there still.
    pub fn forget(&self) -> io::Result<()> {
        let Some(path) = &self.config.device.layout_file else { return Ok(()) };
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

/// All that can't be had at a start.
#[derive(Debug, Default)]
pub struct Absent {
    /// The drives.
    pub drives: Vec<Missing>,
    /// Tenants that name no drive and are on none that is there: they may be on one of those.
    pub unknown: Vec<String>,
}

impl Absent {
    /// A drive, by its name.
    pub fn drive(&self, name: &str) -> Option<&Missing> {
        self.drives.iter().find(|missing| missing.name() == name)
    }

    /// Why a disk is not served and its name is taken; `None`: it is on no such drive.
    pub fn why(&self, disk: &str) -> Option<String> {
        let missing = |it: &Missing| format!("drive {:?} is missing: {}", it.name(), it.why());
        if let Some(holder) = self.drives.iter().find(|it| it.disks().contains(disk)) {
            return Some(missing(holder));
        }
        let is_unknown = self.unknown.iter().any(|unknown| unknown == disk);
        is_unknown.then(|| match self.drives.is_empty() {
            true => "no drive available at the start has it".to_owned(),
            false => self.drives.iter().map(missing).collect::<Vec<_>>().join("; "),
        })
    }

    /// The names of the disks that were made there while a daemon ran.
    pub fn made(&self) -> impl Iterator<Item = &str> {
        self.drives.iter().flat_map(Missing::made).map(|(name, _)| name)
    }
}

/// As far as it is there.
fn without_links(path: &Path) -> PathBuf {
    let beside = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(beside).unwrap_or_else(|| path.to_owned())
}

fn find_layout(config: &Config, at: Option<&Path>) -> Result<LayoutFile, LayoutError> {
    let Some(at) = at else { return LayoutFile::open(None) };
    let device = DeviceIdentity { path: at.display().to_string(), size_bytes: 0, ..Default::default() };
    let file = config.open_layout(&device)?;
    let is_named_by_id = matches!(config.device.backend, Backend::Block { .. } | Backend::Nvme { .. })
        && config.device.layout_file.is_none();
    if !is_named_by_id || file.layout().is_some() {
        return Ok(file);
    }
    // A device that is away can't say who it is, and its layout is named after that.
    let is_its = |found: &LayoutFile| {
        let path = found.layout().map(|layout| Path::new(&layout.device().path));
        path.is_some_and(|path| path == at || config.device.backend.place().as_deref() == Some(path))
    };
    let entries = std::fs::read_dir(&config.state_dir).into_iter().flatten().flatten();
    let is_layout = |name: &str| name.starts_with("layout-") && !name.starts_with("layout-of-");
    let layouts = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_layout));
    Ok(layouts.filter_map(|entry| LayoutFile::open(Some(entry.path())).ok()).find(is_its).unwrap_or(file))
}

#[cfg(test)]
mod tests {
    use layout::Wanted;

    use super::*;

    #[test]
    fn the_disks_of_a_missing_drive_without_the_kernel_are_known() {
        let dir = tempfile::tempdir().expect("a folder");
        let text = format!(
            "state_dir = {:?}\n[device]\nbackend = \"nvme\"\naddress = \"0000:03:00.1\"\n\
             [policy]\nname = \"passthrough\"\n",
            dir.path()
        );
        let config = Config::parse(Path::new("ek.toml"), &text).unwrap_or_else(|e| panic!("{e}"));
        let missing = || {
            let errors = ConfigErrors::one(config.file(), "away", "plug it in");
            Missing::new(config.clone(), errors)
        };
        assert!(missing().unread().is_some(), "nobody knows what is on it");
        let device = DeviceIdentity {
            path: "0000:03:00.1".to_owned(),
            id: Some("nvme-S1-1".to_owned()),
            size_bytes: 1 << 30,
            ..Default::default()
        };
        let mut file = LayoutFile::open(Some(LayoutFile::in_directory(dir.path(), &device))).expect("no layout yet");
        let wanted =
            Wanted { name: "db", size: "4MiB".parse().expect("a size"), offset: None, lba_bytes: 512, is_thin: false };
        let (layout, _) = Layout::plan(&[wanted], None, &device, None).expect("room");
        file.save(layout).expect("saved");
        let missing = missing();
        assert_eq!((missing.disks(), missing.unread()), (["db"].into(), None));
        assert!(missing.is_at(Path::new("0000:03:00.1")));
    }
}
