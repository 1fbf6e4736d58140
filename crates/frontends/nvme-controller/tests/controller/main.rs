//! The controller driven by a host of our own over a disk in memory.

mod admin;
mod admin_work;
mod arbitration;
mod attach;
mod bringup;
mod crashes;
mod doorbells;
mod expect;
mod format;
mod host;
mod hostile;
mod interrupts;
mod io;
mod lifecycle;
mod namespaces;
mod parts;
mod queues;
mod random;
mod registers;
mod rung;
mod sanitize;
mod state;
