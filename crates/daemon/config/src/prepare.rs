//! All steps from a file to a drive that is ready, in order. Only [`Prepared::commit`] writes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use layout::{Change, Layout, LayoutError, LayoutFile};

use crate::config::{Backend, Config};
use crate::found::{Found, layout_problem};
use crate::host::{DeviceLock, HostReport, Identity, in_use, keep_mark, mark_image, mark_start, new_mark};
use crate::problem::{ConfigErrors, Problem};

/// A configuration that fits this machine, and where each tenant will be.
#[derive(Debug)]
pub struct Prepared {
    /// The configuration.
    pub config: Config,
    /// The machine.
    pub host: HostReport,
    /// Where each tenant will be; recorded by [`Prepared::commit`].
    pub layout: Layout,
    /// What is new about it.
    pub changes: Vec<Change>,
    /// Every warning, in order of the steps.
    pub warnings: Vec<Problem>,
    pub(crate) file: LayoutFile,
}

impl Prepared {
    /// Checks the host and plans the layout. Writes nothing.
    ///
    /// # Errors
    /// What [`Config::check_host`], [`LayoutFile::open`] and [`Config::plan_layout`] report.
    pub fn new(config: Config) -> Result<Self, ConfigErrors> {
        Found::look(config)?.prepare()
    }
}

impl Found {
    /// Plans the layout. Writes nothing.
    ///
    /// # Errors
    /// What [`Config::plan_layout`] reports.
    pub fn prepare(mut self) -> Result<Prepared, ConfigErrors> {
        let declared = self.layout().map(|layout| self.config.declares(layout)).unwrap_or_default();
        let detached = self.config.take_disks(self.file.layout())?;
        self.config.refuse_smaller_than(self.host.block_bytes, self.file.layout())?;
        self.config.raise_blocks(self.host.block_bytes.unwrap_or_default());
        let (mut layout, mut changes) = self.config.plan_layout(&self.host.device, self.file.layout())?;
        for name in declared {
            layout.declare(&name);
            changes.push(Change::Declared { name });
        }
        self.refuse_unknown_content()?;
        self.refuse_lost_image()?;
        let import = self.file.path().and(self.unknown_content());
        let Self { config, host, file } = self;
        if host.to_create || file.path().is_none() {
            layout.is_all_zeros();
        } else if import.is_some() {
            layout.accept_content();
        }
        let mut warnings = config.warnings.clone();
        for (name, section) in &detached {
            layout.set_settings(name, section);
            warnings.push(Config::is_detached(name));
        }
        warnings.extend(host.warnings.iter().cloned());
        if let Some(what) = import {
            let place = config.marks.path.as_ref().map(|mark| config.text.place(mark));
            let remedy = "the tenants see the drive's old data, at the offsets in the configuration".to_owned();
            warnings.push(Problem { place, what, remedy });
        }
        Ok(Prepared { config, host, layout, changes, warnings, file })
    }

    /// Refuses to serve a drive because of its content.
    pub(crate) fn refuse_content(&self) -> Result<(), ConfigErrors> {
        self.refuse_unknown_content()?;
        self.refuse_lost_image()?;
        self.config.refuse_layout(&self.host.device, self.layout())?;
        self.config.refuse_smaller_than(self.host.block_bytes, self.layout())
    }

    /// Refuses a drive whose data no layout knows, unless every tenant names its range.
    fn refuse_unknown_content(&self) -> Result<(), ConfigErrors> {
        let Self { config, file, .. } = self;
        let (Some(what), Some(path)) = (self.unknown_content(), file.path()) else { return Ok(()) };
        if !config.is_added() && config.tenants.iter().all(|tenant| tenant.offset.is_some()) {
            return Ok(());
        }
        let remedy = format!(
            "if Evenkeel used it before, restore {}; to serve what is there, write offset = \"…\" in each [[tenant]]; \
             to overwrite it with new disks, add --discard-content {}",
            path.display(),
            config.device.name
        );
        Err(config.path_error(what, remedy))
    }

    /// Refuses to create an image in place of one with data.
    fn refuse_lost_image(&self) -> Result<(), ConfigErrors> {
        let Some(path) = self.file.path().filter(|_| self.host.to_create) else { return Ok(()) };
        let Some(first) = self.layout().and_then(|layout| layout.placements().first()) else { return Ok(()) };
        let what = format!("the image is missing, but its layout says that tenant {:?} has data in it", first.name);
        let remedy = format!("restore the image, or remove {} to start with an empty one", path.display());
        Err(self.config.path_error(what, remedy))
    }
}

impl Prepared {
    /// Whether a tenant had a disk on the drive before.
    pub fn was_there(&self, tenant: &str) -> bool {
        let is_new = |change: &Change| matches!(change, Change::Placed(placement) if placement.name == tenant);
        !self.changes.iter().any(is_new)
    }

    /// What a start makes that is not there yet: the image, the drive's layout, and the daemon's own directories.
    pub fn new_files(&self) -> NewFiles {
        let config = &self.config;
        let drive = config.device.backend.path();
        let image = drive.filter(|_| self.host.to_create).map(Path::to_owned);
        let layout = self.file.path().map(Path::to_owned);
        let history = config.history_path();
        let others = [layout, Some(config.totals_path()), Some(history.join("lock"))];
        let others = others.into_iter().flatten().filter(|path| !path.exists());
        let of_tenants = config.tenants.iter().map(|tenant| config.runtime_dir.join(&tenant.name));
        // What lies within another one comes before that.
        let directories = of_tenants.chain([config.runtime_dir.clone(), history, config.state_dir.clone()]);
        NewFiles {
            drive: drive.map(Path::to_owned),
            files: image.into_iter().chain(others).collect(),
            directories: directories.filter(|path| !path.exists()).collect(),
            identity: config.identity().ok().flatten(),
        }
    }

    /// Locks the drive, creates its file where the configuration says so, and records the layout. The lock
    /// must live as long as the drive is in use. Where another daemon has a socket or the drive, nothing is
    /// changed.
    ///
    /// # Errors
    /// What [`Config::refuse_served_sockets`], [`Config::lock_device`] and [`LayoutFile::save`] report, or that
    /// the file can't be created.
    pub fn commit(mut self) -> Result<(Config, LayoutFile, DeviceLock), ConfigErrors> {
        self.config.refuse_served_sockets()?;
        if let Some(path) = self.config.device.backend.path().filter(|_| self.host.to_create) {
            self.config.act_at(Some(path), || create(path, self.host.device.size_bytes)).map_err(|e| {
                let what = format!("can't create {}: {e}", path.display());
                ConfigErrors::one(self.config.file(), what, "check the directory and the room on its file system")
            })?;
        }
        let lock = self.config.lock_device()?;
        match &self.config.device.backend {
            // An image that this process may not write can't be served either. Opening it reports that.
            Backend::File { path, .. } => {
                match self.config.act_at(Some(path), || OpenOptions::new().write(true).open(path)) {
                    Ok(image) => self.mark(&image),
                    Err(_) => self.save(),
                }
            }
            _ => {
                // Before the layout, by which a drive without its mark would be another one.
                let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
                self.keep_mark(|path| self.config.act_at(Some(path), || open(path)))?;
                self.save()
            }
        }
        .map_err(|e| layout_problem(&self.config, &e))?;
        Ok((self.config, self.file, lock))
    }

    /// As [`record_start`](Self::record_start). Where there is no room left and all that is new is the mark, the image
    /// and its file go on with those that they have: they know each other by them.
    fn mark(&mut self, image: &File) -> Result<(), LayoutError> {
        match self.record_start(image) {
            Err(error) if error.is_no_room() && self.file.has_all_but_start(&self.layout) => Ok(()),
            recorded => recorded,
        }
    }

    /// Puts the drive's mark behind its disks, where that is its identity.
    fn keep_mark(&self, open: impl FnOnce(&Path) -> io::Result<File>) -> Result<(), ConfigErrors> {
        let device = &self.host.device;
        let Some(id) = device.id.as_deref().filter(|_| device.is_mark()) else { return Ok(()) };
        let kept = open(Path::new(&device.path)).and_then(|drive| keep_mark(&drive, device.size_bytes, id));
        kept.map_err(|e| {
            let what = format!("can't write its identity to {}: {e}", device.path);
            ConfigErrors::one(self.config.file(), what, "check the drive (`dmesg`)")
        })
    }

    /// Records the layout of an image with the image's marks. Killed in between, the next start knows the image by the
    /// mark of this start or of the one before; one that had none has it before the layout does.
    fn record_start(&mut self, image: &File) -> Result<(), LayoutError> {
        if self.host.device.id.is_none()
            && let Some(id) = mark_image(image)
        {
            self.layout.identify(id);
        }
        let start = new_mark();
        if let (Some(start), true) = (&start, self.layout.device().start.is_some()) {
            self.layout.begin_start(start.clone());
            self.save()?;
        }
        let start = start.filter(|start| mark_start(image, start).is_ok());
        self.layout.end_start(start);
        self.save()
    }

    fn save(&mut self) -> Result<(), LayoutError> {
        let layout = self.layout.clone();
        let path = self.file.path().map(Path::to_owned);
        self.config.act_at(path.as_deref(), || self.file.save(layout))
    }
}

impl Prepared {
    /// As [`Prepared::commit`], of a drive that was handed over: it is there, and its opener locked it.
    ///
    /// # Errors
    /// What [`LayoutFile::save`] reports, or that the drive can't be written.
    pub fn commit_handed_over(mut self, lock: &DeviceLock) -> Result<(Config, LayoutFile), ConfigErrors> {
        self.keep_mark(|_| lock.file().ok_or(io::ErrorKind::NotFound)?.try_clone())?;
        self.file.save(self.layout).map_err(|e| layout_problem(&self.config, &e))?;
        Ok((self.config, self.file))
    }
}

/// Files and directories that a start makes. Dropped, they are removed unless another process has their drive by now:
/// nothing stays behind of a start that was refused.
#[derive(Debug)]
pub struct NewFiles {
    /// `None`: it has no file.
    drive: Option<PathBuf>,
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    /// As whom they were made.
    identity: Option<Identity>,
}

impl NewFiles {
    /// The daemon serves: they stay.
    pub fn keep(mut self) {
        self.files.clear();
        self.directories.clear();
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        if self.files.is_empty() && self.directories.is_empty() {
            return;
        }
        let identity = self.identity.as_ref();
        let drive = self.drive.as_deref();
        let locked = Identity::act_at(identity, drive, || drive.map(in_use::lock));
        if let Some(Err(_)) = locked {
            return;
        }
        self.files.iter().for_each(|path| _ = Identity::act_at(identity, Some(path), || std::fs::remove_file(path)));
        // One with something in it stays.
        let directories = self.directories.iter();
        directories.for_each(|path| _ = Identity::act_at(identity, Some(path), || std::fs::remove_dir(path)));
    }
}

/// A sparse file, durably there. One that is there already must be empty.
fn create(path: &Path, size_bytes: u64) -> io::Result<()> {
    // Never through a link: it could lead to where only we may make files.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(path)?
        }
        made => made?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() != 0 {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is not empty any more"));
    }
    let sized = file.set_len(size_bytes).and_then(|()| file.sync_all());
    if let Err(error) = sized {
        // Nothing may stay behind of an image that could not be made.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
