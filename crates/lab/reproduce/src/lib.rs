//! The papers' experiments, repeated in the simulator, and the report that compares.
//!
//! [`run`] runs the experiments of some papers on all cores and returns a [`report::Report`];
//! [`report::Output`] writes that as a page, as JSON and as CSV. One seed, one report,
//! byte for byte: nothing in it depends on the machine, the number of cores or the time of day.
//!
//! - `papers`: per paper, the printed numbers (`printed.rs`) and the experiments;
//! - `runner`: many simulation runs on a few threads, with the same result as on one;
//! - [`qos`]: the arbitration paper's cases, for who measures them on something else than the simulator;
//! - [`report`]: figures, criteria, verdicts, plots, and the three files.
//!
//! One profile per drive and one table of host costs serve all figures; an experiment chooses among them and
//! may not tune them.

#![forbid(unsafe_code)]

mod paper;
mod papers;
pub mod report;
mod runner;

pub use paper::{Mark, Paper, Printed, derived, printed};
pub use papers::qos::printed as qos;
pub use runner::{Error, Options, Progress, run};
