//! Fig. 2 and Table 1: what a neighbour's writes cost without a policy.

use sim::workload::{Open, Workload};

use super::{OPERATIONS, P5800X, PM1735, TOLERANCE, VM1_MEAN, mix, scenario, vm1_us};
use crate::paper::{Printed, derived, printed};
use crate::papers::bench::{EVENKEEL, each, fio, grows, list, most, run};
use crate::report::{Figure, Row};
use crate::runner::{Context, Error};

const MS: u64 = 250;
const ALONE: &str = "alone";
/// VM2's jobs and depth, from nothing to the most of Fig. 7.
const LOADS: [(&str, u32, u32); 7] = [
    (ALONE, 0, 0),
    ("n1d1", 1, 1),
    ("n4d1", 4, 1),
    ("n4d4", 4, 4),
    ("n4d16", 4, 16),
    ("n4d32", 4, 32),
    ("n8d32", 8, 32),
];
/// A 4K read and a 4K write alone in µs, by drive and system (text beside Fig. 2); nothing is printed of ours.
const ALONE_US: [(&str, &str, Option<[f64; 2]>); 6] = [
    (P5800X, "MDev", Some([11.9, 13.1])),
    (P5800X, "SPDK", Some([11.9, 13.3])),
    (P5800X, EVENKEEL, None),
    (PM1735, "MDev", Some([71.9, 17.6])),
    (PM1735, "SR-IOV", Some([74.9, 19.9])),
    (PM1735, EVENKEEL, None),
];
/// VM1's latency at worst, as a multiple of its latency alone.
const WORST: [(&str, &str, Option<f64>); 5] = [
    ("MDev", P5800X, Some(4.7)),
    ("SPDK", P5800X, Some(16.5)),
    ("SR-IOV", PM1735, Some(6.1)),
    (EVENKEEL, P5800X, None),
    (EVENKEEL, PM1735, None),
];
const ALONE_TOLERANCE: f64 = 0.15;
const TIMES: &str = "VM1 mean latency (times its own alone)";

/// Table 1: the IOPS of VM2, and VM1's latency in µs.
const TABLE1: [(f64, Printed); 3] = [(50_000.0, derived(11.9)), (250_000.0, derived(22.4)), (500_000.0, derived(63.8))];
/// VM2's, over which its rate is spread.
const JOBS: u32 = 4;

/// Both.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    Ok(vec![fig2(context)?, table1(context)?])
}

fn fig2(context: &Context<'_>) -> Result<Figure, Error> {
    let mut figure = context.figure("fig2");
    let cases = each(each(ALONE_US, OPERATIONS), LOADS);
    let seen = context.all(cases, |(((drive, system, ..), (reads, _)), (_, jobs, depth))| {
        let vms = mix(1, &fio(1, 1, *reads), usize::from(*jobs > 0), &fio(*jobs, *depth, 0));
        run(&scenario(context, system, drive, &vms, MS)?).map(|report| vm1_us(&report))
    })?;
    let mut alone_us = f64::NAN;
    for ((((drive, system, prints), (reads, operation)), (load, ..)), us) in seen {
        let name = format!("{system} on {drive}, {operation}");
        let row = Row::new(&name, load, VM1_MEAN, us);
        if load == ALONE {
            alone_us = us;
            let print = prints.map(|[read, write]| printed(if reads > 0 { read } else { write }));
            figure.push(row.against(print, ALONE_TOLERANCE));
        } else {
            figure.push(row);
            figure.show(&name, load, TIMES, us / alone_us);
        }
    }
    for (system, drive, print) in WORST {
        let times = most(figure.seen(TIMES, |name| name.starts_with(&format!("{system} on {drive},"))));
        let row = Row::new(system, drive, "VM1 mean latency at worst (times its own alone)", times);
        figure.push(row.against(print.map(printed), TOLERANCE));
    }
    Ok(figure)
}

fn table1(context: &Context<'_>) -> Result<Figure, Error> {
    let mut figure = context.figure("table1");
    let seen = context.all(each(["MDev", EVENKEEL], TABLE1), |(system, (iops, _))| {
        let vms = mix(1, &fio(1, 1, 0), 1, &Workload::Open(Open::random_4k(JOBS, *iops, 0)));
        let report = run(&scenario(context, system, P5800X, &vms, MS)?)?;
        Ok((vm1_us(&report), report.tenants.get(1).map_or(f64::NAN, |vm2| vm2.iops)))
    })?;
    for ((system, (iops, total)), (us, got_iops)) in seen {
        let print = Some(total).filter(|_| system != EVENKEEL);
        figure.push(Row::new(system, iops, VM1_MEAN, us).against(print, TOLERANCE));
        figure.show(system, iops, "VM2 throughput (IOPS)", got_iops);
    }
    let us = figure.curve("MDev", VM1_MEAN);
    let print = TABLE1.map(|(_, total)| total.value);
    let [saw, print] = [&us[..], &print].map(|us| list(us, |us| format!("{us:.1}")) + " µs");
    let saw = format!("{saw}, printed {print}");
    figure.demand("VM1's latency grows with VM2's rate", grows(&us), saw);
    Ok(figure)
}
