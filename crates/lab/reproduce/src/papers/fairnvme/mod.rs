//! FairNVMe: fair queues by tenant state.

mod blocks;
mod cases;
mod printed;
mod scale;
mod systems;
mod table2;

use crate::paper::Paper;
use crate::papers::lpns::WAITS_FOR_ROCKSDB;
use crate::report::Uncovered;
use crate::runner::Experiment;

/// What can be run.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment { paper: Paper::FairNvme, title: "One VM alone under five systems", measure: table2::measure },
    Experiment { paper: Paper::FairNvme, title: "Twelve cases with eight VMs, P3520", measure: cases::p3520 },
    Experiment { paper: Paper::FairNvme, title: "Twelve cases with eight VMs, PM1735", measure: cases::pm1735 },
    Experiment { paper: Paper::FairNvme, title: "From 1 to 16 VMs", measure: scale::measure },
    Experiment { paper: Paper::FairNvme, title: "Block sizes", measure: blocks::measure },
];

/// What waits for the real program.
pub fn uncovered() -> [Uncovered; 2] {
    let of = |figure: &str, why: &str, printed| Uncovered {
        paper: Paper::FairNvme,
        figure: figure.to_owned(),
        why: why.to_owned(),
        printed,
    };
    let gains = printed::RIVALS.iter().zip(printed::YCSB.best);
    let gains = gains.map(|(rival, best)| {
        format!("mean latency {:.1} % lower than {rival}'s in the best case", -100.0 * best.value)
    });
    [
        of("Six VMs with YCSB (Fig. 12)", WAITS_FOR_ROCKSDB, gains.collect()),
        of(
            "A web server, a file server and two jobs of fio (Fig. 13)",
            "it waits for the real program: Filebench in guests of the daemon; here it was only the I/Os of its file \
             operations, without the guest's file system and page cache, which decide what reaches the drive",
            vec!["no numbers; FairNVMe is lowest in tail latency and highest in fairness".to_owned()],
        ),
    ]
}
