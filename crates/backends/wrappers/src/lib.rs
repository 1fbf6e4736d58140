//! Back ends around other back ends, for tests and laboratories.
//!
//! - [`Delay`]: completions come later, by a rule;
//! - [`Faulty`]: commands fail, or are never answered, by [`Fault`]s that a test sets while it runs ([`Faults`]);
//! - [`Recorded`]: what was answered, command by command, is written down ([`Record`]);
//! - [`Checked`]: panics where whoever submits breaks [`Backend`](io_model::Backend)'s contract.
//!
//! Each passes on what it doesn't change, memory included, so they stack: `Checked<Delay<Faulty<Memory>>>`. None knows
//! the drive below, a clock or a thread.
//!
//! Not implemented: what a product would need to use them per I/O. They allocate, and [`Faulty`] takes a lock.

#![forbid(unsafe_code)]

mod checked;
mod delay;
mod faulty;
mod recorded;

pub use checked::Checked;
pub use delay::Delay;
pub use faulty::{Fate, Fault, Faults, Faulty};
pub use recorded::{Record, Recorded};
