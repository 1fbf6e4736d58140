//! Guest tests: stock Linux guests in QEMU, attached to a running daemon over vfio-user or vhost-user.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `mirror`, `apt`, `initramfs`, `prepare` | making QEMU, kernel and userland, once, without root |
//! | `qemu`, `qmp`, `agent`, `load` | a guest: process, console, monitor, command channel, what runs in its background |
//! | `inside` | guests that run Evenkeel themselves |
//! | `system_image`, `system` | a guest that is a whole Debian, in which it is installed |
//! | `daemon`, `lab` | the daemon, and the pair of guests that tests share |
//! | `stand_in` | QEMU's storage daemon in Evenkeel's place, for self-checks |
//! | `debian`, `host` | Debians that are installed once, and the host that operators type recipes in |
//! | `recipe` | the pages of docs/recipes, as blocks that tests execute |
//! | `tests` | the tests |
//! | `kill` | the daemon killed under load |
//! | `hybrid` | a VM, a container and a process that share a drive, in one guest |
//! | `bench` | what is measured in guests |
//!
//! Not here: a guest's driver is never unloaded as a module, because Debian's cloud kernel has NVMe's
//! built in; it is unbound and bound instead. Guests run emulated where `/dev/kvm` cannot run them.

mod agent;
pub mod apt;
pub mod bench;
pub mod daemon;
mod debian;
mod host;
mod hybrid;
mod initramfs;
mod inside;
pub mod kill;
mod lab;
mod load;
pub mod mirror;
mod prepare;
mod qemu;
mod qmp;
mod recipe;
mod stand_in;
mod system;
mod system_image;
mod tests;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};

use lab::{Lab, Server};
use prepare::Images;

pub use prepare::default_cache;
use qemu::{Accel, Machine};

#[derive(Debug, clap::Args)]
pub struct CacheDir {
    /// Where what is fetched and built is kept [default: EVENKEEL_CACHE, or evenkeel/guest in the user's cache]
    #[arg(long = "cache", value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl CacheDir {
    fn path(&self) -> Result<PathBuf> {
        self.dir.clone().map_or_else(prepare::default_cache, Ok)
    }
}

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Only the tests whose names contain this
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Those that take minutes too
    #[arg(long)]
    long: bool,
    /// Keep the run's files
    #[arg(long)]
    keep: bool,
    /// Put QEMU's own controllers in the daemon's place: the tests must pass there too
    #[arg(long)]
    self_check: bool,
    /// Run them so many times, one run after the other, each from nothing
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Run them beside a busy loop on each CPU
    #[arg(long)]
    busy: bool,
    #[command(flatten)]
    cache: CacheDir,
}

/// `cargo xtask guest-prepare`: makes what the guest tests need.
///
/// # Errors
/// When this machine cannot make it.
pub fn prepare(cache: &CacheDir) -> Result<()> {
    let cache = cache.path()?;
    prepare::images(&cache)?;
    println!("guest-prepare: ready in {}", cache.display());
    Ok(())
}

/// QEMU's storage daemon from the guest tests' cache, if that was made.
pub fn storage_daemon() -> Option<Command> {
    Some(prepare::found(&prepare::default_cache().ok()?)?.storage_daemon())
}

/// `cargo xtask guest-test`: runs the tests. Where the guests cannot be prepared they are skipped, unless `CI` or
/// `EVENKEEL_REQUIRE_GUESTS` is set: then that is a failure.
///
/// # Errors
/// When a test failed or none ran under a filter.
pub fn run(options: &Options) -> Result<()> {
    let is_chosen = |test: &&tests::Test| match &options.filter {
        Some(part) => test.name.contains(part),
        None => options.long || !test.is_long,
    };
    let chosen: Vec<&tests::Test> = tests::ALL.iter().filter(is_chosen).collect();
    ensure!(!chosen.is_empty(), "no guest test is named so");

    let images = match prepare::images(&options.cache.path()?) {
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

    let _busy = options.busy.then(BusyLoops::start).transpose()?;
    let mut failed = 0;
    for run in 1..=options.runs.unwrap_or(1) {
        if options.runs.is_some() {
            println!("Run {run}:");
        }
        failed += run_once(&images, &server, &chosen, options.keep)?;
    }
    ensure!(failed == 0, "{failed} guest tests failed");
    Ok(())
}

/// Runs the tests once, from nothing, and returns how many failed.
fn run_once(images: &Images, server: &Server, chosen: &[&tests::Test], keep: bool) -> Result<usize> {
    let dir = tempfile::Builder::new().prefix("evenkeel-guests-").tempdir()?;
    let machine = Machine::new(images.clone(), dir.path())?;
    let accel = Accel::probe(&machine);
    println!("Guests run under {}.", if accel == Accel::Kvm { "KVM" } else { "emulation (TCG)" });
    let mut lab = Lab::new(machine, accel, server.clone(), dir.path().to_path_buf());
    let failed = run_tests(&mut lab, chosen);
    lab.discard();
    if keep {
        println!("The run's files are in {}.", dir.keep().display());
    }
    Ok(failed)
}

/// A loop on each CPU, until dropped: what waits by the clock instead of for what it needs fails beside them.
struct BusyLoops(Arc<AtomicBool>);

impl BusyLoops {
    fn start() -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..thread::available_parallelism()?.get() {
            let stop = Arc::clone(&stop);
            thread::spawn(move || while !stop.load(Ordering::Relaxed) {});
        }
        Ok(Self(stop))
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the tests and returns how many failed.
fn run_tests(lab: &mut Lab, chosen: &[&tests::Test]) -> usize {
    let start = Instant::now();
    let mut failures: Vec<(&str, String)> = Vec::new();
    for test in chosen {
        let test_start = Instant::now();
        let result = (test.run)(lab).and_then(|()| lab.check_quiet());
        let seconds = test_start.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                println!("guest test {} ... ok ({seconds:.1} s)", test.name);
            }
            Err(error) => {
                println!("guest test {} ... FAILED ({seconds:.1} s)", test.name);
                println!("{error:#}\n{}\n--- end of logs ---", lab.logs());
                lab.discard();
                // What is around the cause are logs.
                failures.push((test.name, error.root_cause().to_string()));
            }
        }
    }
    println!("All guest tests took {:.0} s.", start.elapsed().as_secs_f64());
    // Again: the logs of a failure fill screens, and a log that is cut keeps its end.
    for (name, error) in &failures {
        println!("FAILED {name}: {error}");
    }
    println!("{} passed, {} failed, 0 skipped", chosen.len() - failures.len(), failures.len());
    failures.len()
}

/// Whether a skip counts as a failure.
pub fn required() -> bool {
    ["CI", "EVENKEEL_REQUIRE_GUESTS"]
        .iter()
        .any(|name| std::env::var(name).is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false")))
}
