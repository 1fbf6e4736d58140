//! The last hour of all tenants, for the page.

use std::collections::BTreeMap;

use api::{HOUR_MINUTES, LastHour, TenantHour};
use history::Interval;

const MINUTE_MS: u64 = 60_000;

/// The hour's length.
pub(super) const HOUR_MS: u64 = HOUR_MINUTES as u64 * MINUTE_MS;

/// The hour before `to_unix_ms`, from the intervals in it.
pub(super) fn last_hour(intervals: &[Interval], to_unix_ms: u64) -> LastHour {
    let from_unix_ms = to_unix_ms.saturating_sub(HOUR_MS);
    let mut tenants: BTreeMap<&str, Vec<Option<u64>>> = BTreeMap::new();
    for interval in intervals {
        // An interval belongs to the minute of its middle: with that, each of six has a place of its own.
        let middle = interval.at_unix_ms.saturating_add(u64::from(interval.span_ms) / 2);
        let minute = middle.checked_sub(from_unix_ms).map(|after| (after / MINUTE_MS) as usize);
        let Some(minute) = minute.filter(|minute| *minute < HOUR_MINUTES) else { continue };
        for tenant in interval.tenants.iter().filter(|it| it.commands() > 0) {
            let minutes = tenants.entry(&tenant.name).or_insert_with(|| vec![None; HOUR_MINUTES]);
            minutes[minute] = minutes[minute].max(Some(tenant.p99_ns));
        }
    }
    let tenants = tenants.into_iter().map(|(name, p99_ns)| TenantHour { name: name.to_owned(), p99_ns }).collect();
    LastHour { to_unix_ms, tenants }
}

#[cfg(test)]
mod tests {
    use history::Summary;

    use super::*;

    #[test]
    fn a_minute_shows_its_worst_summary() {
        let to = 10 * HOUR_MS;
        let summary = |p99_ns: u64, reads: u32| Summary { name: "db".into(), reads, p99_ns, ..Summary::default() };
        let at = |before_ms: u64, p99_ns: u64, reads: u32| Interval {
            at_unix_ms: to - before_ms,
            span_ms: 10_000,
            tenants: vec![summary(p99_ns, reads)],
            ..Interval::default()
        };
        let intervals = [
            // Its middle is before the hour, and that of the next one within it.
            at(HOUR_MS + 6_000, 9, 1),
            at(HOUR_MS + 4_000, 1, 1),
            at(95_000, 5, 1),
            at(85_000, 7, 1),
            at(75_000, 6, 1),
            // Nothing completed.
            at(30_000, 8, 0),
        ];
        let hour = last_hour(&intervals, to);
        let [db] = &*hour.tenants else { panic!("{hour:?}") };
        let seen: Vec<_> = db.p99_ns.iter().enumerate().filter_map(|(at, ns)| Some((at, (*ns)?))).collect();
        assert_eq!((db.p99_ns.len(), seen), (60, vec![(0, 1), (58, 7)]));
    }
}
