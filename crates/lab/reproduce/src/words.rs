//! The words of the papers and their figures, from a file for each paper.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::Deserialize;
use sim::workload::Webuser;

use crate::paper::Paper;
use crate::report::{Axis, Beside, Evidence, Figure, Kind, Plot, Row, Uncovered, Verdict};

static WORDS: LazyLock<[Words; Paper::ALL.len()]> = LazyLock::new(|| {
    Paper::ALL.map(|paper| toml::from_str(paper.file()).expect("a file of words in this crate is well-formed"))
});

/// A paper's file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Words {
    /// As its readers name it.
    pub name: String,
    /// Title and where it appeared.
    pub citation: String,
    /// Assumptions that several figures share: `@name` among a figure's stands for all of a set.
    #[serde(default)]
    sets: HashMap<String, Vec<String>>,
    figures: HashMap<String, FigureWords>,
    #[serde(default)]
    uncovered: Vec<UncoveredWords>,
}

/// A figure takes what its file does not say from the figure that it is `like`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureWords {
    like: Option<String>,
    title: String,
    shows: Option<String>,
    goal: Option<String>,
    assume: Option<Vec<String>>,
    plots: Option<Vec<PlotWords>>,
    /// Why it deviates: fragments, each with a reason for missed demands whose text, and for rows that are off whose
    /// `series | metric | x |` holds it. An empty fragment fits all of them; `*` stands for a reason that always holds.
    why: Option<Vec<(String, String)>>,
    /// What comparisons are worth, by the first fragment that fits as above. Other demands are the paper's claims,
    /// other printed numbers unseen.
    kinds: Option<Vec<(String, Evidence)>>,
    beside: Option<Vec<Beside>>,
}

/// A plot of the metric that `lines`, `bars` or `boxes` names.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlotWords {
    lines: Option<String>,
    bars: Option<String>,
    boxes: Option<String>,
    over: String,
    /// Axes in equal factors: `x`, `y` or `xy`.
    #[serde(default)]
    log: String,
    mark: Option<(f64, String)>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct UncoveredWords {
    figure: String,
    why: String,
    #[serde(default)]
    printed: Vec<String>,
}

impl PlotWords {
    fn plot(&self) -> Plot {
        let kinds = [(Kind::Lines, &self.lines), (Kind::Bars, &self.bars), (Kind::Boxes, &self.boxes)];
        let named = kinds.into_iter().find_map(|(kind, metric)| Some((kind, metric.clone()?)));
        let (kind, metric) = named.unwrap_or((Kind::Lines, String::new()));
        let axis = |name| if self.log.contains(name) { Axis::Log } else { Axis::Linear };
        let marks = self.mark.iter().cloned().collect();
        Plot { kind, metric, x_label: self.over.clone(), x_axis: axis('x'), y_axis: axis('y'), marks }
    }
}

impl Words {
    fn of<T>(&self, id: &str, part: fn(&FigureWords) -> Option<&T>) -> Option<&T> {
        let words = &self.figures[id];
        part(words).or_else(|| self.of(words.like.as_deref()?, part))
    }

    /// The texts of a set. The simulator itself says what its stand-in for a web server assumes.
    fn set(&self, name: &str) -> Vec<String> {
        if name == "webuser" { Webuser::ASSUMPTIONS.map(str::to_owned).to_vec() } else { self.sets[name].clone() }
    }
}

impl Paper {
    /// Its file.
    pub(crate) fn words(self) -> &'static Words {
        &WORDS[self as usize]
    }
}

/// What of some papers can't be measured.
pub fn uncovered(papers: &[Paper]) -> Vec<Uncovered> {
    let of = |paper: Paper| {
        let all = paper.words().uncovered.iter().cloned();
        all.map(move |UncoveredWords { figure, why, printed }| Uncovered { paper, figure, why, printed })
    };
    Paper::ALL.into_iter().filter(|paper| papers.contains(paper)).flat_map(of).collect()
}

impl Figure {
    /// One with the words that its paper's file has for it.
    ///
    /// # Panics
    /// The file does not have it.
    pub(crate) fn of(paper: Paper, id: &'static str) -> Self {
        let words = paper.words();
        let assume = words.of(id, |it| it.assume.as_ref()).into_iter().flatten();
        let plots = words.of(id, |it| it.plots.as_ref()).into_iter().flatten();
        Self {
            shows: words.of(id, |it| it.shows.as_ref()).cloned().unwrap_or_default(),
            goal: words.of(id, |it| it.goal.as_ref()).cloned().unwrap_or_default(),
            assumptions: assume
                .flat_map(|text| text.strip_prefix('@').map_or_else(|| vec![text.clone()], |set| words.set(set)))
                .collect(),
            plots: plots.map(PlotWords::plot).collect(),
            beside: words.of(id, |it| it.beside.as_ref()).cloned().unwrap_or_default(),
            ..Self::new(paper, id, &words.figures[id].title)
        }
    }

    /// Says what its comparisons are worth, and why it misses what it misses: each of its file's reasons once.
    pub(crate) fn explain(&mut self) {
        let kinds = || self.paper.words().of(self.id, |it| it.kinds.as_ref()).into_iter().flatten();
        let kind = |text: &str| kinds().find(|(part, _)| text.contains(part)).map(|(_, kind)| *kind);
        for criterion in self.criteria.iter_mut().filter(|criterion| criterion.evidence == Evidence::Own) {
            criterion.evidence = kind(&criterion.text).unwrap_or(Evidence::Claim);
        }
        for row in self.rows.iter_mut().filter(|row| row.evidence == Evidence::Own && row.printed.is_some()) {
            row.evidence = kind(&place(row)).unwrap_or(Evidence::Unseen);
            if row.evidence == Evidence::Shown {
                row.verdict = Verdict::Shown;
            }
        }
        let mut found: Vec<String> = Vec::new();
        for (part, reason) in self.paper.words().of(self.id, |it| it.why.as_ref()).into_iter().flatten() {
            let missed = self.criteria.iter().any(|criterion| !criterion.met && criterion.text.contains(part));
            let off = |row: &Row| row.verdict.is_good() == Some(false) && place(row).contains(part);
            if (part == "*" || missed || self.rows.iter().any(off)) && !found.contains(reason) {
                found.push(reason.clone());
            }
        }
        self.reasons = found;
    }
}

/// What fragments are looked for in.
fn place(row: &Row) -> String {
    format!("{} | {} | {} |", row.series, row.metric, row.x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::{doubtful, printed};

    #[test]
    fn only_what_is_missed_is_explained() {
        let mut figure = Figure::of(Paper::Lpns, "fig7e-pm1735");
        let mut told = |text: &str, met| {
            figure.demand(text, met, "");
            figure.explain();
            figure.reasons.concat()
        };
        assert_eq!((told("LPNS: VM1's mean", true).as_str(), told("K2", false).as_str()), ("", ""));
        assert!(told("LPNS: VM1's mean", false).starts_with("Beside a VM1 that keeps one I/O outstanding"));
    }

    #[test]
    fn numbers_that_nothing_was_fitted_to_are_unseen() {
        let mut figure = Figure::of(Paper::Lpns, "fig2");
        for (metric, print) in
            [("VM1 mean latency (µs)", printed(11.9)), ("at worst", printed(4.7)), ("x", doubtful(1.0))]
        {
            figure.push(Row::new("MDev", "alone", metric, 4.0).against(print, 0.25));
        }
        figure.demand("VM1 is slower beside VM2", true, "");
        figure.explain();
        let kinds = [Evidence::Fitted, Evidence::Unseen, Evidence::Shown];
        assert_eq!(figure.rows.iter().map(|row| row.evidence).collect::<Vec<_>>(), kinds);
        assert_eq!((figure.count(Evidence::Unseen), figure.count(Evidence::Claim)), ((1, 1), (1, 1)));
    }

    #[test]
    fn a_figure_that_is_like_another_says_what_differs() {
        let [one, other] = ["fig7e-p5800x", "fig7e-pm1735"].map(|id| Figure::of(Paper::Lpns, id));
        assert_eq!(one.shows, other.shows);
        assert_ne!((one.title, one.goal, &one.assumptions[0]), (other.title, other.goal, &other.assumptions[0]));
    }
}
