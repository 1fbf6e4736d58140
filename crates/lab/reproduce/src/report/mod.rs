//! The report: what was asked of each figure, what came out, and how they compare.
//!
//! A [`Report`] is data. Its forms ([`Report::html`], [`Report::markdown`], [`Report::json`], [`Report::csv`]) hold no
//! time stamps, durations or host names: one seed, one content. `write` puts them into a directory.

mod csv;
mod evidence;
mod figure;
mod html;
mod json;
mod markdown;
mod number;
mod plot;
mod row;
#[cfg(test)]
mod tests;
mod write;

pub use evidence::Evidence;
pub use figure::{Beside, Criterion, EVENKEEL, Figure, Table, Uncovered};
pub use html::{escape, page};
pub(crate) use number::percent;
pub use number::short as short_number;
pub use plot::{Axis, BOX_PARTS, Drawing, Kind, Plot};
pub use row::{Row, Verdict, X};
pub use write::{Output, OutputError};

use crate::paper::Paper;

/// Everything that one run of the experiments found.
#[derive(Debug, Clone)]
pub struct Report {
    /// What every random choice came from.
    pub seed: u64,
    /// Whether the runs were shortened, so that the numbers are rough.
    pub quick: bool,
    /// What was measured, in the papers' order.
    pub figures: Vec<Figure>,
    /// What the present code can't measure.
    pub uncovered: Vec<Uncovered>,
}

/// For each of [`Evidence::ALL`], how many hold and how many there are.
pub type Counts = [(usize, usize); Evidence::ALL.len()];

/// The counts of each paper that was measured, and below several papers those of all.
pub fn counts(figures: &[Figure]) -> Vec<(&'static str, Counts)> {
    let of = |is_its: &dyn Fn(Paper) -> bool| {
        Evidence::ALL.map(|evidence| {
            let counts = figures.iter().filter(|figure| is_its(figure.paper)).map(|figure| figure.count(evidence));
            counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
        })
    };
    let is_there = |paper: &Paper| figures.iter().any(|figure| figure.paper == *paper);
    let papers = Paper::ALL.into_iter().filter(is_there);
    let mut all: Vec<_> = papers.map(|paper| (paper.name(), of(&|other| other == paper))).collect();
    if all.len() > 1 {
        all.push(("All of them", of(&|_| true)));
    }
    all
}
