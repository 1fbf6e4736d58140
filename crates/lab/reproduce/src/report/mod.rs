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
pub use figure::{Criterion, Figure, Table, Uncovered};
pub use html::{escape, page};
pub(crate) use number::percent;
pub use number::short as short_number;
pub use plot::{Axis, BOX_PARTS, Drawing, Kind, Plot};
pub use row::{Row, Verdict, X};
pub use write::{Output, OutputError};

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
