//! The disks of one drive as plain values.
//!
//! [`DriveState::apply`] takes a [`Command`], changes the values and returns [`Effects`]: what the daemon must do, in
//! this order. First it records the new layout durably. If that fails, the daemon takes the state of before. Then come
//! the [`Effect`]s: pollers, sockets, zeroing, wiping. Their results come back as commands.
//!
//! A crash between two effects loses nothing: the next daemon makes the same state from the file and the layout.
//!
//! | module | content |
//! | --- | --- |
//! | `command` | [`Command`], [`Effects`], [`Effect`] |
//! | `drive_state` | [`DriveState`]: queries and `apply` |
//! | `disks` | the disks and their phases |
//! | `attachments` | which controllers have which namespaces |
//! | `jobs` | ranges to zero and to wipe |
//! | `proposal` | a new configuration, checked but not applied |
//! | `namespace_proposal` | the same for namespaces |
//! | [`errors`] | errors, with what to do about them |
//!
//! This crate starts no thread, opens no file and knows no HTTP.

#![forbid(unsafe_code)]

mod attachments;
mod command;
mod disks;
mod drive_state;
pub mod errors;
mod jobs;
mod namespace_proposal;
mod proposal;

pub use attachments::{At, Attachments, NamespaceOrder};
pub use command::{Command, Effect, Effects, NewDisk, Record};
pub use disks::{Disk, Disks, Kind, Phase};
pub use drive_state::{DriveState, Facts};
pub use jobs::Jobs;
pub use namespace_proposal::NamespaceChange;
pub use proposal::Proposal;
