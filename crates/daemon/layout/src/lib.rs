//! The layout of a drive: the ranges of each tenant's disk, and the file that records them.
//!
//! * [`Layout::plan`] gives every tenant its ranges. A tenant keeps its ranges whatever happens to the rest of the
//!   configuration: other ranges hold other tenants' data. It may get more.
//! * [`Layout::release`] takes them away. They are given to no other tenant before they are wiped.
//! * [`LayoutFile`] keeps the record on disk, and replaces it atomically.
//!
//! This crate knows no configuration file: an error names a tenant by its index ([`About`]), and the reader of the file
//! knows the line.
//!
//! Not implemented: shrinking a tenant's disk, moving it.

#![forbid(unsafe_code)]

mod crash;
mod file;
mod layout;
mod placement;
mod plan;
mod pool;
mod settings;
mod space;

pub use crash::CRASH_POINTS;
pub use file::{LayoutError, LayoutFile, is_full, replace_file};
pub use layout::{DeviceIdentity, Layout, is_mark};
pub use placement::{Placement, Sanitize, SanitizeState, Snapshot, Thin, WipeMethod, Wiping, serial_of};
pub use plan::{About, Change, Contradiction, Wanted, WantedPool};
pub use pool::Pool;
pub use space::Extent;

/// Sizes and places on the drive are multiples of this: the larger of the two LBA sizes.
pub const RANGE_STEP_BYTES: u64 = 4096;
