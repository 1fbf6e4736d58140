//! VBMq: many queues to a virtual machine. Not repeated yet.

use crate::paper::Paper;
use crate::report::Uncovered;

/// Why not, and what the paper prints.
pub fn uncovered() -> Uncovered {
    let printed = [
        "4K random reads, depth 32, 1 to 20 jobs on 20 vCPUs, null device: about 3M IOPS on bare metal; VBMq 40 times \
         the single event loop and at most 32 % below bare metal",
        "the single event loop and virtio-blk-data-plane get slower as jobs are added",
        "one submission queue per vCPU is best; polling is 8 % faster than events",
        "time of one request: 40 µs, with VBMq 13.5 µs",
        "SM1715: its 750K read and 130K write IOPS are reached with 18 jobs (bare metal: 8)",
    ];
    Uncovered {
        paper: Paper::Vbmq,
        figure: "Many queues to one VM (Fig. 7 to 11)".to_owned(),
        why: "it needs the vhost-user-blk front end".to_owned(),
        printed: printed.map(str::to_owned).to_vec(),
    }
}
