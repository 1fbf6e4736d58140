//! Runs the built programs from outside, as `cargo xtask COMMAND`.
//!
//! Guest tests, kill tests, the page in a browser, benches, soaks and sweeps.
//!
//! | module | what it does |
//! | --- | --- |
//! | `guest` | boots stock Linux guests against the daemon, kills it under them, measures in them |
//! | `browser` | looks at the page in a headless Chromium |
//! | `bench`, `order`, `spdk` | measure the daemon beside itself, the simulator and SPDK |
//! | `soak`, `changes`, `sweep` | attacks, changes at random and simulated scenarios, each with a seed |
//! | `more` | what `make test` leaves out, until the time is used |
//! | `package`, `release` | make a Debian package, and the files of a release |

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "tools measure, and wait for processes")]

mod bench;
mod browser;
mod changes;
mod guest;
mod more;
mod order;
mod package;
mod release;
mod soak;
mod spdk;
mod sweep;
mod trial;
mod wait;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Guest tests, benches, soaks and sweeps.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Watch the page in a headless browser, on real daemons.
    BrowserTest(browser::Options),
    /// Change disks, namespaces, drives and policies at random beside verified load, and kill the daemon amid changes.
    Changes(changes::Options),
    /// Fetch and build what the guest tests need, into a cache outside of the clone.
    GuestPrepare(guest::CacheDir),
    /// Boot stock Linux guests against the daemon.
    GuestTest(guest::Options),
    /// Kill the daemon under guests that verify what they write.
    KillTest(guest::kill::Options),
    /// Measure in guests: promises beside noisy neighbours, a drive with and without the kernel, ublk devices.
    GuestBench(guest::bench::Options),
    /// Measure speed, CPU and memory; print a table and write JSON.
    Bench(bench::Options),
    /// Run what `make test` leaves out, in an order drawn from the commit, until the time is used.
    More(more::Options),
    /// Order the policies by a guaranteed tenant's p99, in the daemon and in the simulator.
    Order(order::Options),
    /// Make a Debian package: both programs, unit, manual pages, completions, configuration. Takes cargo-deb.
    Package(package::Options),
    /// Make the files of a release: packages, programs, debug files, a bill of materials, checksums. Takes cargo-deb.
    Release(release::Options),
    /// Attack the daemon, kill it and its clients for a long time, beside clients that verify their data.
    Soak(soak::Options),
    /// Simulate whole scenarios drawn from seeds and check them.
    Sweep(sweep::Options),
}

/// Ends with 1 where the command failed, with 2 where there is no such command or option.
fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::BrowserTest(options) => browser::run(&options),
        Command::Changes(options) => changes::run(&options),
        Command::GuestPrepare(cache) => guest::prepare(&cache),
        Command::GuestTest(options) => guest::run(&options),
        Command::KillTest(options) => guest::kill::run(&options),
        Command::GuestBench(options) => guest::bench::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::More(options) => more::run(&options),
        Command::Order(options) => order::run(&options),
        Command::Package(options) => package::run(&options),
        Command::Release(options) => release::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Sweep(options) => sweep::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(["cargo xtask"].into_iter().chain(line.split_whitespace()))
    }

    #[test]
    fn what_the_documentation_tells_to_type_is_accepted() {
        for line in [
            "browser-test --screenshots --filter thousand --cache DIR",
            "changes --changes 2000 --kills 200 --seed 7 --json FILE",
            "changes --changes 100 --kills 40 --self-check",
            "guest-prepare --cache DIR",
            "guest-test --filter ext4 --keep --self-check --cache DIR",
            "guest-test --all --release --runs 2 --busy",
            "guest-test --since HEAD~3",
            "more --minutes 20 --seed 1985e04a --cache DIR",
            "guest-bench --only ublk --ublksrv PATH --spdk DIR --json FILE --cache DIR",
            "kill-test --kills 20 --seed 18446744073709551615 --qemu 7.2 --json FILE --self-check",
            "bench --seconds 2 --rounds 3 --spdk DIR --only vhost --json FILE",
            "order --rounds 3 --seconds 2 --drive pm1735 --json",
            "package --out DIR --deb-version 0.2.0-1",
            "release --out DIR",
            "soak --minutes 30 --seed 7 --json FILE",
            "sweep --seeds 10000 --seed 7 --jobs 2 --canaries",
        ] {
            assert!(parse(line).is_ok(), "{line}: {}", parse(line).expect_err("an error"));
        }
    }

    #[test]
    fn what_is_out_of_range_or_unknown_ends_with_2() {
        for line in [
            "",
            "nothing",
            "changes --changes 0",
            "kill-test --qemu 9.9",
            "bench --rounds 0",
            "bench --seconds 0",
            "order --seconds 601",
            "order --rounds 0",
            "soak --minutes 0",
            "sweep --seeds 0",
            "sweep --jobs 0",
            "sweep --jobs 257",
            "sweep --seed -1",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}: {error}");
        }
    }
}
