//! `evenkeel demo`: shows a promise being kept, or not, in about five seconds.
//!
//! Each phase starts its own daemon (`serve` of this program) on the drive model and attaches tenants through their
//! sockets. It then measures the guaranteed tenant alone, beside noisy neighbours under `passthrough`, and beside them
//! under `lpns` and `evenkeel`. Latencies are measured by the clients.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::Items;
use load::value::BlockSizes;
use load::{JobResult, JobSpec, Options, Patience, Rw, Sample, Target};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::output::print;
use crate::serving::Serving;
use crate::table;

/// The guaranteed tenant's name.
const DB: &str = "db";
/// Its neighbours.
const NOISY: [&str; 3] = ["noisy-1", "noisy-2", "noisy-3"];

/// Per phase: whether there are neighbours, and the policy.
const PHASES: [(&str, &str); 4] =
    [("alone", "passthrough"), ("contended", "passthrough"), ("contended", "lpns"), ("contended", "evenkeel")];

/// Show a latency promise being kept, in about five seconds.
///
/// Needs no root, no VM and no drive. A guaranteed tenant runs on a modelled drive: alone, then beside three noisy
/// neighbours, without and with a policy.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print the figures as JSON instead of a table.
    #[arg(long)]
    json: bool,

    /// Seconds per phase, 1 to 600; there are four phases
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,

    /// The guaranteed tenant's latency target for 99 % of its commands, 20 to 100000 microseconds
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(20..=100_000))]
    target_us: u64,
}

#[derive(Serialize)]
struct Phase {
    policy: &'static str,
    /// `alone` or `contended`.
    scenario: &'static str,
    tenants: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    class: &'static str,
    latency_target_us: Option<f64>,
    iops: f64,
    bw_bytes_s: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    violations: Option<u64>,
    /// Whether the 99th percentile met the target. `None`: there is no target.
    kept: Option<bool>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("can't watch for signals")?;
    }
    if !args.json {
        println!(
            "A modelled Intel Optane P5800X that keeps no data. \"{DB}\" was promised {} µs at the 99th percentile;\n\
             it reads 4 KiB at a time. Its three neighbours each keep 128 random writes of 16 KiB in flight.\n",
            args.target_us
        );
    }
    let mut phases = Vec::new();
    for (scenario, policy) in PHASES {
        phases.push(phase(args, scenario, policy, &stop)?);
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
    }
    print(args.json, &Items { items: &phases }, || text(&phases, args.target_us))
}

fn phase(args: &Args, scenario: &'static str, policy: &'static str, stop: &AtomicBool) -> Result<Phase> {
    let server = Serving::start("demo", |dir| configuration(dir, policy, args.target_us))?;
    let names: Vec<&str> = if scenario == "alone" { vec![DB] } else { [DB].into_iter().chain(NOISY).collect() };
    let targets = names.iter().map(|name| {
        let job = if *name == DB { db(args.seconds) } else { noisy(args.seconds) };
        Target::connect(&server.dir().join(name), vec![job])
    });
    let targets = targets.collect::<Result<Vec<_>, _>>()?;
    let cores = cores();
    let options = Options {
        threads: if cores >= 4 { 2 } else { 1 },
        patience: if cores >= 2 { Patience::Spin } else { Patience::Yield },
        ..Options::default()
    };
    let mut progress = Progress::new(scenario, policy, args);
    let results = load::run(targets, &options, stop, &mut |samples| progress.show(samples))?;
    progress.end();
    if let Some(error) = results.iter().find_map(|result| result.error.as_ref().map(|error| (&result.target, error))) {
        bail!("tenant {}: {}", error.0, error.1);
    }
    let tenants = names.iter().map(|name| row(name, &results, args)).collect();
    server.stop()?;
    Ok(Phase { policy, scenario, tenants })
}

fn db(seconds: u64) -> JobSpec {
    job(Rw::RandRead, 4096, 1, 1, seconds)
}

fn noisy(seconds: u64) -> JobSpec {
    job(Rw::RandWrite, 16384, 32, 4, seconds)
}

fn job(rw: Rw, block_bytes: u64, iodepth: u16, numjobs: u16, seconds: u64) -> JobSpec {
    JobSpec {
        rw,
        block_sizes: BlockSizes::fixed(block_bytes),
        iodepth,
        numjobs,
        ramp_time: Duration::from_millis(250),
        runtime: Some(Duration::from_secs(seconds)),
        ..JobSpec::default()
    }
}

fn row(name: &str, results: &[JobResult], args: &Args) -> Row {
    let mut totals = load::stats::Totals::default();
    let mut runtime_ns = 1;
    for result in results.iter().filter(|result| result.target == name) {
        totals.merge(&result.totals);
        runtime_ns = runtime_ns.max(result.runtime_ns);
    }
    let seconds = runtime_ns as f64 / 1e9;
    let all = totals.combined();
    let latency = all.lat();
    let us = |percentile: f64| latency.percentile_ns(percentile) as f64 / 1000.0;
    let guaranteed = name == DB;
    let p99_us = us(99.0);
    Row {
        name: name.into(),
        class: if guaranteed { "guaranteed" } else { "best-effort" },
        latency_target_us: guaranteed.then_some(args.target_us as f64),
        iops: all.ios as f64 / seconds,
        bw_bytes_s: all.bytes as f64 / seconds,
        mean_us: latency.mean_ns() / 1000.0,
        p50_us: us(50.0),
        p99_us,
        p999_us: us(99.9),
        violations: guaranteed.then(|| latency.count_above(args.target_us * 1000)),
        kept: guaranteed.then_some(p99_us <= args.target_us as f64),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn configuration(dir: &Path, policy: &str, target_us: u64) -> String {
    // One poller for the guaranteed tenant, one for the others, and two clients need four cores.
    let threads = if cores() >= 4 { "" } else { "threads = \"shared\"\n" };
    // The plan normally refuses phases that break the promise; here they must run.
    let mut text = format!(
        "runtime_dir = {dir:?}\nstate_dir = {dir:?}\n[device]\nbackend = \"model\"\n\
         profile = \"p5800x\"\nsize = \"4GiB\"\n\
         memory_backed = false\n\
         [policy]\nname = {policy:?}\n\
         [[tenant]]\nname = {DB:?}\nsize = \"1GiB\"\nclass = \"guaranteed\"\nlatency_target = \"{target_us}us\"\n\
         {threads}overcommit = true\n"
    );
    for name in NOISY {
        text += &format!("[[tenant]]\nname = {name:?}\nsize = \"1GiB\"\nclass = \"best-effort\"\n");
    }
    text
}

/// A progress line, rewritten each second. Nothing if standard error is not a terminal.
struct Progress {
    label: String,
    seconds: u64,
    passed: u64,
    live: bool,
}

impl Progress {
    fn new(scenario: &str, policy: &str, args: &Args) -> Self {
        let live = !args.json && std::io::stdout().is_terminal();
        let label = if scenario == "alone" { "alone".to_owned() } else { format!("beside 3 noisy, {policy}") };
        if !args.json && !live {
            println!("{label} …");
        }
        Self { label, seconds: args.seconds + 1, passed: 0, live }
    }

    fn show(&mut self, samples: &[Sample]) {
        self.passed += 1;
        if !self.live {
            return;
        }
        let db = samples.iter().find(|sample| sample.target == DB);
        let noise: u64 = samples.iter().filter(|sample| sample.target != DB).map(|sample| sample.bytes).sum();
        let (mean, p99) = db.map_or((0.0, 0), |sample| (sample.mean_ns, sample.p99_ns));
        print!(
            "\r\x1b[K{:<28} {:>3}/{} s   {DB}: mean {} µs, p99 {} µs   neighbours: {:.0} MB/s",
            self.label,
            self.passed.min(self.seconds),
            self.seconds,
            table::micros(mean / 1000.0),
            table::micros(p99 as f64 / 1000.0),
            noise as f64 / 1e6,
        );
        // A terminal that is gone shows nothing; the figures still come.
        let _ = std::io::stdout().flush();
    }

    fn end(&self) {
        if self.live {
            println!();
        }
    }
}

fn text(phases: &[Phase], target_us: u64) -> String {
    let heading = ["", "mean µs", "p50", "p99", "p99.9", "late", "promise", "neighbours MB/s"];
    let rows = phases.iter().filter_map(|phase| {
        let db = phase.tenants.first()?;
        let noise: f64 = phase.tenants.iter().skip(1).map(|tenant| tenant.bw_bytes_s).sum();
        let kept = if db.kept == Some(true) { "kept" } else { "BROKEN" };
        Some(vec![
            if phase.scenario == "alone" { "alone".into() } else { format!("beside 3 noisy, {}", phase.policy) },
            table::micros(db.mean_us),
            table::micros(db.p50_us),
            table::micros(db.p99_us),
            table::micros(db.p999_us),
            table::count(db.violations.unwrap_or(0) as f64),
            kept.into(),
            if phase.scenario == "alone" { "-".into() } else { format!("{:.0}", noise / 1e6) },
        ])
    });
    let rows: Vec<Vec<String>> = rows.collect();
    let mut text = format!("\nLatency of \"{DB}\" in µs; promised: 99 % of its reads within {target_us} µs.\n\n");
    text += &table::layout(&heading, &rows);
    text += "\nlate: reads over the target.\n";
    let is_broken = |phase: &&Phase| phase.tenants.first().and_then(|db| db.kept) == Some(false);
    let broken = phases.iter().filter(is_broken).map(|phase| phase.policy);
    let broken: Vec<&str> = broken.filter(|policy| *policy != "passthrough").collect();
    if phases.first().as_ref().is_some_and(is_broken) {
        text += "\nEven alone it was late: this machine's CPUs are busy with something else. Try again when they are \
                 idle.\n";
    } else if !broken.is_empty() {
        text += &format!(
            "\nThe promise was BROKEN under {}. Try again when this machine's CPUs have nothing else to do.\n",
            broken.join(" and ")
        );
    }
    text
}
