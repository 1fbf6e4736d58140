//! Table 2, and Fig. 14 to 16: one VM alone, up to 16 VMs, block sizes.

use sim::fairness_index;
use sim::workload::{Fio, Pattern, Workload};

use super::{CONTROL, FAIR, P3520, SHARED, scenario};
use crate::paper::printed;
use crate::papers::bench::{EVENKEEL, access, each, fio, first, grows, jain, least, list, most, run};
use crate::report::{Figure, Row, percent};
use crate::runner::{Context, Error};

/// Table 2: mean latency in µs of one VM, by case and by system. A case: its name, jobs, depth and reads in 100.
const TABLE2: [(&str, u32, u32, u8, [f64; 5]); 4] = [
    ("rand-read-n1d1", 1, 1, 100, [99.94, 209.32, 103.27, 101.39, 99.5]),
    ("rand-write-n1d1", 1, 1, 0, [14.75, 70.87, 18.48, 15.47, 15.73]),
    ("rand-read-n4d4", 4, 4, 100, [147.03, 172.54, 130.47, 121.91, 123.47]),
    ("rand-write-n4d4", 4, 4, 0, [53.66, 150.29, 53.81, 54.36, 53.73]),
];
const TOLERANCE: f64 = 0.1;

/// Table 2.
pub fn table2(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    const METRIC: &str = "mean latency (µs)";
    let mut figure = context.figure("table2");
    let systems = ["Native", "Virtio", "SPDK", "LPNS", "FairNVMe", EVENKEEL].into_iter().enumerate();
    let seen = context.all(each(TABLE2, systems), |((_, jobs, depth, reads, _), (_, system))| {
        let report = run(&scenario(context, system, P3520, vec![fio(*jobs, *depth, *reads)])?)?;
        Ok(first(&report, |tenant| tenant.latency.mean_ns / 1e3))
    })?;
    for (((case, .., print), (column, system)), mean_us) in seen {
        let print = print.get(column).copied().map(printed);
        figure.push(Row::new(system, case, METRIC, mean_us).against(print, TOLERANCE));
    }
    let added = |system: &str| {
        let over = |case: &str| figure.at(system, case, METRIC) / figure.at("Native", case, METRIC) - 1.0;
        most(TABLE2.iter().map(|(case, ..)| over(case)))
    };
    let [fair, ours] = ["FairNVMe", EVENKEEL].map(added);
    let saw = format!("{} at most; evenkeel {}", percent(fair), percent(ours));
    figure.demand("FairNVMe adds no more than 10 % to the native latency", fair <= TOLERANCE, saw);
    Ok(vec![figure])
}

/// Name, jobs, depth, reads in 100.
const LOADS: [(&str, u32, u32, u8); 6] = [
    ("rand-read-n1d1", 1, 1, 100),
    ("rand-write-n1d1", 1, 1, 0),
    ("rand-read-n4d4", 4, 4, 100),
    ("rand-write-n4d4", 4, 4, 0),
    (INTENSE, 4, 32, 100),
    ("rand-write-n4d32", 4, 32, 0),
];
const INTENSE: &str = "rand-read-n4d32";
/// Fig. 15: the least fairness index that FairNVMe keeps with up to 16 VMs.
const LEAST_FAIRNESS: f64 = 0.905;

/// Fig. 14 and 15.
pub fn scale(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    const FAIRNESS: &str = "fairness index";
    let systems = [FAIR[0], FAIR[1], EVENKEEL, CONTROL];
    let is_total = |system: &str| [FAIR[0], EVENKEEL].contains(&system);
    let loads = each(systems, LOADS).into_iter().filter(|(system, load)| is_total(system) || load.0 == INTENSE);
    let cases = each(loads, [1, 2, 4, 8, 16_u32]);
    let seen = context.all(cases, |((system, (_, jobs, depth, reads)), vms)| {
        run(&scenario(context, system, P3520, vec![fio(*jobs, *depth, *reads); *vms as usize])?)
    })?;
    let (mut total, mut fair) = (context.figure("fig14"), context.figure("fig15"));
    for (((system, (load, ..)), vms), report) in seen {
        if is_total(system) {
            total.show(&format!("{system}, {load}"), vms, "IOPS of all VMs", report.total_iops());
        }
        if load == INTENSE {
            // All run the same, so any latency alone will do.
            let slowdowns: Vec<f64> = report.tenants.iter().map(|tenant| tenant.latency.mean_ns).collect();
            let iops = || report.tenants.iter().map(|tenant| tenant.iops);
            fair.show(system, vms, FAIRNESS, fairness_index(&slowdowns));
            fair.show(system, vms, "Jain's index", jain(&slowdowns));
            fair.show(system, vms, "IOPS of the slowest VM over the fastest", least(iops()) / most(iops()));
        }
    }
    for system in FAIR {
        let [index, without] = [system, CONTROL].map(|system| least(fair.curve(system, FAIRNESS)));
        let text = format!("{system}: fairness index at least {LEAST_FAIRNESS} with 1 to 16 VMs");
        let saw = format!("at least {index:.3}, without a policy {without:.3}");
        fair.claim(text, index >= LEAST_FAIRNESS, saw, without >= LEAST_FAIRNESS);
    }
    Ok(vec![total, fair])
}

/// Block sizes in bytes.
const SIZES: [(&str, u32); 7] = [
    ("512B", 512),
    ("1K", 1 << 10),
    ("4K", 4 << 10),
    ("8K", 8 << 10),
    ("16K", 16 << 10),
    ("32K", 32 << 10),
    ("64K", 64 << 10),
];
const PATTERNS: [(&str, Pattern, u8); 2] =
    [("sequential read", Pattern::Sequential, 100), ("random write", Pattern::Random, 0)];

/// Fig. 16. "Intensive": 4 jobs of depth 32, as in the twelve cases.
pub fn blocks(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    const VMS: usize = 8;
    let mut figure = context.figure("fig16");
    for (name, pattern, reads) in PATTERNS {
        let play = |system: &str, (_, bytes): &(&str, u32), vms: usize| {
            let fio = Fio { jobs: 4, iodepth: 32, access: sim::workload::Access { pattern, ..access(*bytes, reads) } };
            run(&scenario(context, system, P3520, vec![Workload::Fio(fio); vms])?)
        };
        let native_ns =
            context.all(SIZES, |size| Ok(first(&play("Native", size, 1)?, |tenant| tenant.latency.mean_ns)))?;
        let reports = context.all(each(SHARED, SIZES), |(system, size)| play(system, size, VMS))?;
        let mean = format!("{name}: mean latency (µs)");
        for (((system, (size, _)), report), (_, native_ns)) in reports.iter().zip(native_ns.iter().cycle()) {
            let means = || report.tenants.iter().map(|tenant| tenant.latency.mean_ns);
            figure.show(system, *size, &mean, means().map(|ns| ns / 1e3).sum::<f64>() / VMS as f64);
            let slowdown = most(means().map(|ns| ns / native_ns));
            figure.show(system, *size, &format!("{name}: maximum slowdown"), slowdown);
        }
        let [ours, without] = [FAIR[0], CONTROL].map(|system| figure.curve(system, &mean));
        let saw = list(&ours[2..], |us| format!("{us:.0}")) + " µs";
        let text = format!("{name}: FairNVMe's latency grows from 4K to 64K");
        figure.claim(text, grows(&ours[2..]), saw, grows(&without[2..]));
    }
    Ok(vec![figure])
}
