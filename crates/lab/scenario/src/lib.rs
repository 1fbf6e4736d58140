//! The scenario file of a simulation: drive, host, policies, tenants with workloads, faults.
//!
//! [`Scenario::load`] reports every problem with its line and its remedy, like the daemon's file, with which it shares
//! sections ([`config::reading`]). It reads no other file: traces and drive profiles are only paths here. Tenants,
//! workloads, faults, layouts and costs are the simulator's own types.
//!
//! | module | |
//! | --- | --- |
//! | `scenario`, `host`, `fault`, `workload` | the checked values; the last three with how they are read |
//! | `policies` | the policies, of which the simulator has more than the daemon |
//! | `read`, `rules` | reading all sections; rules across them |

#![forbid(unsafe_code)]

mod fault;
mod host;
mod policies;
mod read;
mod rules;
mod scenario;
mod workload;

pub use host::Host;
pub use scenario::{Drive, Run, Scenario, ScenarioTenant};
pub use workload::TraceReplay;
