//! Repository checks and fuzzing, and the way to the laboratory's trials: `cargo xtask COMMAND`.
//!
//! `check` runs before each push, so this program links no other crate of the workspace. Commands that run the daemon
//! (guests, benches, soaks) are those of `trials`, which cargo builds when one is asked for.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "tools wait for processes")]

mod check;
mod fuzz;
mod pieces;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

/// Repository checks, fuzzing, guest tests and benches.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = TRIALS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The other half of `--help`.
const TRIALS: &str = "Commands that run the daemon are those of the package `trials` (`cargo xtask guest-test`, \
    `cargo xtask bench` and others):\n  `cargo xtask trials --help` lists them";

#[derive(Debug, Subcommand)]
enum Command {
    /// Hold the sources to the repository's own rules and to budget.toml; print how much there is of what.
    Check(check::Options),
    /// Run each fuzz target for a while.
    Fuzz(fuzz::Options),
    /// Play random programs over thin disks, snapshots and clones whose power fails, and check them against a model.
    Pieces(pieces::Options),
    /// A command of `trials`, built first.
    #[command(external_subcommand)]
    Trials(Vec<OsString>),
}

/// Ends with 1 where the command failed, with 2 where there is no such command or option.
fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Check(options) => check::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Pieces(options) => pieces::run(&options),
        Command::Trials(arguments) => trials(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes `trials` with these arguments; returns only where it can't.
fn trials(arguments: &[OsString]) -> anyhow::Result<()> {
    // `cargo xtask trials --help` is the help of `trials` itself.
    let arguments = arguments.strip_prefix(&["trials".into()]).unwrap_or(arguments);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = std::process::Command::new(cargo);
    command.args(["run", "--quiet", "--package", "trials", "--"]).args(arguments);
    Err(command.exec()).context("can't start cargo")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(["cargo xtask"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn documented_commands_parse() {
        for line in [
            "check",
            "check --json",
            "fuzz --seconds 300 --target registers",
            "fuzz --seconds 1800 --jobs 2 --minimise",
            "pieces --programs 100000 --seed 7",
        ] {
            assert!(parse(line).is_ok(), "{line}: {}", parse(line).expect_err("an error"));
        }
    }

    #[test]
    fn other_commands_go_to_trials_with_their_options() {
        let Ok(Cli { command: Command::Trials(arguments) }) = parse("guest-test --filter ext4") else {
            panic!("not a command of trials");
        };
        assert_eq!(arguments, ["guest-test", "--filter", "ext4"]);
    }

    #[test]
    fn bad_options_end_with_2() {
        for line in ["", "check --fast", "fuzz --target", "fuzz --jobs 0", "pieces --programs 0"] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}: {error}");
        }
    }
}
