//! Tenants of a daemon that imitates a drive in real time, and what their clients saw.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use config::Config;
use load::value::BlockSizes;
use load::{JobSpec, Options, Patience, Rw, Target};
use planner::{TenantForecast, predict};
use ssd_model::Profile;

use crate::serving::Serving;
use promises::planning;

/// Commands that a greedy job keeps outstanding: far more than the policies let into the drive.
pub const DEPTH: u16 = 1_000;
/// The drive that is imitated: slow enough that the daemon, its client and the copying of data don't get in its way.
pub const PROFILE: &str = "p3520";
/// Not measured.
const RAMP: Duration = Duration::from_millis(500);

/// One tenant of a run: random reads.
pub struct Job {
    /// As `priority` in the configuration.
    pub priority: &'static str,
    /// With equal shares of the commands; one or two.
    pub sizes_bytes: Vec<u32>,
    /// Commands per second, at random moments; `None`: as many as it gets.
    pub rate_iops: Option<u64>,
}

/// What it got.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Commands per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_s: f64,
    /// Mean latency, µs, from when a command was due.
    pub mean_us: f64,
}

/// How long, with which random numbers, and who may end it.
pub struct Run<'a> {
    /// Of each round.
    pub seconds: u64,
    /// How often everything is measured; the medians count, so that a machine which was busy for a moment does no harm.
    pub rounds: usize,
    /// Of the jobs' addresses.
    pub seed: u64,
    /// Set by an interrupt.
    pub stop: &'a AtomicBool,
}

impl Run<'_> {
    /// What each tenant of a daemon under a policy gets: the medians of all rounds.
    pub fn play(&self, policy: &str, jobs: &[Job]) -> Result<Vec<Seen>> {
        let rounds = (0..self.rounds.max(1)).map(|_| self.round(policy, jobs)).collect::<Result<Vec<_>>>()?;
        let of = |at: usize, figure: fn(&Seen) -> f64| {
            let mut values: Vec<f64> = rounds.iter().filter_map(|seen| seen.get(at)).map(figure).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let seen = |at| Seen {
            iops: of(at, |seen| seen.iops),
            bytes_s: of(at, |seen| seen.bytes_s),
            mean_us: of(at, |seen| seen.mean_us),
        };
        Ok((0..jobs.len()).map(seen).collect())
    }

    /// Starts a daemon, attaches a client to each tenant, measures.
    fn round(&self, policy: &str, jobs: &[Job]) -> Result<Vec<Seen>> {
        let serving = Serving::start("reproduce", |dir| configuration(dir, policy, jobs))?;
        let target = |(at, job): (usize, &Job)| Target::connect(&serving.dir().join(name(at)), vec![self.spec(job)]);
        let targets = jobs.iter().enumerate().map(target).collect::<Result<Vec<_>, _>>()?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let patience = if cores >= 2 { Patience::Spin } else { Patience::Yield };
        let options = Options { threads: 1, patience, ..Options::default() };
        let results = load::run(targets, &options, self.stop, &mut |_| ())?;
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        serving.stop()?;
        let seen = results.iter().map(|result| {
            if let Some(error) = &result.error {
                bail!("tenant {}: {error}", result.target);
            }
            let (all, seconds) = (result.totals.combined(), result.runtime_ns.max(1) as f64 / 1e9);
            let (iops, bytes_s) = (all.ios as f64 / seconds, all.bytes as f64 / seconds);
            Ok(Seen { iops, bytes_s, mean_us: all.lat().mean_ns() / 1000.0 })
        });
        seen.collect()
    }

    fn spec(&self, job: &Job) -> JobSpec {
        JobSpec {
            rw: Rw::RandRead,
            block_sizes: sizes(job).parse().unwrap_or_else(|_| BlockSizes::fixed(4096)),
            iodepth: DEPTH,
            rate_iops: job.rate_iops,
            arrivals: load::spec::Arrivals::Poisson,
            ramp_time: RAMP,
            runtime: Some(Duration::from_secs(self.seconds)),
            seed: self.seed,
            ..JobSpec::default()
        }
    }
}

/// What the planner says of the same daemon and the same jobs.
pub fn forecast(policy: &str, jobs: &[Job]) -> Result<Vec<TenantForecast>> {
    let config = Config::parse(Path::new("live.toml"), &configuration(Path::new("/tmp"), policy, jobs))?;
    let profile = Profile::by_name(PROFILE).with_context(|| format!("no profile {PROFILE}"))?;
    let question = planning::of_config(&config, &profile);
    Ok(predict(&question.site, &question.policy, &question.tenants)?.tenants)
}

fn name(at: usize) -> String {
    format!("job-{}", at + 1)
}

/// As fio's `bssplit`.
fn sizes(job: &Job) -> String {
    let part = 100 / job.sizes_bytes.len().max(1);
    job.sizes_bytes.iter().map(|bytes| format!("{bytes}/{part}")).collect::<Vec<_>>().join(":")
}

fn configuration(dir: &Path, policy: &str, jobs: &[Job]) -> String {
    let mut text = format!(
        "runtime_dir = {dir:?}\nstate_dir = {dir:?}\n[device]\nbackend = \"model\"\nprofile = {PROFILE:?}\n\
         size = \"1GiB\"\n\
         [policy]\nname = {policy:?}\n"
    );
    for (at, job) in jobs.iter().enumerate() {
        let priority = if policy == "passthrough" { String::new() } else { format!("priority = {:?}\n", job.priority) };
        let load = job.rate_iops.map_or(format!("iodepth = {DEPTH}"), |rate| format!("rate_iops = {rate}"));
        // Writing to a string can't fail.
        let _ = write!(
            text,
            "[[tenant]]\nname = {:?}\nsize = \"256MiB\"\n{priority}[tenant.demand]\nrw = \"randread\"\n\
             bs = {:?}\n{load}\n",
            name(at),
            sizes(job)
        );
    }
    text
}
