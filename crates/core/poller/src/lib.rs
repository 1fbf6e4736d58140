//! One poll iteration, and the probe that measures it.
//!
//! A [`Poller`] owns its tenants' VQs (through [`io_model::Source`]) and its HWQs (through [`io_model::Backend`]) and
//! runs to completion: [`Poller::step`] reaps what the device finished, looks at the doorbells, asks the policy what
//! may be sent, fetches exactly that, submits it, and tells the guests. It has no clock and no thread: the daemon calls
//! it in a loop, the simulator with virtual time.
//!
//! - [`Poller`]: the iteration (`poller.rs`), with its table of commands in flight (`flights.rs`);
//! - [`Probe`]: what one tenant experienced at one poller, written by that one, read by anyone (`probe.rs`);
//! - [`Board`]: the probes of all tenants of a drive, through which pollers learn of each other; a tenant's are added
//!   up;
//! - what a poller tells of all its tenants at once (`shared.rs`);
//! - [`Iterations`]: what one poller does with its time (`iterations.rs`);
//! - [`Inside`]: its HWQs and its policy's figures, for operators (`inside.rs`);
//! - [`Recorder`]: every command of one tenant, while somebody records it (`recorder.rs`).
//!
//! Not here: threads, sleeping and waking (the daemon's), the clock, the policies.

#![forbid(unsafe_code)]

mod awoken;
mod board;
mod count;
mod flights;
mod histogram;
mod inside;
mod iterations;
mod poller;
mod probe;
mod recorder;
mod shared;

pub use board::{Board, TenantProbes};
pub use histogram::{Histogram, HistogramCounts, Percentiles};
pub use inside::Inside;
pub use iterations::{Iterations, Spent};
pub use policy::TenantSlot;
pub use poller::{Poller, Progress, REST_AFTER, TenantMemory};
pub use probe::{Counters, Probe};
pub use recorder::{Recorded, Recorder, Recording, recorder};

/// Length of one monitoring interval of the probe (LPNS §4.1: 10 ms).
pub const INTERVAL: io_model::Nanos = io_model::Nanos::from_millis(10);

/// Intervals in one scheduling period (LPNS §4.1: 200 ms).
pub const INTERVALS_PER_PERIOD: usize = 20;
