//! Box plots: whiskers from p1 to p99, a box from p25 to p75, a line at the median.

use super::canvas::{Canvas, LEFT, RIGHT, colour, px};
use super::{BOX_PARTS, Data, Plot};
use crate::report::html::escape;
use crate::report::number::short;
use crate::report::row::X;

const WIDEST: f64 = 34.0;

/// Draws them.
pub fn draw(plot: &Plot, data: &Data<'_>) -> String {
    let mut canvas = Canvas::new(plot, data);
    let labels: Vec<String> = data.xs.iter().map(X::to_string).collect();
    canvas.cases(plot, &labels);
    let group = (RIGHT - LEFT) / data.xs.len().max(1) as f64;
    let room = group * 0.8 / data.series.len().max(1) as f64;
    for (g, x) in data.xs.iter().enumerate() {
        for (i, series) in data.series.iter().enumerate() {
            let Some(parts) = parts(plot, data, series, x) else { continue };
            let middle = LEFT + group * (g as f64 + 0.1) + room * (i as f64 + 0.5);
            one(&mut canvas, middle, (room * 0.7).min(WIDEST), parts, &colour(i), &format!("{series}, {x}"));
        }
    }
    canvas.finish()
}

fn parts(plot: &Plot, data: &Data<'_>, series: &str, x: &X) -> Option<[f64; 5]> {
    let mut parts = [0.0; 5];
    for (part, end) in parts.iter_mut().zip(BOX_PARTS) {
        let is_it = |row: &&&crate::report::Row| {
            row.series == series && row.x == *x && row.metric.strip_prefix(&plot.metric) == Some(end)
        };
        *part = data.rows.iter().find(is_it).map(|row| row.ours).filter(|ours| ours.is_finite())?;
    }
    Some(parts)
}

fn one(canvas: &mut Canvas, middle: f64, width: f64, parts: [f64; 5], class: &str, name: &str) {
    let [low, q1, median, q3, high] = parts.map(|part| canvas.y.at(part));
    let title = escape(&format!("{name}: median {}, p1 {}, p99 {}", short(parts[2]), short(parts[0]), short(parts[4])));
    let (x, left, right, w) = (px(middle), px(middle - width / 2.0), px(middle + width / 2.0), px(width));
    canvas.add(format_args!(
        concat!(
            r#"<g class="box {}"><title>{}</title>"#,
            r#"<line x1="{x}" x2="{x}" y1="{}" y2="{}"/>"#,
            r#"<rect x="{left}" y="{}" width="{w}" height="{}"/>"#,
            r#"<line class="median" x1="{left}" x2="{right}" y1="{m}" y2="{m}"/></g>"#
        ),
        class,
        title,
        px(high),
        px(low),
        px(q3),
        px((q1 - q3).max(0.5)),
        x = x,
        left = left,
        right = right,
        w = w,
        m = px(median),
    ));
}
