//! A drive whose queues are HWQs, over a controller in memory.

mod ladder;
mod no_allocation;
mod suite;
