//! What the FairNVMe paper prints. Its figures show most numbers as bars without labels: only its tables and
//! the gains in its text can be compared with.

use crate::paper::{Printed, printed};

/// Table 2: mean latency in µs of one VM, by case: native, Virtio, SPDK, LPNS, FairNVMe.
pub const TABLE2_SYSTEMS: [&str; 5] = ["Native", "Virtio", "SPDK", "LPNS", "FairNVMe"];

/// Table 2's rows: case, jobs, depth, whether it writes, and a mean per system.
pub const TABLE2: [(&str, u32, u32, bool, [f64; 5]); 4] = [
    ("rand-read-n1d1", 1, 1, false, [99.94, 209.32, 103.27, 101.39, 99.5]),
    ("rand-write-n1d1", 1, 1, true, [14.75, 70.87, 18.48, 15.47, 15.73]),
    ("rand-read-n4d4", 4, 4, false, [147.03, 172.54, 130.47, 121.91, 123.47]),
    ("rand-write-n4d4", 4, 4, true, [53.66, 150.29, 53.81, 54.36, 53.73]),
];

/// What FairNVMe gains at most against Virtio, SPDK and LPNS.
pub struct Gains {
    /// What is compared.
    pub metric: &'static str,
    /// Whether more of it is better.
    pub more_is_better: bool,
    /// The best case's change as a fraction of the rival's value, by rival in [`RIVALS`]' order.
    pub best: [Printed; 3],
}

/// The systems that FairNVMe is compared with.
pub const RIVALS: [&str; 3] = ["Virtio", "SPDK", "LPNS"];

const fn gains(metric: &'static str, more_is_better: bool, best: [f64; 3]) -> Gains {
    Gains { metric, more_is_better, best: [printed(best[0]), printed(best[1]), printed(best[2])] }
}

/// Fig. 4: total IOPS. "Up to 3.02×" over Virtio is read as three times as many again.
pub const IOPS: Gains = gains("IOPS", true, [3.02, 0.235, 0.312]);
/// Fig. 5: mean latency.
pub const MEAN: Gains = gains("mean latency", false, [-0.919, -0.221, -0.245]);
/// Fig. 6: tail latency.
pub const TAIL: Gains = gains("p99.9 latency", false, [-0.945, -0.612, -0.795]);
/// Fig. 7: fairness index.
pub const FAIRNESS: Gains = gains("fairness index", true, [0.514, 0.156, 0.732]);
/// Fig. 8 and 9: maximum slowdown.
pub const MAX_SLOWDOWN: Gains = gains("maximum slowdown", false, [-0.921, -0.592, -0.582]);
/// Fig. 10 and 11: standard deviation of the latency.
pub const STDDEV: Gains = gains("standard deviation", false, [-0.951, -0.737, -0.914]);
/// Fig. 12: YCSB mean latency.
pub const YCSB: Gains = gains("mean latency", false, [-0.610, -0.514, -0.730]);

/// The worst slowdown of any system in any case.
pub const WORST_SLOWDOWN: Printed = printed(96.0);

/// Fig. 15: the least fairness index that FairNVMe keeps with up to 16 VMs.
pub const LEAST_FAIRNESS_16: Printed = printed(0.905);
