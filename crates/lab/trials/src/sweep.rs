//! `cargo xtask sweep`: scenarios drawn from seeds, simulated and checked; and the broken policies and parts that the
//! checks must catch.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sim::{BoundCounts, DiskCounts};

/// Failing seeds that are printed; the rest is counted.
const SHOWN: usize = 20;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// How many scenarios [default: 1000; none with --canaries or --changes alone]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// The first seed; without --seeds: this one only [default: 0]
    #[arg(long, value_name = "FIRST")]
    seed: Option<u64>,
    /// Threads, 1 to 256 [default: one for each core]
    #[arg(long, value_name = "J", value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: Option<u16>,
    /// Also run the broken policies and parts that the checks must catch
    #[arg(long)]
    canaries: bool,
    /// Also run N changes of tenants and terms, beside a tenant that runs on, under each policy, in an order that
    /// follows from --seed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=30_000))]
    changes: Option<u32>,
}

impl Options {
    fn seeds(&self) -> u64 {
        match (self.seeds, self.seed) {
            (Some(seeds), _) => seeds,
            (None, Some(_)) if self.changes.is_some() => 0,
            (None, Some(_)) => 1,
            (None, None) if self.canaries || self.changes.is_some() => 0,
            (None, None) => 1_000,
        }
    }

    fn jobs(&self) -> usize {
        self.jobs.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
    }
}

/// What all threads found together.
#[derive(Default)]
struct Tally {
    next: AtomicU64,
    done: AtomicU64,
    ios: AtomicU64,
    /// Seeds by why a tenant was allowed to starve, or not to get its floor.
    excuses: Mutex<BTreeMap<&'static str, u64>>,
    bounds: Mutex<BoundCounts>,
    disks: Mutex<DiskCounts>,
    failures: Mutex<Vec<(u64, String)>>,
}

/// Runs the seeds, and the canaries if asked for; prints each seed that fails and how to run it again.
pub fn run(options: &Options) -> Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("note: `cargo run --release -p xtask -- sweep` is several times faster");
    }
    if options.canaries {
        canaries()?;
    }
    if let Some(changes) = options.changes {
        churn(options, changes)?;
    }
    if options.seeds() > 0 {
        sweep(options)?;
    }
    Ok(())
}

fn canaries() -> Result<()> {
    let mut missed = 0;
    for canary in sim::sweep::canaries() {
        let seen = canary.first.as_deref().unwrap_or("nothing");
        let verdict = if canary.caught() { "caught" } else { "MISSED" };
        println!("{verdict}: {}: {:?}: {seen}", canary.name, canary.expected);
        missed += u32::from(!canary.caught());
    }
    if missed > 0 {
        bail!("{missed} broken parts were not caught");
    }
    Ok(())
}

fn churn(options: &Options, changes: u32) -> Result<()> {
    let (seed, mut failed) = (options.seed.unwrap_or(0), 0);
    for policy in sim::sweep::POLICIES {
        match sim::sweep::churn(policy, seed, changes as usize) {
            Ok(churn) => println!("{churn}"),
            Err(what) => {
                println!("{policy}: {what}");
                failed += 1;
            }
        }
    }
    if failed > 0 {
        bail!("seed {seed}: {failed} policies failed");
    }
    Ok(())
}

fn sweep(options: &Options) -> Result<()> {
    let started = Instant::now();
    let seeds = options.seeds();
    let tally = Tally::default();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs() {
            scope.spawn(|| work(options.seed.unwrap_or(0), seeds, &tally));
        }
        if std::io::stderr().is_terminal() {
            show_progress(seeds, &tally);
        }
    });
    let mut failures = tally.failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.sort();
    for (seed, what) in failures.iter().take(SHOWN) {
        println!("seed {seed}: {what}\n  again: cargo xtask sweep --seed {seed}");
    }
    println!(
        "{} seeds, {} I/Os, {:.1} s: {} failed",
        seeds,
        tally.ios.into_inner(),
        started.elapsed().as_secs_f64(),
        failures.len()
    );
    for (why, seeds) in tally.excuses.into_inner().unwrap_or_else(PoisonError::into_inner) {
        println!("{seeds} seeds broke a rule that was forgiven: {why}");
    }
    let bounds = tally.bounds.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{} commands held against a bound, {} took longer: {} because the drive or the host was slower than R and L_h \
         say, {} because guaranteed tenants had more in flight than the bound counts, {} because best effort overdrew \
         its cap by more, {} because best effort of more than an interval ago was still there",
        bounds.held, bounds.over, bounds.slow_drive, bounds.more_load, bounds.overdrawn, bounds.left_over
    );
    let disks = tally.disks.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{} disks made, {} made larger, {} of either refused for want of room, {} deleted, {} MiB of those wiped, {} \
         MiB had by others then, {} commands more at the drive than the guests' own",
        disks.created,
        disks.grown,
        disks.refused,
        disks.deleted,
        disks.wiped_bytes >> 20,
        disks.reused_bytes >> 20,
        disks.further_parts
    );
    if !failures.is_empty() {
        bail!("{} of {seeds} seeds failed", failures.len());
    }
    Ok(())
}

fn work(first: u64, seeds: u64, tally: &Tally) {
    loop {
        let number = tally.next.fetch_add(1, Ordering::Relaxed);
        if number >= seeds {
            return;
        }
        let seed = first.wrapping_add(number);
        // A panic is a failure of that seed, not of the sweep.
        match std::panic::catch_unwind(|| sim::sweep::check(seed)) {
            Ok(Ok(summary)) => {
                tally.ios.fetch_add(summary.simulated_ios, Ordering::Relaxed);
                let mut excuses = tally.excuses.lock().unwrap_or_else(PoisonError::into_inner);
                summary.excuses.iter().for_each(|why| *excuses.entry(why).or_default() += 1);
                drop(excuses);
                *tally.bounds.lock().unwrap_or_else(PoisonError::into_inner) += summary.bounds;
                *tally.disks.lock().unwrap_or_else(PoisonError::into_inner) += summary.disks;
            }
            Ok(Err(failure)) => {
                if let sim::sweep::Failure::Broken { summary, .. } = &*failure {
                    *tally.bounds.lock().unwrap_or_else(PoisonError::into_inner) += summary.bounds;
                }
                note(tally, seed, failure.to_string())
            }
            Err(_) => note(tally, seed, "panicked".to_owned()),
        }
        tally.done.fetch_add(1, Ordering::Relaxed);
    }
}

fn note(tally: &Tally, seed: u64, what: String) {
    tally.failures.lock().unwrap_or_else(PoisonError::into_inner).push((seed, what));
}

fn show_progress(seeds: u64, tally: &Tally) {
    loop {
        let done = tally.done.load(Ordering::Relaxed);
        let failed = tally.failures.lock().unwrap_or_else(PoisonError::into_inner).len();
        eprint!("\r{done} of {seeds} seeds, {failed} failed");
        if done >= seeds {
            eprintln!();
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_that_seed_only_and_canaries_alone_draw_none() {
        let none = Options { seeds: None, seed: None, jobs: None, canaries: false, changes: None };
        assert_eq!(none.seeds(), 1_000);
        assert_eq!(Options { seed: Some(7), ..none }.seeds(), 1);
        assert_eq!(Options { canaries: true, ..none }.seeds(), 0);
        assert_eq!(Options { seed: Some(7), changes: Some(9), ..none }.seeds(), 0);
        assert_eq!(Options { seed: Some(7), canaries: true, ..none }.seeds(), 1);
        assert_eq!(Options { seeds: Some(9), seed: Some(7), canaries: true, ..none }.seeds(), 9);
    }
}
