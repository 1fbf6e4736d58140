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
#[derive(Debug)]
pub struct Job {
    /// Its queue's class.
    pub class: Class,
    /// Request sizes in bytes, one after another.
    pub sizes_bytes: &'static [u32],
}

/// Two jobs, and the ratio of the first one's bandwidth to the second one's.
#[derive(Debug)]
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

/// A job of each class and with these sizes; the ratios with drr, wrr and rr.
const fn scenario(
    name: &'static str,
    classes: [Class; 2],
    [a, b]: [&'static [u32]; 2],
    [drr, wrr, rr]: [Printed; 3],
) -> Scenario {
    let jobs = [Job { class: classes[0], sizes_bytes: a }, Job { class: classes[1], sizes_bytes: b }];
    Scenario { name, jobs, drr, wrr, rr }
}

/// Fig. 8: weights 32, 16, 8 (WRR) and 128k, 64k, 32k (DRR).
pub const SCENARIOS: [Scenario; 5] = {
    use Class::{High, Low, Medium};
    const TWO: [&[u32]; 2] = [&[4 << 10, 8 << 10], &[8 << 10, 16 << 10]];
    const SMALL: &[u32] = &[4 << 10];
    const LARGE: &[u32] = &[8 << 10];
    let one = printed(1.0);
    [
        scenario("1: high 4K, medium 8K", [High, Medium], [SMALL, LARGE], [printed(2.0), one, derived(0.5)]),
        scenario("2: high 4K, high 4K", [High, High], [SMALL, SMALL], [one, one, derived(1.0)]),
        scenario("3: high 4K, low 8K", [High, Low], [SMALL, LARGE], [printed(4.0), derived(2.0), derived(0.5)]),
        scenario("4: high 8K, low 4K", [High, Low], [LARGE, SMALL], [printed(4.0), derived(8.0), derived(2.0)]),
        scenario("5: high 4K+8K, high 8K+16K", [High, High], TWO, [one, derived(0.5), derived(0.5)]),
    ]
};

/// Fig. 7: the model's error against the drive, at most.
pub const MODEL_ERROR: f64 = 0.05;

/// Fig. 7: γ, commands of 32 KiB per second.
pub const FIG7_GAMMA: Printed = printed(240_000.0);
/// Fig. 7: a / p, the mean time between two completions, in µs.
pub const FIG7_A_OVER_P_US: Printed = printed(81.0);

/// Fig. 7: weights of the three classes.
pub const FIG7_WEIGHTS: (f64, f64, f64) = (4.0, 2.0, 1.0);

/// Eq. 2 with the medium class busy: the high class's share of the throughput while the low class is used to
/// `rho` of what it may use.
pub fn high_share(rho: f64) -> Printed {
    let (high, medium, low) = FIG7_WEIGHTS;
    derived(high / (high + medium + rho * low))
}
