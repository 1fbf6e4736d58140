//! The configuration file: what an operator wrote, checked.
//!
//! * [`Drives::load`] reads the TOML file and reports *every* problem in it, each with its line and its
//!   remedy. It looks at nothing else, so it can be tested without a host. What one drive has of the file is a
//!   [`Config`]; [`Config::parse`] takes the text of a file of one drive.
//! * [`Config::check_host`] looks at the machine without changing it: the drive, the directories, the CPUs.
//! * [`Config::plan_layout`] gives every tenant its range on the drive.
//! * [`Prepared`] does these in order; [`Prepared::commit`] is the first step that writes anything.
//! * [`Summary`] is what `evenkeel check` prints.
//! * [`reading`] is for other files with some of the same sections: a scenario's.
//!
//! | module | |
//! | --- | --- |
//! | `section`, `nearest` | typed reading of one TOML table; "did you mean" |
//! | `problem` | what is wrong, where, and what to do |
//! | `config`, `check`, `rules` | the checked values; reading them; rules across sections |
//! | `drives` | a file of several drives: what each has of it, and tenants that are to be placed on one |
//! | `look`, `missing` | which drives are there; what is known of those that are not and need not be |
//! | `added` | drives that were added while a daemon ran |
//! | `assigned` | drives that a VM has as a whole |
//! | `access` | users and groups: whose the daemon is, whom sockets are for |
//! | `frontend`, `plan` | what a guest sees and who serves it; the pollers that follow |
//! | `policy_section`, `terms`, `profile`, `rw` | sections that this file and a scenario share |
//! | `namespace` | disks that are parts of tenants' controllers |
//! | `blocks` | disks' blocks beside their drive's |
//! | `isolation` | what keeps a tenant from its neighbours: pollers, memory |
//! | `demand` | what a tenant will ask for, to check promises beforehand |
//! | `host`, [`in_use`] | checks that look at the machine; who else uses a drive |
//! | `same_drive` | one drive that is found twice |
//! | `place` | each tenant's range on the drive, by the crate `layout` |
//! | `sections` | a file taken apart and put together again; what differs between two |
//! | `prepare`, `summary` | all steps in order; what was decided, for people and JSON |
//!
//! Values here are plain: the binary turns them into the types of other rooms.
//!
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a drive that a killed daemon had may be released a little later")]

mod access;
mod added;
mod assigned;
mod blocks;
mod check;
mod config;
mod demand;
mod drives;
mod frontend;
mod host;
mod isolation;
mod look;
mod missing;
mod namespace;
mod nearest;
mod place;
mod plan;
mod policy_section;
mod prepare;
mod problem;
mod profile;
mod rules;
mod rw;
mod same_drive;
mod section;
mod sections;
mod summary;
mod terms;

pub use access::{Account, ApiSection, DaemonSection, SocketSection};
pub use added::AddedDrives;
pub use assigned::{AssignedDrive, Assignment, Assignments};
pub use blocks::LBA_BYTES;
pub use check::MAX_VIRTQUEUES_BY_PRIORITY;
pub use config::{
    Backend, Config, DEVICE_DIR, Device, DoorbellScan, Doorbells, PollerLayout, Pollers, Tenant, WipeBy, read_opened,
    read_text,
};
pub use demand::{Demand, DemandLoad};
pub use drives::{Drives, Found, HandedOver, Unplaced};
pub use frontend::{Frontend, Mode, Serving, Threads, UblkOptions};
pub use host::{
    AllowedCpus, DeviceLock, HostReport, Identity, MORE_OPEN_FILES, Survey, drive_id, in_use, is_partition,
    layout_of_nvme, mark_image, nvme_character_device,
};
pub use isolation::{Isolation, MemoryLimits};
pub use layout::RANGE_STEP_BYTES;
pub use look::Looked;
pub use missing::{Absent, Missing};
pub use namespace::{Attachment, NSIDS, Namespace};
pub use plan::{Home, Poller, Serves};
pub use prepare::Prepared;
pub use problem::{ConfigErrors, Place, Problem};
pub use profile::{BuiltIn, Figures, Profile};
pub use rw::{BlockSize, Rw};
pub use same_drive::{is_same_drive_as, same_drive};
pub use sections::{
    DiskKind, KeyChange, Sections, detached, disk_changes, disk_keys, disk_meanwhile, is_of_front_end, made_changes,
};
pub use summary::{DeviceSummary, NamespaceSummary, PolicySummary, PollerSummary, Summary, TenantSummary};

/// Typed reading of a file's sections with all problems told at their lines, and the sections that files share.
///
/// What reads a value gives a [`Wrong`](reading::Wrong) where it can't be used; what reads a section notes that in a
/// [`Sink`](reading::Sink) and gives `None`.
pub mod reading {
    pub use crate::check::{name, parse_document};
    pub use crate::config::read_text;
    pub use crate::policy_section::{
        ABSENT, IN_FLIGHT, POLICY_KEYS, forbid_others, read_fair, read_lpns, read_parameters,
    };
    pub use crate::problem::{Sink, Text};
    pub use crate::profile::{beside, profile};
    pub use crate::rw::{DEPTHS, THREADS, arrivals, read_rw};
    pub use crate::section::{
        Items, POLICY, Schema, Section, THE_TOP, Wrong, boolean, choice, count, fraction, integer, kind, list, or,
        seed, size, small_integer, span_in, text,
    };
    pub use crate::terms::{TenantRules, TermsDraft, read_terms};
}

/// Tenants in one file, at most.
pub const TENANTS_MAX: usize = 1024;

/// The longest path of a Unix socket in bytes: `sun_path` less its end mark (unix(7)).
pub const SOCKET_PATH_MAX_BYTES: usize = 107;

/// Pollers that one file may ask for, at most: a thread for each queue of each tenant adds up.
pub const POLLERS_MAX: usize = 1024;
