//! Repeats the papers' experiments in the simulator, and reports how the results compare.
//!
//! [`run`] runs the experiments of some papers on all cores and returns a [`report::Report`]. [`report::Output`] writes
//! it as a page, as JSON and as CSV. A seed determines the report byte for byte: it does not depend on the machine, the
//! number of cores or the time of day.
//!
//! - `papers`: per paper, a file with the words of its figures, and the experiments with the printed numbers;
//! - `words`: reads these files, and says why a figure misses what it misses;
//! - `runner`: many simulation runs on a few threads, with the same result as on one;
//! - [`qos`]: the arbitration paper's cases, to measure elsewhere than in the simulator;
//! - [`report`]: figures, criteria, verdicts, plots, and the three files.
//!
//! All figures use one profile per drive and one table of host costs. An experiment chooses among them and may not tune
//! them.

#![forbid(unsafe_code)]

mod paper;
mod papers;
pub mod report;
mod runner;
mod words;

pub use paper::{Mark, Paper, Printed, derived, printed};
pub use papers::qos::printed as qos;
pub use runner::{Error, Options, Progress, run};
