//! The server and its clients.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod common;
mod front_end;
mod hostile;
mod libblkio;
mod order;
