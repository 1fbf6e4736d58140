//! The default policy beside a paper's own way.

use serde::Deserialize;

use super::figure::{Figure, Table};
use super::number;

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

const EVENKEEL: &str = "evenkeel";

fn default_policy() -> String {
    EVENKEEL.to_owned()
}

/// Both series over all cases that they share, and ours over theirs; a line for each comparison.
pub fn table(figures: &[&Figure]) -> Option<Table> {
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
    use crate::paper::Paper;
    use crate::report::Row;

    #[test]
    fn cases_are_compared_one_by_one() {
        let mut figure = Figure::new(Paper::Vbmq, "fig7", "");
        for (series, x, iops) in
            [("VBMq", 1u32, 20_000.0), ("VBMq", 2, 50_000.0), ("evenkeel", 2, 25_000.0), ("evenkeel", 1, 20_000.0)]
        {
            figure.push(Row::new(series, x, "IOPS", iops));
        }
        let beside = |metric: &str| Beside {
            theirs: "VBMq".to_owned(),
            ours: default_policy(),
            metric: metric.to_owned(),
            why: "one core".to_owned(),
        };
        assert!(table(&[&figure]).is_none());
        figure.beside.push(beside("IOPS"));
        let cells = ["fig7", "IOPS", "VBMq: 20k to 50k", "20k to 25k", "0.5 to 1", "one core"];
        assert_eq!(table(&[&figure]).unwrap().rows, [cells]);
    }
}
