//! The server and its clients.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

mod blocked;
mod client;
mod common;
mod connection;
mod hostile;
