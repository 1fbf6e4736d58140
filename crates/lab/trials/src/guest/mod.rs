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
//! | `firmware`, `boot_image` | UEFI and BIOS, and disks that they boot from |
//! | `recipe` | the pages of docs/recipes, as blocks that tests execute |
//! | `tests`, `changes` | the tests, and which of them a change calls for |
//! | `kill` | the daemon killed under load |
//! | `hybrid` | a VM, a container and a process that share a drive, in one guest |
//! | `bench` | what is measured in guests |
//!
//! Not here: a guest's driver is never unloaded as a module, because Debian's cloud kernel has NVMe's
//! built in; it is unbound and bound instead. Guests run emulated where `/dev/kvm` cannot run them.

mod agent;
pub mod apt;
pub mod bench;
mod boot_image;
mod changes;
pub mod daemon;
mod debian;
mod firmware;
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

use daemon::Profile;
use lab::{Lab, Server};
use prepare::Images;

pub use prepare::default_cache;
use qemu::{Accel, Machine};
pub use tests::Test;

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
    /// Only the tests whose names contain this [default: the daily ones, and those that the changed paths call for]
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    filter: Option<String>,
    /// All tests
    #[arg(long)]
    all: bool,
    /// Take paths as changed that differ from this commit [default: where HEAD left its upstream, else HEAD's parent]
    #[arg(long, value_name = "COMMIT")]
    since: Option<String>,
    /// Boot a release build of the daemon [default: the build that tests use]
    #[arg(long)]
    release: bool,
    /// Keep the run's files
    #[arg(long)]
    keep: bool,
    /// Put QEMU's own controllers in the daemon's place: the tests must pass there too
    #[arg(long)]
    self_check: bool,
    /// Run them N times, one run after the other, each from nothing
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

/// `qemu-img` of the guest tests' cache. `None`: nothing is there yet.
pub fn image_tool() -> Option<Command> {
    Some(prepare::found(&prepare::default_cache().ok()?)?.image_tool())
}

/// `cargo xtask guest-test`: runs the tests. Where the guests cannot be prepared they are skipped, unless `CI` or
/// `EVENKEEL_REQUIRE_GUESTS` is set: then that is a failure.
///
/// # Errors
/// When a test failed or none ran under a filter.
pub fn run(options: &Options) -> Result<()> {
    let chosen = choose(options)?;
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
    let profile = if options.release { Profile::Release } else { Profile::Dev };
    let server = if options.self_check { Server::SelfCheck } else { Server::Evenkeel(daemon::binary(profile)?) };

    let _busy = options.busy.then(BusyLoops::start).transpose()?;
    let mut failed = 0;
    for run in 1..=options.runs.unwrap_or(1) {
        if options.runs.is_some() {
            println!("Run {run}:");
        }
        let mut session = Session::new(images.clone(), server.clone())?;
        for test in &chosen {
            session.run(test);
        }
        failed += session.end(options.keep);
    }
    ensure!(failed == 0, "{failed} guest tests failed");
    Ok(())
}

/// The tests that were asked for, in their order.
fn choose(options: &Options) -> Result<Vec<&'static Test>> {
    if options.all {
        return Ok(tests::ALL.iter().collect());
    }
    if let Some(part) = &options.filter {
        return Ok(tests::ALL.iter().filter(|test| test.name.contains(part)).collect());
    }
    let called_for = changes::called_for(options.since.as_deref())?;
    Ok(tests::ALL.iter().filter(|test| test.is_daily || called_for.contains(&test.name)).collect())
}

/// The tests that `make test` leaves out where no path calls for them.
pub fn beyond_daily() -> impl Iterator<Item = &'static Test> {
    tests::ALL.iter().filter(|test| !test.is_daily)
}

/// Tests of one run, one after the other, and what became of them. Guests stay up from one to the next.
pub struct Session {
    lab: Lab,
    dir: tempfile::TempDir,
    start: Instant,
    passed: usize,
    failures: Vec<(&'static str, String)>,
}

impl Session {
    /// Nothing runs yet.
    ///
    /// # Errors
    /// When there is no place for the run's files.
    pub fn new(images: Images, server: Server) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("evenkeel-guests-").tempdir()?;
        let machine = Machine::new(images, dir.path())?;
        let accel = Accel::probe(&machine);
        println!("Guests run under {}.", if accel == Accel::Kvm { "KVM" } else { "emulation (TCG)" });
        let lab = Lab::new(machine, accel, server, dir.path().to_path_buf());
        Ok(Self { lab, dir, start: Instant::now(), passed: 0, failures: Vec::new() })
    }

    /// A session with a dev build of this checkout.
    ///
    /// # Errors
    /// When guests or build can't be made.
    pub fn of_this_checkout(cache: &CacheDir) -> Result<Self> {
        let images = prepare::images(&cache.path()?)?;
        Self::new(images, Server::Evenkeel(daemon::binary(Profile::Dev)?))
    }

    /// Runs one, prints how it went, and returns whether it passed.
    pub fn run(&mut self, test: &Test) -> bool {
        let start = Instant::now();
        let result = (test.run)(&mut self.lab).and_then(|()| self.lab.check_quiet());
        let seconds = start.elapsed().as_secs_f64();
        let passed = result.is_ok();
        match result {
            Ok(()) => {
                println!("guest test {} ... ok ({seconds:.1} s)", test.name);
                self.passed += 1;
            }
            Err(error) => {
                println!("guest test {} ... FAILED ({seconds:.1} s)", test.name);
                println!("{error:#}\n{}\n--- end of logs ---", self.lab.logs());
                self.lab.discard();
                // The causes around the root are logs.
                self.failures.push((test.name, error.root_cause().to_string()));
            }
        }
        passed
    }

    /// Ends daemon and guests, and returns how many tests failed.
    pub fn end(mut self, keep: bool) -> usize {
        self.lab.discard();
        if keep {
            println!("The run's files are in {}.", self.dir.keep().display());
        }
        println!("The guest tests took {:.0} s.", self.start.elapsed().as_secs_f64());
        // Again: the logs of a failure fill screens, and a log that is cut keeps its end.
        for (name, error) in &self.failures {
            println!("FAILED {name}: {error}");
        }
        println!("{} passed, {} failed, 0 skipped", self.passed, self.failures.len());
        self.failures.len()
    }
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

/// Whether a skip counts as a failure.
pub fn required() -> bool {
    ["CI", "EVENKEEL_REQUIRE_GUESTS"]
        .iter()
        .any(|name| std::env::var(name).is_ok_and(|value| !matches!(value.as_str(), "" | "0" | "false")))
}
