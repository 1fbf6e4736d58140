//! The keeper as a process, between clients and daemons on real sockets.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod clients;
mod daemons;
mod sides;
