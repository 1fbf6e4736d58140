//! Tokens that come at a rate.

use io_model::Nanos;

/// A bucket. What is taken may be more than it holds; then it is in debt until that is paid.
#[derive(Debug)]
pub(crate) struct Bucket {
    level: f64,
    most: f64,
    per_ns: f64,
    filled_at: Nanos,
}

impl Bucket {
    /// Full.
    pub(crate) fn new(per_second: f64, most: f64) -> Self {
        Self { level: most, most, per_ns: per_second / 1e9, filled_at: Nanos(0) }
    }

    pub(crate) fn set_rate(&mut self, per_second: f64, most: f64) {
        (self.per_ns, self.most) = (per_second / 1e9, most);
        self.level = self.level.min(most);
    }

    /// Tokens come until now.
    #[inline]
    pub(crate) fn fill(&mut self, now: Nanos) {
        let passed_ns = now.0.saturating_sub(self.filled_at.0);
        self.level = (self.level + self.per_ns * passed_ns as f64).min(self.most);
        self.filled_at = self.filled_at.max(now);
    }

    #[inline]
    pub(crate) fn take(&mut self, tokens: f64) {
        self.level -= tokens;
    }

    /// Takes some, but leaves no more debt for it than the bucket could hold.
    #[inline]
    pub(crate) fn take_at_most(&mut self, tokens: f64) {
        self.level = (self.level - tokens).max(self.level.min(-self.most));
    }

    pub(crate) fn empty(&mut self) {
        self.level = self.level.min(0.0);
    }

    /// Whether a tenant may take tokens.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.level > 0.0
    }

    /// When it is open again, if it is closed now.
    pub(crate) fn opens_at(&self, now: Nanos) -> Nanos {
        let waits_ns = -self.level / self.per_ns + 1.0;
        // Beyond a second the rate will have been set anew.
        now + Nanos(waits_ns.clamp(1.0, 1e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_paid_at_the_rate() {
        let mut bucket = Bucket::new(1e9, 10.0);
        bucket.take(110.0);
        assert!(!bucket.is_open());
        let opens_at = bucket.opens_at(Nanos(0));
        assert_eq!(opens_at, Nanos(101));
        bucket.fill(opens_at);
        assert!(bucket.is_open());
        bucket.fill(Nanos(1_000_000));
        bucket.take(10.0);
        assert!(!bucket.is_open(), "no more than it holds is kept");
    }
}
