//! The daemon: pollers on drives, and for each tenant a controller or disk behind a socket.
//!
//! | room | modules |
//! | --- | --- |
//! | the owner | `owner`: all drives and tenants, on one thread |
//! | one drive | `served_drive`, with `namespaces`, `wipe_state`, `reencryption_state` and `disk_keys` |
//! | what changes disks | `disk_commands`, `namespace_changes`, `disk_zeroing`, `disk_wiping`, `disk_reencryption`, `guest_erasures`, `tenant_removal` |
//! | what changes the rest | `drive_hotplug`, `file_apply`, `adoption`, `next_start`, `config_file`, `trace_recording` |
//! | its start and end | `startup`, `key_command`: what needs root; `daemon`, `serve`; `service_manager`, `status` |
//! | what it says | `log`, `error_texts` |
//!
//! Pollers and clients' threads are in the crate `runtime`, HTTP in `api-server`, disks as plain values in `state`.
//!
//! What tenants get is read by the crate `observe`.
//!
//! Not here: the command line (`evenkeel`) and the laboratory.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the daemon has a clock and threads")]

mod adoption;
mod config_file;
pub mod daemon;
mod disk_commands;
mod disk_keys;
mod disk_reencryption;
mod disk_wiping;
mod disk_zeroing;
mod drive_hotplug;
mod error_texts;
mod file_apply;
mod guest_erasures;
mod image_disks;
mod key_command;
mod log;
mod namespace_changes;
mod namespaces;
mod next_start;
mod owner;
mod reencryption_state;
pub mod serve;
mod served_drive;
mod service_manager;
pub mod snapshots;
mod startup;
mod status;
mod tenant_removal;
mod thin_disks;
mod trace_recording;
mod wipe_state;
