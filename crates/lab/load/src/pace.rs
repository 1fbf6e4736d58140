//! When the next command is due.

use crate::spec::Arrivals;

/// Open-loop arrivals: due times do not depend on completions.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    /// Mean gap between commands. `None`: as fast as the queue takes them.
    gap_ns: Option<f64>,
    arrivals: Arrivals,
    next_ns: f64,
    rng: fastrand::Rng,
}

impl Pace {
    pub(crate) fn new(rate_iops: Option<u64>, arrivals: Arrivals, start_ns: u64, seed: u64) -> Self {
        let gap_ns = rate_iops.map(|rate| 1e9 / rate.max(1) as f64);
        Self { gap_ns, arrivals, next_ns: start_ns as f64, rng: fastrand::Rng::with_seed(seed) }
    }

    /// When the next command is due. Not paced: at once.
    #[inline]
    pub(crate) fn due_ns(&self, now_ns: u64) -> u64 {
        if self.gap_ns.is_some() { self.next_ns as u64 } else { now_ns }
    }

    /// That command was sent.
    #[inline]
    pub(crate) fn advance(&mut self) {
        if let Some(gap_ns) = self.gap_ns {
            self.next_ns += match self.arrivals {
                Arrivals::Linear => gap_ns,
                Arrivals::Poisson => -(1.0 - self.rng.f64()).ln() * gap_ns,
            };
        }
    }

    pub(crate) fn is_paced(&self) -> bool {
        self.gap_ns.is_some()
    }
}
