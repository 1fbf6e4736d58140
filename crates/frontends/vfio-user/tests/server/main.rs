//! The server and its clients.

mod blocked;
mod client;
mod common;
mod connection;
mod hostile;
