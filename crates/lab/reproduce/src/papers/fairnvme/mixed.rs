//! Fig. 12 and 13: tenants that differ.

use sim::workload::{Core, Filebench, Personality, Workload, Ycsb};
use sim::{Latencies, TenantReport, fairness_index};

use super::printed::{RIVALS, YCSB};
use super::systems::{Drive, NO_CONTENTION, System, assumptions, fio, native_means, run, scenario, slowdowns};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const DRIVE: Drive = Drive::P3520;
const CORES: [(&str, Core); 6] =
    [("a", Core::A), ("b", Core::B), ("c", Core::C), ("d", Core::D), ("e", Core::E), ("f", Core::F)];
/// So that flushes and compactions come as often in a second as in minutes of the full size.
const SCALE: u64 = 64;

const OPERATION: &str = "mean latency of an operation (µs)";
const SLOWDOWN: &str = "slowdown of an operation";
const TAIL: &str = "p99.9 latency over the same alone";
const FAIRNESS: &str = "fairness index";

/// The mean over all kinds of operations, µs.
fn operation_us(tenant: &TenantReport) -> f64 {
    let all = || tenant.operations.values();
    let count: u64 = all().map(|seen: &Latencies| seen.count).sum();
    all().map(|seen| seen.mean_ns * seen.count as f64).sum::<f64>() / count as f64 / 1e3
}

/// Fig. 12.
pub fn ycsb(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let workloads = CORES.map(|(_, core)| Workload::Ycsb(Ycsb::new(core).scaled_down(SCALE)));
    let mut figure = Figure::new(Paper::FairNvme, "fig12", "Six VMs with YCSB, P3520");
    figure.shows = "One core workload in each VM, a to f, all at once. Mean latency of the store's operations.".into();
    figure.goal = "FairNVMe's gains beside the printed ones".into();
    figure.assumptions = assumptions(DRIVE);
    figure.assume(format!("The store and its cache are {SCALE} times smaller than described here."));
    Ycsb::ASSUMPTIONS.iter().for_each(|text| figure.assume(*text));
    let index: Vec<usize> = (0..CORES.len()).collect();
    let alone_us = context.all(
        &index,
        |i| format!("ycsb-{} alone", CORES[*i].0),
        |i| {
            let report = run(&scenario(context, System::Native, DRIVE, &workloads[*i..=*i]))?;
            Ok(report.tenants.first().map_or(f64::NAN, operation_us))
        },
    )?;
    let reports = context.all(
        &System::SHARED,
        |system| system.name().to_owned(),
        |system| run(&scenario(context, *system, DRIVE, &workloads)),
    )?;
    for (system, report) in System::SHARED.iter().zip(&reports) {
        for (((name, _), tenant), alone_us) in CORES.iter().zip(&report.tenants).zip(&alone_us) {
            figure.push(Row::new(system.name(), *name, OPERATION, operation_us(tenant)));
            figure.push(Row::new(system.name(), *name, SLOWDOWN, operation_us(tenant) / alone_us));
        }
    }
    for (rival, printed) in RIVALS.iter().zip(YCSB.best) {
        for system in [System::FairNvme, System::Ours] {
            let change = |(name, _): &(&str, Core)| {
                let ours = figure.ours(system.name(), &(*name).into(), OPERATION)?;
                Some(ours / figure.ours(rival, &(*name).into(), OPERATION)? - 1.0)
            };
            let best = CORES.iter().filter_map(change).fold(f64::INFINITY, f64::min);
            let series = format!("{} against {rival}", system.name());
            figure.push(Row::new(&series, "best case", "change in mean latency", best).beside(printed));
        }
    }
    figure.deviation = Some(format!(
        "{NO_CONTENTION} Besides, six stores whose threads find most records in memory do not fill this drive. The \
         paper raised its counts of records and operations without printing them, nor the number of threads."
    ));
    figure.plots.push(Plot::bars(OPERATION, "core workload"));
    figure.plots.push(Plot::bars(SLOWDOWN, "core workload"));
    Ok(vec![figure])
}

const EXTREMES: [&str; 4] = ["webserver", "fileserver", "rand-read-n1d1", "rand-write-n8d32"];

/// Fig. 13.
pub fn extreme(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let workloads = [
        Workload::Filebench(Filebench::new(Personality::Webserver)),
        Workload::Filebench(Filebench::new(Personality::Fileserver)),
        fio(1, 1, 100),
        fio(8, 32, 0),
    ];
    let mut figure = Figure::new(Paper::FairNvme, "fig13", "Four VMs that could not differ more, P3520");
    figure.shows =
        "A web server, a file server, one that reads a block at a time and one that floods the drive with writes. \
                    The paper's figure has no numbers; FairNVMe is lowest in tail latency and highest in fairness."
            .into();
    figure.goal = "fairness index above that of each rival".into();
    figure.assumptions = assumptions(DRIVE);
    Filebench::ASSUMPTIONS.iter().for_each(|text| figure.assume(*text));
    let native_ns = native_means(context, DRIVE, &workloads)?;
    let index: Vec<usize> = (0..workloads.len()).collect();
    let tails_ns = context.all(
        &index,
        |i| format!("tail of {} alone", EXTREMES[*i]),
        |i| {
            let report = run(&scenario(context, System::Native, DRIVE, &workloads[*i..=*i]))?;
            Ok(report.tenants.first().map_or(f64::NAN, |tenant| tenant.latency.p999_ns as f64))
        },
    )?;
    let reports = context.all(
        &System::SHARED,
        |system| system.name().to_owned(),
        |system| run(&scenario(context, *system, DRIVE, &workloads)),
    )?;
    for (system, report) in System::SHARED.iter().zip(&reports) {
        for ((name, tenant), alone_ns) in EXTREMES.iter().zip(&report.tenants).zip(&tails_ns) {
            figure.push(Row::new(system.name(), *name, TAIL, tenant.latency.p999_ns as f64 / alone_ns));
        }
        figure.push(Row::new(system.name(), "all four", FAIRNESS, fairness_index(&slowdowns(report, &native_ns))));
    }
    for system in [System::FairNvme, System::Ours] {
        let index = |name: &str| figure.ours(name, &"all four".into(), FAIRNESS).unwrap_or(f64::NAN);
        let ours = index(system.name());
        let saw: Vec<String> = RIVALS.iter().map(|rival| format!("{rival} {:.3}", index(rival))).collect();
        let met = RIVALS.iter().all(|rival| ours > index(rival));
        let text = format!("{}'s fairness index above Virtio's, SPDK's and LPNS's", system.name());
        figure.demand(text, met, format!("{ours:.3} against {}", saw.join(", ")));
    }
    if !figure.is_good() {
        figure.deviation = Some(format!(
            "Virtio is fairest here because its event loop can't carry the flood: the writer gets a third of what the \
             others let it have, so the drive stays free for everyone else. {NO_CONTENTION}"
        ));
    }
    figure.plots.push(Plot::bars(TAIL, "VM").log_y());
    figure.plots.push(Plot::bars(FAIRNESS, ""));
    Ok(vec![figure])
}
