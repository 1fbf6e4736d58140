//! Fig. 7: how many submission queues.

use super::printed::{BEST_QUEUES, VCPUS};
use super::systems::{Drive, Load, System, assumptions, grows, list, run};
use crate::paper::Paper;
use crate::report::{Figure, Plot, Row};
use crate::runner::{Context, Error};

const QUEUES: [u16; 13] = [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24];
const IOPS: &str = "4K random read (IOPS)";
/// "No visible performance improvement".
const SLACK: f64 = 0.01;

/// The figure.
pub fn measure(context: &Context<'_>) -> Result<Vec<Figure>, Error> {
    let mut figure = Figure::new(Paper::Vbmq, "fig7", "IOPS over submission queues, null block device");
    figure.shows = format!(
        "{VCPUS} jobs in the VM; its vCPUs share so many queues, each with a thread of its own. Event-driven threads, \
         which the paper's text does not speak of here, are shown beside."
    );
    figure.goal = "IOPS grow with every queue up to one for each vCPU, and not beyond".into();
    figure.assumptions = assumptions();
    let systems = [System::Polling as fn(u16) -> System, System::Event];
    let cases: Vec<System> = systems.iter().flat_map(|system| QUEUES.map(system)).collect();
    let name = |system: &System| format!("{system:?} queues");
    let seen = context.all(&cases, name, |system| run(context, *system, Drive::Null, Load::read(VCPUS.into())))?;
    for (at, (system, (iops, _))) in cases.iter().zip(&seen).enumerate() {
        figure.push(Row::new(system.name(), u32::from(QUEUES[at % QUEUES.len()]), IOPS, *iops));
    }
    let polling: Vec<f64> = seen.iter().take(QUEUES.len()).map(|(iops, _)| *iops).collect();
    let best = QUEUES.iter().position(|queues| *queues == BEST_QUEUES).unwrap_or(QUEUES.len() - 1);
    let (up_to, beyond) = polling.split_at(best + 1);
    let kiops = |values: &[f64]| list(&values.iter().map(|iops| iops / 1e3).collect::<Vec<_>>());
    let text = format!("IOPS grow with the queues, 1 to {BEST_QUEUES}");
    figure.demand(text, grows(up_to, 0.0), format!("{}K", kiops(up_to)));
    let most = up_to.iter().copied().fold(f64::NAN, f64::max);
    figure.demand(
        format!("no gain beyond {BEST_QUEUES} queues"),
        beyond.iter().all(|iops| *iops <= most * (1.0 + SLACK)),
        format!("{}K after {}K", kiops(beyond), kiops(&[most])),
    );
    figure.plots.push(Plot::lines(IOPS, "submission queues"));
    figure.deviation = Some(
        "The text says only that the curve grows and where it is highest. Ours has most of its height with 8 queues: \
         from there on the cores are all busy, and a queue that two vCPUs share costs them their cache lines and a \
         lock, no more. Event-driven threads are best off with half as many queues as vCPUs here, because two vCPUs \
         keep one thread awake."
            .into(),
    );
    Ok(vec![figure])
}
