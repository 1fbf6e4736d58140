//! `evenkeel events`: the event log of a running daemon.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Result, bail};
use api::{Event, EventsAfter, MAX_EVENT_WAIT_S, Problem, Rest, labels_in_words};

use crate::disk::Daemon;

/// Show recent events: changes of disks, clients and promises.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Keep printing new events until interrupted
    #[arg(long)]
    follow: bool,

    /// Only events after the one with this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    since: u64,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs the command.
///
/// # Errors
/// There is no daemon, it went away, or it refused.
pub fn run(args: &Args) -> Result<()> {
    let rest = Rest::new(&args.daemon.socket);
    let mut after = EventsAfter { since: args.since, wait_s: 0 };
    let mut has_answered = false;
    loop {
        let told = match rest.events(after) {
            Err(error) if has_answered && is_end(&error) => {
                let daemon = args.daemon.socket.display();
                bail!(
                    "the daemon at {daemon} stopped; `--since {}` goes on from there once it runs again",
                    after.since
                );
            }
            told => told?,
        };
        has_answered = true;
        let mut out = std::io::stdout().lock();
        if told.lost {
            let lost = if args.daemon.json { "{\"lost\":true}" } else { "(some are not known any more)" };
            writeln!(out, "{lost}")?;
        }
        for event in &told.events {
            let line = if args.daemon.json { serde_json::to_string(event)? } else { line(event) };
            writeln!(out, "{line}")?;
        }
        out.flush()?;
        if after.wait_s == 0 && told.events.is_empty() && !args.follow {
            return Ok(());
        }
        // First the known events, then new ones as they come.
        let wait_s = if args.follow && told.events.is_empty() { MAX_EVENT_WAIT_S } else { 0 };
        after = EventsAfter { since: told.next, wait_s };
    }
}

/// Whether a daemon that answered before is gone, rather than refuses.
fn is_end(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Problem>().is_none_or(|problem| problem.code == "ending")
}

fn line(event: &Event) -> String {
    let Event { number, at_unix_ms, kind, tenant, labels, what } = event;
    let tenant = tenant.as_deref().unwrap_or("-").to_owned() + &beside(labels);
    let what = what.as_ref().map(|what| format!("  {what}")).unwrap_or_default();
    format!("{number}  {}  {:<14}  {tenant}{what}", utc(*at_unix_ms), kind.name())
}

/// Labels behind a name, in parentheses.
pub(crate) fn beside(labels: &BTreeMap<String, String>) -> String {
    if labels.is_empty() { String::new() } else { format!(" ({})", labels_in_words(labels)) }
}

/// `2026-11-23T14:05:06Z`.
fn utc(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a number of days after 1 January 1970, in the Gregorian calendar.
///
/// Years are taken to begin in March, so that a leap day is the last day of its year.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // From 1 March of the year 0.
    let days = days + 719_468;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date_u() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_700_000_000_999), "2023-11-14T22:13:20Z");
        assert_eq!(utc(4_107_542_399_000), "2100-02-28T23:59:59Z");
        assert_eq!(utc(4_107_542_400_000), "2100-03-01T00:00:00Z");
    }
}
