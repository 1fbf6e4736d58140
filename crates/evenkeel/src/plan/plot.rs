//! `--plot`: the latency of guaranteed tenants against the load, as a page.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use io_model::Nanos;
use planner::{Load, Planner, Site, Tenant};
use reproduce::report::{Plot, Row, escape, page};

use super::choices::Choice;

/// Parts of the declared load, in percent.
const LOADS_PERCENT: [u32; 14] = [2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 125, 150];

/// The most tenants that are drawn: a plot has this many colours.
const DRAWN: usize = 8;

/// A path that ends in `.html`.
///
/// # Errors
/// Another one: it would not be shown as what it is.
pub fn parse_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension == "html" => Ok(path),
        _ => Err("write a file name that ends in .html: the plot is a page".to_owned()),
    }
}

/// Writes the page.
///
/// # Errors
/// The file can't be written.
pub fn write(path: &Path, site: &Site, choices: &[Choice]) -> Result<()> {
    std::fs::write(path, draw(site, choices)).with_context(|| format!("can't write {}", path.display()))
}

/// The page: for each policy p99 and mean of the guaranteed tenants, with their targets as lines across.
pub fn draw(site: &Site, choices: &[Choice]) -> String {
    let mut content = String::from(
        "<h1>Latency against load</h1>\n\
         <p>Short simulations in which all tenants ask for a part of their declared load, up to \
         150 %: of their rates, or of their outstanding commands, at least one. \
         Dashed lines are latency targets.</p>\n",
    );
    for choice in choices {
        let named = if choice.configured { " (as configured)" } else { "" };
        content += &format!("<h2>{}{named}</h2>\n", escape(choice.policy.name()));
        content += &under(site, choice);
    }
    page("Evenkeel: latency against load", &content)
}

fn under(site: &Site, choice: &Choice) -> String {
    let planner = Planner::new(site);
    let drawn = drawn(&choice.tenants);
    if drawn.is_empty() {
        return "<p>No tenant has a latency target.</p>\n".to_owned();
    }
    let mut rows = Vec::new();
    for percent in LOADS_PERCENT {
        let tenants: Vec<Tenant> = choice.tenants.iter().map(|tenant| scaled(tenant, percent)).collect();
        let Some(outcome) = planner.guess(&choice.policy, &tenants) else {
            return "<p>It can't be played.</p>\n".to_owned();
        };
        for (index, series) in &drawn {
            let Some(own) = outcome.forecast.tenants.get(*index) else { continue };
            let mut push = |metric, time: Nanos| rows.push(Row::new(series, percent, metric, time.as_micros_f64()));
            push(P99, own.p99);
            push(MEAN, own.mean);
        }
    }
    let plots = [P99, MEAN].map(|metric| {
        let plot = Plot::lines(metric, "load (% of what is declared)").log_y();
        targets(&choice.tenants, &drawn).into_iter().fold(plot, |plot, (us, label)| plot.mark(us, &label))
    });
    plots.iter().filter_map(|plot| plot.draw(&rows)).map(|drawing| drawing.html()).collect()
}

const P99: &str = "p99 latency (µs)";
const MEAN: &str = "mean latency (µs)";

/// The tenants to draw with the names of their lines: of those that are alike in all but name the first, the tightest
/// targets if there are too many.
fn drawn(tenants: &[Tenant]) -> Vec<(usize, String)> {
    let mut kinds: Vec<(usize, usize)> = Vec::new();
    for (index, tenant) in tenants.iter().enumerate().filter(|(_, tenant)| tenant.target().is_some()) {
        let alike = |first: usize| {
            tenants.get(first).is_some_and(|first| Tenant { name: tenant.name.clone(), ..first.clone() } == *tenant)
        };
        match kinds.iter_mut().find(|(first, _)| alike(*first)) {
            Some((_, count)) => *count += 1,
            None => kinds.push((index, 1)),
        }
    }
    kinds.sort_by_key(|(index, _)| tenants.get(*index).and_then(Tenant::target));
    let label = |(index, count): (usize, usize)| {
        let name = tenants.get(index)?.name.clone();
        Some((index, if count > 1 { format!("{name} and {} like it", count - 1) } else { name }))
    };
    kinds.into_iter().take(DRAWN).filter_map(label).collect()
}

/// Each target once, with those whose it is.
fn targets(tenants: &[Tenant], drawn: &[(usize, String)]) -> Vec<(f64, String)> {
    let mut all: Vec<(f64, String)> = Vec::new();
    for (index, series) in drawn {
        let Some(target) = tenants.get(*index).and_then(Tenant::target) else { continue };
        let us = target.as_micros_f64();
        match all.iter_mut().find(|(known, _)| *known == us) {
            Some((_, label)) => *label += &format!(", {series}"),
            None => all.push((us, format!("target of {series}"))),
        }
    }
    all
}

fn scaled(tenant: &Tenant, percent: u32) -> Tenant {
    let part = f64::from(percent) / 100.0;
    let load = match tenant.load {
        Load::Closed { depth } => Load::Closed { depth: (f64::from(depth) * part).round().max(1.0) as u32 },
        Load::Open { rate_iops } => Load::Open { rate_iops: rate_iops * part },
    };
    Tenant { load, ..tenant.clone() }
}
