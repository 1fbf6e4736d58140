//! How a guest reaches its disk: the front end, and the keys that only one of them has.

use std::ops::Range;

use toml::Spanned;

use crate::keys::{UBLK, VFIO_USER, VHOST_USER_BLK, tenant};
use crate::problem::Sink;
use crate::section::Section;
use crate::values::{Doorbells, Mode, Threads};

/// What the guest sees.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Frontend {
    /// An NVMe controller over vfio-user.
    VfioUser(Serving),
    /// A virtio-blk disk over vhost-user.
    VhostUserBlk(Serving),
    /// A block device of this host's.
    Ublk(Serving),
}

/// How a disk is served.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Serving {
    /// Which threads serve its queues; `None`: those that its class and the policy call for.
    pub threads: Option<Threads>,
    /// When they sleep.
    pub mode: Mode,
    /// CPUs of its own threads, that of queue i at i modulo the length; empty: not pinned, and always so without
    /// [threads of its own](Frontend::has_own_threads).
    pub cpus: Vec<u32>,
    /// Nobody can write to it.
    pub read_only: bool,
}

const VFIO_SOCKET: &str = "cntrl";
const VHOST_SOCKET: &str = "vhost.sock";

impl Frontend {
    /// As the file names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::VfioUser(_) => VFIO_USER,
            Self::VhostUserBlk(_) => VHOST_USER_BLK,
            Self::Ublk(_) => UBLK,
        }
    }

    /// The file name of its socket; a block device has none.
    pub fn socket_name(&self) -> Option<&'static str> {
        match self {
            Self::VfioUser(_) => Some(VFIO_SOCKET),
            Self::VhostUserBlk(_) => Some(VHOST_SOCKET),
            Self::Ublk(_) => None,
        }
    }

    /// The file names of the sockets that the tenant had with other front ends.
    pub fn other_socket_names(&self) -> impl Iterator<Item = &'static str> {
        let own = self.socket_name();
        [VFIO_SOCKET, VHOST_SOCKET].into_iter().filter(move |name| own != Some(*name))
    }

    /// Whether it is an NVMe controller, which can have namespaces.
    pub fn is_controller(&self) -> bool {
        matches!(self, Self::VfioUser(_))
    }

    /// How it is served.
    pub fn serving(&self) -> &Serving {
        match self {
            Self::VfioUser(serving) | Self::VhostUserBlk(serving) | Self::Ublk(serving) => serving,
        }
    }

    /// Whether nobody can write to the disk.
    pub fn is_read_only(&self) -> bool {
        self.serving().read_only
    }

    /// Which threads the file asks for; [`Config::threads`](crate::Config::threads) are those that serve it.
    pub fn threads(&self) -> Option<Threads> {
        self.serving().threads
    }

    /// Whether the file gives it threads of its own.
    pub fn has_own_threads(&self) -> bool {
        !matches!(self.threads(), None | Some(Threads::Shared))
    }

    /// When its threads sleep.
    pub fn mode(&self) -> Mode {
        self.serving().mode
    }

    /// The CPUs of its own threads.
    pub fn cpus(&self) -> &[u32] {
        &self.serving().cpus
    }
}

impl Serving {
    /// As one that says nothing of it.
    pub const USUAL: Self = Self { threads: None, mode: Mode::Adaptive, cpus: Vec::new(), read_only: false };
}

/// Where the keys of a front end stand.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct FrontendMarks {
    pub threads: Option<Range<usize>>,
    pub mode: Option<Range<usize>>,
    pub cpus: Option<Range<usize>>,
}

/// A front end as far as it could be read, and its doorbells.
pub(crate) struct FrontendDraft {
    pub frontend: Option<Frontend>,
    pub doorbells: Option<Doorbells>,
    pub marks: FrontendMarks,
}

/// Reads the keys of a tenant that say how its guest reaches the disk.
pub(crate) fn read_frontend(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> FrontendDraft {
    let mark = |key: &str| section.entry(key).map(|(_, value)| value.span());
    let marks = FrontendMarks { threads: mark("threads"), mode: mark("mode"), cpus: mark("cpus") };
    let found = tenant::FRONTEND.get_or_default(sink, section);
    let (frontend, doorbells) = match found {
        Some(VFIO_USER) => {
            forbid_of_disks(sink, section);
            let serving =
                read_threads(sink, section).map(|(threads, cpus)| Serving { threads, cpus, ..Serving::USUAL });
            (serving.map(Frontend::VfioUser), tenant::DOORBELLS.get_or_default(sink, section))
        }
        Some(other) => {
            let why = format!("it belongs to the vfio-user front end, and this tenant's is {other}");
            section.forbid(sink, "doorbells", &why, "remove it, or write frontend = \"vfio-user\"");
            let serving = read_serving(sink, section);
            let frontend = if other == UBLK {
                forbid_of_clients(sink, section);
                serving.map(Frontend::Ublk)
            } else {
                serving.map(Frontend::VhostUserBlk)
            };
            (frontend, Some(Doorbells::Mapped))
        }
        None => (None, None),
    };
    FrontendDraft { frontend, doorbells, marks }
}

/// A block device has neither a client with memory nor a socket.
fn forbid_of_clients(sink: &mut Sink<'_>, section: &Section<'_, '_>) {
    for key in ["max_memory", "max_maps"] {
        let why = "a block device of this host has no client memory to map";
        section.forbid(sink, key, why, "remove it; `queues` sets the memory for its data");
    }
    for key in ["socket_user", "socket_group", "socket_mode"] {
        let why = "a block device of this host has no socket";
        section.forbid(sink, key, why, "remove it, and set the device's access by a udev rule");
    }
}

fn forbid_of_disks(sink: &mut Sink<'_>, section: &Section<'_, '_>) {
    let why = "it belongs to the vhost-user-blk and ublk front ends, and this tenant's is vfio-user";
    for (key, instead) in [("mode", "use idle_after under [pollers]"), ("read_only", "remove it")] {
        section.forbid(sink, key, why, &format!("{instead}, or write frontend = \"vhost-user-blk\""));
    }
}

fn read_serving(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Serving> {
    let threads = read_threads(sink, section);
    let mode = tenant::MODE.get_or_default(sink, section);
    let read_only = tenant::READ_ONLY.get_or_default(sink, section);
    let (threads, cpus) = threads?;
    Some(Serving { threads, mode: mode?, cpus, read_only: read_only? })
}

/// Which threads serve it, and the CPUs of its own ones.
fn read_threads(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<(Option<Threads>, Vec<u32>)> {
    let threads = tenant::THREADS.get_if_any(sink, section);
    let cpus = tenant::CPUS.get(sink, section);
    if matches!(threads, Some(None | Some(Threads::Shared))) {
        let remedy = "name them under [pollers], or write threads = \"dedicated\" or \"per-queue\"";
        section.forbid(sink, "cpus", "with threads = \"shared\" the tenant has no threads of its own", remedy);
    }
    Some((threads?, cpus.map(Spanned::into_inner).unwrap_or_default()))
}
