//! `cargo xtask changes`: disks are made, grown, changed and deleted at random while others are written and verified,
//! and the daemon is killed amid changes.

use anyhow::Result;
use hostile::changes::{Plan, Report};

use crate::trial::{self, Trial};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Changes in all
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    changes: u32,
    /// How often the daemon is killed
    #[arg(long, value_name = "N", default_value_t = 200)]
    kills: u32,
    #[command(flatten)]
    trial: Trial,
}

/// Changes, kills, and says what came of it.
pub fn run(options: &Options) -> Result<()> {
    let Options { changes, kills, trial } = options;
    let (program, seed) = trial.begin(&format!("{changes} changes and {kills} kills"))?;
    let tell = trial::teller();
    let plan = Plan { program: &program, changes: *changes, kills: *kills, seed, tell: &tell };
    let report = hostile::changes::run(&plan)?;
    print(&report);
    trial.end(&report, report.findings.len(), seed)
}

fn print(report: &Report) {
    let Report { created, grown, set, deleted, refused, interrupted: [undone, done], kills, .. } = report;
    println!("made       {created} created, {grown} grown, {set} set, {deleted} deleted; {refused} refused");
    println!("killed     {kills} times: {undone} changes came to nothing, {done} to all of it, unanswered");
    println!("blocks     {} written, {} checked", report.written_blocks, report.checked_blocks);
    println!("findings   {}", report.findings.len());
    trial::show("  ", &report.findings);
}
