//! How long a command waits for each unit of others' work that is with the drive: the tail of that, as learned lately.

use crate::by_target::{TARGET_STEPS, span_of};

/// Bins to a factor of ten.
const PER_DECADE: f64 = 32.0;
/// Those of the lowest bin wait no longer than this for a unit, in ns.
const LOWEST_NS: f64 = 1e-3;
/// Nine decades.
const BINS: usize = 288;
/// A step is spread over the bins that it covers in so many parts.
const PARTS: usize = 4;

/// Waits in ns for a unit of work, by how often they were seen; what is older counts less.
#[derive(Debug, Clone)]
pub(super) struct Tail {
    bins: Box<[f32; BINS]>,
    total: f64,
}

impl Tail {
    /// Nothing seen, but `weight` commands' worth of an expectation.
    pub(super) fn expecting(wait_ns: f64, weight: f64) -> Self {
        let mut tail = Self { bins: Box::new([0.0; BINS]), total: 0.0 };
        tail.add(wait_ns, weight);
        tail
    }

    fn add(&mut self, wait_ns: f64, weight: f64) {
        let decades = (wait_ns.max(LOWEST_NS) / LOWEST_NS).log10();
        let bin = ((decades * PER_DECADE) as usize).min(BINS - 1);
        self.bins[bin] += weight as f32;
        self.total += weight;
    }

    /// Commands ended, `counts` by the steps of the target in which they did, while `units` were with the drive; with
    /// none each would have taken `alone_ns`. Beyond `memory` commands the oldest count less and less.
    pub(super) fn learn(
        &mut self,
        counts: &[u32; TARGET_STEPS],
        (target_ns, alone_ns): (f64, f64),
        units: f64,
        memory: f64,
    ) {
        let new: f64 = counts.iter().map(|count| f64::from(*count)).sum();
        if self.total + new > memory {
            let keep = ((memory - new) / self.total).clamp(0.0, 1.0) as f32;
            self.bins.iter_mut().for_each(|bin| *bin *= keep);
            self.total = self.bins.iter().map(|bin| f64::from(*bin)).sum();
        }
        for (step, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (from, to) = span_of(step);
            for part in 0..PARTS {
                let at = from + (to - from) * (part as f64 + 0.5) / PARTS as f64;
                self.add((at * target_ns - alone_ns) / units, f64::from(*count) / PARTS as f64);
            }
        }
    }

    /// The wait for a unit that a share `late` (0 to 1) of commands exceeds, in ns; above 0.
    pub(super) fn beyond(&self, late: f64) -> f64 {
        let mut left = late * self.total;
        for (bin, count) in self.bins.iter().enumerate().rev() {
            let count = f64::from(*count);
            if left < count {
                // Within the bin as if they lay evenly.
                let place = bin as f64 + 1.0 - left / count;
                return LOWEST_NS * 10_f64.powf(place / PER_DECADE);
            }
            left -= count;
        }
        LOWEST_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expectation_gives_way_to_what_is_seen() {
        let mut tail = Tail::expecting(1_000.0, 100.0);
        assert!((tail.beyond(0.01) / 1_000.0 - 1.0).abs() < 0.08);
        // 10 units with the drive: commands take 2 of a target of 40 µs more than the 8 µs that they take alone.
        let mut counts = [0; TARGET_STEPS];
        counts[1] = 1_000;
        for _ in 0..10 {
            tail.learn(&counts, (40_000.0, 8_000.0), 10.0, 2_000.0);
        }
        // The step is from a quarter to half of the target: waits of 200 to 1,200 ns for each unit.
        let waits = [0.5, 0.01].map(|late| tail.beyond(late));
        assert!((550.0..850.0).contains(&waits[0]) && (1_000.0..1_250.0).contains(&waits[1]), "{waits:?}");
    }

    #[test]
    fn nothing_is_forgotten_of_what_is_rare() {
        let mut tail = Tail::expecting(1_000.0, 0.0);
        let mut counts = [0; TARGET_STEPS];
        (counts[0], counts[9]) = (98, 2);
        tail.learn(&counts, (100_000.0, 0.0), 1.0, 1e9);
        assert!(tail.beyond(0.01) > 100_000.0 && tail.beyond(0.03) < 30_000.0);
    }
}
