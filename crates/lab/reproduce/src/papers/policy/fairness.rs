//! Whether tenants without promises fare alike, where one beside them has one.

use policy::{Class, PolicyKind};
use rivals::LabKind;
use sim::fairness_index;
use sim::workload::{Fio, Workload};
use ssd_model::Profile;

use super::cases::{BEST_EFFORT, DISK_BYTES, Promised, targets};
use super::contenders::{Contender, LPNS, OURS, corrected, rival};
use super::{medium_drives, some};
use crate::papers::bench::{access, each, jain, play, tenant};
use crate::report::{Figure, Table};
use crate::runner::{Context, Error};

const TENANTS: [usize; 3] = [4, 16, 64];
const CONTENDERS: [Contender; 4] = [OURS, LPNS, corrected(PolicyKind::Fair), rival(LabKind::Mqfq)];
/// Not measured, and measured.
const SPAN_MS: (u64, u64) = (1_000, 1_000);
const DEPTH: u32 = 16;
const INDEX: &str = "fairness index of slowdowns";
/// FairNVMe's least index with up to 16 VMs.
const LEAST: f64 = 0.905;

/// What tenants of equal weight do: all read and write 4 KiB, or one half reads 4 KiB and the other writes 64 KiB.
const ALIKE: (&str, [(u32, u8); 2]) = ("alike", [(4 << 10, 50), (4 << 10, 50)]);
const UNLIKE: (&str, [(u32, u8); 2]) = ("unlike", [(4 << 10, 100), (64 << 10, 0)]);

/// FairNVMe's and Jain's index of the tenants' slowdowns.
type Indices = (f64, f64);

/// Under each policy.
fn indices(
    context: &Context<'_>,
    profile: &Profile,
    loads: [(u32, u8); 2],
    count: usize,
) -> Result<Vec<Indices>, String> {
    let load = |at: usize| {
        let (bytes, read_percent) = loads[at % 2];
        Workload::Fio(Fio { jobs: 1, iodepth: DEPTH, access: access(bytes, read_percent) })
    };
    let promised = Promised::back_to_back(4.0);
    let targets = targets(context, profile, std::slice::from_ref(&promised))?;
    let promised = tenant("promised", Class::guaranteed(Some(targets[0])), 1, DISK_BYTES, promised.workload);
    let equal = (0..count).map(|at| tenant(format!("tenant {at}"), BEST_EFFORT, 1, DISK_BYTES, load(at)));
    let tenants = [promised].into_iter().chain(equal).collect();
    let scenario = context.scenario(profile.clone(), tenants, SPAN_MS);
    let alone = |at: usize| Ok::<_, String>(play(&scenario.alone(at + 1))?.tenants[0].latency.mean_ns);
    let alone_ns = [alone(0)?, alone(1)?];
    let figures = planner::drive_figures(profile);
    let under = |contender: &Contender| {
        let report = contender.play(&scenario, &figures)?;
        let equal = report.tenants.iter().skip(1).enumerate();
        let slowdowns: Vec<f64> = equal.map(|(at, tenant)| tenant.latency.mean_ns / alone_ns[at % 2]).collect();
        Ok((fairness_index(&slowdowns), jain(&slowdowns)))
    };
    CONTENDERS.iter().map(under).collect()
}

pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = context.figure("fairness");
    let runs = some(context, each(each(medium_drives(), [ALIKE, UNLIKE]), TENANTS));
    let seen = context.all(runs, |((profile, (_, loads)), count)| indices(context, profile, *loads, *count))?;
    let mut table = Table::new(
        "Fairness index of slowdowns: smallest over largest; Jain's behind it",
        &["drive and load", "tenants"],
    );
    table.head.extend(CONTENDERS.map(Contender::name));
    let mut least_alike = f64::INFINITY;
    for (((profile, (name, loads)), count), indices) in &seen {
        let load = format!("{}, {name}", profile.name);
        let cells = indices.iter().map(|(index, jain)| format!("{index:.3}, {jain:.3}"));
        table.rows.push([load.clone(), count.to_string()].into_iter().chain(cells).collect());
        for (contender, (index, jain)) in CONTENDERS.iter().zip(indices) {
            let series = format!("{}, {load}", contender.name());
            figure.show(&series, *count as u32, INDEX, *index);
            figure.show(&series, *count as u32, "Jain's index of slowdowns", *jain);
        }
        if *loads == ALIKE.1 {
            least_alike = least_alike.min(indices[0].0);
        }
    }
    let saw = format!("{least_alike:.3} at least");
    figure.demand(format!("equal tenants that are alike: at least {LEAST}"), least_alike >= LEAST, saw);
    figure.tables.push(table);
    Ok(vec![figure])
}
