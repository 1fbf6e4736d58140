//! `evenkeel events`: the event log of a running daemon.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use api::{Event, EventsAfter, MAX_EVENT_WAIT_S, Problem, Rest, labels_in_words};
use jiff::Timestamp;

use crate::disk::Daemon;
use crate::output::print;

/// Show recent events: changes of disks, clients and promises. With --json, one document per event.
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
        let json = args.daemon.json;
        if told.lost {
            let lost = BTreeMap::from([("lost", true)]);
            print(json, &lost, || "(some are not known any more)\n".to_owned())?;
        }
        told.events.iter().try_for_each(|event| print(json, event, || line(event)))?;
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

/// One line: number, time, kind, tenant, details.
pub(crate) fn line(event: &Event) -> String {
    let Event { number, at_unix_ms, kind, tenant, labels, what } = event;
    let tenant = tenant.as_deref().unwrap_or("-").to_owned() + &beside(labels);
    let what = what.as_ref().map(|what| format!("  {what}")).unwrap_or_default();
    format!("{number}  {}  {:<14}  {tenant}{what}\n", utc(*at_unix_ms), kind.name())
}

/// Labels behind a name, in parentheses.
pub(crate) fn beside(labels: &BTreeMap<String, String>) -> String {
    if labels.is_empty() { String::new() } else { format!(" ({})", labels_in_words(labels)) }
}

/// `2026-11-23T14:05:06Z`. A time that no calendar has is the epoch.
fn utc(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or_default().to_string()
}
