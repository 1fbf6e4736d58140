//! Grouped bars.

use super::canvas::{Canvas, LEFT, RIGHT, colour, px, tooltip};
use super::{Data, Plot};
use crate::report::row::X;

/// What part of a group's room its bars take.
const FILLED: f64 = 0.82;

/// Draws them.
pub fn draw(plot: &Plot, data: &Data<'_>) -> String {
    let mut canvas = Canvas::new(plot, data);
    let labels: Vec<String> = data.xs.iter().map(X::to_string).collect();
    canvas.cases(plot, &labels);
    let group = (RIGHT - LEFT) / data.xs.len().max(1) as f64;
    let width = group * FILLED / data.series.len().max(1) as f64;
    for (g, x) in data.xs.iter().enumerate() {
        for (i, series) in data.series.iter().enumerate() {
            let Some(row) = data.find(series, x) else { continue };
            let left = LEFT + group * (g as f64 + (1.0 - FILLED) / 2.0) + width * i as f64;
            if row.ours.is_finite() {
                // A bar below 0 hangs from 0.
                let (base, end) = (canvas.y.at(0.0).min(canvas.floor()), canvas.y.at(row.ours));
                let (class, title) = (colour(i), format!("<title>{}</title>", tooltip(row)));
                let (x, y) = (px(left), px(base.min(end)));
                let (w, h) = (px((width - 1.0).max(0.5)), px((base - end).abs()));
                canvas.add(format_args!(
                    r#"<rect class="bar {class}" x="{x}" y="{y}" width="{w}" height="{h}">{title}</rect>"#
                ));
            }
            canvas.printed(left + width / 2.0, row, i);
        }
    }
    canvas.finish()
}
