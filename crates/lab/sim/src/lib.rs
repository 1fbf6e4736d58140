//! Runs the daemon's pollers and policies in virtual time: try a promise before making it.
//!
//! [`run`] runs a [`Scenario`] and returns a [`Report`]. The same scenario and seed give the same report, to the last
//! bit. The pollers ([`poller::Poller::step`]) and the policies are the daemon's own. The drive is `ssd-model`, as
//! behind the daemon's `model` back end. The simulator adds the rest of the host: guests with vCPUs that do one thing
//! at a time, the time that a poller spends per command, and event loops that sleep.
//!
//! | module | what |
//! | --- | --- |
//! | `scenario` | the input |
//! | `workload`, `job` | the applications' loads |
//! | `host` | costs per command; which tenants share a poller |
//! | `lock` | locks that CPUs wait for |
//! | `guest` | vCPUs: submissions, interrupts, completions |
//! | `port` | the queues between a guest and its poller: an `io_model::Source` |
//! | `observed` | the port's source placed on the drive, observed by the ledger |
//! | `disks` | the daemon's layout, and the wiper's work |
//! | `device` | the drive and its faults: an `io_model::Backend` |
//! | `engine` | the event loop |
//! | `measure`, `report` | measurements and the output |
//! | `check` | invariants of every run |
//! | `sweep` | whole scenarios from seeds; broken policies and parts (`sabotage`) that the checks must catch |
//!
//! A poll iteration that finds nothing is not simulated: a poller steps when something happened that it would see.
//! Within a step, operations take their time one after another. Submissions reach the drive, and notifications reach
//! the guest, at the time at which they would have.
//!
//! Not simulated: guest memory and PRPs, admin commands, vCPUs that share host CPUs with anything but a thread of their
//! own queue.

#![forbid(unsafe_code)]

mod check;
mod device;
mod disks;
mod engine;
mod guest;
mod host;
mod job;
mod lock;
mod measure;
mod observed;
mod port;
mod report;
mod sabotage;
mod scenario;
pub mod sweep;
pub mod workload;

pub use check::{BoundCounts, Rule, Violation};
pub use disks::DiskCounts;
pub use host::{Contention, FREE, GuestCosts, HostCosts, Kick, Layout, PathCosts};
pub use job::{Action, Job, Operation, Shape};
pub use measure::{Latencies, Moments, Window, fairness_index};
pub use report::{BoundReport, Report, TenantReport};
pub use scenario::{Change, ChangeKind, Fault, FaultKind, Scenario, ScenarioError, Tenant};

use policy::{Policy, PollerShape};
use sabotage::Sabotage;

/// Plays a scenario under its policy.
///
/// # Errors
/// A scenario that can't be played; nothing was.
pub fn run(scenario: &Scenario) -> Result<Report, ScenarioError> {
    let mut build = |shape: &PollerShape| Ok(scenario.policy.build(shape)?);
    play(scenario, &mut build, Sabotage::None)
}

/// Plays a scenario under a policy of the caller's, one value for each poller.
///
/// # Errors
/// As [`run`].
pub fn run_with<P: Policy>(
    scenario: &Scenario,
    build: &mut dyn FnMut(&PollerShape) -> Result<P, ScenarioError>,
) -> Result<Report, ScenarioError> {
    play(scenario, build, Sabotage::None)
}

fn play<P: Policy>(
    scenario: &Scenario,
    build: &mut dyn FnMut(&PollerShape) -> Result<P, ScenarioError>,
    sabotage: Sabotage,
) -> Result<Report, ScenarioError> {
    Ok(engine::Engine::new(scenario, build, sabotage)?.run())
}
