//! An NVMe drive's own queues as HWQs: the drive without the kernel.
//!
//! | module | what |
//! | --- | --- |
//! | `drive` | [`NvmeDrive`]: what is known of the drive, and orders to its thread |
//! | `thread`, `ladder` | [`DriveThread`]: owns the controller; what is done about a command that does not end |
//! | `queues`, `hwq` | [`NvmeQueues`]: one poller's queue pairs; no lock, allocation or system call per command |
//! | `describe`, `reach` | PRPs and SGLs over guest memory, and which address of the device it has |
//! | `pins` | memory of guests as all pollers share it: mapped once, by whoever may wait |
//! | `bounces` | copies of what the drive can't reach where it lies |
//! | `zeroer` | zeroes ranges for a thread that may wait |
//!
//! # When a command does not end
//!
//! A poller looks at the age of its commands now and then. One that is older than the time limit is aborted; one that
//! stays costs its queue, which is deleted and made anew; where that fails the controller is reset, then the
//! function, and then the drive is given up. A command that comes back before its queue was deleted has simply ended,
//! however late it is. What a reset takes fails once, as [`DeviceError::Gone`](io_model::DeviceError::Gone), and only
//! after the drive can't reach its memory any more.
//!
//! The drive may lie: completions are checked, and a queue that tells of commands that it was not given is deleted.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "a drive's thread and whoever zeroes wait in real time; pollers are told theirs"
)]

mod bounces;
mod describe;
mod drive;
mod hwq;
mod ladder;
mod pins;
mod queues;
mod reach;
mod thread;
mod zeroer;

pub use drive::{Health, LastHealth, NvmeDrive, Options, StartError};
pub use pins::{Pin, Pins};
pub use queues::NvmeQueues;
pub use thread::{DriveThread, Notice};
pub use zeroer::NvmeZeroer;
