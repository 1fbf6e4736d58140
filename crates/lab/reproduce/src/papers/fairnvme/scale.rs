//! Fig. 14 and 15: from 1 to 16 VMs.

use sim::fairness_index;

use super::printed::LEAST_FAIRNESS_16;
use super::systems::{Drive, System, alike, assumptions, fio, run, scenario, slowdowns};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const VMS: [usize; 5] = [1, 2, 4, 8, 16];
const IOPS: &str = "IOPS of all VMs";
const FAIRNESS: &str = "fairness index";
const SPREAD: &str = "IOPS of the slowest VM over the fastest";
const INTENSE: &str = "rand-read-n4d32";

/// Name, jobs, depth, reads in 100.
const LOADS: [(&str, u32, u32, u8); 6] = [
    ("rand-read-n1d1", 1, 1, 100),
    ("rand-write-n1d1", 1, 1, 0),
    ("rand-read-n4d4", 4, 4, 100),
    ("rand-write-n4d4", 4, 4, 0),
    (INTENSE, 4, 32, 100),
    ("rand-write-n4d32", 4, 32, 0),
];

const SYSTEMS: [System; 2] = [System::FairNvme, System::Ours];

/// Both figures.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut cases = Vec::new();
    for system in SYSTEMS {
        for load in &LOADS {
            cases.extend(VMS.map(|vms| (system, load, vms)));
        }
    }
    let name = |(system, load, vms): &(System, &(&str, u32, u32, u8), usize)| {
        format!("{vms} VMs, {}, {}", load.0, system.name())
    };
    let reports = context.all(&cases, name, |(system, (_, jobs, depth, read_percent), vms)| {
        run(&scenario(context, *system, Drive::P3520, &alike(&fio(*jobs, *depth, *read_percent), *vms)))
    })?;
    let mut total = Figure::new(Paper::FairNvme, "fig14", "IOPS from 1 to 16 VMs, P3520");
    total.shows = "All VMs together under FairNVMe as published.".into();
    total.assumptions = assumptions(Drive::P3520);
    total.plots.push(Plot::lines(IOPS, "VMs"));
    let mut fair = Figure::new(Paper::FairNvme, "fig15", "Fairness from 1 to 16 VMs, P3520");
    fair.shows = format!("Every VM runs {INTENSE}. Smallest slowdown over largest, and slowest VM over fastest.");
    fair.goal = format!("fairness index at least {} with up to 16 VMs, as printed", LEAST_FAIRNESS_16.value);
    fair.assumptions = assumptions(Drive::P3520);
    for ((system, load, vms), report) in cases.iter().zip(&reports) {
        let vms = *vms as u32;
        if *system == System::FairNvme {
            total.push(Row::new(load.0, vms, IOPS, report.total_iops()));
        }
        if load.0 == INTENSE {
            // All run the same, so any latency alone will do.
            let alone = vec![1.0; report.tenants.len()];
            fair.push(Row::new(system.name(), vms, FAIRNESS, fairness_index(&slowdowns(report, &alone))));
            let iops = || report.tenants.iter().map(|tenant| tenant.iops);
            let (least, most) = (iops().fold(f64::INFINITY, f64::min), iops().fold(0.0, f64::max));
            fair.push(Row::new(system.name(), vms, SPREAD, least / most));
        }
    }
    for system in SYSTEMS {
        let index = || fair.rows.iter().filter(|row| row.series == system.name() && row.metric == FAIRNESS);
        let least = index().map(|row| row.ours).fold(f64::INFINITY, f64::min);
        let text = format!("{}: fairness index at least {} with 1 to 16 VMs", system.name(), LEAST_FAIRNESS_16.value);
        fair.demand(text, least >= LEAST_FAIRNESS_16.value, format!("at least {least:.3}"));
    }
    fair.plots.push(Plot::lines(FAIRNESS, "VMs").mark(LEAST_FAIRNESS_16.value, "printed: at least"));
    fair.plots.push(Plot::lines(SPREAD, "VMs"));
    Ok(vec![total, fair])
}
