//! What an agreement is worth: numbers nobody fitted to come first, and nothing is counted twice.

use serde::{Deserialize, Serialize};

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
