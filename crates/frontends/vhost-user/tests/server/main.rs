//! The server and its clients.

mod common;
mod front_end;
mod hostile;
mod libblkio;
mod order;
