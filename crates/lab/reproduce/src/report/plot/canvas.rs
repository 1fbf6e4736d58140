//! The sheet that all plots are drawn on: frame, axes, marks.

use std::fmt::Write as _;

use super::scale::Scale;
use super::{Data, Plot};
use crate::report::html::escape;
use crate::report::number;
use crate::report::row::Row;

pub const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 340.0;
pub const LEFT: f64 = 58.0;
pub const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = HEIGHT - 56.0;

/// Colours that the style sheet has.
const COLOURS: usize = 8;

/// A picture in the making.
pub struct Canvas {
    body: String,
    pub y: Scale,
    label: String,
    height: f64,
}

impl Canvas {
    /// With its vertical axis, and the lines across.
    pub fn new(plot: &Plot, data: &Data<'_>) -> Self {
        let y = Scale::heights(plot.y_axis, &data.heights(plot), BOTTOM, TOP);
        let label = format!("{} over {}", escape(&plot.metric), escape(&plot.x_label));
        let mut canvas = Self { body: String::new(), y, label, height: HEIGHT };
        for tick in canvas.y.ticks() {
            let y = px(canvas.y.at(tick));
            canvas.add(format_args!(r#"<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}"/>"#));
            canvas.text(LEFT - 7.0, canvas.y.at(tick) + 4.0, "end", &number::tick(tick));
        }
        canvas.text(8.0, 15.0, "start", &plot.metric);
        for (at, text) in &plot.marks {
            let y = canvas.y.at(*at);
            canvas.add(format_args!(r#"<line class="mark" x1="{LEFT}" x2="{RIGHT}" y1="{0}" y2="{0}"/>"#, px(y)));
            canvas.text(RIGHT, y - 4.0, "end", text);
        }
        canvas
    }

    /// Labels of cases that stand side by side, slanted where they would touch.
    pub fn cases(&mut self, plot: &Plot, labels: &[String]) {
        let step = (RIGHT - LEFT) / labels.len().max(1) as f64;
        let longest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
        // A character is about 6.2 px wide at this size.
        let slanted = longest as f64 * 6.2 > step - 4.0;
        if slanted {
            self.height += longest.min(LONGEST) as f64 * 6.2 * std::f64::consts::FRAC_1_SQRT_2 - 6.0;
        }
        for (i, label) in labels.iter().enumerate() {
            let x = LEFT + step * (i as f64 + 0.5);
            if slanted {
                let (x, y, label) = (px(x + 4.0), px(BOTTOM + 14.0), escape(&shortened(label)));
                self.add(format_args!(
                    r#"<text x="{x}" y="{y}" text-anchor="end" transform="rotate(-45 {x} {y})">{label}</text>"#
                ));
            } else {
                self.text(x, BOTTOM + 17.0, "middle", label);
            }
        }
        self.x_label(plot);
    }

    /// A horizontal axis of numbers.
    pub fn numbers(&mut self, plot: &Plot, x: &Scale) {
        for tick in x.ticks() {
            let at = x.at(tick);
            let (px_at, end) = (px(at), BOTTOM + 5.0);
            self.add(format_args!(r#"<line class="axis" x1="{px_at}" x2="{px_at}" y1="{BOTTOM}" y2="{end}"/>"#));
            self.text(at, BOTTOM + 18.0, "middle", &number::tick(tick));
        }
        self.x_label(plot);
    }

    fn x_label(&mut self, plot: &Plot) {
        self.add(format_args!(r#"<line class="axis" x1="{LEFT}" x2="{RIGHT}" y1="{BOTTOM}" y2="{BOTTOM}"/>"#));
        self.text((LEFT + RIGHT) / 2.0, self.height - 8.0, "middle", &plot.x_label);
    }

    /// What a paper prints: hollow.
    pub fn printed(&mut self, x: f64, row: &Row, series: usize) {
        let Some(printed) = row.printed.filter(|printed| printed.is_finite()) else { return };
        let (x, y, class) = (px(x), px(self.y.at(printed)), colour(series));
        let title = tooltip(row);
        self.add(format_args!(
            r#"<circle class="printed {class}" cx="{x}" cy="{y}" r="4.5"><title>{title}</title></circle>"#
        ));
    }

    /// Where the vertical axis ends below.
    pub fn floor(&self) -> f64 {
        BOTTOM
    }

    /// Adds elements that are already escaped.
    pub fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        self.add(format_args!(r#"<text x="{}" y="{}" text-anchor="{anchor}">{}</text>"#, px(x), px(y), escape(text)));
    }

    /// The picture.
    pub fn finish(self) -> String {
        let Self { body, label, height, .. } = self;
        let height = px(height);
        format!(r#"<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{body}</svg>"#)
    }
}

/// The style sheet's class for a series.
pub fn colour(series: usize) -> String {
    format!("s{}", series % COLOURS)
}

/// Pixels to a tenth: more is noise.
pub fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// What a reader sees who points at a mark.
pub fn tooltip(row: &Row) -> String {
    let mut text = format!("{}, {}: {}", row.series, row.x, number::short(row.ours));
    if let Some(printed) = row.printed {
        let _ = write!(text, " (printed {})", number::short(printed));
    }
    escape(&text)
}

/// Characters that a slanted label has room for.
const LONGEST: usize = 20;

fn shortened(label: &str) -> String {
    if label.chars().count() <= LONGEST {
        label.to_owned()
    } else {
        label.chars().take(LONGEST - 1).chain(['…']).collect()
    }
}
