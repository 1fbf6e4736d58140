//! `cargo xtask soak`: attackers, kills and verified victims together against the daemon, and a table of what came of
//! it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hostile::soak::{Plan, Report, attacker};

/// Findings that are printed; the JSON has them all.
const SHOWN: usize = 20;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Minutes
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// What happens follows from it [default: drawn, and printed]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Write the report here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The daemon under test [default: the release build, made first]
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// Be one attacker: its name, the daemon's sockets, a directory for mounts
    #[arg(long, hide = true, num_args = 3)]
    attacker: Option<Vec<PathBuf>>,
}

/// Soaks, or is one of the soak's attackers.
pub fn run(options: &Options) -> Result<()> {
    if let Some([name, runtime_dir, scratch]) = options.attacker.as_deref() {
        return attacker(&name.to_string_lossy(), runtime_dir.clone(), scratch.clone());
    }
    let program = options.program.clone().map_or_else(build, Ok)?;
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("soaking {} for {} min, seed {seed} …", program.display(), options.minutes);
    let myself = std::env::current_exe().context("where is this program?")?;
    let start = Instant::now();
    let report = hostile::soak::run(&Plan {
        program: &program,
        span: Duration::from_secs(options.minutes * 60),
        seed,
        attacker: &|name: &str, runtime_dir: &Path, scratch: &Path| {
            let mut command = Command::new(&myself);
            command.args(["soak", "--attacker", name]).arg(runtime_dir).arg(scratch);
            command
        },
        tell: &|line: &str| eprintln!("{:6.1} s  {line}", start.elapsed().as_secs_f64()),
    })?;
    print(&report);
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&report)?)
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    match report.findings() {
        0 => Ok(()),
        findings => bail!("{findings} findings; what happens again with --seed {seed}"),
    }
}

/// The release build of the daemon, made now.
pub fn build() -> Result<PathBuf> {
    let status = Command::new("cargo").args(["build", "--release", "--quiet", "--package", "evenkeeld"]).status();
    if !status.context("can't run cargo")?.success() {
        bail!("the daemon can't be built");
    }
    Ok(PathBuf::from("target/release/evenkeeld"))
}

fn print(report: &Report) {
    println!("attack                                    times killed daemon  command  control newcomer findings");
    println!("                                                       killed       ms       ms       ms");
    for row in &report.rows {
        println!(
            "{:41} {:5} {:6} {:6} {:8.1} {:8.1} {:8.1} {}",
            row.attack,
            row.times,
            row.killed,
            row.daemon_killed,
            row.command_ms,
            row.control_ms,
            row.newcomer_ms,
            row.skipped.clone().unwrap_or_else(|| row.findings.len().to_string())
        );
    }
    let ended = report.shutdown_ms.map_or("did not end".to_owned(), |ms| format!("ended in {ms:.0} ms"));
    println!(
        "victims: {} commands, {} units checked; after SIGTERM the daemon {ended}; seed {}",
        report.commands, report.checked_units, report.seed
    );
    report.warnings.iter().take(SHOWN).for_each(|line| println!("log: {line}"));
    let of_rows =
        report.rows.iter().flat_map(|row| row.findings.iter().map(|found| format!("{}: {found}", row.attack)));
    report.findings.iter().cloned().chain(of_rows).take(SHOWN).for_each(|finding| println!("FINDING {finding}"));
}
