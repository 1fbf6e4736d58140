//! What it costs to keep summaries and to trace a tenant, and whether a trace that is replayed gives the daemon's
//! latency.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::online::{Client, TENANTS};
use super::pairs::BEST_EFFORT;
use super::server::{Run, Server, evenkeel, load, new_directory, tenant};
use super::{Figure, Goal, Options};

/// Of a core.
const SUMMARIES_GOAL_PERCENT: f64 = 0.1;
/// A summary is written each ten seconds: these are three.
const SUMMARIES_SECONDS: u64 = 30;
/// Of its throughput.
const TRACE_GOAL_PERCENT: f64 = 3.0;
const REPLAY_GOAL_PERCENT: f64 = 15.0;
const DEPTH: u32 = 8;
/// It takes 95 µs for a read.
const MODEL: &str = "backend = \"model\"\nprofile = \"p3520\"\nsize = \"64GiB\"\nmemory_backed = false";

/// What the thread that keeps summaries takes of a core, with 1,000 tenants that all do something in every interval.
pub fn summaries(_options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let all: String = (0..TENANTS).map(|n| format!("[[tenant]]\nname = \"t{n}\"\nsize = \"4MiB\"\n")).collect();
    let server = Server::start("memory", "lpns", &all)?;
    let attached: Result<Vec<Client>> =
        (0..TENANTS).map(|n| Client::attach(&server.socket(&format!("t{n}")))).collect();
    let mut clients = attached?;
    let (before, begun) = (thread_seconds(server.pid(), "history")?, Instant::now());
    let span = Duration::from_secs(SUMMARIES_SECONDS);
    while begun.elapsed() < span {
        for client in &mut clients {
            let mut reads = 0..16;
            client.read_until(|| reads.next().is_none())?;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let percent = 100.0 * (thread_seconds(server.pid(), "history")? - before) / begun.elapsed().as_secs_f64();
    notes.push(
        "the owner, which tells the keeper of summaries which drives there are, is not counted: a message".into(),
    );
    let name = format!("summaries of {TENANTS} busy tenants: CPU, of one core");
    Ok(vec![Figure::of(name, vec![percent], "%", Some(Goal::AtMost(SUMMARIES_GOAL_PERCENT)))?])
}

/// What a trace costs the tenant that is traced, pair by pair.
pub fn tracing(options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let server = Server::start_on(MODEL, "passthrough", &tenant("a", BEST_EFFORT))?;
    let mut lost = Vec::new();
    for _ in 0..options.rounds {
        let plain = load(&server.socket("a"), DEPTH, options.seconds)?;
        let (traced, _) = load_traced(&server, options.seconds)?;
        lost.push(100.0 * (1.0 - traced.iops / plain.iops));
    }
    notes.push(
        "the thread that makes text of a trace, the API's and the command that writes it have no CPU of their own \
         here: what they take, the poller or the client lacks"
            .to_owned(),
    );
    let name = format!("throughput that tracing costs the tenant, modelled drive, QD {DEPTH}");
    Ok(vec![Figure::of(name, lost, "%", Some(Goal::AtMost(TRACE_GOAL_PERCENT)))?])
}

/// How far the mean latency of a replay is from what the daemon gave.
pub fn replay(options: &Options, _notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let server = Server::start_on(MODEL, "passthrough", &tenant("a", BEST_EFFORT))?;
    let (mut measured, mut played, mut off) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let (_, trace) = load_traced(&server, options.seconds)?;
        let (real_us, sim_us) = (mean_us(&trace)?, replayed_us(&trace, options.seconds)?);
        off.push(100.0 * (sim_us / real_us - 1.0).abs());
        measured.push(real_us);
        played.push(sim_us);
    }
    Ok(vec![
        Figure::of("a trace: mean latency in the daemon", measured, "µs", None)?,
        Figure::of("the same, replayed in the simulator", played, "µs", None)?,
        Figure::of("a replay's mean latency, off by", off, "%", Some(Goal::AtMost(REPLAY_GOAL_PERCENT)))?,
    ])
}

/// A load that is traced all the while, and the trace.
fn load_traced(server: &Server, seconds: u64) -> Result<(Run, PathBuf)> {
    let trace = new_directory()?.join("trace.csv");
    let begin = || -> Result<std::process::Child> {
        let mut command = Command::new(evenkeel());
        command.args(["trace", "a", "--json", "--seconds", &(seconds + 2).to_string(), "--output"]).arg(&trace);
        let child = command.env("EVENKEEL_SOCKET", server.socket("api.sock")).stdout(std::process::Stdio::null());
        child.spawn().context("can't start `evenkeel trace`")
    };
    let mut tracing = begin()?;
    while !trace.exists() {
        ensure!(tracing.try_wait()?.is_none(), "`evenkeel trace` ended before it began");
        std::thread::sleep(Duration::from_millis(5));
    }
    let run = load(&server.socket("a"), DEPTH, seconds)?;
    ensure!(tracing.wait()?.success(), "`evenkeel trace` failed");
    Ok((run, trace))
}

/// Of all commands of a trace.
fn mean_us(trace: &Path) -> Result<f64> {
    let text = std::fs::read_to_string(trace)?;
    let (mut count, mut sum_ns) = (0_u64, 0_u64);
    for line in text.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())) {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields.get(at).and_then(|it| it.parse::<u64>().ok()).context("unexpected trace");
        sum_ns += number(5)? + number(6)?;
        count += 1;
    }
    ensure!(count > 0, "nothing was traced");
    Ok(sum_ns as f64 / count as f64 / 1e3)
}

fn replayed_us(trace: &Path, seconds: u64) -> Result<f64> {
    let scenario = trace.with_file_name("scenario.toml");
    let duration = seconds + 3;
    let text = format!(
        "policies = [\"passthrough\"]\n[drive]\nprofile = \"p3520\"\n[run]\nwarmup = \"0s\"\n\
         duration = \"{duration}s\"\n\
         [[tenant]]\nname = \"a\"\nsize = \"2GiB\"\n\
         [tenant.workload]\nkind = \"trace\"\npath = {trace:?}\nformat = \"evenkeel\"\nloop = false\n"
    );
    std::fs::write(&scenario, text)?;
    let output = Command::new(evenkeel()).args(["sim", "--json"]).arg(&scenario).output();
    let output = output.context("can't start `evenkeel sim`")?;
    if !output.status.success() {
        bail!("`evenkeel sim` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let played: serde_json::Value = serde_json::from_slice(&output.stdout).context("the JSON of `evenkeel sim`")?;
    let mean_ns = played["items"][0]["tenants"][0]["latency"]["mean_ns"].as_f64();
    // Traces of a fast drive are large.
    std::fs::remove_dir_all(trace.parent().context("a trace without a directory")?)?;
    Ok(mean_ns.context("no mean latency in the JSON of `evenkeel sim`")? / 1e3)
}

/// Time on a CPU of the process's thread of that name.
fn thread_seconds(pid: u32, name: &str) -> Result<f64> {
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        if std::fs::read_to_string(thread.join("comm"))?.trim() == name {
            let schedstat = std::fs::read_to_string(thread.join("schedstat"))?;
            let on_cpu_ns: u64 = schedstat.split_whitespace().next().context("unexpected schedstat")?.parse()?;
            return Ok(on_cpu_ns as f64 / 1e9);
        }
    }
    bail!("the daemon has no thread {name:?}")
}
