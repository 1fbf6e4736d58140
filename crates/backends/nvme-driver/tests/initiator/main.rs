//! The initiator against a controller in memory.

mod driver;
mod no_allocation;
