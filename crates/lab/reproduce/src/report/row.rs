//! One number of ours beside one of a paper's.

use std::fmt;

use serde::{Serialize, Serializer};

use super::evidence::Evidence;
use super::number;
use crate::paper::{Mark, Paper, Printed};

/// Where on a figure's horizontal axis.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum X {
    /// A quantity.
    Number(f64),
    /// A case's name.
    Text(String),
}

impl fmt::Display for X {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(value) => f.write_str(&number::short(*value)),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<&str> for X {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for X {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<f64> for X {
    fn from(value: f64) -> Self {
        Self::Number(number::rounded(value))
    }
}

impl From<u32> for X {
    fn from(value: u32) -> Self {
        Self::Number(value.into())
    }
}

/// What the comparison says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Within the figure's tolerance of what is printed.
    Within,
    /// Outside of it, or nothing could be measured.
    Off,
    /// Nothing to compare with.
    Shown,
}

impl Verdict {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Within => "within",
            Self::Off => "off",
            Self::Shown => "shown",
        }
    }

    /// Good or bad; `None` where nothing was judged.
    pub fn is_good(self) -> Option<bool> {
        match self {
            Self::Within => Some(true),
            Self::Off => Some(false),
            Self::Shown => None,
        }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One number of a figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The paper.
    pub paper: Paper,
    /// Which: `fig7a`, `table2`, …
    pub figure: String,
    /// The line or the colour of the bar: the system, the policy.
    pub series: String,
    /// Where on the horizontal axis.
    pub x: X,
    /// What is measured, with its unit: `VM1 mean latency (µs)`.
    pub metric: String,
    /// What the paper has.
    pub printed: Option<f64>,
    /// What we have; not a number where nothing could be measured.
    pub ours: f64,
    /// `ours / printed - 1`.
    pub deviation: Option<f64>,
    /// What to think of it.
    pub verdict: Verdict,
    /// What that is worth.
    pub evidence: Evidence,
    /// How sure we are of `printed`.
    #[serde(skip)]
    pub mark: Option<Mark>,
}

impl Row {
    /// A number of ours. [`Figure::push`](super::Figure::push) says whose figure it belongs to.
    pub fn new(series: &str, x: impl Into<X>, metric: &str, ours: f64) -> Self {
        Self {
            paper: Paper::Lpns,
            figure: String::new(),
            series: series.to_owned(),
            x: x.into(),
            metric: metric.to_owned(),
            printed: None,
            ours: number::rounded(ours),
            deviation: None,
            verdict: if ours.is_finite() { Verdict::Shown } else { Verdict::Off },
            evidence: if ours.is_finite() { Evidence::Shown } else { Evidence::Own },
            mark: None,
        }
    }

    /// Puts a paper's number beside it, for information.
    #[must_use]
    pub fn beside(mut self, printed: impl Into<Option<Printed>>) -> Self {
        let Some(Printed { value, mark }) = printed.into() else { return self };
        self.printed = Some(number::rounded(value));
        self.mark = Some(mark);
        if value != 0.0 && self.ours.is_finite() {
            self.deviation = Some(number::rounded(self.ours / value - 1.0));
        }
        self
    }

    /// Compares it with a paper's number: `tolerance` is the deviation that passes, as a fraction. A doubtful
    /// number is shown, not judged against. [`Evidence`] is known when the figure is complete.
    #[must_use]
    pub fn against(self, printed: impl Into<Option<Printed>>, tolerance: f64) -> Self {
        let mut row = self.beside(printed);
        if row.mark.is_some_and(|mark| mark != Mark::Doubtful) {
            let good = row.deviation.is_some_and(|deviation| deviation.abs() <= tolerance);
            row.verdict = if good { Verdict::Within } else { Verdict::Off };
            row.evidence = Evidence::Own;
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::{doubtful, printed};

    #[test]
    fn a_row_is_judged_against_what_is_legible() {
        let row = |ours: f64| Row::new("LPNS", "n1d1", "mean (µs)", ours);
        assert_eq!(row(11.0).against(printed(10.0), 0.15).verdict, Verdict::Within);
        assert_eq!(row(12.0).against(printed(10.0), 0.15).verdict, Verdict::Off);
        assert_eq!(row(12.0).against(doubtful(10.0), 0.15).verdict, Verdict::Shown);
        assert_eq!(row(12.0).against(None, 0.15).verdict, Verdict::Shown);
        assert_eq!(row(f64::NAN).against(None, 0.15).verdict, Verdict::Off);
        assert_eq!(row(12.0).beside(printed(10.0)).deviation, Some(0.2));
        assert_eq!(row(12.0).beside(printed(0.0)).deviation, None);
    }

    #[test]
    fn a_row_has_just_the_promised_fields() {
        let row = Row::new("LPNS", 3u32, "mean (µs)", 12.0).against(printed(10.0), 0.1);
        let json = serde_json::to_string(&row).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"paper":"lpns","figure":"","series":"LPNS","x":3.0,"metric":"mean (µs)","#,
                r#""printed":10.0,"ours":12.0,"deviation":0.2,"verdict":"off","evidence":"own"}"#
            )
        );
    }
}
