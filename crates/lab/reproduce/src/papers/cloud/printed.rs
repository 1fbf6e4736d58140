//! What the paper on NVMe for cloud VMs prints.

use crate::paper::{Printed, printed};

/// Table 2: MiB/s of 32 jobs (psync) through SPDK's vhost-user-nvme, -scsi and -blk: case, share of reads, rates.
pub const TABLE2: [(&str, f64, [Printed; 3]); 3] = [
    ("read", 1.0, [printed(764.0), printed(963.0), printed(940.0)]),
    ("write", 0.0, [printed(405.0), printed(421.0), printed(415.0)]),
    ("mixed", 0.5, [printed(294.0), printed(302.0), printed(280.0)]),
];

/// virtio-blk on a namespace: its share of the drive's peak at low to medium concurrency, at least.
pub const NAMESPACE_SHARE: Printed = printed(0.60);

/// A three-pass erase of 1 TB, minutes.
pub const ERASE_3_PASS_MINUTES: Printed = printed(40.0);

/// The drive's sheet (PM1725): sequential read and write, MB/s.
pub const SHEET_MB_S: (f64, f64) = (6200.0, 2600.0);
