//! An NVMe drive driven from user space: its own queue pairs are the HWQs, without the kernel's driver.
//!
//! | module | what |
//! | --- | --- |
//! | `drive` | [`NvmeDrive`]: a handle with what is known of the drive; sends orders to its thread |
//! | `thread`, `ladder` | [`DriveThread`]: owns the controller; the steps taken when a command does not end |
//! | `queues`, `hwq` | [`NvmeQueues`]: one poller's queue pairs; no lock, allocation or system call per command |
//! | `describe`, `reach` | PRPs and SGLs over guest memory, and the device addresses of that memory |
//! | `pins` | guests' memory mapped for the device once, for all pollers, by a thread that may wait |
//! | `bounces` | bounce buffers for data that the drive can't reach in place |
//! | `zeroer` | zeroes ranges, for a thread that may wait |
//!
//! # When a command does not end
//!
//! A poller checks the age of its commands from time to time. Each step follows if the one before does not help:
//!
//! 1. A command older than the time limit is aborted.
//! 2. Its queue is deleted and created again.
//! 3. The controller is reset.
//! 4. The PCI function is reset.
//! 5. The drive is given up.
//!
//! A command that completes before its queue is deleted has simply ended, however late. The commands that a reset takes
//! fail once, as [`DeviceError::Gone`](io_model::DeviceError::Gone). They fail only after the drive can't reach their
//! memory any more.
//!
//! Completions are checked, because the drive may lie. A queue that completes a command that it was not given is
//! deleted.

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
