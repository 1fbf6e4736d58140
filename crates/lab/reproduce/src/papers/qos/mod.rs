//! QoS for NVMe SSDs: the drive's own arbitration.
//!
//! The paper's drive is an emulator on a machine of its own; only ratios can be compared. Streams go straight into
//! the queues of the drive's model: hosts play no part in what arbitration does.

mod fig7;
mod fig7_tenants;
mod fig8;
mod fig8_policies;
mod mixes;

pub mod printed;
mod rogue;
mod streams;

use arbitration::{Arbitration, QuantaKib};
use io_model::{QueuePriority, WrrWeights};

use crate::paper::Paper;
use crate::report::Uncovered;
use crate::runner::Experiment;

/// What can be run.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        paper: Paper::Qos,
        title: "Deficit round robin: the paper's model and the drive",
        measure: fig7::measure,
    },
    Experiment {
        paper: Paper::Qos,
        title: "Deficit round robin among tenants: planned and simulated",
        measure: fig7_tenants::measure,
    },
    Experiment { paper: Paper::Qos, title: "Two jobs under three ways of arbitration", measure: fig8::measure },
    Experiment { paper: Paper::Qos, title: "Two jobs, arbitrated by the host", measure: fig8_policies::measure },
    Experiment { paper: Paper::Qos, title: "Arbitration and the depth of queues", measure: fig8::measure_depth },
    Experiment { paper: Paper::Qos, title: "A rogue on a drive that is booked out", measure: rogue::measure },
    Experiment { paper: Paper::Qos, title: "A rogue on a drive with room to spare", measure: rogue::measure_idle },
    Experiment { paper: Paper::Qos, title: "Random mixes of tenants: planned and simulated", measure: mixes::measure },
];

/// What can't.
pub fn uncovered() -> Uncovered {
    Uncovered {
        paper: Paper::Qos,
        figure: "Software overhead of SPDK and of the kernel's driver (Fig. 1 to 3, 6)".to_owned(),
        why: "it is measured on a host with a drive of its own, and an emulator's speed is not a drive's".to_owned(),
        printed: vec!["0.63 µs against 6.5 µs for 128 KiB; a completion takes about 260 ns".to_owned()],
    }
}

/// The classes' weights of all experiments: 32, 16 and 8 commands.
const WRR: Arbitration =
    Arbitration::WeightedRoundRobin { burst: 1, weights: WrrWeights { high: 32, medium: 16, low: 8 } };

/// The classes' quanta of all experiments: 128, 64 and 32 KiB.
const DRR: Arbitration = Arbitration::DeficitRoundRobin { quanta: QuantaKib { high: 128, medium: 64, low: 32 } };

/// What every drive does.
const RR: Arbitration = Arbitration::RoundRobin { burst: 1 };

fn class(class: printed::Class) -> QueuePriority {
    match class {
        printed::Class::High => QueuePriority::High,
        printed::Class::Medium => QueuePriority::Medium,
        printed::Class::Low => QueuePriority::Low,
    }
}

/// What the figures of this paper have in common.
const ASSUMPTIONS: [&str; 2] = [
    "Drive: the P3700 profile, reads at random addresses, one queue per job. The paper arbitrates in an emulator and \
     in a thin layer over SPDK on a P3700; here the model of the drive does it.",
    "DRR keeps a deficit for each queue, counted in bytes: a deficit for each class with round robin inside can't give \
     two jobs of one class equal bandwidth when their sizes differ (scenario 5).",
];
