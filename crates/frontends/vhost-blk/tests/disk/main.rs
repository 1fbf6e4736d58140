//! The disk as a guest sees it.

mod config;
mod guest;
mod hostile;
mod library;
mod lifecycle;
mod log;
mod no_allocation;
mod notifications;
mod priorities;
mod requests;
mod rung;
