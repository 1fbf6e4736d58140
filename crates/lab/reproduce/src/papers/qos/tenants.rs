//! Fig. 7 and 8 with tenants: the planner's model against the simulator, and the host's policies in the drive's place.

use engine::{HostCosts, Laboratory};
use io_model::{Nanos, QueuePriority};
use planner::{Load, Site, Size, Tenant};
use policy::{ArbitratedConfig, Class, Floor, Limits, PolicyConfig, TenantPriority, Terms};
use sim::workload::{Access, BlockSize, Fio, Workload};
use sim::{Layout, Scenario};

use super::printed::{self, Job, MODEL_ERROR, SCENARIOS, high_share};
use super::{DISK_BYTES, RATIO, TOLERANCE, class, fig7_rate, fig7_steps};
use crate::paper::Printed;
use crate::papers::bench::{EVENKEEL, each, evenkeel, play, profile, tenant};
use crate::report::{Figure, Row};
use crate::runner::{Context, Error};

/// vCPUs of a tenant.
const VCPUS: u16 = 4;
/// What Fig. 7's tenants read.
const BYTES: u32 = 32 << 10;

/// What a class of the paper's is to a policy that knows weights and no classes.
fn weight(of: QueuePriority) -> u32 {
    match of {
        QueuePriority::Urgent | QueuePriority::High => 4,
        QueuePriority::Medium => 2,
        QueuePriority::Low => 1,
    }
}

/// The high, the medium and, unless its rate is 0, the low tenant.
fn three(policy: &str, low: Load) -> Vec<Tenant> {
    let greedy = Load::Closed { depth: 64 };
    let all = [
        ("high", QueuePriority::High, greedy),
        ("medium", QueuePriority::Medium, greedy),
        ("low", QueuePriority::Low, low),
    ];
    let asks = all.into_iter().filter(|(.., load)| !matches!(load, Load::Open { rate_iops } if *rate_iops <= 0.0));
    let tenant = |(name, priority, load): (&str, _, _)| Tenant {
        name: name.to_owned(),
        class: Class::BestEffort { weight: if policy == EVENKEEL { weight(priority) } else { 1 } },
        floor: Floor::default(),
        limits: Limits::default(),
        priority,
        load,
        read_share: 1.0,
        sizes: vec![Size { len_bytes: BYTES.into(), part: 1.0 }],
        encrypted_sector_bytes: None,
        first_writes: None,
        vcpus: VCPUS,
    };
    asks.map(tenant).collect()
}

fn policy(name: &str, site: &Site) -> PolicyConfig {
    match name {
        EVENKEEL => evenkeel(&site.profile),
        // Nine commands of 32 KiB do not keep a flash drive busy; the default is for commands of 4 KiB.
        _ => PolicyConfig::Drr(ArbitratedConfig { max_in_flight: 512, ..ArbitratedConfig::drr() }),
    }
}

/// The simulation's part of the random numbers: a forecast has its own.
const OTHER_SEED: u64 = 0x5EED;

fn site() -> Result<Site, String> {
    Ok(Site { profile: profile("p3700")?, costs: HostCosts::default() })
}

fn predict(name: &str, tenants: &[Tenant]) -> Result<planner::Forecast, String> {
    let site = site()?;
    planner::predict(&site, &policy(name, &site), tenants).map_err(|error| error.to_string())
}

/// Throughput and mean latency (µs) of the high tenant, simulated and planned.
fn high_of(context: &Context<'_>, name: &str, tenants: &[Tenant]) -> Result<[(f64, f64); 2], String> {
    let site = site()?;
    let mut scenario = planner::scenario(&site, &policy(name, &site), tenants);
    (scenario.seed, scenario.duration) = (context.seed() ^ OTHER_SEED, context.span(Nanos::from_millis(1_000)));
    let report = engine::play(&scenario, &mut |shape| Ok(scenario.policy.build(shape)?), Laboratory::default());
    let (report, forecast) = (report.map_err(|error| error.to_string())?, predict(name, tenants)?);
    let seen = report.tenants.first().map(|high| (high.iops, high.latency.mean_ns / 1e3));
    let said = forecast.tenants.first().map(|high| (high.iops, high.mean.as_micros_f64()));
    seen.zip(said).map(|(seen, said)| [seen, said]).ok_or_else(|| "no tenant".to_owned())
}

/// Fig. 7.
pub fn fig7(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    const THROUGHPUT: &str = "high tenant's throughput (IOPS)";
    let mut figure = context.figure("fig7-tenants");
    for name in ["drr", EVENKEEL] {
        let greedy = context.all(["all greedy"], |_| predict(name, &three(name, Load::Closed { depth: 64 })))?;
        let gamma: f64 = greedy.iter().flat_map(|(_, forecast)| &forecast.tenants).map(|tenant| tenant.iops).sum();
        let seen = context.all(fig7_steps(), |rho| {
            high_of(context, name, &three(name, Load::Open { rate_iops: fig7_rate(*rho, gamma) }))
        })?;
        let mut worst = 0.0_f64;
        for (rho, [seen, said]) in seen {
            for (metric, seen, said) in
                [(THROUGHPUT, seen.0, said.0), ("high tenant's mean latency (µs)", seen.1, said.1)]
            {
                figure.show(&format!("{name}, simulated"), rho, metric, seen);
                figure.show(&format!("{name}, planned"), rho, metric, said);
                worst = worst.max((said / seen - 1.0).abs());
            }
            figure.show(&format!("{name}, Eq. 2"), rho, THROUGHPUT, high_share(rho).value * gamma);
        }
        let saw = format!("at most {:.1} %", worst * 100.0);
        figure.demand(format!("{name}: the forecast's error is below 5 % at every point"), worst < MODEL_ERROR, saw);
    }
    Ok(vec![figure])
}

/// What each vCPU keeps outstanding in Fig. 8: together far more than the policies let into the drive.
const DEPTH: u32 = 128;
/// Enough for the drive's 36 units, and few enough that the order matters.
const MAX_IN_FLIGHT: u32 = 128;
/// What deficit round robin is held to.
const DRR_TOLERANCE: f64 = 0.05;

/// What a policy is called, the ratio that a scenario should have under it, and how closely.
type Way = (&'static str, fn(&printed::Scenario) -> Printed, f64);
const WAYS: [Way; 4] = [
    ("drr", |s| s.drr, DRR_TOLERANCE),
    ("wrr", |s| s.wrr, TOLERANCE),
    ("passthrough", |s| s.rr, TOLERANCE),
    (EVENKEEL, |s| s.drr, TOLERANCE),
];

fn job(policy: &str, at: usize, job: &Job) -> sim::Tenant {
    let block_sizes = job.sizes_bytes.iter().map(|&bytes| BlockSize { bytes, weight: 1 }).collect();
    let access = Access { block_sizes, ..Access::random_4k(100) };
    let priority = class(job.class);
    let terms = match policy {
        EVENKEEL => Class::BestEffort { weight: weight(priority) }.into(),
        _ => Terms { priority: TenantPriority::Fixed(priority), ..Terms::default() },
    };
    let workload = Workload::Fio(Fio { jobs: VCPUS.into(), iodepth: DEPTH, access });
    tenant(format!("job {}", at + 1), terms, VCPUS, DISK_BYTES, workload)
}

/// Fig. 8.
pub fn fig8(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("fig8-policies");
    let ratios = context.all(each(&SCENARIOS, WAYS), |(pair, (name, ..))| {
        let drive = profile("p3700")?;
        let policy = match *name {
            EVENKEEL => evenkeel(&drive),
            "drr" => PolicyConfig::Drr(ArbitratedConfig { max_in_flight: MAX_IN_FLIGHT, ..ArbitratedConfig::drr() }),
            "wrr" => PolicyConfig::Wrr(ArbitratedConfig { max_in_flight: MAX_IN_FLIGHT, ..ArbitratedConfig::wrr() }),
            _ => PolicyConfig::Passthrough,
        };
        let jobs = pair.jobs.iter().enumerate().map(|(at, one)| job(name, at, one)).collect();
        let scenario = context.scenario(drive, jobs, (100, 1_000));
        let report = play(&Scenario { layout: Layout::Mdev, policy: policy.into(), ..scenario })?;
        Ok(report.tenants[0].bandwidth_bytes_s / report.tenants[1].bandwidth_bytes_s)
    })?;
    for ((scenario, (way, print, tolerance)), ratio) in ratios {
        figure.push(Row::new(way, scenario.name, RATIO, ratio).against(print(scenario), tolerance));
    }
    let worst = figure.furthest("drr");
    let saw = format!("at most {:.1} % off", worst * 100.0);
    figure.demand("drr gives every pair bandwidth in proportion to its classes", worst <= DRR_TOLERANCE, saw);
    Ok(vec![figure])
}
