//! The plan for people, in 120 columns.

use super::report::{
    Addition, AdviceRow, Drive, FloorRow, ForecastRow, PolicyReport, PriceRow, PriorityRow, PromiseRow, Report,
    Solution, TenantRow,
};
use crate::table;

/// Longer lines are broken here.
const WIDTH: usize = 118;

/// The most promises that get a sentence each. Tables have all.
const SENTENCES_MAX: usize = 16;

/// Longer names are cut in tables.
const NAME_MAX: usize = 16;

/// What is left of their ends then.
const NAME_END: usize = 6;

/// Everything in the order in which it is read: what was asked, what comes of it, what to do. `verbose`: with the
/// in-order bounds.
pub fn show(report: &Report, verbose: bool) -> String {
    let mut text = drive(&report.drive);
    for warning in &report.warnings {
        text += &paragraph("warning  ", warning);
    }
    text += "\n";
    text += &demands(&report.tenants);
    for policy in &report.policies {
        text += &under(policy, verbose);
    }
    text += LEGEND;
    if let Some(policy) = report.policies.first() {
        text += &promises(policy);
    }
    text += &report.policies.first().map(|policy| prices(policy.policy, &report.prices)).unwrap_or_default();
    text += &floors(&report.floors);
    text += &advice(report);
    text += &report.addition.as_ref().map(addition).unwrap_or_default();
    text += &report.solution.as_ref().map(solution).unwrap_or_default();
    text
}

const LEGEND: &str = "\n\
    Latencies from a command's submission to its completion, waiting included: the mean and the p99. A promise is\n\
    a limit for the p99, or for another percentile. It is expected to hold if that percentile is within the limit,\n\
    and is NOT KEPT if it is above. It holds for certain if the in-order bound is within the limit (--verbose shows\n\
    that bound: the slowest possible command of a drive that serves waiting commands in order).\n";

fn drive(drive: &Drive) -> String {
    let assumed = if drive.named { "" } else { " (assumed: the configuration names none)" };
    format!("drive    {}: {}{assumed}\n", drive.name, drive.profile)
}

/// What was asked.
fn demands(tenants: &[TenantRow]) -> String {
    const HEADING: [&str; 6] = ["tenant", "class", "promise", "priority", "asks for", ""];
    let row = |tenant: &TenantRow| {
        let promise = match (tenant.latency_target_us, &tenant.floor, tenant.weight) {
            (Some(target), ..) => format!("≤ {}{}", table::span(target), table::of_commands(tenant.latency_percentile)),
            (None, Some(floor), _) => format!("≥ {floor}"),
            (None, None, Some(weight)) => format!("weight {weight}"),
            (None, None, None) => "-".to_owned(),
        };
        let mut demand = tenant.demand.clone();
        if tenant.assumed {
            demand += " *";
        }
        let mut notes: Vec<&str> = Vec::new();
        notes.extend(tenant.added.then_some("added"));
        notes.extend(tenant.overcommit.then_some("overcommit"));
        let priority = tenant.priority.unwrap_or("-").to_owned();
        (tenant.name.clone(), vec![tenant.class.to_owned(), promise, priority, demand, notes.join(", ")])
    };
    let mut text = grouped(&HEADING, &[0, 1, 2, 3, 4, 5], tenants.iter().map(row));
    let assumed = tenants.iter().filter(|tenant| tenant.assumed).count();
    if assumed > 0 {
        let what =
            format!("Assumed: the load of {assumed} of {} tenants; declare it under [tenant.demand].", tenants.len());
        text += &paragraph("* ", &what);
    }
    text
}

/// What comes of it under one policy.
fn under(policy: &PolicyReport, verbose: bool) -> String {
    let mut title = policy.policy.to_owned();
    title += if policy.configured { " (as configured)" } else { "" };
    title += &policy.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
    if let Some(why) = &policy.unmodelled {
        return format!("\n{}", paragraph("", &format!("{title}: {why}")));
    }
    let whole = |percent: Option<f64>| percent.unwrap_or(0.0).round();
    let busy = format!(
        "drive {} % busy, busiest poller {} %, from {} commands played",
        whole(policy.drive_busy_percent),
        whole(policy.poller_busy_percent),
        table::count(policy.played_ios.unwrap_or(0) as f64)
    );
    let verdict = |name: &str| {
        let promise = policy.promises.iter().find(|promise| promise.tenant == name);
        promise.map_or("-".to_owned(), verdict)
    };
    let row = |own: &ForecastRow| {
        let mut cells = vec![
            table::count(own.iops),
            format!("{:.0}", own.bandwidth_bytes_s / 1e6),
            table::micros(own.mean_us),
            table::micros(own.p99_us),
            limit(own.limited_by).to_owned(),
            verdict(&own.tenant),
        ];
        if verbose {
            cells.push(own.bound_us.map_or("-".to_owned(), table::micros));
        }
        (own.tenant.clone(), cells)
    };
    let heading = ["tenant", "IOPS", "MB/s", "mean µs", "p99 µs", "held back by", "promise", "in-order bound µs"];
    let heading = &heading[..if verbose { 8 } else { 7 }];
    format!("\n{title}: {busy}\n{}", grouped(heading, &[0, 5, 6], policy.tenants.iter().map(row)))
}

fn verdict(promise: &PromiseRow) -> String {
    match (promise.verdict, promise.overcommit) {
        (verdict @ ("certain" | "expected"), _) => verdict.to_owned(),
        (broken, false) => broken.to_uppercase(),
        (broken, true) => format!("{broken}, allowed"),
    }
}

/// What keeps a tenant from getting more.
fn limit(limited_by: &str) -> &str {
    match limited_by {
        "demand" => "asks no more",
        "share" => "its share",
        "throttle" => "others' promises",
        "limits" => "its limits",
        "poller" => "the poller's CPU",
        "guest" => "its own CPUs",
        _ => "the drive",
    }
}

/// A sentence for each promise.
fn promises(policy: &PolicyReport) -> String {
    if policy.promises.is_empty() {
        return String::new();
    }
    let mut text = format!("\nPromises under {}\n", policy.policy);
    let row = |promise: &PromiseRow| {
        let target = table::span(promise.latency_target_us);
        let head = match (promise.verdict, promise.overcommit) {
            ("certain", _) => format!("{target} will be kept for certain"),
            ("expected", _) => format!("{target} is expected to be kept"),
            ("impossible", false) => format!("{target} is IMPOSSIBLE"),
            (_, false) => format!("{target} will NOT be kept"),
            (_, true) => format!("{target} will not be kept, which is allowed (overcommit = true)"),
        };
        (promise.tenant.clone(), vec![format!("{head}: {}.", promise.reason)])
    };
    // Broken promises come first: operators look for them.
    let (kept, broken): (Vec<_>, Vec<_>) = policy.promises.iter().partition(|promise| promise.is_good());
    let sentences = merge(broken.into_iter().chain(kept).map(row));
    for (names, sentence) in sentences.iter().take(SENTENCES_MAX) {
        text += &paragraph("  ", &format!("{names}: {}", sentence.concat()));
    }
    let untold = sentences.len().saturating_sub(SENTENCES_MAX);
    text + &if untold > 0 { format!("  and {untold} more; --json has them all\n") } else { String::new() }
}

/// What each promise costs, under the policy that is configured.
fn prices(policy: &str, prices: &[PriceRow]) -> String {
    let row = |row: &PriceRow| {
        let mb_s = |bytes_s: f64| format!("{:.0} MB/s", bytes_s / 1e6);
        let (target, looser) = (table::span(row.latency_target_us), table::span(row.looser_target_us));
        let [now, without, then] = [row.best_effort_bytes_s, row.without_bytes_s, row.looser_bytes_s].map(mb_s);
        (row.tenant.clone(), vec![format!("{now} beside {target}, {then} beside {looser}, {without} without it.")])
    };
    if prices.is_empty() {
        return String::new();
    }
    let title = format!("What tenants without a promise get together beside each of these, under {policy}");
    let told = merge(prices.iter().map(row));
    let told = told.iter().map(|(names, sentence)| paragraph("  ", &format!("{names}: {}", sentence.concat())));
    format!("\n{title}\n{}", told.collect::<String>())
}

/// A sentence for each floor.
fn floors(floors: &[FloorRow]) -> String {
    let row = |row: &FloorRow| {
        let head = match (row.kept, row.overcommit) {
            (true, _) => "is expected to be kept",
            (false, false) => "will NOT be kept",
            (false, true) => "will not be kept, which is allowed (overcommit = true)",
        };
        (row.tenant.clone(), vec![format!("{} {head}: {}.", row.floor, row.reason)])
    };
    let sentences = merge(floors.iter().map(row));
    let told = sentences.iter().map(|(names, sentence)| paragraph("  ", &format!("{names}: {}", sentence.concat())));
    if floors.is_empty() { String::new() } else { format!("\nFloors, under evenkeel\n{}", told.collect::<String>()) }
}

/// What would help.
fn advice(report: &Report) -> String {
    let Some(policy) = report.policies.first().filter(|policy| policy.unmodelled.is_none()) else {
        return String::new();
    };
    if policy.promises.iter().all(|promise| matches!(promise.verdict, "certain" | "expected")) {
        return String::new();
    }
    let others = report.policies.iter().skip(1).filter(|other| other.promises_kept).map(|other| other.policy);
    let others: Vec<&str> = others.collect();
    let mut text = String::from("\nWhat would make every promised latency hold");
    if report.advice.is_empty() {
        text += ": no single change to it that was tried.\n";
    } else {
        text += ", any one of these, the smallest first\n";
        for (index, one) in report.advice.iter().enumerate() {
            text += &paragraph(&format!("  {}. ", index + 1), &helps(one));
        }
    }
    if !others.is_empty() {
        text += &paragraph("  ", &format!("Under [policy] name = {} they hold as well.", quoted(&others)));
    }
    if report.solution.is_none() {
        text += "  --solve looks for several changes at once.\n";
    }
    text
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" or ")
}

fn helps(advice: &AdviceRow) -> String {
    let [then, now] = advice.best_effort_bytes_s.map(|bytes_s| format!("{:.0}", bytes_s / 1e6));
    if then == now {
        return format!("{}.", advice.change);
    }
    format!("{}. Tenants without a promise then get {then} MB/s, now {now}.", advice.change)
}

fn addition(addition: &Addition) -> String {
    let names: Vec<String> = addition.tenants.iter().map(|name| format!("{name:?}")).collect();
    let answer = if addition.fits { "fits" } else { "does NOT fit" };
    format!("\n{}", paragraph("", &format!("Adding {} {answer}: {}.", names.join(", "), addition.why)))
}

fn solution(solution: &Solution) -> String {
    let mut text = format!("\n{}", paragraph("", &format!("Solution: {}.", solution.why)));
    let Some(policy) = &solution.policy_toml else {
        let row = |promise: &PromiseRow| (promise.tenant.clone(), vec![promise.reason.clone()]);
        for (names, reason) in merge(solution.promises.iter().map(row)) {
            text += &paragraph("  ", &format!("{names}: {}", reason.concat()));
        }
        return text;
    };
    text += "\n# in place of the [policy] section\n";
    text += policy;
    if solution.remove_priorities {
        text += "\n# remove every priority = ... from the [[tenant]] sections\n";
    }
    if !solution.priorities.is_empty() {
        text += "\n# in the [[tenant]] section of each\n";
        for PriorityRow { tenant, priority } in &solution.priorities {
            text += &format!("priority = {priority:?}    # name = {tenant:?}\n");
        }
    }
    text
}

/// A table in which neighbours that differ by name alone share a row.
fn grouped(heading: &[&str], words: &[usize], rows: impl Iterator<Item = (String, Vec<String>)>) -> String {
    let rows = merge(rows).into_iter().map(|(name, cells)| [vec![name], cells].concat());
    table::layout_with_words(heading, &rows.collect::<Vec<_>>(), words)
}

/// Neighbours with the same cells under one name: `a to f (6)`.
fn merge(rows: impl Iterator<Item = (String, Vec<String>)>) -> Vec<(String, Vec<String>)> {
    let mut groups: Vec<(String, String, usize, Vec<String>)> = Vec::new();
    for (name, cells) in rows {
        match groups.last_mut().filter(|(_, _, _, last)| *last == cells) {
            Some((_, last, count, _)) => (*last, *count) = (name, *count + 1),
            None => groups.push((name.clone(), name, 1, cells)),
        }
    }
    let label = |first: &str, last: &str, count| match count {
        1 => cut(first),
        _ => format!("{} to {} ({count})", cut(first), cut(last)),
    };
    groups.into_iter().map(|(first, last, count, cells)| (label(&first, &last, count), cells)).collect()
}

fn cut(name: &str) -> String {
    if name.chars().count() <= NAME_MAX {
        return name.to_owned();
    }
    // Names that are numbered differ at their ends.
    let end: Vec<char> = name.chars().rev().take(NAME_END).collect();
    name.chars().take(NAME_MAX - 1 - NAME_END).chain(['…']).chain(end.into_iter().rev()).collect()
}

/// Lines of at most [`WIDTH`], those after the first as far in as `lead` is long.
fn paragraph(lead: &str, text: &str) -> String {
    let indent = " ".repeat(lead.chars().count());
    let mut out = String::new();
    for (index, line) in text.lines().enumerate() {
        // What was laid out already (an error's excerpt) keeps its lines.
        if index > 0 {
            out += &format!("{indent}{line}\n");
            continue;
        }
        let mut current = lead.to_owned();
        let mut is_empty = true;
        for word in line.split(' ') {
            if !is_empty && current.chars().count() + 1 + word.chars().count() > WIDTH {
                out += &(current + "\n");
                (current, is_empty) = (indent.clone(), true);
            }
            current += &if is_empty { word.to_owned() } else { format!(" {word}") };
            is_empty = false;
        }
        out += &(current + "\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_are_alike_share_a_line() {
        let rows =
            [("a", "1"), ("b", "1"), ("c", "2"), ("d", "1")].map(|(name, cell)| (name.into(), vec![cell.into()]));
        let merged: Vec<String> = merge(rows.into_iter()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(merged, ["a to b (2)", "c", "d"]);
        let long = "x".repeat(63);
        let merged = merge([(long, vec![])].into_iter());
        assert_eq!(merged[0].0.chars().count(), NAME_MAX);
    }

    #[test]
    fn paragraphs_keep_within_the_width() {
        let text = paragraph("  1. ", &"word ".repeat(60));
        assert!(text.lines().count() == 3 && text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("     word")), "{text}");
        assert_eq!(paragraph("w ", "a\n 7 | b"), "w a\n   7 | b\n");
    }
}
