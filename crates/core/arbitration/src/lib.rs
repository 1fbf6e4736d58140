//! Which queue is served next: round robin, weighted round robin with an urgent class, deficit round robin.
//!
//! Shared by everything that fetches from several queues: the drive model from its HWQs, a virtual controller from its
//! tenant's submission queues, the `wrr` and `drr` policies from their tenants. An [`Arbiter`] holds no commands: the
//! caller says which queues are backlogged, asks for the next one, takes a command from there, charges it, and says
//! when a queue ran empty.
//!
//! Pure: no clock, thread, file, lock or random source. Not implemented: more than four classes; a weight for each
//! queue.

#![forbid(unsafe_code)]

mod arbiter;
mod queue_set;

pub use arbiter::{Arbiter, Arbitration, MAX_QUEUES, QuantaKib};
