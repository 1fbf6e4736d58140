//! The report's short form, to be read beside the code.

use super::figure::{Figure, Table, Uncovered, beside};
use super::{Evidence, Report, number};
use crate::paper::{Mark, Paper};

impl Report {
    /// Per paper: what was asked and whether it came out, and why not where it did not.
    pub fn markdown(&self) -> String {
        let quick = if self.quick { " It was cut short (`--quick`): the numbers are rough." } else { "" };
        let mut text = format!(
            "# The papers' figures, from our own code\n\n\
             This is the short form of the report that\n\n\
             \x20   evenkeel reproduce all --out DIR\n\n\
             writes as `report.md`, beside a page with plots, every number and every assumption \
             (`report.html`, `report.json`, `report.csv`). Seed {}; the same seed gives the same bytes.{quick}\n\n\
             Everything runs in the simulator: the daemon's pollers and policies in virtual time, on a model of the \
             drive. One profile per drive ([profiles](../crates/core/ssd-model/profiles/)) and one table of costs per \
             host ([HostCosts](../crates/core/engine/src/host.rs), how it was fitted: \
             [0006](decisions/0006-simulated-host-costs.md), [0008](decisions/0008-vbmq-host-costs.md)) serve all \
             figures.\n\n\
             `lpns corrected` and `fair corrected` are our corrections of the papers' policies, and `no policy` is \
             LPNS's or FairNVMe's layout with round robin. `evenkeel`, the default policy, is in every figure with a \
             policy at play. No paper has these.\n\n\
             {COUNTING}\n{}",
            self.seed,
            summary(self)
        );
        for paper in Paper::ALL {
            let figures: Vec<&Figure> = self.figures.iter().filter(|figure| figure.paper == paper).collect();
            let uncovered: Vec<&Uncovered> = self.uncovered.iter().filter(|one| one.paper == paper).collect();
            if figures.is_empty() && uncovered.is_empty() {
                continue;
            }
            text += &format!("\n## {}\n\n{}.\n", paper.name(), paper.citation());
            text += &numbers(&figures);
            if !figures.is_empty() {
                text += "\n| figure | asked | seen | |\n| --- | --- | --- | --- |\n";
            }
            figures.iter().for_each(|figure| text += &rows(figure));
            beside(&figures).iter().for_each(|shown| text += &table(shown));
            let mut told: Vec<&String> = Vec::new();
            for figure in &figures {
                figure.tables.iter().for_each(|shown| text += &table(shown));
                for why in &figure.reasons {
                    if !told.contains(&why) {
                        let ids = figures.iter().filter(|other| other.reasons.contains(why)).map(|other| other.id);
                        text += &format!("\n**{}**: {}\n", ids.collect::<Vec<_>>().join(", "), one_line(why));
                        told.push(why);
                    }
                }
            }
            for one in uncovered {
                text += &format!("\n**{}**: not covered: {}.\n", one.figure, one_line(&one.why));
            }
        }
        text
    }
}

/// How numbers and demands are counted.
const COUNTING: &str = "\
    Agreement is counted in kinds, the strongest first. *Unseen printed numbers* were not fitted to; they agree \
    within 25 % unless a figure says otherwise. *Fitted* ones say only that a profile or a table of costs can hold \
    them. *Identities and arithmetic* hold whatever the model does. *Claims* are a paper's orders, bounds and \
    shapes; a claim that holds without the policy, too, is *no claim*, and only shown. *Our own demands* are in no \
    paper. The rest is *shown, not judged*.\n";

fn summary(report: &Report) -> String {
    let mut shown = Table::new("", &["paper"]);
    shown.head.extend(Evidence::ALL.map(|evidence| evidence.name().to_owned()));
    for (name, counts) in super::counts(&report.figures) {
        let cells = Evidence::ALL.into_iter().zip(counts).map(|(evidence, count)| evidence.count(count));
        shown.rows.push(std::iter::once(name.to_owned()).chain(cells).collect());
    }
    grid(&shown)
}

/// The printed numbers that say most, and those that were hard to read.
fn numbers(figures: &[&Figure]) -> String {
    let mut shown =
        Table::new("Unseen and doubtful numbers", &["figure", "number", "printed", "ours", "deviation", ""]);
    for row in figures.iter().flat_map(|figure| &figure.rows) {
        let is_doubtful = row.mark == Some(Mark::Doubtful);
        let (Some(printed), true) = (row.printed, is_doubtful || row.evidence == Evidence::Unseen) else { continue };
        let verdict = if is_doubtful { "doubtful, not judged" } else { row.verdict.name() };
        shown.rows.push(vec![
            row.figure.clone(),
            format!("{}, {}: {}", row.series, row.x, row.metric),
            number::short(printed),
            number::short(row.ours),
            row.deviation.map_or(String::new(), number::percent),
            verdict.to_owned(),
        ]);
    }
    if shown.rows.is_empty() { String::new() } else { table(&shown) }
}

/// A line for each kind of numbers, and one for each thing that was asked of a figure.
fn rows(figure: &Figure) -> String {
    let mut text = String::new();
    for evidence in Evidence::ALL {
        let rows = figure.rows.iter().filter(|row| row.evidence == evidence && row.printed.is_some());
        let (good, all) =
            rows.fold((0, 0), |(good, all), row| (good + usize::from(row.verdict.is_good() == Some(true)), all + 1));
        if all > 0 {
            let name = evidence.name();
            text += &format!("| {} | numbers: {name} | {} | |\n", figure.id, evidence.count((good, all)));
        }
    }
    for criterion in &figure.criteria {
        let verdict = match criterion.verdict() {
            bad @ ("broken" | "missed") => format!("**{bad}**"),
            other => other.to_owned(),
        };
        text += &format!("| {} | {} | {} | {verdict} |\n", figure.id, cell(&criterion.text), cell(&criterion.saw));
    }
    if text.is_empty() {
        text = format!("| {} | {} | shown, nothing to compare with | |\n", figure.id, cell(figure.title));
    }
    text
}

fn table(table: &Table) -> String {
    format!("\n{}:\n\n{}", table.title, grid(table))
}

fn grid(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = vec!["---".to_owned(); table.head.len()];
    let rows: String = table.rows.iter().map(|row| line(row)).collect();
    format!("{}{}{rows}", line(&table.head), line(&rule))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cell(text: &str) -> String {
    one_line(text).replace('|', "\\|")
}
