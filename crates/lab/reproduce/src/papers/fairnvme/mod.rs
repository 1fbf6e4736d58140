//! FairNVMe: fair queues by tenant state.

mod blocks;
mod cases;
mod mixed;
mod printed;
mod scale;
mod systems;
mod table2;

use crate::paper::Paper;
use crate::runner::Experiment;

/// What can be run.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment { paper: Paper::FairNvme, title: "One VM alone under five systems", measure: table2::measure },
    Experiment { paper: Paper::FairNvme, title: "Twelve cases with eight VMs, P3520", measure: cases::p3520 },
    Experiment { paper: Paper::FairNvme, title: "Twelve cases with eight VMs, PM1735", measure: cases::pm1735 },
    Experiment { paper: Paper::FairNvme, title: "Six VMs with YCSB", measure: mixed::ycsb },
    Experiment { paper: Paper::FairNvme, title: "Four VMs that differ", measure: mixed::extreme },
    Experiment { paper: Paper::FairNvme, title: "From 1 to 16 VMs", measure: scale::measure },
    Experiment { paper: Paper::FairNvme, title: "Block sizes", measure: blocks::measure },
];
