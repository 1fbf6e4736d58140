//! What the text of the VBMq paper says. Its figures have no labels at their points: only these can be compared with.

use crate::paper::{Printed, derived, printed};

/// vCPUs of the VM, and the largest number of jobs (§IV.A, §V.C).
pub const VCPUS: u16 = 20;
/// fio's iodepth in all experiments.
pub const IODEPTH: u32 = 32;

/// Fig. 7: the number of queues that gives the highest IOPS.
pub const BEST_QUEUES: u16 = 20;

/// Fig. 8: event-driven threads over polling ones: "decreased by 8 %".
pub const EVENT_OVER_POLLING: Printed = derived(0.92);

/// Fig. 9: one 4K read takes 40 µs, and 13.5 µs with polling.
pub const ONE_READ_US: [(&str, Printed); 2] = [("event-driven", printed(40.0)), ("polling", printed(13.5))];

/// Fig. 10, bare metal with 20 jobs: "arriving 3 million IOPS".
pub const NULL_IOPS: Printed = printed(3.0e6);
/// Fig. 10, 20 jobs: VBMq over Baseline.
pub const GAIN: Printed = printed(40.0);
/// Fig. 10, 20 jobs: VBMq's loss against bare metal, at most.
pub const LOSS: Printed = printed(0.32);
/// Fig. 10: with more jobs than this VBDP is "almost equal" to Baseline.
pub const EQUAL_ABOVE: u32 = 18;

/// Fig. 11: the drive's limits: random read and random write.
pub const SM1715_IOPS: [Printed; 2] = [printed(750_000.0), printed(130_000.0)];
/// Fig. 11: the number of jobs that reaches the limit.
pub const REACHED_AT: [(&str, Printed); 2] = [("bare metal", printed(8.0)), ("VBMq", printed(18.0))];
