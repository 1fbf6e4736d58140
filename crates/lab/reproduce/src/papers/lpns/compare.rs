//! What the figures of this paper have in common: counting cells that agree, and saying why some don't.

use std::fmt;

use crate::report::{Figure, Row, Verdict, X};

/// How a series compares with print, over the cells that are judged.
#[derive(Debug, Clone, PartialEq)]
pub struct Cells {
    within: usize,
    judged: usize,
    /// The largest deviation and where it is.
    worst: Option<(f64, X)>,
}

impl Cells {
    /// Those of one series and metric; `leave_out` is an x that the goal does not speak of.
    pub fn of(figure: &Figure, series: &str, metric: &str, leave_out: Option<&X>) -> Self {
        let is_one = |row: &&Row| {
            let judged = matches!(row.verdict, Verdict::Within | Verdict::Off);
            row.series == series && row.metric == metric && judged && leave_out != Some(&row.x)
        };
        let mut cells = Self { within: 0, judged: 0, worst: None };
        for row in figure.rows.iter().filter(is_one) {
            cells.judged += 1;
            cells.within += usize::from(row.verdict == Verdict::Within);
            let deviation = row.deviation.unwrap_or(f64::NAN);
            // What could not be measured is the worst there is.
            if cells.worst.as_ref().is_none_or(|(worst, _)| deviation.is_nan() || deviation.abs() > worst.abs()) {
                cells.worst = Some((deviation, row.x.clone()));
            }
        }
        cells
    }

    /// Whether all agree, and there are any.
    pub fn all_within(&self) -> bool {
        self.judged > 0 && self.within == self.judged
    }
}

impl fmt::Display for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} cells", self.within, self.judged)?;
        match &self.worst {
            Some((deviation, x)) => write!(f, ", worst {:+.0} % at {x}", deviation * 100.0),
            None => Ok(()),
        }
    }
}

/// Lowest and highest of some numbers, for a criterion: `12.3 to 45.6 µs`.
pub fn range(values: impl IntoIterator<Item = f64>, unit: &str) -> String {
    let (low, high) = ends(values);
    format!("{low:.1} to {high:.1} {unit}")
}

/// Lowest and highest of some numbers; not numbers, both, if one of them is not.
pub fn ends(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        if value.is_nan() {
            return (f64::NAN, f64::NAN);
        }
        (low, high) = (low.min(value), high.max(value));
    }
    (low, high)
}

/// Why a figure misses what it misses: of the reasons, those whose criterion (by the start of its text) is not met or
/// whose row (by the start of its place on the axis) is off,
/// each once.
pub fn deviation(figure: &Figure, reasons: &[(&str, &str)]) -> Option<String> {
    let mut found: Vec<&str> = Vec::new();
    for (start, reason) in reasons {
        let missed = figure.criteria.iter().any(|criterion| !criterion.met && criterion.text.starts_with(start));
        let bad = |row: &Row| row.verdict.is_good() == Some(false);
        let missed = missed || figure.rows.iter().any(|row| bad(row) && row.x.to_string().starts_with(start));
        if missed && !found.contains(reason) {
            found.push(reason);
        }
    }
    (!found.is_empty()).then(|| found.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::{Paper, doubtful, printed};

    fn figure() -> Figure {
        let mut figure = Figure::new(Paper::Lpns, "fig7a", "");
        for (x, ours, print) in [("n1d1", 50.0, 10.0), ("n2d1", 11.0, 10.0), ("n4d1", 8.0, 10.0)] {
            figure.push(Row::new("LPNS", x, "mean", ours).against(printed(print), 0.15));
        }
        figure.push(Row::new("LPNS", "n4d2", "mean", 90.0).against(doubtful(10.0), 0.15));
        figure
    }

    #[test]
    fn cells_are_counted_where_the_goal_speaks_of_them() {
        let all = Cells::of(&figure(), "LPNS", "mean", None);
        assert_eq!(all.to_string(), "1 of 3 cells, worst +400 % at n1d1");
        let some = Cells::of(&figure(), "LPNS", "mean", Some(&X::from("n1d1")));
        assert_eq!((some.to_string().as_str(), some.all_within()), ("1 of 2 cells, worst -20 % at n4d1", false));
        assert!(!Cells::of(&figure(), "MDev", "mean", None).all_within());
    }

    #[test]
    fn only_what_is_missed_is_explained() {
        let mut figure = figure();
        figure.demand("LPNS ≤ 50 µs", true, "");
        figure.demand("K2 above 50 µs", false, "");
        let reasons = [("LPNS", "one."), ("K2", "two."), ("K2 above", "two.")];
        assert_eq!(deviation(&figure, &reasons).as_deref(), Some("two."));
        assert_eq!(deviation(&figure, &reasons[..1]), None);
    }

    #[test]
    fn what_was_not_measured_has_no_range() {
        assert_eq!(range([3.0, 1.0, 2.0], "µs"), "1.0 to 3.0 µs");
        assert!(ends([1.0, f64::NAN]).1.is_nan());
    }
}
