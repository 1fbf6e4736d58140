//! Commands that were late because their poller stood still.

/// While such commands are at most that part of those that may be late, they count as any others: with less work of
/// others the promise is kept nevertheless. Where they are more it is not, whatever others are denied, so that they
/// are denied nothing for it.
const MOST: f64 = 0.75;

/// Those of one tenant.
#[derive(Debug)]
pub(super) struct Stalls {
    seen: u64,
    /// So many more may come and count.
    room: f64,
}

impl Stalls {
    pub(super) fn new(total: u64) -> Self {
        Self { seen: total, room: 0.0 }
    }

    /// There have been `total`, after commands of which `may_be` may be late; `most` are the commands that may be late
    /// over the time that is looked back on. How many of the new ones are laid to nobody.
    pub(super) fn excused(&mut self, total: u64, may_be: f64, most: f64) -> u32 {
        let new = total.saturating_sub(std::mem::replace(&mut self.seen, total));
        self.room = (self.room + may_be * MOST - new as f64).clamp(-most, most);
        if self.room < 0.0 { new.min(u32::MAX.into()) as u32 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `per_interval` in each of a thousand intervals with 4 commands that may be late each.
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
        // Those are paid for first, by commands of which none was late for it.
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
