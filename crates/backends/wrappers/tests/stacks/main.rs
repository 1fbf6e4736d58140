//! Wrappers around other back ends.

mod effects;
mod suite;
