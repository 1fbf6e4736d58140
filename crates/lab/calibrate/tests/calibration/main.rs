//! Calibrations of drives, in virtual time.

mod common;
mod odd_drives;
mod plan;
mod recovery;
