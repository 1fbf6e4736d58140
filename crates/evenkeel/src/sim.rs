//! `evenkeel sim`: simulates a scenario on a drive under each of its policies, in virtual time.

mod plan;
mod question;
mod show;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::sim::{Report, ScenarioError};
use anyhow::{Result, bail};
use io_model::Nanos;
use scenario::Scenario;
use serde::Serialize;

use self::plan::{Plan, Run};
use crate::output::print;

/// Simulate a scenario under its policies, to try a promise before making it.
///
/// The result depends only on the file and the seed, not on the machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The scenario file: drive, host, policies, tenants, workloads, faults (see examples/scenarios).
    scenario: PathBuf,

    /// Seed of all random choices, instead of the scenario's.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = seed)]
    seed: Option<u64>,

    /// Also show the in-order bounds: maximum latencies on a drive that serves waiting commands in order.
    #[arg(long)]
    verbose: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a seed is a whole number from 0 to {}", u64::MAX))
}

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    scenario: &'a std::path::Path,
    seed: u64,
    /// The assumptions behind the figures.
    notes: &'a [String],
    warnings: Vec<String>,
    /// Each tenant's mean latency alone on the drive, if the scenario asks for it. `None` for a tenant without I/O.
    alone_mean_ns: Option<Vec<Option<f64>>>,
    /// One per policy, in the scenario's order.
    items: &'a [Report],
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let scenario = Scenario::load(&args.scenario)?;
    let seed = args.seed.unwrap_or(scenario.run.seed);
    let plan = plan::make(&scenario, seed)?;
    let alone = if scenario.run.alone { play_all("tenants alone", &plan.alone)? } else { Vec::new() };
    let mut runs = play_all("policies", &plan.runs)?;
    let alone = (!alone.is_empty()).then(|| means_alone(&plan, &alone));
    if let Some(alone) = &alone {
        let alone: Vec<Nanos> = alone.iter().map(|mean| Nanos(mean.unwrap_or(0.0).round() as u64)).collect();
        runs.iter_mut().for_each(|report| report.compare_alone(&alone));
    }
    let warnings = scenario.warnings.iter().map(|warning| warning.in_file(scenario.file())).collect();
    let outcome =
        Outcome { scenario: scenario.file(), seed, notes: &plan.notes, warnings, alone_mean_ns: alone, items: &runs };
    print(args.json, &outcome, || show::text(&scenario, &outcome, args.verbose))?;
    match runs.iter().map(|report| report.violations).sum::<u64>() {
        0 => Ok(()),
        broken => bail!("{broken} times a rule was broken that must hold in every run"),
    }
}

/// Mean latencies of the runs alone. Copies of a tenant share a run.
fn means_alone(plan: &Plan, alone: &[Report]) -> Vec<Option<f64>> {
    let report = |index: &usize| alone.get(*index)?.tenants.first();
    let mean = |index| report(index).filter(|tenant| tenant.latency.count > 0).map(|tenant| tenant.latency.mean_ns);
    plan.alone_of.iter().map(mean).collect()
}

/// Runs independent simulations, one per core at a time, and reports progress on standard error.
fn play_all(what: &str, runs: &[Run]) -> Result<Vec<Report>, ScenarioError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let terminal = std::io::stderr().is_terminal();
    // If standard error can't be written, go on without it.
    let tell = |text: &str| drop(std::io::stderr().write_all(text.as_bytes()));
    if terminal {
        tell(&format!("\r\x1b[K0 of {} {what}", runs.len()));
    }
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = run.play();
                    let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    done.push((run.number, report));
                    let far = format!("{} of {} {what}", done.len(), runs.len());
                    tell(&if terminal { format!("\r\x1b[K{far}") } else { format!("simulated {far}\n") });
                }
            });
        }
    });
    if terminal {
        tell("\r\x1b[K");
    }
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, report)| report).collect()
}
