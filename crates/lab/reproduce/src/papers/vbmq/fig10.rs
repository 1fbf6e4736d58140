//! Fig. 10 and 11: the four systems on a null block device and on an SSD.

use super::printed::{EQUAL_ABOVE, GAIN, LOSS, NULL_IOPS, REACHED_AT, SM1715_IOPS, VCPUS};
use super::systems::{Drive, Load, Loop, SYSTEMS, System, VBMQ, assumptions, falls, grows, list, run};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const JOBS: [u32; 11] = [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20];
const MOST_JOBS: u32 = VCPUS as u32;
const TOLERANCE: f64 = 0.15;
/// Series this close are level.
const LEVEL: f64 = 0.02;
/// A curve that falls may go up by so much from one point to the next: short runs vary.
const RIPPLE: f64 = 0.04;
/// A curve that falls loses so much at least, from 1 job to 20.
const FALL: f64 = 0.15;
/// "Almost equal".
const ALMOST: f64 = 0.15;
/// So much of the drive's limit is all of it.
const REACHED: f64 = 0.98;
const GAIN_METRIC: &str = "IOPS over Baseline's, 20 jobs (times)";
const LOSS_METRIC: &str = "loss against bare metal, 20 jobs (fraction)";

/// Reads or writes, with the names of their metrics.
struct Operation {
    is_write: bool,
    name: &'static str,
    iops: &'static str,
    latency: &'static str,
    reached: &'static str,
}

const OPERATIONS: [Operation; 2] = [
    Operation {
        is_write: false,
        name: "reads",
        iops: "4K random read (IOPS)",
        latency: "4K random read latency (µs)",
        reached: "jobs that reach the drive's limit, random read",
    },
    Operation {
        is_write: true,
        name: "writes",
        iops: "4K random write (IOPS)",
        latency: "4K random write latency (µs)",
        reached: "jobs that reach the drive's limit, random write",
    },
];

/// One operation over [`JOBS`]: each of [`SYSTEMS`]' IOPS.
type Curves = [Vec<f64>; SYSTEMS.len()];

const BASELINE: usize = 0;
const VBDP: usize = 1;
const OURS: usize = 2;
const BARE: usize = 3;

/// Runs everything and draws the curves; what is asked of them is the caller's.
fn curves(context: &Context<'_>, drive: Drive, figure: &mut Figure) -> Result<[Curves; OPERATIONS.len()], Error> {
    let mut cases = Vec::new();
    for operation in &OPERATIONS {
        for system in SYSTEMS {
            cases.extend(JOBS.map(|jobs| (operation, system, jobs)));
        }
    }
    let name = |(operation, system, jobs): &(&Operation, System, u32)| {
        format!("{} {}, {jobs} jobs", system.name(), operation.name)
    };
    let seen = context.all(&cases, name, |(operation, system, jobs)| {
        run(context, *system, drive, Load { is_write: operation.is_write, ..Load::read(*jobs) })
    })?;
    for ((operation, system, jobs), (iops, us)) in cases.iter().zip(&seen) {
        let row = Row::new(system.name(), *jobs, operation.iops, *iops);
        let at_most = *jobs == MOST_JOBS;
        let print = match (drive, *system) {
            (Drive::Null, System::BareMetal) => Some(NULL_IOPS).filter(|_| at_most && !operation.is_write),
            (Drive::Sm1715, System::BareMetal | System::Polling(_)) => {
                Some(SM1715_IOPS[usize::from(operation.is_write)]).filter(|_| at_most)
            }
            _ => None,
        };
        figure.push(row.against(print, TOLERANCE));
        figure.push(Row::new(system.name(), *jobs, operation.latency, *us));
    }
    for operation in &OPERATIONS {
        figure.plots.push(Plot::lines(operation.iops, "jobs").log_y());
        figure.plots.push(Plot::lines(operation.latency, "jobs").log_y());
    }
    let iops: Vec<f64> = seen.iter().map(|(iops, _)| *iops).collect();
    let curve = |operation: usize, system: usize| {
        iops.iter().skip((operation * SYSTEMS.len() + system) * JOBS.len()).take(JOBS.len()).copied().collect()
    };
    Ok(std::array::from_fn(|operation| std::array::from_fn(|system| curve(operation, system))))
}

fn kiops(values: &[f64]) -> String {
    list(&values.iter().map(|iops| iops / 1e3).collect::<Vec<_>>()) + "K"
}

fn last(values: &[f64]) -> f64 {
    values.last().copied().unwrap_or(f64::NAN)
}

/// What both figures ask: the single loops get slower with more jobs.
fn single_loops_fall(figure: &mut Figure, operation: &Operation, curves: &Curves) {
    for system in [BASELINE, VBDP] {
        let text = format!(
            "{}: {} fall as jobs rise, by {:.0} % at least",
            SYSTEMS[system].name(),
            operation.name,
            FALL * 100.0
        );
        let loses = last(&curves[system]) <= curves[system].first().map_or(f64::NAN, |first| first * (1.0 - FALL));
        figure.demand(text, loses && falls(&curves[system], RIPPLE), kiops(&curves[system]));
    }
}

/// Fig. 10.
pub fn null(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Vbmq, "fig10", "Four systems over jobs, null block device");
    figure.shows = "IOPS and latency of one VM with 1 to 20 jobs, through QEMU's main loop (Baseline), one thread \
                    (VBDP), a thread for each of 20 queues (VBMq), and without a VM."
        .into();
    figure.goal = format!(
        "Baseline and VBDP fall, VBMq follows bare metal; with 20 jobs {} times Baseline within {:.0} %, and at most \
         {:.0} % below bare metal",
        GAIN.value,
        TOLERANCE * 100.0,
        LOSS.value * 100.0
    );
    figure.assumptions = assumptions();
    figure.assume(
        "Why the single loops fall: whoever waits for QEMU's mutex or spins for the shared queue's lock makes each \
         hand-over longer. Shown beside: the same loops with hand-overs that cost nothing.",
    );
    figure.assume(
        "A null block device treats reads and writes alike, and so does the table: the writes are the reads again.",
    );
    let both = curves(context, Drive::Null, &mut figure)?;
    let names = SYSTEMS.map(System::name);
    for (operation, curves) in OPERATIONS.iter().zip(&both) {
        let kept = |metric, ascending: &[&str], figure: &mut Figure| {
            JOBS.iter().filter(|jobs| figure.judge_order(metric, **jobs, ascending, LEVEL)).count()
        };
        let all = JOBS.len();
        let ordered = kept(operation.iops, &names, &mut figure);
        let text = format!("IOPS of {}: Baseline ≤ VBDP ≤ VBMq ≤ bare metal at any number of jobs", operation.name);
        figure.demand(text, ordered == all, format!("at {ordered} of {all}"));
        let loops = [BASELINE, VBDP];
        let short = loops.map(|one| kept(operation.latency, &[names[BARE], names[OURS], names[one]], &mut figure));
        let text = format!("latency of {}: bare metal ≤ VBMq ≤ VBDP and Baseline", operation.name);
        figure.demand(text, short == [all; 2], format!("at {} and {} of {all}", short[VBDP], short[BASELINE]));
        single_loops_fall(&mut figure, operation, curves);
        let text = format!("VBMq: {} grow with every job, as bare metal's", operation.name);
        figure.demand(text, grows(&curves[OURS], 0.0) && grows(&curves[BARE], 0.0), kiops(&curves[OURS]));
        against_rivals(&mut figure, operation, curves);
    }
    without_handovers(context, &mut figure)?;
    Ok(vec![figure])
}

/// Whether the single loops fall for the reason that we give.
fn without_handovers(context: &Context<'_>, figure: &mut Figure) -> Result<(), Error> {
    let loops = [Loop::Baseline, Loop::Vbdp].map(System::FreeHandovers);
    let cases: Vec<(System, u32)> = loops.iter().flat_map(|system| JOBS.map(|jobs| (*system, jobs))).collect();
    let name = |(system, jobs): &(System, u32)| format!("{}, {jobs} jobs", system.name());
    let seen = context.all(&cases, name, |(system, jobs)| run(context, *system, Drive::Null, Load::read(*jobs)))?;
    for ((system, jobs), (iops, _)) in cases.iter().zip(&seen) {
        figure.push(Row::new(system.name(), *jobs, OPERATIONS[0].iops, *iops));
    }
    for (system, curve) in loops.iter().zip(seen.chunks(JOBS.len())) {
        // One job leaves the loop something to sleep for; from two on it is what limits.
        let curve: Vec<f64> = curve.iter().skip(1).map(|(iops, _)| *iops).collect();
        let stays = curve.first().is_some_and(|first| last(&curve) >= first * (1.0 - RIPPLE));
        figure.demand(format!("{}: from 2 jobs on no fall", system.name()), stays, kiops(&curve));
    }
    Ok(())
}

/// What the text prints of 20 jobs.
fn against_rivals(figure: &mut Figure, operation: &Operation, curves: &Curves) {
    let [baseline, vbdp, ours, bare] = [BASELINE, VBDP, OURS, BARE].map(|system| last(&curves[system]));
    figure.push(Row::new(VBMQ.name(), operation.name, GAIN_METRIC, ours / baseline).against(GAIN, TOLERANCE));
    let loss = 1.0 - ours / bare;
    figure.push(Row::new(VBMQ.name(), operation.name, LOSS_METRIC, loss).beside(LOSS));
    let text = format!("VBMq: {} at most {:.0} % below bare metal with 20 jobs", operation.name, LOSS.value * 100.0);
    figure.demand(text, loss <= LOSS.value, format!("{:.1} %", loss * 100.0));
    figure.demand(
        format!("VBDP: {} within {:.0} % of Baseline's above {EQUAL_ABOVE} jobs", operation.name, ALMOST * 100.0),
        (vbdp / baseline - 1.0).abs() <= ALMOST,
        format!("{:+.0} %", (vbdp / baseline - 1.0) * 100.0),
    );
}

/// Fig. 11.
pub fn sm1715(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Vbmq, "fig11", "Four systems over jobs, SM1715");
    figure.shows = "As Fig. 10, on an SSD that ends at 750K reads or 130K writes per second.".into();
    figure.goal = "VBMq reaches the drive's read limit with 18 jobs, bare metal with 8; Baseline and VBDP fall".into();
    figure.assumptions = assumptions();
    figure.assume(
        "Drive: the SM1715 profile. An interrupt for each command costs the core that submitted 4 µs, and 14 µs under \
         a running guest: fitted to the two printed numbers of jobs.",
    );
    let both = curves(context, Drive::Sm1715, &mut figure)?;
    for ((operation, curves), limit) in OPERATIONS.iter().zip(&both).zip(SM1715_IOPS) {
        single_loops_fall(&mut figure, operation, curves);
        for (system, (name, print)) in [BARE, OURS].into_iter().zip(REACHED_AT) {
            let reaches = JOBS.iter().zip(&curves[system]).find(|(_, iops)| **iops >= limit.value * REACHED);
            let jobs = reaches.map_or(f64::NAN, |(jobs, _)| f64::from(*jobs));
            let row = Row::new(name, limit.value, operation.reached, jobs);
            // The text gives one number of jobs; its writes can't need as many.
            figure.push(if operation.is_write { row } else { row.against(print, 0.0) });
        }
        let text = format!("{}: VBMq gets all that bare metal gets with 20 jobs", operation.name);
        let share = last(&curves[OURS]) / last(&curves[BARE]);
        figure.demand(text, share >= REACHED, format!("{:.1} %", share * 100.0));
    }
    figure.deviation = Some(
        "The text says that VBMq reaches the drive's limit with 18 jobs and not of which operation. Here it is the \
         reads': 130K writes per second are all that 4 jobs with VBMq, or 2 on bare metal, can ask for and get, so the \
         writes' number of jobs is shown and not judged."
            .into(),
    );
    Ok(vec![figure])
}
