//! Fig. 10 and 11: the four systems on a null block device and on an SSD.

use super::{BARE_METAL, IODEPTH, NULL, ONE_POLLER, SM1715, VBMQ, VCPUS, kiops, play};
use crate::paper::{Printed, printed};
use crate::papers::bench::{EVENKEEL, each};
use crate::report::{Figure, Row};
use crate::runner::{Context, Error};

const JOBS: [u32; 11] = [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20];
const MOST_JOBS: u32 = VCPUS as u32;
/// The paper's, and ours: nothing is asked of those.
const SYSTEMS: [&str; 6] = ["Baseline", "VBDP", VBMQ, BARE_METAL, EVENKEEL, ONE_POLLER];
const PRINTED: usize = 4;
const TOLERANCE: f64 = 0.15;
/// Series this close are level.
const LEVEL: f64 = 0.02;
/// A curve that falls may go up by so much from one point to the next: short runs vary.
const RIPPLE: f64 = 0.04;
/// A curve that falls loses so much at least, from 1 job to 20.
const FALL: f64 = 0.15;
/// So much of the drive's limit is all of it.
const REACHED: f64 = 0.98;

/// Fig. 10, 20 jobs: VBMq over Baseline.
const GAIN: f64 = 40.0;
/// Fig. 10, 20 jobs: VBMq's loss against bare metal, at most.
const LOSS: f64 = 0.32;
/// Fig. 10: with more than 18 jobs VBDP is "almost equal" to Baseline.
const ALMOST: f64 = 0.15;
/// Fig. 11: the number of jobs that reaches the limit.
const REACHED_AT: [(&str, usize, f64); 2] = [(BARE_METAL, 3, 8.0), (VBMQ, 2, 18.0)];

/// Many of it, one of it, and reads in 100.
const OPERATIONS: [(&str, &str, u8); 2] = [("reads", "read", 100), ("writes", "write", 0)];
/// Fig. 10, bare metal with 20 jobs: "arriving 3 million IOPS"; for reads.
const NULL_IOPS: [Option<f64>; 2] = [Some(3.0e6), None];
/// Fig. 11: the drive's limits.
const SM1715_IOPS: [f64; 2] = [750_000.0, 130_000.0];

fn iops_of(operation: &str) -> String {
    format!("4K random {operation} (IOPS)")
}

/// Over [`JOBS`]: each of [`SYSTEMS`]' IOPS, reads and then writes.
type Curves = Vec<Vec<f64>>;

/// Runs everything and pushes the rows; what is asked of them is the caller's.
fn curves(context: &Context<'_>, drive: &str, figure: &mut Figure) -> Result<[Curves; 2], Error> {
    let cases = each(each(OPERATIONS, SYSTEMS), JOBS);
    let seen = context
        .all(cases, |(((.., reads), system), jobs)| play(context, system, VCPUS, drive, (*jobs, IODEPTH, *reads)))?;
    for ((((_, operation, reads), system), jobs), (iops, us)) in &seen {
        let at = usize::from(*reads == 0);
        let print: Option<f64> = match (drive, *system) {
            _ if *jobs < MOST_JOBS => None,
            (NULL, BARE_METAL) => NULL_IOPS[at],
            (SM1715, BARE_METAL | VBMQ) => Some(SM1715_IOPS[at]),
            _ => None,
        };
        let row = Row::new(system, *jobs, &iops_of(operation), *iops);
        figure.push(row.against(print.map(printed), TOLERANCE));
        figure.show(system, *jobs, &format!("4K random {operation} latency (µs)"), *us);
    }
    let mut curves = seen.chunks(JOBS.len()).map(|curve| curve.iter().map(|(_, (iops, _))| *iops).collect());
    Ok([(); 2].map(|()| curves.by_ref().take(SYSTEMS.len()).collect()))
}

fn last(values: &[f64]) -> f64 {
    values.last().copied().unwrap_or(f64::NAN)
}

/// Whether no value is above the one before it; a step up of up to `slack` (a fraction) is none.
fn falls(values: &[f64], slack: f64) -> bool {
    values.is_sorted_by(|before, after| *after <= before * (1.0 + slack))
}

/// What both figures ask: the single loops get slower with more jobs.
fn single_loops_fall(figure: &mut Figure, name: &str, curves: &Curves) {
    for (system, curve) in SYSTEMS.iter().zip(curves).take(2) {
        let text = format!("{system}: {name} fall as jobs rise, by {:.0} % at least", FALL * 100.0);
        let met = last(curve) <= curve[0] * (1.0 - FALL) && falls(curve, RIPPLE);
        figure.demand(text, met, kiops(curve));
    }
}

/// Fig. 10.
pub fn null(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("fig10");
    // The device's writes are its reads again: asked once, they count once.
    let [curves, _] = curves(context, NULL, &mut figure)?;
    let (all, [(name, operation, _), _]) = (JOBS.len(), OPERATIONS);
    let latency = format!("4K random {operation} latency (µs)");
    let kept = |metric: &str, ascending: &[&str]| {
        JOBS.iter().filter(|jobs| figure.is_ordered(metric, **jobs, ascending, LEVEL)).count()
    };
    let ordered = kept(&iops_of(operation), &SYSTEMS[..PRINTED]);
    let [baseline, vbdp] = ["Baseline", "VBDP"].map(|single| kept(&latency, &[BARE_METAL, VBMQ, single]));
    let times = last(&curves[2]) / last(&curves[0]);
    let saw = format!("at {ordered} of {all}; with 20 jobs VBMq {times:.1} times Baseline, printed {GAIN}");
    figure.demand("IOPS: Baseline ≤ VBDP ≤ VBMq ≤ bare metal at any number of jobs", ordered == all, saw);
    let [loop_us, vbmq_us] = ["Baseline", VBMQ].map(|system| last(&figure.curve(system, &latency)));
    let times = loop_us / vbmq_us;
    let saw = format!("at {vbdp} and {baseline} of {all}; with 20 jobs Baseline {times:.1} times VBMq");
    figure.demand("latency: bare metal ≤ VBMq ≤ VBDP and Baseline", [baseline, vbdp] == [all; 2], saw);
    single_loops_fall(&mut figure, name, &curves);
    let text = format!("VBMq: {name} grow with every job, as bare metal's");
    figure.demand(text, curves[2].is_sorted() && curves[3].is_sorted(), kiops(&curves[2]));
    against_rivals(&mut figure, name, &curves);
    // Whether the single loops fall for the reason that we give.
    let loops = ["Baseline, hand-overs free", "VBDP, hand-overs free"];
    let seen =
        context.all(each(loops, JOBS), |(system, jobs)| play(context, system, VCPUS, NULL, (*jobs, IODEPTH, 100)))?;
    for ((system, jobs), (iops, _)) in seen {
        figure.show(system, jobs, &iops_of("read"), iops);
    }
    for system in loops {
        // One job leaves the loop something to sleep for; from two on it is what limits.
        let curve = &figure.curve(system, &iops_of("read"))[1..];
        let stays = last(curve) >= curve[0] * (1.0 - RIPPLE);
        figure.demand(format!("{system}: from 2 jobs on no fall"), stays, kiops(curve));
    }
    Ok(vec![figure])
}

/// What the text prints of 20 jobs.
fn against_rivals(figure: &mut Figure, name: &str, curves: &Curves) {
    let [baseline, vbdp, ours, bare] = [0, 1, 2, 3].map(|system: usize| last(&curves[system]));
    let row = Row::new(VBMQ, name, "IOPS over Baseline's, 20 jobs (times)", ours / baseline);
    figure.push(row.against(printed(GAIN), TOLERANCE));
    let loss = 1.0 - ours / bare;
    figure.push(
        Row::new(VBMQ, name, "loss against bare metal, 20 jobs (fraction)", loss).against(printed(LOSS), TOLERANCE),
    );
    let text = format!("VBMq: {name} at most {:.0} % below bare metal with 20 jobs", LOSS * 100.0);
    figure.demand(text, loss <= LOSS, format!("{:.1} %", loss * 100.0));
    let more = vbdp / baseline - 1.0;
    let text = format!("VBDP: {name} within {:.0} % of Baseline's above 18 jobs", ALMOST * 100.0);
    figure.demand(text, more.abs() <= ALMOST, format!("{:+.0} %", more * 100.0));
}

/// Fig. 11.
pub fn sm1715(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("fig11");
    let both = curves(context, SM1715, &mut figure)?;
    for (((name, operation, reads), curves), limit) in OPERATIONS.into_iter().zip(&both).zip(SM1715_IOPS) {
        single_loops_fall(&mut figure, name, curves);
        for (system, at, print) in REACHED_AT {
            let reaches = JOBS.iter().zip(&curves[at]).find(|(_, iops)| **iops >= limit * REACHED);
            let jobs = reaches.map_or(f64::NAN, |(jobs, _)| f64::from(*jobs));
            let metric = format!("jobs that reach the drive's limit, random {operation}");
            let row = Row::new(system, limit, &metric, jobs);
            // The text gives one number of jobs; its writes can't need as many.
            let print: Option<Printed> = Some(printed(print)).filter(|_| reads > 0);
            figure.push(row.against(print, 0.0));
        }
        let share = last(&curves[2]) / last(&curves[3]);
        let text = format!("{name}: VBMq gets all that bare metal gets with 20 jobs");
        figure.demand(text, share >= REACHED, format!("{:.1} %", share * 100.0));
    }
    Ok(vec![figure])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fall_has_its_slack() {
        assert!(falls(&[3.0, 3.03, 1.0], 0.02) && !falls(&[3.0, 3.1, 1.0], 0.02));
    }
}
