//! Thin disks beside thick ones, clones, and disks from images.

pub mod clones;
pub mod import;
pub mod qcow2;
mod strides;
pub mod thin;
