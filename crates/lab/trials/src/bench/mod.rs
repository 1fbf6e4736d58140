//! `cargo xtask bench`: speed, CPU and memory, both sides of each comparison in one run on the same cores.
//!
//! The daemon's poller runs on the first CPU, the client on the second; nothing else should run. Pairs are
//! measured in turn (A B A B …) and compared round by round, since shared machines drift. Figures are
//! medians; the range of all rounds stands beside them.

mod crowd;
mod files;
mod four_drives;
mod history;
mod idle;
mod images;
mod initiator;
mod keys;
mod online;
mod pairs;
mod scrape;
pub mod server;
mod sides;
mod spdk_targets;
mod storage_daemon;
mod syscalls;
mod vhost;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::spdk::Tree;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Rounds of each pair
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    #[command(flatten)]
    spdk: Tree,
    /// Where the JSON goes
    #[arg(long, value_name = "FILE", default_value = "target/bench.json")]
    pub json: PathBuf,
    /// Only the parts whose title contains this
    #[arg(long, value_name = "PART")]
    pub only: Option<String>,
}

/// One figure.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// Its rounds, or why there are none: a side refused to be measured.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Its unit.
    pub unit: &'static str,
    /// What it is held to, if anything: `≥` or `≤` and a number in the same unit.
    pub goal: Option<Goal>,
}

/// What measuring brought.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    Measured {
        /// Median over the rounds.
        median: f64,
        /// Lowest and highest round.
        range: (f64, f64),
    },
    Refused {
        /// Why.
        refused: String,
    },
}

/// What a figure is held to.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Figure {
    /// The median of several rounds. Fails if there were none.
    pub fn of(name: impl Into<String>, mut rounds: Vec<f64>, unit: &'static str, goal: Option<Goal>) -> Result<Self> {
        let name = name.into();
        rounds.sort_by(f64::total_cmp);
        let (Some(low), Some(high)) = (rounds.first(), rounds.last()) else { bail!("{name}: no rounds") };
        let outcome = Outcome::Measured { median: rounds[rounds.len() / 2], range: (*low, *high) };
        Ok(Self { name, outcome, unit, goal })
    }

    /// A side that could not be measured, in its place among the others.
    pub fn refused(name: impl Into<String>, why: &anyhow::Error) -> Self {
        Self { name: name.into(), outcome: Outcome::Refused { refused: format!("{why:#}") }, unit: "", goal: None }
    }

    /// Whether the goal was met, and by how much of it not.
    fn verdict(&self, median: f64) -> String {
        let (goal, met) = match self.goal {
            None => return String::new(),
            Some(Goal::AtLeast(goal)) => (goal, median >= goal),
            Some(Goal::AtMost(goal)) => (goal, median <= goal),
        };
        if met { "met".into() } else { format!("MISSED by {:.0} %", 100.0 * (median - goal).abs() / goal) }
    }

    /// Its line of the table, without its name.
    fn line(&self) -> String {
        let (median, (low, high)) = match &self.outcome {
            Outcome::Measured { median, range } => (*median, *range),
            Outcome::Refused { refused } => return format!("REFUSED: {refused}"),
        };
        let goal = match self.goal {
            None => String::new(),
            Some(Goal::AtLeast(goal)) => format!("≥ {goal}"),
            Some(Goal::AtMost(goal)) => format!("≤ {goal}"),
        };
        let verdict = self.verdict(median);
        format!("{median:>10.3} {:<9}  {low:>10.3} … {high:<10.3}  {goal:<10} {verdict}", self.unit)
    }
}

/// Measures something; may add to the report's notes.
type Part = fn(&Options, &mut Vec<String>) -> Result<Vec<Figure>>;

#[derive(Serialize)]
struct Report {
    machine: String,
    kernel: String,
    seconds: u64,
    rounds: u32,
    figures: Vec<Figure>,
    notes: Vec<String>,
}

/// Runs every measurement, prints the table, writes the JSON.
pub fn run(options: &Options) -> Result<()> {
    let mut report = Report {
        machine: machine(),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        seconds: options.seconds,
        rounds: options.rounds,
        figures: Vec::new(),
        notes: Vec::new(),
    };
    let parts: [(&str, Part); 29] = [
        ("throughput and latency", pairs::throughput),
        ("the initiator", initiator::measure),
        ("beside SPDK's targets", spdk_targets::throughput),
        ("beside SPDK's targets, idle clients", spdk_targets::idle),
        ("lpns beside passthrough", pairs::policies),
        ("cost of a policy", pairs::policy_cost),
        ("cost of extents", pairs::extents),
        ("idle tenants", idle::measure),
        ("beside idle queues", crowd::measure),
        ("system calls while polling", syscalls::measure),
        ("vhost-user-blk", vhost::throughput),
        ("vhost-user-blk, idle", vhost::idle),
        ("files and block devices", files::throughput),
        ("online changes among 1,000 tenants", online::measure),
        ("four drives with 1,000 tenants", four_drives::measure),
        ("wiping beside a promise", online::wiping),
        ("metrics of 1,000 tenants", scrape::measure),
        ("summaries of 1,000 tenants", history::summaries),
        ("tracing a tenant", history::tracing),
        ("a trace replayed", history::replay),
        ("keys", keys::measure),
        ("images: thin disks beside thick ones", images::thin::beside_thick),
        ("images: a promise beside first writes", images::thin::promise_beside_first_writes),
        ("images: first writes", images::thin::first_writes),
        ("images: clones", images::clones::of_one_template),
        ("images: import", images::import::from_qcow2),
        ("images: qcow2 beside a storage daemon", images::qcow2::beside_storage_daemon),
        ("images: qcow2 beside a range, in memory", images::qcow2::beside_range_in_memory),
        ("images: qcow2 beside a range, on disk", images::qcow2::beside_range_on_disk),
    ];
    let mut failures = Vec::new();
    for (number, (title, part)) in parts.iter().enumerate() {
        if options.only.as_ref().is_some_and(|only| !title.contains(only.as_str())) {
            continue;
        }
        eprintln!("[{}/{}] {title} …", number + 1, parts.len());
        match part(options, &mut report.notes) {
            Ok(figures) => {
                let refused = figures.iter().filter(|figure| matches!(figure.outcome, Outcome::Refused { .. }));
                failures.extend(refused.map(|figure| figure.name.clone()));
                report.figures.extend(figures);
            }
            Err(error) => failures.push(format!("{title}: {error:#}")),
        }
    }
    print(&report);
    let json = serde_json::to_string_pretty(&report)?;
    std::fs::write(&options.json, json).with_context(|| format!("can't write {}", options.json.display()))?;
    println!("\nJSON: {}", options.json.display());
    if !failures.is_empty() {
        bail!("not measured: {}", failures.join("; "));
    }
    Ok(())
}

fn machine() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown CPU", |(_, name)| name.trim());
    format!("{} × {model}", std::thread::available_parallelism().map_or(1, usize::from))
}

fn print(report: &Report) {
    println!("\n{}, Linux {}; {} rounds of {} s", report.machine, report.kernel, report.rounds, report.seconds);
    let width = report.figures.iter().map(|figure| figure.name.chars().count()).max().unwrap_or(0);
    for figure in &report.figures {
        let pad = " ".repeat(width - figure.name.chars().count());
        println!("{}{pad}  {}", figure.name, figure.line());
    }
    for note in &report.notes {
        println!("note: {note}");
    }
}
