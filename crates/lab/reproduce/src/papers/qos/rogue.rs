//! A neighbour that goes wild: what the others notice. Not in the paper; it arbitrates only among well-behaved jobs.

use io_model::Nanos;
use policy::{ArbitratedConfig, Class, FairConfig, Limits, LpnsConfig, PolicyConfig, Terms};
use rivals::LabConfig;
use sim::workload::{Access, BlockSize, Fio, Open, Workload};
use sim::{Fault, FaultKind, Layout, Scenario, Tenant};
use ssd_model::Profile;

use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

/// What the others may notice.
const TOLERANCE: f64 = 0.05;
const METRIC: &str = "change of the others' p99 (%)";
const SPAN: Nanos = Nanos::from_millis(400);
const WARMUP: Nanos = Nanos::from_millis(50);
const DISK_BYTES: u64 = 64 << 30;
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

/// Drives, with the 4 KiB commands that fill each, and the reads per second that one poller gets out of it.
const DRIVES: [(&str, u32, f64); 2] = [("p5800x", 64, 560_000.0), ("p3700", 128, 400_000.0)];

/// What the fourth tenant does.
#[derive(Debug, Clone, Copy)]
enum Neighbour {
    /// As the others, at exactly its share.
    Behaves { read_percent: u8 },
    /// Four times the depth, at this size.
    Deep { bytes: u32, read_percent: u8 },
    /// 1024 outstanding, half of them writes, and doorbells for commands that aren't there.
    Wild { bytes: u32 },
}

fn access(bytes: u32, read_percent: u8) -> Access {
    Access { block_sizes: vec![BlockSize { bytes, weight: 1 }], ..Access::random_4k(read_percent) }
}

fn closed(jobs: u16, depth: u32, bytes: u32, read_percent: u8) -> Workload {
    Workload::Fio(Fio { jobs: jobs.into(), iodepth: depth, access: access(bytes, read_percent) })
}

fn open(jobs: u16, iops: f64) -> Workload {
    Workload::Open(Open { max_outstanding: ROGUE_DEPTH, ..Open::random_4k(jobs.into(), iops, 100) })
}

impl Neighbour {
    fn jobs(self) -> u16 {
        if matches!(self, Self::Behaves { .. }) { JOBS } else { ROGUE_JOBS }
    }

    fn workload(self) -> Workload {
        match self {
            Self::Behaves { read_percent } => closed(JOBS, DEPTH, PAGE, read_percent),
            Self::Deep { bytes, read_percent } => closed(ROGUE_JOBS, DEPTH, bytes, read_percent),
            Self::Wild { bytes } => closed(ROGUE_JOBS, ROGUE_DEPTH / u32::from(ROGUE_JOBS), bytes, 50),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Behaves { .. } => "behaves".to_owned(),
            Self::Deep { bytes, read_percent: 100 } => format!("4 x reads of {}", size(bytes)),
            Self::Deep { bytes, .. } => format!("4 x writes of {}", size(bytes)),
            Self::Wild { bytes } => format!("1024 deep, doorbells, {}", size(bytes)),
        }
    }

    fn bytes(self) -> u32 {
        match self {
            Self::Behaves { .. } => PAGE,
            Self::Deep { bytes, .. } | Self::Wild { bytes } => bytes,
        }
    }

    /// The tenant that it is compared with: it reads, writes, or does both like the rogue, because a write costs a
    /// drive more than a read.
    fn honest(self) -> Self {
        let read_percent = match self {
            Self::Behaves { read_percent } | Self::Deep { read_percent, .. } => read_percent,
            Self::Wild { .. } => 50,
        };
        Self::Behaves { read_percent }
    }
}

fn size(bytes: u32) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { format!("{} KiB", bytes >> 10) }
}

fn tenant(name: &str, terms: Terms, vqs: u16, workload: Workload) -> Tenant {
    let name = name.to_owned();
    Tenant { name, terms, vcpus: vqs, vqs, queue_priorities: Vec::new(), size_bytes: DISK_BYTES, workload }
}

fn policy(name: &str, window: u32) -> LabConfig {
    let product = match name {
        "drr" => PolicyConfig::Drr(ArbitratedConfig { max_in_flight: window, ..ArbitratedConfig::drr() }),
        "wrr" => PolicyConfig::Wrr(ArbitratedConfig { max_in_flight: window, ..ArbitratedConfig::wrr() }),
        "lpns" => PolicyConfig::Lpns(LpnsConfig::p5800x()),
        "fair" => PolicyConfig::Fair(FairConfig::p5800x()),
        "caps" => return LabConfig::Caps,
        _ => PolicyConfig::Passthrough,
    };
    product.into()
}

/// The worst p99 of the others, in ns. `class` is theirs; `caps` holds the last one to its share.
fn others_p99(
    context: &Context<'_>,
    (drive, window, share_iops): (&str, u32, f64),
    (name, class): (&str, Class),
    others: &Workload,
    mut last: Tenant,
    faults: Vec<Fault>,
) -> Result<f64, String> {
    let profile = Profile::by_name(drive).ok_or_else(|| format!("no profile {drive}"))?;
    let mut tenants: Vec<Tenant> =
        (0..OTHERS).map(|at| tenant(&format!("tenant {at}"), class.into(), JOBS, others.clone())).collect();
    let mbytes = share_iops * f64::from(PAGE) / f64::from(1 << 20);
    if name == "caps" {
        let (rw_ios_per_sec, rw_mbytes_per_sec) = (share_iops as u64, mbytes as u64);
        last.terms.limits = Limits { rw_ios_per_sec, rw_mbytes_per_sec, ..Limits::default() };
    }
    tenants.push(last);
    let scenario = Scenario {
        layout: if name == "lpns" { Layout::Evenkeel } else { Layout::Mdev },
        policy: policy(name, window),
        tenants,
        warmup: context.span(WARMUP),
        duration: context.span(SPAN),
        seed: context.seed(),
        faults,
        ..Scenario::new(profile)
    };
    let report = sim::run(&scenario).map_err(|error| error.to_string())?;
    Ok(report.tenants.iter().take(OTHERS).map(|tenant| tenant.latency.p99_ns).max().unwrap_or(0) as f64)
}

const BEST_EFFORT: Class = Class::BestEffort { weight: 1 };

fn booked_out(context: &Context<'_>, drive: (&str, u32, f64), name: &str, last: Neighbour) -> Result<f64, String> {
    let others = closed(JOBS, DEPTH, PAGE, 100);
    let wild = matches!(last, Neighbour::Wild { .. });
    let rings = Fault { at: Nanos(1_000), kind: FaultKind::Rogue { tenant: OTHERS } };
    let faults = if wild { vec![rings] } else { Vec::new() };
    let rogue = tenant("rogue", BEST_EFFORT.into(), last.jobs(), last.workload());
    others_p99(context, drive, (name, BEST_EFFORT), &others, rogue, faults)
}

fn percent(rogue_ns: f64, honest_ns: f64) -> f64 {
    (rogue_ns / honest_ns - 1.0) * 100.0
}

/// A drive that is booked out.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let title = "A rogue on a drive that is booked out";
    let mut figure = Figure::new(Paper::Qos, "rogue", title);
    figure.shows = "Three tenants read 4 KiB at random and take their quarters of the drive; the fourth asks for four \
                    times its own, at any size and depth, and rings its doorbells for commands that aren't there. The \
                    others' worst 99th percentile, against the same with a fourth tenant that takes just its share. \
                    Below zero they gain. `drr` charges bytes. `wrr` counts commands, as NVMe has it, so large \
                    commands take from everyone."
        .into();
    figure.goal = format!("less than {:.0} % under drr, at any size", TOLERANCE * 100.0);
    figure.assume(format!(
        "All four are best effort and of the class medium, on one poller with the costs of LPNS's host. Who behaves \
         keeps {} commands outstanding, so that all always have some waiting. The policies let in as many 4 KiB \
         commands as fill the drive: {}.",
        u32::from(JOBS) * DEPTH,
        DRIVES.map(|(drive, window, _)| format!("{window} on the {drive}")).join(", ")
    ));
    figure.assume(
        "A rogue that writes is compared with a tenant that writes within its share: a write may take more of a drive \
         than a read.",
    );
    let seen = changes(context)?;
    for Change { drive, policy, rogue, percent } in &seen {
        figure.push(Row::new(&format!("{policy} on {drive}"), rogue.name(), METRIC, *percent));
    }
    judge(&mut figure, &seen);
    figure.deviation = Some(
        "Nothing interrupts a command: one of 1 MiB is larger than all that the policy lets into the drive, so the \
         others wait while it is under way. In the daemon an NVMe tenant under these policies sends 128 KiB at most. \
         Writes of 16 KiB and more on the P3700 leave its buffer in larger pieces than those of the tenant that it is \
         compared with; drr charges bytes and not the drive's time. Where neither may be felt, the others need lpns \
         and a target."
            .into(),
    );
    figure.plots.push(Plot::bars(METRIC, "the fourth tenant"));
    Ok(vec![figure])
}

/// What the others notice of a rogue.
struct Change {
    drive: &'static str,
    policy: &'static str,
    rogue: Neighbour,
    percent: f64,
}

fn changes(context: &Context<'_>) -> Result<Vec<Change>, Error> {
    let deep = [100, 0].into_iter().flat_map(|read_percent| {
        [512, PAGE, 16 << 10, LARGEST, 1 << 20].map(|bytes| Neighbour::Deep { bytes, read_percent })
    });
    let wild = [512, PAGE, LARGEST].map(|bytes| Neighbour::Wild { bytes });
    let rogues: Vec<Neighbour> = deep.chain(wild).collect();
    let ways = DRIVES.iter().flat_map(|drive| ["drr", "wrr"].map(|name| (*drive, name)));
    let all: Vec<_> = ways.flat_map(|way| rogues.iter().map(move |rogue| (way.0, way.1, *rogue))).collect();
    let label = |(drive, name, rogue): &((&'static str, u32, f64), &'static str, Neighbour)| {
        format!("{name} on {}: {}", drive.0, rogue.name())
    };
    context.all(&all, label, |(drive, name, rogue)| {
        let [honest_ns, rogue_ns] = [rogue.honest(), *rogue].map(|last| booked_out(context, *drive, name, last));
        Ok(Change { drive: drive.0, policy: name, rogue: *rogue, percent: percent(rogue_ns?, honest_ns?) })
    })
}

fn judge(figure: &mut Figure, seen: &[Change]) {
    let most = TOLERANCE * 100.0;
    let mut demand = |text: &str, concerned: &dyn Fn(&Change) -> bool| {
        let worst =
            seen.iter().filter(|change| concerned(change)).map(|change| change.percent).fold(f64::MIN, f64::max);
        figure.demand(
            format!("{text}: p99 rises by less than {most:.0} %"),
            worst < most,
            format!("by {worst:+.1} % at most"),
        );
    };
    let writes = |change: &Change| matches!(change.rogue, Neighbour::Deep { read_percent: 0, .. });
    let drr = |change: &Change| change.policy == "drr";
    let large = |change: &Change| change.rogue.bytes() > LARGEST;
    demand("drr, reads up to 128 KiB, and 1024 deep with doorbells", &|one| drr(one) && !large(one) && !writes(one));
    demand("drr, writes up to 128 KiB", &|one| drr(one) && !large(one) && writes(one));
    demand("drr, 1 MiB, more than the drive is let to hold at a time", &|one| drr(one) && large(one));
    demand("wrr, sizes up to 4 KiB", &|one| !drr(one) && one.rogue.bytes() <= PAGE);
}

/// The others' load in their shares, where the drive is half idle.
const LOAD: f64 = 0.5;

/// A drive that has room to spare.
pub fn measure_idle(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let title = "A rogue on a drive with room to spare";
    let mut figure = Figure::new(Paper::Qos, "rogue-idle", title);
    figure.shows = "The others arrive at random and use half of their quarters; the fourth tenant's arrivals are its \
                    quarter, or four times that. Work that nobody else wants goes to whoever asks, so the drive is as \
                    busy as it can be and the others' commands meet the rogue's inside of it: the fewer commands the \
                    policy lets in, the less. Only a cap at its share leaves the rest idle."
        .into();
    figure.goal = "none: what each policy lets the others notice".into();
    figure.assume(
        "P5800X, 4 KiB reads, best effort; under lpns the three others are guaranteed tenants with a target of 100 µs. \
         \"caps\" holds the fourth tenant to its quarter, in slices of a millisecond, which by themselves are felt.",
    );
    let (drive, window, total_iops) = DRIVES[0];
    let share_iops = total_iops / (OTHERS + 1) as f64;
    let target = Class::guaranteed(Some(Nanos::from_micros(100)));
    let ways = [
        ("drr", "drr", window),
        ("drr, 16 in flight", "drr", 16),
        ("wrr", "wrr", window),
        ("wrr, 16 in flight", "wrr", 16),
        ("fair", "fair", window),
        ("lpns", "lpns", window),
        ("caps", "caps", window),
    ];
    let cases: Vec<_> = ways.iter().flat_map(|way| [1.0, 4.0].map(|times| (*way, times))).collect();
    let label = |((series, ..), times): &((&str, &str, u32), f64)| format!("{series}: {times} times its share");
    let p99s = context.all(&cases, label, |((_, name, window), times)| {
        let class = if *name == "lpns" { target } else { BEST_EFFORT };
        let rogue = tenant("rogue", BEST_EFFORT.into(), ROGUE_JOBS, open(ROGUE_JOBS, share_iops * times));
        let others = open(JOBS, share_iops * LOAD);
        others_p99(context, (drive, *window, share_iops), (*name, class), &others, rogue, Vec::new())
    })?;
    for ((series, ..), p99s) in ways.iter().zip(p99s.chunks(2)) {
        let [honest_ns, rogue_ns] = p99s else { continue };
        figure.push(Row::new(series, "four times its share", METRIC, percent(*rogue_ns, *honest_ns)));
        figure.push(Row::new(series, "its share", "the others' p99 (µs)", honest_ns / 1e3));
        figure.push(Row::new(series, "four times its share", "the others' p99 (µs)", rogue_ns / 1e3));
    }
    figure.plots.push(Plot::bars("the others' p99 (µs)", "the fourth tenant asks for"));
    Ok(vec![figure])
}
