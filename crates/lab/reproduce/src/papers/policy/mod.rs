//! Evenkeel's own policy, which no paper has.

mod price;

use crate::paper::Paper;
use crate::runner::Experiment;

/// What can be run.
pub const EXPERIMENTS: &[Experiment] =
    &[Experiment { paper: Paper::Policy, title: "What a promise costs the others", measure: price::measure }];
