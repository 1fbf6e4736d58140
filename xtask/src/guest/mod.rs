//! Guest tests: stock Linux guests in QEMU, attached to a running daemon over vfio-user or vhost-user.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `mirror`, `apt`, `initramfs`, `prepare` | making QEMU, kernel and userland, once, without root |
//! | `qemu`, `agent` | a guest: process, console, command channel |
//! | `daemon`, `lab` | the daemon, and the pair of guests that tests share |
//! | `stand_in` | QEMU's storage daemon in Evenkeel's place, for self-checks |
//! | `tests` | the tests |
//! | `kill` | the daemon killed under load |
//! | `promise` | the guests' view of a latency promise, measured |
//!
//! Not here: a guest's driver is never unloaded as a module, because Debian's cloud kernel has NVMe's
//! built in; it is unbound and bound instead. Guests run emulated where `/dev/kvm` cannot run them.

mod agent;
mod apt;
pub mod daemon;
mod initramfs;
pub mod kill;
mod lab;
mod mirror;
mod prepare;
mod promise;
mod qemu;
mod stand_in;
mod tests;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use lab::{Lab, Server};
use qemu::{Accel, Machine};

/// Options of both commands.
#[derive(Debug, Default)]
struct Options {
    filter: Option<String>,
    keep: bool,
    self_check: bool,
    cache: Option<PathBuf>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} takes a value"));
            match arg.as_str() {
                "--filter" => options.filter = Some(value()?.clone()),
                "--cache" => options.cache = Some(value()?.into()),
                "--keep" => options.keep = true,
                "--self-check" => options.self_check = true,
                _ => bail!(
                    "unknown option {arg}; there are --filter NAME, --cache DIR, --keep (the run's \
                     files) and --self-check (QEMU's own controller in the daemon's place)"
                ),
            }
        }
        Ok(options)
    }

    fn cache(&self) -> Result<PathBuf> {
        self.cache.clone().map_or_else(prepare::default_cache, Ok)
    }
}

/// `cargo xtask guest-prepare [--cache DIR]`: makes what the guest tests need.
///
/// # Errors
/// When this machine cannot make it.
pub fn prepare(args: &[String]) -> Result<()> {
    let cache = Options::parse(args)?.cache()?;
    prepare::images(&cache)?;
    println!("guest-prepare: ready in {}", cache.display());
    Ok(())
}

/// QEMU's storage daemon from the guest tests' cache, if that was made.
pub fn storage_daemon() -> Option<Command> {
    Some(prepare::found(&prepare::default_cache().ok()?)?.storage_daemon())
}

/// `cargo xtask guest-test [--filter NAME] [--keep] [--self-check] [--cache DIR]`: runs the tests
/// whose names contain NAME. Where the guests cannot be prepared the tests are skipped, unless `CI`
/// or `EVENKEEL_REQUIRE_GUESTS` is set: then that is a failure.
///
/// # Errors
/// When a test failed or none ran under a filter.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let chosen: Vec<&tests::Test> =
        tests::ALL.iter().filter(|test| options.filter.as_ref().is_none_or(|part| test.name.contains(part))).collect();
    ensure!(!chosen.is_empty(), "no guest test is named so");

    let images = match prepare::images(&options.cache()?) {
        Ok(images) => images,
        Err(error) if required() => return Err(error.context("guest tests must not be skipped here")),
        Err(error) => {
            for test in &chosen {
                println!("guest test {} ... skipped", test.name);
            }
            println!("Guest tests were skipped, because: {error:#}");
            println!("0 passed, 0 failed, {} skipped", chosen.len());
            return Ok(());
        }
    };
    let server = if options.self_check { Server::SelfCheck } else { Server::Evenkeel(daemon::binary()?) };

    let dir = tempfile::Builder::new().prefix("evenkeel-guests-").tempdir()?;
    let machine = Machine::new(images, dir.path())?;
    let accel = Accel::probe(&machine);
    println!("Guests run under {}.", if accel == Accel::Kvm { "KVM" } else { "emulation (TCG)" });
    let mut lab = Lab::new(machine, accel, server, dir.path().to_path_buf());
    let failed = run_tests(&mut lab, &chosen);
    lab.discard();
    if options.keep {
        println!("The run's files are in {}.", dir.keep().display());
    }
    ensure!(failed == 0, "{failed} guest tests failed");
    Ok(())
}

/// `cargo xtask guest-bench [--cache DIR]`: a promise as a stock guest sees it, with and without a policy.
///
/// # Errors
/// When the guests can't be prepared, or daemon or guests fail.
pub fn bench(args: &[String]) -> Result<()> {
    let images = prepare::images(&Options::parse(args)?.cache()?)?;
    let dir = tempfile::Builder::new().prefix("evenkeel-guests-").tempdir()?;
    let machine = Machine::new(images, dir.path())?;
    let accel = Accel::probe(&machine);
    promise::measure(&machine, accel, dir.path())
}

/// Runs the tests and returns how many failed.
fn run_tests(lab: &mut Lab, chosen: &[&tests::Test]) -> usize {
    let start = Instant::now();
    let (mut passed, mut failed) = (0, 0);
    for test in chosen {
        let test_start = Instant::now();
        let result = (test.run)(lab).and_then(|()| lab.check_quiet());
        let seconds = test_start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                println!("guest test {} ... ok ({seconds:.1} s)", test.name);
                passed += 1;
            }
            Err(error) => {
                println!("guest test {} ... FAILED ({seconds:.1} s)", test.name);
                println!("{error:#}\n{}\n--- end of logs ---", lab.logs());
                lab.discard();
                failed += 1;
            }
        }
    }
    println!("All guest tests took {:.0} s.", start.elapsed().as_secs_f64());
    println!("{passed} passed, {failed} failed, 0 skipped");
    failed
}

/// Whether a skip counts as a failure.
fn required() -> bool {
    ["CI", "EVENKEEL_REQUIRE_GUESTS"]
        .iter()
        .any(|name| std::env::var(name).is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false")))
}
