//! `cargo xtask soak`: attackers, kills and verified victims together against the daemon, and a table of what came of
//! it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use hostile::soak::{Plan, Report, attacker};

use crate::trial::{self, Trial};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Minutes
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    #[command(flatten)]
    trial: Trial,
    /// Be one attacker: its name, the daemon's sockets, a directory for mounts
    #[arg(long, hide = true, num_args = 3)]
    attacker: Option<Vec<PathBuf>>,
}

/// Soaks, or is one of the soak's attackers.
pub fn run(options: &Options) -> Result<()> {
    if let Some([name, runtime_dir, scratch]) = options.attacker.as_deref() {
        return attacker(&name.to_string_lossy(), runtime_dir.clone(), scratch.clone());
    }
    let (program, seed) = options.trial.begin(&format!("a soak of {} min", options.minutes))?;
    let myself = std::env::current_exe().context("where is this program?")?;
    let report = hostile::soak::run(&Plan {
        program: &program,
        span: Duration::from_secs(options.minutes * 60),
        seed,
        attacker: &|name: &str, runtime_dir: &Path, scratch: &Path| {
            let mut command = Command::new(&myself);
            command.args(["soak", "--attacker", name]).arg(runtime_dir).arg(scratch);
            command
        },
        tell: &trial::teller(),
    })?;
    print(&report);
    options.trial.end(&report, report.findings(), seed)
}

fn print(report: &Report) {
    println!("attack                                    times killed daemon  command      API newcomer findings");
    println!("                                                       killed       ms       ms       ms");
    for row in &report.rows {
        println!(
            "{:41} {:5} {:6} {:6} {:8.1} {:8.1} {:8.1} {}",
            row.attack,
            row.times,
            row.killed,
            row.daemon_killed,
            row.command_ms,
            row.api_ms,
            row.newcomer_ms,
            row.skipped.clone().unwrap_or_else(|| row.findings.len().to_string())
        );
    }
    let ended = report.shutdown_ms.map_or("did not end".to_owned(), |ms| format!("ended in {ms:.0} ms"));
    println!(
        "victims: {} commands, {} units checked; after SIGTERM the daemon {ended}; seed {}",
        report.commands, report.checked_units, report.seed
    );
    trial::show("log: ", &report.warnings);
    let of_rows =
        report.rows.iter().flat_map(|row| row.findings.iter().map(|found| format!("{}: {found}", row.attack)));
    trial::show("FINDING ", report.findings.iter().cloned().chain(of_rows));
}
