//! What the vfio-user and the vhost-user server have in common below their protocols.
//!
//! - [`Listener`]: a socket in the file system that only its owner's processes can use, and that
//!   replaces one which a killed daemon left behind;
//! - [`receive`] and [`send`]: bytes with file descriptors, never waiting;
//! - [`descriptor`]: whether what a client passed is what it should be;
//! - [`Log`]: log lines, few enough that no client can fill a disk with them.
//!
//! Not implemented: any protocol, any thread.

#![forbid(unsafe_code)]

pub mod descriptor;
mod listener;
mod log;
mod message;

pub use listener::{BindError, Listener};
pub use log::{Level, Log, Sink};
pub use message::{MAX_FDS, Received, has_hung_up, receive, send};
