//! An NVMe initiator: brings a controller up and moves commands through its queues by polling.
//!
//! | module | what |
//! | --- | --- |
//! | `device` | [`PciDevice`]: registers, doorbells, DMA memory and interrupts of whatever carries us |
//! | `vfio_user` | [`VfioUserDevice`]: a device behind a vfio-user socket |
//! | `vfio` | [`VfioDevice`]: a PCI function that the kernel gives us through VFIO, and its IOMMU |
//! | `controller`, `admin` | [`Controller`]: bring-up, admin commands, making and deleting queues, shutdown |
//! | `priority` | [`Arbitration`], and what a queue is worth by its thread's I/O priority |
//! | `queue`, `doorbell` | [`QueuePair`]: PRPs, submission, polling, mapped, shadow and sent doorbells |
//! | [`passthrough`] | commands to a drive that the kernel's driver has |
//! | `outcome` | [`outcome`]: how a command ended, in everybody's words |
//! | `fake` | a controller in memory, for tests (feature `fake-device`) |
//!
//! The device is believed to follow the specification but is not trusted to: what it writes is checked,
//! and a lie ends in an [`Error`], not in a panic. All DMA memory is copied from and to, never borrowed.
//!
//! Not implemented: metadata, fused commands, devices with memory pages above 4 KiB, VFIO by IOMMUFD or without an
//! IOMMU.

// System calls, in `priority`, `passthrough` and `vfio`.
#![deny(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "a controller takes its time to get ready")]

mod admin;
mod controller;
mod device;
mod doorbell;
mod error;
#[cfg(feature = "fake-device")]
pub mod fake;
mod outcome;
pub mod passthrough;
mod pieces;
mod priority;
mod queue;
mod vfio;
mod vfio_user;

pub use controller::{Controller, Namespace};
pub use device::{DmaMemory, DmaSpace, Doorbell, PciDevice, Ring};
pub use error::Error;
pub use nvme_spec::Status;
pub use outcome::outcome;
pub use priority::{Arbitration, priority_of_this_thread};
pub use queue::{Blocks, Completion, Data, LIST_ENTRIES, MAX_TRANSFER_BYTES, QueuePair, SubmitError};
pub use vfio::{Member, NotAnAddress, PciAddress, VfioDescriptors, VfioDevice, VfioError, group_members};
pub use vfio_user::VfioUserDevice;
