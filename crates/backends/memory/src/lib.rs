//! Back ends without a drive: null, memory, and the drive model in real time.
//!
//! - [`NullDrive`] / [`Null`]: each command succeeds at once and **no data moves**: a read returns whatever the buffer
//!   held before. It measures the software around a drive; don't store data on it.
//! - [`MemoryDrive`] / [`Memory`]: a drive in memory, as fast as a copy. Small pages are allocated when first written,
//!   so a large empty drive costs nothing. Its content is lost when the process ends.
//! - [`ModelDrive`] / [`Model`]: the timing of a real drive, from [`ssd_model`], with its data in memory or without
//!   data. Its queues can have arbitration classes.
//!
//! A `…Drive` is the handle that all pollers share. Each poller opens its own queues from it.
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
