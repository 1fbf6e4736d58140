//! Commands that were late because their poller stalled.

/// Up to this fraction of the commands that may be late, stalled commands count like any late command: with less
/// best-effort work the promise can still be kept. Beyond it the promise is broken anyway, so nobody is throttled for
/// them.
const MOST: f64 = 0.75;

/// The stalled commands of one tenant.
#[derive(Debug)]
pub(super) struct Stalls {
    seen: u64,
    /// How many more stalled commands may come and count as late.
    room: f64,
}

impl Stalls {
    pub(super) fn new(total: u64) -> Self {
        Self { seen: total, room: 0.0 }
    }

    /// Returns how many of the new stalled commands don't count as late.
    ///
    /// `total`: stalled commands so far. `may_be`: how many of the commands since the last call may be late. `most`:
    /// how many may be late over the time that the memory covers.
    pub(super) fn excused(&mut self, total: u64, may_be: f64, most: f64) -> u32 {
        let new = total.saturating_sub(std::mem::replace(&mut self.seen, total));
        self.room = (self.room + may_be * MOST - new as f64).clamp(-most, most);
        if self.room < 0.0 { new.min(u32::MAX.into()) as u32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum over a thousand intervals with `per_interval` stalled commands each, of which 4 may be late.
    fn excused(per_interval: u64) -> u32 {
        let mut stalls = Stalls::new(7);
        (1..=1_000).map(|interval| stalls.excused(7 + interval * per_interval, 4.0, 40.0)).sum()
    }

    #[test]
    fn what_leaves_the_promise_whole_counts_and_what_does_not_counts_for_nothing() {
        assert_eq!(excused(0), 0);
        assert_eq!(excused(3), 0, "three quarters of what may be late");
        assert_eq!(excused(4), 4_000);
        assert_eq!(excused(100), 100_000);
    }

    #[test]
    fn a_quiet_time_pays_for_one_that_was_not_up_to_a_limit() {
        let mut stalls = Stalls::new(0);
        (0..100).for_each(|_| assert_eq!(stalls.excused(0, 4.0, 40.0), 0));
        assert_eq!(stalls.excused(40, 4.0, 40.0), 0);
        assert_eq!(stalls.excused(50, 4.0, 40.0), 10);
        // Stalled commands of a quiet time leave room, which later ones use up first.
        assert_eq!(stalls.excused(51, 4.0, 40.0), 1);
        assert_eq!(stalls.excused(52, 4.0, 40.0), 0);
    }

    #[test]
    fn a_sum_that_fell_lost_a_poller() {
        let mut stalls = Stalls::new(500);
        assert_eq!(stalls.excused(20, 0.0, 0.0), 0);
        assert_eq!(stalls.excused(25, 0.0, 10.0), 5);
    }
}
