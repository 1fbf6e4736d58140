//! One page for people: no script, nothing loaded from anywhere, well-formed as XML too.

use super::figure::{Criterion, Figure, Table, Uncovered, beside};
use super::number::{percent, short};
use super::plot::{Drawing, colour};
use super::row::Row;
use super::{Evidence, Report, counts};
use crate::paper::{Mark, Paper};

const STYLE: &str = include_str!("page.css");

/// Text that may stand in an element or an attribute.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // Not allowed in XML in any form.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A page of that title around `content`, with the style sheet that the drawings and tables need.
pub fn page(title: &str, content: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{content}</main>\n</body>\n</html>\n",
        escape(title)
    )
}

impl Report {
    /// The page.
    pub fn html(&self) -> String {
        let mut content = self.introduction() + &self.summary();
        for paper in Paper::ALL {
            let figures: Vec<&Figure> = self.figures.iter().filter(|figure| figure.paper == paper).collect();
            let uncovered: Vec<&Uncovered> = self.uncovered.iter().filter(|one| one.paper == paper).collect();
            if figures.is_empty() && uncovered.is_empty() {
                continue;
            }
            content +=
                &format!("<h2>{}</h2>\n<p class=\"cite\">{}</p>\n", escape(paper.name()), escape(paper.citation()));
            figures.iter().for_each(|figure| content += &section(figure));
            uncovered.iter().for_each(|one| content += &not_covered(one));
        }
        page("Evenkeel: the papers' figures", &content)
    }

    fn introduction(&self) -> String {
        let quick = if self.quick {
            "<aside>A quick run: the virtual time of each experiment was cut short, so the numbers are rough.</aside>\n"
        } else {
            ""
        };
        format!(
            "<h1>The papers’ figures, from Evenkeel’s own code</h1>\n\
             <p>Every number here comes out of the simulator, which runs the daemon’s pollers and policies in virtual \
             time on a model of the drive. One profile per drive and one table of host costs serve all figures. \
             In the plots what is ours is solid; hollow circles are what the paper prints.</p>\n\
             <p class=\"soft\">Seed {}. In the tables, <em>derived</em> marks a value that follows from what the paper \
             prints, and <em>doubtful</em> one that was hard to read; the latter is shown and not judged \
             against. Kinds of evidence are counted apart, the strongest first.</p>\n{quick}",
            self.seed
        )
    }

    fn summary(&self) -> String {
        let mut table = String::from("<div class=\"wide\"><table>\n<tr><th>paper</th><th>figure</th>");
        for evidence in Evidence::ALL {
            table += &format!("<th class=\"n\">{}</th>", escape(evidence.name()));
        }
        for (name, counts) in counts(&self.figures) {
            let cells = Evidence::ALL.into_iter().zip(counts).map(tally).collect::<String>();
            table += &format!("</tr>\n<tr><td>{}</td><td>all</td>{cells}", escape(name));
        }
        for figure in &self.figures {
            table += &format!(
                "</tr>\n<tr><td>{}</td><td><a href=\"#{}\">{}</a></td>{}",
                escape(figure.paper.name()),
                escape(&figure.anchor()),
                escape(figure.title),
                Evidence::ALL.map(|evidence| tally((evidence, figure.count(evidence)))).concat(),
            );
        }
        for one in &self.uncovered {
            table += &format!(
                "</tr>\n<tr><td>{}</td><td>{}</td><td colspan=\"{}\" class=\"n soft\">not covered</td>",
                escape(one.paper.name()),
                escape(&one.figure),
                Evidence::ALL.len()
            );
        }
        table + "</tr>\n</table></div>\n"
    }
}

fn tally((evidence, (good, all)): (Evidence, (usize, usize))) -> String {
    let class = match evidence {
        Evidence::Shown => "soft",
        _ if all == 0 => "soft",
        _ if good == all => "good",
        _ => "bad",
    };
    format!("<td class=\"n\"><span class=\"{class}\">{}</span></td>", evidence.count((good, all)))
}

fn section(figure: &Figure) -> String {
    let mut html = format!(
        "<section id=\"{}\">\n<h3>{} <span class=\"soft\">({})</span></h3>\n<p>{}</p>\n",
        escape(&figure.anchor()),
        escape(figure.title),
        escape(figure.id),
        escape(&figure.shows)
    );
    if !figure.goal.is_empty() {
        html += &format!("<p><strong>Asked:</strong> {}</p>\n", escape(&figure.goal));
    }
    html += &criteria(&figure.criteria);
    figure.tables.iter().chain(&beside(&[figure])).for_each(|shown| html += &table(shown));
    figure.plots.iter().filter_map(|plot| plot.draw(&figure.rows)).for_each(|drawing| html += &drawing.html());
    if !figure.reasons.is_empty() {
        html += &format!("<aside><strong>Where we deviate.</strong> {}</aside>\n", escape(&figure.reasons.join(" ")));
    }
    if !figure.assumptions.is_empty() {
        html += "<details open=\"open\"><summary>Assumptions</summary>\n<ul>\n";
        figure.assumptions.iter().for_each(|text| html += &format!("<li>{}</li>\n", escape(text)));
        html += "</ul></details>\n";
    }
    html + &rows(&figure.rows) + "</section>\n"
}

fn criteria(criteria: &[Criterion]) -> String {
    if criteria.is_empty() {
        return String::new();
    }
    let item = |criterion: &Criterion| {
        let (class, sign) = match (criterion.evidence, criterion.met) {
            (Evidence::Shown, _) => ("soft", "–"),
            (_, true) => ("good", "✓"),
            (_, false) => ("bad", "✗"),
        };
        let word = criterion.verdict();
        format!(
            "<li><span class=\"sign {class}\" title=\"{word}\">{sign}</span>{} <span class=\"soft\">{}</span></li>\n",
            escape(&criterion.text),
            escape(&criterion.saw)
        )
    };
    format!("<ul class=\"criteria\">\n{}</ul>\n", criteria.iter().map(item).collect::<String>())
}

fn table(table: &Table) -> String {
    let line = |tag: &str, cells: &[String]| {
        let cells: String = cells.iter().map(|text| format!("<{tag}>{}</{tag}>", escape(text))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = table.rows.iter().map(|row| line("td", row)).collect();
    format!(
        "<p>{}</p>\n<div class=\"wide\"><table>\n{}{rows}</table></div>\n",
        escape(&table.title),
        line("th", &table.head)
    )
}

impl Drawing {
    /// The picture with its legend, for a [`page`].
    pub fn html(&self) -> String {
        let mut legend = String::new();
        for (i, series) in self.series.iter().enumerate() {
            legend += &format!("<li><i class=\"{}\"></i>{}</li>", colour(i), escape(series));
        }
        if self.has_printed {
            legend += "<li><i class=\"hollow\"></i>printed</li>";
        }
        format!("<figure>\n<div class=\"wide\">{}</div>\n<ul class=\"legend\">{legend}</ul>\n</figure>\n", self.svg)
    }
}

fn rows(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut html = format!(
        "<details><summary>All {} numbers</summary>\n<div class=\"wide\"><table>\n<tr><th>metric</th><th>case</th>\
         <th>series</th><th class=\"n\">printed</th><th class=\"n\">ours</th><th class=\"n\">deviation</th>\
         <th>verdict</th><th>kind</th></tr>\n",
        rows.len()
    );
    for row in rows {
        let class = match row.verdict.is_good() {
            Some(true) => "good",
            Some(false) => "bad",
            None => "soft",
        };
        html += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"{class}\">{}</td><td class=\"soft\">{}</td></tr>\n",
            escape(&row.metric),
            escape(&row.x.to_string()),
            escape(&row.series),
            row.printed.map_or(String::new(), |value| short(value) + mark(row)),
            short(row.ours),
            row.deviation.map_or(String::new(), percent),
            row.verdict.name(),
            row.evidence.name(),
        );
    }
    html + "</table></div></details>\n"
}

fn mark(row: &Row) -> &'static str {
    match row.mark {
        Some(Mark::Derived) => " <span class=\"soft\">derived</span>",
        Some(Mark::Doubtful) => " <span class=\"soft\">doubtful</span>",
        _ => "",
    }
}

fn not_covered(one: &Uncovered) -> String {
    let items: String = one.printed.iter().map(|text| format!("<li>{}</li>\n", escape(text))).collect();
    let printed = if items.is_empty() { items } else { format!("<p>The paper prints:</p>\n<ul>\n{items}</ul>\n") };
    format!(
        "<section>\n<h3>{}</h3>\n<p>Not covered by the present code: {}.</p>\n{printed}</section>\n",
        escape(&one.figure),
        escape(&one.why)
    )
}
