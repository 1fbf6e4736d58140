//! The report's short form, to be read beside the code.

use super::Report;
use super::figure::{Figure, Table, Uncovered};
use crate::paper::Paper;

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
             host ([HostCosts](../crates/lab/sim/src/host.rs), how it was fitted: \
             [0006](decisions/0006-simulated-host-costs.md), [0008](decisions/0008-vbmq-host-costs.md)) serve all \
             figures. *Evenkeel* in a row is our corrected policy, which the paper has nothing to compare with.\n",
            self.seed
        );
        for paper in Paper::ALL {
            let figures: Vec<&Figure> = self.figures.iter().filter(|figure| figure.paper == paper).collect();
            let uncovered: Vec<&Uncovered> = self.uncovered.iter().filter(|one| one.paper == paper).collect();
            if figures.is_empty() && uncovered.is_empty() {
                continue;
            }
            text += &format!("\n## {}\n\n{}.\n", paper.name(), paper.citation());
            if !figures.is_empty() {
                text += "\n| figure | asked | seen | |\n| --- | --- | --- | --- |\n";
            }
            figures.iter().for_each(|figure| text += &rows(figure));
            for figure in figures {
                figure.tables.iter().for_each(|shown| text += &table(shown));
                if let Some(why) = &figure.deviation {
                    text += &format!("\n**{}**: {}\n", figure.id, one_line(why));
                }
            }
            for one in uncovered {
                text += &format!("\n**{}**: not covered: {}.\n", one.figure, one_line(&one.why));
            }
        }
        text
    }
}

/// A line for each thing that was asked of a figure, and one for its numbers.
fn rows(figure: &Figure) -> String {
    let mut text = String::new();
    for criterion in &figure.criteria {
        let verdict = if criterion.met { "met" } else { "**missed**" };
        text += &format!("| {} | {} | {} | {verdict} |\n", figure.id, cell(&criterion.text), cell(&criterion.saw));
    }
    let (good, judged) = figure.rows_good();
    if judged > 0 {
        text += &format!("| {} | numbers beside print | {good} of {judged} agree | |\n", figure.id);
    } else if figure.criteria.is_empty() {
        text += &format!("| {} | {} | shown, nothing to compare with | |\n", figure.id, cell(figure.title));
    }
    text
}

fn table(table: &Table) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|text| cell(text)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = vec!["---".to_owned(); table.head.len()];
    let rows: String = table.rows.iter().map(|row| line(row)).collect();
    format!("\n{}:\n\n{}{}{rows}", table.title, line(&table.head), line(&rule))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn cell(text: &str) -> String {
    one_line(text).replace('|', "\\|")
}
