//! Rows for a spreadsheet (RFC 4180).

use std::borrow::Cow;

use super::Report;
use super::row::Row;

const HEADING: &str = "paper,figure,series,x,metric,printed,ours,deviation,verdict,evidence\n";

impl Report {
    /// One line per row.
    pub fn csv(&self) -> String {
        let rows = self.figures.iter().flat_map(|figure| &figure.rows);
        rows.fold(HEADING.to_owned(), |text, row| text + &line(row))
    }
}

fn line(row: &Row) -> String {
    let number = |value: Option<f64>| value.filter(|value| value.is_finite()).map_or(String::new(), |v| v.to_string());
    let cells = [
        row.paper.key().to_owned(),
        row.figure.clone(),
        row.series.clone(),
        match &row.x {
            super::X::Number(value) => number(Some(*value)),
            super::X::Text(text) => text.clone(),
        },
        row.metric.clone(),
        number(row.printed),
        number(Some(row.ours)),
        number(row.deviation),
        row.verdict.name().to_owned(),
        row.evidence.name().to_owned(),
    ];
    cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n"
}

fn quoted(cell: &str) -> Cow<'_, str> {
    if cell.contains(['"', ',', '\n', '\r']) {
        Cow::Owned(format!("\"{}\"", cell.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(cell)
    }
}
