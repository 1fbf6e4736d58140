//! `cargo xtask pieces`: random programs over a small pool of thin disks whose power fails, checked against a model.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The test of the crate `pieces` that plays the programs.
const TEST: &str = "pool::tests::maps_keep_their_data_over_power_failures";
/// What the test's last line begins with.
const RESULT: &str = "all hold: ";

#[derive(Debug, clap::Args)]
pub struct Options {
    /// How many programs [default: 100000; 1 with --seed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    programs: Option<u64>,
    /// The first program's seed [default: 0]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

impl Options {
    fn programs(&self) -> u64 {
        self.programs.unwrap_or(if self.seed.is_some() { 1 } else { 100_000 })
    }
}

/// Plays the programs; a failure names its seed.
pub fn run(options: &Options) -> Result<()> {
    let mut test = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--quiet", "--package", "pieces", "--lib", "--", "--exact", TEST, "--nocapture"])
        .env("EVENKEEL_PROGRAMS", options.programs().to_string())
        .env("EVENKEEL_SEED", options.seed.unwrap_or(0).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .context("can't start cargo")?;
    let mut result = None;
    for line in BufReader::new(test.stdout.take().context("no standard output")?).lines() {
        let line = line?;
        println!("{line}");
        result = result.or(line.starts_with(RESULT).then_some(()));
    }
    ensure!(test.wait()?.success(), "a program failed: play it again with --seed and the number above");
    // A test that has another name now would succeed as well.
    result.with_context(|| format!("the test {TEST} played nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_alone_is_one_program() {
        let all = Options { programs: None, seed: None };
        assert_eq!(all.programs(), 100_000);
        assert_eq!(Options { seed: Some(7), ..all }.programs(), 1);
        assert_eq!(Options { seed: Some(7), programs: Some(9) }.programs(), 9);
    }
}
