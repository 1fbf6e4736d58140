//! The checked values.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::check;
use crate::problem::{ConfigErrors, Problem, Text};
use crate::units::{Rate, Size, TimeSpan};

/// A file is a few lines for each tenant; much more is some other file.
const FILE_MAX_BYTES: u64 = 4 << 20;

/// A configuration file that holds together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Sockets: `<runtime_dir>/<tenant>/cntrl` for each tenant and `<runtime_dir>/control`. Absolute.
    pub runtime_dir: PathBuf,
    /// Where the layout of a block device is kept. Absolute.
    pub state_dir: PathBuf,
    /// The drive.
    pub device: Device,
    /// Who may send next.
    pub policy: Policy,
    /// The threads that move commands.
    pub pollers: Pollers,
    /// In the file's order; 1 to [`TENANTS_MAX`](crate::TENANTS_MAX), names unique.
    pub tenants: Vec<Tenant>,
    /// What is allowed but probably not meant.
    pub warnings: Vec<Problem>,
    pub(crate) text: Text,
    pub(crate) marks: Marks,
}

/// Where things stand in the file, for problems that are found later.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Marks {
    pub runtime_dir: Option<Range<usize>>,
    pub state_dir: Option<Range<usize>>,
    pub device: Option<Range<usize>>,
    pub path: Option<Range<usize>>,
    pub size: Option<Range<usize>>,
    pub cpus: Option<Range<usize>>,
}

/// The drive that is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// What stands behind it.
    pub backend: Backend,
    /// How much of it is used; `None`: all of it (file and block only).
    pub size: Option<Size>,
    /// Which drive it is, or is taken for: the drive that `model` imitates, and where the policy's defaults
    /// come from.
    pub profile: Profile,
    /// HWQs in all, 1 to 1024; `None`: as many as the pollers want.
    pub queues: Option<u16>,
    /// Entries of each HWQ, 2 to 4096.
    pub queue_depth: u16,
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
    },
    /// Memory of the daemon: empty at each start.
    Memory,
    /// Nothing: writes vanish, reads leave the buffer as it is.
    Null,
    /// A drive model in real time over memory.
    Model,
}

/// A drive with known figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Intel Optane P5800X.
    P5800x,
    /// Samsung PM1735.
    Pm1735,
}

/// Who may send next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Round robin, no promise.
    Passthrough,
    /// Latency promises by throttling the best-effort tenants.
    Lpns(Lpns),
}

/// The parameters of LPNS (Peng et al., USENIX ATC 2023), defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lpns {
    /// Which rules.
    pub variant: LpnsVariant,
    /// Ω, the burst that a scheduling period allows, in commands. 1 to 1000000.
    pub omega: u32,
    /// R of Eq. 4: 4 KiB random writes per second that the drive sustains.
    pub rate_iops: Rate,
    /// L_h of Eq. 4: a command's latency on the idle drive.
    pub min_latency: TimeSpan,
    /// HWQs that serve one VQ each (1-1); `None`: the policy's choice.
    pub exclusive_queues: Option<u16>,
    /// HWQs that serve many VQs (1-N), at least 1; `None`: the policy's choice.
    pub shared_queues: Option<u16>,
}

/// Which rules of LPNS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LpnsVariant {
    /// As printed, to compare with the paper's figures.
    Published,
    /// With the gaps of the printed rules closed.
    Corrected,
}

/// The threads that move commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pollers {
    /// How tenants are shared out to pollers.
    pub layout: PollerLayout,
    /// The CPU of each poller, in the order of [`Config::poller_plan`]; empty: not pinned.
    pub cpus: Vec<u32>,
    /// A poller sleeps after this long without I/O.
    pub idle_after: TimeSpan,
    /// How often a sleeping poller looks at mapped doorbells.
    pub patrol: TimeSpan,
}

/// How tenants are shared out to pollers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PollerLayout {
    /// One for each guaranteed tenant, one for all others.
    PerGuaranteed,
    /// One for all.
    Shared,
}

/// One poller that will run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Poller {
    /// Indexes into [`Config::tenants`]; never empty.
    pub tenants: Vec<usize>,
    /// The CPU it is pinned to.
    pub cpu: Option<u32>,
}

/// One consumer with its own virtual disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// 1 to 63 of `a-z 0-9 _ -`, the first a letter or digit. Unique; the layout file knows the tenant by it.
    pub name: String,
    /// A multiple of [`RANGE_STEP_BYTES`](crate::RANGE_STEP_BYTES), above 0.
    pub size: Size,
    /// A place that the operator chose; the same multiple.
    pub offset: Option<Size>,
    /// What the guest sees.
    pub frontend: Frontend,
    /// What it is promised.
    pub class: Class,
    /// LBA size of a new tenant's namespace: 512 or 4096. The layout file has the present one.
    pub lba_bytes: u32,
    /// How its doorbells reach us.
    pub doorbells: Doorbells,
    /// I/O queues offered to the guest, 1 to 64.
    pub queues: u16,
    pub(crate) marks: TenantMarks,
}

/// Where a tenant stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TenantMarks {
    pub name: Range<usize>,
    pub size: Range<usize>,
    pub offset: Option<Range<usize>>,
}

/// What the guest sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Frontend {
    /// An NVMe controller over vfio-user.
    VfioUser,
}

/// What a tenant is promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// A latency.
    Guaranteed {
        /// The target: above 0, at most 1 s.
        latency_target: TimeSpan,
    },
    /// A share of what is left.
    BestEffort {
        /// 1 to 10000.
        weight: u32,
    },
}

/// How a tenant's doorbells reach us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doorbells {
    /// A page that the guest writes without an exit.
    Mapped,
    /// Each write is a message.
    Trapped,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong in the file, or that it can't be read.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let mut bytes = Vec::new();
        let read = std::fs::File::open(path).and_then(|file| file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes));
        if let Err(e) = read {
            let remedy = "give the path of a configuration file that this user may read";
            return Err(ConfigErrors::one(path, format!("can't read the configuration: {e}"), remedy));
        }
        if bytes.len() as u64 > FILE_MAX_BYTES {
            let remedy = "give the path of a configuration file";
            return Err(ConfigErrors::one(path, format!("is larger than {}", Size(FILE_MAX_BYTES)), remedy));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(path, &text),
            Err(_) => Err(ConfigErrors::one(path, "is not a text in UTF-8", "save it as UTF-8")),
        }
    }

    /// Checks a file's text. `file` is its name for messages; nothing is read.
    ///
    /// # Errors
    /// Everything that is wrong in the text.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ConfigErrors> {
        check::check(Text { file: file.to_owned(), text: text.to_owned() })
    }

    /// The file's name, as given.
    pub fn file(&self) -> &Path {
        &self.text.file
    }

    /// The socket of a tenant.
    pub fn socket_path(&self, tenant: &str) -> PathBuf {
        self.runtime_dir.join(tenant).join("cntrl")
    }

    /// The socket that the command line talks to.
    pub fn control_path(&self) -> PathBuf {
        self.runtime_dir.join("control")
    }

    /// The pollers that will run: those of the guaranteed tenants first, in the file's order, then the
    /// shared one. With fewer CPUs than pollers, CPUs are used again from the first.
    pub fn poller_plan(&self) -> Vec<Poller> {
        let guaranteed = |index: &usize| self.tenants.get(*index).is_some_and(Tenant::is_guaranteed);
        let all = 0..self.tenants.len();
        let groups: Vec<Vec<usize>> = match self.pollers.layout {
            PollerLayout::Shared => vec![all.collect()],
            PollerLayout::PerGuaranteed => {
                let (own, rest): (Vec<usize>, Vec<usize>) = all.partition(guaranteed);
                own.into_iter().map(|index| vec![index]).chain([rest]).collect()
            }
        };
        let cpus = self.pollers.cpus.iter().copied().map(Some).cycle().chain(std::iter::repeat(None));
        let groups = groups.into_iter().filter(|tenants| !tenants.is_empty());
        groups.zip(cpus).map(|(tenants, cpu)| Poller { tenants, cpu }).collect()
    }
}

impl Tenant {
    /// Whether it has a latency target.
    pub fn is_guaranteed(&self) -> bool {
        matches!(self.class, Class::Guaranteed { .. })
    }
}

impl Backend {
    /// As the file names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::File { .. } => "file",
            Self::Block { .. } => "block",
            Self::Memory => "memory",
            Self::Null => "null",
            Self::Model => "model",
        }
    }

    /// The file or block device, where there is one: only such a drive outlives the daemon.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } | Self::Block { path } => Some(path),
            Self::Memory | Self::Null | Self::Model => None,
        }
    }
}

impl Profile {
    pub(crate) const ALL: [(&'static str, Self); 2] = [("p5800x", Self::P5800x), ("pm1735", Self::Pm1735)];

    /// As the file names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::P5800x => "p5800x",
            Self::Pm1735 => "pm1735",
        }
    }

    /// Ω as chosen for this drive (LPNS §5.1).
    pub fn omega(self) -> u32 {
        match self {
            Self::P5800x => 190,
            Self::Pm1735 => 100,
        }
    }

    /// R: 4 KiB random writes per second (P5800X: LPNS §5.5; PM1735: what its buffer drains).
    pub fn rate_iops(self) -> Rate {
        match self {
            Self::P5800x => Rate(800_000),
            Self::Pm1735 => Rate(200_000),
        }
    }

    /// L_h: a command's latency on the idle drive (P5800X: LPNS §5.5; PM1735: its 4 KiB read, Fig. 2).
    pub fn min_latency(self) -> TimeSpan {
        match self {
            Self::P5800x => TimeSpan(11_050),
            Self::Pm1735 => TimeSpan(71_900),
        }
    }

    /// What a guest alone on the drive sees for a 4 KiB read at queue depth 1 (LPNS Fig. 2, MDev). No target
    /// below it can be kept.
    pub fn alone_latency(self) -> TimeSpan {
        match self {
            Self::P5800x => TimeSpan(11_900),
            Self::Pm1735 => TimeSpan(71_900),
        }
    }
}

impl Policy {
    /// As the file names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Lpns(_) => "lpns",
        }
    }
}

impl LpnsVariant {
    /// As the file names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Corrected => "corrected",
        }
    }
}
