//! Fig. 13: the trade-off that Ω sets, its knee, and the bounds that are claimed for it.

use io_model::Nanos;
use policy::PolicyConfig;
use policy::netcalc::{ArrivalCurve, ServiceCurve, delay_bound, published_bound, published_rate};
use rivals::LabConfig::Product;
use sim::workload::{Webuser, Workload};

use super::{LPNS, P5800X, PM1735, TOLERANCE, VM1_MEAN, figures_of, mb_s_from, mix, scenario, target_us, vm1_us};
use crate::paper::printed;
use crate::papers::bench::{EVENKEEL, fio, run};
use crate::report::{Figure, Row};
use crate::runner::{Context, Error};

const OMEGAS: [u32; 12] = [10, 30, 60, 100, 130, 160, 190, 220, 240, 280, 320, 400];
const NEIGHBOURS: usize = 3;
/// Jobs and depth of each.
const NOISY: (u32, u32) = (4, 32);
/// I/Os that the others can have outstanding together.
const BURST_MOST: u32 = NEIGHBOURS as u32 * NOISY.0 * NOISY.1;
/// A percentile is read from buckets, and may be so much too high.
const READ_OUT: f64 = 1.016;
const BOUND: &str = "bound on VM1's latency (µs)";
const EQ5: &str = "Eq. 5 as printed";
/// Eq. 5's example: R (commands per second), L_h, Ω and d; and the bound (µs).
const EQ5_EXAMPLE: (ServiceCurve, f64, u32) = (ServiceCurve { rate_iops: 0.8e6, latency: Nanos(11_050) }, 10.0, 1);
const EQ5_EXAMPLE_US: f64 = 23.55;

/// One point of the curve.
#[derive(Debug, Clone, Copy)]
struct Point {
    omega: f64,
    mean_us: f64,
    p999_us: f64,
    vm1_iops: f64,
    noisy_gb_s: f64,
}

/// Both drives, with the Ω that the paper chooses and the Ω between which the knee has to lie: on the PM1735 it is at
/// 60, or a step of the sweep beside it.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    [("fig13a", P5800X, 190, 160, 240), ("fig13b", PM1735, 100, 30, 100)]
        .into_iter()
        .map(|(id, drive, chosen, least, most)| one(context, id, drive, chosen, (least, most)))
        .collect()
}

/// A web server's stand-in beside its noisy neighbours, under the published rule with this Ω or another policy.
fn point(context: &Context<'_>, system: &str, drive: &str, omega: u32) -> Result<Point, String> {
    let vms = mix(1, &Workload::Webuser(Webuser::default()), NEIGHBOURS, &fio(NOISY.0, NOISY.1, 0));
    let mut scenario = scenario(context, system, drive, &vms, 1_000)?;
    if let Product(PolicyConfig::Lpns(config)) = &mut scenario.policy {
        config.omega = omega.into();
    }
    let report = run(&scenario)?;
    let vm1 = report.tenants.first().ok_or("nobody ran")?;
    Ok(Point {
        omega: omega.into(),
        mean_us: vm1_us(&report),
        p999_us: vm1.latency.p999_ns as f64 / 1e3,
        vm1_iops: vm1.iops,
        noisy_gb_s: mb_s_from(&report, 1) / 1e3,
    })
}

fn one(
    context: &Context<'_>,
    id: &'static str,
    drive: &str,
    chosen: u32,
    (least, most): (u32, u32),
) -> Result<Figure, Error> {
    let mut figure = context.figure(id);
    // The default policy has no Ω: a level line across the sweep.
    let ours = [(EVENKEEL, OMEGAS[0]), (EVENKEEL, OMEGAS[OMEGAS.len() - 1])];
    let cases = OMEGAS.map(|omega| (LPNS, omega)).into_iter().chain(ours);
    let seen = context.all(cases, |(system, omega)| point(context, system, drive, *omega))?;
    for ((system, _), point) in &seen {
        figure.show(system, point.omega, VM1_MEAN, point.mean_us);
        figure.show(system, point.omega, "VM1 p99.9 latency (µs)", point.p999_us);
        figure.show(system, point.omega, "throughput of the other VMs (GB/s)", point.noisy_gb_s);
        figure.show(system, point.omega, "VM1 throughput (IOPS)", point.vm1_iops);
    }
    let points: Vec<Point> = seen.into_iter().take(OMEGAS.len()).map(|(_, point)| point).collect();
    let config = figures_of(drive);
    let us = |bound: Nanos| bound.0 as f64 / 1e3;
    let eq5 = |omega| us(published_bound(config.depth, omega, &config.service()));
    let holds = |point: &Point| bound_that_holds(&config.service(), point, config.interval).map(us);
    for point in &points {
        let mut show = |series, bound_us| figure.show(series, point.omega, BOUND, bound_us);
        show("VM1's mean", point.mean_us);
        show("VM1's p99.9", point.p999_us);
        show(EQ5, eq5(point.omega));
        if let Some(bound_us) = holds(point) {
            show("bound that holds", bound_us);
        }
    }
    let knee = knee_of(&points);
    figure.show(LPNS, "knee", "Ω", knee);
    figure.show(LPNS, "chosen in the paper", "Ω", chosen.into());
    figure.demand(
        format!("the knee between Ω = {least} and {most}"),
        (f64::from(least)..=f64::from(most)).contains(&knee),
        format!("Ω = {knee}; the paper's choice is {chosen}"),
    );
    if drive == P5800X {
        let (service, omega, depth) = EQ5_EXAMPLE;
        let bound_us = us(published_bound(depth, omega, &service));
        let row = Row::new(EQ5, "the paper's example", BOUND, bound_us);
        figure.push(row.against(printed(EQ5_EXAMPLE_US), 0.001));
        let chosen = eq5(config.omega);
        figure.push(Row::new(EQ5, "promised", BOUND, chosen).against(printed(target_us(drive)), TOLERANCE));
    }
    let below = |bound: &dyn Fn(&Point) -> Option<f64>| {
        let is_below = |point: &&Point| bound(point).is_some_and(|bound_us| point.p999_us <= bound_us * READ_OUT);
        points.iter().filter(is_below).count()
    };
    let (kept, below_eq5) = (below(&holds), below(&|point| Some(eq5(point.omega))));
    figure.demand(
        "VM1's p99.9 below the bound that holds at every Ω",
        kept == points.len(),
        format!("at {kept} of {}; below Eq. 5 as printed at {below_eq5}", points.len()),
    );
    Ok(figure)
}

/// What Eq. 5 should have been, from what the rule enforces.
fn bound_that_holds(service: &ServiceCurve, point: &Point, interval: Nanos) -> Option<Nanos> {
    let rate_iops = published_rate(point.vm1_iops, point.omega);
    let burst = (rate_iops * interval.0 as f64 / 1e9).min(f64::from(BURST_MOST)) + 1.0;
    // The others' outstanding I/Os are limited, so more can't arrive for long than is served.
    let arrival = ArrivalCurve { rate_iops: rate_iops.min(service.rate_iops), burst };
    delay_bound(&arrival, service).ok()
}

/// Where throughput lies furthest above the chord of the sweep.
fn knee_of(points: &[Point]) -> f64 {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return f64::NAN };
    let slope = (last.noisy_gb_s - first.noisy_gb_s) / (last.omega - first.omega);
    let above = |point: &Point| point.noisy_gb_s - first.noisy_gb_s - slope * (point.omega - first.omega);
    let best = points.iter().max_by(|a, b| above(a).total_cmp(&above(b)));
    best.map_or(f64::NAN, |point| point.omega)
}

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
        let config = figures_of(P5800X);
        let point = Point { omega: 190.0, mean_us: 20.0, p999_us: 60.0, vm1_iops: 4_000.0, noisy_gb_s: 2.7 };
        // 4,000 × 190 × 10 ms is far above the 384 that can be outstanding.
        let bound = bound_that_holds(&config.service(), &point, config.interval).unwrap();
        assert_eq!(bound, Nanos(385 * 1_250 + 11_050));
        let slow = Point { omega: 1.0, ..point };
        assert_eq!(bound_that_holds(&config.service(), &slow, config.interval).unwrap(), Nanos(41 * 1_250 + 11_050));
    }
}
