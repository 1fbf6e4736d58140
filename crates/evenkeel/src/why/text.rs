//! The answer in words and tables.

use std::fmt::Write;

use api::{Did, Why};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use policy::Percentile;

use crate::events::beside;
use crate::table::{count, layout_with_words, micros, span};

/// All of it.
pub fn why(why: &Why, zone: &TimeZone) -> String {
    let mut text = format!("{}\n{}\n\n{}", verdict(why, zone), shares(why), own(why));
    if !why.neighbours.is_empty() {
        text += &format!("\n{}", neighbours(why));
    }
    if !why.remedies.is_empty() {
        text += "\nwhat would have helped:\n";
    }
    let many = percentile(why).in_words();
    for remedy in &why.remedies {
        let predicted = remedy.predicted_us.map(|us| format!(" ({many} within {} then, by the model)", span(us)));
        // Writing to a String can't fail.
        let _ = writeln!(text, "  {}{}", remedy.what, predicted.unwrap_or_default());
        if let Some(command) = &remedy.command {
            let _ = writeln!(text, "    {command}");
        }
    }
    if !why.events.is_empty() {
        text += "\nwhat happened:\n";
    }
    for event in &why.events {
        let labels = beside(&event.labels);
        let tenant = event.tenant.as_ref().map(|tenant| format!(" {tenant}{labels}")).unwrap_or_default();
        let what = event.what.as_ref().map(|what| format!(": {what}")).unwrap_or_default();
        let _ = writeln!(text, "  {}  {}{tenant}{what}", time(event.at_unix_ms, zone), event.kind.name());
    }
    for note in &why.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// The sentence that was asked for.
fn verdict(why: &Why, zone: &TimeZone) -> String {
    let Why { tenant, drive, policy, .. } = why;
    let date = at(why.from_unix_ms, zone).strftime("%Y-%m-%d").to_string();
    let (from, to) = (time(why.from_unix_ms, zone), time(why.to_unix_ms, zone));
    let labels = beside(&why.labels);
    let when = format!("{tenant}{labels}, {date} {from} to {to}, on drive {drive} under {policy}");
    let usual = why.usual.as_ref();
    match (why.slow, &why.blame) {
        (Some(true), Some(blame)) => format!("{when}: slow, by {}", blame.in_words()),
        (Some(true), None) if usual.is_none() => {
            format!("{when}: slow; it was no better in the half hour before, so nothing shows what was different")
        }
        (Some(true), None) => format!("{when}: slow; the summaries do not show why"),
        (Some(false), _) => format!("{when}: not slow"),
        (None, _) => format!("{when}: no earlier summaries to compare it with"),
    }
}

/// The one that it was promised; the 99th without a promise.
fn percentile(why: &Why) -> Percentile {
    why.latency_percentile.and_then(Percentile::new).unwrap_or_default()
}

/// Where the time went.
fn shares(why: &Why) -> String {
    let Did { mean_us, waited_us, served_us, at_percentile_us, .. } = why.then;
    let part = |us: f64| 100.0 * us / mean_us.max(1e-9);
    let target = why.latency_target_us.map(|target| format!(", the target is {}", span(target)));
    let target = target.unwrap_or_default();
    let many = percentile(why).in_words();
    let alone = why.alone_mean_us.map(|us| format!("; alone it would be {} by the model", span(us)));
    format!(
        "{many} commands took up to {}{target}. Of the mean of {} they waited {} ({:.0} %) in the tenant's queue, \
         and were {} ({:.0} %) with the drive{}.",
        span(at_percentile_us),
        span(mean_us),
        span(waited_us),
        part(waited_us),
        span(served_us),
        part(served_us),
        alone.unwrap_or_default(),
    )
}

fn own(why: &Why) -> String {
    let usual = |show: &dyn Fn(&Did) -> String| why.usual.as_ref().map_or("-".to_owned(), show);
    let mut rows = Vec::new();
    let mut row = |what: &str, show: &dyn Fn(&Did) -> String| {
        rows.push(vec![what.to_owned(), show(&why.then), usual(show)]);
    };
    row("commands a second", &|it| count(it.iops));
    row("MB/s", &|it| format!("{:.1}", it.bw_bytes / 1e6));
    row("outstanding", &|it| format!("{:.1}", it.outstanding));
    row("mean µs", &|it| micros(it.mean_us));
    row("  waited: policy, limits, poller", &|it| micros(it.waited_us));
    row("  served: drive", &|it| micros(it.served_us));
    row("p99 µs", &|it| micros(it.p99_us));
    let promised = percentile(why);
    if promised != Percentile::P99 {
        row(&format!("p{promised} µs, as was promised"), &|it| micros(it.at_percentile_us));
    }
    row("longest µs", &|it| micros(it.max_us));
    if why.latency_target_us.is_some() {
        row("late", &|it| it.late.to_string());
        row("  only because a poller stood still, % of all", &|it| format!("{:.2}", it.stalled_percent));
    }
    row("errors", &|it| it.errors.to_string());
    let percent = |percent: f64| format!("{percent:.1}");
    let before = why.cpu_wait_usual_percent.map_or("-".to_owned(), percent);
    rows.push(vec!["host: % of the time that pollers waited for a CPU".into(), percent(why.cpu_wait_percent), before]);
    let seconds = why.summaries_usual * 10;
    let heading = ["", "then", "usually"];
    let grounds = match why.summaries_usual {
        0 => String::new(),
        _ => format!("usually: over {seconds} s of the half hour before, and of what else was asked for\n"),
    };
    layout_with_words(&heading, &rows, &[0]) + &grounds
}

fn neighbours(why: &Why) -> String {
    let of = |did: Option<&Did>, show: &dyn Fn(&Did) -> String| did.map_or("-".to_owned(), show);
    let from_to = |then: &Did, usual: Option<&Did>, show: &dyn Fn(&Did) -> String| {
        format!("{} → {}", of(usual, show), show(then))
    };
    let row = |it: &api::NeighbourThen| {
        let (then, usual) = (&it.then, it.usual.as_ref());
        vec![
            it.name.clone() + &beside(&it.labels),
            from_to(then, usual, &|did| count(did.iops)),
            from_to(then, usual, &|did| format!("{:.1}", did.bw_bytes / 1e6)),
            from_to(then, usual, &|did| format!("{:.1}", did.outstanding)),
            format!("{:.0}", then.read_percent),
            format!("{:.1}", then.mean_len_bytes / 1024.0),
            if it.grew { "more than usual".to_owned() } else { String::new() },
        ]
    };
    let heading = ["neighbour: usually → then", "commands/s", "MB/s", "outstanding", "% reads", "KiB each", ""];
    let rows: Vec<Vec<String>> = why.neighbours.iter().map(row).collect();
    layout_with_words(&heading, &rows, &[0, 6])
}

fn at(unix_ms: u64, zone: &TimeZone) -> jiff::Zoned {
    let ms = i64::try_from(unix_ms).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(ms).unwrap_or_default().to_zoned(zone.clone())
}

fn time(unix_ms: u64, zone: &TimeZone) -> String {
    at(unix_ms, zone).strftime("%H:%M:%S").to_string()
}
