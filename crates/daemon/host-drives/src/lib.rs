//! The NVMe controllers of a host, as the kernel shows them in sysfs, and what can be done with them: given to user
//! space and back, and divided into virtual functions.
//!
//! | module | what |
//! | --- | --- |
//! | `look` | [`Host`]: every controller, its namespaces, and who uses them |
//! | `bind` | [`Host::claim`] and [`Host::release`] |
//! | `assign` | [`Host::assign`], and [`Host::take_back`] for wiping: whole drives of VMs |
//! | `functions` | [`Host::set_functions`]: virtual functions come and go |
//! | `resources` | the queues that virtual functions have, by Virtualization Management |
//! | `refused` | [`Refused`]: what is wrong, and what to do |
//!
//! All that is read is of that moment. What is changed is looked at again afterwards, and taken back where it did not
//! come out as it should.

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
