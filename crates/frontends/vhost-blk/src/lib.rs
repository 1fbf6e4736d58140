//! A virtio-blk disk over split virtqueues (Virtual I/O Device 1.2, 2.7 and 5.2).
//!
//! It keeps vhost-user's log of requests in flight, so that it survives its own death. It has no socket, thread, clock
//! or drive: its user gives it memory, rings and event descriptors, and a poller pulls commands out of it. Its
//! [`io_model::Source`] has virtqueue `n` as VQ `n + 1`, or as three VQs where requests go by priority.
//!
//! | module | what |
//! | --- | --- |
//! | `config`, `disk` | [`DiskConfig`], [`Disk`]: the part that all threads of a tenant share: features, configuration space, write cache |
//! | `queues`, `source` | [`Queues`]: some of the disk's virtqueues and guest memory, owned by one poller |
//! | `queue` | one virtqueue: its ring, its requests in flight, its log, its event descriptors |
//! | `lanes` | requests by their own priority |
//! | `ring` | the three parts of a split ring; notifications both ways |
//! | `chain` | a walk over one request's descriptors, indirect ones too |
//! | `request` | a request's meaning, checked |
//! | `inflight` | the log in memory that the VMM keeps for the daemon, and recovery from it |
//!
//! A request's way:
//!
//! 1. The driver writes descriptors, a head into the available ring, and the ring's index. No call is needed
//!    while the poller is awake.
//! 2. The poller asks for the backlog: that index, read anew, minus what was fetched.
//! 3. The poller fetches: the head is read once, its chain is walked into memory of our own, the log says that
//!    it is in flight, and header, length and sector range are checked. Data stays where it is: an `IoBuf` with pins.
//! 4. A request that fails a check gets its status at once. One that passes leaves as one device command, or as
//!    several (discard and write zeroes name up to 32 ranges), each with a token that names the head.
//! 5. With the last token back, the status byte is written and the used element is kept.
//! 6. The next look at the backlog, or [`notify`](io_model::Source::notify), publishes all that is kept with one
//!    store of the used index; `notify` then interrupts the driver if it wants to be.
//!
//! Everything that a guest or VMM can write is hostile. A request with a status byte fails alone. One without (a
//! chain that loops, leaves its table or the guest's memory) stops the device, with a [`Fault`] for the log. A
//! fetch walks at most 2,048 descriptors (1,024 of the ring and 1,024 of an indirect table), a read of the log at
//! most 1,024 entries.
//!
//! Not implemented: packed rings, secure erase, zones, lifetime information, and rings of big-endian guests.

#![forbid(unsafe_code)]

mod chain;
mod config;
mod disk;
mod fault;
mod inflight;
mod kill;
mod lanes;
mod queue;
mod queues;
mod request;
mod ring;
mod source;
mod spec;
mod stats;

#[cfg(test)]
mod kill_tests;

// So that the tests' guest is the same inside and outside of the crate.
#[cfg(test)]
extern crate self as vhost_blk;

pub use config::{ConfigError, DiskConfig, MAX_QUEUES, MAX_RING_SIZE};
pub use disk::{CONFIG_BYTES, Disk, ReadOnlyField};
pub use fault::{Fault, FaultKind, StartError};
pub use inflight::{LogError, clear_inflight, inflight_bytes, inflight_region};
pub use lanes::MAX_QUEUES_BY_PRIORITY;
pub use queue::{RingSetup, Started};
pub use queues::Queues;
pub use stats::Stats;
