//! What `evenkeel` leaves to everybody.

use super::shares::Contender;

/// Of the drive's work, shared by weight among all that are there.
const LEAST_PART: f64 = 0.01;
/// Commands, each as dear as the dearest, by which who waits for its turn may be behind that.
const TURNS: f64 = 4.0;

/// The tenant of these that gets too little of the drive's `work`, and what it got; `weights`: of all on the drive.
pub(super) fn starving(contenders: &[Contender], work: u64, weights: u64) -> Option<(u16, String)> {
    let dearest = contenders.iter().map(|one| one.to.most_cost).max().unwrap_or(0) as f64;
    contenders.iter().filter(|one| one.asks_all_along()).find_map(|one| {
        let (got, least) = (one.cost(), LEAST_PART * work as f64 * one.weight(1) / weights as f64);
        let what = || format!("it got {got:.0} of the drive's work of {work}, {least:.0} is the least");
        (got + TURNS * dearest < least).then(|| (one.tenant, what()))
    })
}
