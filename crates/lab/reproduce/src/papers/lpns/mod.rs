//! LPNS: a promised latency beside noisy neighbours.
//!
//! | module | what |
//! | --- | --- |
//! | `printed` | the paper's numbers |
//! | `systems` | the systems, the drives, VMs |
//! | `compare` | cells that agree with print, reasons for those that don't |
//! | `fig7ab`, `fig7cd`, `fig7e`, `fig8` | fio in the promised VM |
//! | `fig2` | what happens without a policy; with Table 1 |
//! | `trace`, `fig9`, `fig10` | the web server's stand-in; `fig10` also draws Fig. 11 |
//! | `fig13` | the Ω sweep and the bounds |
//! | `queues` | the queue pool and its scheduling, switched off |
//!
//! Not repeated: Fig. 1 and 14 (the interference of Fig. 7 over time), Fig. 5 and 6, whose numbers are not legible, and
//! the shares of Table 1.

mod compare;
mod fig10;
mod fig13;
mod fig2;
mod fig7ab;
mod fig7cd;
mod fig7e;
mod fig8;
mod fig9;
mod printed;
mod queues;
mod systems;
mod trace;

use crate::paper::Paper;
use crate::report::{Figure, Uncovered};
use crate::runner::{Context, Error, Experiment};

/// What can be run.
pub const EXPERIMENTS: &[Experiment] = &[
    experiment("What a neighbour costs without a policy", fig2::measure),
    experiment("One neighbour, P5800X", fig7ab::measure),
    experiment("One neighbour, PM1735", fig7cd::measure),
    experiment("Two to seven neighbours", fig7e::measure),
    experiment("Tails beside one heavy neighbour", fig8::measure),
    experiment("A web server beside three writers, PM1735", fig9::measure),
    experiment("A web server beside one to six writers, P5800X", fig10::measure),
    experiment("The choice of Ω", fig13::measure),
    experiment("Queue scheduling where HWQs are scarce", queues::measure),
];

/// What waits for the real program.
pub fn uncovered() -> [Uncovered; 2] {
    let table3 = printed::YCSB_US.map(|(core, operation, percentile, mdev, lpns)| {
        let (mdev, lpns) = (mdev.value, lpns.value);
        format!("{percentile} of {core}'s {operation}: {mdev} µs with MDev, {lpns} µs with LPNS")
    });
    let best = printed::YCSB_BEST_GAIN.value;
    let of = |figure: &str, printed| Uncovered {
        paper: Paper::Lpns,
        figure: figure.to_owned(),
        why: WAITS_FOR_ROCKSDB.to_owned(),
        printed,
    };
    [
        of(
            "YCSB on RocksDB beside three neighbours (Fig. 12)",
            vec![format!("LPNS's mean latency is up to {best} times better than MDev's")],
        ),
        of("Tails of the same (Table 3)", table3.to_vec()),
    ]
}

/// Why a figure of YCSB's is not repeated here.
pub const WAITS_FOR_ROCKSDB: &str = "it waits for the real program: RocksDB with YCSB in guests of the daemon; a model \
    of the store in the simulator was off by a multiple, so it said nothing of a policy";

const fn experiment(title: &'static str, measure: fn(&Context<'_>) -> Result<Vec<Figure>, Error>) -> Experiment {
    Experiment { paper: Paper::Lpns, title, measure }
}
