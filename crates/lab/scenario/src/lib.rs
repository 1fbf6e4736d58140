//! The file of a simulation: drive, host, policies, tenants with workloads, faults.
//!
//! [`Scenario::load`] reports every problem with its line and its remedy, as for the daemon's file, with which it
//! shares sections ([`config::reading`]). It looks at nothing else: traces and drive profiles are paths here.
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

pub use fault::{Fault, FaultKind};
pub use host::{HostCosts, HostLayout};
pub use scenario::{Drive, Host, Run, Scenario, ScenarioTenant};
pub use workload::{Arrival, Fio, Open, Personality, TraceFormat, TraceReplay, Workload, Ycsb, YcsbMix};
