//! Tables for people.

use api::{BoundRow, DriveHealth, Snapshot, TenantRow};
use io_model::Nanos;

/// Lays out rows under a heading: the first column to the left, numbers to the right. What a drive says of itself may
/// be in it: control characters, which a terminal would act on, are shown as `?`.
pub fn layout(heading: &[&str], rows: &[Vec<String>]) -> String {
    layout_with_words(heading, rows, &[0])
}

/// A table with the columns `words` aligned to the left.
pub fn layout_with_words(heading: &[&str], rows: &[Vec<String>], words: &[usize]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heading[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::new();
        for (column, (cell, width)) in cells.zip(&widths).enumerate() {
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            let gap = if column == 0 { "" } else { "  " };
            line += &if words.contains(&column) { format!("{gap}{cell}{pad}") } else { format!("{gap}{pad}{cell}") };
        }
        shown(line.trim_end()) + "\n"
    };
    let mut out = line(&mut heading.iter().copied());
    for row in rows {
        out += &line(&mut row.iter().map(String::as_str));
    }
    out
}

/// Without control characters, which a terminal would act on.
pub fn shown(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// Microseconds, as many digits as matter.
pub fn micros(us: f64) -> String {
    match us {
        _ if us < 100.0 => format!("{us:.1}"),
        _ if us < 100_000.0 => format!("{us:.0}"),
        _ => format!("{:.0}k", us / 1000.0),
    }
}

/// A time with the unit that fits, to three digits.
pub fn span(us: f64) -> String {
    if us < 1.0 { format!("{:.0} ns", us * 1e3) } else { planner::words(Nanos((us * 1e3) as u64)) }
}

/// A count with a unit prefix.
pub fn count(n: f64) -> String {
    match n {
        _ if n >= 999_500.0 => format!("{:.2}M", n / 1e6),
        _ if n >= 9_999.5 => format!("{:.0}k", n / 1e3),
        _ if n >= 999.5 => format!("{:.1}k", n / 1e3),
        _ => format!("{n:.0}"),
    }
}

/// What a drive says of itself.
pub fn health(health: &DriveHealth) -> String {
    let DriveHealth { temperature_celsius, available_spare_percent, used_percent, media_errors, warnings, .. } = health;
    let warns = if warnings.is_empty() { "nothing".to_owned() } else { warnings.join("; ") };
    format!(
        "{temperature_celsius} °C, {available_spare_percent} % of its spare left, {used_percent} % of its life used, \
         {media_errors} media errors; it warns of: {warns}"
    )
}

/// Which commands a target is for, where these are not 99 of 100.
pub fn of_commands(percentile: Option<f64>) -> String {
    percentile.filter(|percent| *percent != 99.0).map(|percent| format!(" for {percent} %")).unwrap_or_default()
}

/// What a tenant was promised, in few words.
pub fn promise(row: &TenantRow) -> String {
    let target =
        row.latency_target_us.map(|target| format!("≤ {}{}", span(target), of_commands(row.latency_percentile)));
    let floor = row.floor.iter().map(|floor| format!("≥ {floor}"));
    let mut words: Vec<String> = target.into_iter().chain(floor).chain(row.priority.clone()).collect();
    if words.is_empty()
        && let Some(weight) = row.weight.filter(|weight| row.limits.is_none() || *weight > 1)
    {
        words.push(format!("weight {weight}"));
    }
    words.extend(row.limits.as_ref().map(|limits| format!("≤ {limits}")));
    if words.is_empty() { "-".into() } else { words.join(", ") }
}

/// Owner of the key of a tenant's disk, or that the key is not here.
pub fn key(row: &TenantRow) -> String {
    if row.locked { "locked".to_owned() } else { row.encryption.clone().unwrap_or_else(|| "-".to_owned()) }
}

/// `0-3,7`: in ascending order, those that follow each other as one.
fn numbers(numbers: impl Iterator<Item = usize>) -> String {
    let all: Vec<usize> = numbers.collect();
    let run = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        only => only.iter().map(usize::to_string).collect(),
    };
    all.chunk_by(|one, next| one + 1 == *next).map(run).collect::<Vec<_>>().join(",")
}

/// The tables of `evenkeel stats`. `verbose`: with the in-order bounds and their terms.
pub fn stats(snapshot: &Snapshot, verbose: bool) -> String {
    let heading = [
        "tenant", "class", "key", "promise", "IOPS", "MB/s", "mean µs", "p50", "p99", "p99.9", "p99.99", "late",
        "errors", "pollers", "HWQs",
    ];
    let row = |t: &TenantRow| {
        vec![
            t.name.clone(),
            t.class.clone(),
            key(t),
            promise(t),
            count(t.iops),
            format!("{:.1}", t.bw_bytes / 1e6),
            micros(t.mean_us),
            micros(t.p50_us),
            micros(t.p99_us),
            micros(t.p999_us),
            micros(t.p9999_us),
            t.latency_target_us.map_or("-".into(), |_| t.violations.to_string()),
            t.errors.to_string(),
            numbers(t.pollers.iter().copied()),
            numbers(t.hwqs.iter().map(|hwq| usize::from(*hwq))),
        ]
    };
    let mut text = layout(&heading, &snapshot.tenants.iter().map(row).collect::<Vec<_>>());
    for (row, bound) in snapshot.tenants.iter().filter_map(|t| Some((t, t.bound.as_ref()?))).filter(|_| verbose) {
        let vouched = row.bound_us.map_or("none now".into(), |us| format!("{} µs", micros(us)));
        text += &format!("{}: in-order bound {vouched}; {}\n", row.name, grounds(bound));
    }
    text + &foreseen(snapshot) + &prices(snapshot)
}

/// What each promise costs, and what holds others back.
fn prices(snapshot: &Snapshot) -> String {
    let mb_s = |bytes_s: f64| format!("{:.0} MB/s", bytes_s / 1e6);
    let priced = snapshot.tenants.iter().filter_map(|t| Some((t, t.price.as_ref()?)));
    let costs = priced.map(|(t, price)| {
        let [now, without, looser] = [price.others_bw_bytes, price.without_bw_bytes, price.looser_bw_bytes].map(mb_s);
        let target = span(price.looser_target_us);
        format!(
            "{}: by the model others get {now} beside its promise, {looser} with {target}, {without} without\n",
            t.name
        )
    });
    let held = snapshot.tenants.iter().filter_map(|t| Some((&t.name, t.held.as_ref()?)));
    let held = held.map(|(name, held)| format!("{name}: held back by {}\n", held.in_words()));
    costs.chain(held).collect()
}

/// What was predicted beside what came of it, and whose fault a broken promise is. Empty where nothing is known of
/// either.
fn foreseen(snapshot: &Snapshot) -> String {
    let told = |t: &&TenantRow| t.predicted.is_some() || t.kept.is_some() || t.overcommit;
    let beside = |predicted: Option<f64>, measured: f64, show: fn(f64) -> String| {
        format!("{} → {}", predicted.map_or("-".into(), show), show(measured))
    };
    let row = |t: &TenantRow| {
        let predicted = t.predicted.as_ref();
        let promise = match (t.kept, t.overcommit) {
            (Some(true), false) => "kept",
            (Some(true), true) => "kept, overcommitted",
            (Some(false), false) => "BROKEN",
            (Some(false), true) => "BROKEN, overcommitted",
            (None, true) => "overcommitted",
            (None, false) => "-",
        };
        vec![
            t.name.clone(),
            predicted.map_or("-".into(), |predicted| format!("{} load", predicted.demand)),
            beside(predicted.map(|predicted| predicted.iops), t.iops, count),
            beside(predicted.map(|predicted| predicted.mean_us), t.mean_us, micros),
            beside(predicted.map(|predicted| predicted.p99_us), t.p99_us, micros),
            micros(t.waited_us),
            promise.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = snapshot.tenants.iter().filter(told).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let heading = ["predicted → measured", "for", "IOPS", "mean µs", "p99 µs", "waits", "promise"];
    let mut text = layout(&heading, &rows);
    for (name, blame) in snapshot.tenants.iter().filter_map(|t| Some((&t.name, t.blame.as_ref()?))) {
        text += &format!("{name}: its promise fails by {}\n", blame.in_words());
    }
    text
}

/// The terms of a bound, in a line. It holds for drives that serve waiting commands in order.
fn grounds(bound: &BoundRow) -> String {
    let cap = match bound.best_effort_cap {
        Some(cap) if bound.engaged => format!("at most {cap:.0} best-effort commands of 4 KiB in flight"),
        _ => "best effort is not throttled now".into(),
    };
    let published = bound.omega.zip(bound.published_us);
    let published = published.map(|(omega, us)| format!("; as published (Ω = {omega:.0}): {} µs", micros(us)));
    format!(
        "it rests on R = {}/s, L_h = {} µs, {cap}{}",
        count(bound.r_iops),
        micros(bound.l_h_us),
        published.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_unit_that_fits() {
        let spans = [0.25, 60.0, 82_900.0, 250_000.0, 1e6].map(span);
        assert_eq!(spans, ["250 ns", "60.0 µs", "82.9 ms", "250 ms", "1.0 s"]);
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["db".into(), "1.5".into()], vec!["batch-µ".into(), "10".into()]];
        assert_eq!(layout(&["tenant", "µs"], &rows), "tenant    µs\ndb       1.5\nbatch-µ   10\n");
        let words = layout_with_words(&["tenant", "µs"], &rows, &[0, 1]);
        assert_eq!(words, "tenant   µs\ndb       1.5\nbatch-µ  10\n");
        assert_eq!(layout(&["model"], &[vec!["\x1b[2J\nP5800X".into()]]), "model\n?[2J?P5800X\n");
    }

    #[test]
    fn numbers_in_a_row_take_little_room() {
        let told = |all: &[usize]| numbers(all.iter().copied());
        assert_eq!([told(&[]), told(&[3]), told(&[0, 1, 2, 3, 7, 9, 10])], ["", "3", "0-3,7,9-10"]);
    }

    #[test]
    fn numbers_keep_the_digits_that_matter() {
        assert_eq!(
            (micros(12.34), micros(1234.5), micros(2_000_000.0)),
            ("12.3".into(), "1234".into(), "2000k".into())
        );
        assert_eq!((span(0.001), span(0.5), span(50.0)), ("1 ns".into(), "500 ns".into(), "50.0 µs".into()));
        assert_eq!(
            (count(12.0), count(4_210.0), count(825_000.0), count(1_500_000.0)),
            ("12".into(), "4.2k".into(), "825k".into(), "1.50M".into())
        );
    }
}
