//! The keeper as a process, between clients and daemons on real sockets.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]
#![allow(clippy::disallowed_methods, reason = "the keeper under test is another process")]

mod clients;
mod daemons;
mod replaced;
mod sides;
mod stored;
