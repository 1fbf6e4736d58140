//! Memory of guests as its users see it.

mod listener;
mod lost;
mod views;
