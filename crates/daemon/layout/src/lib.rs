//! Who is where on a drive, and the file that remembers it.
//!
//! * [`Layout::plan`] gives every tenant its range. A tenant that was placed before keeps its range whatever happens to
//!   the rest of the configuration: another range would be another tenant's data.
//! * [`LayoutFile`] keeps that record on disk, replaced whole or not at all.
//!
//! Knows no configuration file: what contradicts the record is told of a tenant by its index ([`About`]), and whoever
//! read the file knows the line.
//!
//! Not implemented: changing a tenant's size, moving it.

#![forbid(unsafe_code)]

mod file;
mod plan;

pub use file::{LayoutError, LayoutFile};
pub use plan::{About, Change, Contradiction, DeviceIdentity, Layout, Placement, Wanted};

/// Sizes and places on the drive are multiples of this: the larger of the two LBA sizes.
pub const RANGE_STEP_BYTES: u64 = 4096;
