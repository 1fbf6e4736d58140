//! Fig. 7 once more, with tenants: the planner's model against the simulator.

use io_model::{Nanos, QueuePriority};
use planner::{Load, Site, Size, Tenant};
use policy::{ArbitratedConfig, Class, Floor, Limits, PolicyConfig, TenantPriority, Terms};
use sim::workload::{Access, Arrivals, BlockSize, Fio, Open, Workload};
use sim::{HostCosts, Layout, Scenario};
use ssd_model::Profile;

use super::mixes::host;
use super::printed::{FIG7_WEIGHTS, MODEL_ERROR, high_share};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

/// Commands that each greedy tenant keeps outstanding, and its number of vCPUs.
const DEPTH: u32 = 64;
const VCPUS: u16 = 4;
const BYTES: u32 = 32 << 10;
const SPAN: Nanos = Nanos::from_millis(1_000);
const DISK_BYTES: u64 = 64 << 30;
const STEPS: u32 = 10;

const THROUGHPUT: &str = "high tenant's throughput (IOPS)";
const LATENCY: &str = "high tenant's mean latency (µs)";

/// The high, the medium and, unless its rate is 0, the low tenant.
fn tenants(low: Load) -> Vec<Tenant> {
    let tenant = |name: &str, priority, load| Tenant {
        name: name.to_owned(),
        class: Class::BestEffort { weight: 1 },
        floor: Floor::default(),
        limits: Limits::default(),
        priority,
        load,
        read_share: 1.0,
        sizes: vec![Size { len_bytes: BYTES.into(), part: 1.0 }],
        vcpus: VCPUS,
    };
    let greedy = Load::Closed { depth: DEPTH };
    let all = [
        tenant("high", QueuePriority::High, greedy),
        tenant("medium", QueuePriority::Medium, greedy),
        tenant("low", QueuePriority::Low, low),
    ];
    let asks = |tenant: &Tenant| !matches!(tenant.load, Load::Open { rate_iops } if rate_iops <= 0.0);
    all.into_iter().filter(asks).collect()
}

fn site() -> Result<Site, String> {
    let profile = Profile::by_name("p3700").ok_or("no profile p3700")?;
    Ok(Site { profile, host: host(&HostCosts::default()) })
}

fn policy() -> PolicyConfig {
    // Nine commands of 32 KiB do not keep a flash drive busy; the default is for commands of 4 KiB.
    PolicyConfig::Drr(ArbitratedConfig { max_in_flight: 512, ..ArbitratedConfig::drr() })
}

fn scenario(context: &Context<'_>, site: &Site, tenants: &[Tenant]) -> Scenario {
    let access = Access { block_sizes: vec![BlockSize { bytes: BYTES, weight: 1 }], ..Access::random_4k(100) };
    let jobs = u32::from(VCPUS);
    let workload = |load: Load| match load {
        Load::Closed { depth } => Workload::Fio(Fio { jobs, iodepth: depth / jobs, access: access.clone() }),
        Load::Open { rate_iops } => {
            let arrivals = Arrivals::Poisson { iops: rate_iops };
            Workload::Open(Open { jobs, arrivals, access: access.clone(), max_outstanding: 4_096 })
        }
    };
    let tenant = |tenant: &Tenant| sim::Tenant {
        name: tenant.name.clone(),
        terms: Terms { priority: TenantPriority::Fixed(tenant.priority), ..tenant.class.into() },
        vcpus: VCPUS,
        vqs: VCPUS,
        queue_priorities: Vec::new(),
        size_bytes: DISK_BYTES,
        workload: workload(tenant.load),
    };
    Scenario {
        layout: Layout::Mdev,
        policy: policy().into(),
        hwq_depth: 8_192,
        tenants: tenants.iter().map(tenant).collect(),
        duration: context.span(SPAN),
        seed: context.seed(),
        ..Scenario::new(site.profile.clone())
    }
}

fn predict(site: &Site, tenants: &[Tenant]) -> Result<planner::Forecast, String> {
    planner::predict(site, &policy(), tenants).map_err(|error| error.to_string())
}

/// Throughput and mean latency (µs) of the high tenant, simulated and planned.
fn run(context: &Context<'_>, site: &Site, tenants: &[Tenant]) -> Result<[(f64, f64); 2], String> {
    let report = sim::run(&scenario(context, site, tenants)).map_err(|error| error.to_string())?;
    let forecast = predict(site, tenants)?;
    let seen = report.tenants.first().map(|high| (high.iops, high.latency.mean_ns / 1e3));
    let said = forecast.tenants.first().map(|high| (high.iops, high.mean.as_micros_f64()));
    seen.zip(said).map(|(seen, said)| [seen, said]).ok_or_else(|| "no tenant".to_owned())
}

/// The figure.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let title = "A high-priority tenant as a low-priority one gets busier: planned and simulated";
    let mut figure = Figure::new(Paper::Qos, "fig7-tenants", title);
    figure.shows = "Three tenants that read 32 KiB through a shared poller under the policy drr, 4 : 2 : 1. The high \
                    and the medium one are greedy; the low one asks for a growing part of its share. The planner's \
                    forecast beside the simulation, and the high tenant's part by the paper's Eq. 2 (weighted max-min \
                    filling)."
        .into();
    figure.goal = format!("forecast within {:.0} % of the simulation at every point", MODEL_ERROR * 100.0);
    figure.assume(format!(
        "Drive: the P3700 profile. Each greedy tenant keeps {DEPTH} reads outstanding; the drive is given 64 of them \
         at once (max_in_flight = 512, in commands of 4 KiB). The low tenant's arrivals are random (Poisson). Guests \
         and pollers cost what the simulator's default host does."
    ));
    let (high, medium, low) = FIG7_WEIGHTS;
    let name = |(): &()| "all greedy".to_owned();
    let greedy = context.all(&[()], name, |()| predict(&site()?, &tenants(Load::Closed { depth: DEPTH })))?;
    let gamma: f64 = greedy.iter().flat_map(|forecast| &forecast.tenants).map(|tenant| tenant.iops).sum();
    let steps: Vec<f64> = (0..=STEPS).map(|step| f64::from(step) / f64::from(STEPS)).collect();
    let name = |rho: &f64| format!("low tenant at {rho}");
    let seen = context.all(&steps, name, |rho| {
        let rate_iops = rho * gamma * low / (high + medium + low);
        run(context, &site()?, &tenants(Load::Open { rate_iops }))
    })?;
    let mut worst = 0.0_f64;
    for (rho, [seen, said]) in steps.iter().zip(&seen) {
        for (metric, seen, said) in [(THROUGHPUT, seen.0, said.0), (LATENCY, seen.1, said.1)] {
            figure.push(Row::new("simulated", *rho, metric, seen));
            figure.push(Row::new("planned", *rho, metric, said));
            worst = worst.max((said / seen - 1.0).abs());
        }
        figure.push(Row::new("Eq. 2", *rho, THROUGHPUT, high_share(*rho).value * gamma));
    }
    figure.demand(
        format!("the forecast's error is below {:.0} % at every point", MODEL_ERROR * 100.0),
        worst < MODEL_ERROR,
        format!("at most {:.1} %", worst * 100.0),
    );
    figure.plots.push(Plot::lines(THROUGHPUT, "utilization of the low tenant"));
    figure.plots.push(Plot::lines(LATENCY, "utilization of the low tenant"));
    Ok(vec![figure])
}
