//! The laboratory's side of the [`engine`]: rival policies, traces, disks that move, whole scenarios from seeds.
//!
//! | module | what |
//! | --- | --- |
//! | here | the engine's interface, with the laboratory's policies |
//! | `space` | the daemon's layout, for disks that come, grow and go |
//! | `sweep` | whole scenarios from seeds; broken policies and parts that the checks must catch |

#![forbid(unsafe_code)]

mod space;
pub mod sweep;

pub use engine::*;

use engine::workload::{Replay, Request};
use policy::{Policy, PollerShape};
use rivals::LabConfig;
use trace::Trace;

/// A scenario under any policy of the laboratory.
pub type Scenario = engine::Scenario<LabConfig>;

/// Plays a scenario under its policy.
///
/// # Errors
/// A scenario that can't be played; nothing was.
pub fn run(scenario: &Scenario) -> Result<Report, ScenarioError> {
    let mut build = |shape: &PollerShape| Ok(scenario.policy.build(shape)?);
    run_with(scenario, &mut build)
}

/// Plays a scenario under a policy of the caller's, one value for each poller.
///
/// # Errors
/// As [`run`].
pub fn run_with<P: Policy>(
    scenario: &Scenario,
    build: &mut dyn FnMut(&PollerShape) -> Result<P, ScenarioError>,
) -> Result<Report, ScenarioError> {
    play_with(scenario, build, Sabotage::None)
}

fn play_with<P: Policy>(
    scenario: &Scenario,
    build: &mut dyn FnMut(&PollerShape) -> Result<P, ScenarioError>,
    sabotage: Sabotage,
) -> Result<Report, ScenarioError> {
    engine::play(scenario, build, Laboratory { sabotage, new_space: Some(space::new) })
}

/// A trace once, as it was recorded, by one job with up to 4096 outstanding. It must fit on the disk: [`Trace::fit`]
/// sees to that.
pub fn replay(trace: &Trace) -> Replay {
    let request = |entry: &trace::Entry| {
        let shape = Shape { op: entry.op, offset_bytes: entry.offset_bytes, len_bytes: entry.len_bytes };
        Request { time_ns: entry.time_ns, shape }
    };
    Replay::new(trace.entries().iter().map(request).collect())
}
