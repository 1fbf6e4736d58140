//! Evenkeel's own policy, which no paper has, beside all others. `policy.toml` has the words of its figures.
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
pub mod fairness;
mod fixed;
pub mod price;
pub mod reaction;
mod standing;
pub mod steadiness;

use ssd_model::Profile;

use crate::runner::Context;

/// Of the runs, in a quick one.
const QUICK_EVERY: usize = 13;

/// One drive of each kind of medium: written in place, behind a buffer, programmed in pages.
fn medium_drives() -> impl Iterator<Item = &'static Profile> {
    Profile::built_in().iter().filter(|profile| ["p5800x", "pm1735", "970pro"].contains(&&*profile.name))
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
