//! NVMe for cloud VMs: passthrough, shared through the host, or through a polling daemon.

mod erase;
mod printed;
mod sharing;

use crate::paper::Paper;
use crate::report::Uncovered;
use crate::runner::Experiment;

/// What can be run.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment { paper: Paper::Cloud, title: "Three ways to give a VM a drive", measure: sharing::scaling },
    Experiment { paper: Paper::Cloud, title: "32 synchronous jobs through vhost", measure: sharing::table2 },
    Experiment { paper: Paper::Cloud, title: "Erasing a drive", measure: erase::measure },
];

/// What can't.
pub fn uncovered() -> Uncovered {
    let printed = [
        "passthrough's bandwidth is about 10 % below bare metal's",
        "qcow2 images are up to 40 % faster than namespaces with very deep queues",
        "RocksDB in up to 16 VMs: virtio-blk ahead of vhost in most cases",
    ];
    Uncovered {
        paper: Paper::Cloud,
        figure: "Passthrough against bare metal, qcow2, SPDK in the guest, RocksDB (Fig. 2 to 5, 9, 10)".to_owned(),
        why: "it needs a host's page cache, interrupt remapping and CPU load, which the simulator does not have"
            .to_owned(),
        printed: printed.map(str::to_owned).to_vec(),
    }
}
