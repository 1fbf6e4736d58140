//! `cargo xtask fuzz`: runs each fuzz target for a while, from the corpus that the repository keeps, and minimises that
//! corpus.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};

/// Where a target's inputs of this machine, and what it prints when several run at once, are kept: beside the build
/// outputs, so that a run leaves the kept corpus as it is.
const FOUND: &str = "target/fuzz/corpus";
const LOGS: &str = "target/fuzz/logs";
/// What the repository keeps.
const KEPT: &str = "fuzz/corpus";
/// A kept input is no longer: they are in every clone.
const MAX_KEPT_BYTES: u64 = 4096;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Seconds of each target
    #[arg(long, value_name = "N", default_value_t = 300)]
    seconds: u64,
    /// This target only
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
    /// Targets at a time, 1 to 64; what more than one print goes to target/fuzz/logs
    #[arg(long, value_name = "J", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    /// Afterwards keep in fuzz/corpus the fewest inputs, of those there and those found here, that reach as much
    #[arg(long)]
    minimise: bool,
}

/// Runs all targets, or the one asked for.
pub fn run(options: &Options) -> Result<()> {
    let targets = match &options.target {
        Some(target) => vec![target.clone()],
        None => targets()?,
    };
    build()?;
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| {
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = fuzz(target, options) {
                        eprintln!("{target}: {error:#}");
                        failures.lock().unwrap_or_else(PoisonError::into_inner).push(target.as_str());
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failures.is_empty() {
        bail!("{} found something; the inputs are in fuzz/artifacts/", failures.join(", "));
    }
    println!("{} fuzz targets, {} s each, no finding", targets.len(), options.seconds);
    Ok(())
}

/// `cargo fuzz` with this subcommand.
fn cargo_fuzz(subcommand: &str) -> Command {
    let mut command = Command::new("cargo");
    // Instrumented, optimisation across crates takes minutes and finds nothing more.
    command.args(["+nightly", "fuzz", subcommand]).env("CARGO_PROFILE_RELEASE_LTO", "off");
    if subcommand != "list" {
        command.args(["--features", "fuzzing"]);
    }
    command
}

const NEEDS: &str = "can't run cargo-fuzz; it needs `cargo install cargo-fuzz` and a nightly toolchain";

/// Before several targets run: cargo builds for one at a time.
fn build() -> Result<()> {
    match cargo_fuzz("build").status().context(NEEDS)?.success() {
        true => Ok(()),
        false => bail!("the fuzz targets can't be built"),
    }
}

/// Runs one target, and minimises its corpus if asked to.
fn fuzz(target: &str, options: &Options) -> Result<()> {
    let seconds = options.seconds;
    eprintln!("fuzzing {target} for {seconds} s …");
    let (found, kept) = (format!("{FOUND}/{target}"), format!("{KEPT}/{target}"));
    for folder in [&found, &kept] {
        fs::create_dir_all(folder).with_context(|| format!("can't create {folder}"))?;
    }
    let mut command = cargo_fuzz("run");
    command
        .args([target, &found, &kept, "--"])
        .arg(format!("-max_total_time={seconds}"))
        .args(["-timeout=10", "-print_final_stats=1"])
        // Programs need length to get anywhere; do not grow up to it slowly.
        .args(["-max_len=4096", "-len_control=0"]);
    run_quietly(command, target, options)?;
    if options.minimise { minimise(target, options) } else { Ok(()) }
}

/// Runs `command`; its output goes to a file where others run beside it.
fn run_quietly(mut command: Command, target: &str, options: &Options) -> Result<()> {
    if options.jobs > 1 {
        fs::create_dir_all(LOGS)?;
        let log = File::options().create(true).append(true).open(format!("{LOGS}/{target}.log"))?;
        command.stdout(log.try_clone()?).stderr(log).stdin(Stdio::null());
    }
    let status = command.status().context(NEEDS)?;
    if status.success() { Ok(()) } else { Err(anyhow!("it ended with {status}")) }
}

/// Replaces the kept corpus of a target by the fewest of all known inputs that reach what they all reach.
fn minimise(target: &str, options: &Options) -> Result<()> {
    let (found, kept) = (Path::new(FOUND).join(target), Path::new(KEPT).join(target));
    for input in fs::read_dir(&kept)? {
        let input = input?;
        fs::copy(input.path(), found.join(input.file_name()))?;
    }
    let mut command = cargo_fuzz("cmin");
    command.arg(target).arg(&found).args(["--", "-timeout=10"]);
    run_quietly(command, target, options).context("its corpus can't be minimised")?;
    fs::remove_dir_all(&kept)?;
    fs::create_dir(&kept)?;
    let mut count = 0;
    for input in fs::read_dir(&found)? {
        let input = input?;
        if input.metadata()?.len() <= MAX_KEPT_BYTES {
            fs::copy(input.path(), kept.join(input.file_name()))?;
            count += 1;
        }
    }
    eprintln!("{target}: {count} inputs kept in {}", kept.display());
    Ok(())
}

fn targets() -> Result<Vec<String>> {
    let output = cargo_fuzz("list").output().context(NEEDS)?;
    let targets: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    if targets.is_empty() {
        bail!("no fuzz targets: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(targets)
}
