//! Fig. 8: five pairs of jobs.

use arbitration::Arbitration;
use io_model::Nanos;
use ssd_model::Profile;

use super::printed::{SCENARIOS, Scenario};
use super::streams::{Demand, Stream, play};
use super::{ASSUMPTIONS, DRR, RR, WRR, class};
use crate::paper::{Paper, Printed};
use crate::report::{Axis, Figure, Plot, Row};
use crate::runner::{Context, Error};

/// Deeper than the drive's window, so that both queues always hold more than it can take.
const DEPTH: u32 = 512;
const SPAN: Nanos = Nanos::from_millis(1_000);
/// "Close to the expected ratio".
const TOLERANCE: f64 = 0.1;
const METRIC: &str = "bandwidth ratio A : B";

/// An arbitration, its name, and the ratio that a scenario should have under it.
type Way = (&'static str, Arbitration, fn(&Scenario) -> Printed);

const WAYS: [Way; 3] = [("DRR", DRR, |s| s.drr), ("WRR", WRR, |s| s.wrr), ("RR (default)", RR, |s| s.rr)];

fn ratio(context: &Context<'_>, scenario: &Scenario, arbitration: Arbitration, depth: u32) -> Result<f64, String> {
    let streams = scenario.jobs.each_ref().map(|job| Stream {
        class: class(job.class),
        sizes_bytes: job.sizes_bytes,
        demand: Demand::Depth(depth),
    });
    let profile = Profile::by_name("p3700").ok_or("no profile p3700")?;
    let seen = play(&profile, arbitration, &streams, context.span(SPAN), context.seed())?;
    Ok(seen[0].bytes_s / seen[1].bytes_s)
}

/// The scenarios.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Qos, "fig8", "Bandwidth ratio of two jobs under three ways of arbitration");
    figure.shows = "Two jobs submit back to back; the ratio of the first one's bandwidth to the second one's. Round \
                    robin gives both the same number of commands, weighted round robin as many as their classes weigh, \
                    and only deficit round robin gives bytes in proportion."
        .into();
    figure.goal = format!("every ratio within {:.0} % of the paper's", TOLERANCE * 100.0);
    ASSUMPTIONS.iter().for_each(|text| figure.assume(*text));
    figure.assume(format!(
        "Each job keeps {DEPTH} requests outstanding, more than the drive's window: arbitration chooses among waiting \
         commands, so there must be some. The paper does not say how deep its jobs' queues are."
    ));
    let cases: Vec<(&Scenario, &Way)> = SCENARIOS.iter().flat_map(|s| WAYS.iter().map(move |way| (s, way))).collect();
    let name = |(scenario, way): &(&Scenario, &Way)| format!("{} under {}", scenario.name, way.0);
    let ratios = context.all(&cases, name, |(scenario, way)| ratio(context, scenario, way.1, DEPTH))?;
    for ((scenario, way), ratio) in cases.iter().zip(ratios) {
        figure.push(Row::new(way.0, scenario.name, METRIC, ratio).against(way.2(scenario), TOLERANCE));
    }
    let drr: Vec<f64> =
        figure.rows.iter().filter(|row| row.series == "DRR").filter_map(|row| row.deviation).map(f64::abs).collect();
    let worst = drr.iter().copied().fold(0.0, f64::max);
    figure.demand(
        "DRR gives every pair bandwidth in proportion to its classes",
        worst <= TOLERANCE,
        format!("at most {:.1} % off", worst * 100.0),
    );
    figure.plots.push(Plot::bars(METRIC, "scenario"));
    Ok(vec![figure])
}

const DEPTHS: [u32; 8] = [8, 16, 32, 64, 128, 256, 512, 1024];

/// One scenario over the jobs' depth.
pub fn measure_depth(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Qos, "fig8-depth", "How deep queues must be before arbitration matters");
    let scenario = &SCENARIOS[2];
    let window = Profile::by_name("p3700").map_or(0, |profile| profile.window);
    figure.shows = format!(
        "Scenario {} again, over the depth of both jobs. Not in the paper. A drive that takes everything at once has \
         nothing to choose from: classes matter from the depth on at which both jobs together fill its window of \
         {window} commands.",
        scenario.name
    );
    ASSUMPTIONS.iter().for_each(|text| figure.assume(*text));
    figure.assume("The size of the window is the profile's, and fitted: drives do not publish it.");
    let cases: Vec<(u32, &Way)> = DEPTHS.iter().flat_map(|depth| WAYS.iter().map(move |way| (*depth, way))).collect();
    let name = |(depth, way): &(u32, &Way)| format!("depth {depth} under {}", way.0);
    let ratios = context.all(&cases, name, |(depth, way)| ratio(context, scenario, way.1, *depth))?;
    for ((depth, way), ratio) in cases.iter().zip(ratios) {
        figure.push(Row::new(way.0, *depth, METRIC, ratio));
    }
    figure.plots.push(Plot { x_axis: Axis::Log, ..Plot::lines(METRIC, "requests that each job keeps outstanding") });
    Ok(vec![figure])
}
