//! Evenkeel's own policy, which no paper has, beside all others.
//!
//! | module | what |
//! | --- | --- |
//! | `cases` | the promised tenants, their neighbours, and the drive |
//! | `contenders` | the policies, with their settings |
//! | `fixed` | a cap that was chosen by hand |
//! | `price` | promises kept, and what they cost the others beside the best fixed cap |
//! | `standing` | `price` in short: by policy, by drive, by kind of case |
//! | `fairness`, `reaction`, `steadiness` | the rest that is asked of such a policy |

mod cases;
mod contenders;
mod fairness;
mod fixed;
mod price;
mod reaction;
mod standing;
mod steadiness;

use sim::workload::{Fio, Workload};
use ssd_model::Profile;

use crate::paper::Paper;
use crate::runner::{Context, Experiment};

/// Of the runs, in a quick one.
const QUICK_EVERY: usize = 13;

/// What can be run.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment { paper: Paper::Policy, title: "What a promise costs the others", measure: price::measure },
    Experiment { paper: Paper::Policy, title: "Equal tenants beside a promise", measure: fairness::measure },
    Experiment { paper: Paper::Policy, title: "How soon a policy follows", measure: reaction::measure },
    Experiment { paper: Paper::Policy, title: "From one moment to the next", measure: steadiness::measure },
];

/// One drive of each kind of medium: written in place, behind a buffer, programmed in pages.
fn medium_drives() -> impl Iterator<Item = &'static Profile> {
    Profile::built_in().iter().filter(|profile| ["p5800x", "pm1735", "970pro"].contains(&&*profile.name))
}

/// One 4 KiB read after the other.
fn reads() -> Workload {
    Workload::Fio(Fio::random_4k(1, 1, 100))
}

/// All runs, or in a quick one a few.
fn some<T>(context: &Context<'_>, runs: Vec<T>) -> Vec<T> {
    let every = if context.is_quick() { QUICK_EVERY } else { 1 };
    runs.into_iter().step_by(every).collect()
}

/// The upper of two medians; not a number where there is none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Not a number where there is none.
fn worst(values: &[f64]) -> f64 {
    values.iter().copied().reduce(f64::max).unwrap_or(f64::NAN)
}
