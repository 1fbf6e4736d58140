//! Harnesses for everything that a guest or its VMM can write, each with an oracle.
//!
//! | module | what is fuzzed | what must hold |
//! | --- | --- | --- |
//! | [`messages`] | vfio-user messages and file descriptors, in pieces, answered late | requests are in bounds, every message is answered once, output is bounded, no descriptor leaks |
//! | [`front_end`] | vhost-user messages and file descriptors, in pieces | the device is told only what is sound and in order, what ought to be answered is |
//! | [`registers`] | BARs, configuration space, resets, DMA maps over garbage rings | the registers keep their invariants, and a reset always leads back to a working controller |
//! | [`commands`] | programs of admin and I/O commands over a small guest memory | a reference model of the tenant's disk, its memory and its completions |
//! | [`tenants`] | several controllers behind one poller and policy | every command comes back to the queue that it came from, nobody starves |
//! | [`virtqueues`] | virtio-blk requests, good and bad, kills and recoveries, over a small guest memory | a model of the rings, of guest memory, of the drive and of what is in flight |
//!
//! A harness takes bytes and panics when something does not hold. The fuzzer feeds it what it finds; the
//! tests feed it numbered random inputs, on any toolchain, so that a seed can be replayed.
//!
//! Not here: sockets (both servers are tested with hostile clients of their own) and virtqueues.

#![forbid(unsafe_code)]

pub mod commands;
mod descriptors;
pub mod front_end;
pub mod messages;
pub mod registers;
mod seeds;
pub mod tenants;
pub mod virtqueues;

pub use seeds::{random_input, seeds};
