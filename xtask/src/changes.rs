//! `cargo xtask changes`: disks are made, grown, changed and deleted at random while others are written and verified,
//! and the daemon is killed amid changes.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use hostile::changes::{Plan, Report};

/// Findings that are printed; the JSON has them all.
const SHOWN: usize = 20;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Changes in all
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    changes: u32,
    /// How often the daemon is killed
    #[arg(long, value_name = "N", default_value_t = 200)]
    kills: u32,
    /// What happens follows from it, but for where a kill hits [default: drawn, and printed]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Write the report here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The daemon under test [default: the release build, made first]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
}

/// Changes, kills, and says what came of it.
pub fn run(options: &Options) -> Result<()> {
    let Options { changes, kills, .. } = *options;
    let program = options.program.clone().map_or_else(crate::soak::build, Ok)?;
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("{changes} changes and {kills} kills of {}, seed {seed} …", program.display());
    let start = Instant::now();
    let tell = |line: &str| eprintln!("{:6.1} s  {line}", start.elapsed().as_secs_f64());
    let report = hostile::changes::run(&Plan { program: &program, changes, kills, seed, tell: &tell })?;
    print(&report);
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    match report.findings.len() {
        0 => Ok(()),
        findings => bail!("{findings} findings; the same changes again with --seed {seed}"),
    }
}

fn print(report: &Report) {
    let Report { created, grown, set, deleted, refused, interrupted: [undone, done], kills, .. } = report;
    println!("made       {created} created, {grown} grown, {set} set, {deleted} deleted; {refused} refused");
    println!("killed     {kills} times: {undone} changes came to nothing, {done} to all of it, unanswered");
    println!("blocks     {} written, {} checked", report.written_blocks, report.checked_blocks);
    println!("findings   {}", report.findings.len());
    report.findings.iter().take(SHOWN).for_each(|finding| println!("  {finding}"));
}
