//! A vfio-user server: devices on Unix sockets, one client each, each served by a thread of its own.
//!
//! The protocol is that of the vfio-user specification 0.9 (QEMU, `docs/interop/vfio-user.rst`); QEMU's
//! `vfio-user-pci`, SPDK's vfio-user host and the `vfio_user` crate are its clients.
//!
//! # A message's way
//!
//! ```text
//!   client's socket
//!     │  client_socket::Server, no more bytes than the message needs, so that descriptors
//!     ▼                         can't be taken for another message's
//!   Connection::feed            header, length, VERSION first; payload (wire), JSON (version)
//!     │
//!     ▼
//!   ClientState                 region bounds, interrupt ranges (device); maps the file behind a DMA map, eventfds
//!     │                         are eventfds (dma); GET_INFO and its like are answered from the DeviceSpec
//!     ▼
//!   Device::request             blocks until it is done
//!     │
//!     ▼
//!   Connection::output ─▶ client's socket
//! ```
//!
//! [`Connection`] does no I/O on a socket: a test or a fuzzer feeds it bytes. [`serve`] puts a device on its socket
//! with a thread of its own.
//!
//! # One request after the other
//!
//! A client's requests are done strictly in the order in which they came: a request that waits makes the ones behind it
//! wait, of all the client's vCPUs. The device must therefore end every request without another one's help:
//!
//! - an unmap, or a reset, waits for the commands in flight. Those end by the drive's and the poller's doing; a
//!   doorbell or a register access that queues behind the unmap starts new commands, and is needed by none that is in
//!   flight.
//! - a reset behind an unmap finds memory that is quiet already, and waits for less.
//! - a client that leaves, or is to be disconnected, while its request waits is noticed when the answer comes; until
//!   then its memory is in use, and the next client waits in the listening socket's queue.
//! - a client that sends ahead without reading keeps what [`client_socket`] bounds, and is then not read from; if it
//!   waits for us to read before it reads itself, it is disconnected after 5 s.
//!
//! # What a hostile client can do
//!
//! End its own connection, and make its own thread wait. Lengths, counts, ranges and descriptors are checked before
//! use; what waits for one client is bounded (reply bytes, log lines); a client that stops in the middle of a message,
//! or stops to read its replies, is disconnected after 5 s.
//!
//! # Not implemented
//!
//! Access to memory without a file descriptor (DMA_READ, DMA_WRITE: such ranges are holes) and so the
//! twin socket; DEVICE_GET_REGION_IO_FDS, REGION_WRITE_MULTI, migration and dirty page tracking
//! (`ENOTSUP`). Guest memory in files that are not on tmpfs or hugetlbfs is a hole, with a line in the log.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "sockets are served by threads")]

mod connection;
mod device;
mod dma;
mod kept;
mod request;
mod version;
pub mod wire;

use std::sync::Arc;

pub use client_socket::{About, Access, BindError, Closed, Level, Listener, Server, Session, Sink, Surroundings};
pub use connection::{ClientState, Connection, ProtocolError};
pub use device::{Device, DeviceSpec, IrqSpec, MmapSpec, RegionSpec};
pub use request::{IrqChange, Reply, Request, SetIrqs};
pub use rustix::io::Errno;

/// Puts a device on its socket, with a thread of its own. Clients can connect as soon as this returns.
///
/// # Errors
/// The socket is in use or can't be created, the description is inconsistent, or the kernel refused a thread or a
/// descriptor.
pub fn serve(
    spec: DeviceSpec,
    listener: Listener,
    device: Box<dyn Device>,
    around: Surroundings,
) -> Result<Server, BindError> {
    spec.check().map_err(|why| BindError::BadDevice { name: spec.name.clone(), why })?;
    let spec = Arc::new(spec);
    let place = client_socket::Place { name: &spec.name, prefix: "vfio", listener, around };
    let of_client = Arc::clone(&spec);
    Server::start(place, move || ClientState::new(Arc::clone(&of_client)), device)
}
