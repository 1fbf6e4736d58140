//! Thin disks beside thick ones, clones, and disks from images.

pub mod clones;
pub mod import;
mod strides;
pub mod thin;
