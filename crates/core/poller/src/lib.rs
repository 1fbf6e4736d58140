//! The poll loop's single iteration, and the probes that measure it.
//!
//! A [`Poller`] owns its tenants' VQs (through [`io_model::Source`]) and its HWQs (through [`io_model::Backend`]) and
//! runs to completion. [`Poller::step`] reaps completions, reads the doorbells, and asks the policy what may be sent.
//! It fetches exactly that, submits it, and notifies the guests. It has no clock and no thread: the daemon calls it in
//! a loop, the simulator with virtual time.
//!
//! - [`Poller`]: the iteration (`poller.rs`), with its table of commands in flight (`flights.rs`);
//! - [`Probe`]: one tenant's counters at one poller, written only by that poller, read by anyone (`probe.rs`);
//! - [`Board`]: the probes of all tenants of a drive, through which pollers learn of each other. It adds up a tenant's
//!   probes;
//! - what a poller publishes about all its tenants together (`shared.rs`);
//! - [`Iterations`]: how one poller spends its time (`iterations.rs`);
//! - [`Inside`]: its HWQs and its policy's figures, for operators (`inside.rs`);
//! - [`Recorder`]: every command of one tenant, while it is being traced (`recorder.rs`).
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
