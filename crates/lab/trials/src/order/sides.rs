//! The two sides: the daemon with its clients in real time, the simulator in virtual time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use load::stats::Totals;
use load::{AnyDisk, JobResult, Options, Target};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;

use super::setting::{self, GUARANTEED, Machine, NOISY};
use crate::bench::server::Server;

/// Before anything counts: queues fill, policies settle, memory gets its pages.
const RAMP: Duration = Duration::from_secs(1);

/// What all runs have in common.
pub struct Bench<'a> {
    /// The daemon's program, which is the simulator's as well.
    pub binary: &'a Path,
    /// The modelled drive: a built-in profile's name or a profile's path.
    pub drive: &'a str,
    /// Which CPUs run which threads.
    pub machine: Machine,
}

/// What one run showed.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Seen {
    /// The guaranteed tenant's 99th percentile, as its client sees it.
    pub p99_us: f64,
    /// Its mean.
    pub mean_us: f64,
    /// The best-effort tenants' commands per second, together.
    pub noise_iops: f64,
    /// How much of the time a polling thread stood in line for a CPU, on average over them; 0 in the simulator.
    pub waited: f64,
}

/// Runs the daemon under `policy` with `tenants` for so long.
pub fn measure(bench: &Bench<'_>, policy: &str, tenants: &[&str], runtime: Duration) -> Result<Seen> {
    let Bench { binary, drive, machine } = *bench;
    let server = Server::serve(binary, &setting::daemon(policy, drive, machine))?;
    let mut clients: Vec<Vec<Target<AnyDisk>>> = machine.client_cpus.iter().map(|_| Vec::new()).collect();
    for name in tenants {
        let client = if *name == GUARANTEED { 0 } else { clients.len() - 1 };
        clients[client].push(Target::connect(&server.socket(name), vec![setting::job(name, RAMP, runtime)])?);
    }
    let (results, waited) = thread::scope(|scope| -> Result<_> {
        let running: Vec<_> = clients
            .into_iter()
            .zip(machine.client_cpus)
            .filter(|(targets, _)| !targets.is_empty())
            .map(|(targets, cpu)| scope.spawn(|| client(targets, *cpu)))
            .collect();
        thread::sleep(RAMP);
        let (before, start) = (stood_in_line(server.pid())?, Instant::now());
        // Threads that ended would be missing from the second look.
        thread::sleep(runtime.mul_f64(0.9));
        let stood = stood_in_line(server.pid())?.saturating_sub(before);
        let waited = stood.as_secs_f64() / start.elapsed().as_secs_f64() / machine.threads() as f64;
        let mut results = Vec::new();
        for client in running {
            results.extend(client.join().map_err(|_| anyhow::anyhow!("a client's thread failed"))??);
        }
        Ok((results, waited))
    })?;
    if let Some((name, error)) = results.iter().find_map(|result| Some((&result.target, result.error.as_ref()?))) {
        bail!("tenant {name}: {error}");
    }
    let (guaranteed, _) = totals(&results, &|name| name == GUARANTEED);
    let (_, noise_iops) = totals(&results, &|name| NOISY.contains(&name));
    let (all, us) = (guaranteed.combined(), |ns: f64| ns / 1e3);
    Ok(Seen { p99_us: us(all.lat().percentile_ns(99.0) as f64), mean_us: us(all.lat().mean_ns()), noise_iops, waited })
}

/// One client: a thread that polls for all of `targets`.
fn client(targets: Vec<Target<AnyDisk>>, cpu: u32) -> Result<Vec<JobResult>> {
    let mut set = CpuSet::new();
    set.set(cpu as usize);
    sched_setaffinity(None, &set).with_context(|| format!("can't run a client on CPU {cpu}"))?;
    Ok(load::run(targets, &Options::default(), &AtomicBool::new(false), &mut |_| ())?)
}

/// Counts and commands per second of the tenants that are meant.
fn totals(results: &[JobResult], meant: &dyn Fn(&str) -> bool) -> (Totals, f64) {
    let (mut totals, mut iops) = (Totals::default(), 0.0);
    for result in results.iter().filter(|result| meant(&result.target)) {
        totals.merge(&result.totals);
        iops += result.totals.ios() as f64 * 1e9 / result.runtime_ns.max(1) as f64;
    }
    (totals, iops)
}

/// How long threads of the daemon and of this process were runnable without a CPU, from the scheduler's own clock.
fn stood_in_line(daemon: u32) -> Result<Duration> {
    let mut total = Duration::ZERO;
    for process in [daemon.to_string(), "self".to_owned()] {
        for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
            let schedstat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let waited_ns = schedstat.split_whitespace().nth(1).context("unexpected schedstat")?;
            total += Duration::from_nanos(waited_ns.parse()?);
        }
    }
    Ok(total)
}

/// What the simulator says: under each policy, and the guaranteed tenant's mean alone in µs.
pub struct Simulated {
    /// In the order of [`setting::POLICIES`].
    pub policies: Vec<Seen>,
    /// Without neighbours and without a policy.
    pub alone_mean_us: f64,
}

/// Plays the scenario.
pub fn simulate(bench: &Bench<'_>) -> Result<Simulated> {
    let Bench { binary, drive, machine } = *bench;
    let dir = tempfile::tempdir().context("no temporary directory")?;
    let file: PathBuf = dir.path().join("order.toml");
    std::fs::write(&file, setting::scenario(drive, machine))?;
    let output =
        Command::new(binary).arg("sim").arg(&file).arg("--json").output().context("can't start evenkeel sim")?;
    if !output.status.success() {
        bail!("evenkeel sim failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).context("the simulator's JSON")?;
    let number = |value: &serde_json::Value| value.as_f64().context("a figure is missing in the simulator's JSON");
    let runs = outcome["items"].as_array().context("no items in the simulator's JSON")?;
    let policies = runs.iter().zip(setting::POLICIES).map(|(run, policy)| {
        if run["policy"] != policy {
            bail!("the simulator ran {} in place of {policy}", run["policy"]);
        }
        let tenants = run["tenants"].as_array().context("no tenants in the simulator's JSON")?;
        let latency = &tenants.first().context("no tenants in the simulator's JSON")?["latency"];
        let mut noise_iops = 0.0;
        for tenant in tenants.iter().skip(1) {
            noise_iops += number(&tenant["iops"])?;
        }
        let us = |value| number(value).map(|ns| ns / 1e3);
        Ok(Seen { p99_us: us(&latency["p99_ns"])?, mean_us: us(&latency["mean_ns"])?, noise_iops, waited: 0.0 })
    });
    let policies: Vec<Seen> = policies.collect::<Result<_>>()?;
    if policies.len() != setting::POLICIES.len() {
        bail!("the simulator ran {} of {} policies", policies.len(), setting::POLICIES.len());
    }
    Ok(Simulated { policies, alone_mean_us: number(&outcome["alone_mean_ns"][0])? / 1e3 })
}
