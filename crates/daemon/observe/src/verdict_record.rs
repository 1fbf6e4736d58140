//! The verdicts on one tenant since the daemon started, for its guest to read.

use std::sync::{Mutex, MutexGuard, PoisonError};

use io_model::Nanos;

/// Hours that spans are counted for: the current one and those before.
const HOURS: u64 = 24;

const HOUR_NS: u64 = 3_600_000_000_000;

/// What a verdict says of the tenant itself; no cause, which may name a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnVerdict {
    /// Whether the promise was kept. `None`: there is none, or too few commands came.
    pub kept: Option<bool>,
    /// The time that was judged.
    pub span: Nanos,
    /// The latency at the promised percentile, if one is promised and commands came.
    pub at_percentile: Option<Nanos>,
}

/// Judged spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spans {
    /// The promise was kept.
    pub kept: u64,
    /// It was broken.
    pub broken: u64,
    /// The load was all that the tenant's limits allow.
    pub at_limits: u64,
}

/// Written by the observer. A reader waits for no more than a copy, since it may be a poller.
#[derive(Debug, Default)]
pub struct VerdictRecord(Mutex<State>);

#[derive(Debug, Clone, Copy, Default)]
struct State {
    last: OwnVerdict,
    /// By the daemon's clock.
    hour: u64,
    /// Those of hour `n` are at `n % HOURS`.
    hours: [Spans; HOURS as usize],
}

impl VerdictRecord {
    /// A round of verdicts at `now`. `None`: the span goes on, and the last verdict holds.
    pub fn add(&self, now: Nanos, verdict: Option<OwnVerdict>, is_at_limits: bool) {
        let mut state = self.lock();
        let hour = now.0 / HOUR_NS;
        for passed in (state.hour + 1..=hour).rev().take(HOURS as usize) {
            state.hours[(passed % HOURS) as usize] = Spans::default();
        }
        state.hour = hour;
        let Some(verdict) = verdict else { return };
        let spans = &mut state.hours[(hour % HOURS) as usize];
        spans.kept += u64::from(verdict.kept == Some(true));
        spans.broken += u64::from(verdict.kept == Some(false));
        spans.at_limits += u64::from(is_at_limits);
        state.last = verdict;
    }

    /// The last verdict, and the spans of the current hour and the 23 before.
    pub fn read(&self) -> (OwnVerdict, Spans) {
        let State { last, hours, .. } = *self.lock();
        let sum = |of: fn(&Spans) -> u64| hours.iter().map(of).sum();
        let (kept, broken, at_limits) = (sum(|it| it.kept), sum(|it| it.broken), sum(|it| it.at_limits));
        (last, Spans { kept, broken, at_limits })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_count_for_a_day() {
        let record = VerdictRecord::default();
        let verdict = |kept| Some(OwnVerdict { kept, span: Nanos(5), at_percentile: None });
        let at = |hour: u64| Nanos(hour * HOUR_NS + 1);
        record.add(at(1), verdict(Some(true)), true);
        record.add(at(1), None, true);
        record.add(at(2), verdict(Some(false)), false);
        let (last, spans) = record.read();
        assert_eq!((last.kept, spans), (Some(false), Spans { kept: 1, broken: 1, at_limits: 1 }));
        record.add(at(24), verdict(None), false);
        assert_eq!((record.read().0.kept, record.read().1), (None, spans), "hours 1 to 24");
        record.add(at(25), None, false);
        assert_eq!(record.read().1, Spans { kept: 0, broken: 1, at_limits: 0 });
        record.add(at(25), verdict(Some(true)), false);
        record.add(at(48), None, false);
        assert_eq!(record.read().1.kept, 1);
        record.add(at(1_000), None, false);
        assert_eq!(record.read().1, Spans::default());
    }
}
