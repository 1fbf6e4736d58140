//! Fig. 7 and 8: a promised VM beside one to seven neighbours, fio in all.

use super::{
    CONTROL, KEEPERS, LOSS_SLACK, LPNS, OPERATIONS, OURS, P5800X, PM1735, TOLERANCE, VM1_MEAN, mb_s_from, mix,
    scenario, target_us, vm1_us,
};
use crate::paper::{Mark, Printed, doubtful, printed};
use crate::papers::bench::{each, ends, fio, first, most, range, run};
use crate::report::{Figure, Row};
use crate::runner::{Context, Error};

/// VM2's loads in Fig. 7a to 7d: jobs and depth.
const LOADS: [(&str, u32, u32); 10] = [
    ("n1d1", 1, 1),
    ("n2d1", 2, 1),
    ("n4d1", 4, 1),
    ("n4d2", 4, 2),
    ("n4d4", 4, 4),
    ("n4d8", 4, 8),
    ("n4d16", 4, 16),
    ("n4d32", 4, 32),
    ("n4d64", 4, 64),
    ("n8d32", 8, 32),
];
const BANDWIDTH: &str = "VM2 bandwidth (MB/s)";

/// Not legible.
const X_: f64 = f64::NAN;
/// A system's numbers over [`LOADS`]; below 0 where they may have been misread.
type OverLoads = [f64; LOADS.len()];
/// The systems of Fig. 7a and 7b, with tolerances of VM1's latency and VM2's bandwidth. Nothing is printed of the last
/// ones, ours and the control.
const SYSTEMS: [(&str, [f64; 2]); 7] = [
    (LPNS, [0.15, 0.10]),
    ("MDev", [0.15, 0.10]),
    ("SPDK", [TOLERANCE; 2]),
    ("Virtio", [TOLERANCE; 2]),
    (OURS[0], [TOLERANCE; 2]),
    (OURS[1], [TOLERANCE; 2]),
    (CONTROL, [TOLERANCE; 2]),
];
/// VM1's mean latency in µs by system, with reads and with writes.
const VM1_US: [[OverLoads; 4]; 2] = [
    [
        [11.86, 12.33, 13.25, 13.29, X_, 22.85, 23.14, X_, X_, 21.48],
        [X_, 14.03, 14.75, 15.35, X_, 26.10, -48.34, X_, X_, 63.91],
        [-13.63, 16.29, 17.99, 17.80, X_, 27.86, 42.29, X_, X_, 248.5],
        [91.58, 46.21, 52.81, 48.87, X_, 51.95, 54.31, X_, X_, X_],
    ],
    [
        [X_, X_, X_, X_, X_, X_, 24.55, 24.33, 24.49, 23.65],
        [X_, X_, X_, X_, X_, X_, 36.41, 48.41, 57.06, 66.69],
        [X_, X_, X_, X_, X_, X_, -42.29, 66.39, 171.88, 239.0],
        [X_, X_, X_, X_, X_, X_, 64.20, 67.79, X_, X_],
    ],
];
/// VM2's bandwidth in MB/s.
const VM2_MB_S: [[OverLoads; 4]; 2] = [
    [
        [249.0, 480.0, 902.0, 1410.0, 2045.0, 2194.0, 2186.0, 2152.0, 2168.0, 2179.0],
        [253.0, 484.0, 902.0, 1412.0, 2053.0, 2257.0, 2311.0, 2315.0, 2317.0, 2323.0],
        [209.0, 412.0, 764.0, 1203.0, 1796.0, 2198.0, 2290.0, 2339.0, 2361.0, 2368.0],
        [72.8, 89.4, 287.0, 474.0, 548.0, 584.0, 577.0, 594.0, 541.0, 560.0],
    ],
    [
        [216.0, 406.0, 747.0, 1175.0, 1673.0, 2064.0, 2004.0, 2002.0, 2048.0, 2088.0],
        [210.0, 402.0, 767.0, 1193.0, 1701.0, 2117.0, 2139.0, 2187.0, 2191.0, 2208.0],
        [186.0, 357.0, 682.0, 1016.0, 1510.0, 1916.0, 2073.0, 2162.0, 2200.0, 2197.0],
        [37.9, 108.0, 251.0, 413.0, 517.0, 512.0, 587.0, 542.0, 509.0, 441.0],
    ],
];

fn print(table: &[OverLoads], system: usize, load: usize) -> Option<Printed> {
    let value = table.get(system).map(|values| values[load]).filter(|value| !value.is_nan())?;
    Some(if value < 0.0 { doubtful(-value) } else { printed(value) })
}

/// A load's place and a system, then VM1's mean latency (µs) and VM2's bandwidth (MB/s).
type Beside = ((usize, &'static str), (f64, f64));

/// VM1 with one 4K I/O outstanding beside VM2 with each of the loads, under each system.
fn over_loads(
    context: &Context<'_>,
    drive: &str,
    systems: impl IntoIterator<Item = &'static str> + Clone,
    reads: u8,
) -> Result<Vec<Beside>, Error> {
    context.all(each(0..LOADS.len(), systems), |(load, system)| {
        let (_, jobs, depth) = LOADS[*load];
        let vms = mix(1, &fio(1, 1, reads), 1, &fio(jobs, depth, reads));
        run(&scenario(context, system, drive, &vms, 250)?).map(|report| (vm1_us(&report), mb_s_from(&report, 1)))
    })
}

/// Fig. 7a and 7b.
pub fn one_p5800x(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    [("fig7a", 0, 100), ("fig7b", 1, 0)].into_iter().map(|(id, half, reads)| fig7ab(context, id, half, reads)).collect()
}

fn fig7ab(context: &Context<'_>, id: &'static str, half: usize, reads: u8) -> Result<Figure, Error> {
    let mut figure = context.figure(id);
    for ((load, system), (us, mb_s)) in over_loads(context, P5800X, SYSTEMS.map(|(system, _)| system), reads)? {
        let at = SYSTEMS.iter().position(|(name, _)| *name == system).unwrap_or_default();
        let numbers = [(VM1_MEAN, us, &VM1_US), (BANDWIDTH, mb_s, &VM2_MB_S)];
        for ((metric, ours, prints), tolerance) in numbers.into_iter().zip(SYSTEMS[at].1) {
            let row = Row::new(system, LOADS[load].0, metric, ours);
            figure.push(row.against(print(&prints[half], at, load), tolerance));
        }
    }
    let (mut compared, mut broken) = (0, Vec::new());
    for (load, (x, ..)) in LOADS.iter().enumerate().skip(1) {
        let order = printed_order(half, load);
        if order.len() > 1 {
            compared += 1;
            broken.extend(Some(*x).filter(|x| !figure.is_ordered(VM1_MEAN, *x, &order, 0.02)));
        }
    }
    let kept = compared - broken.len();
    let not = if broken.is_empty() { String::new() } else { format!(", not at {}", broken.join(", ")) };
    let saw = format!("{kept} of {compared} loads{not}");
    figure.demand("Systems in the printed order of VM1's mean", broken.is_empty(), saw);
    Ok(figure)
}

/// The systems whose latency is legible there, fastest first.
fn printed_order(half: usize, load: usize) -> Vec<&'static str> {
    let legible = |(at, (name, _)): (usize, &(&'static str, _))| match print(&VM1_US[half], at, load) {
        Some(Printed { value, mark }) if mark != Mark::Doubtful => Some((value, *name)),
        _ => None,
    };
    let mut order: Vec<(f64, &'static str)> = SYSTEMS.iter().enumerate().filter_map(legible).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    order.into_iter().map(|(_, name)| name).collect()
}

/// Fig. 7c and 7d, with the loss on this drive, at most.
pub fn one_pm1735(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    [("fig7c", 100, 0.3111), ("fig7d", 0, 0.0707)]
        .into_iter()
        .map(|(id, reads, loss)| fig7cd(context, id, reads, loss))
        .collect()
}

fn fig7cd(context: &Context<'_>, id: &'static str, reads: u8, most_loss: f64) -> Result<Figure, Error> {
    /// Printed in the text, over both figures.
    const BEST_GAIN: f64 = 3.27;
    const RIVALS: [&str; 2] = ["MDev", "SR-IOV"];
    let mut figure = context.figure(id);
    let systems = [LPNS, "MDev", "SR-IOV", OURS[0], OURS[1], CONTROL];
    for ((load, system), (us, mb_s)) in over_loads(context, PM1735, systems, reads)? {
        figure.show(system, LOADS[load].0, VM1_MEAN, us);
        figure.show(system, LOADS[load].0, BANDWIDTH, mb_s);
    }
    let gain = most(RIVALS.into_iter().flat_map(|rival| times(&figure, rival, LPNS, VM1_MEAN)));
    let loss = |system| most(times(&figure, system, "MDev", BANDWIDTH).into_iter().map(|share| 1.0 - share));
    let (loss, without) = (loss(LPNS), loss(CONTROL));
    let ordered = |system| {
        let is_first =
            |load: &str| RIVALS.iter().all(|rival| figure.is_ordered(VM1_MEAN, load, &[system, rival], 0.05));
        LOADS.iter().filter(|(load, ..)| is_first(load)).count()
    };
    let (kept, all) = (ordered(LPNS), LOADS.len());
    let without_policy = ordered(CONTROL) == all;
    let row = Row::new(LPNS, "largest", "VM2's largest loss under LPNS (fraction)", loss);
    figure.push(row.against(printed(most_loss), TOLERANCE));
    let row = Row::new(LPNS, "largest", "largest gain over MDev and SR-IOV in VM1's mean (times)", gain);
    figure.push(row.against(printed(BEST_GAIN), TOLERANCE));
    let saw = format!("{kept} of {all} loads; up to {gain:.2} times better, printed {BEST_GAIN}");
    figure.claim("LPNS's VM1 no slower than MDev's and SR-IOV's at any load", kept == all, saw, without_policy);
    let allowed = most_loss + LOSS_SLACK;
    figure.claim(
        format!("VM2 loses at most {:.1} % against MDev", allowed * 100.0),
        loss <= allowed,
        format!("{:.1} %, printed {:.1} %", loss * 100.0, most_loss * 100.0),
        without <= allowed,
    );
    Ok(figure)
}

/// One series over another one.
fn times(figure: &Figure, upper: &str, lower: &str, metric: &str) -> Vec<f64> {
    figure
        .curve(upper, metric)
        .into_iter()
        .zip(figure.curve(lower, metric))
        .map(|(upper, lower)| upper / lower)
        .collect()
}

/// Fig. 7e: by drive the third system, which the gain on the PM1735 is relative to, and the printed gain.
pub fn more(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    [("fig7e-p5800x", P5800X, "SPDK", "MDev", 7.40), ("fig7e-pm1735", PM1735, "SR-IOV", "SR-IOV", 18.72)]
        .into_iter()
        .map(|(id, drive, third, rival, gain)| fig7e(context, id, drive, third, (rival, gain)))
        .collect()
}

fn fig7e(
    context: &Context<'_>,
    id: &'static str,
    drive: &str,
    third: &'static str,
    (rival, best): (&str, f64),
) -> Result<Figure, Error> {
    let mut figure = context.figure(id);
    let metric = |operation: &str| format!("VM1 mean {operation} latency (µs)");
    let cases = each(each(OPERATIONS, 2..=7_u32), [LPNS, "MDev", third, OURS[0], OURS[1], CONTROL]);
    let seen = context.all(cases, |(((reads, _), neighbours), system)| {
        let vms = mix(1, &fio(1, 1, *reads), *neighbours as usize, &fio(4, 32, *reads));
        run(&scenario(context, system, drive, &vms, 150)?).map(|report| vm1_us(&report))
    })?;
    for ((((_, operation), neighbours), system), us) in seen {
        figure.show(system, neighbours, &metric(operation), us);
    }
    let bound_us = target_us(drive);
    for (system, (_, operation)) in each(KEEPERS, OPERATIONS) {
        let [all, without] = [system, CONTROL].map(|system| figure.curve(system, &metric(operation)));
        let text = format!("{system}: VM1's mean {operation} ≤ {bound_us} µs beside 2 to 7 neighbours");
        let saw = format!("{}, without a policy {}", range(&all, "µs"), range(&without, "µs"));
        figure.claim(text, ends(&all).1 <= bound_us, saw, ends(&without).1 <= bound_us);
    }
    for system in KEEPERS {
        let gains = OPERATIONS.iter().flat_map(|(_, operation)| times(&figure, rival, system, &metric(operation)));
        let row = Row::new(system, format!("over {rival}"), "largest gain in VM1's mean (times)", most(gains));
        let print = printed(best);
        figure.push(if system == LPNS { row.against(print, TOLERANCE) } else { row.beside(print) });
    }
    Ok(figure)
}

/// Fig. 8: by how much LPNS's p99.9 and p99.99 are better than SPDK's at n8d32.
const TAIL_GAIN: [(&str, [f64; 2]); 2] = [("read", [3.84, 6.70]), ("write", [3.73, 9.96])];

/// Fig. 8. VM1 does 4,000 I/Os a second or more: some ten thousand, so that a p99.99 is the slowest of them.
pub fn tails(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    const TAILS: [&str; 2] = ["p99.9", "p99.99"];
    let mut figure = context.figure("fig8");
    let metric = |tail: &str| format!("VM1 {tail} latency (µs)");
    let seen =
        context.all(each(OPERATIONS, ["SPDK", "MDev", LPNS, OURS[0], OURS[1], CONTROL]), |((reads, _), system)| {
            let vms = mix(1, &fio(1, 1, *reads), 1, &fio(8, 32, *reads));
            let report = run(&scenario(context, system, P5800X, &vms, 2_000)?)?;
            Ok([
                first(&report, |vm1| vm1.latency.p999_ns as f64 / 1e3),
                first(&report, |vm1| vm1.latency.p9999_ns as f64 / 1e3),
            ])
        })?;
    for (((_, operation), system), us) in seen {
        TAILS.iter().zip(us).for_each(|(tail, us)| figure.show(system, operation, &metric(tail), us));
    }
    for ((operation, gains), at) in each(TAIL_GAIN, 0..TAILS.len()) {
        let (tail, print) = (TAILS[at], gains[at]);
        let over = |figure: &Figure, system| {
            figure.at("SPDK", operation, &metric(tail)) / figure.at(system, operation, &metric(tail))
        };
        let name = format!("{tail}: SPDK's over this system's (times)");
        let [gain, without] = [LPNS, CONTROL].map(|system| over(&figure, system));
        figure.push(Row::new(LPNS, operation, &name, gain).against(printed(print), TOLERANCE));
        for system in OURS {
            figure.show(system, operation, &name, over(&figure, system));
        }
        figure.claim(
            format!("LPNS's {operation} {tail} better than SPDK's"),
            gain > 1.0,
            format!("{gain:.2} times, printed {print:.2}"),
            without > 1.0,
        );
    }
    Ok(vec![figure])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_order_leaves_out_what_is_not_legible() {
        assert_eq!(printed_order(0, 6), ["LPNS", "SPDK", "Virtio"]);
        assert_eq!(printed_order(0, 4), Vec::<&str>::new());
        assert_eq!(printed_order(1, 7), ["LPNS", "MDev", "SPDK", "Virtio"]);
    }
}
