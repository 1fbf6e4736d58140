//! A device on a Unix socket, with one client at a time: the part that all socket servers share.
//!
//! The vfio-user and vhost-user servers build on it.
//!
//! A [`Server`] is a listening socket with a thread. The thread accepts a client, reads exactly what its next message
//! needs, passes the message to the [`Protocol`], and sends the replies. Meanwhile it refuses other clients, and obeys
//! orders of other threads through the [`Session`].
//!
//! # What a client can block
//!
//! Only its own thread: by a file that is slow to map, or by a request that waits for a poller. No other thread waits
//! for that thread. Orders to it are stored and a [`Waker`] rung. A server that is dropped waits a second for its
//! thread at most, then leaves it behind.
//!
//! What waits *for* a client is bounded: bytes of replies, descriptors, log lines, and 5 s of silence in the middle of
//! a message or with replies unread. A descriptor whose closing may block (a file on a FUSE mount) never gets here: see
//! [`gate`].
//!
//! # Why one thread per device
//!
//! The alternative is one thread that accepts for all devices and starts a thread per client.
//! `docs/decisions/0012-a-control-thread-per-device.md` has the figures.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "it waits for clients, not for ever")]

mod connection;
pub mod gate;
pub mod keeping;
mod listener;
mod log;
mod message;
mod notify;
mod server;
mod session;
mod waker;

pub use connection::{Closed, Connection, Keeping, Protocol, Replies};
pub use gate::{Door, Gate, HeldSockets, Intake, Passed};
pub use keeping::{Held, Keeper, KeeperError};
pub use listener::{Accepted, Access, BindError, Listener};
pub use log::{About, Level, Log, Sink};
pub use message::{MAX_FDS, Received, has_hung_up, receive, receive_plain, send, send_now, send_whole};
pub use notify::notify_socket;
pub use server::{Place, Server, Surroundings};
pub use session::Session;
pub use waker::Waker;
