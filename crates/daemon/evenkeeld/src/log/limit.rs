//! How many lines one tenant may cause, so that none fills a disk with them or hides what others say.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines about one tenant in a period at most; what comes beyond that is counted.
pub const LINES: u32 = 30;
/// From the first of them.
pub const PERIOD: Duration = Duration::from_secs(10);

/// The lines of each tenant that said something lately.
#[derive(Debug, Default)]
pub struct Limits {
    periods: HashMap<String, Period>,
}

#[derive(Debug)]
struct Period {
    ends: Instant,
    lines: u32,
    left_out: u64,
}

impl Limits {
    /// Whether one more line about a tenant may be written. One that may not is counted.
    pub fn may_write(&mut self, tenant: &str, now: Instant) -> bool {
        let Some(period) = self.periods.get_mut(tenant) else {
            let period = Period { ends: now + PERIOD, lines: 1, left_out: 0 };
            self.periods.insert(tenant.to_owned(), period);
            return true;
        };
        if period.ends <= now && period.left_out == 0 {
            *period = Period { ends: now + PERIOD, lines: 0, left_out: 0 };
        }
        let may = period.lines < LINES;
        if may {
            period.lines += 1;
        } else {
            period.left_out += 1;
        }
        may
    }

    /// When the next period ends; `None`: nobody said anything lately.
    pub fn next_end(&self) -> Option<Instant> {
        self.periods.values().map(|period| period.ends).min()
    }

    /// Forgets the periods that are over. Returns whose lines were left out in them, and how many.
    pub fn take_ended(&mut self, now: Instant) -> Vec<(String, u64)> {
        if self.next_end().is_none_or(|end| now < end) {
            return Vec::new();
        }
        let over = self.periods.extract_if(|_, period| period.ends <= now);
        over.filter(|(_, period)| period.left_out > 0).map(|(tenant, period)| (tenant, period.left_out)).collect()
    }
}

/// What is said of them.
pub fn in_words(tenant: &str, count: u64) -> String {
    format!("{tenant}: {count} more lines about it were left out: there are {LINES} in {PERIOD:?} at most")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_tenant_is_cut_off_and_counted_and_no_other_notices() {
        let (mut limits, start) = (Limits::default(), Instant::now());
        assert_eq!((limits.next_end(), limits.take_ended(start)), (None, vec![]));
        let written = (0..1000).filter(|_| limits.may_write("db", start)).count();
        assert_eq!(written, 30);
        assert!(limits.may_write("web", start + PERIOD / 2));
        assert_eq!(limits.take_ended(start + PERIOD / 2), vec![]);
        assert_eq!(limits.next_end(), Some(start + PERIOD));

        // Nobody has taken the count yet: it is not lost.
        assert!(!limits.may_write("db", start + PERIOD));
        assert_eq!(limits.take_ended(start + PERIOD), vec![("db".to_owned(), 971)]);
        assert!(limits.may_write("db", start + PERIOD));
        assert_eq!(limits.take_ended(start + PERIOD * 2), vec![], "nothing more was left out");
        assert_eq!(limits.next_end(), None, "tenants that say nothing are forgotten");
        assert_eq!(in_words("db", 971), "db: 971 more lines about it were left out: there are 30 in 10s at most");
    }
}
