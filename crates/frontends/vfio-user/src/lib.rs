//! A vfio-user server: devices on Unix sockets, one client each, all served by one thread.
//!
//! The protocol is that of the vfio-user specification 0.9 (QEMU, `docs/interop/vfio-user.rst`); QEMU's
//! `vfio-user-pci`, SPDK's vfio-user host and the `vfio_user` crate are its clients.
//!
//! # A message's way
//!
//! ```text
//!   client's socket
//!     │  client_socket::receive, no more bytes than the message needs, so that descriptors
//!     ▼                       can't be taken for another message's
//!   Connection::feed          header, length, VERSION first; payload (wire), JSON (version)
//!     ├── describes itself ─▶ DEVICE_GET_INFO, _REGION_INFO, _IRQ_INFO: answered from the DeviceSpec
//!     ▼
//!   Asked                     region bounds, interrupt ranges (device)
//!     │  dma::admit           maps the file behind a DMA map; eventfds are eventfds
//!     ▼
//!   Handler::request ─▶ Some(Reply)                at once
//!                    └▶ None … ServerHandle::reply  later, from any thread, in any order
//!     ▼
//!   Connection::reply ─▶ output ─▶ client_socket::send
//! ```
//!
//! [`Connection`] does no I/O: a test or a fuzzer feeds it bytes. [`Server`] owns the sockets and calls
//! a [`Handler`]; [`ServerHandle`] brings late replies, devices and disconnections to it.
//!
//! # What a hostile client can do
//!
//! End its own connection. Lengths, counts, ranges and descriptors are checked before use; what waits
//! for one client is bounded (requests, reply bytes, log lines); each client gets a bounded turn; a
//! client that stops in the middle of a message, or stops to read its replies, is disconnected after 5 s.
//!
//! # Not implemented
//!
//! Access to memory without a file descriptor (DMA_READ, DMA_WRITE: such ranges are holes) and so the
//! twin socket; DEVICE_GET_REGION_IO_FDS, REGION_WRITE_MULTI, migration and dirty page tracking
//! (`ENOTSUP`); guest memory in files that are not on tmpfs or hugetlbfs.

#![forbid(unsafe_code)]

mod connection;
mod device;
mod dma;
mod request;
mod served;
mod server;
mod version;
pub mod wire;

pub use client_socket::{BindError, Level, Sink};
pub use connection::{Asked, Closed, Connection};
pub use device::{DeviceSpec, IrqSpec, MmapSpec, RegionSpec};
pub use request::{DeviceId, IrqChange, Reply, ReplyTo, Request, Session, SetIrqs, Ticket};
pub use rustix::io::Errno;
pub use server::{Handler, Server, ServerHandle};
