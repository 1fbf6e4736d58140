//! The daemon as a whole.

mod hostile;
mod membership;
mod no_allocation;
