//! What trials of the daemon with a seed have in common: their options, and what becomes of their report.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Serialize;

/// Lines of a kind that are printed; the JSON has them all.
const SHOWN: usize = 20;

#[derive(Debug, clap::Args)]
pub struct Trial {
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

impl Trial {
    /// The daemon, built where none was named, and the seed; `what` is printed with both.
    pub fn begin(&self, what: &str) -> Result<(PathBuf, u64)> {
        let program = self.program.clone().map_or_else(build, Ok)?;
        let seed = self.seed.unwrap_or_else(|| fastrand::u64(..));
        eprintln!("{what}, of {}, seed {seed} …", program.display());
        Ok((program, seed))
    }

    /// Writes the report where it was asked for, and fails where there are findings.
    pub fn end(&self, report: &impl Serialize, findings: usize, seed: u64) -> Result<()> {
        if let Some(path) = &self.json {
            std::fs::write(path, serde_json::to_string_pretty(report)?)
                .with_context(|| format!("can't write {}", path.display()))?;
        }
        match findings {
            0 => Ok(()),
            findings => bail!("{findings} findings; the same again with --seed {seed}"),
        }
    }
}

/// Prints lines with the time since it was made.
pub fn teller() -> impl Fn(&str) {
    let start = Instant::now();
    move |line| eprintln!("{:6.1} s  {line}", start.elapsed().as_secs_f64())
}

/// Prints the first lines, each after `label`.
pub fn show(label: &str, lines: impl IntoIterator<Item = impl Display>) {
    lines.into_iter().take(SHOWN).for_each(|line| println!("{label}{line}"));
}

/// The release build of the daemon, made now.
pub fn build() -> Result<PathBuf> {
    let status = Command::new("cargo").args(["build", "--release", "--quiet", "--package", "evenkeeld"]).status();
    if !status.context("can't run cargo")?.success() {
        bail!("the daemon can't be built");
    }
    Ok(PathBuf::from("target/release/evenkeeld"))
}
