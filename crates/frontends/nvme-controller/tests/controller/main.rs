//! The controller driven by a host of our own over a disk in memory.

mod admin;
mod arbitration;
mod bringup;
mod doorbells;
mod format;
mod host;
mod hostile;
mod interrupts;
mod io;
mod lifecycle;
mod queues;
mod random;
mod registers;
mod state;
