//! Back ends without a drive.
//!
//! - [`NullDrive`] / [`Null`]: everything succeeds at once and **no data moves**: what is read is whatever
//!   the buffer held before. It measures the path around a drive, and nothing should be stored on it.
//! - [`MemoryDrive`] / [`Memory`]: a drive in memory, as fast as a copy. Small pages are populated when
//!   first written, so a large empty drive costs nothing. Its content goes with the process.
//! - [`ModelDrive`] / [`Model`]: the timing of a real drive, by [`ssd_model`], over memory or over nothing. Its queues
//!   can have arbitration classes.
//!
//! A `…Drive` is the handle that all pollers share; each poller opens queues of its own from it.
//!
//! Not implemented: persistence (see `backend-uring` for files), fault injection.

#![forbid(unsafe_code)]

mod memory;
mod model;
mod null;
mod ready;
mod shared_model;

pub use memory::{Memory, MemoryDrive};
pub use model::{Model, ModelDrive, NoQueues};
pub use null::{Null, NullDrive};
