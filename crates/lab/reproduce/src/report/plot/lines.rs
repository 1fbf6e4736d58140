//! Line charts.

use super::canvas::{Canvas, LEFT, RIGHT, colour, px, tooltip};
use super::scale::Scale;
use super::{Data, Plot};
use crate::report::row::X;

/// Draws one.
pub fn draw(plot: &Plot, data: &Data<'_>) -> String {
    let mut canvas = Canvas::new(plot, data);
    let places = places(plot, data, &mut canvas);
    for (i, series) in data.series.iter().enumerate() {
        let class = colour(i);
        let points: Vec<_> =
            data.xs.iter().zip(&places).filter_map(|(x, place)| Some((*place, data.find(series, x)?))).collect();
        let measured = || points.iter().filter(|(_, row)| row.ours.is_finite());
        let path: Vec<String> =
            measured().map(|(x, row)| format!("{},{}", px(*x), px(canvas.y.at(row.ours)))).collect();
        canvas.add(format_args!(r#"<polyline class="line {class}" points="{}"/>"#, path.join(" ")));
        for (x, row) in &points {
            canvas.printed(*x, row, i);
        }
        for (x, row) in measured() {
            let (x, y, title) = (px(*x), px(canvas.y.at(row.ours)), tooltip(row));
            canvas.add(format_args!(
                r#"<circle class="dot {class}" cx="{x}" cy="{y}" r="3"><title>{title}</title></circle>"#
            ));
        }
    }
    canvas.finish()
}

/// Where each x lies: by its size where all are numbers, else side by side.
fn places(plot: &Plot, data: &Data<'_>, canvas: &mut Canvas) -> Vec<f64> {
    let numbers: Option<Vec<f64>> = data
        .xs
        .iter()
        .map(|x| match x {
            X::Number(value) if value.is_finite() && (plot.x_axis == super::Axis::Linear || *value > 0.0) => {
                Some(*value)
            }
            _ => None,
        })
        .collect();
    if let Some(numbers) = numbers {
        let scale = Scale::widths(plot.x_axis, &numbers, LEFT + 16.0, RIGHT - 16.0);
        canvas.numbers(plot, &scale);
        return numbers.iter().map(|x| scale.at(*x)).collect();
    }
    let labels: Vec<String> = data.xs.iter().map(X::to_string).collect();
    canvas.cases(plot, &labels);
    let step = (RIGHT - LEFT) / labels.len().max(1) as f64;
    (0..labels.len()).map(|i| LEFT + step * (i as f64 + 0.5)).collect()
}
