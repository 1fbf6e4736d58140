//! The controller driven by a host of our own over a disk in memory.

mod admin;
mod bringup;
mod format;
mod host;
mod interrupts;
mod io;
mod queues;
