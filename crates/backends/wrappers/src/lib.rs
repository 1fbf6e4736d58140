//! Back ends that wrap other back ends, for tests and experiments.
//!
//! - [`Delay`]: delays completions, by a rule;
//! - [`Faulty`]: fails or loses commands, by [`Fault`]s that a test sets while it runs ([`Faults`]);
//! - [`Recorded`]: records each answer ([`Record`]);
//! - [`Checked`]: panics if its caller breaks [`Backend`](io_model::Backend)'s contract.
//!
//! Each passes on all that it does not change, memory included, so they stack: `Checked<Delay<Faulty<Memory>>>`. None
//! depends on the drive below, a clock or a thread.
//!
//! Not for production: they allocate per command, and [`Faulty`] takes a lock.

#![forbid(unsafe_code)]

mod checked;
mod delay;
mod faulty;
mod recorded;

pub use checked::Checked;
pub use delay::Delay;
pub use faulty::{Fate, Fault, Faults, Faulty};
pub use recorded::{Record, Recorded};
