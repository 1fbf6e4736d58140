//! Fig. 7e: a promised VM beside two to seven neighbours, on both drives.

use io_model::Nanos;

use super::compare::{deviation, ends, range};
use super::printed::{BEST_GAIN, BOUND_US};
use super::systems::{Drive, System, assumptions, fio, mix, run, scenario, vm1_us};
use crate::paper::{Paper, Printed};
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const DURATION: Nanos = Nanos::from_millis(150);
const NEIGHBOURS: std::ops::RangeInclusive<u32> = 2..=7;
const GAIN: &str = "largest gain in VM1's mean (times)";
/// What everyone does: reads in 100, and its name.
const OPERATIONS: [(u8, &str); 2] = [(100, "read"), (0, "write")];
const TOLERANCE: f64 = 0.25;

/// One drive's part of the figure.
struct Part {
    id: &'static str,
    title: &'static str,
    drive: Drive,
    systems: &'static [System],
    /// The system that the gain is relative to.
    rival: System,
}

const PARTS: [Part; 2] = [
    Part {
        id: "fig7e-p5800x",
        title: "One promise beside two to seven neighbours, P5800X",
        drive: Drive::P5800X,
        systems: &[System::Lpns, System::Mdev, System::Spdk, System::Ours],
        rival: System::Mdev,
    },
    Part {
        id: "fig7e-pm1735",
        title: "One promise beside two to seven neighbours, PM1735",
        drive: Drive::Pm1735,
        systems: &[System::Lpns, System::Mdev, System::SrIov, System::Ours],
        rival: System::SrIov,
    },
];

fn metric(operation: &str) -> String {
    format!("VM1 mean {operation} latency (µs)")
}

/// Both parts.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    PARTS.iter().map(|part| one(context, part)).collect()
}

fn one(context: &Context<'_>, part: &Part) -> Result<Figure, Error> {
    let bound_us = BOUND_US.iter().find(|(drive, _)| *drive == part.drive.name()).map_or(f64::NAN, |(_, us)| *us);
    let mut figure = Figure::new(Paper::Lpns, part.id, part.title);
    figure.shows = "VM1 keeps one 4K I/O outstanding; two to seven others do the same kind of I/O at n4d32.".into();
    figure.goal = format!("LPNS keeps VM1's mean at or below {bound_us} µs");
    figure.assumptions = assumptions(part.drive);
    figure.assume(
        "The neighbours' load is not printed: n4d32 as in the later figures, reads beside reads and writes \
         beside writes.",
    );
    let mut runs = Vec::new();
    for operation in OPERATIONS {
        for neighbours in NEIGHBOURS {
            runs.extend(part.systems.iter().map(|system| (operation, neighbours, *system)));
        }
    }
    let seen = context.all(
        &runs,
        |((_, operation), neighbours, system)| format!("{}, {operation} beside {neighbours}", system.name()),
        |((read_percent, _), neighbours, system)| {
            let vms = mix(1, &fio(1, 1, *read_percent), *neighbours as usize, &fio(4, 32, *read_percent));
            run(&scenario(context, *system, part.drive, &vms, DURATION)).map(|report| vm1_us(&report))
        },
    )?;
    for (((_, operation), neighbours, system), us) in runs.iter().zip(seen) {
        figure.push(Row::new(&system.name(), *neighbours, &metric(operation), us));
    }
    for system in [System::Lpns, System::Ours] {
        for (_, operation) in OPERATIONS {
            let all: Vec<f64> = latencies(&figure, system, operation);
            figure.demand(
                format!("{}: VM1's mean {operation} ≤ {bound_us} µs beside 2 to 7 neighbours", system.name()),
                ends(all.iter().copied()).1 <= bound_us,
                range(all, "µs"),
            );
        }
    }
    let best = BEST_GAIN.iter().find(|(name, _)| *name == part.rival.name()).map(|(_, best)| *best);
    gains(&mut figure, part, best);
    for (_, operation) in OPERATIONS {
        figure.plots.push(Plot::lines(&metric(operation), "neighbours").log_y().mark(bound_us, "promised"));
    }
    figure.deviation = deviation(&figure, REASONS);
    Ok(figure)
}

fn latencies(figure: &Figure, system: System, operation: &str) -> Vec<f64> {
    let (name, metric) = (system.name(), metric(operation));
    let of_series = figure.rows.iter().filter(|row| row.series == name && row.metric == metric);
    of_series.map(|row| row.ours).collect()
}

fn gains(figure: &mut Figure, part: &Part, printed: Option<Printed>) {
    for system in [System::Lpns, System::Ours] {
        let of_operation = |(_, operation): (u8, &str)| {
            let rival = latencies(figure, part.rival, operation);
            let own = latencies(figure, system, operation);
            rival.into_iter().zip(own).map(|(rival, own)| rival / own).fold(f64::NAN, f64::max)
        };
        let best = OPERATIONS.into_iter().map(of_operation).fold(f64::NAN, f64::max);
        let x = format!("over {}", part.rival.name());
        let row = Row::new(&system.name(), x, GAIN, best);
        figure.push(if system == System::Lpns { row.against(printed, TOLERANCE) } else { row.beside(printed) });
    }
}

const REASONS: &[(&str, &str)] = &[
    (
        "over SR-IOV",
        "The modelled PM1735 takes all outstanding writes into one line before its buffer (see Fig. 2), so without a \
         policy VM1 waits for the writes of all seven neighbours.",
    ),
    (
        "LPNS:",
        "Beside a VM1 that keeps one I/O outstanding the published rule allows more than the drive serves (VM1's rate \
         times Ω), so nothing but the order in which the drive takes commands protects VM1.",
    ),
];
