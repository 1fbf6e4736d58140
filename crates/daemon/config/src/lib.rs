//! The configuration file: reads, checks and reports on it.
//!
//! * [`Drives::load`] reads the TOML file and reports *every* problem in it, each with its line and its remedy. It
//!   needs no host, so tests need none. A [`Config`] is the part of the file for one drive; [`Config::parse`] takes the
//!   text of a file with one drive.
//! * [`Config::check_host`] looks at the machine without changing it: the drive, the directories, the CPUs.
//! * [`Config::plan_layout`] gives every tenant its range on the drive.
//! * [`Prepared`] does these in order; [`Prepared::commit`] is the first step that writes anything.
//! * [`Summary`] is what `evenkeel check` prints.
//! * [`reading`] is for other files that share some sections, such as a simulator's scenario.
//!
//! | module | |
//! | --- | --- |
//! | `section`, `nearest` | typed reading of one TOML table; "did you mean" |
//! | `keys`, `values` | every key: its values, default and when a change counts; how single values are read |
//! | `problem`, `text_file` | what is wrong, where, and what to do; files that people write |
//! | `config`, `draft` | the checked values; the values as far as they could be read |
//! | `check`, `rules`, `namespace_rules` | reading them; rules across sections |
//! | `view`, `drives` | the part of each drive; a file of several drives, and tenants that are yet to be placed |
//! | `found` | a drive that was looked at |
//! | `memory` | the memory that a tenant's client may map |
//! | `look`, `missing` | which drives exist; drives that are missing and may be |
//! | `added` | drives that were added while a daemon ran |
//! | `assigned` | whole drives that are assigned to a VM |
//! | `access` | users and groups: the daemon's own, and those that sockets belong to |
//! | `frontend`, `plan` | what a guest sees, the threads that serve it, and the pollers that follow |
//! | `policy_section`, `terms`, `profile`, `rw` | sections that this file and a scenario share |
//! | `namespace` | disks that are namespaces of tenants' controllers |
//! | `blocks` | disks' block sizes beside their drive's |
//! | `changed` | a configuration with some disks changed |
//! | `demand`, `first_writes` | a tenant's expected load, to check promises beforehand |
//! | `host`, [`in_use`] | checks of the host; what else uses a drive |
//! | `same_drive` | one drive that is found twice |
//! | `place` | each tenant's range on the drive, by the crate `layout` |
//! | `sections` | splits a file into sections and joins them again; compares two files |
//! | `prepare`, `summary` | all steps in order; the decisions, for people and as JSON |
//!
//! Values here are plain: the daemon converts them to the types of other crates.
//!
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a drive that a killed daemon had may be released a little later")]

mod access;
mod added;
mod assigned;
mod blocks;
mod changed;
mod check;
mod config;
mod demand;
mod draft;
mod drives;
mod first_writes;
mod found;
mod frontend;
mod groups;
mod host;
mod images;
mod keys;
mod look;
mod memory;
mod missing;
mod namespace;
mod namespace_rules;
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
mod text_file;
mod values;
mod view;

pub use access::{ApiSection, DaemonSection, KeySource, KeysSection, SocketSection};
pub use added::AddedDrives;
pub use assigned::{Assignment, Assignments};
pub use config::{Backend, Config, DEVICE_DIR, Device, HWQ_DEPTH, Image, Pollers, Tenant};
pub use demand::{Demand, DemandLoad};
pub use drives::{Drives, Unplaced};
pub use first_writes::FirstWrites;
pub use found::{Found, HandedOver};
pub use frontend::{Frontend, Serving};
pub use groups::{Group, MOST_GROUPS};
pub use host::{
    AllowedCpus, Content, DeviceLock, HostReport, Identity, MORE_OPEN_FILES, Node, Survey, content_of, drive_id,
    in_use, layout_of_nvme, mark_image, nvme_character_device,
};
pub use images::{base_bytes as image_base_bytes, wrong_image_size};
pub use keys::{MAX_VIRTQUEUES_BY_PRIORITY, STATE_DIR, SettingLine, sections as settings_sections};
pub use layout::RANGE_STEP_BYTES;
pub use look::Looked;
pub use memory::MemoryLimits;
pub use missing::{Absent, Missing};
pub use namespace::{Attachment, NSIDS, Namespace};
pub use plan::{Home, Poller, Serves};
pub use prepare::{NewFiles, Prepared};
pub use problem::{ConfigErrors, Place, Problem};
pub use profile::{BuiltIn, Figures, Profile};
pub use rw::{BlockSize, Rw};
pub use same_drive::{is_same_drive_as, same_drive};
pub use sections::{
    DiskKind, KeyChange, Sections, detached, disk_changes, disk_keys, disk_meanwhile, is_of_front_end, made_changes,
};
pub use summary::{DeviceSummary, NamespaceSummary, PolicySummary, PollerSummary, Summary, TenantSummary};
pub use text_file::{read_opened, read_text};
pub use values::{Account, Doorbells, Encryption, LBA_BYTES, Mode, Threads, WipeBy, is_name};

/// Typed reading of a file's sections with all problems told at their lines, and the sections that files share.
///
/// What reads a value gives a [`Wrong`](reading::Wrong) where it can't be used; what reads a section notes that in a
/// [`Sink`](reading::Sink) and gives `None`.
pub mod reading {
    pub use crate::check::parse_document;
    pub use crate::keys::POLICY_KEYS;
    pub use crate::policy_section::{ABSENT, IN_FLIGHT, forbid_others, read_fair, read_lpns, read_parameters};
    pub use crate::problem::{Sink, Text};
    pub use crate::profile::{beside, profile};
    pub use crate::rw::{DEPTHS, THREADS, arrivals, first_writes, read_rw};
    pub use crate::section::{
        Items, Schema, Section, THE_TOP, Wrong, boolean, choice, count, fraction, integer, kind, list, or, seed, size,
        small_integer, span_in, text,
    };
    pub use crate::terms::{TenantRules, TermsDraft, read_terms};
    pub use crate::text_file::read_text;
    pub use crate::values::name;
}

/// Tenants in one file, at most.
pub const TENANTS_MAX: usize = 1024;

/// The longest path of a Unix socket in bytes: `sun_path` less its end mark (unix(7)).
pub const SOCKET_PATH_MAX_BYTES: usize = 107;

/// Pollers that one file may ask for, at most: a thread for each queue of each tenant adds up.
pub const POLLERS_MAX: usize = 1024;
