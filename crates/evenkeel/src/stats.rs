//! `evenkeel stats`: what each tenant gets now.

use std::io::IsTerminal;

use anyhow::{Result, ensure};
use api::{Snapshot, StatsAsked};

use crate::disk::Figures;
use crate::output::print;
use crate::table;

/// Show each tenant's throughput and latency.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    daemon: Figures,

    /// Print once and exit, instead of every interval until interrupted.
    #[arg(long)]
    once: bool,

    /// Seconds per measurement, 1 to 60. With --once, 0 measures since the daemon's start, or since a change of class
    /// moved a tenant to other pollers (/metrics keeps counting).
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=60))]
    interval: u64,

    /// Also show the in-order bounds: maximum latencies on a drive that serves waiting commands in order. Drives that
    /// hash addresses to their units exceed them.
    #[arg(long)]
    verbose: bool,

    /// Print JSON, one object per interval.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    ensure!(
        args.once || args.interval > 0,
        "--interval 0 is since the daemon started: add --once, or write 1 to 60 seconds"
    );
    let daemon = args.daemon.daemon();
    let asked = StatsAsked { span_ms: args.interval * 1000 };
    loop {
        let snapshot = daemon.stats(asked)?;
        print(args.json, &snapshot, || text(args, &snapshot))?;
        if args.once {
            return Ok(());
        }
    }
}

fn text(args: &Args, snapshot: &Snapshot) -> String {
    let clear = if !args.once && std::io::stdout().is_terminal() { "\x1b[2J\x1b[H" } else { "" };
    let policies = match &snapshot.drives[..] {
        [only] => only.policy.clone(),
        several => several.iter().map(|it| format!("{} on {}", it.policy, it.drive)).collect::<Vec<_>>().join(", "),
    };
    let mut text = format!(
        "{clear}policy {policies}, over {} ms; latencies in µs\n{}\n",
        snapshot.span_ms,
        table::stats(snapshot, args.verbose)
    );
    for drive in &snapshot.drives {
        let Some(health) = &drive.health else { continue };
        text += &format!("drive {}: {}\n", drive.drive, table::health(health));
    }
    text
}
