//! Fig. 8: tails beside the heaviest neighbour on the P5800X.

use io_model::Nanos;

use super::compare::deviation;
use super::printed::TAIL_GAIN;
use super::systems::{Drive, System, assumptions, fio, guaranteed, noisy, run, scenario};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

/// VM1 does 4,000 I/Os a second or more: some ten thousand, so that a p99.99 is the slowest of them.
const DURATION: Nanos = Nanos::from_millis(2_000);
const TOLERANCE: f64 = 0.25;
const TAILS: [&str; 2] = ["p99.9", "p99.99"];
const SYSTEMS: [System; 4] = [System::Spdk, System::Mdev, System::Lpns, System::Ours];
/// Reads in 100, and what the paper calls it.
const OPERATIONS: [(u8, &str); 2] = [(100, "read"), (0, "write")];

fn metric(tail: &str) -> String {
    format!("VM1 {tail} latency (µs)")
}

/// The figure.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Lpns, "fig8", "Tails beside one heavy neighbour, P5800X");
    figure.shows =
        "VM1's 99.9th and 99.99th percentile with one 4K I/O outstanding, VM2 at n8d32; how many times better than \
                    SPDK's LPNS's are."
            .into();
    figure.goal = format!("LPNS's gains within {:.0} % of the paper's", TOLERANCE * 100.0);
    figure.assumptions = assumptions(Drive::P5800X);
    figure.assume("The last digits of a p99.99 rest on a few I/Os: VM1 does some ten thousand in the time simulated.");
    let runs: Vec<_> = OPERATIONS.iter().flat_map(|operation| SYSTEMS.map(|system| (*operation, system))).collect();
    let seen = context.all(
        &runs,
        |((_, operation), system)| format!("{}, {operation}", system.name()),
        |((read_percent, _), system)| {
            let vms = [guaranteed(fio(1, 1, *read_percent)), noisy(fio(8, 32, *read_percent))];
            let report = run(&scenario(context, *system, Drive::P5800X, &vms, DURATION))?;
            let tail = |of: fn(&sim::Latencies) -> u64| {
                report.tenants.first().map_or(f64::NAN, |vm1| of(&vm1.latency) as f64 / 1e3)
            };
            Ok([tail(|latency| latency.p999_ns), tail(|latency| latency.p9999_ns)])
        },
    )?;
    for (((_, operation), system), tails_us) in runs.iter().zip(&seen) {
        for (tail, us) in TAILS.iter().zip(tails_us) {
            figure.push(Row::new(&system.name(), *operation, &metric(tail), *us));
        }
    }
    for (operation, p999, p9999) in TAIL_GAIN {
        for (tail, printed) in TAILS.into_iter().zip([p999, p9999]) {
            gain(&mut figure, operation, tail, printed);
        }
    }
    TAILS.iter().for_each(|tail| figure.plots.push(Plot::bars(&metric(tail), "operation").log_y()));
    figure.deviation = deviation(&figure, REASONS);
    Ok(vec![figure])
}

fn gain(figure: &mut Figure, operation: &str, tail: &str, printed: crate::paper::Printed) {
    let of = |system: System| figure.ours(&system.name(), &operation.into(), &metric(tail)).unwrap_or(f64::NAN);
    let (spdk, lpns, ours) = (of(System::Spdk), of(System::Lpns), of(System::Ours));
    let name = format!("{tail}: SPDK's over LPNS's (times)");
    figure.push(Row::new("LPNS", operation, &name, spdk / lpns).against(printed, TOLERANCE));
    figure.push(Row::new("Evenkeel", operation, &name, spdk / ours));
    figure.demand(
        format!("LPNS's {operation} {tail} better than SPDK's by at least three quarters of what is printed"),
        spdk / lpns >= printed.value * (1.0 - TOLERANCE),
        format!("{:.2} times, printed {:.2}", spdk / lpns, printed.value),
    );
}

const REASONS: &[(&str, &str)] = &[(
    "LPNS's",
    "The gain is SPDK's tail over LPNS's. SPDK's is too short for the reason given at Fig. 7a; LPNS's is the drive's \
     own at full load, where commands that hash to the same unit queue up: units that take any waiting command would \
     shorten it.",
)];
