//! What the pool of queues and its scheduling (§4.2) are worth where HWQs are scarce: 2 to 16 of them for 32 VQs.
//!
//! The paper has fewer HWQs than VQs in all of its experiments, and none that turns the scheduling off.

use io_model::Nanos;
use policy::{Lending, LpnsConfig, PolicyConfig, Variant};
use sim::{Layout, Scenario};

use super::compare::{ends, range};
use super::systems::{Drive, System, Vm, assumptions, fio, guaranteed, mean_us, noisy, run, scenario, vm1_us};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const DRIVE: Drive = Drive::Pm1735;
const DURATION: Nanos = Nanos::from_millis(1_000);
const HWQS: [u16; 4] = [2, 4, 8, 16];
const SYSTEMS: [(System, Variant); 2] = [(System::Lpns, Variant::Published), (System::Ours, Variant::Corrected)];
const LENDINGS: [(&str, Lending); 3] = [
    ("weights and switching", Lending::Backlog),
    ("switching without weights", Lending::Turns),
    ("neither", Lending::Never),
];
const VM1: &str = "VM1's mean latency (µs)";
const LIGHT: &str = "mean latency of the light neighbours (µs)";
const TOTAL: &str = "all VMs (kIOPS)";
/// VM1, three light neighbours and four heavy ones.
const LIGHT_VMS: usize = 3;
const HEAVY_VMS: usize = 4;
/// How far VM1's latencies may lie apart to count as the same.
const SAME: f64 = 1.05;

/// Commands that an HWQ holds.
const DEPTHS: [(&str, &str, u32); 2] = [
    ("waqs", "Queue scheduling where HWQs are scarce and hold 32 commands", 32),
    ("waqs-deep", "Queue scheduling where HWQs are scarce and hold 1024 commands", 1024),
];

/// The policy's variant, how it lends exclusive HWQs, and how many HWQs there are.
type Case = ((System, Variant), (&'static str, Lending), u16);

/// VM1 that is promised a latency, beside those that keep one and those that keep 32 in flight in each of four queues.
fn vms() -> Vec<Vm> {
    let light = std::iter::repeat_n(noisy(fio(4, 1, 70)), LIGHT_VMS);
    let heavy = std::iter::repeat_n(noisy(fio(4, 32, 70)), HEAVY_VMS);
    std::iter::once(guaranteed(fio(4, 1, 100))).chain(light).chain(heavy).collect()
}

fn series(((system, _), (lending, _), _): &Case) -> String {
    format!("{}, {lending}", system.name())
}

/// With deep and with shallow HWQs.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    DEPTHS.iter().map(|(id, title, depth)| one(context, id, title, *depth)).collect()
}

fn one(context: &Context<'_>, id: &'static str, title: &'static str, hwq_depth: u32) -> Result<Figure, Error> {
    let mut figure = Figure::new(Paper::Lpns, id, title);
    figure.shows =
        "VM1 reads with one command in flight in each of 4 queues; 3 VMs read and write (7:3) so, 4 more at 32 \
                    in flight. All 32 VQs share one pool of 2 to 16 HWQs, half of them exclusive."
            .into();
    figure.goal = "What VM1 gets does not depend on how many HWQs there are and who has them".into();
    figure.assumptions = assumptions(DRIVE);
    figure.assume("One poller for all, so that all VQs share one pool. The paper has no such figure.");
    figure.assume("Without switching exclusive HWQs stay with the VQs that came first: VM1's, then the light VMs'.");
    let cases: Vec<Case> = SYSTEMS
        .into_iter()
        .flat_map(|system| LENDINGS.into_iter().map(move |lending| (system, lending)))
        .flat_map(|(system, lending)| HWQS.into_iter().map(move |hwqs| (system, lending, hwqs)))
        .collect();
    let seen = context.all(
        &cases,
        |case| format!("{}, {} HWQs", series(case), case.2),
        |((system, variant), (_, lending), hwqs)| {
            let config = LpnsConfig { variant: *variant, lending: *lending, ..DRIVE.lpns() };
            let base = scenario(context, *system, DRIVE, &vms(), DURATION);
            let policy = PolicyConfig::Lpns(config).into();
            run(&Scenario { policy, layout: Layout::Mdev, hwqs_shared: *hwqs, hwq_depth, ..base })
        },
    )?;
    for (case, report) in cases.iter().zip(&seen) {
        let (name, hwqs) = (series(case), u32::from(case.2));
        let light: f64 = report.tenants.iter().skip(1).take(LIGHT_VMS).map(mean_us).sum();
        figure.push(Row::new(&name, hwqs, VM1, vm1_us(report)));
        figure.push(Row::new(&name, hwqs, LIGHT, light / LIGHT_VMS as f64));
        figure.push(Row::new(&name, hwqs, TOTAL, report.total_iops() / 1e3));
    }
    for (system, _) in SYSTEMS {
        let prefix = format!("{}, ", system.name());
        let of_system = figure.rows.iter().filter(|row| row.metric == VM1 && row.series.starts_with(&prefix));
        let all: Vec<f64> = of_system.map(|row| row.ours).collect();
        let (low, high) = ends(all.iter().copied());
        figure.demand(
            format!("{}: VM1's mean within 5 % with any number of HWQs, any scheduling", system.name()),
            high <= low * SAME,
            range(all, "µs"),
        );
    }
    figure.plots.extend([VM1, LIGHT, TOTAL].map(|metric| Plot::lines(metric, "HWQs").log_x()));
    figure.deviation = Some(WHY.to_owned());
    Ok(figure)
}

const WHY: &str = "A command stays in its VQ until the policy lets it go, so an HWQ is never longer than the policy \
    allows, and who shares one makes no difference to the drive: with the corrected policy queue scheduling is worth \
    nothing here. The published rule lets more go than the drive serves; then it is the HWQs' room that throttles (2 \
    and 4 of 32 commands), and giving VQs with a long backlog HWQs of their own only adds to what VM1 waits behind.";
