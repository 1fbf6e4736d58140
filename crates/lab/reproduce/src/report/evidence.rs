//! What an agreement is worth: numbers nobody fitted to come first, and nothing is counted twice.

use serde::{Deserialize, Serialize};

use super::Report;
use super::figure::Figure;
use super::row::Row;
use crate::paper::Paper;

/// What a number or a demand is worth as evidence. The papers' files of words say which is which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// A printed number, or what follows from printed ones, that nothing was fitted to.
    Unseen,
    /// What a profile or a table of costs was fitted to.
    Fitted,
    /// Arithmetic and definitions, which hold whatever the model does.
    Identity,
    /// A paper's own claim: an order, a bound, a shape.
    Claim,
    /// Not judged: doubtful numbers, series of ours beside print, claims that hold without a policy. Rows without
    /// print are not counted.
    Shown,
    /// A demand of ours, which no paper makes.
    Own,
}

impl Evidence {
    /// All kinds in a summary's order.
    pub const ALL: [Self; 6] = [Self::Unseen, Self::Fitted, Self::Identity, Self::Claim, Self::Own, Self::Shown];

    /// In a summary.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unseen => "unseen printed numbers",
            Self::Fitted => "fitted",
            Self::Identity => "identities and arithmetic",
            Self::Claim => "the paper's claims",
            Self::Own => "our own demands",
            Self::Shown => "shown, not judged",
        }
    }

    /// How many hold of how many; of what is not judged only how many.
    pub fn count(self, (good, all): (usize, usize)) -> String {
        match (self, all) {
            (_, 0) => "–".to_owned(),
            (Self::Shown, _) => all.to_string(),
            (..) => format!("{good} of {all}"),
        }
    }
}

impl Figure {
    /// Of one kind, what holds and what there is.
    pub fn count(&self, evidence: Evidence) -> (usize, usize) {
        // Most rows have nothing in print beside them.
        let compared = |row: &&Row| row.evidence == evidence && (row.printed.is_some() || evidence != Evidence::Shown);
        let rows = self.rows.iter().filter(compared).map(|row| row.verdict.is_good() == Some(true));
        let criteria = self.criteria.iter().filter(|it| it.evidence == evidence).map(|criterion| criterion.met);
        rows.chain(criteria).fold((0, 0), |(good, all), holds| (good + usize::from(holds), all + 1))
    }

    /// Whether nothing that is judged is missed.
    pub fn is_good(&self) -> bool {
        let judged = Evidence::ALL.into_iter().filter(|evidence| *evidence != Evidence::Shown);
        judged.map(|evidence| self.count(evidence)).all(|(good, all)| good == all)
    }
}

impl Report {
    /// Each paper that was measured, with its count of each kind in the order of [`Evidence::ALL`].
    pub fn counts(&self) -> Vec<(Paper, [(usize, usize); Evidence::ALL.len()])> {
        let of = |paper: Paper| {
            let figures = self.figures.iter().filter(move |figure| figure.paper == paper);
            let sum = |evidence| {
                let counts = figures.clone().map(|figure| figure.count(evidence));
                counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
            };
            (paper, Evidence::ALL.map(sum))
        };
        let is_there = |paper: &Paper| self.figures.iter().any(|figure| figure.paper == *paper);
        Paper::ALL.into_iter().filter(is_there).map(of).collect()
    }
}
