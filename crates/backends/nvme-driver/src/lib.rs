//! An NVMe initiator: initializes a controller and moves commands through its queues by polling.
//!
//! | module | what |
//! | --- | --- |
//! | `device` | [`PciDevice`]: registers, doorbells, DMA memory and interrupts, over any transport |
//! | `vfio_user` | [`VfioUserDevice`]: a device behind a vfio-user socket |
//! | `vfio` | [`VfioDevice`]: a PCI function and its IOMMU, through the kernel's VFIO |
//! | `controller`, `admin` | [`Controller`]: initialization, admin commands, creating and deleting queues, shutdown |
//! | `priority` | [`Arbitration`], and the queue priority for a thread's I/O priority |
//! | `queue`, `doorbell` | [`QueuePair`]: PRPs, submission, polling, mapped, shadow and sent doorbells |
//! | [`passthrough`] | commands to a drive that is bound to the kernel's driver |
//! | `outcome` | [`outcome`]: an NVMe status as the project's common outcome of a command |
//!
//! The device is expected to follow the specification, but it is not trusted. All that it writes is checked, and a
//! violation ends in an [`Error`], not in a panic. DMA memory is copied from and to, never borrowed.
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
