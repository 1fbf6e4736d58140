//! Fig. 8 with the host's policies in the drive's place: `wrr` and `drr` between tenants, on a drive that takes turns.

use io_model::Nanos;
use policy::{ArbitratedConfig, PolicyConfig, TenantPriority, Terms};
use sim::workload::{Access, BlockSize, Fio, Pattern, Workload};
use sim::{Layout, Tenant};
use ssd_model::Profile;

use super::class;
use super::printed::{Job, SCENARIOS, Scenario};
use crate::paper::{Paper, Printed};
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

/// Jobs of a guest and what each keeps outstanding: together far more than the policies let into the drive.
const JOBS: u16 = 4;
const DEPTH: u32 = 128;
/// Enough for the drive's 36 units, and few enough that the order matters.
const MAX_IN_FLIGHT: u32 = 128;
const SPAN: Nanos = Nanos::from_millis(1_000);
const WARMUP: Nanos = Nanos::from_millis(100);
/// Every tenant's disk.
const DISK_BYTES: u64 = 64 << 30;
/// What deficit round robin is held to.
const DRR_TOLERANCE: f64 = 0.05;
/// "Close to the expected ratio".
const TOLERANCE: f64 = 0.1;
const METRIC: &str = "bandwidth ratio A : B";

/// What a policy is called, the ratio that a scenario should have under it, and how closely.
type Way = (&'static str, fn(&Scenario) -> Printed, f64);

const WAYS: [Way; 3] =
    [("drr", |s| s.drr, DRR_TOLERANCE), ("wrr", |s| s.wrr, TOLERANCE), ("passthrough", |s| s.rr, TOLERANCE)];

fn policy(name: &str) -> PolicyConfig {
    match name {
        "drr" => PolicyConfig::Drr(ArbitratedConfig { max_in_flight: MAX_IN_FLIGHT, ..ArbitratedConfig::drr() }),
        "wrr" => PolicyConfig::Wrr(ArbitratedConfig { max_in_flight: MAX_IN_FLIGHT, ..ArbitratedConfig::wrr() }),
        _ => PolicyConfig::Passthrough,
    }
}

fn tenant(at: usize, job: &Job) -> Tenant {
    let sizes = job.sizes_bytes.iter().map(|&bytes| BlockSize { bytes, weight: 1 });
    let access =
        Access { read_percent: 100, pattern: Pattern::Random, block_sizes: sizes.collect(), working_set_bytes: None };
    Tenant {
        name: format!("job {}", at + 1),
        terms: Terms { priority: TenantPriority::Fixed(class(job.class)), ..Terms::default() },
        vcpus: JOBS,
        vqs: JOBS,
        queue_priorities: Vec::new(),
        size_bytes: DISK_BYTES,
        workload: Workload::Fio(Fio { jobs: JOBS.into(), iodepth: DEPTH, access }),
    }
}

fn ratio(context: &Context<'_>, scenario: &Scenario, way: &Way) -> Result<f64, String> {
    let profile = Profile::by_name("p3700").ok_or("no profile p3700")?;
    let run = sim::Scenario {
        layout: Layout::Mdev,
        policy: policy(way.0).into(),
        tenants: scenario.jobs.iter().enumerate().map(|(at, job)| tenant(at, job)).collect(),
        warmup: context.span(WARMUP),
        duration: context.span(SPAN),
        seed: context.seed(),
        ..sim::Scenario::new(profile)
    };
    let report = sim::run(&run).map_err(|error| error.to_string())?;
    match report.tenants.as_slice() {
        [a, b] => Ok(a.bandwidth_bytes_s / b.bandwidth_bytes_s),
        _ => Err("two tenants were asked for".to_owned()),
    }
}

/// The scenarios.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let title = "Bandwidth ratio of two jobs, arbitrated by the host";
    let mut figure = Figure::new(Paper::Qos, "fig8-policies", title);
    figure.shows = "The five pairs of jobs as two virtual machines, under the policies that do for any drive what the \
                    paper wants of the drive itself. `passthrough` takes turns between the machines' queues."
        .into();
    figure.goal = format!(
        "drr within {:.0} % of the classes' ratio, the others within {:.0} % of the paper's",
        DRR_TOLERANCE * 100.0,
        TOLERANCE * 100.0
    );
    figure.assume(format!(
        "Drive: the P3700 profile. One poller for both machines, with the costs of LPNS's host; {JOBS} vCPUs each, \
         which together keep {} random reads outstanding. The policies let {MAX_IN_FLIGHT} commands of 4 KiB into the \
         drive.",
        u32::from(JOBS) * DEPTH
    ));
    let cases: Vec<(&Scenario, &Way)> = SCENARIOS.iter().flat_map(|s| WAYS.iter().map(move |way| (s, way))).collect();
    let name = |(scenario, way): &(&Scenario, &Way)| format!("{} under {}", scenario.name, way.0);
    let ratios = context.all(&cases, name, |(scenario, way)| ratio(context, scenario, way))?;
    for ((scenario, way), ratio) in cases.iter().zip(ratios) {
        figure.push(Row::new(way.0, scenario.name, METRIC, ratio).against(way.1(scenario), way.2));
    }
    let drr = figure.rows.iter().filter(|row| row.series == "drr").filter_map(|row| row.deviation);
    let worst = drr.map(f64::abs).fold(0.0, f64::max);
    figure.demand(
        "drr gives every pair bandwidth in proportion to its classes",
        worst <= DRR_TOLERANCE,
        format!("at most {:.1} % off", worst * 100.0),
    );
    figure.plots.push(Plot::bars(METRIC, "scenario"));
    Ok(vec![figure])
}
