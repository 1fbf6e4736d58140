//! How a guest reaches its disk: the front end, and the keys that only one of them has.

use std::ops::Range;

use toml::Spanned;

use crate::config::Doorbells;
use crate::problem::Sink;
use crate::section::{Section, boolean, choice, integers, or};

/// What the guest sees.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Frontend {
    /// An NVMe controller over vfio-user.
    VfioUser,
    /// A virtio-blk disk over vhost-user.
    VhostUserBlk(Vhost),
}

/// How a virtio-blk disk is served.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Vhost {
    /// Which threads serve its virtqueues.
    pub threads: Threads,
    /// When they sleep.
    pub mode: Mode,
    /// CPUs of its own threads, that of virtqueue i at i modulo the length; empty: not pinned, and always so for
    /// [`Threads::Shared`].
    pub cpus: Vec<u32>,
    /// The guest can't write.
    pub read_only: bool,
}

/// Which threads serve a tenant's queues. A queue's commands are submitted and completed by one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Threads {
    /// Those that `[pollers]` lays out, with other tenants' queues.
    Shared,
    /// One for this tenant alone: VBMq's data plane.
    Dedicated,
    /// One for each virtqueue: VBMq.
    PerQueue,
}

/// When a thread sleeps; a later one is more eager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Whenever there is nothing to do.
    Event,
    /// After [`Pollers::idle_after`](crate::Pollers::idle_after) without I/O.
    Adaptive,
    /// Never while a client is attached.
    Polling,
}

const THREADS: [(&str, Threads); 3] =
    [("shared", Threads::Shared), ("dedicated", Threads::Dedicated), ("per-queue", Threads::PerQueue)];
const MODES: [(&str, Mode); 3] = [("adaptive", Mode::Adaptive), ("polling", Mode::Polling), ("event", Mode::Event)];
const VFIO_USER: &str = "vfio-user";
const VHOST_USER_BLK: &str = "vhost-user-blk";
const VFIO_SOCKET: &str = "cntrl";
const VHOST_SOCKET: &str = "vhost.sock";

impl Frontend {
    /// As the file names it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::VfioUser => VFIO_USER,
            Self::VhostUserBlk(_) => VHOST_USER_BLK,
        }
    }

    /// The file name of its socket.
    pub fn socket_name(&self) -> &'static str {
        match self {
            Self::VfioUser => VFIO_SOCKET,
            Self::VhostUserBlk(_) => VHOST_SOCKET,
        }
    }

    /// The file name of the socket that the tenant had with the other front end.
    pub fn other_socket_name(&self) -> &'static str {
        match self {
            Self::VfioUser => VHOST_SOCKET,
            Self::VhostUserBlk(_) => VFIO_SOCKET,
        }
    }

    /// The virtio-blk disk's settings.
    pub fn vhost(&self) -> Option<&Vhost> {
        match self {
            Self::VfioUser => None,
            Self::VhostUserBlk(vhost) => Some(vhost),
        }
    }

    /// Which threads serve its queues.
    pub fn threads(&self) -> Threads {
        self.vhost().map_or(Threads::Shared, |vhost| vhost.threads)
    }

    /// When its threads sleep.
    pub fn mode(&self) -> Mode {
        self.vhost().map_or(Mode::Adaptive, |vhost| vhost.mode)
    }

    /// The CPUs of its own threads.
    pub fn cpus(&self) -> &[u32] {
        self.vhost().map_or(&[], |vhost| &vhost.cpus)
    }
}

impl Threads {
    /// As the file names them.
    pub fn name(self) -> &'static str {
        name_of(&THREADS, self)
    }
}

impl Mode {
    /// As the file names it.
    pub fn name(self) -> &'static str {
        name_of(&MODES, self)
    }
}

fn name_of<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word)
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
    let words = [VFIO_USER, VHOST_USER_BLK].map(|word| (word, word));
    let mark = |key: &str| section.entry(key).map(|(_, value)| value.span());
    let marks = FrontendMarks { threads: mark("threads"), mode: mark("mode"), cpus: mark("cpus") };
    let (frontend, doorbells) = match or(sink, section, "frontend", VFIO_USER, choice(&words, &[])) {
        Some(VFIO_USER) => {
            forbid_vhost(sink, section);
            (Some(Frontend::VfioUser), read_doorbells(sink, section))
        }
        Some(_) => {
            let why = "it belongs to the vfio-user front end, and this tenant's is vhost-user-blk";
            section.forbid(sink, "doorbells", why, "remove it, or write frontend = \"vfio-user\"");
            (read_vhost(sink, section).map(Frontend::VhostUserBlk), Some(Doorbells::Mapped))
        }
        None => (None, None),
    };
    FrontendDraft { frontend, doorbells, marks }
}

fn read_doorbells(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Doorbells> {
    let words = [("mapped", Doorbells::Mapped), ("trapped", Doorbells::Trapped)];
    or(sink, section, "doorbells", Doorbells::Mapped, choice(&words, &[]))
}

fn forbid_vhost(sink: &mut Sink<'_>, section: &Section<'_, '_>) {
    let why = "it belongs to the vhost-user-blk front end, and this tenant's is vfio-user";
    for (key, instead) in [
        ("threads", "use layout under [pollers]"),
        ("mode", "use idle_after under [pollers]"),
        ("cpus", "use cpus under [pollers]"),
        ("read_only", "remove it"),
    ] {
        section.forbid(sink, key, why, &format!("{instead}, or write frontend = \"vhost-user-blk\""));
    }
}

fn read_vhost(sink: &mut Sink<'_>, section: &Section<'_, '_>) -> Option<Vhost> {
    let threads = or(sink, section, "threads", Threads::Shared, choice(&THREADS, &[]));
    let mode = or(sink, section, "mode", Mode::Adaptive, choice(&MODES, &[]));
    let cpus = section.get(sink, "cpus", integers(0..=8191));
    let read_only = or(sink, section, "read_only", false, boolean);
    if threads == Some(Threads::Shared) {
        let remedy = "name them under [pollers], or write threads = \"dedicated\" or \"per-queue\"";
        section.forbid(sink, "cpus", "with threads = \"shared\" the tenant has no threads of its own", remedy);
    }
    let cpus = cpus.map(Spanned::into_inner).unwrap_or_default();
    Some(Vhost { threads: threads?, mode: mode?, cpus, read_only: read_only? })
}
