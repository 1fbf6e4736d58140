//! The twelve cases (Table 3) with eight VMs: Fig. 4 to 11.

use sim::{Moments, Report, TenantReport, fairness_index};

use super::{CONTROL, FAIR, P3520, PM1735, SHARED, TOLERANCE, scenario};
use crate::paper::printed;
use crate::papers::bench::{each, fio, first, jain, most, run};
use crate::report::{Figure, Row, percent};
use crate::runner::{Context, Error};

const VMS: usize = 8;
/// Two values this close, as a fraction, are level.
const TIE: f64 = 0.02;
/// The paper claims its gains in "the majority" of the cases, for the fairness index in eight.
const CASES_WANTED: usize = 8;
const RIVALS: [&str; 3] = ["Virtio", "SPDK", "LPNS"];

/// One figure over the cases: its name on the P3520, and on the PM1735 if it has one; the metric and its unit, whether
/// more of it is better, and FairNVMe's gain in the best case, as a fraction of a rival's value, by rival.
type View = (&'static str, Option<&'static str>, &'static str, &'static str, bool, [f64; RIVALS.len()]);

/// In the order of [`Outcome`]. "Up to 3.02×" over Virtio is a factor: a change by 2.02.
const VIEWS: [View; 6] = [
    ("fig4", None, "IOPS", "", true, [2.02, 0.235, 0.312]),
    ("fig5", None, "mean latency", " (µs)", false, [-0.919, -0.221, -0.245]),
    ("fig6", None, "p99.9 latency", " (µs)", false, [-0.945, -0.612, -0.795]),
    (FAIRNESS, Some("fig7-pm1735"), "fairness index", "", true, [0.514, 0.156, 0.732]),
    (MAX_SLOWDOWN, Some("fig9"), "maximum slowdown", "", false, [-0.921, -0.592, -0.582]),
    ("fig10", Some("fig11"), "standard deviation", " (µs)", false, [-0.951, -0.737, -0.914]),
];
const MAX_SLOWDOWN: &str = "fig8";
const FAIRNESS: &str = "fig7";

/// A case that a run is split into, and which of its I/Os count.
type Part = (&'static str, fn(&TenantReport) -> Moments);
/// Reads in 100, and the cases of such a run.
const MIXES: [(u8, &[Part]); 3] = [
    (100, &[("rand-read", all_of)]),
    (0, &[("rand-write", all_of)]),
    (70, &[("rand-rw-read", |tenant| tenant.reads), ("rand-rw-write", |tenant| tenant.writes)]),
];

fn all_of(tenant: &TenantReport) -> Moments {
    let all = &tenant.latency;
    Moments { count: all.count, mean_ns: all.mean_ns, stddev_ns: all.stddev_ns }
}

/// What a case showed for one system: a number for each of [`VIEWS`], the largest slowdown against one VM alone on the
/// same system, and Jain's index of slowdowns.
type Outcome = ([f64; VIEWS.len()], f64, f64);
/// A case: its name, and what each of [`SHARED`] showed.
type Case = (String, Vec<Outcome>);

/// `runs`: all VMs together, one of them alone there, and one alone on the drive.
fn outcome([shared, alone, native]: &[Report; 3], part: fn(&TenantReport) -> Moments) -> Outcome {
    let vms: Vec<Moments> = shared.tenants.iter().map(part).collect();
    let slowdowns = |alone: &Report| -> Vec<f64> {
        let alone_ns = first(alone, |tenant| part(tenant).mean_ns);
        vms.iter().map(|vm| vm.mean_ns / alone_ns).collect()
    };
    let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / vms.len() as f64;
    let seconds = shared.duration_ns as f64 / 1e9;
    let by_view = [
        vms.iter().map(|vm| vm.count as f64 / seconds).sum(),
        mean(&mut vms.iter().map(|vm| vm.mean_ns)) / 1e3,
        mean(&mut shared.tenants.iter().map(|tenant| tenant.latency.p999_ns as f64 / 1e3)),
        fairness_index(&slowdowns(native)),
        most(slowdowns(native)),
        mean(&mut vms.iter().map(|vm| vm.stddev_ns)) / 1e3,
    ];
    (by_view, most(slowdowns(alone)), jain(&slowdowns(native)))
}

fn cases(context: &Context<'_>, drive: &str) -> Result<Vec<Case>, Error> {
    let loads = each([(1, 1), (4, 4), (4, 32)], MIXES);
    let all = context.all(each(loads, SHARED), |(((jobs, depth), (reads, _)), system)| {
        let workload = fio(*jobs, *depth, *reads);
        let shared = scenario(context, system, drive, vec![workload.clone(); VMS])?;
        let native = scenario(context, "Native", drive, vec![workload])?;
        Ok([run(&shared)?, run(&shared.alone(0))?, run(&native)?])
    })?;
    let mut cases = Vec::new();
    for by_system in all.chunks(SHARED.len()) {
        let (((jobs, depth), (_, parts)), _) = by_system[0].0;
        for (name, part) in parts {
            let outcomes = by_system.iter().map(|(_, runs)| outcome(runs, *part)).collect();
            cases.push((format!("{name}-n{jobs}d{depth}"), outcomes));
        }
    }
    Ok(cases)
}

/// Fig. 4 to 8 and 10.
pub fn p3520(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let cases = cases(context, P3520)?;
    Ok(VIEWS.iter().enumerate().map(|(at, view)| figure(context, view.0, at, &cases)).collect())
}

/// Fig. 9 and 11, and the fairness index there.
pub fn pm1735(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let cases = cases(context, PM1735)?;
    let views = VIEWS.iter().enumerate().filter_map(|(at, view)| Some((at, view.1?)));
    Ok(views.map(|(at, id)| figure(context, id, at, &cases)).collect())
}

fn figure(context: &Context<'_>, id: &'static str, at: usize, cases: &[Case]) -> Figure {
    let mut figure = context.figure(id);
    let (view, _, metric, unit, more_is_better, best) = VIEWS[at];
    let cases: Vec<&Case> = cases.iter().filter(|(name, _)| view != "fig6" || name.ends_with("n4d4")).collect();
    let values = |system: &str| -> Vec<f64> {
        let index = SHARED.iter().position(|name| *name == system).unwrap_or(SHARED.len());
        cases.iter().map(|(_, outcomes)| outcomes.get(index).map_or(f64::NAN, |(values, ..)| values[at])).collect()
    };
    let sign = if more_is_better { 1.0 } else { -1.0 };
    // How much better `ours` is than `theirs`, as a fraction of theirs; negative where it is worse.
    let gains = |ours: &str, theirs: &str| -> Vec<f64> {
        values(ours).into_iter().zip(values(theirs)).map(|(ours, theirs)| (ours / theirs - 1.0) * sign).collect()
    };
    let shown = format!("{metric}{unit}");
    for (name, outcomes) in &cases {
        for (system, (values, own, jain)) in SHARED.into_iter().zip(outcomes) {
            figure.show(system, name.as_str(), &shown, values[at]);
            if view == MAX_SLOWDOWN {
                figure.show(system, name.as_str(), "maximum slowdown against alone on the same system", *own);
            }
            if view == FAIRNESS {
                figure.show(system, name.as_str(), "Jain's index", *jain);
            }
        }
    }
    if view == MAX_SLOWDOWN {
        let worst = most(figure.seen(metric, |_| true));
        let row = Row::new("worst system", "worst case", "largest slowdown of all", worst);
        figure.push(row.against(printed(96.0), TOLERANCE));
    }
    // Of 12 cases; Fig. 6 has four.
    let (all, wanted) = (cases.len(), (CASES_WANTED * cases.len()).div_ceil(12));
    for (rival, best) in RIVALS.into_iter().zip(best) {
        let level = |system| gains(system, rival).into_iter().filter(|gain| *gain >= -TIE).count();
        for system in FAIR {
            let [change, control] = [system, CONTROL].map(|system| most(gains(system, rival)) * sign);
            let name = format!("{system} against {rival}");
            let row = Row::new(&name, "best case", &format!("change in {metric} (fraction)"), change);
            let is_published = system == FAIR[0];
            let print = printed(best);
            figure.push(if is_published { row.against(print, TOLERANCE) } else { row.beside(print) });
            let text = format!("{system}'s {metric} at least level with {rival}'s in {wanted} of {all} cases");
            let (kept, without) = (level(system), level(CONTROL));
            let [change, control, best] = [change, control, best].map(percent);
            let saw = format!("in {kept}, {change} at best, printed {best}; without a policy in {without}, {control}");
            figure.claim(text, kept >= wanted, saw, without >= wanted);
        }
    }
    figure
}
