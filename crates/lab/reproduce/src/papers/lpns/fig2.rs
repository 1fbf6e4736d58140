//! Fig. 2 and Table 1: what a neighbour's writes cost without a policy.

use io_model::Nanos;
use sim::workload::{Open, Workload};

use super::compare::deviation;
use super::printed::{ALONE_US, TABLE1, WORST_INTERFERENCE};
use super::systems::{Drive, System, assumptions, fio, guaranteed, noisy, run, scenario, vm1_us};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row, X};
use crate::runner::{Context, Error};

const DURATION: Nanos = Nanos::from_millis(250);
const ALONE: &str = "alone";
/// VM2's jobs and depth, from nothing to the most of Fig. 7.
const LOADS: [(&str, u32, u32); 7] = [
    (ALONE, 0, 0),
    ("n1d1", 1, 1),
    ("n4d1", 4, 1),
    ("n4d4", 4, 4),
    ("n4d16", 4, 16),
    ("n4d32", 4, 32),
    ("n8d32", 8, 32),
];
const CASES: [(Drive, System); 4] = [
    (Drive::P5800X, System::Mdev),
    (Drive::P5800X, System::Spdk),
    (Drive::Pm1735, System::Mdev),
    (Drive::Pm1735, System::SrIov),
];
const OPERATIONS: [(u8, &str); 2] = [(100, "read"), (0, "write")];
/// "At worst" is a single number per system; the axis and the other bars are not legible.
const TOLERANCE: f64 = 0.25;
const ALONE_TOLERANCE: f64 = 0.15;

const LATENCY: &str = "VM1 mean latency (µs)";
const TIMES: &str = "VM1 mean latency (times its own alone)";
const WORST: &str = "VM1 mean latency at worst (times its own alone)";

fn series(drive: Drive, system: System, operation: &str) -> String {
    format!("{} on {}, {operation}", system.name(), drive.name())
}

/// Both.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    Ok(vec![fig2(context)?, table1(context)?])
}

fn fig2(context: &Context<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new(Paper::Lpns, "fig2", "What a neighbour's random writes cost without a policy");
    figure.shows =
        "VM1 keeps one 4K read or write outstanding; VM2 writes at random with more and more jobs and depth. How many \
                    times longer VM1's I/Os take than alone."
            .into();
    figure.goal = format!(
        "latencies alone within {:.0} %, the worst multiple of each system within {:.0} %",
        ALONE_TOLERANCE * 100.0,
        TOLERANCE * 100.0
    );
    figure.assumptions = assumptions(Drive::P5800X);
    figure.assume("The paper's loads of VM2 are not legible; those of Fig. 7 stand in for them.");
    let mut runs = Vec::new();
    for (drive, system) in CASES {
        for (read_percent, operation) in OPERATIONS {
            runs.extend(LOADS.map(|load| (drive, system, read_percent, operation, load)));
        }
    }
    let seen = context.all(
        &runs,
        |(drive, system, _, operation, load)| format!("{} beside {}", series(*drive, *system, operation), load.0),
        |(drive, system, read_percent, _, (_, jobs, depth))| {
            let mut vms = vec![guaranteed(fio(1, 1, *read_percent))];
            if *jobs > 0 {
                vms.push(noisy(fio(*jobs, *depth, 0)));
            }
            run(&scenario(context, *system, *drive, &vms, DURATION)).map(|report| vm1_us(&report))
        },
    )?;
    let mut alone_us = f64::NAN;
    for ((drive, system, _, operation, load), us) in runs.iter().zip(seen) {
        let name = series(*drive, *system, operation);
        let row = Row::new(&name, load.0, LATENCY, us);
        if load.0 == ALONE {
            alone_us = us;
            let print = ALONE_US.iter().find(|(d, s, ..)| *d == drive.name() && *s == system.name());
            let print = print.map(|(_, _, read, write)| if *operation == "read" { *read } else { *write });
            figure.push(row.against(print, ALONE_TOLERANCE));
        } else {
            figure.push(row);
            figure.push(Row::new(&name, load.0, TIMES, us / alone_us));
        }
    }
    worst(&mut figure);
    figure.plots.push(Plot::lines(TIMES, "VM2's load").log_y());
    figure.plots.push(Plot::lines(LATENCY, "VM2's load").log_y());
    figure.deviation = deviation(&figure, REASONS);
    Ok(figure)
}

fn worst(figure: &mut Figure) {
    for (name, printed) in WORST_INTERFERENCE {
        let drive = if name == "SR-IOV" { Drive::Pm1735 } else { Drive::P5800X };
        let start = format!("{name} on {},", drive.name());
        let times = figure.rows.iter().filter(|row| row.metric == TIMES && row.series.starts_with(&start));
        let most = times.map(|row| row.ours).fold(f64::NAN, f64::max);
        figure.push(Row::new(name, drive.name(), WORST, most).against(printed, TOLERANCE));
        figure.demand(
            format!("{name}'s worst multiple within {:.0} %", TOLERANCE * 100.0),
            (most / printed.value - 1.0).abs() <= TOLERANCE,
            format!("{most:.1} times, printed {}", printed.value),
        );
    }
}

/// Rates of VM2, spread over 4 jobs.
const JOBS: u32 = 4;

fn table1(context: &Context<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new(Paper::Lpns, "table1", "VM1's latency as VM2's rate grows, MDev, P5800X");
    figure.shows =
        "VM1 keeps one 4K write outstanding; VM2 writes at a given rate. The paper splits the latency by phase; a run \
                    here has no phases, so only the totals are compared, which follow from the paper's shares."
            .into();
    figure.goal = "VM1's latency grows with VM2's rate".into();
    figure.assumptions = assumptions(Drive::P5800X);
    figure.assume(
        "VM2's rate is held by Poisson arrivals. The paper does not say how it held the rates; with fio's loads, as in \
         Fig. 7b, 500K IOPS come with hundreds of I/Os outstanding.",
    );
    let seen = context.all(
        &TABLE1,
        |(iops, ..)| format!("VM2 at {iops} IOPS"),
        |(iops, ..)| {
            let vm2 = Workload::Open(Open::random_4k(JOBS, *iops, 0));
            let vms = [guaranteed(fio(1, 1, 0)), noisy(vm2)];
            let report = run(&scenario(context, System::Mdev, Drive::P5800X, &vms, DURATION))?;
            Ok((vm1_us(&report), report.tenants.get(1).map_or(f64::NAN, |vm2| vm2.iops)))
        },
    )?;
    for ((iops, total, _), (us, got_iops)) in TABLE1.iter().zip(&seen) {
        figure.push(Row::new("MDev", X::Number(*iops), LATENCY, *us).beside(*total));
        figure.push(Row::new("MDev", X::Number(*iops), "VM2 throughput (IOPS)", *got_iops));
    }
    let grows = seen.iter().zip(seen.iter().skip(1)).all(|((less, _), (more, _))| more > less);
    let text: Vec<String> = seen.iter().map(|(us, _)| format!("{us:.1}")).collect();
    figure.demand("VM1's latency grows with VM2's rate", grows, format!("{} µs", text.join(", ")));
    figure.plots.push(Plot::lines(LATENCY, "VM2's rate (IOPS)"));
    figure.deviation = deviation(&figure, REASONS);
    Ok(figure)
}

const REASONS: &[(&str, &str)] = &[
    (
        "SPDK's worst",
        "VM1 waits for the part of VM2's outstanding writes that is at the reactor; the guests' CPUs hold the rest. A \
         reactor that takes a few percent longer per command than the guests do would hold nearly all (see Fig. 7b).",
    ),
    (
        "SR-IOV's worst",
        "SR-IOV: the modelled drive takes all writes that are outstanding into one line before its buffer, so VM1 \
         waits for all 256 of VM2's. Six times alone is what 25 writes ahead of it cost: a drive that takes fewer \
         writes at a time from each queue, and takes turns.",
    ),
];
