//! The arbitration paper's figures on a running daemon: this program's `serve` with the drive model in real time, and
//! its load generator. Figures depend on the machine, so they stand in a report of their own.

mod jobs;

use anyhow::{Context, Result};
use reproduce::qos::{Class, FIG7_WEIGHTS, SCENARIOS, Scenario};
use reproduce::report::{Figure, Plot, Row};
use reproduce::{Paper, Printed, derived};

pub use jobs::Run;
use jobs::{DEPTH, Job, PROFILE, forecast};

/// What deficit round robin is held to.
const DRR_TOLERANCE: f64 = 0.05;
/// "Close to the expected ratio".
const TOLERANCE: f64 = 0.1;
/// Fig. 7: the model's error against a daemon in real time.
const MODEL_ERROR: f64 = 0.1;
const FIG7_SIZE_BYTES: u32 = 32 << 10;
const FIG7_STEPS: u32 = 5;

const RATIO: &str = "bandwidth ratio A : B";
const RATE: &str = "high class's IOPS";
const LATENCY: &str = "high class's mean latency (µs)";

/// All figures. `show` hears of each measurement before it starts.
///
/// # Errors
/// A daemon that did not start or a client that failed.
pub fn figures(run: &Run<'_>, show: &mut dyn FnMut(&str)) -> Result<Vec<Figure>> {
    Ok(vec![model(run, show)?, scenarios(run, show)?])
}

fn figure(id: &'static str, title: &'static str) -> Figure {
    let mut figure = Figure::new(Paper::Qos, id, title);
    figure.assume(format!(
        "Drive: the {PROFILE} profile, imitated in real time by the daemon's model back end; one poller, one client \
         thread for all jobs, attached over vfio-user, {DEPTH} reads outstanding for each greedy job."
    ));
    figure
        .assume("Medians of several rounds on the machine that made this report: other work on its CPUs still shows.");
    figure
}

/// Fig. 7: the planner's forecast and a daemon.
fn model(run: &Run<'_>, show: &mut dyn FnMut(&str)) -> Result<Figure> {
    let mut figure = figure("fig7-live", "The high class as the low class gets busier: forecast and daemon");
    figure.shows = "Three tenants that read 32 KiB at a time under drr, 4 : 2 : 1. Those of high and medium priority \
                    ask for all they can get, the one of low priority for a growing part of its share. Hollow: \
                    `evenkeel plan`'s forecast."
        .into();
    figure.goal = format!("daemon within {:.0} % of the forecast", MODEL_ERROR * 100.0);
    let job = |priority, rate_iops| Job { priority, sizes_bytes: vec![FIG7_SIZE_BYTES], rate_iops };
    let jobs = |low: Option<u64>| [job("high", None), job("medium", None), job("low", low)];
    let all: f64 = forecast("drr", &jobs(None))?.iter().map(|tenant| tenant.iops).sum();
    let (high, medium, low) = FIG7_WEIGHTS;
    let share_iops = all * low / (high + medium + low);
    for step in 0..=FIG7_STEPS {
        let part = f64::from(step) / f64::from(FIG7_STEPS);
        // 0 would be no demand at all.
        let jobs = jobs(Some((part * share_iops).round().max(1.0) as u64));
        show(&format!("forecast and daemon, low class at {part}"));
        let seen = run.play("drr", &jobs)?;
        let expected = forecast("drr", &jobs)?;
        let (seen, expected) = seen.first().zip(expected.first()).context("there are three jobs")?;
        let rate = Row::new("high class", part, RATE, seen.iops).against(derived(expected.iops), MODEL_ERROR);
        figure.push(rate);
        let mean = derived(expected.mean.as_micros_f64());
        figure.push(Row::new("high class", part, LATENCY, seen.mean_us).against(mean, MODEL_ERROR));
    }
    let text = format!("the forecast's error is below {:.0} %", MODEL_ERROR * 100.0);
    demand_closeness(&mut figure, text, MODEL_ERROR, "high class");
    figure.plots.push(Plot::lines(RATE, "utilization of the low class"));
    figure.plots.push(Plot::lines(LATENCY, "utilization of the low class"));
    Ok(figure)
}

/// A policy, what the figure calls it, the ratio that a scenario should have under it, and how closely.
type Way = (&'static str, &'static str, fn(&Scenario) -> Printed, f64);

const WAYS: [Way; 3] = [
    ("drr", "DRR", |s| s.drr, DRR_TOLERANCE),
    ("wrr", "WRR", |s| s.wrr, TOLERANCE),
    ("passthrough", "RR (default)", |s| s.rr, TOLERANCE),
];

fn priority(class: Class) -> &'static str {
    match class {
        Class::High => "high",
        Class::Medium => "medium",
        Class::Low => "low",
    }
}

/// Fig. 8: scenarios 1 to 5.
fn scenarios(run: &Run<'_>, show: &mut dyn FnMut(&str)) -> Result<Figure> {
    let mut figure = figure("fig8-live", "Bandwidth ratio of two jobs, on a running daemon");
    figure.shows = "The five pairs of jobs as two tenants of a daemon, under the policies that arbitrate between \
                    tenants by their priority. `passthrough` takes turns, as a drive does by default."
        .into();
    figure.goal = format!(
        "DRR within {:.0} % of the classes' ratio, the others within {:.0} % of the paper's",
        DRR_TOLERANCE * 100.0,
        TOLERANCE * 100.0
    );
    for scenario in &SCENARIOS {
        for (policy, series, expected, tolerance) in WAYS {
            show(&format!("scenario {} under {policy}", scenario.name));
            let jobs = scenario.jobs.each_ref().map(|job| Job {
                priority: priority(job.class),
                sizes_bytes: job.sizes_bytes.to_vec(),
                rate_iops: None,
            });
            let seen = run.play(policy, &jobs)?;
            let (one, other) = seen.first().zip(seen.get(1)).context("there are two jobs")?;
            let ratio = one.bytes_s / other.bytes_s;
            figure.push(Row::new(series, scenario.name, RATIO, ratio).against(expected(scenario), tolerance));
        }
    }
    let text = "DRR gives every pair bandwidth in proportion to its classes".to_owned();
    demand_closeness(&mut figure, text, DRR_TOLERANCE, "DRR");
    figure.plots.push(Plot::bars(RATIO, "scenario"));
    Ok(figure)
}

/// Demands that no row of a series is further off than `most`.
fn demand_closeness(figure: &mut Figure, text: String, most: f64, series: &str) {
    let deviations = figure.rows.iter().filter(|row| row.series == series).filter_map(|row| row.deviation);
    let worst = deviations.map(f64::abs).fold(0.0, f64::max);
    figure.demand(text, worst <= most, format!("at most {:.1} % off", worst * 100.0));
}
