//! Files and block devices as drives.

mod files;
mod suite;
