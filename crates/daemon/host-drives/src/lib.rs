//! The NVMe controllers of a host: lists, gives to user space and back, sets virtual functions.
//!
//! The data comes from sysfs.
//!
//! | module | what |
//! | --- | --- |
//! | `look` | [`Host`]: all controllers, their namespaces, and what uses them |
//! | `bind` | [`Host::claim`] and [`Host::release`] |
//! | `assign` | [`Host::assign`], and [`Host::take_back`] for wiping: whole drives of VMs |
//! | `functions` | [`Host::set_functions`]: creates and removes virtual functions |
//! | `resources` | assigns queues to virtual functions, by Virtualization Management |
//! | `refused` | [`Refused`]: the error, with what to do |
//!
//! Every read shows the state of that moment. Every change is checked afterwards, and undone if it did not work.

#![forbid(unsafe_code)]

mod assign;
mod bind;
mod functions;
mod look;
mod refused;
mod resources;

pub use assign::TakenBack;
pub use bind::{Outcome, Step};
pub use look::{BlockDevice, Function, Functions, Holder, Host, Neighbour, NvmeDevice};
pub use refused::Refused;
