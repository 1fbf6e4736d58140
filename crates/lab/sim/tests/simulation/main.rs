//! Scenarios that are simulated, and what each tenant gets.

mod bounds;
mod cipher;
mod common;
mod contention;
mod engine;
mod faults;
mod promised;
mod rest;
mod rivals_shared;
mod several_pollers;
mod shared_policies;
mod weights;
