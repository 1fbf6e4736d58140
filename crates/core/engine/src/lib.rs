//! Runs the daemon's pollers and policies in virtual time: the engine of the simulator.
//!
//! [`play`] plays a [`Scenario`] and returns a [`Report`]. The same scenario and seed give the same report, to the last
//! bit. The pollers ([`poller::Poller::step`]) and the policies are the daemon's own. The drive is `ssd-model`, as
//! behind the daemon's `model` back end. The engine adds the rest of the host: guests with vCPUs that do one thing at a
//! time, the time that a poller spends per command, and event loops that sleep.
//!
//! | module | what |
//! | --- | --- |
//! | `scenario` | the input |
//! | `contestant` | a policy's settings, as the engine needs them |
//! | `workload`, `job` | the applications' loads |
//! | `host` | costs per command; which tenants share a poller |
//! | `lock` | locks that CPUs wait for |
//! | `guest` | vCPUs: submissions, interrupts, completions |
//! | `port` | the queues between a guest and its poller: an `io_model::Source` |
//! | `observed` | the port's source placed on the drive, observed by the ledger |
//! | `disks` | disks that come, grow and go, and the wiper's work |
//! | `thin` | first writes of thin disks, and copies |
//! | `device` | the drive and its faults: an `io_model::Backend` |
//! | `event_loop` | events in the order of their time |
//! | `measure`, `report` | measurements and the output |
//! | `check` | invariants of every run |
//! | `sabotage` | parts broken on purpose, which the checks must catch |
//!
//! A poll iteration that finds nothing is not simulated: a poller steps when something happened that it would see.
//! Within a step, operations take their time one after another. Submissions reach the drive, and notifications reach
//! the guest, at the time at which they would have.
//!
//! Not simulated: guest memory and PRPs, admin commands, vCPUs that share host CPUs with anything but a thread of their
//! own queue.

#![forbid(unsafe_code)]

mod check;
mod contestant;
mod device;
mod disks;
mod event_loop;
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
mod thin;
pub mod workload;

pub use check::{BoundCounts, Rule, Violation};
pub use contestant::{Contestant, FairQueueing};
pub use disks::{DISK_STEP_BYTES, DiskCounts, DiskSpace, NewSpace, Ranges};
pub use event_loop::Effort;
pub use host::{Contention, FREE, GuestCosts, HostCosts, Kick, Layout, PathCosts};
pub use job::{Action, Job, Operation, Shape};
pub use measure::{Latencies, Moments, Window, fairness_index};
pub use report::{BoundReport, Report, TenantReport};
pub use sabotage::{Laboratory, Sabotage};
pub use scenario::{Change, ChangeKind, Fault, FaultKind, Scenario, ScenarioError, Tenant, grown_fio};
pub use thin::{Copies, FirstWrites};

use policy::{Policy, PollerShape};

/// Plays a scenario under a policy of the caller's, one value for each poller, with what only the laboratory has.
///
/// # Errors
/// A scenario that can't be played; nothing was.
pub fn play<C: Contestant, P: Policy>(
    scenario: &Scenario<C>,
    build: &mut dyn FnMut(&PollerShape) -> Result<P, ScenarioError>,
    laboratory: Laboratory,
) -> Result<Report, ScenarioError> {
    Ok(event_loop::Engine::new(scenario, build, laboratory)?.run())
}

/// Plays a scenario under its own policy until enough is known: `None` if `is_over` said so before.
///
/// # Errors
/// As [`play`].
pub fn play_within<C: Contestant>(
    scenario: &Scenario<C>,
    effort: Effort,
    is_over: &dyn Fn() -> bool,
) -> Result<Option<Report>, ScenarioError> {
    let mut build = |shape: &PollerShape| Ok(scenario.policy.build(shape)?);
    let engine = event_loop::Engine::new(scenario, &mut build, Laboratory::default())?;
    Ok(engine.run_within(effort, is_over))
}
