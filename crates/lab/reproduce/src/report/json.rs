//! The report for programs.

use serde::Serialize;

use super::Report;
use super::figure::{Criterion, Figure, Table, Uncovered};
use super::row::Row;
use crate::paper::Paper;

/// It rises when a field is removed, renamed or changes its meaning.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    seed: u64,
    quick: bool,
    figures: Vec<Summary<'a>>,
    uncovered: &'a [Uncovered],
    rows: Vec<&'a Row>,
}

#[derive(Serialize)]
struct Summary<'a> {
    paper: Paper,
    figure: &'a str,
    title: &'a str,
    goal: &'a str,
    criteria: &'a [Criterion],
    assumptions: &'a [String],
    #[serde(skip_serializing_if = "<[Table]>::is_empty")]
    tables: &'a [Table],
    deviation: Option<String>,
}

impl<'a> From<&'a Figure> for Summary<'a> {
    fn from(figure: &'a Figure) -> Self {
        Self {
            paper: figure.paper,
            figure: figure.id,
            title: figure.title,
            goal: &figure.goal,
            criteria: &figure.criteria,
            assumptions: &figure.assumptions,
            tables: &figure.tables,
            deviation: (!figure.reasons.is_empty()).then(|| figure.reasons.join(" ")),
        }
    }
}

impl Report {
    /// One object: the seed, the figures with their criteria and assumptions, and all rows. What is not a
    /// number is `null`.
    pub fn json(&self) -> String {
        let document = Document {
            schema_version: SCHEMA_VERSION,
            seed: self.seed,
            quick: self.quick,
            figures: self.figures.iter().map(Summary::from).collect(),
            uncovered: &self.uncovered,
            rows: self.figures.iter().flat_map(|figure| &figure.rows).collect(),
        };
        // Plain structs with text keys: there is nothing in them that JSON can't hold.
        serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
    }
}
