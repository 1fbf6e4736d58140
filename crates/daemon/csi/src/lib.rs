//! Evenkeel's disks as volumes of Kubernetes: the Container Storage Interface of one node.
//!
//! The plugin is a client of the daemon's API and keeps nothing of its own: what it made, it finds by the disks' labels
//! and by the kernel's list of mounts. It may be killed at any time and asked anything twice.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it waits for the daemon and for programs of the host")]

mod busy;
mod capabilities;
mod controller;
mod host;
mod linux;
mod names;
mod node;
mod parameters;
mod parts;
mod plugin;
mod refusal;
mod server;
pub mod spec;

pub use host::{Content, FileSystem, Host, Mount, Usage};
pub use linux::Linux;
pub use names::{DRIVER, TOPOLOGY};
pub use parts::Settings;
pub use plugin::Plugin;
pub use server::serve;
