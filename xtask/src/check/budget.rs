//! `budget.toml`: the highest value of each figure, and the crates that must keep a clean shape.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::figures::Figure;
use super::shape::Shape;

/// How many parts a complaint names, largest first.
const NAMED: usize = 5;

/// A figure that is this far below its max should have a lower one.
const SLACK_PERCENT: usize = 2;

/// The file.
#[derive(Debug, Deserialize)]
pub struct Budget {
    /// Folders whose lines are tests, beside `tests/`.
    pub test_folders: Vec<String>,
    /// Folders of the crates that have neither a circle nor a spread type.
    clean: BTreeSet<String>,
    #[serde(flatten)]
    figures: BTreeMap<String, Limit>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limit {
    max: usize,
    /// One line per change, newest last: the new max, and what it bought.
    history: Vec<String>,
}

/// What a comparison found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Violations.
    pub offences: Vec<String>,
    /// Suggestions to tighten the file.
    pub notes: Vec<String>,
}

impl Budget {
    /// Reads the file.
    ///
    /// # Errors
    /// When it does not have this form.
    pub fn read(text: &str) -> Result<Self> {
        toml::from_str(text).context("budget.toml")
    }

    /// The max of a figure.
    pub fn max(&self, name: &str) -> Option<usize> {
        self.figures.get(name).map(|limit| limit.max)
    }

    /// Compares the repository with the file.
    pub fn compare(&self, figures: &[Figure], shapes: &[Shape]) -> Findings {
        let mut found = Findings::default();
        for figure in figures {
            match self.figures.get(figure.name) {
                Some(limit) => limit.compare(figure, &mut found),
                None => found.offences.push(format!("budget.toml: has no [{}] with max = {}", figure.name, figure.now)),
            }
        }
        let unknown = self.figures.keys().filter(|name| figures.iter().all(|figure| figure.name != **name));
        found.offences.extend(unknown.map(|name| format!("budget.toml: there is no figure {name}")));
        for shape in shapes {
            if self.clean.contains(&shape.room) {
                found.offences.extend(shape.faults());
            } else if shape.is_clean() {
                found.notes.push(format!("budget.toml: {} can be listed as clean", shape.room));
            }
        }
        let gone = self.clean.iter().filter(|room| shapes.iter().all(|shape| shape.room != **room));
        found.offences.extend(gone.map(|room| format!("budget.toml: there is no crate {room}")));
        found
    }
}

impl Limit {
    fn compare(&self, figure: &Figure, found: &mut Findings) {
        let Figure { name, now, .. } = figure;
        let max = self.max;
        if *now > max {
            let parts = figure.parts.iter().filter(|part| !figure.is_ceiling || part.count > max).take(NAMED);
            let parts: Vec<String> =
                parts.map(|part| format!("\n    {:>7} {}", thousands(part.count), part.name)).collect();
            let largest = if parts.is_empty() { "" } else { " Largest:" };
            found.offences.push(format!(
                "budget.toml: {name} ({}) is {}, its max {}: shrink it, or raise the max in the same commit with a \
                 line of history that says what it buys.{largest}{}",
                figure.what,
                thousands(*now),
                thousands(max),
                parts.concat()
            ));
        } else if !figure.is_ceiling && now * 100 < max * (100 - SLACK_PERCENT) {
            found.notes.push(format!("budget.toml: lower the max of {name} to {now}"));
        }
        // Changing max alone fails: the newest line of history must begin with that number, and say something.
        let newest = self.history.last().and_then(|line| line.split_once(':'));
        let is_said = |(number, why): (&str, &str)| number.trim().parse() == Ok(max) && !why.trim().is_empty();
        if !newest.is_some_and(is_said) {
            found
                .offences
                .push(format!("budget.toml: {name}: the last line of history must begin \"{max}: \" and say why"));
        }
    }
}

/// A number with commas.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::super::figures::Part;
    use super::*;

    const TEXT: &str =
        "test_folders = []\nclean = [\"crates/a/b\"]\n[lines]\nmax = 1000\nhistory = [\"1000: a start\"]";

    fn lines(now: usize) -> Figure {
        let parts = vec![Part { name: "crates/a/b".into(), count: now }];
        Figure { name: "lines", what: "lines of it", now, parts, is_ceiling: false }
    }

    fn shape(circles: Vec<Vec<String>>) -> Shape {
        Shape { room: "crates/a/b".into(), circles, spread: Vec::new() }
    }

    fn findings(text: &str, figures: &[Figure], shapes: &[Shape]) -> Findings {
        Budget::read(text).unwrap().compare(figures, shapes)
    }

    #[test]
    fn what_is_within_the_budget_passes() {
        for now in [980, 1000] {
            assert_eq!(findings(TEXT, &[lines(now)], &[shape(Vec::new())]), Findings::default(), "{now}");
        }
        let lowered = TEXT.replace("max = 1000", "max = 900").replace("a start\"", "a start\", \"900: less\"");
        assert_eq!(findings(&lowered, &[lines(900)], &[shape(Vec::new())]), Findings::default());
    }

    #[test]
    fn each_way_to_break_it_is_seen() {
        let circle = shape(vec![vec!["a.rs".into(), "b.rs".into(), "c.rs".into()]]);
        let raised = TEXT.replace("max = 1000", "max = 1001");
        let clean = || shape(Vec::new());
        for (found, told) in [
            (findings(TEXT, &[lines(1001)], &[clean()]), "is 1,001, its max 1,000"),
            (findings(TEXT, &[lines(1001)], &[clean()]), "    1,001 crates/a/b"),
            (findings(&raised, &[lines(1001)], &[clean()]), "must begin \"1001: \""),
            (findings(&TEXT.replace("1000: a", "9999: a"), &[lines(1000)], &[clean()]), "must begin \"1000: \""),
            (findings(&TEXT.replace(" a start", ""), &[lines(1000)], &[clean()]), "must begin \"1000: \""),
            (findings(TEXT, &[lines(1000)], &[circle]), "a.rs, b.rs, c.rs"),
            (findings(TEXT, &[lines(1000)], &[]), "no crate crates/a/b"),
            (findings(TEXT, &[], &[clean()]), "no figure lines"),
            (findings(TEXT, &[lines(1000), Figure { name: "x", ..lines(7) }], &[clean()]), "no [x] with max = 7"),
        ] {
            assert!(found.offences.len() == 1 && found.offences[0].contains(told), "{told}: {found:?}");
        }
    }

    #[test]
    fn what_may_be_lowered_is_noted() {
        let unlisted = TEXT.replace("\"crates/a/b\"", "");
        let found = findings(&unlisted, &[lines(979)], &[shape(Vec::new())]);
        assert_eq!(found.offences, Vec::<String>::new());
        assert_eq!(
            found.notes,
            ["budget.toml: lower the max of lines to 979", "budget.toml: crates/a/b can be listed as clean"]
        );
        let ceiling = Figure { is_ceiling: true, ..lines(10) };
        assert_eq!(findings(TEXT, &[ceiling], &[shape(Vec::new())]), Findings::default());
    }

    #[test]
    fn thousands_have_commas() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
