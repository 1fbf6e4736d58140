//! VBMq: as many queues to one virtual machine as it has CPUs, a thread for each.
//!
//! | module | what |
//! | --- | --- |
//! | `printed` | the numbers in the paper's text |
//! | `host` | what a command costs the paper's host: one table for all figures |
//! | `systems` | the systems, the drives, the VM |
//! | `fig7`, `fig8` | how many queues; events or polling, with Fig. 9 |
//! | `fig10` | the four systems on a null block device; Fig. 11 is the same on an SSD |

mod fig10;
mod fig7;
mod fig8;
mod host;
mod printed;
mod systems;

use crate::paper::Paper;
use crate::report::{Figure, Uncovered};
use crate::runner::{Context, Error, Experiment};

/// What can be run.
pub const EXPERIMENTS: &[Experiment] = &[
    experiment("Submission queues of one VM", fig7::measure),
    experiment("Events or polling", fig8::measure),
    experiment("Four systems, null block device", fig10::null),
    experiment("Four systems, SM1715", fig10::sm1715),
];

const fn experiment(title: &'static str, measure: fn(&Context<'_>) -> Result<Vec<Figure>, Error>) -> Experiment {
    Experiment { paper: Paper::Vbmq, title, measure }
}

/// What can't.
pub fn uncovered() -> Uncovered {
    let printed = [
        "of one request's time, 25 % are spent on QEMU's and KVM's side after the guest was left, more with more jobs",
        "on bare metal the number of software queues limits the throughput, not the number of hardware queues",
    ];
    Uncovered {
        paper: Paper::Vbmq,
        figure: "Where one request spends its time; software and hardware queues on bare \
                 metal (Fig. 3 and 4)"
            .to_owned(),
        why: "it needs traces of a guest's and a host's kernel, of which the simulator has the cost and not the \
              functions"
            .to_owned(),
        printed: printed.map(str::to_owned).to_vec(),
    }
}
