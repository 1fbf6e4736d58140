//! End to end: the `evenkeel` binary, its sockets, and clients of every manner.
//!
//! Each test has a directory of its own ([`harness::Home`]) and starts what it needs. Nothing depends on how
//! long something takes, except that [`harness::HANG`] is taken for a hang.

#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::disallowed_methods, reason = "the daemon under test is another process")]

mod access;
mod apply;
mod arbitration;
mod bad_changes;
mod bad_config;
mod bad_range;
mod blkio;
mod calibrate;
mod cloud_hypervisor;
mod command_line;
mod confined;
mod crashes;
mod demo;
mod disks;
mod doorbells;
mod drive_errors;
mod drives;
mod encryption;
mod events;
mod format;
mod groups;
mod growing;
mod guest;
mod handed_over;
mod harness;
mod hostile;
mod image_disks;
mod images;
mod json;
mod keeper;
mod keeper_virtio;
mod logs;
mod manager;
mod metrics;
mod missing_drives;
mod namespace_crashes;
mod namespaces;
mod nvme_pollers;
mod options;
mod own_promise;
mod page;
mod panics;
mod plan;
mod policies;
mod privileges;
mod prometheus;
mod promises;
mod raw;
mod reencryption;
mod resources;
mod sanitize;
mod several_drives;
mod shutdown;
mod sim;
mod stats;
mod storage_provider;
mod thin;
mod top;
mod traces;
mod unread;
mod why;
mod zeroing;
