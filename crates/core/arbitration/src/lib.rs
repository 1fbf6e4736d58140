//! Queue arbitration: round robin, weighted round robin with an urgent class, deficit round robin.
//!
//! Three users share it: the drive model for its HWQs, a virtual controller for its tenant's submission queues, and the
//! `wrr` and `drr` policies for their tenants. An [`Arbiter`] holds no commands. The caller tells it which queues are
//! backlogged, asks for the next queue, takes a command from there and charges it. It also says when a queue runs
//! empty.
//!
//! Pure: no clock, thread, file, lock or random source. Not implemented: more than four classes; a weight for each
//! queue.

#![forbid(unsafe_code)]

mod arbiter;
mod queue_set;

pub use arbiter::{Arbiter, Arbitration, MAX_QUEUES, QuantaKib};
