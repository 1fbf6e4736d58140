//! `cargo xtask sweep`: scenarios drawn from seeds, simulated and checked; and the broken policies and parts that the
//! checks must catch.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask sweep [OPTIONS]

  --seeds N     how many scenarios, 1 or more (1000; none with --canaries alone)
  --seed FIRST  the first seed; alone: this one only (0)
  --jobs J      threads, 1 to 256 (one for each core)
  --canaries    also run the broken policies and parts that the checks must catch";

/// Failing seeds that are printed; the rest is counted.
const SHOWN: usize = 20;

struct Options {
    first: u64,
    seeds: u64,
    jobs: usize,
    canaries: bool,
}

/// What all threads found together.
#[derive(Default)]
struct Tally {
    next: AtomicU64,
    done: AtomicU64,
    ios: AtomicU64,
    forgiven: AtomicU64,
    failures: Mutex<Vec<(u64, String)>>,
}

/// Runs the seeds, and the canaries if asked for; prints each seed that fails and how to run it again.
pub fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        println!("{USAGE}");
        return Ok(());
    }
    let options = parse(args)?;
    if cfg!(debug_assertions) {
        eprintln!("note: `cargo run --release -p xtask -- sweep` is several times faster");
    }
    if options.canaries {
        canaries()?;
    }
    if options.seeds > 0 {
        sweep(&options)?;
    }
    Ok(())
}

fn parse(args: &[String]) -> Result<Options> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options { first: 0, seeds: 0, jobs: cores, canaries: false };
    let mut asked = None;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut number = || -> Result<u64> {
            let value = args.next().with_context(|| format!("{arg} needs a number"))?;
            value.parse().with_context(|| format!("{arg} {value}: not a whole number from 0 to {}", u64::MAX))
        };
        match arg.as_str() {
            "--seeds" => asked = Some(within("--seeds", number()?, u64::MAX)?),
            "--seed" => {
                options.first = number()?;
                asked = asked.or(Some(1));
            }
            "--jobs" => options.jobs = within("--jobs", number()?, 256)? as usize,
            "--canaries" => options.canaries = true,
            _ => bail!("{arg}: no such option\n{USAGE}"),
        }
    }
    options.seeds = asked.unwrap_or(if options.canaries { 0 } else { 1_000 });
    Ok(options)
}

fn within(option: &str, number: u64, most: u64) -> Result<u64> {
    if number == 0 || number > most {
        bail!("{option} {number}: expected a number from 1 to {most}");
    }
    Ok(number)
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

fn sweep(options: &Options) -> Result<()> {
    let started = Instant::now();
    let tally = Tally::default();
    std::thread::scope(|scope| {
        for _ in 0..options.jobs {
            scope.spawn(|| work(options, &tally));
        }
        if std::io::stderr().is_terminal() {
            show_progress(options, &tally);
        }
    });
    let mut failures = tally.failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    failures.sort();
    for (seed, what) in failures.iter().take(SHOWN) {
        println!("seed {seed}: {what}\n  again: cargo xtask sweep --seed {seed}");
    }
    println!(
        "{} seeds, {} I/Os, {:.1} s: {} failed, {} starved somebody as they are known to",
        options.seeds,
        tally.ios.into_inner(),
        started.elapsed().as_secs_f64(),
        failures.len(),
        tally.forgiven.into_inner()
    );
    if !failures.is_empty() {
        bail!("{} of {} seeds failed", failures.len(), options.seeds);
    }
    Ok(())
}

fn work(options: &Options, tally: &Tally) {
    loop {
        let number = tally.next.fetch_add(1, Ordering::Relaxed);
        if number >= options.seeds {
            return;
        }
        let seed = options.first.wrapping_add(number);
        // A panic is a failure of that seed, not of the sweep.
        match std::panic::catch_unwind(|| sim::sweep::check(seed)) {
            Ok(Ok(summary)) => {
                tally.ios.fetch_add(summary.simulated_ios, Ordering::Relaxed);
                tally.forgiven.fetch_add(u64::from(summary.forgiven > 0), Ordering::Relaxed);
            }
            Ok(Err(failure)) => note(tally, seed, failure.to_string()),
            Err(_) => note(tally, seed, "panicked".to_owned()),
        }
        tally.done.fetch_add(1, Ordering::Relaxed);
    }
}

fn note(tally: &Tally, seed: u64, what: String) {
    tally.failures.lock().unwrap_or_else(PoisonError::into_inner).push((seed, what));
}

fn show_progress(options: &Options, tally: &Tally) {
    loop {
        let done = tally.done.load(Ordering::Relaxed);
        let failed = tally.failures.lock().unwrap_or_else(PoisonError::into_inner).len();
        eprint!("\r{done} of {} seeds, {failed} failed", options.seeds);
        if done >= options.seeds {
            eprintln!();
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        parse(&args).map(|_| ()).expect_err("refused").to_string()
    }

    #[test]
    fn options_out_of_range_are_refused() {
        assert_eq!(refusal(&["--seeds", "0"]), format!("--seeds 0: expected a number from 1 to {}", u64::MAX));
        assert_eq!(refusal(&["--jobs", "0"]), "--jobs 0: expected a number from 1 to 256");
        assert_eq!(refusal(&["--seed", "-1"]), format!("--seed -1: not a whole number from 0 to {}", u64::MAX));
        assert_eq!(refusal(&["--seeds"]), "--seeds needs a number");
    }
}
