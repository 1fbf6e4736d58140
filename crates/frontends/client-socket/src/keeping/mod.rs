//! Clients that another process keeps, so that they don't notice when this one ends.

pub mod wire;
