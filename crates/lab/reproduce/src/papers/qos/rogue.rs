//! A neighbour that goes wild: what the others notice. Not in the paper; it arbitrates only among well-behaved jobs.

use io_model::Nanos;
use policy::{ArbitratedConfig, Class, FairConfig, Limits, LpnsConfig, PolicyConfig};
use rivals::LabConfig;
use sim::workload::{Fio, Open, Workload};
use sim::{Fault, FaultKind, Layout, Scenario, Tenant};

use super::DISK_BYTES;
use crate::papers::bench::{EVENKEEL, access, each, evenkeel, play, profile, tenant};
use crate::report::Figure;
use crate::runner::{Context, Error};

/// What the others may notice, in percent.
const MOST: f64 = 5.0;
const METRIC: &str = "change of the others' p99 (%)";
const OTHERS: usize = 3;
/// Threads, VQs and vCPUs of a tenant that behaves, and what each thread keeps outstanding.
const JOBS: u16 = 2;
const DEPTH: u32 = 32;
/// The rogue has four times as many threads, VQs and vCPUs, or this many commands outstanding.
const ROGUE_JOBS: u16 = 4 * JOBS;
const ROGUE_DEPTH: u32 = 1024;
const PAGE: u32 = 4096;
/// The largest command up to which `drr` is held to its word.
const LARGEST: u32 = 128 << 10;
const BEST_EFFORT: Class = Class::BestEffort { weight: 1 };
/// Those that keep promises.
const KEEPERS: [&str; 2] = ["lpns", EVENKEEL];

/// Drives, with the 4 KiB commands that fill each.
const DRIVES: [(&str, u32); 2] = [("p5800x", 64), ("p3700", 128)];
/// Reads per second that one poller gets out of the first one.
const READS_PER_SECOND: f64 = 560_000.0;

/// The fourth tenant. It has four times the depth at this size; or it is wild: 1024 outstanding, half of them writes,
/// and doorbells for commands that aren't there.
#[derive(Debug, Clone, Copy)]
struct Rogue {
    is_wild: bool,
    bytes: u32,
    read_percent: u8,
}

fn closed(jobs: u16, depth: u32, bytes: u32, read_percent: u8) -> Workload {
    Workload::Fio(Fio { jobs: jobs.into(), iodepth: depth, access: access(bytes, read_percent) })
}

fn open(jobs: u16, iops: f64) -> Workload {
    Workload::Open(Open { max_outstanding: ROGUE_DEPTH, ..Open::random_4k(jobs.into(), iops, 100) })
}

impl Rogue {
    fn all() -> Vec<Self> {
        let deep = each([100, 0], [512, PAGE, 16 << 10, LARGEST, 1 << 20]);
        let deep = deep.into_iter().map(|(read_percent, bytes)| Self { is_wild: false, bytes, read_percent });
        deep.chain([512, PAGE, LARGEST].map(|bytes| Self { is_wild: true, bytes, read_percent: 50 })).collect()
    }

    fn name(self) -> String {
        let Self { bytes, .. } = self;
        let size = if bytes < 1024 { format!("{bytes} B") } else { format!("{} KiB", bytes >> 10) };
        match self.read_percent {
            100 => format!("4 x reads of {size}"),
            0 => format!("4 x writes of {size}"),
            _ => format!("1024 deep, doorbells, {size}"),
        }
    }

    /// By how many percent the others' p99 rises, against a tenant at exactly its share. That one reads, writes, or
    /// does both like the rogue, because a write costs a drive more than a read.
    fn felt(self, context: &Context<'_>, drive: (&str, u32), policy: &str) -> Result<f64, String> {
        let others = (BEST_EFFORT, closed(JOBS, DEPTH, PAGE, 100));
        let last = |jobs, depth, bytes| {
            tenant("rogue", BEST_EFFORT, jobs, DISK_BYTES, closed(jobs, depth, bytes, self.read_percent))
        };
        let depth = if self.is_wild { ROGUE_DEPTH / u32::from(ROGUE_JOBS) } else { DEPTH };
        let rings = Fault { at: Nanos(1_000), kind: FaultKind::Rogue { tenant: OTHERS } };
        let faults = if self.is_wild { vec![rings] } else { Vec::new() };
        let honest_ns = others_p99(context, drive, policy, &others, last(JOBS, DEPTH, PAGE), Vec::new())?;
        let rogue_ns = others_p99(context, drive, policy, &others, last(ROGUE_JOBS, depth, self.bytes), faults)?;
        Ok(percent(rogue_ns, honest_ns))
    }
}

fn percent(rogue_ns: f64, honest_ns: f64) -> f64 {
    (rogue_ns / honest_ns - 1.0) * 100.0
}

/// The worst p99 of the others, in ns.
fn others_p99(
    context: &Context<'_>,
    (drive, window): (&str, u32),
    policy: &str,
    (class, others): &(Class, Workload),
    last: Tenant,
    faults: Vec<Fault>,
) -> Result<f64, String> {
    let profile = profile(drive)?;
    let config: LabConfig = match policy {
        EVENKEEL => evenkeel(&profile).into(),
        "drr" => PolicyConfig::Drr(ArbitratedConfig { max_in_flight: window, ..ArbitratedConfig::drr() }).into(),
        "wrr" => PolicyConfig::Wrr(ArbitratedConfig { max_in_flight: window, ..ArbitratedConfig::wrr() }).into(),
        "lpns" => PolicyConfig::Lpns(LpnsConfig::p5800x()).into(),
        "fair" => PolicyConfig::Fair(FairConfig::p5800x()).into(),
        _ => LabConfig::Caps,
    };
    let others = (0..OTHERS).map(|at| tenant(format!("tenant {at}"), *class, JOBS, DISK_BYTES, others.clone()));
    let tenants = others.chain([last]).collect();
    let layout = if KEEPERS.contains(&policy) { Layout::Evenkeel } else { Layout::Mdev };
    let scenario = context.scenario(profile, tenants, (50, 400));
    let report = play(&Scenario { layout, policy: config, faults, ..scenario })?;
    Ok(report.tenants.iter().take(OTHERS).map(|tenant| tenant.latency.p99_ns).max().unwrap_or(0) as f64)
}

/// A drive that is booked out.
pub fn booked_out(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("rogue");
    let cases = each(each(DRIVES, ["drr", "wrr", EVENKEEL]), Rogue::all());
    let seen = context.all(cases, |((drive, policy), rogue)| rogue.felt(context, *drive, policy))?;
    for (((drive, policy), rogue), percent) in &seen {
        figure.show(&format!("{policy} on {}", drive.0), rogue.name(), METRIC, *percent);
    }
    let mut demand = |text: &str, policy: &str, concerned: &dyn Fn(&Rogue) -> bool| {
        let concerned = seen.iter().filter(|(((_, of), rogue), _)| *of == policy && concerned(rogue));
        let worst = concerned.map(|(_, percent)| *percent).fold(f64::MIN, f64::max);
        let text = format!("{policy}, {text}: p99 rises by less than {MOST:.0} %");
        figure.demand(text, worst < MOST, format!("by {worst:+.1} % at most"));
    };
    let (large, writes) = (|rogue: &Rogue| rogue.bytes > LARGEST, |rogue: &Rogue| rogue.read_percent == 0);
    demand("reads up to 128 KiB, and 1024 deep with doorbells", "drr", &|it| !large(it) && !writes(it));
    demand("writes up to 128 KiB", "drr", &|it| !large(it) && writes(it));
    demand("1 MiB, more than the drive is let to hold at a time", "drr", &large);
    demand("sizes up to 4 KiB", "wrr", &|it| it.bytes <= PAGE);
    Ok(vec![figure])
}

/// The others' load in their shares, where the drive is half idle.
const LOAD: f64 = 0.5;

/// A drive that has room to spare.
pub fn idle(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    const P99: &str = "the others' p99 (µs)";
    let mut figure = context.figure("rogue-idle");
    let (drive, window) = DRIVES[0];
    let share_iops = READS_PER_SECOND / (OTHERS + 1) as f64;
    let ways = [
        ("drr", "drr", window),
        ("drr, 16 in flight", "drr", 16),
        ("wrr", "wrr", window),
        ("wrr, 16 in flight", "wrr", 16),
        ("fair", "fair", window),
        ("lpns", "lpns", window),
        (EVENKEEL, EVENKEEL, window),
        ("caps", "caps", window),
    ];
    let p99s = context.all(each(ways, [1.0, 4.0]), |((_, policy, window), times)| {
        let promised = Class::guaranteed(Some(Nanos::from_micros(100)));
        let class = if KEEPERS.contains(policy) { promised } else { BEST_EFFORT };
        let load = open(ROGUE_JOBS, share_iops * times);
        let mut rogue = tenant("rogue", BEST_EFFORT, ROGUE_JOBS, DISK_BYTES, load);
        if *policy == "caps" {
            let rw_mbytes_per_sec = (share_iops * f64::from(PAGE) / f64::from(1 << 20)) as u64;
            rogue.terms.limits = Limits { rw_ios_per_sec: share_iops as u64, rw_mbytes_per_sec, ..Limits::default() };
        }
        let others = (class, open(JOBS, share_iops * LOAD));
        others_p99(context, (drive, *window), policy, &others, rogue, Vec::new())
    })?;
    for pair in p99s.chunks(2) {
        let [(((series, ..), _), honest_ns), (_, rogue_ns)] = pair else { continue };
        figure.show(series, "four times its share", METRIC, percent(*rogue_ns, *honest_ns));
        figure.show(series, "its share", P99, honest_ns / 1e3);
        figure.show(series, "four times its share", P99, rogue_ns / 1e3);
    }
    Ok(vec![figure])
}
