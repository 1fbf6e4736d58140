//! Who is where on a drive, and the file that remembers it.
//!
//! * [`Layout::plan`] gives every tenant its ranges. A tenant that was placed before keeps them whatever happens to
//!   the rest of the configuration: others would be another tenant's data. It may get more.
//! * [`Layout::release`] takes them away. Nobody gets them before they are wiped.
//! * [`LayoutFile`] keeps that record on disk, replaced whole or not at all.
//!
//! Knows no configuration file: what contradicts the record is told of a tenant by its index ([`About`]), and whoever
//! read the file knows the line.
//!
//! Not implemented: shrinking a tenant's disk, moving it.

#![forbid(unsafe_code)]

mod crash;
mod file;
mod layout;
mod placement;
mod plan;
mod space;

pub use crash::CRASH_POINTS;
pub use file::{LayoutError, LayoutFile, replace_file};
pub use layout::{DeviceIdentity, Layout};
pub use placement::{Placement, WipeMethod, Wiping};
pub use plan::{About, Change, Contradiction, Wanted};
pub use space::Extent;

/// Sizes and places on the drive are multiples of this: the larger of the two LBA sizes.
pub const RANGE_STEP_BYTES: u64 = 4096;
