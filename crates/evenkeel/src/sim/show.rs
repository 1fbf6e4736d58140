//! A simulation's outcome as tables for people.

use ::sim::{Report, TenantReport};
use policy::Floor;
use scenario::{Scenario, ScenarioTenant};

use super::Outcome;
use crate::table::{self, count, layout, micros, of_commands, span};

/// Everything. `verbose`: with the in-order bounds.
pub fn text(scenario: &Scenario, outcome: &Outcome<'_>, verbose: bool) -> String {
    let mut text = String::new();
    for report in outcome.items {
        text += &run(scenario, report, verbose);
        text += "\n";
    }
    if outcome.items.len() > 1 {
        text += &comparison(scenario, outcome.items);
        text += "\n";
    }
    text += "latencies in µs as the guest's application sees them; late: I/Os above the target; kept: the promised\n\
             percentage of I/Os (99 % by default) is within the target, and no I/O failed";
    if verbose {
        text += "; bound: the longest time in a\n\
                 drive that serves waiting commands in order; over: I/Os that took longer";
    }
    if names_percentile(outcome.items) {
        text += "; at promise: the latency at the\n\
                 promised percentile";
    }
    if scenario.tenants.iter().any(|tenant| !tenant.terms.floor.is_empty()) {
        text += "; of floor: the part of its floor that a tenant got, - if\n\
                 its demand was below the floor; kept from 98 % on";
    }
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

fn run(scenario: &Scenario, report: &Report, verbose: bool) -> String {
    let seconds = report.duration_ns as f64 / 1e9;
    let mut text = format!(
        "{} on {}, layout {}: {seconds} s, seed {}, {} I/Os\n",
        report.policy, report.drive, report.layout, report.seed, report.simulated_ios
    );
    let mut heading = vec![
        "tenant", "promise", "IOPS", "MB/s", "mean µs", "p50", "p95", "p99", "p99.9", "p99.99", "stddev", "late",
        "errors", "slowdown",
    ];
    let each = || report.tenants.iter().zip(&scenario.tenants);
    let mut rows: Vec<Vec<String>> = each().map(|(row, tenant)| cells(row, promise(tenant, report))).collect();
    if names_percentile(std::slice::from_ref(report)) {
        heading.insert(AT_PROMISE_COLUMN, "at promise");
        for (cells, row) in rows.iter_mut().zip(&report.tenants) {
            cells.insert(AT_PROMISE_COLUMN, at_promise(row.at_percentile_ns));
        }
    }
    if each().any(|(_, tenant)| floor(tenant, report).is_some()) {
        heading.insert(FLOOR_COLUMN, "of floor");
        for (cells, (row, tenant)) in rows.iter_mut().zip(each()) {
            let part = floor(tenant, report).and_then(|floor| part_of(&floor, row, report.duration_ns));
            cells.insert(FLOOR_COLUMN, part.map_or("-".into(), of_floor));
        }
    }
    if verbose {
        heading.extend(["bound", "over"]);
        rows.iter_mut().zip(&report.tenants).for_each(|(cells, row)| cells.extend(bound(row)));
    }
    text += &layout(&heading, &rows);
    if verbose {
        text += &exceeded(report);
    }
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

fn cells(row: &TenantReport, promise: String) -> Vec<String> {
    let latency = &row.latency;
    let seen = |ns: f64| if latency.count > 0 { micros(ns / 1e3) } else { "-".into() };
    let us = |ns: u64| seen(ns as f64);
    vec![
        row.name.clone(),
        promise,
        count(row.iops),
        format!("{:.1}", row.bandwidth_bytes_s / 1e6),
        seen(latency.mean_ns),
        us(latency.p50_ns),
        us(latency.p95_ns),
        us(latency.p99_ns),
        us(latency.p999_ns),
        us(latency.p9999_ns),
        seen(latency.stddev_ns),
        row.target_ns.map_or("-".into(), |_| row.over_target.to_string()),
        row.errors.to_string(),
        row.slowdown.map_or("-".into(), |slowdown| format!("{slowdown:.2}")),
    ]
}

/// The in-order bound, and the I/Os that took longer. These are counted against the bound of their time; it may be gone
/// at the end.
fn bound(row: &TenantReport) -> [String; 2] {
    let vouched_ns = row.bound.as_ref().and_then(|bound| bound.vouched_ns);
    let over = (vouched_ns.is_some() || row.over_bound > 0).then(|| row.over_bound.to_string());
    [vouched_ns.map_or("-".into(), |ns| micros(ns as f64 / 1e3)), over.unwrap_or("-".into())]
}

/// Whether a promise is for other than 99 of 100 I/Os: no other column may show what it is judged by.
fn names_percentile(runs: &[Report]) -> bool {
    let percentile = |row: &TenantReport| row.latency_percentile.is_some_and(|percent| percent != 99.0);
    runs.iter().flat_map(|report| &report.tenants).any(percentile)
}

fn at_promise(took_ns: Option<u64>) -> String {
    took_ns.map_or("-".into(), |ns| micros(ns as f64 / 1e3))
}

/// A part of a floor. How many times a tiny one was met says nothing.
fn of_floor(part: f64) -> String {
    if part > 10.0 { ">1000 %".into() } else { format!("{:.0} %", part * 100.0) }
}

/// Where "at promise" stands: after the percentiles.
const AT_PROMISE_COLUMN: usize = 10;
/// Where "of floor" stands: after the throughput.
const FLOOR_COLUMN: usize = 4;
/// A tenant that got this fraction of its floor got its floor.
const KEPT: f64 = 0.98;
/// A tenant with fewer commands outstanding on average did not ask for all that it could get.
const ASKS: f64 = 0.8;

/// A tenant's floor, under a policy that keeps floors.
fn floor(tenant: &ScenarioTenant, report: &Report) -> Option<Floor> {
    Some(tenant.terms.floor).filter(|floor| !floor.is_empty() && report.policy == "evenkeel")
}

/// The part of its floor that a tenant got; `None`: it did not ask for all of it, and got less.
fn part_of(floor: &Floor, row: &TenantReport, duration_ns: u64) -> Option<f64> {
    let of = |got: f64, least: u64| if least > 0 { got / least as f64 } else { f64::INFINITY };
    let mib_s = row.bandwidth_bytes_s / f64::from(1 << 20);
    let part = of(row.iops, floor.ios_per_sec).min(of(mib_s, floor.mbytes_per_sec));
    let asks = row.latency.mean_ns * row.latency.count as f64 >= ASKS * duration_ns as f64;
    Some(part).filter(|part| asks || *part >= KEPT)
}

/// A tenant's promise, or what it has instead under the policy of a report.
fn promise(tenant: &ScenarioTenant, report: &Report) -> String {
    let priority = matches!(report.policy.as_str(), "wrr" | "drr").then(|| tenant.terms.priority.name());
    let target = tenant.terms.class.promise().map(|(target, percentile)| {
        format!("≤ {}{}", span(target.as_micros_f64()), of_commands(Some(percentile.percent())))
    });
    let least = floor(tenant, report).map(|floor| format!("≥ {floor}"));
    match (target.or(least), priority) {
        (Some(promise), None) => promise,
        (Some(promise), Some(priority)) => format!("{promise}, {priority}"),
        (None, None) => format!("weight {}", tenant.terms.class.weight().unwrap_or(1)),
        (None, Some(priority)) => priority.to_owned(),
    }
}

/// What a bound rests on, where it did not hold.
fn exceeded(report: &Report) -> String {
    let mut text = String::new();
    for row in report.tenants.iter().filter(|row| row.over_bound > 0) {
        text += &format!(
            "{}: {} of {} I/Os took longer with the drive than the bound, which rests on L_h, a lone 4 KiB command's\n\
             latency, and on a drive that serves waiting commands in order: one that hashes addresses does not\n",
            row.name, row.over_bound, row.latency.count
        );
    }
    text
}

/// The policies side by side.
fn comparison(scenario: &Scenario, runs: &[Report]) -> String {
    let worst = if names_percentile(runs) { "worst at promise" } else { "worst p99 of a promise" };
    let heading = ["policy", worst, "kept", "others MB/s", "all IOPS", "fairness", "largest slowdown"];
    let rows: Vec<Vec<String>> = runs.iter().map(|report| compare(scenario, report)).collect();
    table::layout(&heading, &rows)
}

fn compare(scenario: &Scenario, report: &Report) -> Vec<String> {
    let (promised, others): (Vec<_>, Vec<_>) =
        report.tenants.iter().zip(&scenario.tenants).partition(|(_, tenant)| tenant.terms.class.is_guaranteed());
    let mb_s = || others.iter().map(|(row, _)| row.bandwidth_bytes_s).sum::<f64>() / 1e6;
    let number = |value: Option<f64>, digits| value.map_or("-".into(), |value| format!("{value:.digits$}"));
    vec![
        report.policy.clone(),
        at_promise(promised.iter().filter_map(|(row, _)| row.at_percentile_ns).max()),
        with_floors(kept(promised.iter().map(|(row, _)| *row)), others.iter(), report).into(),
        number((!others.is_empty()).then(mb_s), 1),
        count(report.total_iops()),
        number(report.fairness_index, 3),
        number(report.max_slowdown, 2),
    ]
}

/// Whether all promises were kept; none can be judged without I/O.
fn kept<'a>(promised: impl Iterator<Item = &'a TenantReport>) -> &'static str {
    let mut verdict = None;
    for row in promised {
        if row.kept == Some(false) {
            return "NO";
        }
        verdict = Some(verdict.unwrap_or(true) && row.kept.is_some());
    }
    if verdict == Some(true) { "yes" } else { "-" }
}

/// Adds the other tenants' floors, for those that asked for theirs.
fn with_floors<'a>(
    targets: &'static str,
    others: impl Iterator<Item = &'a (&'a TenantReport, &'a ScenarioTenant)>,
    report: &Report,
) -> &'static str {
    let part =
        |(row, tenant): &(&TenantReport, &ScenarioTenant)| part_of(&floor(tenant, report)?, row, report.duration_ns);
    match (targets, others.filter_map(part).reduce(f64::min)) {
        (targets, None) => targets,
        (_, Some(part)) if part < KEPT => "NO",
        ("NO", _) => "NO",
        _ => "yes",
    }
}

#[cfg(test)]
mod tests {
    use ::sim::{BoundReport, Latencies, Moments};

    use super::*;

    fn row(kept: Option<bool>) -> TenantReport {
        TenantReport {
            name: "db".into(),
            iops: 0.0,
            bandwidth_bytes_s: 0.0,
            reads: Moments::default(),
            writes: Moments::default(),
            errors: 0,
            latency: Latencies { count: 9, ..Latencies::default() },
            windows: Vec::new(),
            operations: std::collections::BTreeMap::new(),
            target_ns: Some(50_000),
            latency_percentile: Some(99.0),
            at_percentile_ns: None,
            cautious_ns: None,
            waited: 0.0,
            kept,
            over_target: 0,
            bound: None,
            over_bound: 0,
            slowdown: None,
        }
    }

    #[test]
    fn promises_are_kept_only_if_each_of_them_is() {
        let kept = |each: &[Option<bool>]| kept(each.iter().map(|kept| row(*kept)).collect::<Vec<_>>().iter());
        assert_eq!((kept(&[Some(true); 2]), kept(&[Some(true), None]), kept(&[])), ("yes", "-", "-"));
        assert_eq!((kept(&[Some(true), Some(false)]), kept(&[None, Some(false)])), ("NO", "NO"));
    }

    #[test]
    fn a_floor_is_judged_where_it_was_asked_for() {
        let part = |iops: f64, outstanding: f64, floor: Floor| {
            let latency = Latencies { count: iops as u64, mean_ns: outstanding * 1e9 / iops, ..Latencies::default() };
            let got = TenantReport { iops, bandwidth_bytes_s: iops * 4096.0, latency, ..row(None) };
            part_of(&floor, &got, 1_000_000_000).map(|part| (part * 100.0).round())
        };
        let ios = Floor { ios_per_sec: 10_000, mbytes_per_sec: 0 };
        assert_eq!(
            (part(5_000.0, 4.0, ios), part(5_000.0, 0.5, ios), part(10_000.0, 0.5, ios)),
            (Some(50.0), None, Some(100.0))
        );
        let both = Floor { mbytes_per_sec: 50, ..ios };
        assert_eq!(part(10_240.0, 4.0, both), Some(80.0));
        assert_eq!([0.8, 10.0, 142_460.0].map(of_floor), ["80 %", "1000 %", ">1000 %"]);
    }

    #[test]
    fn a_bound_that_nobody_vouches_for_is_not_shown() {
        let shown = |corrected_ns, vouched_ns, over_bound| {
            let bound = Some(BoundReport { published_ns: Some(9_000), corrected_ns, vouched_ns });
            super::bound(&TenantReport { bound, over_bound, ..row(None) })
        };
        assert_eq!(shown(None, None, 0), ["-", "-"]);
        assert_eq!(shown(Some(7_000), Some(7_000), 2), ["7.0", "2"]);
        assert_eq!(shown(None, Some(9_000), 3), ["9.0", "3"]);
    }
}
