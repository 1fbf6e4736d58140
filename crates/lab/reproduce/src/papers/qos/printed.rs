//! What the paper on QoS for NVMe SSDs prints.

use crate::paper::{Printed, derived, printed};

/// A class of submission queues, as the drive's arbitration knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Weight 32, quantum 128 KiB.
    High,
    /// Weight 16, quantum 64 KiB.
    Medium,
    /// Weight 8, quantum 32 KiB.
    Low,
}

/// One job: its class and the sizes that it submits in turn.
pub struct Job {
    /// Its queue's class.
    pub class: Class,
    /// Request sizes in bytes, one after another.
    pub sizes_bytes: &'static [u32],
}

/// Two jobs, and the ratio of the first one's bandwidth to the second one's.
pub struct Scenario {
    /// In words.
    pub name: &'static str,
    /// Both.
    pub jobs: [Job; 2],
    /// With deficit round robin.
    pub drr: Printed,
    /// With weighted round robin.
    pub wrr: Printed,
    /// With the round robin that every drive has.
    pub rr: Printed,
}

const KIB: u32 = 1024;

const fn job(class: Class, sizes_bytes: &'static [u32]) -> Job {
    Job { class, sizes_bytes }
}

/// Fig. 8: weights 32, 16, 8 (WRR) and 128k, 64k, 32k (DRR).
pub const SCENARIOS: [Scenario; 5] = [
    Scenario {
        name: "1: high 4K, medium 8K",
        jobs: [job(Class::High, &[4 * KIB]), job(Class::Medium, &[8 * KIB])],
        drr: printed(2.0),
        wrr: printed(1.0),
        rr: derived(0.5),
    },
    Scenario {
        name: "2: high 4K, high 4K",
        jobs: [job(Class::High, &[4 * KIB]), job(Class::High, &[4 * KIB])],
        drr: printed(1.0),
        wrr: printed(1.0),
        rr: derived(1.0),
    },
    Scenario {
        name: "3: high 4K, low 8K",
        jobs: [job(Class::High, &[4 * KIB]), job(Class::Low, &[8 * KIB])],
        drr: printed(4.0),
        wrr: derived(2.0),
        rr: derived(0.5),
    },
    Scenario {
        name: "4: high 8K, low 4K",
        jobs: [job(Class::High, &[8 * KIB]), job(Class::Low, &[4 * KIB])],
        drr: printed(4.0),
        wrr: derived(8.0),
        rr: derived(2.0),
    },
    Scenario {
        name: "5: high 4K+8K, high 8K+16K",
        jobs: [job(Class::High, &[4 * KIB, 8 * KIB]), job(Class::High, &[8 * KIB, 16 * KIB])],
        drr: printed(1.0),
        wrr: derived(0.5),
        rr: derived(0.5),
    },
];

/// Fig. 7: the model's error against the drive, at most.
pub const MODEL_ERROR: f64 = 0.05;

/// Fig. 7: weights of the three classes.
pub const FIG7_WEIGHTS: (f64, f64, f64) = (4.0, 2.0, 1.0);

/// Eq. 2 with the medium class busy: the high class's share of the throughput while the low class is used to
/// `rho` of what it may use.
pub fn high_share(rho: f64) -> Printed {
    let (high, medium, low) = FIG7_WEIGHTS;
    derived(high / (high + medium + rho * low))
}
