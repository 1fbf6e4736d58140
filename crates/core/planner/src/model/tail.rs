//! From a mean and a variance to a percentile.

use io_model::Nanos;

/// One part of a tenant's commands: none faster than `least_ns`, beyond that gamma-distributed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Part {
    /// Of all commands.
    pub(super) part: f64,
    pub(super) least_ns: f64,
    pub(super) mean_ns: f64,
    pub(super) variance: f64,
}

impl Part {
    /// Part of all commands that take longer: Wilson and Hilferty's cube root of a gamma variable is about normal.
    fn above(&self, ns: f64) -> f64 {
        let excess = self.mean_ns - self.least_ns;
        if excess <= 0.0 || self.variance <= 0.0 {
            return if ns < self.mean_ns { self.part } else { 0.0 };
        }
        let beyond = (ns - self.least_ns) / excess;
        if beyond <= 0.0 {
            return self.part;
        }
        let ninth = self.variance / (excess * excess) / 9.0;
        self.part * normal_above((beyond.cbrt() - 1.0 + ninth) / ninth.sqrt())
    }
}

/// Probability that a standard normal variable is above `z` (Abramowitz and Stegun 26.2.17, to 1e-7).
fn normal_above(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429]
        .iter()
        .rev()
        .fold(0.0, |sum, c| (sum + c) * t);
    let above = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt() * series;
    if z >= 0.0 { above } else { 1.0 - above }
}

/// How one tenant's latencies are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tail {
    /// Reads and writes.
    parts: [Part; 2],
}

impl Tail {
    pub(super) fn new(parts: [Part; 2]) -> Self {
        Self { parts }
    }

    /// All of them take as long.
    #[cfg(test)]
    pub(crate) fn fixed(latency: Nanos) -> Self {
        let mean_ns = latency.0 as f64;
        Self { parts: [Part { part: 1.0, least_ns: mean_ns, mean_ns, variance: 0.0 }, Part::default()] }
    }

    /// The latency that this percentage of commands does not exceed; meant for 50 to 99.9.
    pub fn percentile(&self, percent: f64) -> Nanos {
        Nanos(self.percentile_ns(1.0 - percent / 100.0) as u64)
    }

    /// Part of the commands that take longer.
    pub(super) fn longer(&self, ns: f64) -> f64 {
        self.parts.iter().filter(|part| part.part > 0.0).map(|part| part.above(ns)).sum()
    }

    /// What all but `above` of the commands stay below.
    pub(crate) fn percentile_ns(&self, above: f64) -> f64 {
        let mut high = self.parts.iter().map(|part| part.mean_ns).fold(1.0, f64::max);
        while self.longer(high) > above && high < 1e18 {
            high *= 2.0;
        }
        let mut low = 0.0;
        for _ in 0..40 {
            let middle = f64::midpoint(low, high);
            if self.longer(middle) > above { low = middle } else { high = middle }
        }
        high
    }
}
