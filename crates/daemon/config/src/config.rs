//! The checked values.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use io_model::Nanos;
use io_model::units::Size;
use layout::WantedPool;
use policy::Settings;
use policy::Terms;

use crate::access::{ApiSection, DaemonSection, KeysSection, SocketSection};
use crate::demand::Demand;
use crate::frontend::{Frontend, FrontendMarks, Serving};
use crate::groups::Group;
use crate::memory::MemoryLimits;
use crate::namespace::Namespace;
use crate::problem::{ConfigErrors, Problem, Sink, Text};
use crate::profile::Profile;
use crate::values::{Doorbells, Encryption, WipeBy};
use crate::view::{DEVICE_NAME, View};

/// In the state directory: drives that were added while a daemon ran.
pub(crate) const ADDED_FILE: &str = "drives.toml";

/// What a configuration file that holds together says of one drive: all of it where there is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Sockets: each tenant's ([`Config::socket_path`]) and the API's ([`Config::api_path`]). Absolute.
    pub runtime_dir: PathBuf,
    /// Where the layout of a block device is kept. Absolute.
    pub state_dir: PathBuf,
    /// The user that the daemon becomes.
    pub daemon: DaemonSection,
    /// The users that may use the API.
    pub api: ApiSection,
    /// Where keys of disks come from.
    pub keys: KeysSection,
    /// The drive.
    pub device: Device,
    /// The scheduling policy.
    pub policy: Settings,
    /// The threads that move commands.
    pub pollers: Pollers,
    /// They are laid out for this drive alone.
    pub(crate) has_own_pollers: bool,
    /// Ceilings that several disks share, in the file's order.
    pub groups: Vec<Group>,
    /// In the file's order, then disks that were made while the daemon ran; at most
    /// [`TENANTS_MAX`](crate::TENANTS_MAX), names unique.
    pub tenants: Vec<Tenant>,
    /// Disks that are parts of tenants' controllers, in the same order; as many at most.
    pub namespaces: Vec<Namespace>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<Problem>,
    pub(crate) text: Text,
    pub(crate) marks: Marks,
    /// Which part of the text this is.
    pub(crate) view: View,
}

/// Where things stand in the file, for problems that are found later.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Marks {
    pub runtime_dir: Option<Range<usize>>,
    pub state_dir: Option<Range<usize>>,
    pub daemon: Option<Range<usize>>,
    pub api: Option<Range<usize>>,
    pub device: Option<Range<usize>>,
    pub path: Option<Range<usize>>,
    pub profile: Option<Range<usize>>,
    pub size: Option<Range<usize>>,
    pub pool: Option<Range<usize>>,
    pub cpus: Option<Range<usize>>,
}

/// Entries of each HWQ, but where the drive has fewer.
pub const HWQ_DEPTH: u16 = 1024;

/// The drive that is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Unique among the drives: 1 to 63 of `a-z 0-9 _ -`.
    pub name: String,
    /// What stands behind it.
    pub backend: Backend,
    /// How much of it is used; `None`: all of it (file and block only).
    pub size: Option<Size>,
    /// Which drive it is, or is taken for: the drive that `model` imitates, and where the policy's defaults
    /// come from.
    pub profile: Profile,
    /// Whether the file says so: promises are checked against such a drive only.
    pub profile_named: bool,
    /// HWQs in all, 1 to 1024; `None`: as many as the pollers want.
    pub queues: Option<u16>,
    /// The others are served without it where it can't be had at the start.
    pub nofail: bool,
    /// Where its layout is kept; `None`: beside an image, or in [`Config::state_dir`]. Absolute.
    pub layout_file: Option<PathBuf>,
    /// How what deleted disks leave becomes zeros.
    pub wipe: WipeBy,
    /// Of new disks that do not say so themselves.
    pub encryption: Encryption,
    /// What thin disks share; `None`: there are none.
    pub pool: Option<WantedPool>,
    /// Overwrite the data on the drive. The command line names such a drive, never the file.
    pub discard_content: bool,
}

/// What stands behind the drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// A regular file.
    File {
        /// Absolute.
        path: PathBuf,
        /// Create it (sparse, [`Device::size`] long) where it is missing.
        create: bool,
    },
    /// A block device.
    Block {
        /// Absolute.
        path: PathBuf,
        /// It gets NVMe commands, through the [character device](crate::nvme_character_device) of its namespace.
        nvme_commands: bool,
    },
    /// An NVMe drive without the kernel, through VFIO.
    Nvme {
        /// Where its function is, as `0000:03:00.0`.
        address: String,
        /// Which of its namespaces.
        nsid: u32,
        /// What a command may take before something is done about it.
        command_timeout: Nanos,
    },
    /// A directory of images, each of which is a disk.
    Directory {
        /// Absolute.
        path: PathBuf,
    },
    /// Memory of the daemon: empty at each start.
    Memory,
    /// Nothing: writes vanish, reads leave the buffer as it is.
    Null,
    /// A drive model in real time over memory.
    Model {
        /// Its data are kept in memory; else it takes writes and reads as zeros.
        memory_backed: bool,
    },
}

/// The threads that move commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pollers {
    /// Pollers that best-effort tenants are spread over, but for those that have their own; under policies that
    /// [give none](policy::PolicyKind::gives_own_pollers) to guaranteed ones, these too: 1 to 64.
    pub best_effort: u16,
    /// The CPU of each poller that is no tenant's own, in the order of [`Config::poller_plan`]; empty: not pinned.
    pub cpus: Vec<u32>,
    /// A poller sleeps after this long without I/O.
    pub idle_after: Nanos,
    /// How many pollers of other drives come before these on the same CPUs.
    pub first: usize,
}

/// Where block devices of this host's have their names.
pub const DEVICE_DIR: &str = "/dev/evenkeel";

/// One consumer with its own virtual disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// 1 to 63 of `a-z 0-9 _ -`, the first a letter or digit. Unique; the layout file knows the tenant by it.
    pub name: String,
    /// Names that others know it by: texts by their keys.
    pub labels: BTreeMap<String, String>,
    /// The group whose ceiling holds for it too.
    pub group: Option<String>,
    /// A multiple of [`RANGE_STEP_BYTES`](crate::RANGE_STEP_BYTES), above 0.
    pub size: Size,
    /// A place that the operator chose; the same multiple.
    pub offset: Option<Size>,
    /// What the guest sees.
    pub frontend: Frontend,
    /// What it is promised and held to. A guaranteed one's target has a number; limits are empty unless the policy is
    /// `caps`, and the priority is medium unless it is `wrr` or `drr`.
    pub terms: Terms,
    /// How much memory its client may have mapped.
    pub memory: MemoryLimits,
    /// Serve it even if its promise can't be kept.
    pub overcommit: bool,
    /// What it will ask for; `None`: nobody said.
    pub demand: Option<Demand>,
    /// LBA size of a new tenant's disk: 512 or 4096. The layout file has the present one.
    pub lba_bytes: u32,
    /// Of a new disk.
    pub encryption: Encryption,
    /// It takes room from the pool as it is written.
    pub is_thin: bool,
    /// What it takes at a time.
    pub piece_bytes: u64,
    /// How much of the pool is kept for it.
    pub reserve: Size,
    /// The image that it is, on a drive that is a directory.
    pub image: Option<Image>,
    /// How the doorbells of an NVMe controller reach us; of no meaning for others.
    pub doorbells: Doorbells,
    /// I/O queues offered to the guest, 1 to 64.
    pub queues: u16,
    /// The users that may use its socket.
    pub socket: SocketSection,
    pub(crate) marks: TenantMarks,
}

/// An image file that is a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Absolute.
    pub path: PathBuf,
    /// Files that it may build on. Absolute.
    pub backing: Vec<PathBuf>,
}

/// Where a tenant stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TenantMarks {
    pub name: Range<usize>,
    pub size: Range<usize>,
    pub offset: Option<Range<usize>>,
    pub image: Option<Range<usize>>,
    pub target: Option<Range<usize>>,
    pub lba_size: Option<Range<usize>>,
    /// Whether `max_memory` and `max_maps` are written.
    pub has_memory: [bool; 2],
    pub frontend: FrontendMarks,
}

impl Config {
    /// The names of disks that are to be encrypted with a key of the host's.
    pub fn encrypted_by_host(&self) -> impl Iterator<Item = &str> {
        let hosts = self.encryptions().filter(|(_, encryption)| *encryption == Encryption::Host);
        hosts.map(|(name, _)| name)
    }

    /// How each disk is to be encrypted, by name.
    pub fn encryptions(&self) -> impl Iterator<Item = (&str, Encryption)> {
        let tenants = self.tenants.iter().map(|tenant| (tenant.name.as_str(), tenant.encryption));
        tenants.chain(self.namespaces.iter().map(|namespace| (namespace.name.as_str(), namespace.encryption)))
    }

    /// What the file itself says, without the disks of [`Config::with_disks`] and drives that were added.
    pub fn declared_text(&self) -> &str {
        &self.text.text[..self.view.declared_bytes]
    }

    /// The error for a profile that can't be had.
    pub fn no_profile(&self, why: impl std::fmt::Display) -> ConfigErrors {
        let mut sink = Sink::new(&self.text);
        let remedy = "give the path of a drive profile, relative to this file's directory";
        sink.maybe_at(self.marks.profile.as_ref(), format!("can't use the profile: {why}"), remedy);
        ConfigErrors { file: self.file().to_owned(), problems: sink.into_problems() }
    }

    /// A problem with the promise to a tenant, where that stands. `tenant` is an index into
    /// [`Config::tenants`].
    pub fn promise_problem(&self, tenant: usize, what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        let marks = self.tenants.get(tenant).map(|tenant| &tenant.marks);
        let mark = marks.map(|marks| marks.target.as_ref().unwrap_or(&marks.name));
        let place = mark.and_then(|mark| self.text.find(mark));
        Problem { place, what: what.into(), remedy: remedy.into() }
    }

    /// An error at the line that has the drive's path.
    pub(crate) fn path_error(&self, what: String, remedy: String) -> ConfigErrors {
        let mut sink = Sink::new(&self.text);
        sink.maybe_at(self.marks.path.as_ref(), what, remedy);
        ConfigErrors { file: self.file().to_owned(), problems: sink.into_problems() }
    }

    /// A problem with the drive, at the line that names its profile, or at its section.
    pub fn drive_problem(&self, what: impl Into<String>, remedy: impl Into<String>) -> Problem {
        let mark = self.marks.profile.as_ref().or(self.marks.device.as_ref());
        Problem { place: mark.map(|mark| self.text.place(mark)), what: what.into(), remedy: remedy.into() }
    }

    /// All that takes a place on the drive: its name, its size, and where the name stands.
    pub fn disks(&self) -> impl Iterator<Item = (&str, Size, &Range<usize>)> {
        let tenants = self.tenants.iter().map(|it| (it.name.as_str(), it.size, &it.marks.name));
        tenants.chain(self.namespaces.iter().map(|it| (it.name.as_str(), it.size, &it.marks.name)))
    }

    /// Whether the drive was added while a daemon ran.
    pub fn is_added(&self) -> bool {
        self.marks.device.as_ref().is_some_and(|mark| mark.start >= self.view.declared_bytes)
    }

    /// Where drives stand that were added while a daemon ran.
    pub fn added_file(&self) -> PathBuf {
        self.state_dir.join(ADDED_FILE)
    }

    /// The file's name, as given.
    pub fn file(&self) -> &Path {
        &self.text.file
    }

    /// The socket of a tenant, if it has one.
    ///
    /// `<runtime_dir>/<name>/cntrl` for vfio-user, `<runtime_dir>/<name>/vhost.sock` for vhost-user-blk.
    pub fn socket_path(&self, tenant: &Tenant) -> Option<PathBuf> {
        Some(self.runtime_dir.join(&tenant.name).join(tenant.frontend.socket_name()?))
    }

    /// Where a tenant's disk is reached: its socket, or the block device `/dev/evenkeel/<name>`.
    pub fn reached_at(&self, tenant: &Tenant) -> PathBuf {
        self.socket_path(tenant).unwrap_or_else(|| Path::new(DEVICE_DIR).join(&tenant.name))
    }

    /// The socket of the process that keeps clients, where there is one.
    pub fn keeper_path(&self) -> PathBuf {
        self.runtime_dir.join("keeper")
    }

    /// What tenants' counters have reached, for the next daemon.
    pub fn totals_path(&self) -> PathBuf {
        self.runtime_dir.join("totals.json")
    }

    /// The directory of the last day's summaries.
    pub fn history_path(&self) -> PathBuf {
        self.state_dir.join("history")
    }

    /// The socket of the API.
    pub fn api_path(&self) -> PathBuf {
        self.runtime_dir.join("api.sock")
    }

    /// The token of the API's port.
    pub fn token_path(&self) -> PathBuf {
        self.runtime_dir.join("token")
    }
}

impl Device {
    /// Where it stands in the file, for messages.
    pub fn section(&self) -> String {
        if self.name == DEVICE_NAME { "[device]".to_owned() } else { format!("drive {:?}", self.name) }
    }
}

impl Tenant {
    /// What the daemon does by itself, as a tenant of its own among the others: best effort, weight 1, one queue. It
    /// has no disk and no socket.
    pub fn background(name: &str) -> Self {
        Self {
            labels: BTreeMap::new(),
            group: None,
            name: name.to_owned(),
            size: Size(0),
            offset: None,
            frontend: Frontend::VfioUser(Serving::USUAL),
            terms: Terms::best_effort(1),
            memory: MemoryLimits { max_memory: Size(0), max_maps: 0 },
            overcommit: false,
            demand: None,
            lba_bytes: 512,
            encryption: Encryption::None,
            is_thin: false,
            piece_bytes: 0,
            reserve: Size(0),
            image: None,
            doorbells: Doorbells::Trapped,
            queues: 1,
            socket: SocketSection { user: None, group: None, mode: 0o600 },
            marks: TenantMarks::default(),
        }
    }

    /// Whether it has a latency target.
    pub fn is_guaranteed(&self) -> bool {
        self.terms.class.is_guaranteed()
    }

    /// Whether it has that, or a least of commands or bytes.
    pub fn is_promised(&self) -> bool {
        self.is_guaranteed() || !self.terms.floor.is_empty()
    }
}

impl Backend {
    /// As the file names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Block { .. } => "block",
            Self::Nvme { .. } => "nvme",
            Self::Directory { .. } => "directory",
            Self::Memory => "memory",
            Self::Null => "null",
            Self::Model { .. } => "model",
        }
    }

    /// The file, block device or directory, where there is one: only such a drive outlives the daemon.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } | Self::Block { path, .. } | Self::Directory { path } => Some(path),
            Self::Nvme { .. } | Self::Memory | Self::Null | Self::Model { .. } => None,
        }
    }

    /// Whether what is on it is still there when the daemon has ended and comes again. The null drive has nothing.
    pub fn outlives_daemon(&self) -> bool {
        !matches!(self, Self::Memory | Self::Model { .. })
    }

    /// Where it is: the path, or the PCI address.
    pub fn place(&self) -> Option<PathBuf> {
        match self {
            Self::Nvme { address, .. } => Some(PathBuf::from(address)),
            _ => self.path().map(Path::to_owned),
        }
    }

    /// Whether both mean one drive, whatever else is said of it.
    pub fn is_same_drive(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nvme { address, nsid, .. }, Self::Nvme { address: its, nsid: its_nsid, .. }) => {
                (address, nsid) == (its, its_nsid)
            }
            _ => (self.name(), self.path()) == (other.name(), other.path()),
        }
    }
}
