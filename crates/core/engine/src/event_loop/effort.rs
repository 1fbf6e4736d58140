//! Runs that end once enough is known.

use io_model::Nanos;
use policy::Policy;
use poller::INTERVAL;

use super::{DRAIN_NS, Engine};
use crate::contestant::Contestant;
use crate::report::Report;

/// How much of a scenario is played. Its warm-up and its duration are the longest that these last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Effort {
    /// The run ends after this many I/Os of all tenants. A quarter of them may be warm-up.
    pub ios: u64,
    /// It ends before, once this many I/Os of each tenant were measured.
    pub each: u64,
}

/// A quarter of a run's I/Os may be warm-up.
const WARMUP_OF: u64 = 4;

impl<C: Contestant, P: Policy> Engine<'_, C, P> {
    /// Runs until enough is known; `None` if `is_over` said so before. It is asked once in each interval.
    pub(crate) fn run_within(mut self, effort: Effort, is_over: &dyn Fn() -> bool) -> Option<Report> {
        self.begin();
        let mut is_cut =
            self.go_until(self.scenario.warmup.0, is_over, &|engine| engine.ios() >= effort.ios / WARMUP_OF);
        self.measure_from(self.now_ns);
        let end_ns = self.now_ns + self.scenario.duration.0;
        is_cut |= self.go_until(end_ns, is_over, &|engine| {
            engine.ios() >= effort.ios || engine.guests.iter().all(|guest| guest.tally.count() >= effort.each)
        });
        self.measured_ns.end = self.now_ns;
        let report = self.report();
        self.drain(self.now_ns + DRAIN_NS);
        let report = self.finish(report);
        (!is_cut).then_some(report)
    }

    /// Goes on interval by interval. Whether it was cut off.
    fn go_until(&mut self, end_ns: u64, is_over: &dyn Fn() -> bool, is_enough: &dyn Fn(&Self) -> bool) -> bool {
        while self.now_ns < end_ns && !is_enough(self) {
            if is_over() {
                return true;
            }
            let next_ns = (self.now_ns + INTERVAL.0).min(end_ns);
            while self.advance(next_ns) {}
            self.now_ns = next_ns;
        }
        false
    }

    fn measure_from(&mut self, now_ns: u64) {
        self.measured_ns.start = now_ns;
        for guest in &mut self.guests {
            guest.measure_from_ns = now_ns;
            guest.tally.start_windows(Nanos(now_ns));
        }
    }

    fn ios(&self) -> u64 {
        self.guests.iter().map(|guest| guest.ios).sum()
    }
}
