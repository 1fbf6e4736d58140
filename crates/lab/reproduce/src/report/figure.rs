//! A figure of a paper, repeated.

use serde::Serialize;

use super::beside::Beside;
use super::evidence::Evidence;
use super::plot::Plot;
use super::row::{Row, X};
use crate::paper::Paper;

/// Something that the figure must show, and whether it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Criterion {
    /// The demand in words: `LPNS ≤ 50 µs beside 1 to 6 noisy VMs`.
    pub text: String,
    /// Whether it is met.
    pub met: bool,
    /// What was seen: `31.2 to 44.0 µs`.
    pub saw: String,
    /// What that is worth.
    pub evidence: Evidence,
}

impl Criterion {
    /// What to think of it.
    pub fn verdict(&self) -> &'static str {
        match (self.evidence, self.met) {
            (Evidence::Shown, _) => "no claim",
            (Evidence::Claim, true) => "kept",
            (Evidence::Claim, false) => "broken",
            (_, true) => "met",
            (_, false) => "missed",
        }
    }
}

/// Numbers side by side, for people: what a row of the figure can't show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// The columns' names.
    pub head: Vec<String>,
    /// As many cells in each.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// One without rows.
    pub fn new(title: &str, head: &[&str]) -> Self {
        Self { title: title.to_owned(), head: head.iter().map(|cell| (*cell).to_owned()).collect(), rows: Vec::new() }
    }
}

/// A figure or a table of a paper, with our numbers.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The paper.
    pub paper: Paper,
    /// Which: `fig7a`, `table2`, …
    pub id: &'static str,
    /// What it is about.
    pub title: &'static str,
    /// What it shows, in a sentence or two.
    pub shows: String,
    /// What we ask of ourselves, with the tolerance.
    pub goal: String,
    /// What had to be assumed to get these numbers.
    pub assumptions: Vec<String>,
    /// The numbers.
    pub rows: Vec<Row>,
    /// The demands.
    pub criteria: Vec<Criterion>,
    /// The numbers in short, beside one another.
    pub tables: Vec<Table>,
    /// How to draw the numbers.
    pub plots: Vec<Plot>,
    /// The default policy beside the paper's way.
    pub beside: Vec<Beside>,
    /// Where we deviate: the reasons, and which assumptions would have to change.
    pub reasons: Vec<String>,
}

impl Figure {
    /// An empty one.
    pub fn new(paper: Paper, id: &'static str, title: &'static str) -> Self {
        Self {
            paper,
            id,
            title,
            shows: String::new(),
            goal: String::new(),
            assumptions: Vec::new(),
            rows: Vec::new(),
            criteria: Vec::new(),
            tables: Vec::new(),
            plots: Vec::new(),
            beside: Vec::new(),
            reasons: Vec::new(),
        }
    }

    /// Adds a number.
    pub fn push(&mut self, row: Row) {
        self.rows.push(Row { paper: self.paper, figure: self.id.to_owned(), ..row });
    }

    /// Adds an assumption.
    pub fn assume(&mut self, text: impl Into<String>) {
        self.assumptions.push(text.into());
    }

    /// Adds a demand and what was seen.
    pub fn demand(&mut self, text: impl Into<String>, met: bool, saw: impl Into<String>) {
        self.criteria.push(Criterion { text: text.into(), met, saw: saw.into(), evidence: Evidence::Own });
    }

    /// Adds a demand of a policy. It is no claim if it holds without the policy, too.
    pub fn claim(&mut self, text: impl Into<String>, met: bool, saw: impl Into<String>, without_policy: bool) {
        self.demand(text, met, saw);
        if let Some(criterion) = self.criteria.last_mut().filter(|_| met && without_policy) {
            criterion.evidence = Evidence::Shown;
        }
    }

    /// Our number there; `None` where there is no such row or nothing was measured.
    pub fn ours(&self, series: &str, x: &X, metric: &str) -> Option<f64> {
        let is_it = |row: &&Row| row.series == series && row.x == *x && row.metric == metric;
        self.rows.iter().find(is_it).map(|row| row.ours).filter(|ours| ours.is_finite())
    }

    /// Whether the series at `x` do not fall in the order given, smallest first. A step down of up to `slack` (a
    /// fraction) is a tie.
    pub fn is_ordered(&self, metric: &str, x: impl Into<X>, ascending: &[&str], slack: f64) -> bool {
        let x = x.into();
        let ours: Option<Vec<f64>> = ascending.iter().map(|series| self.ours(series, &x, metric)).collect();
        ours.is_some_and(|ours| ours.is_sorted_by(|low, high| *high >= low * (1.0 - slack)))
    }

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

    /// A name for links, unique in a report.
    pub fn anchor(&self) -> String {
        format!("{}-{}", self.paper.key(), self.id)
    }
}

/// Something of a paper that the present code can't measure.
#[derive(Debug, Clone, Serialize)]
pub struct Uncovered {
    /// The paper.
    pub paper: Paper,
    /// Which figure or table.
    pub figure: String,
    /// What would be needed.
    pub why: String,
    /// What the paper prints, in words.
    pub printed: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_its_slack() {
        let mut figure = Figure::new(Paper::Lpns, "fig7a", "");
        for (series, ours) in [("LPNS", 12.0), ("MDev", 15.0), ("SPDK", 14.9)] {
            figure.push(Row::new(series, "n2d1", "mean", ours));
        }
        assert!(figure.is_ordered("mean", "n2d1", &["LPNS", "MDev", "SPDK"], 0.02));
        assert!(!figure.is_ordered("mean", "n2d1", &["MDev", "LPNS"], 0.02));
        assert!(!figure.is_ordered("mean", "n2d1", &["LPNS", "K2"], 0.02));
    }

    #[test]
    fn what_holds_without_a_policy_is_no_claim() {
        let mut figure = Figure::new(Paper::Lpns, "fig7e", "");
        for (met, without) in [(true, true), (true, false), (false, true)] {
            figure.claim("≤ 50 µs", met, "", without);
        }
        assert_eq!((figure.count(Evidence::Own), figure.count(Evidence::Shown)), ((1, 2), (1, 1)));
        assert!(!figure.is_good());
    }
}
