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
mod state;

/// The seeds of a random test: that of `EVENKEEL_SEED`, or `1..=count`. Each is printed when its turn comes.
fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let only = std::env::var("EVENKEEL_SEED").ok().map(|seed| seed.parse().expect("EVENKEEL_SEED is a number"));
    only.map_or(1..=count, |seed| seed..=seed).inspect(|seed| println!("EVENKEEL_SEED={seed}"))
}
