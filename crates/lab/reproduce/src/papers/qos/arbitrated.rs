//! Fig. 7 and 8: classes of streams on the drive, and the paper's model of them.

use arbitration::{Arbitration, QuantaKib};
use io_model::{Nanos, QueuePriority, WrrWeights};

use super::printed::{FIG7_A_OVER_P_US, FIG7_GAMMA, MODEL_ERROR, SCENARIOS, Scenario, high_share};
use super::streams::{Demand, Seen, Stream, play};
use super::{RATIO, TOLERANCE, class, fig7_rate, fig7_steps};
use crate::paper::{Printed, derived};
use crate::papers::bench::{each, most, profile};
use crate::report::{Figure, Row};
use crate::runner::{Context, Error};

/// Deeper than the drive's window, so that all queues always hold more than it can take.
const DEPTH: u32 = 512;
const SPAN: Nanos = Nanos::from_millis(1_000);

const ALL_GREEDY: &str = "all classes greedy";
const UNSEEN_TOLERANCE: f64 = 0.25;

/// The classes' quanta of all experiments: 128, 64 and 32 KiB.
const DRR: Arbitration = Arbitration::DeficitRoundRobin { quanta: QuantaKib { high: 128, medium: 64, low: 32 } };
/// The classes' weights of all experiments: 32, 16 and 8 commands.
const WRR: Arbitration =
    Arbitration::WeightedRoundRobin { burst: 1, weights: WrrWeights { high: 32, medium: 16, low: 8 } };

/// An arbitration, its name, and the ratio that a scenario should have under it. The last one is every drive's.
type Way = (&'static str, Arbitration, fn(&Scenario) -> Printed);
const WAYS: [Way; 3] = [
    ("DRR", DRR, |s| s.drr),
    ("WRR", WRR, |s| s.wrr),
    ("RR (default)", Arbitration::RoundRobin { burst: 1 }, |s| s.rr),
];

/// Three classes of 32 KiB reads; the low one is open or as greedy as the others.
fn three(context: &Context<'_>, low: Demand) -> Result<Vec<Seen>, String> {
    let greedy = Demand::Depth(DEPTH);
    let streams = [(QueuePriority::High, greedy), (QueuePriority::Medium, greedy), (QueuePriority::Low, low)]
        .map(|(class, demand)| Stream { class, sizes_bytes: &[32 << 10], demand });
    play(&profile("p3700")?, DRR, &streams, context.span(SPAN), context.seed())
}

/// Fig. 7.
pub fn fig7(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("fig7");
    let greedy = context.all([ALL_GREEDY], |_| three(context, Demand::Depth(DEPTH)))?;
    let gamma: f64 = greedy.iter().flat_map(|(_, seen)| seen).map(|seen| seen.iops).sum();
    let row = Row::new("the drive", ALL_GREEDY, "γ, 32 KiB reads (IOPS)", gamma);
    figure.push(row.against(FIG7_GAMMA, UNSEEN_TOLERANCE));
    let row = Row::new("the drive", ALL_GREEDY, "a / p (µs)", 1e6 / gamma);
    figure.push(row.against(FIG7_A_OVER_P_US, UNSEEN_TOLERANCE));
    let seen = context.all(fig7_steps(), |rho| three(context, Demand::PerSecond(fig7_rate(*rho, gamma))))?;
    for (rho, seen) in seen {
        let total: f64 = seen.iter().map(|one| one.iops).sum();
        let model = high_share(rho);
        let share = Row::new("high class", rho, "high class's share of the throughput", seen[0].iops / total);
        figure.push(share.against(model, MODEL_ERROR));
        let latency = derived(f64::from(DEPTH) / (model.value * gamma) * 1e6);
        let row = Row::new("high class", rho, "high class's mean latency (µs)", seen[0].mean_us);
        figure.push(row.against(latency, MODEL_ERROR));
    }
    let worst = figure.furthest("high class");
    figure.demand("the model's error is below 5 %", worst < MODEL_ERROR, format!("at most {:.1} %", worst * 100.0));
    Ok(vec![figure])
}

fn ratio(context: &Context<'_>, scenario: &Scenario, arbitration: Arbitration, depth: u32) -> Result<f64, String> {
    let streams = scenario.jobs.each_ref().map(|job| Stream {
        class: class(job.class),
        sizes_bytes: job.sizes_bytes,
        demand: Demand::Depth(depth),
    });
    let seen = play(&profile("p3700")?, arbitration, &streams, context.span(SPAN), context.seed())?;
    Ok(seen[0].bytes_s / seen[1].bytes_s)
}

/// Fig. 8: five pairs of jobs.
pub fn fig8(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("fig8");
    let ratios = context.all(each(&SCENARIOS, WAYS), |(pair, way)| ratio(context, pair, way.1, DEPTH))?;
    for ((scenario, (way, _, print)), ratio) in ratios {
        figure.push(Row::new(way, scenario.name, RATIO, ratio).against(print(scenario), TOLERANCE));
    }
    // How far from the classes' ratio.
    let off = |way: &str| {
        let off = |pair: &Scenario| (figure.at(way, pair.name, RATIO) / pair.drr.value - 1.0).abs();
        most(SCENARIOS.iter().map(off))
    };
    let [drr, wrr, rr] = WAYS.map(|(way, ..)| off(way));
    let [saw, others @ ..] = [drr, wrr, rr].map(|off| format!("{:.1} %", off * 100.0));
    let saw = format!("at most {saw} off; WRR {}, round robin {}", others[0], others[1]);
    let text = "DRR gives every pair bandwidth in proportion to its classes";
    figure.claim(text, drr <= TOLERANCE, saw, rr <= TOLERANCE);
    Ok(vec![figure])
}

/// One scenario over the jobs' depth.
pub fn fig8_depth(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("fig8-depth");
    let cases = each([8, 16, 32, 64, 128, 256, 512, 1024], WAYS);
    for ((depth, (way, ..)), ratio) in
        context.all(cases, |(depth, way)| ratio(context, &SCENARIOS[2], way.1, *depth))?
    {
        figure.show(way, depth, RATIO, ratio);
    }
    Ok(vec![figure])
}
