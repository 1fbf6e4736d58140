//! `cargo xtask changes`: disks, namespaces, drives and policies come, change and go at random while others are written
//! and verified, and the daemon is killed amid changes.

use std::path::Path;

use anyhow::{Context, Result, bail};
use hostile::changes::{Plan, Report, Sabotage};

use crate::trial::{self, Trial};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Changes in all
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    changes: u32,
    /// How often the daemon is killed
    #[arg(long, value_name = "N", default_value_t = 200)]
    kills: u32,
    /// Do each kind of harm by hand once, and see that it is found
    #[arg(long)]
    self_check: bool,
    #[command(flatten)]
    trial: Trial,
}

/// Changes, kills, and says what came of it.
pub fn run(options: &Options) -> Result<()> {
    let Options { changes, kills, self_check, trial } = options;
    let (program, seed) = trial.begin(&format!("{changes} changes and {kills} kills"))?;
    if *self_check {
        return check_itself(&program, *changes, *kills, seed);
    }
    let tell = trial::teller();
    let plan = Plan { program: &program, changes: *changes, kills: *kills, seed, sabotage: None, tell: &tell };
    let report = hostile::changes::run(&plan)?;
    print(&report);
    trial.end(&report, report.findings.len(), seed)
}

/// Each harm must be found in a run of its own.
fn check_itself(program: &Path, changes: u32, kills: u32, seed: u64) -> Result<()> {
    let mut missed = Vec::new();
    for sabotage in Sabotage::ALL {
        let plan = Plan { program, changes, kills, seed, sabotage: Some(sabotage), tell: &|_| () };
        let report = hostile::changes::run(&plan).with_context(|| format!("{sabotage:?}"))?;
        match (report.is_sabotaged, report.findings.first()) {
            (true, Some(finding)) => println!("{sabotage:?}: found after {} kills: {finding:.160}", report.kills),
            (is_sabotaged, _) => {
                println!("{sabotage:?}: {}", if is_sabotaged { "not found" } else { "never could be done" });
                missed.push(sabotage);
            }
        }
    }
    if missed.is_empty() { Ok(()) } else { bail!("not found: {missed:?}; the same again with --seed {seed}") }
}

fn print(report: &Report) {
    let Report { made, refused, interrupted, kills, forbidden, .. } = report;
    let counts = |counts: &mut dyn Iterator<Item = (&str, u32)>| {
        counts.map(|(what, count)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    };
    let [undone, done] = interrupted.values().fold([0, 0], |[undone, done], it| [undone + it[0], done + it[1]]);
    let amid = interrupted.iter().map(|(what, [undone, done])| format!("{what} {undone}/{done}")).collect::<Vec<_>>();
    println!("made       {}: {}", made.values().sum::<u32>(), counts(&mut made.iter().map(|(what, n)| (*what, *n))));
    println!(
        "refused    {}: {}",
        refused.values().sum::<u32>(),
        counts(&mut refused.iter().map(|(w, n)| (w.as_str(), *n)))
    );
    println!("killed     {kills} times: {undone} changes came to nothing, {done} to all of it, unanswered");
    println!("           nothing/all amid {}", amid.join(", "));
    println!("blocks     {} written, {} checked", report.written_blocks, report.checked_blocks);
    println!("forbidden  {forbidden} commands to what is detached or only read, all refused");
    println!("findings   {}", report.findings.len());
    trial::show("  ", &report.findings);
}
