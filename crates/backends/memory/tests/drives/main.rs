//! Drives without hardware, as back ends.

mod model;
mod suite;
