//! The times that a person types.

use api::MAX_WHY_MS;
use io_model::Nanos;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan, Zoned};

/// A time that can't be asked about.
#[derive(Debug, thiserror::Error)]
#[error("{option} {value:?}: {remedy}")]
pub struct BadTime {
    option: &'static str,
    value: String,
    remedy: &'static str,
}

/// The minute that begins at a time.
///
/// # Errors
/// It is no time, or has not been.
pub fn minute(at: &str, now: Timestamp, zone: &TimeZone) -> Result<(Timestamp, Timestamp), BadTime> {
    let bad = |remedy| BadTime { option: "--at", value: at.to_owned(), remedy };
    let expected = "expected a time such as 03:12, 03:12:30, 2026-11-24T03:12 or 2026-11-24T03:12Z";
    let from = parse(at, now, zone).ok_or_else(|| bad(expected))?;
    if from < Timestamp::UNIX_EPOCH {
        return Err(bad("nothing is kept of a time before 1970"));
    }
    if from > now {
        return Err(bad("that time has not come yet; name one that has been"));
    }
    Ok((from, from + SignedDuration::from_secs(60)))
}

fn parse(at: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    // With where it is so late.
    if let Ok(time) = at.parse::<Timestamp>() {
        return Some(time);
    }
    if let Ok(time) = at.parse::<Zoned>() {
        return Some(time.timestamp());
    }
    // What follows takes nothing else behind it: a zone would be left out, and the answer be about another hour.
    let dates = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"];
    if let Some(time) = dates.iter().find_map(|format| DateTime::strptime(format, at).ok()) {
        return last_of(time, now, zone);
    }
    let time = ["%H:%M", "%H:%M:%S"].iter().find_map(|format| Time::strptime(format, at).ok())?;
    let today = now.to_zoned(zone.clone()).date();
    let on = |date: Date| last_of(date.to_datetime(time), now, zone);
    on(today).filter(|it| *it <= now).or_else(|| on(today.checked_sub(1.day()).ok()?))
}

/// When it was so late last: twice where clocks were set back. The first time where even that has not come yet.
fn last_of(time: DateTime, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let of = |it: Result<Zoned, jiff::Error>| Some(it.ok()?.timestamp());
    let later = of(zone.to_ambiguous_zoned(time).later())?;
    if later <= now { Some(later) } else { of(zone.to_ambiguous_zoned(time).earlier()) }
}

/// The time until now.
///
/// # Errors
/// It is no span, or too long.
pub fn last(span: &str, now: Timestamp) -> Result<(Timestamp, Timestamp), BadTime> {
    let bad = |remedy| BadTime { option: "--last", value: span.to_owned(), remedy };
    let Nanos(ns) = Nanos::from_fio(span).map_err(|_| bad("expected a span such as 30s, 10m or 1h"))?;
    if !(1_000_000_000..=MAX_WHY_MS * 1_000_000).contains(&ns) {
        return Err(bad("ask for a second at least and an hour at most; --at names a minute further back"));
    }
    // An hour and less fits.
    Ok((now - SignedDuration::from_nanos(i64::try_from(ns).unwrap_or(i64::MAX)), now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin() -> TimeZone {
        // Without the host's table of zones.
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone")
    }

    fn at(text: &str, now: &str) -> Result<String, String> {
        let now = now.parse().expect("a time");
        let (from, to) = minute(text, now, &berlin()).map_err(|error| error.to_string())?;
        assert_eq!(to.duration_since(from).as_secs(), 60);
        Ok(from.to_string())
    }

    #[test]
    fn times_are_the_hosts_and_the_last_that_were() {
        let now = "2026-11-24T12:00:00Z";
        for (text, wanted) in [
            ("03:12", "2026-11-24T02:12:00Z"),
            ("03:12:30", "2026-11-24T02:12:30Z"),
            // It is 13:00 there: 14:00 was yesterday.
            ("14:00", "2026-11-23T13:00:00Z"),
            ("2026-11-24T03:12", "2026-11-24T02:12:00Z"),
            ("2026-11-24 03:12:05", "2026-11-24T02:12:05Z"),
            ("2026-11-24T03:12Z", "2026-11-24T03:12:00Z"),
            ("2026-11-24T03:12+05:00", "2026-11-23T22:12:00Z"),
            ("2026-11-24T03:12[UTC]", "2026-11-24T03:12:00Z"),
        ] {
            assert_eq!(at(text, now).as_deref(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn an_hour_that_comes_twice_is_the_last_one_that_was() {
        // Clocks were set back at 01:00Z, from three to two.
        for (now, wanted) in [
            ("2026-10-25T00:45:00Z", "2026-10-25T00:30:00Z"),
            ("2026-10-25T01:15:00Z", "2026-10-25T00:30:00Z"),
            ("2026-10-25T01:45:00Z", "2026-10-25T01:30:00Z"),
        ] {
            assert_eq!(at("02:30", now).as_deref(), Ok(wanted), "{now}");
            assert_eq!(at("2026-10-25T02:30", now).as_deref(), Ok(wanted), "{now}");
        }
    }

    #[test]
    fn what_is_no_time_is_told() {
        let now = "2026-11-24T12:00:00Z";
        for text in
            ["", "3", "25:00", "noon", "2026-13-01T00:00", "1", "-1", "2026-11-24T03:12:00:00", "03:12Z", "03:12+01:00"]
        {
            let told = at(text, now).expect_err(text);
            assert!(told.starts_with(&format!("--at {text:?}: expected a time such as 03:12")), "{told}");
        }
        assert!(at("1969-12-31T23:59", now).expect_err("long ago").contains("before 1970"));
        assert!(at("2026-11-25T03:12", now).expect_err("tomorrow").contains("has not come yet"));
    }

    #[test]
    fn spans_end_now() {
        let now: Timestamp = "2026-11-24T12:00:00Z".parse().expect("a time");
        let seconds =
            |text: &str| last(text, now).map(|(from, to)| (to.duration_since(from).as_secs(), to == now)).ok();
        assert_eq!(
            (seconds("10m"), seconds("1h"), seconds("30s")),
            (Some((600, true)), Some((3600, true)), Some((30, true)))
        );
        for text in ["", "0", "1ns", "61m", "2h", "x", "-5m"] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
