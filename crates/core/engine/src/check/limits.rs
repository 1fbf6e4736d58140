//! Nobody gets more than its limits, in whatever span.
//!
//! In a span `T` that is limit × (`T` + burst), the quotas of the slices that it begins and ends in, and one command
//! that overdraws at each of the tenant's pollers; where it has several, which part the limits anew in each interval
//! and not at the same moment, an interval's quota more. That holds for all spans at once where a bucket that leaks at
//! the limit never holds more than the rest of that sum.

use io_model::{Command, Op};
use policy::Limits;
use poller::INTERVAL;

/// A policy gives out quotas in slices this long.
const SLICE_NS: u64 = 1_000_000;
const NS_PER_SEC: u128 = 1_000_000_000;

/// What is counted, in the order of a bucket's place.
const KINDS: [&str; 6] = ["commands", "reads", "commands but reads", "bytes", "bytes read", "bytes written"];

/// One tenant's buckets.
#[derive(Debug)]
pub(super) struct Buckets {
    limits: Limits,
    pollers: u16,
    /// In thousand millionths of a command or byte.
    levels: [u128; 6],
    at_ns: u64,
    most_bytes: u64,
}

impl Buckets {
    /// `pollers`: how many serve the tenant, each with its share of the limits.
    pub(super) fn new(limits: Limits, pollers: u16) -> Self {
        Self { limits, pollers, levels: [0; 6], at_ns: 0, most_bytes: 0 }
    }

    /// New limits from now on; use under the old limits does not count against them.
    pub(super) fn set_limits(&mut self, limits: Limits) {
        if limits != self.limits {
            (self.limits, self.levels) = (limits, [0; 6]);
        }
    }

    /// What is wrong, if it is.
    pub(super) fn fetched(&mut self, command: &Command, now_ns: u64) -> Option<String> {
        if self.limits.is_empty() {
            return None;
        }
        let elapsed_ns = u128::from(now_ns.saturating_sub(self.at_ns));
        self.at_ns = now_ns;
        let len = command.len_bytes;
        self.most_bytes = self.most_bytes.max(len);
        let counts = match command.op {
            Op::Read => [1, 1, 0, len, len, 0],
            Op::Write | Op::WriteZeroes => [1, 0, 1, len, 0, len],
            Op::Flush | Op::Discard => [1, 0, 1, 0, 0, 0],
        };
        let Limits { rw_ios_per_sec, r_ios_per_sec, w_ios_per_sec, .. } = self.limits;
        let mib = [self.limits.rw_mbytes_per_sec, self.limits.r_mbytes_per_sec, self.limits.w_mbytes_per_sec];
        let bytes = mib.map(|mib| (mib << 20, self.most_bytes));
        let ios = [rw_ios_per_sec, r_ios_per_sec, w_ios_per_sec].map(|limit| (limit, 1));
        let parted_ns = if self.pollers > 1 { INTERVAL.0 } else { 0 };
        let slack_ns = u128::from(self.limits.burst.0 + 2 * SLICE_NS + parted_ns);
        let mut wrong = None;
        for (at, (limit, most)) in ios.into_iter().chain(bytes).enumerate().filter(|(_, (limit, _))| *limit > 0) {
            let level = &mut self.levels[at];
            *level = level.saturating_sub(u128::from(limit) * elapsed_ns) + u128::from(counts[at]) * NS_PER_SEC;
            let allowed = u128::from(limit) * slack_ns + u128::from(self.pollers) * u128::from(most) * NS_PER_SEC;
            if *level > allowed {
                let over = (*level - allowed).div_ceil(NS_PER_SEC);
                wrong = Some(format!("{over} {} more than a limit of {limit} a second allows", KINDS[at]));
                *level = 0;
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use io_model::{Nanos, Place, TenantId};

    use super::*;

    #[test]
    fn what_a_limit_allows_passes_and_one_more_does_not() {
        let place = Place { tenant: TenantId(0), disk: 0, base_bytes: 0 };
        let read = place.command(Op::Read, 0, 4096);
        let limits = Limits { r_ios_per_sec: 10_000, burst: Nanos::from_millis(5), ..Limits::default() };
        let mut buckets = Buckets::new(limits, 1);
        let mut at_once = |now_ns| (0..1_000).take_while(|_| buckets.fetched(&read, now_ns).is_none()).count();
        assert_eq!(at_once(0), 71, "a burst of 50, two slices of 10, and one command");
        assert_eq!(at_once(1_000_000_000), 71);
        let mut buckets = Buckets::new(limits, 1);
        let mut steady = (0..100_000).map(|at| buckets.fetched(&read, at * 100_000));
        assert!(steady.all(|wrong| wrong.is_none()));
        let mut steady = (0..1_000).map(|at| buckets.fetched(&read, at * 90_000));
        assert!(steady.any(|wrong| wrong.is_some()), "a tenth too fast is seen");
    }
}
