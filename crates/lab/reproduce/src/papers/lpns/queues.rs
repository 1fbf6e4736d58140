//! What the pool of queues and its scheduling (§4.2) are worth where HWQs are scarce: 2 to 16 of them for 32 VQs.
//!
//! The paper has fewer HWQs than VQs in all of its experiments, and none that turns the scheduling off.

use policy::{Lending, PolicyConfig};
use rivals::LabConfig::Product;
use sim::{Layout, Scenario};

use super::{LPNS, OURS, PM1735, mix, scenario, vm1_us};
use crate::papers::bench::{each, ends, fio, mean_us, range, run};
use crate::report::Figure;
use crate::runner::{Context, Error};

const LENDINGS: [(&str, Lending); 3] = [
    ("weights and switching", Lending::Backlog),
    ("switching without weights", Lending::Turns),
    ("neither", Lending::Never),
];
/// Those that have HWQs to lend, and the default policy, which has none.
const SYSTEMS: [&str; 3] = [LPNS, OURS[0], OURS[1]];
const VM1: &str = "VM1's mean latency (µs)";
/// VM1, three light neighbours and four heavy ones.
const LIGHT_VMS: usize = 3;
const HEAVY_VMS: usize = 4;
/// How far VM1's latencies may lie apart to count as the same.
const SAME: f64 = 1.05;

/// With shallow and with deep HWQs.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    [("waqs", 32), ("waqs-deep", 1024)].into_iter().map(|(id, hwq_depth)| one(context, id, hwq_depth)).collect()
}

fn one(context: &Context<'_>, id: &'static str, hwq_depth: u32) -> Result<Figure, Error> {
    let mut figure = context.figure(id);
    let mut vms = mix(1, &fio(4, 1, 100), LIGHT_VMS, &fio(4, 1, 70));
    vms.extend(mix(0, &fio(4, 1, 100), HEAVY_VMS, &fio(4, 32, 70)));
    let lent = each(SYSTEMS, LENDINGS).into_iter().filter(|(system, (_, lending))| {
        // One way is enough where nothing is lent.
        *system != OURS[1] || *lending == Lending::Never
    });
    let seen = context.all(each(lent, [2, 4, 8, 16_u16]), |((system, (_, lending)), hwqs_shared)| {
        let mut base = scenario(context, system, PM1735, &vms, 1_000)?;
        if let Product(PolicyConfig::Lpns(config)) = &mut base.policy {
            config.lending = *lending;
        }
        run(&Scenario { layout: Layout::Mdev, hwqs_shared: *hwqs_shared, hwq_depth, ..base })
    })?;
    for (((system, (lending, _)), hwqs), report) in seen {
        let (name, hwqs) = (format!("{system}, {lending}"), u32::from(hwqs));
        let light: f64 = report.tenants.iter().skip(1).take(LIGHT_VMS).map(mean_us).sum();
        figure.show(&name, hwqs, VM1, vm1_us(&report));
        figure.show(&name, hwqs, "mean latency of the light neighbours (µs)", light / LIGHT_VMS as f64);
        figure.show(&name, hwqs, "all VMs (kIOPS)", report.total_iops() / 1e3);
    }
    for system in &SYSTEMS[..2] {
        let all = figure.seen(VM1, |name| name.starts_with(&format!("{system}, ")));
        let (low, high) = ends(&all);
        let text = format!("{system}: VM1's mean within 5 % with any number of HWQs, any scheduling");
        figure.demand(text, high <= low * SAME, range(&all, "µs"));
    }
    Ok(figure)
}
