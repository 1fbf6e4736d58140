//! A simulation's outcome as tables for people.

use ::sim::{Report, TenantReport};
use config::{Class, Scenario};

use super::Outcome;
use crate::table::{self, count, layout, micros};

/// Everything.
pub fn text(scenario: &Scenario, outcome: &Outcome<'_>) -> String {
    let mut text = String::new();
    for report in outcome.runs {
        text += &run(scenario, report);
        text += "\n";
    }
    if outcome.runs.len() > 1 {
        text += &comparison(scenario, outcome.runs);
        text += "\n";
    }
    text += "latencies in µs as the guest's application sees them; late: I/Os over the promise; bound: what the policy\n\
             vouches for, with the drive";
    if outcome.alone_mean_ns.is_some() {
        text += "; slowdown: mean latency over the tenant's alone on the drive without a policy";
    }
    text += "\n";
    for note in outcome.notes {
        text += &format!("note     {note}\n");
    }
    for warning in &outcome.warnings {
        text += &format!("warning  {}\n", warning.replace('\n', "\n         "));
    }
    text
}

fn run(scenario: &Scenario, report: &Report) -> String {
    let seconds = report.duration_ns as f64 / 1e9;
    let mut text = format!(
        "{} on {}, layout {}: {seconds} s, seed {}, {} I/Os\n",
        report.policy, report.drive, report.layout, report.seed, report.simulated_ios
    );
    let heading = [
        "tenant", "promise", "IOPS", "MB/s", "mean µs", "p50", "p95", "p99", "p99.9", "p99.99", "stddev", "bound",
        "late", "errors", "slowdown",
    ];
    let rows: Vec<Vec<String>> =
        report.tenants.iter().zip(&scenario.tenants).map(|(row, tenant)| cells(row, tenant.class)).collect();
    text += &layout(&heading, &rows);
    text += &operations(report);
    let slowdowns = report.fairness_index.zip(report.max_slowdown);
    if let Some((fairness, slowdown)) = slowdowns {
        text += &format!("fairness index {fairness:.3}, largest slowdown {slowdown:.2}; ");
    }
    match report.violations {
        0 => text += "checks: all held\n",
        broken => {
            text += &format!("checks: broken {broken} times\n");
            for violation in &report.broken {
                text += &format!("  at {} ns: {:?}: {}\n", violation.at_ns, violation.rule, violation.what);
            }
        }
    }
    text
}

fn cells(row: &TenantReport, class: Class) -> Vec<String> {
    let latency = &row.latency;
    let seen = |ns: f64| if latency.count > 0 { micros(ns / 1e3) } else { "-".into() };
    let us = |ns: u64| seen(ns as f64);
    let bound = row.bound.as_ref().map(|bound| bound.corrected_ns.unwrap_or(bound.published_ns));
    vec![
        row.name.clone(),
        promise(class),
        count(row.iops),
        format!("{:.1}", row.bandwidth_bytes_s / 1e6),
        seen(latency.mean_ns),
        us(latency.p50_ns),
        us(latency.p95_ns),
        us(latency.p99_ns),
        us(latency.p999_ns),
        us(latency.p9999_ns),
        seen(latency.stddev_ns),
        bound.map_or("-".into(), us),
        row.target_ns.map_or("-".into(), |_| row.over_target.to_string()),
        row.errors.to_string(),
        row.slowdown.map_or("-".into(), |slowdown| format!("{slowdown:.2}")),
    ]
}

fn promise(class: Class) -> String {
    match class {
        Class::Guaranteed { latency_target } => format!("≤ {} µs", micros(latency_target.as_micros_f64())),
        Class::BestEffort { weight } => format!("weight {weight}"),
    }
}

/// Operations of applications that have them.
fn operations(report: &Report) -> String {
    let mut text = String::new();
    for tenant in &report.tenants {
        for (kind, latency) in &tenant.operations {
            let [mean, p95] = [latency.mean_ns, latency.p95_ns as f64].map(|ns| micros(ns / 1e3));
            let p99 = micros(latency.p99_ns as f64 / 1e3);
            let number = count(latency.count as f64);
            text += &format!("{}: {number} operations {kind}, mean {mean} µs, p95 {p95}, p99 {p99}\n", tenant.name);
        }
    }
    text
}

/// The policies side by side.
fn comparison(scenario: &Scenario, runs: &[Report]) -> String {
    let heading =
        ["policy", "worst p99 of a promise", "kept", "others MB/s", "all IOPS", "fairness", "largest slowdown"];
    let rows: Vec<Vec<String>> = runs.iter().map(|report| compare(scenario, report)).collect();
    table::layout(&heading, &rows)
}

fn compare(scenario: &Scenario, report: &Report) -> Vec<String> {
    let (promised, others): (Vec<_>, Vec<_>) =
        report.tenants.iter().zip(&scenario.tenants).partition(|(_, tenant)| tenant.class.is_guaranteed());
    let p99 = promised.iter().map(|(row, _)| row.latency.p99_ns).max();
    let kept = promised.iter().all(|(row, _)| row.target_ns.is_none_or(|target| row.latency.p99_ns <= target));
    let bytes: f64 = others.iter().map(|(row, _)| row.bandwidth_bytes_s).sum();
    let number = |value: Option<f64>, digits| value.map_or("-".into(), |value| format!("{value:.digits$}"));
    vec![
        report.policy.clone(),
        p99.map_or("-".into(), |ns| micros(ns as f64 / 1e3)),
        p99.map_or("-".into(), |_| if kept { "yes".into() } else { "NO".into() }),
        format!("{:.1}", bytes / 1e6),
        count(report.total_iops()),
        number(report.fairness_index, 3),
        number(report.max_slowdown, 2),
    ]
}
