//! Checks that look at the machine, and change nothing.

mod accounts;
mod block;
mod block_size;
mod content;
mod cpus;
mod directories;
mod drive_mark;
mod files;
mod image_id;
pub mod in_use;
mod links;
mod nodes;
mod nvme;
mod sockets;
mod token;

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use io_model::units::Size;
use layout::{DeviceIdentity, LayoutError, LayoutFile, is_mark};
use rustix::fs::{Access, AtFlags, CWD, OFlags, access, accessat};
use rustix::process::{Resource, geteuid, getrlimit};

pub use self::accounts::Identity;
use self::accounts::owners;
pub use self::block::nvme_character_device;
pub use self::content::{Content, content_of};
pub use self::cpus::{AllowedCpus, warn_crowded};
use self::directories::open_safe;
use self::drive_mark::MARK_BYTES;
pub(crate) use self::drive_mark::keep as keep_mark;
pub use self::files::{MORE_OPEN_FILES, most_open_files, warn_few_files};
use self::image_id::ImageMarks;
pub use self::image_id::mark_image;
pub(crate) use self::image_id::{mark_start, new_mark};
use self::in_use::{InUse, LockError, number_of};
pub use self::nodes::Node;
pub use self::nvme::{Survey, layout_of_nvme};
use crate::RANGE_STEP_BYTES;
use crate::config::{Backend, Config};
use crate::images;
use crate::problem::{ConfigErrors, Problem, Sink};

/// How often, and after which pause, a drive that is claimed is tried again: one second in all.
const CLAIMED_TRIES: u32 = 50;
const CLAIMED_PAUSE: Duration = Duration::from_millis(20);

/// How long a drive may stay locked after its former daemon's end: what that had in its rings, the kernel takes apart
/// when it finds time.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// What the machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostReport {
    /// The drive. For a file that is still to be created, what it will be.
    pub device: DeviceIdentity,
    /// The file is missing (or empty) and `create = true`: [`Prepared::commit`](crate::Prepared::commit) makes it.
    pub to_create: bool,
    /// The drive's identity is a mark that [`Prepared::commit`](crate::Prepared::commit) makes: another one each time.
    pub to_mark: bool,
    /// The data of a drive that no layout describes. `None`: there is none, or a layout describes it.
    pub content: Option<Content>,
    /// What it reads and writes at least; `None`: only opening it to be served tells.
    pub block_bytes: Option<u32>,
    /// The drive's NUMA node, if the host has several and the drive was looked at in sysfs.
    pub node: Option<Node>,
    /// What works but is probably not meant.
    pub warnings: Vec<Problem>,
}

impl HostReport {
    /// A drive of which nothing else is known.
    pub(crate) fn of(device: DeviceIdentity) -> Self {
        let (to_create, to_mark, content, block_bytes, node) = Default::default();
        Self { device, to_create, to_mark, content, block_bytes, node, warnings: Vec::new() }
    }
}

impl Backend {
    /// The directory in sysfs of the device, or of the device that has the image's file system.
    fn in_sysfs(&self) -> Option<PathBuf> {
        match self {
            Self::Block { path, .. } => Some(sys_of(&path.metadata().ok()?)),
            Self::Directory { path } => Some(sys_of_number(path.metadata().ok()?.dev())),
            // The image may not be there yet.
            Self::File { path, .. } => Some(sys_of_number(path.parent()?.metadata().ok()?.dev())),
            Self::Nvme { address, .. } => Some(Path::new("/sys/bus/pci/devices").join(address)),
            Self::Memory | Self::Null | Self::Model { .. } => None,
        }
    }
}

/// Keeps other Evenkeel daemons from the same drive until it is dropped.
#[derive(Debug)]
pub struct DeviceLock {
    locked: Option<File>,
}

/// A drive as found.
struct Found {
    path: PathBuf,
    marks: ImageMarks,
    len_bytes: u64,
    to_create: bool,
    content: Option<Content>,
    block_bytes: Option<u32>,
}

impl Drop for DeviceLock {
    fn drop(&mut self) {
        // The kernel may have the open file for a moment longer, in a ring that it is taking apart.
        let _ = self.locked.as_ref().map(File::unlock);
    }
}

impl DeviceLock {
    /// Over a drive that is open; `None`: it has no file, and nobody else can have it.
    ///
    /// # Errors
    /// Another process has it.
    pub fn over(opened: Option<&File>) -> io::Result<Self> {
        let locked = opened.map(File::try_clone).transpose()?;
        locked.iter().try_for_each(|file| file.try_lock())?;
        Ok(Self { locked })
    }

    /// The drive, open; `None`: it has no file.
    pub(crate) fn file(&self) -> Option<&File> {
        self.locked.as_ref()
    }
}

impl Config {
    /// Looks at the drive, the directories and the CPUs. Changes nothing.
    ///
    /// A drive that a daemon has locked, or a socket that it serves, is a warning only: one may check a new
    /// configuration while the old one is served. Starting a second daemon fails in
    /// [`Prepared::commit`](crate::Prepared::commit).
    ///
    /// # Errors
    /// Everything else that would keep the daemon from starting.
    pub fn check_host(&self) -> Result<HostReport, ConfigErrors> {
        let mut sink = Sink::new(&self.text);
        let mut warnings = Sink::new(&self.text);
        let identity = self.identity()?;
        let path = self.device.backend.path();
        let drive = path.filter(|_| !matches!(self.device.backend, Backend::Directory { .. }));
        let uses = Identity::act_at(identity.as_ref(), path, || drive.map(in_use::uses)).unwrap_or_default();
        self.tell_uses(&mut sink, &mut warnings, &uses);
        let found = Identity::act_at(identity.as_ref(), path, || match &self.device.backend {
            Backend::File { path, create } => self.check_file(&mut sink, path, *create),
            Backend::Block { path, nvme_commands } => self.check_block(&mut sink, path, *nvme_commands, &uses),
            Backend::Nvme { address, nsid, .. } => self.check_nvme(&mut sink, &mut warnings, address, *nsid),
            Backend::Directory { path } if !images::look(self, &mut sink, path) => None,
            Backend::Directory { .. } | Backend::Memory | Backend::Null | Backend::Model { .. } => Some(Found {
                path: path.map_or_else(|| PathBuf::from(self.device.backend.name()), Path::to_owned),
                marks: ImageMarks::default(),
                len_bytes: images::size_of_no_file(self),
                to_create: false,
                content: None,
                block_bytes: None,
            }),
        });
        if let Some(found) = &found {
            self.warn_thin(&mut warnings, found);
            self.warn_short(&mut warnings, found);
        }
        let found = found.and_then(|found| self.usable(&mut sink, found));
        let owners = owners(identity.as_ref());
        directory(&mut sink, "runtime_dir", &self.runtime_dir, &owners, self.marks.runtime_dir.as_ref());
        if matches!(self.device.backend, Backend::Block { .. } | Backend::Nvme { .. }) {
            directory(&mut sink, "state_dir", &self.state_dir, &owners, self.marks.state_dir.as_ref());
        }
        if let Some(allowed) = AllowedCpus::of_this_process() {
            self.check_cpus(&mut sink, &allowed);
        }
        self.check_sockets(&mut sink, &mut warnings);
        let node = self.device.backend.in_sysfs().and_then(|device| Node::of_device(&device));
        node.iter().for_each(|node| self.warn_far_cpus(&mut warnings, node));
        sink.finish()?;
        let warnings = warnings.into_problems();
        let report = found.map(|found| HostReport { node, warnings, ..found });
        report.ok_or_else(|| ConfigErrors::one(self.file(), "the device can't be used", "check its path"))
    }

    /// As [`Config::check_host`], for a drive that a client handed over, in a process that can't open drives itself.
    /// The client has checked that the drive is not in use. `content` is what it [holds](content_of).
    ///
    /// # Errors
    /// It is not the right kind of drive.
    pub fn check_opened(&self, opened: &File, content: Option<Content>) -> Result<HostReport, ConfigErrors> {
        let mut sink = Sink::new(&self.text);
        let mark = self.marks.path.as_ref();
        let metadata = opened.metadata();
        let metadata =
            metadata.map_err(|e| ConfigErrors::one(self.file(), format!("can't be looked at: {e}"), "retry"))?;
        let path = self.device.backend.path().map(Path::to_owned).unwrap_or_default();
        let is_it = match self.device.backend {
            Backend::File { .. } => metadata.is_file(),
            _ => metadata.file_type().is_block_device(),
        };
        if !is_it {
            let what = format!("the descriptor handed over as {} is {}", path.display(), kind_of(&metadata));
            let remedy = match () {
                () if metadata.is_file() => "say so: --backend file",
                () if metadata.file_type().is_block_device() => "say so: --backend block",
                () => "give the path of a regular file or of a block device (`lsblk -p` lists them)",
            };
            sink.maybe_at(mark, what, remedy);
        }
        sink.finish()?;
        let mut sink = Sink::new(&self.text);
        let mut drive = opened;
        let len_bytes = drive.seek(SeekFrom::End(0)).map_err(|e| {
            let what = format!("can't read {}: {e}", path.display());
            ConfigErrors::one(self.file(), what, "check the drive (`dmesg`)")
        })?;
        let block_bytes = match self.device.backend {
            Backend::File { .. } => block_size::of_image(opened),
            _ => block_size::of_device(&sys_of(&metadata)),
        };
        let marks = match self.device.backend {
            Backend::File { .. } => image_id::of(opened),
            // What the kernel knows of it is nothing that a daemon behind its walls may read.
            _ => {
                let marked = self.find_mark(opened, &path, len_bytes, None);
                self.marks_of(marked, &path, len_bytes, content.as_ref())
            }
        };
        let found = Found { path, marks, len_bytes, to_create: false, content, block_bytes };
        let report = self.usable(&mut sink, found);
        sink.finish()?;
        report.ok_or_else(|| ConfigErrors::one(self.file(), "the drive can't be used", "check its path"))
    }

    /// As [`Config::check_host`], for a drive without the kernel, by what it said of itself.
    ///
    /// # Errors
    /// It lacks something that it must have.
    pub fn check_surveyed(&self, survey: &Survey) -> Result<HostReport, ConfigErrors> {
        let Backend::Nvme { address, .. } = &self.device.backend else { return Ok(self.of_no_file()) };
        let mut sink = Sink::new(&self.text);
        let found = self.found_nvme(&mut sink, address, survey);
        let report = self.usable(&mut sink, found);
        sink.finish()?;
        report.ok_or_else(|| ConfigErrors::one(self.file(), "the drive can't be used", "check its address"))
    }

    /// Whether it doesn't matter what this drive holds: a layout describes it, or it is to be discarded.
    fn is_known(&self, path: &Path, id: Option<String>) -> bool {
        self.device.discard_content || self.has_layout(path, id)
    }

    fn has_layout(&self, path: &Path, id: Option<String>) -> bool {
        let device = DeviceIdentity { path: path.display().to_string(), id, ..Default::default() };
        self.open_layout(&device).is_ok_and(|file| file.layout().is_some())
    }

    /// The layout of a drive, as far as there is one.
    pub(crate) fn open_layout(&self, device: &DeviceIdentity) -> Result<LayoutFile, LayoutError> {
        let path = self.layout_path(device);
        self.act_at(path.as_deref(), || LayoutFile::open(path.clone()))
    }

    /// What an image or a block device holds, unless that [does not matter](Config::is_known).
    fn unknown_content(&self, drive: &File, path: &Path, id: Option<String>) -> io::Result<Option<Content>> {
        if self.is_known(path, id) { Ok(None) } else { content_of(drive) }
    }

    /// What is there of a drive that has no file.
    pub(crate) fn of_no_file(&self) -> HostReport {
        let size_bytes = images::size_of_no_file(self);
        let device = DeviceIdentity { path: self.device.backend.name().to_owned(), size_bytes, ..Default::default() };
        HostReport::of(device)
    }

    /// Locks the drive for this process. Does nothing for back ends without a path.
    ///
    /// # Errors
    /// Another process has it, or it can't be opened.
    pub fn lock_device(&self) -> Result<DeviceLock, ConfigErrors> {
        // Images are locked one by one.
        let path = self.device.backend.path().filter(|_| !matches!(self.device.backend, Backend::Directory { .. }));
        let Some(path) = path else { return Ok(DeviceLock { locked: None }) };
        let mut sink = Sink::new(&self.text);
        let locked = self.act_at(Some(path), || self.try_lock(&mut sink, path));
        sink.finish()?;
        Ok(DeviceLock { locked })
    }

    /// The error for a drive in memory that the machine has no room for.
    pub fn no_memory(&self, why: impl std::fmt::Display) -> ConfigErrors {
        let mut sink = Sink::new(&self.text);
        let size = self.device.size.unwrap_or_default();
        let what = format!("can't have {size} of memory for the drive: {why}");
        sink.maybe_at(self.marks.size.as_ref(), what, "lower size, or use a file");
        ConfigErrors { file: self.file().to_owned(), problems: sink.into_problems() }
    }

    /// Reports other users of the drive. A daemon that serves it must be stopped before another one is started, not
    /// sooner.
    fn tell_uses(&self, sink: &mut Sink<'_>, warnings: &mut Sink<'_>, uses: &[InUse]) {
        let Some(path) = self.device.backend.path() else { return };
        let mark = self.marks.path.as_ref();
        for used in uses {
            if *used == InUse::Locked {
                let remedy = "stop the running daemon before another one is started";
                warnings.maybe_at(mark, used.what(path), remedy);
            } else {
                sink.maybe_at(mark, used.what(path), used.remedy());
            }
        }
    }

    /// An image may promise more than its file system can hold.
    fn warn_thin(&self, warnings: &mut Sink<'_>, found: &Found) {
        let Backend::File { path, .. } = &self.device.backend else { return };
        let Some(Ok(stat)) = found.path.parent().map(rustix::fs::statvfs) else { return };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let allocated = path.metadata().map_or(0, |metadata| metadata.blocks().saturating_mul(512));
        let wanted = self.device.size.map_or(found.len_bytes, |size| size.0).saturating_sub(allocated);
        if wanted > free {
            let free = Size(free - free % (1 << 20));
            let what = format!("{} can grow by {}, its file system has {free} left", path.display(), Size(wanted));
            let remedy = "make room: once it is full, guests' writes fail";
            warnings.maybe_at(self.marks.path.as_ref(), what, remedy);
        }
    }

    /// A limit of the process may keep it from an image's end.
    fn warn_short(&self, warnings: &mut Sink<'_>, found: &Found) {
        let limit_bytes = getrlimit(Resource::Fsize).current.filter(|limit| *limit < found.len_bytes);
        if let (Backend::File { path, .. }, Some(limit_bytes)) = (&self.device.backend, limit_bytes) {
            let what = format!("{} is longer than the {} that a file may have here", path.display(), Size(limit_bytes));
            let remedy =
                "raise RLIMIT_FSIZE (`ulimit -f unlimited`, or LimitFSIZE=infinity in the unit), or writes fail";
            warnings.maybe_at(self.marks.path.as_ref(), what, remedy);
        }
    }

    fn try_lock(&self, sink: &mut Sink<'_>, path: &Path) -> Option<File> {
        let mark = self.marks.path.as_ref();
        let start = Instant::now();
        let mut locked = in_use::lock(path);
        while matches!(locked, Err(LockError::InUse)) && start.elapsed() < LOCK_PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
            locked = in_use::lock(path);
        }
        match locked {
            Ok(file) => Some(file),
            Err(LockError::InUse) => {
                sink.maybe_at(mark, InUse::Locked.what(path), InUse::Locked.remedy());
                None
            }
            Err(LockError::Io(e)) => {
                sink.maybe_at(mark, format!("can't lock {}: {e}", path.display()), "check the file's mode");
                None
            }
        }
    }

    /// The part of a drive that tenants may use.
    fn usable(&self, sink: &mut Sink<'_>, found: Found) -> Option<HostReport> {
        let mark_bytes = if is_mark(found.marks.id.as_deref()) { MARK_BYTES } else { 0 };
        let whole = (found.len_bytes - found.len_bytes % RANGE_STEP_BYTES).saturating_sub(mark_bytes);
        if whole == 0 && found.len_bytes > 0 {
            let least = Size(RANGE_STEP_BYTES);
            let what =
                format!("{} has {} bytes, and a drive has {least} at least", found.path.display(), found.len_bytes);
            sink.maybe_at(self.marks.path.as_ref(), what, "check this file, and give the path of a drive");
            return None;
        }
        let size_bytes = self.device.size.map_or(whole, |size| size.0);
        if size_bytes > whole {
            let what =
                format!("{} has {}, less than size = \"{}\"", found.path.display(), Size(whole), Size(size_bytes));
            let remedy = match self.device.backend {
                Backend::File { .. } => {
                    format!("lower size, or grow it: truncate -s {size_bytes} {}", found.path.display())
                }
                _ => "lower size, or remove it to use the whole drive".to_owned(),
            };
            sink.maybe_at(self.marks.size.as_ref(), what, remedy);
            return None;
        }
        if size_bytes == 0 {
            let what = format!("{} is empty", found.path.display());
            let remedy = match self.device.backend {
                Backend::File { .. } => "write size = \"64GiB\" and create = true, or grow it",
                _ => "see what it is (`lsblk -p`; a loop device may have lost its file), and give the path of a drive",
            };
            sink.maybe_at(self.marks.path.as_ref(), what, remedy);
            return None;
        }
        let Some(path) = found.path.to_str() else {
            let what = format!("{} is not a path in UTF-8", found.path.display());
            sink.maybe_at(self.marks.path.as_ref(), what, "rename it");
            return None;
        };
        let ImageMarks { id, is_new: to_mark, start } = found.marks;
        let device = DeviceIdentity { path: path.to_owned(), id, start, former_start: None, size_bytes };
        let Found { to_create, content, block_bytes, .. } = found;
        Some(HostReport { to_create, to_mark, content, block_bytes, ..HostReport::of(device) })
    }

    fn check_file(&self, sink: &mut Sink<'_>, path: &Path, create: bool) -> Option<Found> {
        let mark = self.marks.path.as_ref();
        let metadata = match path.metadata() {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return self.check_missing(sink, path, create),
            Err(e) => {
                let remedy = match e.kind() {
                    io::ErrorKind::PermissionDenied => self.let_in(path),
                    _ => "check the path and its modes".to_owned(),
                };
                sink.maybe_at(mark, format!("can't look at {}: {e}", path.display()), remedy);
                return None;
            }
        };
        if !metadata.is_file() {
            let remedy = match metadata.file_type() {
                kind if kind.is_block_device() => "write backend = \"block\"",
                _ => "give the path of a regular file",
            };
            sink.maybe_at(mark, format!("{} is {}", path.display(), kind_of(&metadata)), remedy);
            return None;
        }
        let canonical = self.accessible(sink, path)?;
        self.writable_directory(sink, canonical.parent()?);
        let to_create = create && metadata.len() == 0;
        let len_bytes = if to_create { self.device.size?.0 } else { metadata.len() };
        let marks = image_id::at(&canonical);
        let looked = File::open(&canonical)
            .and_then(|image| Ok((self.unknown_content(&image, &canonical, marks.id.clone())?, image)));
        let (content, image) = match looked {
            Ok(looked) => looked,
            Err(e) => {
                sink.maybe_at(mark, format!("can't read {}: {e}", path.display()), "check its modes, and the disk");
                return None;
            }
        };
        let block_bytes = block_size::of_image(&image);
        Some(Found { path: canonical, marks, len_bytes, to_create, content, block_bytes })
    }

    fn check_missing(&self, sink: &mut Sink<'_>, path: &Path, create: bool) -> Option<Found> {
        let mark = self.marks.path.as_ref();
        let (parent, name) = (path.parent()?, path.file_name()?);
        let Ok(canonical) = parent.canonicalize() else {
            let what = format!("the directory {} does not exist", parent.display());
            sink.maybe_at(mark, what, format!("create it: mkdir -p {}", parent.display()));
            return None;
        };
        if !create {
            let bytes = self.device.size.unwrap_or(Size(64 << 30)).0;
            let how = if self.device.size.is_some() { "create = true" } else { "create = true and size = \"64GiB\"" };
            let remedy = format!("write {how} to create it, or: truncate -s {bytes} {}", path.display());
            sink.maybe_at(mark, format!("{} does not exist", path.display()), remedy);
            return None;
        }
        self.writable_directory(sink, &canonical);
        let (len_bytes, block_bytes) = (self.device.size?.0, block_size::of_new_image(&canonical));
        Some(Found {
            path: canonical.join(name),
            marks: ImageMarks::default(),
            len_bytes,
            to_create: true,
            content: None,
            block_bytes,
        })
    }

    /// The path without links, if we may read and write there.
    fn accessible(&self, sink: &mut Sink<'_>, path: &Path) -> Option<PathBuf> {
        let wanted = Access::READ_OK | Access::WRITE_OK;
        let allowed = accessat(CWD, path, wanted, AtFlags::EACCESS).map_err(io::Error::from);
        match allowed.and_then(|()| path.canonicalize()) {
            Ok(canonical) => Some(canonical),
            Err(e) => {
                let what = format!("can't read and write {}: {e}", path.display());
                sink.maybe_at(self.marks.path.as_ref(), what, self.let_in(path));
                None
            }
        }
    }

    /// How the daemon gets the right to a file.
    pub(crate) fn let_in(&self, path: &Path) -> String {
        let Some(user) = self.daemon.user.as_ref().filter(|_| geteuid().is_root()) else {
            return "give the daemon's user read and write access to it".to_owned();
        };
        let chown = format!("chown {} {}", user.name, path.display());
        format!("root does not follow other users' links; give it to the daemon's user: {chown}")
    }

    fn writable_directory(&self, sink: &mut Sink<'_>, path: &Path) {
        if let Err(e) = accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
            let what = format!("can't write to {}, where the drive's layout file belongs: {e}", path.display());
            sink.maybe_at(self.marks.path.as_ref(), what, self.let_in(path));
        }
    }
}

/// Opens for reading. The kernel takes a killed daemon's rings apart, and so releases its drive, a little after the
/// daemon is gone. A daemon that is restarted at once must not fail because of that.
fn open_unclaimed(path: &Path, flags: OFlags) -> io::Result<File> {
    let mut tries_left = CLAIMED_TRIES;
    loop {
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
        let claimed = opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
        if !claimed || tries_left == 0 {
            return opened;
        }
        tries_left -= 1;
        std::thread::sleep(CLAIMED_PAUSE);
    }
}

fn kind_of(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => "a regular file",
        () if kind.is_dir() => "a directory",
        () if kind.is_block_device() => "a block device",
        () if kind.is_char_device() => "a character device",
        () => "neither a file nor a drive",
    }
}

/// Can the directory be made, or be written to? Nothing is made.
fn directory(sink: &mut Sink<'_>, key: &str, path: &Path, owners: &[u32], mark: Option<&std::ops::Range<usize>>) {
    if let Err((what, remedy)) = open_safe(path, owners) {
        return sink.maybe_at(mark, format!("{key} can't be used: {what}"), remedy);
    }
    let existing = path.ancestors().find(|ancestor| ancestor.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    if !existing.is_dir() {
        let what = format!("{key} = {:?} can't be used: {} is not a directory", path, existing.display());
        sink.maybe_at(mark, what, "choose another directory");
    } else if let Err(e) = access(existing, Access::WRITE_OK | Access::EXEC_OK) {
        let what = format!("{key} = {:?} can't be used: no access to {}: {e}", path, existing.display());
        let remedy = format!("start the daemon as a user who may write there, or choose another {key}");
        sink.maybe_at(mark, what, remedy);
    }
}

/// What the kernel knows of a block device.
fn sys_of(device: &Metadata) -> PathBuf {
    sys_of_number(device.rdev())
}

fn sys_of_number(device: u64) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}", number_of(device)))
}

/// What a block device says who it is; `None`: the kernel does not know.
pub fn drive_id(device: &Metadata) -> Option<String> {
    id_at(&sys_of(device))
}

/// The drive's own name for itself, and which part of it this is.
fn id_at(sys: &Path) -> Option<String> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(sys.join(name)).ok()?;
        Some(text.split_whitespace().collect::<Vec<_>>().join("-")).filter(|text| !text.is_empty())
    };
    // A partition's directory lies within the drive's.
    let part = read("partition").map(|number| format!("-part{number}"));
    let base = if part.is_some() { "../" } else { "" };
    let names = ["wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid"];
    let id = names.iter().find_map(|name| read(&format!("{base}{name}")))?;
    Some(id + part.as_deref().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_has_its_drives_identity_and_its_number() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let part = dir.path().join("nvme0n1p2");
        std::fs::create_dir(&part).expect("directory");
        std::fs::write(dir.path().join("wwid"), "eui.0025 38\n").expect("wwid");
        assert_eq!(id_at(dir.path()).as_deref(), Some("eui.0025-38"));
        std::fs::write(part.join("partition"), "2\n").expect("partition");
        assert_eq!(id_at(&part).as_deref(), Some("eui.0025-38-part2"));
    }
}
