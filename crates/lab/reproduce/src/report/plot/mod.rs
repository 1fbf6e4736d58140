//! Plots as inline SVG: drawn from rows, coloured by the page's style sheet, no script.
//!
//! What is ours is solid; what a paper prints is a hollow marker of the same colour.

mod bars;
mod boxes;
mod canvas;
mod lines;
mod scale;

pub(super) use canvas::colour;

use super::row::{Row, X};

/// How numbers become marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A line per series.
    Lines,
    /// Bars in groups, one group per x.
    Bars,
    /// A box per series and x. `metric` of the plot is a prefix; the rows' metrics end in ` p1`, ` p25`, ` p50`, ` p75`
    /// and ` p99`.
    Boxes,
}

/// What the metrics of a box plot's rows end in: the lower whisker, the box, the upper whisker.
pub const BOX_PARTS: [&str; 5] = [" p1", " p25", " p50", " p75", " p99"];

/// How an axis counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// In equal steps, from 0 where it is vertical.
    Linear,
    /// In equal factors.
    Log,
}

/// A drawing of those rows of a figure that have one metric.
#[derive(Debug, Clone)]
pub struct Plot {
    /// What it looks like.
    pub kind: Kind,
    /// Which rows; also the vertical axis's label.
    pub metric: String,
    /// The horizontal axis's label.
    pub x_label: String,
    /// How a horizontal axis of numbers counts; bars and boxes and cases with names stand side by side.
    pub x_axis: Axis,
    /// How the vertical axis counts.
    pub y_axis: Axis,
    /// Lines across at these heights, with a label: a promised bound.
    pub marks: Vec<(f64, String)>,
}

impl Plot {
    /// Lines over `x_label`; linear axes.
    pub fn lines(metric: &str, x_label: &str) -> Self {
        Self::new(Kind::Lines, metric, x_label)
    }

    /// Grouped bars over `x_label`.
    pub fn bars(metric: &str, x_label: &str) -> Self {
        Self::new(Kind::Bars, metric, x_label)
    }

    fn new(kind: Kind, metric: &str, x_label: &str) -> Self {
        Self {
            kind,
            metric: metric.to_owned(),
            x_label: x_label.to_owned(),
            x_axis: Axis::Linear,
            y_axis: Axis::Linear,
            marks: Vec::new(),
        }
    }

    /// With a vertical axis in equal factors.
    #[must_use]
    pub fn log_y(self) -> Self {
        Self { y_axis: Axis::Log, ..self }
    }

    /// With a line across.
    #[must_use]
    pub fn mark(mut self, at: f64, label: &str) -> Self {
        self.marks.push((at, label.to_owned()));
        self
    }

    /// The picture of those rows that have the metric; `None` where none has. [`page`](super::page) has the style sheet
    /// that colours it.
    pub fn draw(&self, rows: &[Row]) -> Option<Drawing> {
        let data = Data::of(self, rows);
        if data.rows.is_empty() {
            return None;
        }
        let svg = match self.kind {
            Kind::Lines => lines::draw(self, &data),
            Kind::Bars => bars::draw(self, &data),
            Kind::Boxes => boxes::draw(self, &data),
        };
        Some(Drawing { svg, series: data.series, has_printed: data.rows.iter().any(|row| row.printed.is_some()) })
    }
}

/// A plot that is drawn.
pub struct Drawing {
    /// The picture.
    pub svg: String,
    /// What the colours mean, in their order.
    pub series: Vec<String>,
    /// Whether there are hollow markers to explain.
    pub has_printed: bool,
}

/// What a plot is drawn from.
struct Data<'a> {
    rows: Vec<&'a Row>,
    /// In order of first appearance.
    series: Vec<String>,
    /// In order of first appearance.
    xs: Vec<X>,
}

impl<'a> Data<'a> {
    fn of(plot: &Plot, rows: &'a [Row]) -> Self {
        let wanted = |row: &&Row| match plot.kind {
            Kind::Boxes => row.metric.strip_prefix(&plot.metric).is_some_and(|part| BOX_PARTS.contains(&part)),
            _ => row.metric == plot.metric,
        };
        let rows: Vec<&Row> = rows.iter().filter(wanted).collect();
        let (mut series, mut xs) = (Vec::new(), Vec::new());
        for row in &rows {
            if !series.contains(&row.series) {
                series.push(row.series.clone());
            }
            if !xs.contains(&row.x) {
                xs.push(row.x.clone());
            }
        }
        Self { rows, series, xs }
    }

    /// Every height that must fit, a log axis's only where it can show them.
    fn heights(&self, plot: &Plot) -> Vec<f64> {
        let drawn = self.rows.iter().flat_map(|row| [Some(row.ours), row.printed]).flatten();
        let all = drawn.chain(plot.marks.iter().map(|(at, _)| *at));
        all.filter(|value| value.is_finite() && (plot.y_axis == Axis::Linear || *value > 0.0)).collect()
    }

    fn find(&self, series: &str, x: &X) -> Option<&Row> {
        self.rows.iter().find(|row| row.series == series && row.x == *x).copied()
    }
}
