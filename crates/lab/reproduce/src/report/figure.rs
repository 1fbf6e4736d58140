//! A figure of a paper, repeated.

use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::number;
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

/// Two series of a figure to compare, in one metric.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// The paper's way.
    pub theirs: String,
    /// The series of the default policy; without a name it is `evenkeel`.
    #[serde(default = "default_policy")]
    pub ours: String,
    /// What is compared, with its unit.
    pub metric: String,
    /// Why ours is worse, where it is.
    #[serde(default)]
    pub why: String,
}

/// The series of the default policy.
pub const EVENKEEL: &str = "evenkeel";

fn default_policy() -> String {
    EVENKEEL.to_owned()
}

/// Both series over all cases that they share, and ours over theirs; a line for each comparison.
pub fn beside(figures: &[&Figure]) -> Option<Table> {
    let head = ["figure", "number", "the paper's way", "ours", "times", "why, where worse"];
    let mut shown = Table::new("Evenkeel beside the paper's way, lowest to highest of all cases", &head);
    for figure in figures {
        for beside in &figure.beside {
            let ours = figure.rows.iter().filter(|row| row.series == beside.ours && row.metric == beside.metric);
            let pairs: Vec<(f64, f64)> =
                ours.filter_map(|row| Some((figure.ours(&beside.theirs, &row.x, &beside.metric)?, row.ours))).collect();
            let of = |value: &dyn Fn(&(f64, f64)) -> f64| ends(&pairs.iter().map(value).collect::<Vec<_>>());
            let is_ratio = pairs.iter().all(|(theirs, ours)| theirs.min(*ours) > 0.0);
            let [theirs, mut ours] = [0, 1].map(|at| of(&|pair| [pair.0, pair.1][at]));
            if beside.ours != EVENKEEL {
                ours = format!("{}: {ours}", beside.ours);
            }
            let times = if is_ratio { of(&|(theirs, ours)| ours / theirs) } else { String::new() };
            let theirs = format!("{}: {theirs}", beside.theirs);
            shown.rows.push(vec![figure.id.to_owned(), beside.metric.clone(), theirs, ours, times, beside.why.clone()]);
        }
    }
    (!shown.rows.is_empty()).then_some(shown)
}

/// `1.2 to 3.4`, or one number where both are alike.
fn ends(values: &[f64]) -> String {
    let of = |pick: fn(f64, f64) -> f64| number::tick(values.iter().copied().fold(f64::NAN, pick));
    let (low, high) = (of(f64::min), of(f64::max));
    if low == high { low } else { format!("{low} to {high}") }
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

    #[test]
    fn cases_are_compared_one_by_one() {
        let mut figure = Figure::new(Paper::Vbmq, "fig7", "");
        for (series, x, iops) in
            [("VBMq", 1u32, 20_000.0), ("VBMq", 2, 50_000.0), ("evenkeel", 2, 25_000.0), ("evenkeel", 1, 20_000.0)]
        {
            figure.push(Row::new(series, x, "IOPS", iops));
        }
        let compared = |metric: &str| Beside {
            theirs: "VBMq".to_owned(),
            ours: default_policy(),
            metric: metric.to_owned(),
            why: "one core".to_owned(),
        };
        assert!(beside(&[&figure]).is_none());
        figure.beside.push(compared("IOPS"));
        let cells = ["fig7", "IOPS", "VBMq: 20k to 50k", "20k to 25k", "0.5 to 1", "one core"];
        assert_eq!(beside(&[&figure]).unwrap().rows, [cells]);
    }
}
