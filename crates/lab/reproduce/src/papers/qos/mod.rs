//! QoS for NVMe SSDs: the drive's own arbitration. `qos.toml` has the words of its figures.
//!
//! The paper's drive is an emulator on a machine of its own; only ratios can be compared.
//!
//! | module | what |
//! | --- | --- |
//! | `printed` | the paper's numbers |
//! | `arbitrated` | Fig. 7 and 8: streams that go straight into the queues of the drive's model (`streams`) |
//! | `tenants` | the same with tenants under the host's policies |
//! | `rogue` | a neighbour that goes wild |
//! | `mixes` | random mixes of tenants, planned and simulated |

pub mod arbitrated;
pub mod mixes;
pub mod printed;
pub mod rogue;
mod streams;
pub mod tenants;

use io_model::QueuePriority;

/// Every tenant's disk, where nothing else is said.
const DISK_BYTES: u64 = 64 << 30;
const RATIO: &str = "bandwidth ratio A : B";
/// "Close to the expected ratio".
const TOLERANCE: f64 = 0.1;

fn class(class: printed::Class) -> QueuePriority {
    match class {
        printed::Class::High => QueuePriority::High,
        printed::Class::Medium => QueuePriority::Medium,
        printed::Class::Low => QueuePriority::Low,
    }
}

/// Steps of the low class's utilization in Fig. 7.
fn fig7_steps() -> impl Iterator<Item = f64> {
    (0..=10).map(|step| f64::from(step) / 10.0)
}

/// What the low class asks for at that utilization, of `gamma` that all get together.
fn fig7_rate(rho: f64, gamma: f64) -> f64 {
    let (high, medium, low) = printed::FIG7_WEIGHTS;
    rho * gamma * low / (high + medium + low)
}
