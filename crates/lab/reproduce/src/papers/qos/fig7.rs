//! Fig. 7: the paper's model against the drive.

use io_model::{Nanos, QueuePriority};
use ssd_model::Profile;

use super::printed::{FIG7_WEIGHTS, MODEL_ERROR, high_share};
use super::streams::{Demand, Seen, Stream, play};
use super::{ASSUMPTIONS, DRR};
use crate::paper::{Paper, derived};
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

/// Deeper than the drive's window.
const DEPTH: u32 = 512;
const SPAN: Nanos = Nanos::from_millis(1_000);
const SIZES_BYTES: &[u32] = &[32 << 10];
const STEPS: u32 = 10;

const SHARE: &str = "high class's share of the throughput";
const LATENCY: &str = "high class's mean latency (µs)";

/// Three classes of 32 KiB reads; the low one is open, at `low_iops`, or as greedy as the others.
fn run(context: &Context<'_>, low: Demand) -> Result<Vec<Seen>, String> {
    let stream = |class, demand| Stream { class, sizes_bytes: SIZES_BYTES, demand };
    let greedy = Demand::Depth(DEPTH);
    let streams =
        [stream(QueuePriority::High, greedy), stream(QueuePriority::Medium, greedy), stream(QueuePriority::Low, low)];
    let profile = Profile::by_name("p3700").ok_or("no profile p3700")?;
    play(&profile, DRR, &streams, context.span(SPAN), context.seed())
}

/// The figure.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let title = "The high class as the low class gets busier: model and drive";
    let mut figure = Figure::new(Paper::Qos, "fig7", title);
    figure.shows = "Three classes of 32 KiB reads under deficit round robin, 4 : 2 : 1. The high and the medium class \
                    ask for all they can get; the low class for a growing part of its share. Hollow: the paper's model \
                    (Eq. 2 and 3)."
        .into();
    figure.goal = format!("drive within {:.0} % of the model, as in the paper", MODEL_ERROR * 100.0);
    ASSUMPTIONS.iter().for_each(|text| figure.assume(*text));
    figure.assume(
        "The low class's utilization is its rate over the rate of its share, a seventh of γ. Read as printed, λ / γ, \
         the classes together could have more than γ.",
    );
    figure.assume(
        "Eq. 3 is compared with the mean. The paper calls it a maximum, but its a is a mean time of service; a / p is \
         taken as 1 / γ, the drive's mean time between completions.",
    );
    let name = |_: &()| "all classes greedy".to_owned();
    let greedy = context.all(&[()], name, |()| run(context, Demand::Depth(DEPTH)))?;
    let gamma: f64 = greedy.iter().flatten().map(|seen| seen.iops).sum();
    let (high, medium, low) = FIG7_WEIGHTS;
    let steps: Vec<f64> = (0..=STEPS).map(|step| f64::from(step) / f64::from(STEPS)).collect();
    let seen = context.all(
        &steps,
        |rho| format!("low class at {rho}"),
        |rho| run(context, Demand::PerSecond(rho * gamma * low / (high + medium + low))),
    )?;
    for (rho, seen) in steps.iter().zip(&seen) {
        let total: f64 = seen.iter().map(|one| one.iops).sum();
        let model = high_share(*rho);
        figure.push(Row::new("high class", *rho, SHARE, seen[0].iops / total).against(model, MODEL_ERROR));
        let latency = derived(f64::from(DEPTH) / (model.value * gamma) * 1e6);
        figure.push(Row::new("high class", *rho, LATENCY, seen[0].mean_us).against(latency, MODEL_ERROR));
    }
    let worst = figure.rows.iter().filter_map(|row| row.deviation).map(f64::abs).fold(0.0, f64::max);
    figure.demand(
        format!("the model's error is below {:.0} %", MODEL_ERROR * 100.0),
        worst < MODEL_ERROR,
        format!("at most {:.1} %", worst * 100.0),
    );
    figure.plots.push(Plot::lines(SHARE, "utilization of the low class"));
    figure.plots.push(Plot::lines(LATENCY, "utilization of the low class"));
    Ok(vec![figure])
}
