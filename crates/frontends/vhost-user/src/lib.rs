//! A vhost-user server (the protocol's back end): devices on Unix sockets, one client each.
//!
//! The protocol is that of QEMU's `docs/interop/vhost-user.rst`; QEMU, libblkio and the `vhost` crate are its clients
//! (its front ends). This crate manages queues and memory, but does not know what kind of device it serves.
//!
//! # A message's way
//!
//! ```text
//!   client's socket
//!     │  client_socket::Server, no more bytes than the message needs, so that descriptors
//!     ▼                         can't be taken for another message's
//!   Connection::feed            header and length; payload and number of descriptors (wire)
//!     │
//!     ▼
//!   FrontEnd::handle            what was negotiated, the order of messages, each ring's state (front_end, ring),
//!     │                         memory regions (memory), the log of requests in flight (inflight)
//!     ▼
//!   Device                      memory, start, stop, set_call …: blocks until it is done
//!     │
//!     ▼
//!   Connection::output ─▶ client's socket
//! ```
//!
//! [`Connection`] does no I/O of its own: a test or a fuzzer feeds it bytes. [`serve`] puts a device on its socket with
//! a thread of its own. So a device may wait for its queues' threads, and a client that stops in the middle of a
//! message blocks no other client.
//!
//! # What a hostile client can do
//!
//! End its own connection. Lengths, indices, ranges and descriptors are checked before use; regions are
//! memory, notifiers are eventfds; a client that stops in the middle of a message, or stops to read its
//! replies, is disconnected after 5 s. A message out of order is refused: with an error if the client asked
//! for an acknowledgement, else by ending the connection; either way a log line names message and reason.
//!
//! # Not implemented
//!
//! Packed rings, dirty page logging and so live migration, postcopy, an IOMMU, in-band notifications, shared
//! objects, device state transfer. Guest memory in files that are not on tmpfs or hugetlbfs is a hole, with a
//! line in the log.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "sockets are served by threads")]

mod connection;
mod device;
mod front_end;
mod inflight;
mod kept;
mod memory;
mod ring;
pub mod wire;

use std::sync::Arc;

pub use client_socket::{About, Access, BindError, Closed, Level, Listener, Server, Session, Sink, Surroundings};
pub use connection::{Connection, ProtocolError};
pub use device::{Device, DeviceSpec, RingSetup};
pub use front_end::FrontEnd;
pub use memory::{MAX_REGIONS, Memory, Region};

/// Puts a device on its socket, with a thread of its own. Clients can connect as soon as this returns.
///
/// # Errors
/// The socket is in use or can't be created, the description makes no sense, or the kernel refused a thread or a
/// descriptor.
pub fn serve(
    spec: DeviceSpec,
    listener: Listener,
    device: Box<dyn Device>,
    around: Surroundings,
) -> Result<Server, BindError> {
    spec.check().map_err(|why| BindError::BadDevice { name: spec.name.clone(), why })?;
    let spec = Arc::new(spec);
    let place = client_socket::Place { name: &spec.name, prefix: "vhost", listener, around };
    let of_client = Arc::clone(&spec);
    Server::start(place, move || FrontEnd::new(Arc::clone(&of_client)), device)
}
