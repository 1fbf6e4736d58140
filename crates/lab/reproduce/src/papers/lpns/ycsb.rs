//! Fig. 12 and Table 3: a key-value store beside three mixed neighbours.

use io_model::Nanos;
use sim::Latencies;
use sim::workload::{Core, Workload, Ycsb};

use super::compare::deviation;
use super::printed::{YCSB_BEST_GAIN, YCSB_US};
use super::systems::{Drive, System, assumptions, fio, guaranteed, mix, run, scenario};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const CORES: [(Core, &str); 6] =
    [(Core::A, "A"), (Core::B, "B"), (Core::C, "C"), (Core::D, "D"), (Core::E, "E"), (Core::F, "F")];
/// So that a second sees as many flushes and compactions as a quarter of a minute.
const SCALE: u64 = 16;
const DURATION: Nanos = Nanos::from_millis(800);
const NEIGHBOURS: usize = 3;
const ALONE: &str = "alone";
const TOLERANCE: f64 = 0.25;
/// Reads of the neighbours in 100: "random read/write", no share is printed.
const READ_PERCENT: u8 = 50;

/// Alone, then beside the neighbours.
const SYSTEMS: [(&str, System, usize); 4] = [
    (ALONE, System::Mdev, 0),
    ("MDev", System::Mdev, NEIGHBOURS),
    ("LPNS", System::Lpns, NEIGHBOURS),
    ("Evenkeel", System::Ours, NEIGHBOURS),
];

type Percentile = (&'static str, fn(&Latencies) -> u64);
const PERCENTILES: [Percentile; 2] = [("p95", |latency| latency.p95_ns), ("p99", |latency| latency.p99_ns)];

fn mean_metric() -> String {
    "mean latency of an operation (µs)".to_owned()
}

fn metric(percentile: &str) -> String {
    format!("{percentile} latency of an operation (µs)")
}

/// Both.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Lpns, "fig12", "A key-value store beside three mixed neighbours, P5800X");
    figure.shows =
        "YCSB's core workloads on a store with a log-structured merge tree in VM1; three others read and write 4K at \
                    random, n4d32. With Table 3."
            .into();
    figure.goal = "LPNS's p95 and p99 better than MDev's in A and B".into();
    figure.assumptions = assumptions(Drive::P5800X);
    figure.assumptions.extend(Ycsb::ASSUMPTIONS.map(str::to_owned));
    figure.assume(format!(
        "The store is {SCALE} times smaller in all its parts, so that a run of {} ms sees as many flushes and \
         compactions as one {SCALE} times as long.",
        DURATION.0 / 1_000_000
    ));
    figure.assume(
        "Printed latencies are shown beside ours and not judged: threads, record counts and the Java part of the \
         benchmark are not printed, and ours are several times shorter. The gain of LPNS over MDev is judged.",
    );
    figure.assume(format!("The neighbours read {READ_PERCENT} in 100; the paper does not say."));
    let runs: Vec<_> = CORES.iter().flat_map(|core| SYSTEMS.map(|system| (*core, system))).collect();
    let seen = context.all(
        &runs,
        |((_, core), (name, ..))| format!("YCSB {core}, {name}"),
        |((core, _), (_, system, neighbours))| {
            let store = Workload::Ycsb(Ycsb::new(*core).scaled_down(SCALE));
            let vms = match neighbours {
                0 => vec![guaranteed(store)],
                _ => mix(1, &store, *neighbours, &fio(4, 32, READ_PERCENT)),
            };
            let report = run(&scenario(context, *system, Drive::P5800X, &vms, DURATION))?;
            Ok(report.tenants.into_iter().next().map(|vm1| vm1.operations).unwrap_or_default())
        },
    )?;
    for (((_, core), (name, ..)), operations) in runs.iter().zip(&seen) {
        for (operation, latency) in operations {
            let x = format!("{core} {operation}");
            figure.push(Row::new(name, x.as_str(), &mean_metric(), latency.mean_ns / 1e3));
            for (percentile, of) in PERCENTILES {
                let print = YCSB_US.iter().find(|(c, o, p, ..)| c == core && o == operation && *p == percentile);
                let print = print.and_then(|(.., mdev, lpns)| match *name {
                    "MDev" => Some(*mdev),
                    "LPNS" => Some(*lpns),
                    _ => None,
                });
                figure.push(Row::new(name, x.as_str(), &metric(percentile), of(latency) as f64 / 1e3).beside(print));
            }
        }
    }
    gains(&mut figure);
    figure.plots.push(Plot::bars(&mean_metric(), "workload and operation").log_y());
    PERCENTILES
        .iter()
        .for_each(|(name, _)| figure.plots.push(Plot::bars(&metric(name), "workload and operation").log_y()));
    figure.deviation = deviation(&figure, REASONS);
    Ok(vec![figure])
}

fn gains(figure: &mut Figure) {
    let of = |figure: &Figure, series: &str, x: &str, metric: &str| {
        figure.ours(series, &x.into(), metric).unwrap_or(f64::NAN)
    };
    for (core, operation, percentile, mdev, lpns) in YCSB_US {
        let (x, metric) = (format!("{core} {operation}"), metric(percentile));
        let name = format!("{percentile}: MDev's over LPNS's (times)");
        let printed = crate::paper::derived(mdev.value / lpns.value);
        let gain = of(figure, "MDev", &x, &metric) / of(figure, "LPNS", &x, &metric);
        let ours = of(figure, "MDev", &x, &metric) / of(figure, "Evenkeel", &x, &metric);
        figure.push(Row::new("LPNS", x.as_str(), &name, gain).against(printed, TOLERANCE));
        figure.push(Row::new("Evenkeel", x.as_str(), &name, ours).beside(printed));
        figure.demand(
            format!("LPNS's {percentile} of {core}'s {operation} better than MDev's"),
            gain > 1.0,
            format!("{gain:.2} times, printed {:.2}", printed.value),
        );
    }
    let means: Vec<(String, f64)> = figure
        .rows
        .iter()
        .filter(|row| row.series == "MDev" && row.metric == mean_metric())
        .map(|row| (row.x.to_string(), row.ours))
        .collect();
    for series in ["LPNS", "Evenkeel"] {
        let best = means.iter().map(|(x, mdev)| mdev / of(figure, series, x, &mean_metric())).fold(f64::NAN, f64::max);
        figure.push(Row::new(series, "best", "mean: MDev's over this one's (times)", best).beside(YCSB_BEST_GAIN));
    }
}

const REASONS: &[(&str, &str)] = &[(
    "LPNS's p",
    "The store sends far more than 4,200 I/Os a second, so the published rule holds nobody back; what LPNS gains comes \
     from its poller for VM1 alone. While the store flushes and compacts, its 128 KiB I/Os meet neighbours at full \
     speed in the drive: with MDev the shared poller slows both down, with LPNS nothing does. A cap on work in flight \
     (Evenkeel) keeps these tails short.",
)];
