//! The configuration file: what an operator wrote, checked; and the layout file, which keeps each
//! tenant's place on the drive.
//!
//! * [`Config::load`] reads the TOML file and reports *every* problem in it, each with its line and its
//!   remedy. It looks at nothing else, so it can be tested without a host.
//! * [`Config::check_host`] looks at the machine without changing it: the drive, the directories, the CPUs.
//! * [`Layout::plan`] gives every tenant its range on the drive. A tenant that was placed before keeps its
//!   range whatever happens to the rest of the file: another range would be another tenant's data.
//!   [`LayoutFile`] keeps that record on disk.
//! * [`Prepared`] does these in order; [`Prepared::commit`] is the first step that writes anything.
//! * [`Summary`] is what `evenkeel check` prints.
//!
//! | module | |
//! | --- | --- |
//! | `units` | sizes, times and rates with their units |
//! | `section`, `nearest` | typed reading of one TOML table; "did you mean" |
//! | `problem` | what is wrong, where, and what to do |
//! | `config`, `check`, `rules` | the checked values; reading them; rules across sections |
//! | `host`, `sockets` | checks that look at the machine |
//! | `layout`, `layout_file` | who is where on the drive; its file |
//! | `prepare`, `summary` | all steps in order; what was decided, for people and JSON |
//!
//! Values here are plain: the binary turns them into the types of other rooms.
//!
//! Not implemented: changing a tenant's size, moving it, several drives in one file, reloading while
//! running.

#![forbid(unsafe_code)]

mod check;
mod config;
mod host;
mod layout;
mod layout_file;
mod nearest;
mod prepare;
mod problem;
mod rules;
mod section;
mod sockets;
mod summary;
mod units;

pub use config::{
    Backend, Class, Config, Device, Doorbells, Frontend, Lpns, LpnsVariant, Policy, Poller, PollerLayout, Pollers,
    Profile, Tenant,
};
pub use host::{DeviceLock, HostReport};
pub use layout::{Change, DeviceIdentity, Layout, Placement};
pub use layout_file::{LayoutError, LayoutFile};
pub use prepare::Prepared;
pub use problem::{ConfigErrors, Place, Problem};
pub use summary::{DeviceSummary, PolicySummary, PollerSummary, Summary, TenantSummary};
pub use units::{Rate, Size, TimeSpan, UnitError};

/// Tenants in one file, at most.
pub const TENANTS_MAX: usize = 1024;

/// The longest path of a Unix socket in bytes: `sun_path` less its end mark (unix(7)).
pub const SOCKET_PATH_MAX_BYTES: usize = 107;

/// Sizes and places on the drive are multiples of this: the larger of the two LBA sizes.
pub const RANGE_STEP_BYTES: u64 = 4096;
