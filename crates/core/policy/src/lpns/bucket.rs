//! A token bucket in integers, so that a replay ends in the same state.

use io_model::Nanos;

/// Fractions of a token, 2^20 each: the slowest drives' rates keep three digits.
const SHIFT: u32 = 20;
/// Longest span that fills at once; far longer than any bucket takes.
const LONGEST: u64 = 1_000_000_000;

/// Work that may be sent: refilled at a rate, up to a burst, overdrawn by one command at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct TokenBucket {
    /// In 2^-20 of a cost tick; below 0 while overdrawn.
    tokens: i64,
    rate_per_ns: i64,
    burst: i64,
    updated: Nanos,
}

impl TokenBucket {
    /// Full. `rate` in ticks per nanosecond, `burst` in ticks.
    pub(super) fn new(rate: f64, burst: u64, now: Nanos) -> Self {
        let mut bucket = Self { tokens: 0, rate_per_ns: 1, burst: 0, updated: now };
        bucket.set(rate, burst, now);
        bucket.tokens = bucket.burst;
        bucket
    }

    /// Changes rate and burst; what is in it stays, up to the burst.
    pub(super) fn set(&mut self, rate: f64, burst: u64, now: Nanos) {
        self.refill(now);
        self.rate_per_ns = ((rate * f64::from(1 << SHIFT)) as i64).clamp(1, 1 << 30);
        self.burst = (burst.min(1 << 40) as i64) << SHIFT;
        self.tokens = self.tokens.min(self.burst);
    }

    #[inline]
    fn refill(&mut self, now: Nanos) {
        let elapsed = (now - self.updated).0.min(LONGEST) as i64;
        self.updated = self.updated.max(now);
        self.tokens = (self.tokens + elapsed * self.rate_per_ns).min(self.burst);
    }

    /// Whether a command may go now.
    ///
    /// # Errors
    /// The time from which one may.
    #[inline]
    pub(super) fn admits(&mut self, now: Nanos) -> Result<(), Nanos> {
        self.refill(now);
        if self.tokens > 0 {
            return Ok(());
        }
        Err(now + Nanos((-self.tokens / self.rate_per_ns) as u64 + 1))
    }

    /// A command of this cost went.
    #[inline]
    pub(super) fn charge(&mut self, cost: u32) {
        self.tokens = self.tokens.saturating_sub(i64::from(cost) << SHIFT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_the_burst_go_and_then_the_rate() {
        // 0.064 ticks/ns: one command of 64 ticks per microsecond; a burst of 10 commands.
        let mut bucket = TokenBucket::new(0.064, 640, Nanos(0));
        let mut sent = 0_u32;
        let mut now = Nanos(0);
        while now < Nanos::from_millis(1) {
            match bucket.admits(now) {
                Ok(()) => {
                    bucket.charge(64);
                    sent += 1;
                }
                Err(at) => {
                    assert!(at > now);
                    now = at;
                }
            }
        }
        // One more than the burst, since a bucket may be overdrawn by one command.
        assert!((1008..=1011).contains(&sent), "{sent}");
    }

    #[test]
    fn a_large_command_is_paid_back_before_the_next() {
        let mut bucket = TokenBucket::new(0.064, 64, Nanos(0));
        bucket.charge(64 * 100);
        let at = bucket.admits(Nanos(0)).unwrap_err();
        assert!((99_000..99_100).contains(&at.0), "{at:?}");
        assert_eq!(bucket.admits(at), Ok(()));
        assert!(bucket.admits(Nanos(0)).is_ok(), "an earlier time changes nothing");
    }
}
