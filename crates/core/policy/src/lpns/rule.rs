//! LPNS's rules as arithmetic: what the throttle goes by, and what a forecast of it goes by. Work is in reference
//! commands.

use io_model::Nanos;

use super::config::LpnsConfig;
use crate::netcalc::in_flight_for;

/// Part of what a target leaves in flight that guaranteed tenants may use themselves: a rogue one then can't push the
/// others out, and its own promise holds.
pub const RESERVATION: f64 = 0.75;

/// A guaranteed tenant without a number is treated as if it had asked for this many idle latencies, about where more
/// load costs more latency than it gives throughput.
pub const UNNAMED_TARGET: f64 = 4.0;

/// A promise counts as missed once 1/2 of the misses that it allows is spent.
pub const SPENT_OF_BUDGET: u64 = 2;

/// θ = (Ω − i)/j (LPNS §4.3): commands that each of j best-effort tenants may send for one of the slowest of i
/// guaranteed ones. With nobody active the printed rule divides by zero; then one tenant is taken to be.
pub fn theta(omega: f64, guaranteed: u32, best_effort: u32) -> f64 {
    (omega - f64::from(guaranteed)).max(0.0) / f64::from(best_effort.max(1))
}

/// Work in flight above which the drive gets no faster.
pub fn saturation(config: &LpnsConfig) -> f64 {
    f64::from(config.parallelism) * f64::from(config.saturation_factor)
}

/// b = d·Ω (LPNS Eq. 2) with which the target holds by Eq. 5: R·(target − L_h), at most what saturates the drive, at
/// least the floor of best effort. `None`: no target has a number.
pub fn ceiling(config: &LpnsConfig, target: Option<Nanos>) -> f64 {
    let target = target.unwrap_or(Nanos((config.l_h.0 as f64 * UNNAMED_TARGET) as u64));
    in_flight_for(target, &config.service()).min(saturation(config)).max(f64::from(config.floor_in_flight))
}

/// What each of this many guaranteed tenants may have in flight under a [`ceiling`] while others are active.
pub fn guaranteed_limit(config: &LpnsConfig, ceiling: f64, guaranteed: u32) -> f64 {
    (ceiling * RESERVATION / f64::from(guaranteed.max(1))).max(f64::from(config.parallelism))
}

/// What all best-effort tenants may have in flight of a budget, beside what guaranteed ones have: never less than
/// `floor`.
pub fn best_effort_cap(floor: f64, budget: f64, guaranteed_depth: f64) -> f64 {
    (budget - guaranteed_depth).max(floor)
}

/// Rate that best effort may send at beside guaranteed tenants of this rate: what is left of R, and never less than
/// `floor_permille` of it. In the unit that both rates have.
pub fn best_effort_rate(r: f64, floor_permille: u32, guaranteed: f64) -> f64 {
    (r - guaranteed).max(r * f64::from(floor_permille) / 1_000.0)
}
