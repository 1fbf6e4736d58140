//! What the LPNS paper prints. Latencies in µs, bandwidths in MB/s. `None`: not legible.

use crate::paper::{Printed, derived, doubtful, printed};

/// The loads of VM2 in Fig. 7a and 7b: jobs and depth.
pub const LOADS: [(&str, u32, u32); 10] = [
    ("n1d1", 1, 1),
    ("n2d1", 2, 1),
    ("n4d1", 4, 1),
    ("n4d2", 4, 2),
    ("n4d4", 4, 4),
    ("n4d8", 4, 8),
    ("n4d16", 4, 16),
    ("n4d32", 4, 32),
    ("n4d64", 4, 64),
    ("n8d32", 8, 32),
];

/// Numbers of one system over [`LOADS`].
pub type OverLoads = (&'static str, [Option<Printed>; 10]);

const fn all(values: [f64; 10]) -> [Option<Printed>; 10] {
    let mut out = [None; 10];
    let mut i = 0;
    while i < out.len() {
        out[i] = Some(printed(values[i]));
        i += 1;
    }
    out
}

/// Fig. 7a: VM2's bandwidth, 4K random read on the P5800X.
pub const VM2_READ_MB_S: [OverLoads; 4] = [
    ("LPNS", all([249.0, 480.0, 902.0, 1410.0, 2045.0, 2194.0, 2186.0, 2152.0, 2168.0, 2179.0])),
    ("MDev", all([253.0, 484.0, 902.0, 1412.0, 2053.0, 2257.0, 2311.0, 2315.0, 2317.0, 2323.0])),
    ("SPDK", all([209.0, 412.0, 764.0, 1203.0, 1796.0, 2198.0, 2290.0, 2339.0, 2361.0, 2368.0])),
    ("Virtio", all([72.8, 89.4, 287.0, 474.0, 548.0, 584.0, 577.0, 594.0, 541.0, 560.0])),
];

/// Fig. 7b: VM2's bandwidth, 4K random write on the P5800X.
pub const VM2_WRITE_MB_S: [OverLoads; 4] = [
    ("LPNS", all([216.0, 406.0, 747.0, 1175.0, 1673.0, 2064.0, 2004.0, 2002.0, 2048.0, 2088.0])),
    ("MDev", all([210.0, 402.0, 767.0, 1193.0, 1701.0, 2117.0, 2139.0, 2187.0, 2191.0, 2208.0])),
    ("SPDK", all([186.0, 357.0, 682.0, 1016.0, 1510.0, 1916.0, 2073.0, 2162.0, 2200.0, 2197.0])),
    ("Virtio", all([37.9, 108.0, 251.0, 413.0, 517.0, 512.0, 587.0, 542.0, 509.0, 441.0])),
];

/// A number as the paper prints it.
const fn p(value: f64) -> Option<Printed> {
    Some(printed(value))
}

/// A number that may have been misread.
const fn d(value: f64) -> Option<Printed> {
    Some(doubtful(value))
}

/// Fig. 7a: VM1's mean latency, 4K random read n1d1 on the P5800X.
pub const VM1_READ_US: [OverLoads; 4] = [
    ("LPNS", [p(11.86), p(12.33), p(13.25), p(13.29), None, p(22.85), p(23.14), None, None, p(21.48)]),
    ("MDev", [None, p(14.03), p(14.75), p(15.35), None, p(26.10), d(48.34), None, None, p(63.91)]),
    ("SPDK", [d(13.63), p(16.29), p(17.99), p(17.80), None, p(27.86), p(42.29), None, None, p(248.5)]),
    ("Virtio", [p(91.58), p(46.21), p(52.81), p(48.87), None, p(51.95), p(54.31), None, None, None]),
];

/// Fig. 7b: VM1's mean latency, 4K random write n1d1 on the P5800X.
pub const VM1_WRITE_US: [OverLoads; 4] = [
    ("LPNS", [None, None, None, None, None, None, p(24.55), p(24.33), p(24.49), p(23.65)]),
    ("MDev", [None, None, None, None, None, None, p(36.41), p(48.41), p(57.06), p(66.69)]),
    ("SPDK", [None, None, None, None, None, None, d(42.29), p(66.39), p(171.88), p(239.0)]),
    ("Virtio", [None, None, None, None, None, None, p(64.20), p(67.79), None, None]),
];

/// A 4K read and a 4K write alone, by drive and system (text beside Fig. 2).
pub const ALONE_US: [(&str, &str, Printed, Printed); 4] = [
    ("P5800X", "MDev", printed(11.9), printed(13.1)),
    ("P5800X", "SPDK", printed(11.9), printed(13.3)),
    ("PM1735", "MDev", printed(71.9), printed(17.6)),
    ("PM1735", "SR-IOV", printed(74.9), printed(19.9)),
];

/// Fig. 2: VM1's latency at worst, as a multiple of its latency alone.
pub const WORST_INTERFERENCE: [(&str, Printed); 3] =
    [("MDev", printed(4.7)), ("SPDK", printed(16.5)), ("SR-IOV", printed(6.1))];

/// Table 1: the IOPS of VM2, VM1's latency (derived), and the drive's share of it.
pub const TABLE1: [(f64, Printed, Printed); 3] = [
    (50_000.0, derived(11.9), printed(0.625)),
    (250_000.0, derived(22.4), printed(0.801)),
    (500_000.0, derived(63.8), printed(0.930)),
];

/// Fig. 7e: the latency that LPNS keeps beside 2 to 7 noisy VMs, by drive.
pub const BOUND_US: [(&str, f64); 2] = [("P5800X", 50.0), ("PM1735", 90.0)];

/// Fig. 7e: how many times better than MDev on the P5800X, and than SR-IOV on the PM1735, at most.
pub const BEST_GAIN: [(&str, Printed); 2] = [("MDev", printed(7.40)), ("SR-IOV", printed(18.72))];

/// Fig. 8: by how much LPNS's p99.9 and p99.99 are better than SPDK's at n8d32: reads, then writes.
pub const TAIL_GAIN: [(&str, Printed, Printed); 2] =
    [("read", printed(3.84), printed(6.70)), ("write", printed(3.73), printed(9.96))];

/// Fig. 11: LPNS's loss of throughput against MDev, as a fraction: mean and at most.
pub const LOSS: (Printed, Printed) = (printed(0.1846), printed(0.1988));

/// Loss on the PM1735, at most: 4K random write and read.
pub const PM1735_LOSS: (Printed, Printed) = (printed(0.0707), printed(0.3111));

/// Fig. 11 beside six noisy VMs, GB/s: the drive's maximum, LPNS, K2 with 32 in flight.
pub const TOTAL_GB_S: [(&str, Printed); 3] =
    [("maximum", derived(3.378)), ("LPNS", derived(2.72)), ("K2 (32)", derived(1.11))];

/// LPNS's throughput as a multiple of K2's.
pub const LPNS_OVER_K2: Printed = derived(2.45);

/// Fig. 13: the Ω chosen, and where the trade-off's knee lies, by drive. (One end for the PM1735.)
pub const OMEGA: [(&str, f64, (f64, f64)); 2] = [("P5800X", 190.0, (160.0, 240.0)), ("PM1735", 100.0, (60.0, 60.0))];

/// Eq. 5's example: R (commands per µs), L_h (µs), Ω, d and the bound (µs).
pub const EQ5_EXAMPLE: (f64, f64, f64, f64, Printed) = (0.8, 11.05, 10.0, 1.0, printed(23.55));

/// Table 3: YCSB workload, operation, percentile, MDev and LPNS in µs.
pub const YCSB_US: [(&str, &str, &str, Printed, Printed); 8] = [
    ("A", "read", "p95", printed(419.0), printed(242.0)),
    ("A", "read", "p99", printed(896.0), printed(366.0)),
    ("A", "update", "p95", printed(453.0), printed(260.0)),
    ("A", "update", "p99", printed(934.0), printed(399.0)),
    ("B", "read", "p95", printed(907.0), printed(204.0)),
    ("B", "read", "p99", printed(969.0), printed(317.0)),
    ("B", "update", "p95", printed(961.0), printed(225.0)),
    ("B", "update", "p99", printed(1060.0), printed(358.0)),
];

/// YCSB: how many times better than MDev LPNS's mean latency is, at most.
pub const YCSB_BEST_GAIN: Printed = printed(7.41);
