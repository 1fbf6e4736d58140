//! A device on a Unix socket, served for one client at a time: what the vfio-user and the vhost-user server share
//! below their protocols.
//!
//! A [`Server`] is a listening socket with a thread. The thread accepts a client, reads exactly what its next message
//! needs, has the [`Protocol`] do what the message asks for, and sends the replies; meanwhile it refuses other clients,
//! and obeys what other threads ask through the [`Session`].
//!
//! # What a client can make wait
//!
//! Its own thread: with a file that is slow to map, with a request that waits for a poller. No other thread waits for
//! that one: orders to it are stored and a [`Waker`] rung, and a server that is dropped leaves its thread behind rather
//! than wait for it longer than a second. What waits *for* a client is bounded: bytes of replies, descriptors, log
//! lines, and 5 s of silence in the middle of a message or with replies unread. A descriptor that can't be closed
//! without asking somebody (a file on a FUSE mount) never comes here:
//! see [`gate`].
//!
//! # Why a thread for each device
//!
//! And not one that accepts for all devices and starts a thread for each client: see the figures in
//! `docs/decisions/0012-a-control-thread-per-device.md`.

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
pub use gate::Gate;
pub use keeping::{Held, Keeper, KeeperError};
pub use listener::{Accepted, Access, BindError, Listener};
pub use log::{About, Level, Log, Sink};
pub use message::{MAX_FDS, Received, has_hung_up, receive, receive_plain, send, send_now, send_whole};
pub use notify::notify_socket;
pub use server::{Place, Server, Surroundings};
pub use session::Session;
pub use waker::Waker;
