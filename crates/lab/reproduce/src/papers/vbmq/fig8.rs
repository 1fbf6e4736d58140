//! Fig. 8 and 9: event-driven threads or polling ones.

use super::printed::{EVENT_OVER_POLLING, ONE_READ_US, VCPUS};
use super::systems::{Drive, Load, System, VBMQ, assumptions, list, run};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const JOBS: [u32; 6] = [1, 4, 8, 12, 16, 20];
const IOPS: &str = "4K random read (IOPS)";
const RATIO: &str = "event-driven over polling (fraction)";
const ONE_READ: &str = "time of one 4K read (µs)";
/// Three points of the loss.
const RATIO_TOLERANCE: f64 = 0.03;
const TOLERANCE: f64 = 0.15;
const MODES: [System; 2] = [System::Event(VCPUS), VBMQ];

/// Both figures.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    Ok(vec![fig8(context)?, fig9(context)?])
}

fn fig8(context: &Context<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new(Paper::Vbmq, "fig8", "Event-driven threads and polling ones, null block device");
    figure.shows = format!("VBMq with {VCPUS} queues: threads that sleep and are woken, or that poll.");
    figure.goal =
        format!("event-driven within {:.0} points of {} of polling", RATIO_TOLERANCE * 100.0, EVENT_OVER_POLLING.value);
    figure.assumptions = assumptions();
    let cases: Vec<(System, u32)> = JOBS.iter().flat_map(|jobs| MODES.map(|system| (system, *jobs))).collect();
    let name = |(system, jobs): &(System, u32)| format!("{}, {jobs} jobs", system.name());
    let seen = context.all(&cases, name, |(system, jobs)| run(context, *system, Drive::Null, Load::read(*jobs)))?;
    let mut ratios = Vec::new();
    for (jobs, pair) in JOBS.iter().zip(seen.chunks(MODES.len())) {
        for (system, (iops, _)) in MODES.iter().zip(pair) {
            figure.push(Row::new(system.name(), *jobs, IOPS, *iops));
        }
        let [(event, _), (polling, _)] = pair else { continue };
        ratios.push(event / polling);
        let row = Row::new("VBMq, event-driven", *jobs, RATIO, event / polling);
        figure.push(row.against(EVENT_OVER_POLLING, RATIO_TOLERANCE));
    }
    let text = "polling ahead of event-driven at any number of jobs";
    figure.demand(
        text,
        ratios.iter().all(|ratio| *ratio < 1.0),
        format!("event-driven over polling: {}", list(&ratios)),
    );
    figure.plots.push(Plot::bars(IOPS, "jobs"));
    Ok(figure)
}

fn fig9(context: &Context<'_>) -> Result<Figure, Error> {
    let mut figure = Figure::new(Paper::Vbmq, "fig9", "One 4K read through VBMq");
    figure.shows = "One job with one read outstanding on the null block device; the other systems stand beside.".into();
    figure.goal = format!("within {:.0} %", TOLERANCE * 100.0);
    figure.assumptions = assumptions();
    figure.assume("The 40 µs that polling makes 13.5 µs of are read as those of event-driven threads.");
    let cases = [MODES[0], MODES[1], System::Baseline, System::Vbdp, System::BareMetal];
    let one = Load { iodepth: 1, ..Load::read(1) };
    let seen =
        context.all(&cases, |system| system.name().to_owned(), |system| run(context, *system, Drive::Null, one))?;
    for (at, (system, (_, us))) in cases.iter().zip(&seen).enumerate() {
        let print = ONE_READ_US.get(at).map(|(_, print)| *print);
        figure.push(Row::new(system.name(), "n1d1", ONE_READ, *us).against(print, TOLERANCE));
    }
    figure.plots.push(Plot::bars(ONE_READ, "load"));
    Ok(figure)
}
