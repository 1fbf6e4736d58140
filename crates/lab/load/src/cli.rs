//! `evenkeel load`.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use io_model::QueuePriority;
use nvme_driver::Arbitration;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::attach::Frontend;
use crate::priority::{arbitration, priority};
use crate::runner::{Options, Patience, Sample, Target, run};
use crate::spec::{Arrivals, JobSpec, Rw};
use crate::stats::JobResult;
use crate::value::{Amount, BlockSizes, bytes, count, duration, percent};
use crate::{Error, report};

/// Whether an idle thread yields its core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Yield {
    /// If this machine has too few cores for the threads and a daemon.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Send I/O to tenants' disks and measure it, with fio's options, on all given sockets.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Sockets of tenants, or the directories that hold them as `cntrl` (vfio-user) or `vhost.sock` (vhost-user-blk).
    /// Or the PCI address of a claimed drive, for its first namespace. Writes destroy the data of disk and drive.
    #[arg(required = true, value_name = "SOCKET")]
    sockets: Vec<PathBuf>,
    /// Protocol of the sockets, if their names don't show it.
    #[arg(long, default_value = "auto", value_name = "PROTOCOL")]
    frontend: Frontend,
    /// Kind and order of commands.
    #[arg(long, default_value = "randread")]
    rw: Rw,
    /// Block size.
    #[arg(long, default_value = "4k", value_parser = bytes, value_name = "SIZE")]
    bs: u64,
    /// Block sizes with their shares in percent, instead of --bs: 4k/60:64k/40.
    #[arg(long, value_name = "SIZE/SHARE:…")]
    bssplit: Option<BlockSizes>,
    /// Commands in flight per job.
    #[arg(long, default_value_t = 1, value_name = "N")]
    iodepth: u16,
    /// Jobs per socket, each with its own queue.
    #[arg(long, default_value_t = 1, value_name = "N")]
    numjobs: u16,
    /// Additional queues per socket without commands, to measure their cost to the others.
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    idle_queues: u16,
    /// NVMe only: priority of a job's queue: urgent, high, medium or low. A list, separated by commas, is for a
    /// socket's jobs in turn. Default: from this process's I/O priority (ionice): realtime is high, best-effort medium,
    /// idle low.
    #[arg(long, value_delimiter = ',', value_parser = priority, value_name = "CLASS,…")]
    queue_priority: Vec<QueuePriority>,
    /// NVMe only: how the controller arbitrates among a client's queues. rr: in turn. wrr: urgent first, the others by
    /// weights in commands. drr: by weights in KiB. Weights are those of high, medium and low queues: wrr:32,16,8 or
    /// drr:128,64,32. Default: wrr if the controller has it.
    #[arg(long, value_parser = arbitration, value_name = "KIND[:H,M,L]")]
    arbitration: Option<Arbitration>,
    /// Percentage of reads, for rw and randrw.
    #[arg(long, default_value = "50%", value_parser = percent, value_name = "PERCENT")]
    rwmixread: u8,
    /// Commands per second and job, sent when due, however many are in flight. Latencies count from the due time.
    #[arg(long, value_parser = count, value_name = "N")]
    rate_iops: Option<u64>,
    /// How --rate-iops spaces commands.
    #[arg(long, default_value = "linear", value_name = "PROCESS")]
    rate_process: Arrivals,
    /// Time to measure. Default: until the range was transferred once.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    runtime: Option<Duration>,
    /// Warm-up before measuring.
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "TIME")]
    ramp_time: Duration,
    /// Pause after completions.
    #[arg(long, default_value = "0s", value_parser = duration, value_name = "TIME")]
    thinktime: Duration,
    /// Start of the working range: bytes, or a percentage of the disk.
    #[arg(long, default_value = "0", value_name = "SIZE|PERCENT")]
    offset: Amount,
    /// Length of the working range. Default: to the end of the disk.
    #[arg(long, value_name = "SIZE|PERCENT")]
    size: Option<Amount>,
    /// Stamp writes, check reads, and read everything back at the end. With read or randread: check the data of an
    /// earlier run with equal --randseed and --bs.
    #[arg(long)]
    verify: bool,
    /// Make each write durable before it completes (FUA; with vhost-user-blk a flush after each).
    #[arg(long)]
    fua: bool,
    /// Go on after a command fails.
    #[arg(long)]
    continue_on_error: bool,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 0x5eed, value_name = "N")]
    randseed: u64,
    /// Name of the jobs in the results. Default: the tenant's name.
    #[arg(long, default_value = "", hide_default_value = true)]
    name: String,
    /// Threads that run all jobs together. Default: one per job, as far as there are cores.
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Whether an idle thread yields its core to other threads.
    #[arg(long = "yield", default_value = "auto", value_name = "WHEN")]
    give_way: Yield,
    /// A job without any completion for this long has failed.
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "TIME")]
    timeout: Duration,
    /// Print JSON with fio's field names.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn spec(&self) -> JobSpec {
        JobSpec {
            name: self.name.clone(),
            rw: self.rw,
            rwmixread: self.rwmixread,
            block_sizes: self.bssplit.clone().unwrap_or_else(|| BlockSizes::fixed(self.bs)),
            iodepth: self.iodepth,
            numjobs: self.numjobs,
            idle_queues: self.idle_queues,
            queue_priorities: self.queue_priority.clone(),
            rate_iops: self.rate_iops,
            arrivals: self.rate_process,
            runtime: self.runtime,
            ramp_time: self.ramp_time,
            think_time: self.thinktime,
            offset: self.offset,
            size: self.size,
            verify: self.verify,
            fua: self.fua,
            continue_on_error: self.continue_on_error,
            seed: self.randseed,
        }
    }

    fn options(&self) -> Options {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let jobs = self.sockets.len() * usize::from(self.numjobs);
        // One core is left for the daemon.
        let threads = self.threads.unwrap_or_else(|| jobs.min(cores.saturating_sub(1))).max(1);
        let give_way = match self.give_way {
            Yield::Auto => threads >= cores,
            Yield::Always => true,
            Yield::Never => false,
        };
        let patience = if give_way { Patience::Yield } else { Patience::Spin };
        Options { threads, patience, timeout: self.timeout }
    }
}

/// Runs the jobs and prints their results; ends early, with results, on SIGINT or SIGTERM. The exit code
/// is 0 if every command succeeded, everything verified and every job was measured, else 1. `version` is the tool's;
/// `line` writes a line of JSON.
pub fn main(args: &Args, version: &str, line: fn(&Value) -> serde_json::Result<String>) -> Result<ExitCode, Error> {
    let stop = stop_on_signals()?;
    let spec = args.spec();
    let connect = |path: &PathBuf| Target::connect_as(args.frontend, args.arbitration, path, vec![spec.clone()]);
    let targets = args.sockets.iter().map(connect).collect::<Result<Vec<_>, _>>()?;
    let live = io::stderr().is_terminal();
    let results = run(targets, &args.options(), &stop, &mut |samples| {
        if live {
            show(samples);
        }
    })?;
    if live {
        eprint!("\r\x1b[K");
    }
    let json = || Ok(line(&report::json(&results, version))? + "\n");
    let text: io::Result<String> = if args.json { json() } else { Ok(report::table(&results)) };
    let printed = text.and_then(|text| io::stdout().write_all(text.as_bytes()));
    printed.map_err(|error| Error::System(format!("can't print results: {error}")))?;
    let clean = results.iter().all(|result| result.is_clean());
    let checked = |result: &JobResult| result.verify.as_ref().is_some_and(|verify| verify.checked_units > 0);
    if spec.verify && !results.iter().all(checked) {
        // A signal ended it in good order: not a failure, but not a proof either.
        eprintln!("verify: a job was stopped before it could check anything");
    }
    let is_measured = |result: &JobResult| result.spec.ramp_time.is_zero() || result.totals.ios() > 0;
    if !results.iter().all(is_measured) {
        eprintln!(
            "a job ended within its ramp time, and nothing of it was measured: lower --ramp-time, or raise --size"
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A flag that signals set. Further signals change nothing: `timeout` sends two at once.
fn stop_on_signals() -> Result<Arc<AtomicBool>, Error> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Error::System(format!("can't catch signals: {error}")))?;
    }
    Ok(stop)
}

/// One line that is overwritten every second.
fn show(samples: &[Sample]) {
    let mut line = String::new();
    for sample in samples.iter().filter(|sample| sample.elapsed_ns > 0 && !sample.finished) {
        let iops = sample.ios as f64 * 1e9 / sample.elapsed_ns as f64;
        let (name, p99) = (&sample.name, report::micros(sample.p99_ns as f64));
        line.push_str(&format!("  {name}: {iops:.0} IOPS, p99 {p99} µs"));
    }
    eprint!("\r\x1b[K{}", line.trim_start());
}
