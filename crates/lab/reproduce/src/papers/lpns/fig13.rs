//! Fig. 13: the trade-off that Ω sets, its knee, and the bounds that are claimed for it.

use io_model::Nanos;
use policy::PolicyConfig;
use policy::netcalc::{ArrivalCurve, ServiceCurve, delay_bound, published_bound, published_rate};
use rivals::LabConfig::Product;
use sim::workload::Webuser;

use super::compare::deviation;
use super::printed::{EQ5_EXAMPLE, OMEGA};
use super::systems::{Drive, System, assumptions, fio, mb_s_from, mix, run, scenario, webuser};
use crate::paper::{Paper, printed};
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const OMEGAS: [u32; 12] = [10, 30, 60, 100, 130, 160, 190, 220, 240, 280, 320, 400];
const NEIGHBOURS: usize = 3;
/// Jobs and depth of each.
const NOISY: (u32, u32) = (4, 32);
const DURATION: Nanos = Nanos::from_millis(1_000);

/// A percentile is read from buckets, and may be so much too high.
const READ_OUT: f64 = 1.016;

const LATENCY: &str = "VM1 mean latency (µs)";
const TAIL: &str = "VM1 p99.9 latency (µs)";
const TOTAL: &str = "throughput of the other VMs (GB/s)";
const RATE: &str = "VM1 throughput (IOPS)";
const BOUND: &str = "bound on VM1's latency (µs)";
const EQ5: &str = "Eq. 5 as printed";
const HOLDS: &str = "bound that holds";

/// One point of the curve.
#[derive(Debug, Clone, Copy)]
struct Point {
    omega: f64,
    mean_us: f64,
    p999_us: f64,
    vm1_iops: f64,
    noisy_gb_s: f64,
}

/// Both drives.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    Ok(vec![one(context, Drive::P5800X)?, one(context, Drive::Pm1735)?])
}

fn one(context: &Context<'_>, drive: Drive) -> Result<Figure, Error> {
    let (id, title) = match drive {
        Drive::P5800X => ("fig13a", "The trade-off that Ω sets, P5800X"),
        Drive::Pm1735 => ("fig13b", "The trade-off that Ω sets, PM1735"),
    };
    let mut figure = Figure::new(Paper::Lpns, id, title);
    figure.shows =
        "VM1 does what stands in for the webuser trace beside three writers (4K random, n4d32), under the published \
                    rule with smaller and larger Ω."
            .into();
    figure.assumptions = assumptions(drive);
    figure.assumptions.extend(Webuser::ASSUMPTIONS.map(str::to_owned));
    figure.assume(
        "The knee is the Ω at which the others' throughput lies furthest above the straight line between the ends of \
         the sweep: up to there more Ω buys throughput, after it hardly any.",
    );
    figure.assume(format!(
        "The bound that holds: what the rule lets the others send in one 10 ms interval may come at once, up to the {} \
         I/Os that they keep outstanding; nothing enforces the d·Ω of Eq. 2. It takes the drive to serve in order.",
        burst_most()
    ));
    let seen = context.all(
        &OMEGAS,
        |omega| format!("Ω = {omega} on {}", drive.name()),
        |omega| point(context, drive, *omega),
    )?;
    for point in &seen {
        rows(&mut figure, drive, point);
    }
    knee(&mut figure, drive, &seen);
    bounds(&mut figure, drive, &seen);
    let target_us = drive.target_us();
    figure.plots.push(Plot::lines(LATENCY, "Ω").mark(target_us, "promised"));
    figure.plots.push(Plot::lines(TOTAL, "Ω"));
    figure.plots.push(Plot::lines(BOUND, "Ω").log_y());
    figure.deviation = deviation(&figure, REASONS);
    Ok(figure)
}

fn point(context: &Context<'_>, drive: Drive, omega: u32) -> Result<Point, String> {
    let vms = mix(1, &webuser(), NEIGHBOURS, &fio(NOISY.0, NOISY.1, 0));
    let mut scenario = scenario(context, System::Lpns, drive, &vms, DURATION);
    if let Product(PolicyConfig::Lpns(config)) = &mut scenario.policy {
        config.omega = f64::from(omega);
    }
    let report = run(&scenario)?;
    let vm1 = report.tenants.first().ok_or("nobody ran")?;
    Ok(Point {
        omega: f64::from(omega),
        mean_us: super::systems::mean_us(vm1),
        p999_us: vm1.latency.p999_ns as f64 / 1e3,
        vm1_iops: vm1.iops,
        noisy_gb_s: mb_s_from(&report, 1) / 1e3,
    })
}

/// I/Os that the others can have outstanding together.
fn burst_most() -> u32 {
    NEIGHBOURS as u32 * NOISY.0 * NOISY.1
}

/// What Eq. 5 should have been, from what the rule enforces.
fn bound_that_holds(service: &ServiceCurve, point: &Point, interval: Nanos) -> Option<Nanos> {
    let rate_iops = published_rate(point.vm1_iops, point.omega);
    let burst = (rate_iops * interval.0 as f64 / 1e9).min(f64::from(burst_most())) + 1.0;
    // The others' outstanding I/Os are limited, so more can't arrive for long than is served.
    let arrival = ArrivalCurve { rate_iops: rate_iops.min(service.rate_iops), burst };
    delay_bound(&arrival, service).ok()
}

fn rows(figure: &mut Figure, drive: Drive, point: &Point) {
    let config = drive.lpns();
    let mut push = |series: &str, metric, value| figure.push(Row::new(series, point.omega, metric, value));
    push("LPNS", LATENCY, point.mean_us);
    push("LPNS", TAIL, point.p999_us);
    push("LPNS", TOTAL, point.noisy_gb_s);
    push("LPNS", RATE, point.vm1_iops);
    push("VM1's mean", BOUND, point.mean_us);
    push("VM1's p99.9", BOUND, point.p999_us);
    push(EQ5, BOUND, published_bound(config.depth, point.omega, &config.service()).0 as f64 / 1e3);
    if let Some(bound) = bound_that_holds(&config.service(), point, config.interval) {
        push(HOLDS, BOUND, bound.0 as f64 / 1e3);
    }
}

/// Where throughput lies furthest above the chord of the sweep.
fn knee_of(points: &[Point]) -> f64 {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return f64::NAN };
    let slope = (last.noisy_gb_s - first.noisy_gb_s) / (last.omega - first.omega);
    let above = |point: &Point| point.noisy_gb_s - first.noisy_gb_s - slope * (point.omega - first.omega);
    let best = points.iter().max_by(|a, b| above(a).total_cmp(&above(b)));
    best.map_or(f64::NAN, |point| point.omega)
}

fn knee(figure: &mut Figure, drive: Drive, points: &[Point]) {
    let (_, chosen, (low, high)) =
        OMEGA.into_iter().find(|(name, ..)| *name == drive.name()).unwrap_or(("", f64::NAN, (f64::NAN, f64::NAN)));
    let knee = knee_of(points);
    figure.goal = match drive {
        Drive::P5800X => format!("the knee between Ω = {low} and {high}"),
        Drive::Pm1735 => format!("the knee at Ω = {low}, or a step of the sweep beside it"),
    };
    let step = |way: isize| {
        let at = OMEGAS.iter().position(|omega| f64::from(*omega) == low).and_then(|at| at.checked_add_signed(way));
        at.and_then(|at| OMEGAS.get(at)).map_or(f64::NAN, |omega| f64::from(*omega))
    };
    let (least, most) = if low < high { (low, high) } else { (step(-1), step(1)) };
    figure.push(Row::new("LPNS", "knee", "Ω", knee));
    figure.push(Row::new("LPNS", "chosen in the paper", "Ω", chosen));
    figure.demand(
        format!("the knee between Ω = {least} and {most}"),
        (least..=most).contains(&knee),
        format!("Ω = {knee}; the paper's choice is {chosen}"),
    );
}

fn bounds(figure: &mut Figure, drive: Drive, points: &[Point]) {
    let config = drive.lpns();
    if drive == Drive::P5800X {
        let (r_per_us, l_h_us, omega, depth, print) = EQ5_EXAMPLE;
        let service = ServiceCurve { rate_iops: r_per_us * 1e6, latency: Nanos((l_h_us * 1e3) as u64) };
        let bound_us = published_bound(depth as u32, omega, &service).0 as f64 / 1e3;
        figure.push(Row::new(EQ5, "the paper's example", BOUND, bound_us).against(print, 0.001));
        let chosen = published_bound(config.depth, config.omega, &config.service()).0 as f64 / 1e3;
        figure.push(Row::new(EQ5, "promised", BOUND, chosen).beside(printed(drive.target_us())));
        figure.demand(
            "Eq. 5 gives 23.55 µs for Ω = 10",
            (bound_us - print.value).abs() < 0.005,
            format!("{bound_us:.2} µs; for the chosen Ω of {} it gives {chosen:.1} µs, not 50", config.omega),
        );
    }
    let holds =
        |point: &Point| bound_that_holds(&config.service(), point, config.interval).map(|bound| bound.0 as f64 / 1e3);
    let kept =
        points.iter().filter(|point| holds(point).is_some_and(|bound_us| point.p999_us <= bound_us * READ_OUT)).count();
    let eq5 = |point: &Point| published_bound(config.depth, point.omega, &config.service()).0 as f64 / 1e3;
    let below = points.iter().filter(|point| point.p999_us <= eq5(point) * READ_OUT).count();
    figure.demand(
        "VM1's p99.9 below the bound that holds at every Ω",
        kept == points.len(),
        format!("at {kept} of {}; below Eq. 5 as printed at {below}", points.len()),
    );
}

const REASONS: &[(&str, &str)] = &[
    (
        "the knee",
        "The knee is where Ω times VM1's mean rate reaches what drive or poller serve; it moves with the stand-in's \
         rate and with the poller's cost per command.",
    ),
    (
        "VM1's p99.9",
        "The bound that holds takes a drive that serves in order at R or more. Where it is exceeded, commands that \
         hash to the same unit, or a full write buffer, waited longer.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_knee_is_where_throughput_stops_growing() {
        let point = |omega: f64| Point {
            omega,
            mean_us: 15.0 + (omega - 200.0).max(0.0),
            p999_us: 20.0,
            vm1_iops: 4_000.0,
            noisy_gb_s: omega.min(200.0) / 60.0,
        };
        let points: Vec<Point> = OMEGAS.iter().map(|omega| point(f64::from(*omega))).collect();
        assert_eq!(knee_of(&points), 190.0);
        assert!(knee_of(&[]).is_nan());
    }

    #[test]
    fn nothing_enforces_the_burst_of_eq_5() {
        let config = Drive::P5800X.lpns();
        let point = Point { omega: 190.0, mean_us: 20.0, p999_us: 60.0, vm1_iops: 4_000.0, noisy_gb_s: 2.7 };
        // 4,000 × 190 × 10 ms is far above the 384 that can be outstanding.
        let bound = bound_that_holds(&config.service(), &point, config.interval).unwrap();
        assert_eq!(bound, Nanos(385 * 1_250 + 11_050));
        let slow = Point { omega: 1.0, ..point };
        assert_eq!(bound_that_holds(&config.service(), &slow, config.interval).unwrap(), Nanos(41 * 1_250 + 11_050));
    }
}
