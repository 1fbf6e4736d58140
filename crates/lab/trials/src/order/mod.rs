//! `cargo xtask order`: the policies by the guaranteed tenant's p99, in the daemon and in the simulator.
//!
//! The daemon runs on the `model` back end in real time, with `evenkeel load`'s clients; the simulator plays the same
//! tenants in virtual time (`evenkeel sim`). The same settings go to both ([`setting`]). Rounds go through all
//! policies, each round from another one on, so that a machine that drifts is unjust to none. The rule for ties is in
//! [`compare`].

mod compare;
mod setting;
mod sides;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use self::compare::{Outcome, Verdict, median};
use self::setting::{GUARANTEED, Machine, NOISY, POLICIES};
use self::sides::{Bench, Seen};
use crate::guest::daemon::{Profile, binary};

/// Standing in line for longer than this share of the time reaches a p99.
const WAITED_NOTED: f64 = 0.01;
/// Neighbours that get less than this part of what the simulator gives them are held back by a CPU, not by the drive.
const NOISE_MIN: f64 = 0.85;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Built-in profile of the drive that both model
    #[arg(long, value_name = "PROFILE", default_value = "p5800x")]
    drive: String,
    /// Seconds of each run of the daemon, 1 to 600
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Rounds through all policies, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
}

#[derive(Serialize)]
struct Report {
    setting: String,
    rounds: u16,
    seconds: u64,
    /// What the simulator takes daemon and clients to cost.
    costs_ns: Vec<(&'static str, u64)>,
    alone: Alone,
    policies: Vec<Row>,
    pairs: Verdict,
    outcome: Outcome,
    /// How much of the time a polling thread stood in line for a CPU, median over all runs.
    waited: f64,
    notes: Vec<String>,
}

/// The guaranteed tenant's mean latency without neighbours: how well the simulator's costs fit this machine.
#[derive(Serialize)]
struct Alone {
    daemon_mean_us: f64,
    simulator_mean_us: f64,
}

#[derive(Serialize)]
struct Row {
    policy: &'static str,
    daemon_rank: usize,
    daemon_p99_us: f64,
    daemon_rounds: Vec<Seen>,
    simulator_rank: usize,
    simulator: Seen,
}

/// Measures, simulates, compares. Fails if the orders differ, or nothing can be said.
pub fn run(options: &Options) -> Result<()> {
    if cfg!(debug_assertions) {
        return again_optimized();
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let machine = Machine::with_cpus(cpus).context("this needs two CPUs: one for a poller, one for a client")?;
    let report = report(options, machine)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    match report.outcome {
        Outcome::Agree => Ok(()),
        Outcome::Differ => bail!("the daemon and the simulator do not order the policies alike"),
        Outcome::Undecided => bail!("undecided: run it again on a machine with nothing else to do, with more rounds"),
    }
}

/// The clients are part of what is measured, so they run as optimized as the daemon.
fn again_optimized() -> Result<()> {
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["run", "--quiet", "--release", "--package", "trials", "--"])
        .args(std::env::args_os().skip(1))
        .status()
        .context("can't start cargo")?;
    if !status.success() {
        bail!("the optimized build ended with {status}");
    }
    Ok(())
}

fn report(options: &Options, machine: Machine) -> Result<Report> {
    let binary = binary(Profile::Release)?;
    let bench = Bench { binary: &binary, drive: &options.drive, machine };
    eprintln!("simulating {} policies …", POLICIES.len());
    let simulated = sides::simulate(&bench)?;
    let everyone: Vec<&str> = [GUARANTEED].into_iter().chain(NOISY).collect();
    let mut alone = Vec::new();
    let mut seen: Vec<Vec<Seen>> = POLICIES.iter().map(|_| Vec::new()).collect();
    let runtime = Duration::from_secs(options.seconds);
    for round in 0..usize::from(options.rounds) {
        eprintln!("round {} of {} …", round + 1, options.rounds);
        alone.push(sides::measure(&bench, "passthrough", &[GUARANTEED], runtime)?.mean_us);
        for turn in 0..POLICIES.len() {
            let policy = (round + turn) % POLICIES.len();
            let run = sides::measure(&bench, POLICIES[policy], &everyone, runtime);
            seen[policy].push(run.with_context(|| POLICIES[policy])?);
        }
    }
    let measured_us: Vec<Vec<f64>> = seen.iter().map(|rounds| p99s(rounds)).collect();
    let simulated_us: Vec<f64> = simulated.policies.iter().map(|seen| seen.p99_us).collect();
    let daemon_ranks = compare::ranks(&measured_us, |one, other| compare::measured(one, other));
    let simulator_ranks = compare::ranks(&simulated_us, |one, other| compare::simulated(*one, *other));
    let pairs = compare::pairs(&POLICIES, &simulated_us, &measured_us);
    let waited: Vec<f64> = seen.iter().flatten().map(|seen| seen.waited).collect();
    let waited = median(&waited);
    let rows = POLICIES.into_iter().enumerate().zip(seen).map(|((at, policy), daemon_rounds)| Row {
        policy,
        daemon_rank: daemon_ranks[at],
        daemon_p99_us: median(&measured_us[at]),
        daemon_rounds,
        simulator_rank: simulator_ranks[at],
        simulator: simulated.policies[at],
    });
    let policies: Vec<Row> = rows.collect();
    Ok(Report {
        setting: setting::in_words(&options.drive, machine),
        rounds: options.rounds,
        seconds: options.seconds,
        costs_ns: setting::COSTS_NS.to_vec(),
        alone: Alone { daemon_mean_us: median(&alone), simulator_mean_us: simulated.alone_mean_us },
        notes: notes(&policies, waited),
        policies,
        outcome: pairs.outcome(waited),
        waited,
        pairs,
    })
}

fn p99s(rounds: &[Seen]) -> Vec<f64> {
    rounds.iter().map(|seen| seen.p99_us).collect()
}

/// What speaks against the figures.
fn notes(policies: &[Row], waited: f64) -> Vec<String> {
    let mut notes = Vec::new();
    if waited > WAITED_NOTED {
        notes.push(format!(
            "other work had the cores: pollers and clients stood in line for {:.1} % of the time, which makes tails of \
             its own",
            waited * 100.0
        ));
    }
    let share = |row: &&Row| median(&noise(&row.daemon_rounds)) / row.simulator.noise_iops;
    let held_back: Vec<String> = policies
        .iter()
        .filter(|row| share(row) < NOISE_MIN)
        .map(|row| format!("{} {:.0} %", row.policy, share(&row) * 100.0))
        .collect();
    if !held_back.is_empty() {
        notes.push(format!(
            "a core was saturated, not the drive, where the neighbours got much less than in the simulator: {}",
            held_back.join(", ")
        ));
    }
    notes
}

fn noise(rounds: &[Seen]) -> Vec<f64> {
    rounds.iter().map(|seen| seen.noise_iops).collect()
}

fn print(report: &Report) {
    println!("{}\n{} rounds of {} s, medians (lowest … highest)\n", report.setting, report.rounds, report.seconds);
    println!(
        "{:<12} {:>4}  {:>9}  {:<19} {:>4}  {:>12}  {:>14} {:>14}  {:>6}",
        "policy", "rank", "daemon", "p99 µs", "rank", "simulator µs", "noise, daemon", "simulator", "waited"
    );
    let mut rows: Vec<&Row> = report.policies.iter().collect();
    rows.sort_by(|one, other| one.simulator.p99_us.total_cmp(&other.simulator.p99_us));
    for row in rows {
        let p99s = p99s(&row.daemon_rounds);
        let (low, high) = p99s.iter().fold((f64::MAX, 0.0_f64), |(low, high), p99| (low.min(*p99), high.max(*p99)));
        let waited: Vec<f64> = row.daemon_rounds.iter().map(|seen| seen.waited).collect();
        println!(
            "{:<12} {:>4}  {:>9.1}  {:<19} {:>4}  {:>12.1}  {:>9.0} kIOPS {:>8.0} kIOPS  {:>4.1} %",
            row.policy,
            row.daemon_rank,
            row.daemon_p99_us,
            format!("({low:.1} … {high:.1})"),
            row.simulator_rank,
            row.simulator.p99_us,
            median(&noise(&row.daemon_rounds)) / 1e3,
            row.simulator.noise_iops / 1e3,
            median(&waited) * 100.0,
        );
    }
    let Alone { daemon_mean_us, simulator_mean_us } = report.alone;
    println!("\nalone: mean {daemon_mean_us:.1} µs in the daemon, {simulator_mean_us:.1} µs in the simulator");
    print_verdict(report);
    let costs: Vec<String> = report.costs_ns.iter().map(|(cost, ns)| format!("{cost} {ns}")).collect();
    println!("assumed in the simulator, ns: {}", costs.join(", "));
    for note in &report.notes {
        println!("note: {note}");
    }
}

fn print_verdict(report: &Report) {
    let pairs = &report.pairs;
    println!(
        "A tie: p99s within {:.0} % of each other, or fewer than 4 of 5 rounds with the same one lower.",
        (compare::TIE - 1.0) * 100.0
    );
    println!("pairs of policies told apart by both, in the same order: {}", pairs.same);
    let list =
        |pairs: &[(String, String)]| pairs.iter().map(|(a, b)| format!("{a} < {b}")).collect::<Vec<_>>().join(", ");
    for (what, which) in [
        ("in opposite orders (the simulator's)", &pairs.opposite),
        ("told apart by the simulator alone", &pairs.tied_in_daemon),
        ("told apart by the daemon alone", &pairs.tied_in_simulator),
    ] {
        println!("{what}: {}{}{}", which.len(), if which.is_empty() { "" } else { ": " }, list(which));
    }
    println!("tied in both: {}", pairs.tied_in_both);
    let outcome = match report.outcome {
        Outcome::Agree => "the orders agree",
        Outcome::Differ => "the orders DIFFER",
        Outcome::Undecided => "UNDECIDED: the daemon lacked CPU, or its rounds differ too much",
    };
    println!("{outcome}");
}
