//! Jobs against controllers in memory.

mod engine;
mod runner;
